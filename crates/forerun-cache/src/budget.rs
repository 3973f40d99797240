//! The one limit of all memory: whoever takes some charges it here first. The limit itself may be set anew: then more may be
//! held than it allows until [`Cache::shrink`](crate::Cache::shrink) has given that back, and nothing new is charged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Blocks of items, whether in use or free, as long as the system has not had them back.
    Blocks,
    /// Values with mappings of their own, and values on their way in.
    Large,
    /// Segments of the index and its directory.
    Index,
    /// What is there as long as the cache.
    Fixed,
}

/// The limit, and what is held.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: AtomicUsize,
    used_bytes: AtomicUsize,
    by_purpose: [AtomicUsize; 4],
}

impl Budget {
    pub(crate) fn new(limit_bytes: usize) -> Budget {
        Budget {
            limit_bytes: AtomicUsize::new(limit_bytes),
            used_bytes: AtomicUsize::new(0),
            by_purpose: Default::default(),
        }
    }

    /// Takes some bytes, if they are within the limit.
    pub(crate) fn try_charge(&self, purpose: Purpose, bytes: usize) -> bool {
        let limit_bytes = self.limit_bytes();
        let within = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= limit_bytes);
        // Relaxed, as everything here: a count, which says nothing of the memory's bytes.
        let charged = self
            .used_bytes
            .fetch_update(Relaxed, Relaxed, within)
            .is_ok();
        if charged {
            self.by_purpose[purpose as usize].fetch_add(bytes, Relaxed);
        }
        charged
    }

    /// Gives them back.
    pub(crate) fn uncharge(&self, purpose: Purpose, bytes: usize) {
        self.by_purpose[purpose as usize].fetch_sub(bytes, Relaxed);
        self.used_bytes.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Relaxed)
    }

    pub(crate) fn used_for(&self, purpose: Purpose) -> usize {
        self.by_purpose[purpose as usize].load(Relaxed)
    }

    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Relaxed)
    }

    pub(crate) fn set_limit_bytes(&self, limit_bytes: usize) {
        self.limit_bytes.store(limit_bytes, Relaxed);
    }

    /// What may still be charged.
    pub(crate) fn left_bytes(&self) -> usize {
        self.limit_bytes().saturating_sub(self.used_bytes())
    }

    /// What is held above the limit.
    pub(crate) fn excess_bytes(&self) -> usize {
        self.used_bytes().saturating_sub(self.limit_bytes())
    }
}

/// Bytes that were charged for a value, until it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Charge {
    /// Charges some bytes for a large value, if they are within the limit.
    pub(crate) fn new(budget: &Arc<Budget>, bytes: usize) -> Option<Charge> {
        budget.try_charge(Purpose::Large, bytes).then(|| Charge {
            budget: Arc::clone(budget),
            bytes,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.uncharge(Purpose::Large, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_charged_beyond_the_limit() {
        let budget = Arc::new(Budget::new(100));
        assert!(budget.try_charge(Purpose::Fixed, 40));
        let charge = Charge::new(&budget, 60).unwrap();
        assert!(!budget.try_charge(Purpose::Index, 1));
        assert!(Charge::new(&budget, usize::MAX).is_none());
        assert_eq!(
            (budget.used_bytes(), budget.used_for(Purpose::Large)),
            (100, 60)
        );
        drop(charge);
        assert_eq!(
            (budget.used_bytes(), budget.used_for(Purpose::Large)),
            (40, 0)
        );
        assert!(budget.try_charge(Purpose::Index, 60));
    }

    #[test]
    fn a_lower_limit_leaves_an_excess_and_admits_nothing() {
        let budget = Budget::new(100);
        assert!(budget.try_charge(Purpose::Blocks, 80));
        budget.set_limit_bytes(50);
        assert_eq!(budget.excess_bytes(), 30);
        assert!(!budget.try_charge(Purpose::Blocks, 0));
        budget.uncharge(Purpose::Blocks, 40);
        assert_eq!(budget.excess_bytes(), 0);
        assert!(budget.try_charge(Purpose::Blocks, 10));
    }
}
