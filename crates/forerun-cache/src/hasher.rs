//! The hash of keys: seeded, so that nobody outside can make keys that pile up.

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A hash function of its own for each cache.
#[derive(Clone, Debug)]
pub(crate) struct KeyHasher {
    seed: u64,
    shared: SharedSeed,
}

impl KeyHasher {
    /// The function of a seed, or one that nobody can foretell: the standard library's random keys seed it.
    pub(crate) fn new(seed: Option<u64>) -> KeyHasher {
        let random = || RandomState::new().build_hasher().finish();
        KeyHasher {
            seed: seed.unwrap_or_else(random),
            shared: SharedSeed::from_u64(seed.unwrap_or_else(random)),
        }
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared);
        hasher.write(key);
        hasher.finish()
    }
}
