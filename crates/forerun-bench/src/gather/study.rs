//! What the command line chooses from: studies, orders of the indices, numbers of multiprocessors.

use std::fmt;

/// A study: the parameter that it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Study {
    /// Nothing: the published record's setting, every version of the kernel.
    Seed,
    /// The indices: unique, repeated, sorted.
    Indices,
    /// The row size.
    RowBytes,
    /// The direction.
    Direction,
    /// Where the host's rows begin.
    Offset,
    /// How many multiprocessors the copy may use.
    Multiprocessors,
    /// A concurrent matrix product: how much slower it gets.
    Beside,
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
        Study::Beside,
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
            Study::Beside => "beside",
        }
    }

    /// Whether it is meaningless without a GPU.
    pub(super) fn is_of_the_gpu(self) -> bool {
        matches!(self, Study::Multiprocessors | Study::Beside)
    }
}

/// The order of the host rows in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Each at most once, at random.
    Unique,
    /// Drawn with replacement, so some occur several times, as in the published record.
    Repeated,
    /// Each at most once, ascending.
    Sorted,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Order::Unique => "unique",
            Order::Repeated => "repeated",
            Order::Sorted => "sorted",
        })
    }
}

/// A number of multiprocessors, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// This many.
    At(u32),
    /// All.
    All,
}

impl Cap {
    /// As a number for the kernel's choice: one larger than any device's stands for all.
    pub(super) fn number(self) -> u32 {
        match self {
            Cap::At(number) => number,
            Cap::All => u32::MAX,
        }
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cap::At(number) => f.pad(&number.to_string()),
            Cap::All => f.pad("all"),
        }
    }
}

impl std::str::FromStr for Cap {
    type Err = String;

    fn from_str(text: &str) -> Result<Cap, String> {
        match text.parse() {
            Ok(number) if number > 0 => Ok(Cap::At(number)),
            _ if text == "all" => Ok(Cap::All),
            _ => Err(format!(
                "{text:?} is not a number of multiprocessors: write 8, or all"
            )),
        }
    }
}
