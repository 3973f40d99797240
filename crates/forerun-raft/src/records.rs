//! The records in a store, and how they are encoded.
//!
//! ```text
//!   log    index, 8 bytes big-endian  ->  the log entry
//!
//!   meta   "format"     ->  1, as 4 bytes little-endian
//!          "vote"       ->  the vote
//!          "committed"  ->  an optional log id
//!          "purged"     ->  the log id of the last entry that was purged
//!          "applied"    ->  an optional log id, and the last applied membership
//!          "kv"         ->  the name of the keyspace with the entries of the state machine
//!
//!   kv, later kv.2, kv.3, …   the user's key  ->  the user's value
//! ```
//!
//! Entries, votes, log ids and memberships are openraft's types, encoded with serde in postcard's
//! format. The store itself protects all records by checksums.

use std::ops::{Bound, RangeBounds};

use openraft::{LogId, RaftTypeConfig, StoredMembership};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// Keys of the keyspace `meta`.
pub(crate) const FORMAT: &str = "format";
pub(crate) const VOTE: &str = "vote";
pub(crate) const COMMITTED: &str = "committed";
pub(crate) const PURGED: &str = "purged";
pub(crate) const APPLIED: &str = "applied";
pub(crate) const KV: &str = "kv";

/// Up to where the state machine has applied the log, and the membership at that point.
pub(crate) type Applied<C> = (
    Option<LogId<<C as RaftTypeConfig>::NodeId>>,
    StoredMembership<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>,
);

pub(crate) fn encode<T: Serialize>(record: &str, value: &T) -> Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(|error| Error::Encode {
        record: record.to_owned(),
        reason: error.to_string(),
    })
}

pub(crate) fn decode<T: DeserializeOwned>(keyspace: &str, record: &str, bytes: &[u8]) -> Result<T> {
    let reason = match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => return Ok(value),
        Ok((_, rest)) => format!("{} bytes too many", rest.len()),
        Err(error) => error.to_string(),
    };
    Err(Error::BadRecord {
        keyspace: keyspace.to_owned(),
        record: record.to_owned(),
        reason,
    })
}

/// The key of a log entry.
pub(crate) fn log_key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

/// The least key after that of a log entry.
pub(crate) fn log_key_after(index: u64) -> [u8; 9] {
    let mut key = [0; 9];
    key[..8].copy_from_slice(&log_key(index));
    key
}

/// The indexes in a range, as the first one and the one after the last; `None` if there is none.
pub(crate) fn first_and_end(range: &impl RangeBounds<u64>) -> Option<(u64, Option<u64>)> {
    let first = match range.start_bound() {
        Bound::Included(&first) => first,
        Bound::Excluded(&before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => None,
    };
    end.is_none_or(|end| first < end).then_some((first, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_log_are_in_the_order_of_the_indexes() {
        let indexes = [0, 1, 255, 256, 1 << 40, u64::MAX];
        for pair in indexes.windows(2) {
            assert!(log_key(pair[0]) < log_key(pair[1]));
            assert!(log_key_after(pair[0])[..] <= log_key(pair[1])[..]);
        }
        for index in indexes {
            assert!(log_key(index)[..] < log_key_after(index)[..]);
        }
    }

    #[test]
    fn a_range_has_a_first_index_and_an_end() {
        assert_eq!(first_and_end(&(3..7)), Some((3, Some(7))));
        assert_eq!(first_and_end(&(3..=7)), Some((3, Some(8))));
        assert_eq!(first_and_end(&(..)), Some((0, None)));
        assert_eq!(first_and_end(&(5..5)), None);
        assert_eq!(first_and_end(&(0..=u64::MAX)), Some((0, None)));
        let after_the_last = (Bound::Excluded(u64::MAX), Bound::Unbounded);
        assert_eq!(first_and_end(&after_the_last), None);
    }

    #[test]
    fn bytes_that_are_not_a_record_are_an_error() {
        let bytes = encode("x", &(7_u64, "seven")).unwrap();
        assert_eq!(
            decode::<(u64, String)>("meta", "x", &bytes).unwrap(),
            (7, "seven".to_owned())
        );
        for wrong in [&bytes[..3], &[&bytes[..], b"y"].concat()] {
            let error = decode::<(u64, String)>("meta", "x", wrong).unwrap_err();
            assert!(
                error.to_string().starts_with("keyspace \"meta\", x: "),
                "{error}"
            );
        }
    }
}
