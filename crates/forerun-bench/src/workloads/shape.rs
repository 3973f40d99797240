//! The shapes of work.

use crate::engine::Feature;

/// A shape of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// One keyspace takes most writes, in batches; the others take a few; all are read
    #[value(alias = "a")]
    HotKeyspace,
    /// Sorted rows are ingested beside puts and reads
    #[value(alias = "b")]
    NightlyLoad,
    /// Entries are pushed at one end and popped at the other
    #[value(alias = "c")]
    Queue,
    /// Ranges are deleted out of live data, which is then read
    #[value(alias = "d")]
    RangeDeletes,
    /// Rows are appended, expire, and are read at both ends
    #[value(alias = "e")]
    TimeSeries,
    /// Random rows are overwritten as fast as possible
    #[value(alias = "f")]
    Overwrite,
}

impl Shape {
    /// All of them, in their order.
    pub const ALL: [Shape; 6] = [
        Shape::HotKeyspace,
        Shape::NightlyLoad,
        Shape::Queue,
        Shape::RangeDeletes,
        Shape::TimeSeries,
        Shape::Overwrite,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Shape::HotKeyspace => "hot-keyspace",
            Shape::NightlyLoad => "nightly-load",
            Shape::Queue => "queue",
            Shape::RangeDeletes => "range-deletes",
            Shape::TimeSeries => "time-series",
            Shape::Overwrite => "overwrite",
        }
    }

    /// What a store must be able to do.
    pub(super) fn needs(self) -> &'static [Feature] {
        match self {
            Shape::HotKeyspace | Shape::Queue | Shape::Overwrite => &[Feature::Keyspaces],
            Shape::NightlyLoad => &[Feature::Keyspaces, Feature::Ingestion],
            Shape::RangeDeletes => &[Feature::Keyspaces, Feature::RangeDeletes],
            Shape::TimeSeries => &[Feature::Keyspaces, Feature::Ttl],
        }
    }

    /// The rows that it loads into a keyspace, or ingests, by default; `None` if they are not to be
    /// chosen.
    pub(super) fn default_rows(self) -> Option<u64> {
        match self {
            Shape::HotKeyspace => Some(400_000),
            Shape::NightlyLoad | Shape::Overwrite => Some(10_000_000),
            Shape::Queue => Some(10_000),
            Shape::RangeDeletes | Shape::TimeSeries => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn shapes_have_the_names_and_letters_by_which_they_are_chosen() {
        assert_eq!(Shape::value_variants(), Shape::ALL);
        for (shape, letter) in Shape::ALL.iter().zip(["a", "b", "c", "d", "e", "f"]) {
            let value = shape.to_possible_value().unwrap();
            assert_eq!(value.get_name(), shape.name());
            assert!(value.matches(letter, false));
        }
    }
}
