//! The hash function of keys. It is seeded, so that clients cannot craft keys that collide.

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use forerun_core::sync::random_seed;
use std::hash::Hasher;

/// A hash function. Each cache has its own.
#[derive(Clone, Debug)]
pub(crate) struct KeyHasher {
    seed: u64,
    shared: SharedSeed,
}

impl KeyHasher {
    /// The function for a seed. Without a seed it is unpredictable.
    pub(crate) fn new(seed: Option<u64>) -> KeyHasher {
        KeyHasher {
            seed: seed.unwrap_or_else(random_seed),
            shared: SharedSeed::from_u64(seed.unwrap_or_else(random_seed)),
        }
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared);
        hasher.write(key);
        hasher.finish()
    }
}
