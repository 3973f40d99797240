//! Watchers: connections that asked, with `watch`, for log lines about the activity of other
//! clients.
//!
//! ```text
//!   a worker's event ── nobody watches: one relaxed load
//!        └─► Watchers::push ──► each watcher's buffer, at most BUFFER_BYTES_MAX ──► its worker is woken,
//!                                 full: the line is skipped and counted             which sends the lines
//! ```
//!
//! Nothing here blocks on a watcher's socket: a watcher that reads slowly loses lines, but delays
//! nobody. `watch_lines.rs` formats the events.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::UNIX_EPOCH;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError, time};

use crate::system::Wake;

/// Bytes of lines that wait for one watcher, as in memcached by default. Further lines are skipped.
pub(crate) const BUFFER_BYTES_MAX: usize = 256 << 10;

/// Maximum number of watchers, as in memcached.
const WATCHERS_MAX: usize = 20;

/// Kinds of events, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchKinds(u8);

impl WatchKinds {
    pub(crate) const FETCHERS: Self = Self(1);
    pub(crate) const MUTATIONS: Self = Self(2);
    pub(crate) const EVICTIONS: Self = Self(4);
    pub(crate) const CONNECTIONS: Self = Self(8);
    /// Memcached's events about its slabs and its crawler. This server has no such events.
    const SYSTEM: Self = Self(16);
    /// Kinds that memcached accepts but never logs, or logs only as a proxy.
    const NEVER: Self = Self(32);

    /// Parses the words of the command `watch`. No words mean fetchers. Returns `None` if a word is
    /// not known.
    pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut kinds = Self::default();
        for word in words {
            let kind = match word {
                b"fetchers" => Self::FETCHERS,
                b"mutations" => Self::MUTATIONS,
                b"evictions" => Self::EVICTIONS,
                b"connevents" => Self::CONNECTIONS,
                b"sysevents" => Self::SYSTEM,
                b"rawcmds" | b"proxyreqs" | b"proxyevents" | b"proxyuser" => Self::NEVER,
                _ => return None,
            };
            kinds.0 |= kind.0;
        }
        Some(if kinds == Self::default() {
            Self::FETCHERS
        } else {
            kinds
        })
    }

    fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// All watchers of a server.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// The kinds that anyone watches.
    kinds: AtomicU8,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// The number of the last line.
    last_gid: u64,
    /// Lines that watchers' buffers took.
    sent: u64,
    /// Lines that did not fit into a watcher's buffer.
    skipped: u64,
    watchers: Vec<Arc<Buffer>>,
}

/// The watchers and their lines so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchCounts {
    pub(crate) watchers: usize,
    pub(crate) lines: u64,
    pub(crate) sent: u64,
    pub(crate) skipped: u64,
}

/// A watcher's lines.
#[derive(Debug)]
struct Buffer {
    kinds: WatchKinds,
    waker: Arc<dyn Wake>,
    waiting: Mutex<Waiting>,
}

/// Lines that wait to be sent.
#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    /// The number of lines that did not fit since the last one that did.
    skipped: u64,
    /// Whether the worker was woken since it last took the lines.
    is_woken: bool,
}

/// A watcher's place in the list. Dropping it removes the watcher from the list.
#[derive(Debug)]
pub(crate) struct Watcher {
    watchers: Arc<Watchers>,
    buffer: Arc<Buffer>,
}

impl Watchers {
    /// Whether anyone watches this kind.
    #[inline]
    pub(crate) fn is_watched(&self, kind: WatchKinds) -> bool {
        // Relaxed: a hint. A watcher may miss a line that is written while it arrives or leaves.
        self.kinds.load(Ordering::Relaxed) & kind.0 != 0
    }

    /// Adds a watcher. `waker` wakes its thread. Returns `None` if there are too many watchers.
    pub(crate) fn add(
        self: &Arc<Self>,
        kinds: WatchKinds,
        waker: Arc<dyn Wake>,
    ) -> Option<Watcher> {
        let mut list = self.list();
        if list.watchers.len() == WATCHERS_MAX {
            return None;
        }
        let buffer = Arc::new(Buffer {
            kinds,
            waker,
            waiting: Mutex::default(),
        });
        list.watchers.push(Arc::clone(&buffer));
        self.count_kinds(&list);
        drop(list);
        let watchers = Arc::clone(self);
        Some(Watcher { watchers, buffer })
    }

    /// Gives a line to every watcher of its kind. `event` is the part of the line that begins with
    /// its type.
    #[cold]
    pub(crate) fn push(&self, kind: WatchKinds, event: fmt::Arguments<'_>) {
        let now = time::system_now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let mut list = self.list();
        list.last_gid += 1;
        // As in memcached, the microseconds have no leading zeros.
        let line = format!(
            "ts={}.{} gid={} type={event}\n",
            now.as_secs(),
            now.subsec_micros(),
            list.last_gid,
        );
        // Hold the lock, so that each watcher gets the lines in the order of their numbers.
        let (mut sent, mut skipped) = (0, 0);
        for watcher in &list.watchers {
            if watcher.kinds.meets(kind) {
                if watcher.push(line.as_bytes()) {
                    sent += 1;
                } else {
                    skipped += 1;
                }
            }
        }
        list.sent += sent;
        list.skipped += skipped;
    }

