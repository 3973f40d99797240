//! Ranges of keys that a scan covers.

use std::ops::Bound as End;

use pyo3::prelude::*;

use crate::errors::invalid;

/// The keys of a scan.
pub(crate) type Range = (End<Vec<u8>>, End<Vec<u8>>);

/// The keys from `start` to `end`, or those that begin with `prefix`.
pub(crate) fn range_of(
    start: Option<Vec<u8>>,
    end: Option<Vec<u8>>,
    prefix: Option<Vec<u8>>,
) -> PyResult<Range> {
    match (start, end, prefix) {
        (start, end, None) => Ok((
            start.map_or(End::Unbounded, End::Included),
            end.map_or(End::Unbounded, End::Excluded),
        )),
        (None, None, Some(prefix)) => {
            let end = behind(&prefix).map_or(End::Unbounded, End::Excluded);
            Ok((End::Included(prefix), end))
        }
        _ => Err(invalid(
            "a range has either a `prefix`, or a `start` and an `end`",
        )),
    }
}

/// The lowest key above all keys that begin with `prefix`, if there is one.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
