//! The order of user keys, and its first eight bytes as one integer.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// A total order over user keys.
///
/// A store remembers the name of the order it was created with and refuses to be opened with
/// another.
///
/// ```
/// use forerun_db::{Comparator, Db, Options};
/// use std::cmp::Ordering;
/// use std::sync::Arc;
///
/// /// Decimal numbers without leading zeros, by value.
/// struct Decimal;
///
/// impl Comparator for Decimal {
///     fn name(&self) -> &str {
///         "example.decimal"
///     }
///     fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
///         a.len().cmp(&b.len()).then(a.cmp(b))
///     }
///     fn prefix(&self, key: &[u8]) -> u64 {
///         key.len() as u64
///     }
///     fn equal_means_identical(&self) -> bool {
///         true
///     }
/// }
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default().comparator(Arc::new(Decimal)))?;
/// for number in ["10", "9", "100"] {
///     db.put(number, "")?;
/// }
/// assert_eq!(db.iter().next().unwrap()?.0, b"9");
/// # Ok::<(), forerun_db::Error>(())
/// ```
pub trait Comparator: Send + Sync + 'static {
    /// The name of the order, which the store records. A different order must have a different
    /// name, also in a later version of the program.
    fn name(&self) -> &str;

    /// Compares two keys. The order must be total, and keys that compare equal are the same key. If
    /// it panics, the call of the store returns [`Error::Panicked`](crate::Error::Panicked).
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering;

    /// An integer that orders like the key as far as possible: `prefix(a) < prefix(b)` must imply
    /// `a < b`.
    ///
    /// The memtable keeps it beside each pointer and decides most steps of a search with it,
    /// without reading the node behind the pointer. The default, 0, carries no information and only
    /// costs speed.
    fn prefix(&self, key: &[u8]) -> u64 {
        let _ = key;
        0
    }

    /// Whether keys that compare equal have the same bytes.
    ///
    /// Only then can memtables have a hash index and runs an index and a filter, because these hash
    /// a key's bytes. The default is `false`, which only costs speed.
    fn equal_means_identical(&self) -> bool {
        false
    }
}

/// Keys in the order of their bytes, as unsigned numbers; a proper prefix comes first. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bytewise;

impl Comparator for Bytewise {
    fn name(&self) -> &str {
        "forerun.bytewise"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.cmp(b)
    }

    fn prefix(&self, key: &[u8]) -> u64 {
        first_bytes(key)
    }

    fn equal_means_identical(&self) -> bool {
        true
    }
}

/// The reverse of [`Bytewise`]: the largest key comes first.
///
/// ```
/// use forerun_db::{Db, Options, ReverseBytewise};
/// use std::sync::Arc;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default().comparator(Arc::new(ReverseBytewise)))?;
/// for day in ["2026-01-01", "2026-01-02"] {
///     db.put(day, "")?;
/// }
/// assert_eq!(db.iter().next().unwrap()?.0, b"2026-01-02");
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ReverseBytewise;

impl Comparator for ReverseBytewise {
    fn name(&self) -> &str {
        "forerun.reverse-bytewise"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        b.cmp(a)
    }

    fn prefix(&self, key: &[u8]) -> u64 {
        !first_bytes(key)
    }

    fn equal_means_identical(&self) -> bool {
        true
    }
}

/// The first eight bytes as a big-endian integer; a shorter key is padded with zeros.
#[inline(always)]
fn first_bytes(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(bytes)
        }
    }
}

/// A comparator as the memtable holds it. The default order is known at compile time, so its
/// comparisons are inlined into the search; any other order is called.
#[derive(Clone)]
pub(crate) enum KeyOrder {
    Bytewise,
    Custom(Arc<dyn Comparator>),
}

impl KeyOrder {
    pub(crate) fn new(comparator: Arc<dyn Comparator>) -> Self {
        if comparator.name() == Bytewise.name() {
            KeyOrder::Bytewise
        } else {
            KeyOrder::Custom(comparator)
        }
    }

    /// Whether comparing keys calls the user's code, which may panic.
    #[inline(always)]
    pub(crate) fn may_panic(&self) -> bool {
        matches!(self, KeyOrder::Custom(_))
    }

    #[inline(always)]
    pub(crate) fn prefix(&self, key: &[u8]) -> u64 {
        match self {
            KeyOrder::Bytewise => first_bytes(key),
            KeyOrder::Custom(comparator) => comparator.prefix(key),
        }
    }

    /// [`prefix`](Self::prefix), of sixteen bytes under the default order.
    #[inline(always)]
    pub(crate) fn long_prefix(&self, key: &[u8]) -> u128 {
        match self {
            KeyOrder::Bytewise => match key.first_chunk::<16>() {
                Some(bytes) => u128::from_be_bytes(*bytes),
                None => {
                    let mut bytes = [0; 16];
                    bytes[..key.len()].copy_from_slice(key);
                    u128::from_be_bytes(bytes)
                }
            },
            KeyOrder::Custom(comparator) => u128::from(comparator.prefix(key)),
        }
    }

    #[inline(always)]
    pub(crate) fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            KeyOrder::Bytewise => a.cmp(b),
            KeyOrder::Custom(comparator) => comparator.compare(a, b),
        }
    }
}

impl fmt::Debug for KeyOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyOrder::Bytewise => f.write_str(Bytewise.name()),
            KeyOrder::Custom(comparator) => f.write_str(comparator.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_smaller_prefix_means_a_smaller_key(
            a in prop::collection::vec(0_u8..2, 0..20), b in prop::collection::vec(0_u8..2, 0..20),
        ) {
            for comparator in [&Bytewise as &dyn Comparator, &ReverseBytewise] {
                if comparator.prefix(&a) < comparator.prefix(&b) {
                    prop_assert_eq!(comparator.compare(&a, &b), Ordering::Less);
                }
            }
            for order in [KeyOrder::Bytewise, KeyOrder::new(Arc::new(ReverseBytewise))] {
                if order.long_prefix(&a) < order.long_prefix(&b) {
                    prop_assert_eq!(order.compare(&a, &b), Ordering::Less);
                }
            }
        }
    }
}
