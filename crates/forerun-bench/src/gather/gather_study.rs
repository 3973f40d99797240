//! The choices on the command line: studies, orders of the indices, numbers of multiprocessors.

use std::fmt;

/// A study: the parameter that it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Study {
    /// The published record's setting, with every version of the kernel.
    Seed,
    /// The order of the indices: unique, repeated, sorted.
    Indices,
    /// The row size.
    RowBytes,
    /// The direction.
    Direction,
    /// Where the host's rows begin.
    Offset,
    /// How many multiprocessors the copy may use.
    Multiprocessors,
    /// The slowdown of a concurrent matrix product.
    MatrixProduct,
}

impl Study {
    /// All studies, in the order in which they run.
    pub const ALL: [Study; 7] = [
        Study::Seed,
        Study::Indices,
        Study::RowBytes,
        Study::Direction,
        Study::Offset,
        Study::Multiprocessors,
        Study::MatrixProduct,
    ];

    /// Its name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Study::Seed => "seed",
            Study::Indices => "indices",
            Study::RowBytes => "row-bytes",
            Study::Direction => "direction",
            Study::Offset => "offset",
            Study::Multiprocessors => "multiprocessors",
            Study::MatrixProduct => "matrix-product",
        }
    }

    /// Whether the study needs a GPU.
    pub(super) fn is_of_the_gpu(self) -> bool {
        matches!(self, Study::Multiprocessors | Study::MatrixProduct)
    }
}

/// The order of the host rows in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IndexOrder {
    /// Each at most once, at random.
    Unique,
    /// Drawn with replacement, so some rows occur several times, as in the published record.
    Repeated,
    /// Each at most once, ascending.
    Sorted,
}

impl fmt::Display for IndexOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            IndexOrder::Unique => "unique",
            IndexOrder::Repeated => "repeated",
            IndexOrder::Sorted => "sorted",
        })
    }
}

/// A number of multiprocessors, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiprocessorLimit {
    /// At most this many multiprocessors.
    At(u32),
    /// All multiprocessors.
    All,
}

impl MultiprocessorLimit {
    /// The limit as a number for `KernelChoice`. The largest number means all multiprocessors.
    pub(super) fn number(self) -> u32 {
        match self {
            MultiprocessorLimit::At(number) => number,
            MultiprocessorLimit::All => u32::MAX,
        }
    }
}

impl fmt::Display for MultiprocessorLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MultiprocessorLimit::At(number) => f.pad(&number.to_string()),
            MultiprocessorLimit::All => f.pad("all"),
        }
    }
}

impl std::str::FromStr for MultiprocessorLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<MultiprocessorLimit, String> {
        match text.parse() {
            Ok(number) if number > 0 => Ok(MultiprocessorLimit::At(number)),
            _ if text == "all" => Ok(MultiprocessorLimit::All),
            _ => Err(format!(
                "{text:?} is not a number of multiprocessors: write 8, or all"
            )),
        }
    }
}
