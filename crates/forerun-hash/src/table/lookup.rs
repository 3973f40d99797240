//! Lookups: one key, and a batch in blocks.
//!
//! ```text
//!   block b + 1   hash, find the home buckets, prefetch them
//!   block b       compare the home buckets, prefetched a block ago: a bit a key tells which it missed
//!   block b - 1   compare the second buckets of those it missed, prefetched a block ago
//!   block b       of those it missed, prefetch the second buckets where they may be away
//! ```
//!
//! Each of these is a loop of its own, short enough for its values to stay in registers and without a
//! branch that the data decide: what the home buckets did not settle is gone through once a block, by
//! its bits. A table that the caches hold is searched by the same blocks, fetching nothing ahead.

use std::hint::select_unpredictable;
use std::mem::MaybeUninit;

use super::bucket::{Bucket, Cell, Identity, SLOTS, Side};
use super::directory::{Directory, View, Views};
use super::version::{Seen, Version};
use forerun_core::arch::{Scalar, Simd, WithSimd};
use forerun_core::hashing::Permutation;
use forerun_core::sync::thread;

/// Keys a block, which has a bit for each: more lines than memory works on at a time.
const BLOCK: usize = 64;

/// Tables up to this size are searched without fetching ahead: twice what a core's second-level cache
/// holds, for a wait for the third level is short enough to be overlapped by what comes next.
const CACHED_BYTES: usize = 5 << 19;

/// What was read was not of one moment: a writer moved entries meanwhile.
pub(super) struct Moved;

/// A key whose home bucket is known.
#[derive(Clone, Copy)]
struct Key<'a> {
    hash: u64,
    bucket: &'a Bucket,
    version: &'a Version,
    /// The version before the home bucket was read.
    seen: Seen,
}

impl<'a> Key<'a> {
    #[inline(always)]
    fn new(view: View<'a>, hash: u64) -> Key<'a> {
        let bucket = view.bucket(view.geometry.home(hash));
        Key {
            hash,
            bucket,
            version: view.version,
            seen: Seen::NEVER,
        }
    }

    /// Looks into the home bucket.
    #[inline(always)]
    fn try_probe<S: Simd>(&self, simd: S) -> Result<Probe, Moved> {
        self.if_still(probe(simd, self.bucket, Identity::home(self.hash)))
    }

    /// The same; if something moved meanwhile, looks the key up anew.
    #[inline(always)]
    fn probe<S: Simd>(&self, simd: S, view: impl FnOnce() -> View<'a>) -> Probe {
        match self.try_probe(simd) {
            Ok(probe) => probe,
            Err(Moved) => find_again(view(), self.hash).into(),
        }
    }

    /// Whether the key, which is not in its home bucket, may be in the second one.
    #[inline(always)]
    fn may_be_away(&self) -> Result<bool, Moved> {
        let cell = Cell::new(Identity::home(self.hash).remainder());
        self.if_still(self.bucket.may_be_away(cell))
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

    /// Looks into the second bucket.
    #[inline(always)]
    fn try_probe_second<S: Simd>(&self, simd: S, bucket: &Bucket) -> Result<Probe, Moved> {
        self.if_still(probe(
            simd,
            bucket,
            Identity::home(self.hash).on(Side::Away),
        ))
    }

    /// The same; if something moved meanwhile, looks the key up anew.
    #[inline(always)]
    fn probe_second<S: Simd>(&self, simd: S, view: View<'a>, bucket: &Bucket) -> Probe {
        match self.try_probe_second(simd, bucket) {
            Ok(probe) => probe,
            Err(Moved) => find_again(view, self.hash).into(),
        }
    }

    /// What was read, if no entry was moved since before the home bucket was read.
    #[inline(always)]
    fn if_still<T>(&self, read: T) -> Result<T, Moved> {
        if self.version.is_still(self.seen) {
            Ok(read)
        } else {
            Err(Moved)
        }
    }
}

/// What a bucket told of a key.
#[derive(Clone, Copy)]
struct Probe {
    is_hit: bool,
    /// The value, if it is a hit.
    value: u64,
}

impl Probe {
    fn found(self) -> Option<u64> {
        self.is_hit.then_some(self.value)
    }

    /// Writes the answer to a key: a value only if there is one, without a branch.
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
fn probe<S: Simd>(simd: S, bucket: &Bucket, identity: Identity) -> Probe {
    let mask = bucket.find(simd, identity);
    // An empty mask has 32 zeroes: slot 0, whose value is then not used.
    let value = bucket.value(mask.trailing_zeros() as usize % SLOTS);
    Probe {
        is_hit: mask != 0,
        value,
    }
}

/// The value of a hash.
#[inline(always)]
pub(super) fn find(directory: &Directory, hash: u64) -> Option<u64> {
    let view = directory.views().of(hash);
    match try_find(view, hash) {
        Ok(found) => found,
        Err(Moved) => find_again(view, hash),
    }
}

#[inline(always)]
pub(super) fn try_find(view: View<'_>, hash: u64) -> Result<Option<u64>, Moved> {
    let mut key = Key::new(view, hash);
    key.seen = key.version.see();
    let first = key.try_probe(Scalar::new())?;
    if first.is_hit {
        return Ok(Some(first.value));
    }
    if !key.may_be_away()? {
        return Ok(None);
    }
    key.try_probe_second(Scalar::new(), key.second(view))
        .map(Probe::found)
}

#[cold]
fn find_again(view: View<'_>, hash: u64) -> Option<u64> {
    loop {
        // The writer needs some nanoseconds more, or much longer if it lost its processor.
        thread::yield_now();
        if let Ok(found) = try_find(view, hash) {
            return found;
        }
    }
}

/// A batch: its keys, and as many places for the answers.
pub(super) struct Batch<'b> {
    pub(super) directory: &'b Directory,
    pub(super) permutation: Permutation,
    pub(super) keys: &'b [u64],
    pub(super) values: &'b mut [u64],
    pub(super) found: &'b mut [bool],
}

impl WithSimd for Batch<'_> {
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

/// The keys of a block, whose home buckets are on their way.
struct Places<'a> {
    hashes: [MaybeUninit<u64>; BLOCK],
    buckets: [MaybeUninit<&'a Bucket>; BLOCK],
    versions: [MaybeUninit<&'a Version>; BLOCK],
    /// The first `len` of each are written.
    len: usize,
}

impl<'a> Places<'a> {
    const NONE: Places<'a> = Places {
        hashes: [const { MaybeUninit::uninit() }; BLOCK],
        buckets: [const { MaybeUninit::uninit() }; BLOCK],
        versions: [const { MaybeUninit::uninit() }; BLOCK],
        len: 0,
    };

    /// Takes a block's keys, and asks for their home buckets.
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
            self.versions[at].write(view.version);
        }
        self.len = len;
    }

