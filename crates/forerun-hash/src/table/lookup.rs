//! Lookups of single keys, and of batches in blocks.
//!
//! ```text
//!   block b + 1   hash, find the home buckets, prefetch them
//!   block b       compare the home buckets, prefetched a block ago; one bit per key records a miss
//!   block b - 1   compare the second buckets of its misses, prefetched a block ago
//!   block b       prefetch the second buckets of those misses that may have overflowed
//! ```
//!
//! Each step is a separate loop, short enough to keep its values in registers and without
//! data-dependent branches. The misses of a block are processed once per block, by their bits. A
//! table that fits the CPU's caches is searched in the same blocks, without prefetching. In a
//! frozen table, the same code checks no versions ([`Access`]).

use std::hint::select_unpredictable;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::bucket::{Bucket, Identity, OverflowCounter, SLOTS, Side};
use super::directory::{Directory, View, Views};
use super::version::Access;
use forerun_core::arch::{self, Scalar, Simd, WithSimd, dispatch};
use forerun_core::hashing::Permutation;
use forerun_core::sync::thread;

/// Keys per block: one bit each in a word, and more cache lines than memory fetches at a time.
const BLOCK: usize = 64;

/// Tables up to this size are searched without prefetching: 2.5 MiB, more than twice a core's L2
/// cache. Out-of-order execution hides the wait for L3.
const CACHED_BYTES: usize = 5 << 19;

/// A writer moved entries while they were read, so the result is not consistent.
pub(super) struct Moved;

/// A key whose home bucket is known.
#[derive(Clone, Copy)]
struct Key<'a, A: Access> {
    hash: u64,
    bucket: &'a Bucket,
    version: A::Version<'a>,
    /// The version before the home bucket was read.
    seen: A::Moment,
}

