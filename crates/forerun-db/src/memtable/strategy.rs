//! How a batch of lookups is run.

/// How many strategies only tests and measurements have.
const STUDY: usize = if cfg!(any(test, feature = "study")) {
    2
} else {
    0
};

/// How `multi_get` runs a batch of lookups in memtables. All strategies give the same answers. The
/// default, [`Auto`](Self::Auto), suits every program; the others are for measurements.
///
/// ```
/// use forerun_db::{Db, Options, Strategy, Values};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// db.put("paris", "48.85,2.35")?;
/// let (mut fast, mut plain) = (Values::new(), Values::new());
/// db.multi_get(&["paris", "oslo"], &mut fast)?;
/// db.multi_get_with(&["paris", "oslo"], Strategy::Single, &mut plain)?;
/// assert_eq!(fast.to_vec()?, plain.to_vec()?);
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// Through the hash index, in stages that run over the batch: hash, tags, entry. Where a table
    /// has no hash index, like `Auto`.
    Index,
    /// One ordered search after the other: the baseline of measurements.
    Single,
    /// Sorts the batch, and starts each search from the path of the one before it (RocksDB pull
    /// request 14428).
    Finger,
    /// Sorts the batch and splits it level by level, breadth first: each node is visited once per
    /// batch and prefetched one round ahead (the reviewer's idea in the same pull request).
    #[cfg(any(test, feature = "study"))]
    Partition,
    /// Interleaves the searches as coroutines, in the given order.
    Interleaved,
    /// Interleaves the searches as coroutines, in key order, so that neighbours share the lines
    /// that they fetch.
    #[cfg(any(test, feature = "study"))]
    InterleavedSorted,
    /// Through the hash index. Where a table has none, with the fastest of `Single`, `Interleaved`
    /// and, for 128 keys and more, `Finger`. It times a few batches now and then to find out which
    /// one that is, for each table and size of batch.
    #[default]
    Auto,
}

impl Strategy {
    /// Every strategy, for tests and measurements.
    pub const ALL: [Strategy; 5 + STUDY] = [
        Strategy::Index,
        Strategy::Single,
        Strategy::Finger,
        #[cfg(any(test, feature = "study"))]
        Strategy::Partition,
        Strategy::Interleaved,
        #[cfg(any(test, feature = "study"))]
        Strategy::InterleavedSorted,
        Strategy::Auto,
    ];

    /// The strategy's name, as [`FromStr`](std::str::FromStr) reads it.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Index => "index",
            Strategy::Single => "single",
            Strategy::Finger => "finger",
            #[cfg(any(test, feature = "study"))]
            Strategy::Partition => "partition",
            Strategy::Interleaved => "interleaved",
            #[cfg(any(test, feature = "study"))]
            Strategy::InterleavedSorted => "interleaved-sorted",
            Strategy::Auto => "auto",
        }
    }
}

forerun_core::names! {
    Strategy, "strategy";
    /// A name that does not belong to any strategy.
    UnknownStrategy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_an_unknown_one_lists_the_known() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
        }
        let error = "fast".parse::<Strategy>().unwrap_err().to_string();
        assert!(
            error.contains("\"fast\"") && error.contains("interleaved-sorted"),
            "{error}"
        );
    }
}
