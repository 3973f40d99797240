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
    /// The most that was ever held.
    peak_bytes: AtomicUsize,
    by_purpose: [AtomicUsize; 4],
    /// The part of all charges that belongs to values which have not arrived in full.
    buffer_bytes: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(limit_bytes: usize) -> Budget {
        Budget {
            limit_bytes: AtomicUsize::new(limit_bytes),
            used_bytes: AtomicUsize::new(0),
            peak_bytes: AtomicUsize::new(0),
            by_purpose: Default::default(),
            buffer_bytes: AtomicUsize::new(0),
        }
    }

    /// Charges some bytes if the limit allows them.
    pub(crate) fn try_charge(&self, purpose: Purpose, bytes: usize) -> bool {
        let limit_bytes = self.limit_bytes();
        let within = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= limit_bytes);
        // Relaxed, like everything here: a count, which publishes no memory.
        let Ok(before) = self.used_bytes.fetch_update(Relaxed, Relaxed, within) else {
            return false;
        };
        self.by_purpose[purpose as usize].fetch_add(bytes, Relaxed);
        if before + bytes > self.peak_bytes() {
            self.peak_bytes.fetch_max(before + bytes, Relaxed);
        }
        true
    }

    /// Returns a charge.
    pub(crate) fn uncharge(&self, purpose: Purpose, bytes: usize) {
        self.by_purpose[purpose as usize].fetch_sub(bytes, Relaxed);
        self.used_bytes.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Relaxed)
    }

    pub(crate) fn peak_bytes(&self) -> usize {
        self.peak_bytes.load(Relaxed)
    }

    pub(crate) fn used_for(&self, purpose: Purpose) -> usize {
        self.by_purpose[purpose as usize].load(Relaxed)
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes.load(Relaxed)
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

/// A charge for a value that grows with the value. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Charge {
    /// A charge of nothing.
    pub(crate) fn new(budget: &Arc<Budget>) -> Charge {
        Charge {
            budget: Arc::clone(budget),
            bytes: 0,
        }
    }

    /// Raises the charge to some bytes if the limit allows them.
    pub(crate) fn raise_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let charged = more == 0 || self.budget.try_charge(Purpose::Large, more);
        if charged {
            self.bytes += more;
        }
        charged
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.uncharge(Purpose::Large, self.bytes);
    }
}

/// The share of one buffer in the memory of all buffers for values that arrive in pieces. It ends
/// when this is dropped.
#[derive(Debug)]
pub(crate) struct BufferShare {
    budget: Arc<Budget>,
    bytes: usize,
}

impl BufferShare {
    /// A share of nothing.
    pub(crate) fn new(budget: &Arc<Budget>) -> BufferShare {
        BufferShare {
            budget: Arc::clone(budget),
            bytes: 0,
        }
    }

    /// Whether the buffer belongs to the cache with this budget.
    pub(crate) fn is_of(&self, budget: &Arc<Budget>) -> bool {
        Arc::ptr_eq(&self.budget, budget)
    }

    /// Raises the share to some bytes unless all buffers together would take more than `max_bytes`.
    pub(crate) fn raise_to(&mut self, bytes: usize, max_bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let within = |all: usize| all.checked_add(more).filter(|&sum| sum <= max_bytes);
        let buffers = &self.budget.buffer_bytes;
        // Relaxed: a count, as above.
        let raised = more == 0 || buffers.fetch_update(Relaxed, Relaxed, within).is_ok();
        if raised {
            self.bytes += more;
        }
        raised
    }
}

impl Drop for BufferShare {
    fn drop(&mut self) {
        self.budget.buffer_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_charged_beyond_the_limit() {
        let budget = Arc::new(Budget::new(100));
        assert!(budget.try_charge(Purpose::Fixed, 40));
        let mut charge = Charge::new(&budget);
        assert!(charge.raise_to(50) && charge.raise_to(60) && charge.raise_to(10));
        assert!(!budget.try_charge(Purpose::Index, 1));
        assert!(!charge.raise_to(61) && !charge.raise_to(usize::MAX));
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
    fn buffers_together_take_no_more_than_their_maximum() {
        let budget = Arc::new(Budget::new(100));
        let mut one = BufferShare::new(&budget);
        let mut other = BufferShare::new(&budget);
        assert!(one.raise_to(10, 30) && other.raise_to(20, 30));
        assert!(!one.raise_to(11, 30) && one.raise_to(11, 31));
        assert_eq!(budget.buffer_bytes(), 31);
        drop(other);
        assert_eq!((budget.buffer_bytes(), budget.used_bytes()), (11, 0));
    }

    #[test]
    fn a_lower_limit_leaves_an_excess_and_refuses_more() {
        let budget = Budget::new(100);
        assert!(budget.try_charge(Purpose::Blocks, 80));
        budget.set_limit_bytes(50);
        assert_eq!(budget.excess_bytes(), 30);
        assert!(!budget.try_charge(Purpose::Blocks, 0));
        budget.uncharge(Purpose::Blocks, 40);
        assert_eq!((budget.excess_bytes(), budget.peak_bytes()), (0, 80));
        assert!(budget.try_charge(Purpose::Blocks, 10));
    }
}