impl<'a, A: Access> Key<'a, A> {
    #[inline(always)]
    fn new(view: View<'a>, hash: u64) -> Key<'a, A> {
        let bucket = view.bucket(view.geometry.home(hash));
        Key {
            hash,
            bucket,
            version: A::version(view.version),
            seen: A::NEVER,
        }
    }

    /// Searches the home bucket.
    #[inline(always)]
    fn try_probe<S: Simd>(&self, simd: S) -> Result<Probe, Moved> {
        self.validated(probe::<S, A>(simd, self.bucket, Identity::home(self.hash)))
    }

    /// Like `try_probe`, but looks the key up again if an entry moved during the lookup.
    #[inline(always)]
    fn probe<S: Simd>(&self, simd: S, view: impl FnOnce() -> View<'a>) -> Probe {
        match self.try_probe(simd) {
            Ok(probe) => probe,
            Err(Moved) => get_again::<A>(view(), self.hash).into(),
        }
    }

    /// Whether a key that is not in its home bucket may be in its second.
    #[inline(always)]
    fn has_overflow(&self) -> Result<bool, Moved> {
        let cell = OverflowCounter::new(Identity::home(self.hash).remainder());
        self.validated(self.bucket.has_overflow(cell))
    }

    /// The second bucket.
    #[inline(always)]
    fn second(&self, view: View<'a>) -> &'a Bucket {
        let home = view.geometry.home(self.hash);
        view.bucket(
            view.geometry
                .other(home, Identity::home(self.hash).remainder()),
        )
    }

    /// Searches the second bucket.
    #[inline(always)]
    fn try_probe_second<S: Simd>(&self, simd: S, bucket: &Bucket) -> Result<Probe, Moved> {
        self.validated(probe::<S, A>(
            simd,
            bucket,
            Identity::home(self.hash).on(Side::Second),
        ))
    }

    /// Like `try_probe_second`, but looks the key up again if an entry moved during the lookup.
    #[inline(always)]
    fn probe_second<S: Simd>(&self, simd: S, view: View<'a>, bucket: &Bucket) -> Probe {
        match self.try_probe_second(simd, bucket) {
            Ok(probe) => probe,
            Err(Moved) => get_again::<A>(view, self.hash).into(),
        }
    }

    /// Returns what was read, if no entry has moved since before the home bucket was read.
    #[inline(always)]
    fn validated<T>(&self, read: T) -> Result<T, Moved> {
        if A::validate(self.version, self.seen) {
            Ok(read)
        } else {
            Err(Moved)
        }
    }
}

/// The result of searching a bucket.
#[derive(Clone, Copy)]
struct Probe {
    is_hit: bool,
    /// The value, if this is a hit.
    value: u64,
}

impl Probe {
    fn found(self) -> Option<u64> {
        self.is_hit.then_some(self.value)
    }

    /// Writes the result of a key. Writes the value only on a hit, without a branch.
    #[inline(always)]
    fn answer(self, value: &mut u64, found: &mut bool) {
        *found = self.is_hit;
        *value = select_unpredictable(self.is_hit, self.value, *value);
    }
}

impl From<Option<u64>> for Probe {
    fn from(found: Option<u64>) -> Probe {
        Probe {
            is_hit: found.is_some(),
            value: found.unwrap_or(0),
        }
    }
}

#[inline(always)]
fn probe<S: Simd, A: Access>(simd: S, bucket: &Bucket, identity: Identity) -> Probe {
    let mask = if A::IS_SHARED {
        bucket.find(simd, identity)
    } else {
        // SAFETY: only `FrozenHashTable` looks up with access that is not shared. It owns the table
        // and passes no reference to it on, so no thread writes a bucket.
        unsafe { bucket.find_unshared(simd, identity) }
    };
    // An empty mask has 32 trailing zeros and gives slot 0, whose value is then not used.
    let value = bucket.value(mask.trailing_zeros() as usize % SLOTS);
    Probe {
        is_hit: mask != 0,
        value,
    }
}

/// The value of a hash.
#[inline(always)]
pub(super) fn get<A: Access>(directory: &Directory, hash: u64) -> Option<u64> {
    let view = directory.views().of(hash);
    match try_get::<A>(view, hash) {
        Ok(found) => found,
        Err(Moved) => get_again::<A>(view, hash),
    }
}

#[inline(always)]
pub(super) fn try_get<A: Access>(view: View<'_>, hash: u64) -> Result<Option<u64>, Moved> {
    let mut key = Key::<A>::new(view, hash);
    key.seen = A::begin_read(key.version);
    let first = key.try_probe(Scalar::new())?;
    if first.is_hit {
        return Ok(Some(first.value));
    }
    if !key.has_overflow()? {
        return Ok(None);
    }
    key.try_probe_second(Scalar::new(), key.second(view))
        .map(Probe::found)
}

#[cold]
fn get_again<A: Access>(view: View<'_>, hash: u64) -> Option<u64> {
    loop {
        // The writer needs a few more nanoseconds, or much longer if it was descheduled.
        thread::yield_now();
        if let Ok(found) = try_get::<A>(view, hash) {
            return found;
        }
    }
}

/// Looks up a batch as long as the shortest slice. `directory` is called for the directory to use,
/// now and then. Returns the number of keys found.
pub(super) fn find<'d, A: Access>(
    directory: impl Fn() -> &'d Directory,
    permutation: Permutation,
    keys: &[u64],
    values: &mut [u64],
    found: &mut [bool],
) -> usize {
    /// Keys per use of one directory, so that a long batch does not keep using segments that growth
    /// has replaced.
    const CHUNK: usize = 4096;
    /// Fewer keys than this are looked up one by one: their waits then also overlap with those of
    /// the next call, as they would not in blocks.
    const BATCH_MIN: usize = 4;
    let len = keys.len().min(values.len()).min(found.len());
    let (keys, values, found) = (&keys[..len], &mut values[..len], &mut found[..len]);
    if len < BATCH_MIN {
        for ((&key, value), found) in keys.iter().zip(values).zip(&mut *found) {
            let answer = get::<A>(directory(), permutation.hash(key));
            *value = answer.unwrap_or(*value);
            *found = answer.is_some();
        }
    } else {
        let answers = values.chunks_mut(CHUNK).zip(found.chunks_mut(CHUNK));
        for (keys, (values, found)) in keys.chunks(CHUNK).zip(answers) {
            let batch = Batch {
                directory: directory(),
                permutation,
                keys,
                values,
                found,
                access: PhantomData::<A>,
            };
            dispatch(arch::isa(), batch);
        }
    }
    found.iter().filter(|&&found| found).count()
}

/// A batch: keys, and slices for their results.
struct Batch<'b, A> {
    directory: &'b Directory,
    permutation: Permutation,
    keys: &'b [u64],
    values: &'b mut [u64],
    found: &'b mut [bool],
    access: PhantomData<A>,
}