    /// The number of watchers, and of lines since the server started.
    pub(crate) fn counts(&self) -> WatchCounts {
        let list = self.list();
        WatchCounts {
            watchers: list.watchers.len(),
            lines: list.last_gid,
            sent: list.sent,
            skipped: list.skipped,
        }
    }

    /// Records which kinds are watched.
    fn count_kinds(&self, list: &List) {
        let kinds = list.watchers.iter().fold(0, |all, one| all | one.kinds.0);
        // Relaxed: see `is_watched`. The list's lock orders the stores.
        self.kinds.store(kinds, Ordering::Relaxed);
    }

    fn list(&self) -> MutexGuard<'_, List> {
        // A panic under this lock leaves nothing half done.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    /// Returns false if the line did not fit.
    fn push(&self, line: &[u8]) -> bool {
        let mut waiting = self.waiting();
        let skipped = match waiting.skipped {
            0 => String::new(),
            lines => format!("skipped={lines}\n"),
        };
        if waiting.lines.len() + skipped.len() + line.len() > BUFFER_BYTES_MAX {
            waiting.skipped += 1;
            return false;
        }
        waiting.lines.extend_from_slice(skipped.as_bytes());
        waiting.lines.extend_from_slice(line);
        waiting.skipped = 0;
        let was_woken = std::mem::replace(&mut waiting.is_woken, true);
        drop(waiting);
        if !was_woken {
            // This fails only if the worker is gone, and its connections with it.
            let _ = self.waker.wake();
        }
        true
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // As above.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// Appends the waiting lines to `out`. Returns false if there are none.
    pub(crate) fn take_lines(&self, out: &mut Vec<u8>) -> bool {
        let mut waiting = self.buffer.waiting();
        waiting.is_woken = false;
        let lines = std::mem::take(&mut waiting.lines);
        drop(waiting);
        out.extend_from_slice(&lines);
        !lines.is_empty()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut list = self.watchers.list();
        let is_other = |one: &Arc<Buffer>| !Arc::ptr_eq(one, &self.buffer);
        list.watchers.retain(is_other);
        self.watchers.count_kinds(&list);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts its calls.
    #[derive(Debug, Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(&self) -> io::Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn lines(watcher: &Watcher) -> Vec<String> {
        let mut out = Vec::new();
        watcher.take_lines(&mut out);
        let text = String::from_utf8(out).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_watcher_gets_what_it_asked_for_and_is_woken_once() {
        let watchers = Arc::new(Watchers::default());
        assert!(!watchers.is_watched(WatchKinds::FETCHERS));
        let wakes = Arc::new(Wakes::default());
        let watcher = watchers.add(WatchKinds::FETCHERS, wakes.clone());
        let watcher = watcher.expect("a place");
        assert!(watchers.is_watched(WatchKinds::FETCHERS));
        assert!(!watchers.is_watched(WatchKinds::MUTATIONS));
        watchers.push(WatchKinds::FETCHERS, format_args!("a"));
        watchers.push(WatchKinds::MUTATIONS, format_args!("b"));
        watchers.push(WatchKinds::FETCHERS, format_args!("c"));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        let got = lines(&watcher);
        let ends: Vec<&str> = got
            .iter()
            .filter_map(|line| line.split_once(" gid="))
            .map(|one| one.1)
            .collect();
        assert_eq!(ends, ["1 type=a", "3 type=c"]);
        assert!(got[0].starts_with("ts="));
        assert!(lines(&watcher).is_empty());
        watchers.push(WatchKinds::FETCHERS, format_args!("d"));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        drop(watcher);
        assert!(!watchers.is_watched(WatchKinds::FETCHERS));
    }

    #[test]
    fn a_watcher_that_does_not_read_loses_lines_and_learns_how_many() {
        let watchers = Arc::new(Watchers::default());
        let add = || watchers.add(WatchKinds::EVICTIONS, Arc::new(Wakes::default()));
        let slow = add().expect("a place");
        let fast = add().expect("a place");
        let event = "x".repeat(1000);
        let (mut slow_lines, mut fast_lines) = (0, 0);
        for _ in 0..1000 {
            watchers.push(WatchKinds::EVICTIONS, format_args!("{event}"));
            fast_lines += lines(&fast).len();
        }
        assert_eq!(fast_lines, 1000);
        let kept = lines(&slow);
        assert!(kept.iter().map(|line| line.len() + 1).sum::<usize>() <= BUFFER_BYTES_MAX);
        slow_lines += kept.len();
        assert!(slow_lines > 200, "{slow_lines}");
        watchers.push(WatchKinds::EVICTIONS, format_args!("last"));
        let after = lines(&slow);
        assert_eq!(after[0], format!("skipped={}", 1000 - slow_lines));
        assert!(after[1].ends_with("gid=1001 type=last"), "{after:?}");
        assert_eq!(after.len(), 2);
        let skipped = 1000 - slow_lines as u64;
        let expected = WatchCounts {
            watchers: 2,
            lines: 1001,
            sent: 2002 - skipped,
            skipped,
        };
        assert_eq!(watchers.counts(), expected);
    }

    #[test]
    fn the_number_of_watchers_is_limited() {
        let watchers = Arc::new(Watchers::default());
        let add = || watchers.add(WatchKinds::FETCHERS, Arc::new(Wakes::default()));
        let mut all: Vec<Watcher> = (0..WATCHERS_MAX).map(|_| add().expect("a place")).collect();
        assert!(add().is_none());
        all.pop();
        assert!(add().is_some());
    }
}