    /// The key at a place.
    #[inline(always)]
    fn key(&self, at: usize) -> Key<'a> {
        // In a loop over 0..len it is no branch.
        assert!(at < self.len);
        // SAFETY: `fetch` wrote the first `len` of each.
        unsafe {
            Key {
                hash: self.hashes[at].assume_init(),
                bucket: self.buckets[at].assume_init(),
                version: self.versions[at].assume_init(),
                seen: Seen::NEVER,
            }
        }
    }
}

/// The keys of a block that their home buckets did not have: the last one in bit 0.
#[derive(Clone, Copy)]
struct Missed {
    bits: u64,
    /// Keys that were noted.
    len: usize,
}

impl Missed {
    const NONE: Missed = Missed { bits: 0, len: 0 };

    /// Notes the next key.
    #[inline(always)]
    fn note(&mut self, is_missed: bool) {
        self.bits = self.bits << 1 | u64::from(is_missed);
        self.len += 1;
    }

    /// Where in the block one of them is; it is then no longer among them.
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

impl<'b> Batch<'b> {
    /// Looks the keys up in a table of one segment that the caches hold.
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
            // One look a block: a version that changes meanwhile has the rest of the block looked up
            // one by one, which is a matter of nanoseconds.
            let seen = view.version.see();
            let key_of = |key| Key {
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
                if key.may_be_away().unwrap_or(true) {
                    let probe = key.probe_second(simd, view, key.second(view));
                    probe.answer(&mut values[at], &mut found[at]);
                }
            }
        }
    }

    /// Looks the keys up with their buckets fetched ahead.
    #[inline(always)]
    fn run_ahead<S: Simd>(self, simd: S, views: Views<'b>) {
        let Batch {
            permutation,
            keys,
            values,
            found,
            ..
        } = self;
        let mut ring = [const { Places::NONE }; 2];
        let mut seen = [Seen::NEVER; BLOCK];
        let mut open = OpenKeys {
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
                key.seen = key.version.see();
                seen[at] = key.seen;
                let probe = key.probe(simd, || views.of(key.hash));
                probe.answer(&mut values_here[at], &mut found_here[at]);
                missed.note(!probe.is_hit);
            }
            open.settle(simd, views, values, found);
            while let Some(at) = missed.pop() {
                let key = Key {
                    seen: seen[at],
                    ..places.key(at)
                };
                // If something moved, the key was looked for again; this will be found once more.
                if key.may_be_away().unwrap_or(true) {
                    key.second(views.of(key.hash)).prefetch();
                    open.push(start + at, key);
                }
            }
        }
        open.settle(simd, views, values, found);
    }
}

/// The keys of a block that may be in their second buckets, and their places in the batch.
struct OpenKeys<'a> {
    /// The first `len` are written.
    keys: [MaybeUninit<(u32, Key<'a>)>; BLOCK],
    len: usize,
}

impl<'a> OpenKeys<'a> {
    /// Adds one of a block's keys, of which there are not more than places.
    #[inline(always)]
    fn push(&mut self, at: usize, key: Key<'a>) {
        self.keys[self.len].write((at as u32, key));
        self.len += 1;
    }

    /// Looks for the keys in their second buckets, and forgets them.
    #[inline(always)]
    fn settle<S: Simd>(
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