impl<A: Access> WithSimd for Batch<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, simd: S) {
        let views = self.directory.views();
        match views.only() {
            Some(view) if self.directory.memory_bytes() <= CACHED_BYTES => {
                self.run_cached(simd, view)
            }
            _ => self.run_ahead(simd, views),
        }
    }
}

/// The keys of a block whose home buckets are being prefetched.
struct HomeBlock<'a, A: Access> {
    hashes: [MaybeUninit<u64>; BLOCK],
    buckets: [MaybeUninit<&'a Bucket>; BLOCK],
    versions: [MaybeUninit<A::Version<'a>>; BLOCK],
    /// The first `len` of each are written.
    len: usize,
}

impl<'a, A: Access> HomeBlock<'a, A> {
    const NONE: HomeBlock<'a, A> = HomeBlock {
        hashes: [const { MaybeUninit::uninit() }; BLOCK],
        buckets: [const { MaybeUninit::uninit() }; BLOCK],
        versions: [const { MaybeUninit::uninit() }; BLOCK],
        len: 0,
    };

    /// Takes the keys of a block and prefetches their home buckets.
    #[inline(always)]
    fn fetch(&mut self, views: Views<'a>, permutation: Permutation, keys: &[u64]) {
        let len = keys.len().min(BLOCK);
        for (at, &key) in keys[..len].iter().enumerate() {
            let hash = permutation.hash(key);
            let view = views.of(hash);
            let bucket = view.bucket(view.geometry.home(hash));
            bucket.prefetch();
            self.hashes[at].write(hash);
            self.buckets[at].write(bucket);
            self.versions[at].write(A::version(view.version));
        }
        self.len = len;
    }

    /// The key at a position.
    #[inline(always)]
    fn key(&self, at: usize) -> Key<'a, A> {
        // The compiler removes this branch in a loop over 0..len.
        assert!(at < self.len);
        // SAFETY: `fetch` wrote the first `len` of each.
        unsafe {
            Key {
                hash: self.hashes[at].assume_init(),
                bucket: self.buckets[at].assume_init(),
                version: self.versions[at].assume_init(),
                seen: A::NEVER,
            }
        }
    }
}

/// The keys of a block that were not in their home buckets. The last key is bit 0.
#[derive(Clone, Copy)]
struct Missed {
    bits: u64,
    /// The number of keys recorded.
    len: usize,
}

impl Missed {
    const NONE: Missed = Missed { bits: 0, len: 0 };

    /// Records the next key.
    #[inline(always)]
    fn note(&mut self, is_missed: bool) {
        self.bits = self.bits << 1 | u64::from(is_missed);
        self.len += 1;
    }

    /// Removes one of them and returns its position in the block.
    #[inline(always)]
    fn pop(&mut self) -> Option<usize> {
        if self.bits == 0 {
            return None;
        }
        let at = self.len - 1 - self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(at)
    }
}

