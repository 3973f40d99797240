//! Lookups: one key, and a batch in a rolling window.
//!
//! ```text
//!   keys      0 1 2 ... i ...  i+W ...
//!   step i              |       '-- hash, find the home bucket, prefetch it
//!                       '-- compare its home bucket, prefetched W steps ago; a key that may be away joins the queue
//!   queue     every 16 steps: prefetch the second buckets of those that joined, compare those of the 16 before
//! ```
//!
//! Whether a key has to go on is no branch: it is written behind the queue, whose length grows or does
//! not. The window keeps the memory busy throughout, for each step both uses a line and asks for one.
//! A table that the caches hold is searched by the same steps without the window.

use super::bucket::{Bucket, Identity, SLOTS, Side};
use super::directory::Directory;
use super::place::Geometry;
use super::version::{Seen, Version};
use forerun_core::hashing::Permutation;

/// Keys between the prefetch of a home bucket and its use.
const WINDOW: usize = 32;

/// Keys after which the queue is looked after.
const CHUNK: usize = 16;

/// Tables up to this size are searched without fetching ahead: the caches next to a core hold them.
const CACHED_BYTES: usize = 512 << 10;

/// What was read was not of one moment: a writer moved entries meanwhile.
struct Moved;

/// One of a key's two buckets.
#[derive(Clone, Copy)]
struct Place<'a> {
    bucket: &'a Bucket,
    version: &'a Version,
}

/// A key whose home bucket is known.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    hash: u64,
    home: Place<'a>,
}

/// What the home bucket told of a key.
struct First {
    /// The value, if it is a hit.
    value: u64,
    is_hit: bool,
    /// Whether to go on: the key may be away, or what was read is not of one moment.
    is_open: bool,
    seen: Seen,
}

impl<'a> Candidate<'a> {
    #[inline(always)]
    fn new(directory: &'a Directory, hash: u64) -> Candidate<'a> {
        let view = directory.view(hash);
        let (bucket, version) = view.at(view.geometry.home(hash));
        Candidate {
            hash,
            home: Place { bucket, version },
        }
    }

    /// The second bucket of a hash.
    #[inline(always)]
    fn away(directory: &'a Directory, hash: u64) -> Place<'a> {
        let view = directory.view(hash);
        let home = view.geometry.home(hash);
        let (bucket, version) =
            view.at(view.geometry.other(home, Identity::home(hash).remainder()));
        Place { bucket, version }
    }

    #[inline(always)]
    fn probe(&self) -> First {
        let Place { bucket, version } = self.home;
        let seen = version.see();
        let identity = Identity::home(self.hash);
        let (is_hit, value) = probe(bucket, identity);
        let is_away = !is_hit & bucket.may_be_away(Geometry::cell(identity.remainder()));
        let is_still = version.is_still(seen);
        First {
            value,
            is_hit: is_hit & is_still,
            is_open: is_away | !is_still,
            seen,
        }
    }
}

/// A key that its home bucket did not settle.
#[derive(Clone, Copy)]
struct Open<'a> {
    /// Its place in the batch.
    at: u32,
    candidate: Candidate<'a>,
    /// The version of the home bucket when that was read.
    seen: Seen,
    away: Place<'a>,
}

impl Open<'_> {
    #[inline(always)]
    fn probe(&self) -> Result<Option<u64>, Moved> {
        let Place { bucket, version } = self.away;
        let seen = version.see();
        let (is_hit, value) = probe(bucket, Identity::home(self.candidate.hash).on(Side::Away));
        // The home's too: the entry may have gone there after it was read.
        if version.is_still(seen) & self.candidate.home.version.is_still(self.seen) {
            Ok(is_hit.then_some(value))
        } else {
            Err(Moved)
        }
    }
}

/// Whether an entry is in a bucket, and its value; some other value if it is not.
#[inline(always)]
fn probe(bucket: &Bucket, identity: Identity) -> (bool, u64) {
    let mask = bucket.find(identity);
    // An empty mask has 32 zeroes: slot 0.
    let value = bucket.value(mask.trailing_zeros() as usize % SLOTS);
    (mask != 0, value)
}

/// The value of a hash.
#[inline(always)]
pub(super) fn find(directory: &Directory, hash: u64) -> Option<u64> {
    let candidate = Candidate::new(directory, hash);
    let first = candidate.probe();
    if !first.is_open {
        return first.is_hit.then_some(first.value);
    }
    let away = Candidate::away(directory, hash);
    match (Open {
        at: 0,
        candidate,
        seen: first.seen,
        away,
    })
    .probe()
    {
        Ok(found) => found,
        Err(Moved) => find_again(directory, hash),
    }
}

