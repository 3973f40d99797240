//! Obsolete files: files of runs that no manifest names and no reader uses.
//!
//! ```text
//!   reader, compaction ──drops the last reference──> add ─┬─> removed at once            without background threads
//!                                                         ├─> queue ──> unlink thread    one by one, at a pace
//!                                                         └─> kept                       once the store is closed
//! ```
//!
//! Unlinking 64 MiB takes the file system 20 ms, in which a sync waits, and then the disk has to
//! discard the blocks. So a compaction that frees a thousand runs must not have them unlinked at
//! once, and nobody who flushes or reads may wait for it. The queue is emptied without pauses while
//! it holds much of the store or of the disk's free space, and when somebody waits for it. Files
//! are not truncated piece by piece instead: a checkpoint may have a link to them, and another
//! process may read them.
//!
//! A reader may hold a run for longer than the store is open. By the time it drops the run, the
//! next opening may have removed the file, and the file's name may belong to another run.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::Owner;
use forerun_core::sync::atomic::{AtomicU64, Ordering};
use forerun_core::sync::{Condvar, Mutex, MutexGuard, PoisonError, time};

use crate::io::Io;

/// How fast files are removed by default, in bytes per second: two of 64 MiB a second, in which
/// ext4 on a virtual disk is busy with them for 4% of the time. Removed at once, 24 of them make
/// every sync beside them take 30 to 40 ms instead of 4.
pub(crate) const DELETE_RATE_BYTES: u64 = 128 << 20;

/// What the smallest file counts: unlinking takes time however small a file is.
const FILE_BYTES_MIN: u64 = 128 << 10;

/// What has waited so long is removed without pauses. A long queue is emptied faster before that,
/// so that little is left by then.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How long closing may take to remove what waits. The next opening removes the rest.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// The queue may hold a quarter of what the store needs, and an eighth of what is free.
const LIVE_SHARE: u64 = 4;
const FREE_SHARE: u64 = 8;

/// How long a pause may last before the free space is looked at again.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Removes the files of obsolete runs.
pub(crate) struct ObsoleteFiles {
    /// Only this process removes files. A forked child that drops a run leaves its file alone.
    owner: Owner,
    io: Arc<dyn Io>,
    state: Mutex<State>,
    /// Notified when a file comes into the queue, and when its thread is to end.
    changed: Condvar,
    /// Notified when a thread has removed a file that it had taken.
    on_removed: Condvar,
    /// Bytes of the runs that the manifest names. Relaxed throughout: a hint.
    live_bytes: AtomicU64,
}

/// A file that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ObsoleteFile {
    files: Arc<ObsoleteFiles>,
    path: PathBuf,
    bytes: u64,
}

/// What waits to be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObsoleteCounts {
    pub(crate) files: usize,
    pub(crate) bytes: u64,
}

struct State {
    removal: Removal,
    /// How many files threads have taken and not removed yet, and how many they have removed.
    taken: usize,
    removed: usize,
}

/// When files are removed.
enum Removal {
    /// By whoever drops them. `found` waits for the background thread, or until space is needed.
    Immediate {
        found: VecDeque<Waiting>,
    },
    /// A background thread removes them.
    Deferred(Queue),
    Closed,
}

struct Queue {
    /// The first has waited longest.
    waiting: VecDeque<Waiting>,
    /// What waits, and what threads have taken and not removed yet.
    counts: ObsoleteCounts,
    /// What the files that wait cost.
    cost_bytes: u64,
    pace: Pace,
    is_stopping: bool,
    /// How many threads wait until everything is removed.
    hurrying: usize,
    on_empty: Notify,
}

#[derive(Debug)]
struct Waiting {
    path: PathBuf,
    bytes: u64,
    since: Instant,
}

impl Waiting {
    fn new(path: PathBuf, bytes: u64) -> Waiting {
        Waiting {
            path,
            bytes,
            since: time::now(),
        }
    }

    /// What removing it counts.
    fn cost_bytes(&self) -> u64 {
        self.bytes.max(FILE_BYTES_MIN)
    }
}

/// When the next file is removed.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// 0: without pauses.
    rate_bytes: u64,
    /// The last removal, and what it cost.
    last: Option<(Instant, u64)>,
}

impl Pace {
    /// Until when to pause, if the first of the queue has waited since then, and all of it costs so
    /// much. `None`: it does not pause.
    fn paused_until(self, since: Instant, cost_bytes: u64, now: Instant) -> Option<Instant> {
        let (last, last_bytes) = self.last.filter(|_| self.rate_bytes > 0)?;
        let due = since + WAIT_MAX;
        let left = due.saturating_duration_since(now).as_secs_f64();
        let rate = (self.rate_bytes as f64).max(cost_bytes as f64 / left.max(0.001));
        let pause = (last_bytes as f64 / rate).min(WAIT_MAX.as_secs_f64());
        let until = due.min(last + Duration::from_secs_f64(pause));
        (until > now).then_some(until)
    }
}