impl<'b, A: Access> Batch<'b, A> {
    /// Looks the keys up in a table of one segment that fits the CPU's caches.
    #[inline(always)]
    fn run_cached<S: Simd>(self, simd: S, view: View<'b>) {
        let Batch {
            permutation,
            keys,
            values,
            found,
            ..
        } = self;
        let answers = values.chunks_mut(BLOCK).zip(found.chunks_mut(BLOCK));
        for (keys, (values, found)) in keys.chunks(BLOCK).zip(answers) {
            // The version is read once per block. If it changes, the other keys of the block are
            // looked up one by one, which takes nanoseconds.
            let seen = A::begin_read(A::version(view.version));
            let key_of = |key| Key::<A> {
                seen,
                ..Key::new(view, permutation.hash(key))
            };
            let mut missed = Missed::NONE;
            for ((&key, value), found) in keys.iter().zip(values.iter_mut()).zip(found.iter_mut()) {
                let probe = key_of(key).probe(simd, || view);
                probe.answer(value, found);
                missed.note(!probe.is_hit);
            }
            while let Some(at) = missed.pop() {
                let key = key_of(keys[at]);
                if key.has_overflow().unwrap_or(true) {
                    let probe = key.probe_second(simd, view, key.second(view));
                    probe.answer(&mut values[at], &mut found[at]);
                }
            }
        }
    }

    /// Looks the keys up while prefetching their buckets.
    #[inline(always)]
    fn run_ahead<S: Simd>(self, simd: S, views: Views<'b>) {
        let Batch {
            permutation,
            keys,
            values,
            found,
            ..
        } = self;
        let mut ring = [const { HomeBlock::<A>::NONE }; 2];
        let mut seen = [A::NEVER; BLOCK];
        let mut open = PendingKeys {
            keys: [const { MaybeUninit::uninit() }; BLOCK],
            len: 0,
        };
        let mut coming = keys.chunks(BLOCK);
        if let Some(first) = coming.next() {
            ring[0].fetch(views, permutation, first);
        }
        for (block, start) in (0..keys.len()).step_by(BLOCK).enumerate() {
            if let Some(next) = coming.next() {
                ring[(block + 1) % 2].fetch(views, permutation, next);
            }
            let places = &ring[block % 2];
            let mut missed = Missed::NONE;
            let answers = start..start + places.len;
            let (values_here, found_here) = (&mut values[answers.clone()], &mut found[answers]);
            for at in 0..places.len {
                let mut key = places.key(at);
                key.seen = A::begin_read(key.version);
                seen[at] = key.seen;
                let probe = key.probe(simd, || views.of(key.hash));
                probe.answer(&mut values_here[at], &mut found_here[at]);
                missed.note(!probe.is_hit);
            }
            open.resolve(simd, views, values, found);
            while let Some(at) = missed.pop() {
                let key = Key {
                    seen: seen[at],
                    ..places.key(at)
                };
                // If an entry moved, the key was already looked up again; searching once more does
                // no harm.
                if key.has_overflow().unwrap_or(true) {
                    key.second(views.of(key.hash)).prefetch();
                    open.push(start + at, key);
                }
            }
        }
        open.resolve(simd, views, values, found);
    }
}

/// The keys of a block that may be in their second buckets, with their positions in the batch.
struct PendingKeys<'a, A: Access> {
    /// The first `len` are written.
    keys: [MaybeUninit<(u32, Key<'a, A>)>; BLOCK],
    len: usize,
}

impl<'a, A: Access> PendingKeys<'a, A> {
    /// Adds a key. A block has no more keys than there are entries here.
    #[inline(always)]
    fn push(&mut self, at: usize, key: Key<'a, A>) {
        self.keys[self.len].write((at as u32, key));
        self.len += 1;
    }

    /// Searches the second buckets of the keys and clears the list.
    #[inline(always)]
    fn resolve<S: Simd>(
        &mut self,
        simd: S,
        views: Views<'a>,
        values: &mut [u64],
        found: &mut [bool],
    ) {
        for open in &self.keys[..self.len] {
            // SAFETY: `push` wrote the first `len`.
            let (at, key) = unsafe { open.assume_init() };
            let view = views.of(key.hash);
            let probe = key.probe_second(simd, view, key.second(view));
            let at = at as usize;
            probe.answer(&mut values[at], &mut found[at]);
        }
        self.len = 0;
    }
}
