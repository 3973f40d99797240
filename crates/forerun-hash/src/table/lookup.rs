//! Lookups: one key, and a batch in a rolling window.
//!
//! ```text
//!   keys      0 1 2 ... i ...  i+W ...
//!   step i              |       '-- hash, find the home bucket, prefetch it
//!                       '-- compare the home bucket, prefetched W steps ago; a key that may be away stays open
//!   every W steps       prefetch the second buckets of the keys that stayed open, compare those of the W before
//! ```
//!
//! Each step both uses a line and asks for one, so memory is busy throughout. The first line settles
//! nine keys in ten, three in four if the table is nearly full: going on is a branch, rarely taken,
//! rather than work for every key. A table that the caches hold is searched key by key.

use super::bucket::{Bucket, Cell, Identity, SLOTS, Side};
use super::directory::{Directory, View};
use super::version::{Seen, Version};
use forerun_core::arch::{Scalar, Simd, WithSimd};
use forerun_core::hashing::Permutation;

/// Keys between the prefetch of a bucket and its use: more lines than memory works on at a time.
const WINDOW: usize = 48;

/// Tables up to this size are searched without fetching ahead: the caches next to a core hold them.
const CACHED_BYTES: usize = 512 << 10;

/// What was read was not of one moment: a writer moved entries meanwhile.
struct Moved;

/// A key whose home bucket is known.
#[derive(Clone, Copy)]
struct Key<'a> {
    hash: u64,
    bucket: &'a Bucket,
    version: &'a Version,
}

/// What a home bucket told of a key.
enum First {
    Hit(u64),
    Miss,
    /// It is not here, but may be in its second bucket.
    Open,
}

impl<'a> Key<'a> {
    #[inline(always)]
    fn new(view: View<'a>, hash: u64) -> Key<'a> {
        let bucket = view.bucket(view.geometry.home(hash));
        Key {
            hash,
            bucket,
            version: view.version,
        }
    }

    /// Looks into the home bucket. `seen` is the segment's version from before.
    #[inline(always)]
    fn probe<S: Simd>(&self, simd: S, seen: Seen) -> Result<First, Moved> {
        let identity = Identity::home(self.hash);
        let hit = probe(simd, self.bucket, identity);
        let first = match hit {
            Some(value) => First::Hit(value),
            None if self.bucket.may_be_away(Cell::new(identity.remainder())) => First::Open,
            None => First::Miss,
        };
        if self.version.is_still(seen) {
            Ok(first)
        } else {
            Err(Moved)
        }
    }
}

/// The second bucket of a hash.
#[inline(always)]
fn second_bucket(view: View<'_>, hash: u64) -> &Bucket {
    let home = view.geometry.home(hash);
    view.bucket(view.geometry.other(home, Identity::home(hash).remainder()))
}

/// Looks into the second bucket of a key that is not in its home bucket. `seen` is the segment's
/// version from before that was read: the entry may have gone home since.
#[inline(always)]
fn probe_second<S: Simd>(
    simd: S,
    view: View<'_>,
    seen: Seen,
    hash: u64,
) -> Result<Option<u64>, Moved> {
    let hit = probe(
        simd,
        second_bucket(view, hash),
        Identity::home(hash).on(Side::Away),
    );
    if view.version.is_still(seen) {
        Ok(hit)
    } else {
        Err(Moved)
    }
}

/// The value of an entry, if it is in a bucket.
#[inline(always)]
fn probe<S: Simd>(simd: S, bucket: &Bucket, identity: Identity) -> Option<u64> {
    let mask = bucket.find(simd, identity);
    (mask != 0).then(|| bucket.value(mask.trailing_zeros() as usize % SLOTS))
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
fn try_find(view: View<'_>, hash: u64) -> Result<Option<u64>, Moved> {
    let seen = view.version.see();
    match Key::new(view, hash).probe(Scalar::new(), seen)? {
        First::Hit(value) => Ok(Some(value)),
        First::Miss => Ok(None),
        First::Open => probe_second(Scalar::new(), view, seen, hash),
    }
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
        match self.directory.views().only() {
            Some(view) if self.directory.memory_bytes() <= CACHED_BYTES => {
                self.run_cached(simd, view)
            }
            _ => self.run_ahead(simd),
        }
    }
}

impl Batch<'_> {
    /// Key by key, in a table of one segment.
    #[inline(always)]
    fn run_cached<S: Simd>(self, simd: S, view: View<'_>) {
        let answers = self.values.iter_mut().zip(self.found.iter_mut());
        for (&key, (value, found)) in self.keys.iter().zip(answers) {
            let hash = self.permutation.hash(key);
            let seen = view.version.see();
            let hit = match Key::new(view, hash).probe(simd, seen) {
                Ok(First::Hit(value)) => Some(value),
                Ok(First::Miss) => None,
                Ok(First::Open) => probe_second(simd, view, seen, hash)
                    .unwrap_or_else(|Moved| find_again(view, hash)),
                Err(Moved) => find_again(view, hash),
            };
            *found = hit.is_some();
            if let Some(hit) = hit {
                *value = hit;
            }
        }
    }

