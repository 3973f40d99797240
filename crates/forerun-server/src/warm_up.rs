//! The warm-up of a new server: a program copies the values of other servers to it, and no copy
//! brings back what a client has changed here.
//!
//! ```text
//!   Untouched ── begin ─────────────────► Warming ── end, flush_all, time limit ──► over
//!       └─────── a client's first write ───────────────────────────────────────────► over
//!
//!   shards   Mutex │ None: no warm-up
//!             Mutex │ Some(bits)   a bit is 1: clients may have changed keys with this hash
//!             …
//! ```
//!
//! Two rules, each under the lock of the key's shard:
//!
//! - A client's write sets the key's bit, releases the lock, and then changes the cache.
//! - A fill reads the bit and stores the copy only if it is 0, as an addition: it replaces nothing.
//!
//! So for each write and each fill of a key, the lock decides. If the fill is first, the write
//! finds the copy in the cache, like any other item. If the write is first, there is no fill. The
//! bits are never cleared while the warm-up lasts, and it can begin only before the first write and
//! only once: a server that has been restarted does not know what clients have changed. Keys that
//! share a bit lose a copy, which is a miss. docs/operate/warm-up.md has the whole argument.

use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use forerun_core::sync::{Mutex, MutexGuard, PoisonError, random_seed};

/// A lock for each of this many parts of the bits, so that workers seldom wait for each other.
const SHARDS: usize = 256;
/// The bits take one byte for each of this many bytes of the memory limit.
const LIMIT_SHARE: usize = 64;
/// Minimum and maximum size of the bits.
const BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=64 << 20;

/// The state of a server's only warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum WarmUpState {
    /// No client has written anything.
    Untouched = 0,
    /// Copies are accepted.
    Warming = 1,
    /// There was no warm-up before the first write.
    Written = 2,
    /// It was ended.
    Ended = 3,
    /// A client has flushed the cache.
    Flushed = 4,
    /// Its time limit has passed.
    TimedOut = 5,
}

impl WarmUpState {
    fn of(byte: u8) -> Self {
        [
            Self::Untouched,
            Self::Warming,
            Self::Written,
            Self::Ended,
            Self::Flushed,
            Self::TimedOut,
        ][usize::from(byte.min(5))]
    }
}

/// Why a warm-up cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeginError {
    /// The state is not [`WarmUpState::Untouched`].
    State(WarmUpState),
    OutOfMemory,
}

/// Why a copy is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillError {
    /// A client may have changed the key.
    Changed,
    /// There is no warm-up, or another one.
    Over,
}

/// One bit per hash.
type Bits = Box<[u64]>;

/// The keys that clients change while a server is warmed up.
#[derive(Debug)]
pub(crate) struct WarmUp {
    state: AtomicU8,
    /// The second of the cache's clock at which the warm-up ends by itself.
    ends_at_s: AtomicU32,
    /// Names the warm-up of this process, so that no copies for another process are accepted.
    token: u64,
    shards: Box<[Mutex<Option<Bits>>]>,
    /// Held by the thread that begins a warm-up.
    beginning: Mutex<()>,
}

/// The shard of a key, and the key's hash within it.
fn place(key: &[u8]) -> (usize, u64) {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    let hash = hasher.finish();
    ((hash >> 56) as usize % SHARDS, hash & (u64::MAX >> 8))
}

/// The word and the mask of a hash's bit.
fn bit(bits: &[u64], hash: u64) -> (usize, u64) {
    let at = hash % (bits.len() as u64 * 64);
    ((at / 64) as usize, 1 << (at % 64))
}

