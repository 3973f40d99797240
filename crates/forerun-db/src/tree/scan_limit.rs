//! Where a scan ends.
//!
//! ```text
//!   forward    ───────────────> │ limit │ ▒▒▒▒▒▒▒▒  not needed: neither read nor passed over
//!   backward   ▒▒▒▒▒▒▒▒ │ limit │ <───────────────
//! ```

use std::ops::Bound;

use crate::comparator::KeyOrder;
use crate::versions::SeekSide;

/// Bytes of the key's buffer that are kept for the next scan.
const KEPT_BYTES: usize = 4 << 10;

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

impl Direction {
    /// The direction of a scan that begins with such a seek.
    pub(crate) fn to(side: SeekSide) -> Direction {
        match side {
            SeekSide::AtOrAfter => Direction::Forward,
            SeekSide::Before => Direction::Backward,
        }
    }
}

/// The key at which a scan in one direction ends.
#[derive(Debug, Default)]
pub(crate) struct ScanLimit {
    /// `None` if the scan has no limit.
    direction: Option<Direction>,
    key: Vec<u8>,
    /// Whether the scan needs the key itself.
    is_included: bool,
}

impl ScanLimit {
    /// Sets the limit of scans in `direction`. Scans in the other one have none.
    pub(crate) fn set(&mut self, direction: Direction, bound: Bound<&[u8]>) {
        let (Bound::Included(key) | Bound::Excluded(key)) = bound else {
            self.direction = None;
            return;
        };
        self.direction = Some(direction);
        self.is_included = matches!(bound, Bound::Included(_));
        self.key.clear();
        self.key.extend_from_slice(key);
    }

    /// Whether a scan in `direction` that has come to `key` needs neither this key nor those that
    /// follow.
    pub(crate) fn is_passed(&self, order: &KeyOrder, direction: Direction, key: &[u8]) -> bool {
        if self.direction != Some(direction) {
            return false;
        }
        let ahead = match direction {
            Direction::Forward => order.compare(key, &self.key),
            Direction::Backward => order.compare(&self.key, key),
        };
        if self.is_included {
            ahead.is_gt()
        } else {
            ahead.is_ge()
        }
    }

    /// Removes the limit.
    pub(crate) fn reset(&mut self) {
        self.direction = None;
        self.key.clear();
        self.key.shrink_to(KEPT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ReverseBytewise;

    #[test]
    fn a_limit_ends_scans_in_its_direction_at_or_after_its_key() {
        let orders = [KeyOrder::Bytewise, KeyOrder::new(Arc::new(ReverseBytewise))];
        for (order, keys) in orders.iter().zip([[b"a", b"b", b"c"], [b"c", b"b", b"a"]]) {
            let passed = |bound: Bound<&[u8]>, of: Direction, scan: Direction| {
                let mut limit = ScanLimit::default();
                limit.set(of, bound);
                keys.map(|key| limit.is_passed(order, scan, key))
            };
            use Direction::{Backward, Forward};
            let (included, excluded) = (Bound::Included(&b"b"[..]), Bound::Excluded(&b"b"[..]));
            assert_eq!(passed(included, Forward, Forward), [false, false, true]);
            assert_eq!(passed(excluded, Forward, Forward), [false, true, true]);
            assert_eq!(passed(included, Backward, Backward), [true, false, false]);
            assert_eq!(passed(excluded, Backward, Backward), [true, true, false]);
            assert_eq!(passed(included, Forward, Backward), [false; 3]);
            assert_eq!(passed(included, Backward, Forward), [false; 3]);
            assert_eq!(passed(Bound::Unbounded, Forward, Forward), [false; 3]);
        }
        let mut limit = ScanLimit::default();
        limit.set(Direction::Forward, Bound::Included(b"b"));
        limit.reset();
        assert!(!limit.is_passed(&KeyOrder::Bytewise, Direction::Forward, b"c"));
    }
}