/// While this lives, files are removed without pauses.
#[derive(Debug)]
pub(crate) struct Hurry<'a>(&'a ObsoleteFiles);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.0.lock().removal.queue() {
            queue.hurrying = queue.hurrying.saturating_sub(1);
        }
    }
}

/// Wakes the threads that wait until everything is removed.
type Notify = Arc<dyn Fn() + Send + Sync>;

impl Removal {
    fn queue(&mut self) -> Option<&mut Queue> {
        match self {
            Removal::Deferred(queue) => Some(queue),
            Removal::Immediate { .. } | Removal::Closed => None,
        }
    }

    /// The file that has waited longest.
    fn pop(&mut self) -> Option<Waiting> {
        match self {
            Removal::Immediate { found } => found.pop_front(),
            Removal::Deferred(queue) => queue.pop(),
            Removal::Closed => None,
        }
    }
}

impl Queue {
    fn push(&mut self, file: Waiting) {
        self.counts.files += 1;
        self.counts.bytes += file.bytes;
        self.cost_bytes += file.cost_bytes();
        self.waiting.push_back(file);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let file = self.waiting.pop_front()?;
        self.cost_bytes -= file.cost_bytes();
        Some(file)
    }
}

impl Drop for ObsoleteFile {
    fn drop(&mut self) {
        self.files.add(&self.path, self.bytes);
    }
}

impl ObsoleteFiles {
    /// Removes each file at once.
    pub(crate) fn new(io: Arc<dyn Io>) -> ObsoleteFiles {
        ObsoleteFiles {
            owner: Owner::this_process(),
            io,
            state: Mutex::new(State {
                removal: Removal::Immediate {
                    found: VecDeque::new(),
                },
                taken: 0,
                removed: 0,
            }),
            changed: Condvar::new(),
            on_removed: Condvar::new(),
            live_bytes: AtomicU64::new(0),
        }
    }

    /// A file of this many bytes that is obsolete once the result is dropped.
    pub(crate) fn file(self: &Arc<Self>, path: &Path, bytes: u64) -> ObsoleteFile {
        ObsoleteFile {
            files: Arc::clone(self),
            path: path.to_owned(),
            bytes,
        }
    }

    /// From now on a background thread calls [`remove_paced`](Self::remove_paced), which removes
    /// so many bytes per second; 0 for no pauses. `on_empty` is called when everything is removed.
    pub(crate) fn defer(&self, rate_bytes: u64, on_empty: Notify) {
        // So that the queue counts every file that threads have taken from now on.
        let mut state = self.wait_for_taken(self.lock());
        let found = match &mut state.removal {
            Removal::Immediate { found } => std::mem::take(found),
            Removal::Deferred(_) | Removal::Closed => VecDeque::new(),
        };
        let mut queue = Queue {
            waiting: VecDeque::new(),
            counts: ObsoleteCounts::default(),
            cost_bytes: 0,
            pace: Pace {
                rate_bytes,
                last: None,
            },
            is_stopping: false,
            hurrying: 0,
            on_empty,
        };
        found.into_iter().for_each(|file| queue.push(file));
        state.removal = Removal::Deferred(queue);
    }

    /// Takes over a file that an earlier process left. It waits for the background thread; without
    /// one, it stays until space is needed.
    pub(crate) fn add_found(&self, path: PathBuf, bytes: u64) {
        let file = Waiting::new(path, bytes);
        match &mut self.lock().removal {
            Removal::Immediate { found } => found.push_back(file),
            Removal::Deferred(queue) => queue.push(file),
            Removal::Closed => {}
        }
    }

