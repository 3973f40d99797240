//! What of a batch is still looked for.
//!
//! ```text
//!   found    1 1 0 1 0 0 1 ...      by position: what the tiers above have answered
//!   keys     k2 k4 k5               the others, compacted, a stretch of a bounded size at a time
//!   at       2  4  5                their positions
//! ```

/// Keys of a batch that no tier has found yet.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    pub(crate) keys: Vec<u64>,
    pub(crate) at: Vec<usize>,
    /// Positions before this one have been in a stretch.
    next: usize,
}

impl Rest {
    /// Begins a batch.
    pub(crate) fn begin(&mut self) {
        self.next = 0;
    }

    /// Goes on to the next stretch, of at most `most` keys; false if there is none.
    pub(crate) fn fill(&mut self, keys: &[u64], found: &[bool], most: usize) -> bool {
        self.keys.clear();
        self.at.clear();
        while self.next < keys.len() && self.at.len() < most {
            if !found[self.next] {
                self.keys.push(keys[self.next]);
                self.at.push(self.next);
            }
            self.next += 1;
        }
        !self.at.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stretches_have_what_is_not_found_once_and_in_order(found in proptest::collection::vec(any::<bool>(), 0..60), most in 1usize..9) {
            let keys: Vec<u64> = (0..found.len() as u64).map(|n| n * 7).collect();
            let (mut rest, mut seen) = (Rest::default(), Vec::new());
            rest.begin();
            while rest.fill(&keys, &found, most) {
                prop_assert!(rest.at.len() <= most && rest.at.len() == rest.keys.len());
                prop_assert!(rest.at.iter().zip(&rest.keys).all(|(&at, &key)| keys[at] == key));
                seen.extend_from_slice(&rest.at);
            }
            let open: Vec<usize> = (0..found.len()).filter(|&at| !found[at]).collect();
            prop_assert_eq!(seen, open);
        }
    }
}
