//! The keys of a batch that no tier has found yet.
//!
//! ```text
//!   found    1 1 0 1 0 0 1 ...      by position: found in a tier above
//!   keys     k2 k4 k5               the misses, compacted, one bounded chunk at a time
//!   positions 2  4  5               in the batch
//! ```

/// One chunk of a batch's misses.
#[derive(Debug, Default)]
pub(crate) struct Misses {
    pub(crate) keys: Vec<u64>,
    pub(crate) positions: Vec<usize>,
    /// Positions before this one are done.
    next: usize,
}

impl Misses {
    /// Starts a new batch.
    pub(crate) fn begin(&mut self) {
        self.next = 0;
    }

    /// Loads the next chunk of at most `max` misses; false if there are no more.
    pub(crate) fn fill(&mut self, keys: &[u64], found: &[bool], max: usize) -> bool {
        self.keys.clear();
        self.positions.clear();
        while self.next < keys.len() && self.positions.len() < max {
            if !found[self.next] {
                self.keys.push(keys[self.next]);
                self.positions.push(self.next);
            }
            self.next += 1;
        }
        !self.positions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn misses_are_listed_once_and_in_order(
            found in proptest::collection::vec(any::<bool>(), 0..60), max in 1usize..9,
        ) {
            let keys: Vec<u64> = (0..found.len() as u64).map(|n| n * 7).collect();
            let (mut misses, mut seen) = (Misses::default(), Vec::new());
            misses.begin();
            while misses.fill(&keys, &found, max) {
                let positions = &misses.positions;
                prop_assert!(positions.len() <= max && positions.len() == misses.keys.len());
                prop_assert!(positions.iter().zip(&misses.keys).all(|(&at, &key)| keys[at] == key));
                seen.extend_from_slice(positions);
            }
            let open: Vec<usize> = (0..found.len()).filter(|&at| !found[at]).collect();
            prop_assert_eq!(seen, open);
        }
    }
}