    /// Notes how many bytes the runs have that the manifest names.
    pub(crate) fn set_live_bytes(&self, bytes: u64) {
        self.live_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Takes over an obsolete file.
    fn add(&self, path: &Path, bytes: u64) {
        if !self.owner.is_this_process() {
            return;
        }
        // This happens under the lock, so that nothing is removed after `close`.
        match &mut self.lock().removal {
            Removal::Immediate { .. } => return self.remove(path),
            Removal::Deferred(queue) => queue.push(Waiting::new(path.to_owned(), bytes)),
            Removal::Closed => return,
        }
        self.changed.notify_all();
    }

    /// Removes the files in the queue, with a pause after each, until [`stop`](Self::stop).
    pub(crate) fn remove_paced(&self) {
        let mut state = self.lock();
        while let Some(queue) = state.removal.queue().filter(|queue| !queue.is_stopping) {
            let Some(first) = queue.waiting.front() else {
                state = self.wait(state, None);
                continue;
            };
            let now = time::now();
            let paused_until = queue.pace.paused_until(first.since, queue.cost_bytes, now);
            if let Some(until) = paused_until.filter(|_| queue.hurrying == 0) {
                let (path, bytes) = (first.path.clone(), queue.counts.bytes);
                drop(state);
                let is_urgent = self.is_urgent(&path, bytes);
                state = self.lock();
                let Some(queue) = state.removal.queue() else {
                    return;
                };
                if is_urgent {
                    queue.pace.last = None;
                } else if !queue.is_stopping && queue.hurrying == 0 {
                    let pause = until.saturating_duration_since(now);
                    state = self.wait(state, Some(pause.min(SPACE_CHECK_INTERVAL)));
                }
                continue;
            }
            self.remove_first(state);
            state = self.lock();
        }
    }

    /// Removes the files in the queue, in the caller's thread and without pauses, until
    /// [`stop`](Self::stop), and returns how many that were. The caller makes sure that the store
    /// is not closed meanwhile.
    pub(crate) fn remove_all(&self) -> usize {
        let mut removed = 0;
        loop {
            let mut state = self.lock();
            let queue = state.removal.queue();
            if queue.is_some_and(|queue| queue.is_stopping) || !self.remove_first(state) {
                return removed;
            }
            removed += 1;
        }
    }

    /// Makes room for a write: removes one file, or waits until another thread has removed the one
    /// that it has taken. Returns whether one is gone: not if none waits, or the store is closed.
    pub(crate) fn remove_one(&self) -> bool {
        let state = self.lock();
        let before = state.removed;
        if self.remove_first(state) {
            return true;
        }
        let mut state = self.lock();
        while state.taken > 0
            && state.removed == before
            && !matches!(state.removal, Removal::Closed)
        {
            state = self.wait_for_removal(state);
        }
        state.removed != before
    }

    /// Ends the pauses, also for what comes, until the result is dropped.
    pub(crate) fn hurry(&self) -> Hurry<'_> {
        if let Some(queue) = self.lock().removal.queue() {
            queue.hurrying += 1;
        }
        self.changed.notify_all();
        Hurry(self)
    }

    /// What waits to be removed.
    pub(crate) fn counts(&self) -> ObsoleteCounts {
        let mut state = self.lock();
        let queue = state.removal.queue();
        queue.map_or_else(Default::default, |of| of.counts)
    }

    /// Whether every file added so far is removed.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts() == ObsoleteCounts::default()
    }

    /// Ends the thread that removes files.
    pub(crate) fn stop(&self) {
        if let Some(queue) = self.lock().removal.queue() {
            queue.is_stopping = true;
        }
        self.changed.notify_all();
    }

    /// Accepts no more files, and removes those in the queue, but not for long: the next opening
    /// removes the rest. Returns once no thread removes a file, as its name may belong to another
    /// run after the next opening.
    pub(crate) fn close(&self) {
        let removal = std::mem::replace(&mut self.lock().removal, Removal::Closed);
        self.on_removed.notify_all();
        if let Removal::Deferred(queue) = removal {
            let begun = time::now();
            let waiting = queue.waiting.iter();
            waiting
                .take_while(|_| time::elapsed(begun) < CLOSE_MAX)
                .for_each(|file| self.remove(&file.path));
        }
        drop(self.wait_for_taken(self.lock()));
    }

    /// Whether the space is needed now.
    fn is_urgent(&self, path: &Path, waiting_bytes: u64) -> bool {
        let live_bytes = self.live_bytes.load(Ordering::Relaxed);
        let dir = path.parent().unwrap_or(Path::new("."));
        let free_bytes = self.io.free_bytes(dir).ok().flatten();
        waiting_bytes > live_bytes / LIVE_SHARE
            || free_bytes.is_some_and(|free| waiting_bytes > free / FREE_SHARE)
    }

    /// Removes the file that has waited longest, without the lock. Returns whether there was one.
    fn remove_first(&self, mut state: MutexGuard<'_, State>) -> bool {
        let Some(file) = state.removal.pop() else {
            return false;
        };
        state.taken += 1;
        drop(state);
        self.remove(&file.path);
        let mut state = self.lock();
        state.taken -= 1;
        state.removed += 1;
        let on_empty = state.removal.queue().and_then(|queue| {
            queue.pace.last = Some((time::now(), file.cost_bytes()));
            queue.counts.files -= 1;
            queue.counts.bytes -= file.bytes;
            (queue.counts.files == 0).then(|| Arc::clone(&queue.on_empty))
        });
        drop(state);
        self.on_removed.notify_all();
        if let Some(on_empty) = on_empty {
            on_empty();
        }
        true
    }

    fn remove(&self, path: &Path) {
        if let Err(error) = self.io.remove(path) {
            // The next opening of the store removes it.
            let path = path.display();
            tracing::warn!(%path, %error, "cannot remove the file of an obsolete run");
        }
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match limit {
            Some(limit) => {
                let woken = self.changed.wait_timeout(state, limit);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let woken = self.changed.wait(state);
                woken.unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// Waits until no thread removes a file that it has taken.
    fn wait_for_taken<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        // A forked child lacks the threads that had taken files.
        while state.taken > 0 && self.owner.is_this_process() {
            state = self.wait_for_removal(state);
        }
        state
    }

    /// Waits until a thread has removed a file or the store is closed.
    fn wait_for_removal<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.on_removed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for ObsoleteFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("ObsoleteFiles");
        debug.field("waiting", &self.counts()).finish()
    }
}

#[cfg(test)]
#[path = "obsolete_files_tests.rs"]
mod tests;