    /// In a rolling window.
    #[inline(always)]
    fn run_ahead<S: Simd>(self, simd: S) {
        let Batch {
            permutation,
            keys,
            values,
            found,
            ..
        } = self;
        let views = self.directory.views();
        let Some(&first) = keys.first() else {
            return;
        };
        let hash_of = |at: usize| permutation.hash(keys[at]);
        let fetch = |key| {
            let hash = permutation.hash(key);
            let key = Key::new(views.of(hash), hash);
            key.bucket.prefetch();
            key
        };
        let mut window = [fetch(first); WINDOW];
        for (place, &key) in window.iter_mut().zip(keys).skip(1) {
            *place = fetch(key);
        }
        let mut open = OpenKeys::new(window[0].version.see());
        let mut fetched = OpenKeys::new(window[0].version.see());
        let settle = |open: &mut OpenKeys, values: &mut [u64], found: &mut [bool]| {
            for (at, seen) in open.iter() {
                let hash = hash_of(at);
                let view = views.of(hash);
                let hit = probe_second(simd, view, seen, hash)
                    .unwrap_or_else(|Moved| find_again(view, hash));
                if let Some(hit) = hit {
                    (values[at], found[at]) = (hit, true);
                }
            }
            open.len = 0;
        };
        for start in (0..keys.len()).step_by(WINDOW) {
            let end = keys.len().min(start + WINDOW);
            let answers = values[start..end].iter_mut().zip(&mut found[start..end]);
            for ((place, at), (value, found)) in window.iter_mut().zip(start..).zip(answers) {
                let key = *place;
                if let Some(&next) = keys.get(at + WINDOW) {
                    *place = fetch(next);
                }
                let seen = key.version.see();
                *found = false;
                match key.probe(simd, seen) {
                    Ok(First::Hit(hit)) => (*value, *found) = (hit, true),
                    Ok(First::Miss) => {}
                    Ok(First::Open) => open.push(at, seen),
                    Err(Moved) => {
                        if let Some(hit) = find_again(views.of(key.hash), key.hash) {
                            (*value, *found) = (hit, true);
                        }
                    }
                }
            }
            for (at, _) in open.iter() {
                let hash = hash_of(at);
                second_bucket(views.of(hash), hash).prefetch();
            }
            settle(&mut fetched, values, found);
            std::mem::swap(&mut open, &mut fetched);
        }
        settle(&mut fetched, values, found);
    }
}

/// The keys of a window that their home buckets did not settle: their places in the batch, and the
/// versions of their segments from before.
struct OpenKeys {
    at: [u32; WINDOW],
    seen: [Seen; WINDOW],
    len: usize,
}

impl OpenKeys {
    /// None; the places hold something that is not read.
    #[inline(always)]
    fn new(seen: Seen) -> OpenKeys {
        OpenKeys {
            at: [0; WINDOW],
            seen: [seen; WINDOW],
            len: 0,
        }
    }

    /// Adds one of the window's keys, of which there are not more than places.
    #[inline(always)]
    fn push(&mut self, at: usize, seen: Seen) {
        self.at[self.len % WINDOW] = at as u32;
        self.seen[self.len % WINDOW] = seen;
        self.len += 1;
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = (usize, Seen)> {
        let keys = self.at.iter().zip(&self.seen).take(self.len);
        keys.map(|(&at, &seen)| (at as usize, seen))
    }
}