impl WarmUp {
    pub(crate) fn new() -> WarmUp {
        WarmUp {
            state: AtomicU8::new(WarmUpState::Untouched as u8),
            ends_at_s: AtomicU32::new(0),
            token: random_seed(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            beginning: Mutex::default(),
        }
    }

    /// Names the warm-up of this process.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// The state at second `now_s` of the cache's clock.
    pub(crate) fn state(&self, now_s: u32) -> WarmUpState {
        // Acquire: whoever sees that the warm-up has begun also sees its time limit.
        let state = WarmUpState::of(self.state.load(Ordering::Acquire));
        if state == WarmUpState::Warming && now_s >= self.ends_at_s() {
            self.end(WarmUpState::TimedOut);
            return WarmUpState::of(self.state.load(Ordering::Acquire));
        }
        state
    }

    /// The second at which the warm-up ends by itself.
    pub(crate) fn ends_at_s(&self) -> u32 {
        // Relaxed: `state` orders it.
        self.ends_at_s.load(Ordering::Relaxed)
    }

    /// Begins the warm-up of a server with this memory limit.
    ///
    /// # Errors
    /// [`BeginError`].
    pub(crate) fn begin(&self, limit_bytes: usize, ends_at_s: u32) -> Result<(), BeginError> {
        let _beginning = unpoisoned(self.beginning.lock());
        let state = WarmUpState::of(self.state.load(Ordering::Acquire));
        if state != WarmUpState::Untouched {
            return Err(BeginError::State(state));
        }
        let bytes = (limit_bytes / LIMIT_SHARE).clamp(*BYTES.start(), *BYTES.end());
        for shard in &self.shards {
            let mut bits = Vec::new();
            let words = bytes / SHARDS / size_of::<u64>();
            if bits.try_reserve_exact(words).is_err() {
                self.drop_bits();
                return Err(BeginError::OutOfMemory);
            }
            bits.resize(words, 0);
            *unpoisoned(shard.lock()) = Some(bits.into_boxed_slice());
        }
        self.ends_at_s.store(ends_at_s, Ordering::Relaxed);
        // Release: whoever sees the new state sees the time limit, and finds the bits behind their
        // locks. Either this or the exchange of the first write succeeds, never both.
        if let Err(state) = self.change(WarmUpState::Untouched, WarmUpState::Warming) {
            self.drop_bits();
            return Err(BeginError::State(state));
        }
        Ok(())
    }

    /// Ends the warm-up, if there is one. Afterwards no copy is stored, and none is being stored.
    pub(crate) fn end(&self, why: WarmUpState) {
        // Acquire: whoever sees that it is over knows that the bits are gone.
        if self.state.load(Ordering::Acquire) != WarmUpState::Warming as u8 {
            return;
        }
        // The bits go first. As long as a copy may be on its way into the cache, writers must see
        // "warming" and take its lock; otherwise the copy could come after the write.
        self.drop_bits();
        // An error: another thread has just ended it.
        let _ = self.change(WarmUpState::Warming, why);
    }

    /// Notes that a client writes the item of `key`. Call this before the write.
    #[inline]
    pub(crate) fn note_write(&self, key: &[u8], now_s: u32) {
        // Acquire, as in `state`. A client that writes after it has learned that the warm-up has
        // begun finds that it has, because it was sent the news after the state was changed. If
        // the warm-up is over, no copy is being stored.
        let state = self.state.load(Ordering::Acquire);
        if state <= WarmUpState::Warming as u8 {
            self.note_now(key, now_s);
        }
    }

    #[cold]
    fn note_now(&self, key: &[u8], now_s: u32) {
        let first = self.change(WarmUpState::Untouched, WarmUpState::Written);
        if first != Err(WarmUpState::Warming) || self.state(now_s) != WarmUpState::Warming {
            return;
        }
        let (shard, hash) = place(key);
        if let Some(bits) = &mut *self.lock(shard) {
            let (word, mask) = bit(bits, hash);
            bits[word] |= mask;
        }
    }

    /// Notes that a client flushes the cache. Call this before the flush.
    pub(crate) fn note_flush(&self) {
        let _ = self.change(WarmUpState::Untouched, WarmUpState::Written);
        self.end(WarmUpState::Flushed);
    }

    /// Calls `store`, which adds the copy of `key` to the cache, unless a client has changed the
    /// key. Writers of a few other keys wait meanwhile.
    ///
    /// # Errors
    /// [`FillError`]: `store` was not called.
    pub(crate) fn fill<T>(
        &self,
        token: u64,
        key: &[u8],
        now_s: u32,
        store: impl FnOnce() -> T,
    ) -> Result<T, FillError> {
        if token != self.token || self.state(now_s) != WarmUpState::Warming {
            return Err(FillError::Over);
        }
        let (shard, hash) = place(key);
        let bits = self.lock(shard);
        let Some(shard_bits) = &*bits else {
            return Err(FillError::Over);
        };
        let (word, mask) = bit(shard_bits, hash);
        if shard_bits[word] & mask != 0 {
            return Err(FillError::Changed);
        }
        let stored = store();
        drop(bits);
        Ok(stored)
    }

    /// Changes the state, or returns the present one.
    fn change(&self, from: WarmUpState, to: WarmUpState) -> Result<(), WarmUpState> {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let changed = self
            .state
            .compare_exchange(from as u8, to as u8, success, failure);
        changed.map(|_| ()).map_err(WarmUpState::of)
    }

    /// Takes each shard's lock once, so that each fill is either complete or refused.
    fn drop_bits(&self) {
        for shard in 0..SHARDS {
            self.lock(shard).take();
        }
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Option<Bits>> {
        unpoisoned(self.shards[shard].lock())
    }
}

/// A panic under these locks leaves nothing half done.
fn unpoisoned<G>(locked: Result<G, PoisonError<G>>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use forerun_core::sync::thread;

    use super::*;

    /// Long enough for a thread to come to its lock.
    const PAUSE: Duration = Duration::from_millis(5);

    /// A copy waits for its lock while another thread ends the warm-up. Then a client writes the
    /// key.
    fn ends_during_a_copy(end: fn(&WarmUp)) {
        let warm_up = WarmUp::new();
        warm_up.begin(1 << 20, 100).expect("nobody has written");
        let key = b"key";
        let is_written = AtomicBool::new(false);
        let held = warm_up.lock(place(key).0);
        thread::scope(|scope| {
            let copier = scope.spawn(|| {
                let store = || is_written.load(Ordering::SeqCst);
                warm_up.fill(warm_up.token(), key, 1, store)
            });
            thread::sleep(PAUSE);
            scope.spawn(|| end(&warm_up));
            thread::sleep(PAUSE);
            scope.spawn(|| {
                warm_up.note_write(key, 1);
                is_written.store(true, Ordering::SeqCst);
            });
            thread::sleep(PAUSE);
            drop(held);
            let filled = copier.join().expect("no panic");
            assert_ne!(filled, Ok(true), "the copy came after the write");
        });
        assert_ne!(warm_up.state(1), WarmUpState::Warming);
        let late = warm_up.fill(warm_up.token(), key, 1, || ());
        assert_eq!(late, Err(FillError::Over));
    }

    #[test]
    fn a_write_while_the_warm_up_ends_comes_before_or_after_each_copy() {
        for _ in 0..20 {
            ends_during_a_copy(|warm_up| warm_up.end(WarmUpState::Ended));
            ends_during_a_copy(WarmUp::note_flush);
            ends_during_a_copy(|warm_up| _ = warm_up.state(100));
        }
    }
}
