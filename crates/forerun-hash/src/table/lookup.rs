//! Lookups: one key, and a batch in blocks behind a rolling window.
//!
//! ```text
//!   keys      0 1 2 ... i ...  i+W ...
//!   step i              |       '-- hash, find the home bucket, prefetch it
//!                       '-- compare the home bucket, prefetched W steps ago: a bit tells whether it had the key
//!   a block of W steps done: of the keys it missed, prefetch the second buckets of those that may be away,
//!   and compare the second buckets of the block before
//! ```
//!
//! Each step both uses a line and asks for one, so memory is busy throughout, and no step has a branch
//! that the data decide: what the home buckets did not settle is gone through once a block, by its
//! bits. A table that the caches hold is searched by the same blocks without the window.

use std::hint::select_unpredictable;
use std::mem::MaybeUninit;

use super::bucket::{Bucket, Cell, Identity, SLOTS, Side};
use super::directory::{Directory, View};
use super::version::{Seen, Version};
use forerun_core::arch::{Scalar, Simd, WithSimd};
use forerun_core::hashing::Permutation;

/// Keys between the prefetch of a bucket and its use: more lines than memory works on at a time.
const WINDOW: usize = 64;

/// Keys a block, which has a bit for each.
const BLOCK: usize = 32;

/// Places for the keys of a block and of the window ahead of it: a power of two, to go round.
const RING: usize = (WINDOW + BLOCK).next_power_of_two();

/// Tables up to this size are searched without fetching ahead: the caches next to a core hold them.
const CACHED_BYTES: usize = 512 << 10;

/// What was read was not of one moment: a writer moved entries meanwhile.
pub(super) struct Moved;

/// A key whose home bucket is known.
#[derive(Clone, Copy)]
struct Key<'a> {
    hash: u64,
    bucket: &'a Bucket,
    version: &'a Version,
    /// The version when the home bucket was read.
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
    fn probe<S: Simd>(&mut self, simd: S) -> Result<Probe, Moved> {
        self.seen = self.version.see();
        let probe = probe(simd, self.bucket, Identity::home(self.hash));
        self.if_still(probe)
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
    fn probe_second<S: Simd>(&self, simd: S, bucket: &Bucket) -> Result<Probe, Moved> {
        self.if_still(probe(
            simd,
            bucket,
            Identity::home(self.hash).on(Side::Away),
        ))
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
    let first = key.probe(Scalar::new())?;
    if first.is_hit {
        return Ok(Some(first.value));
    }
    if !key.may_be_away()? {
        return Ok(None);
    }
    key.probe_second(Scalar::new(), key.second(view))
        .map(Probe::found)
}

#[cold]
fn find_again(view: View<'_>, hash: u64) -> Option<u64> {
    loop {
        // The writer needs some nanoseconds more, or much longer if it lost its processor.
        std::thread::yield_now();
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
                self.run::<S, false>(simd, |_| view);
            }
            _ => self.run::<S, true>(simd, |hash| views.of(hash)),
        }
    }
}

impl<'b> Batch<'b> {
    #[inline(always)]
    fn run<S: Simd, const AHEAD: bool>(self, simd: S, view: impl Fn(u64) -> View<'b>) {
        let Batch {
            permutation,
            keys,
            values,
            found,
            ..
        } = self;
        let key_of = |key| {
            let hash = permutation.hash(key);
            Key::new(view(hash), hash)
        };
        let fetch = |key| {
            let key = key_of(key);
            key.bucket.prefetch();
            key
        };
        // The keys of this block and those ahead of it. Place `at % RING` holds key `at` from WINDOW
        // steps before its own, or its own, to the end of its block.
        let mut window = [const { MaybeUninit::<Key<'b>>::uninit() }; RING];
        if AHEAD {
            for (place, &key) in window.iter_mut().zip(keys).take(WINDOW) {
                place.write(fetch(key));
            }
        }
        let mut open = OpenKeys {
            keys: [const { MaybeUninit::uninit() }; BLOCK],
            len: 0,
        };
        for start in (0..keys.len()).step_by(BLOCK) {
            let end = keys.len().min(start + BLOCK);
            let mut missed = 0u32;
            for at in start..end {
                if AHEAD {
                    if let Some(&next) = keys.get(at + WINDOW) {
                        window[(at + WINDOW) % RING].write(fetch(next));
                    }
                } else {
                    window[at % RING].write(key_of(keys[at]));
                }
                // SAFETY: written above, or WINDOW steps ago, or before the loop.
                let key = unsafe { window[at % RING].assume_init_mut() };
                let probe = match key.probe(simd) {
                    Ok(probe) => probe,
                    Err(Moved) => find_again(view(key.hash), key.hash).into(),
                };
                found[at] = probe.is_hit;
                values[at] = select_unpredictable(probe.is_hit, probe.value, values[at]);
                missed |= u32::from(!probe.is_hit) << (at - start);
            }
            if AHEAD {
                open.settle(simd, &view, values, found);
            }
            while missed != 0 {
                let at = start + missed.trailing_zeros() as usize;
                missed &= missed - 1;
                // SAFETY: a key of this block, whose place is not written again before the next one.
                let key = unsafe { window[at % RING].assume_init() };
                // If it moved, it was looked for again; that will be told of it once more.
                if key.may_be_away().unwrap_or(true) {
                    if AHEAD {
                        key.second(view(key.hash)).prefetch();
                    }
                    open.push(at, key);
                }
            }
            if !AHEAD {
                open.settle(simd, &view, values, found);
            }
        }
        open.settle(simd, &view, values, found);
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
        view: &impl Fn(u64) -> View<'a>,
        values: &mut [u64],
        found: &mut [bool],
    ) {
        for open in &self.keys[..self.len] {
            // SAFETY: `push` wrote the first `len`.
            let (at, key) = unsafe { open.assume_init() };
            let view = view(key.hash);
            let probe = match key.probe_second(simd, key.second(view)) {
                Ok(probe) => probe,
                Err(Moved) => find_again(view, key.hash).into(),
            };
            let at = at as usize;
            found[at] |= probe.is_hit;
            values[at] = select_unpredictable(probe.is_hit, probe.value, values[at]);
        }
        self.len = 0;
    }
}
