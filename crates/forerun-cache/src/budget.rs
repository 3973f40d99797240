//! The memory limit of a cache. All memory is charged here before it is taken. The limit may be
//! lowered while the cache is in use: until [`Cache::shrink`](crate::Cache::shrink) has returned
//! the excess, nothing new can be charged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The purpose of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Blocks of items, in use or free, until they are returned to the system.
    Blocks,
    /// Values in page runs, and buffers for values that arrive in pieces.
    Large,
    /// The index: its segments and its directory.
    Index,
    /// Memory that lives as long as the cache.
    Fixed,
}

/// The limit, and the memory held.
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

    /// Charges some bytes if the limit allows them.
    pub(crate) fn try_charge(&self, purpose: Purpose, bytes: usize) -> bool {
        let limit_bytes = self.limit_bytes();
        let within = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= limit_bytes);
        // Relaxed, like everything here: a count, which publishes no memory.
        let charged = self
            .used_bytes
            .fetch_update(Relaxed, Relaxed, within)
            .is_ok();
        if charged {
            self.by_purpose[purpose as usize].fetch_add(bytes, Relaxed);
        }
        charged
    }

    /// Takes a charge back.
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

    /// The bytes that may still be charged.
    pub(crate) fn left_bytes(&self) -> usize {
        self.limit_bytes().saturating_sub(self.used_bytes())
    }

    /// The bytes held above the limit.
    pub(crate) fn excess_bytes(&self) -> usize {
        self.used_bytes().saturating_sub(self.limit_bytes())
    }
}

/// A charge for a value. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Charge {
    /// Charges some bytes for a large value if the limit allows them.
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
    fn a_lower_limit_leaves_an_excess_and_refuses_more() {
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