#[cold]
fn find_again(directory: &Directory, hash: u64) -> Option<u64> {
    // The writer needs some nanoseconds more, or much longer if it lost its processor.
    std::thread::yield_now();
    find(directory, hash)
}

/// A batch: its keys, and as many places for the answers.
pub(super) struct Batch<'b> {
    pub(super) keys: &'b [u64],
    pub(super) values: &'b mut [u64],
    pub(super) found: &'b mut [bool],
}

impl Batch<'_> {
    /// Looks up all keys and tells how many were found. The values of the others stay as they were.
    #[inline(always)]
    pub(super) fn run(self, directory: &Directory, permutation: &Permutation) -> usize {
        if directory.memory_bytes() > CACHED_BYTES {
            self.run_as::<true>(directory, permutation)
        } else {
            self.run_as::<false>(directory, permutation)
        }
    }

    #[inline(always)]
    fn run_as<const AHEAD: bool>(
        mut self,
        directory: &Directory,
        permutation: &Permutation,
    ) -> usize {
        let candidate = |key| Candidate::new(directory, permutation.hash(key));
        let fetch = |key| {
            let candidate = candidate(key);
            candidate.home.bucket.prefetch();
            candidate
        };
        let Some(&first) = self.keys.first() else {
            return 0;
        };
        // Something to fill the places with before they are used.
        let nothing = candidate(first);
        let mut window = [nothing; WINDOW];
        if AHEAD {
            for (place, &key) in window.iter_mut().zip(self.keys) {
                *place = fetch(key);
            }
        }
        let seen = nothing.home.version.see();
        let mut joined = Queue::new(Open {
            at: 0,
            candidate: nothing,
            seen,
            away: nothing.home,
        });
        let mut fetched = joined;
        let mut hits = 0;
        for start in (0..self.keys.len()).step_by(CHUNK) {
            for at in start..self.keys.len().min(start + CHUNK) {
                let candidate = if AHEAD {
                    let place = &mut window[at % WINDOW];
                    let candidate = *place;
                    if let Some(&next) = self.keys.get(at + WINDOW) {
                        *place = fetch(next);
                    }
                    candidate
                } else {
                    candidate(self.keys[at])
                };
                let first = candidate.probe();
                hits += self.answer(at, first.is_hit, first.value);
                let open = Open {
                    at: at as u32,
                    candidate,
                    seen: first.seen,
                    away: candidate.home,
                };
                joined.push(open, first.is_open);
            }
            for open in joined.items() {
                open.away = Candidate::away(directory, open.candidate.hash);
                if AHEAD {
                    open.away.bucket.prefetch();
                }
            }
            if AHEAD {
                std::mem::swap(&mut joined, &mut fetched);
            }
            // Those of this chunk if nothing is fetched ahead, else those of the one before.
            hits += self.settle(directory, &mut joined);
        }
        hits + self.settle(directory, &mut fetched)
    }

    /// Answers the keys of a queue by their second buckets, and empties it.
    #[inline(always)]
    fn settle(&mut self, directory: &Directory, queue: &mut Queue<'_>) -> usize {
        let mut hits = 0;
        for open in queue.items() {
            let found = match open.probe() {
                Ok(found) => found,
                Err(Moved) => find_again(directory, open.candidate.hash),
            };
            hits += self.answer(open.at as usize, found.is_some(), found.unwrap_or(0));
        }
        queue.len = 0;
        hits
    }

    #[inline(always)]
    fn answer(&mut self, at: usize, is_hit: bool, value: u64) -> usize {
        self.found[at] = is_hit;
        let old = self.values[at];
        self.values[at] = if is_hit { value } else { old };
        usize::from(is_hit)
    }
}

/// The keys of a chunk that their home buckets did not settle.
#[derive(Clone, Copy)]
struct Queue<'a> {
    opens: [Open<'a>; CHUNK],
    len: usize,
}

impl<'a> Queue<'a> {
    /// An empty queue; its places hold something that is not read.
    #[inline(always)]
    fn new(nothing: Open<'a>) -> Queue<'a> {
        Queue {
            opens: [nothing; CHUNK],
            len: 0,
        }
    }

    /// Adds a key if it is open, without a branch: there is room, since a queue is emptied each chunk.
    #[inline(always)]
    fn push(&mut self, open: Open<'a>, is_open: bool) {
        self.opens[self.len % CHUNK] = open;
        self.len += usize::from(is_open);
    }

    #[inline(always)]
    fn items(&mut self) -> &mut [Open<'a>] {
        &mut self.opens[..self.len.min(CHUNK)]
    }
}
