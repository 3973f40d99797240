//! The choices on the command line: studies, and forms of buckets.

use forerun_gpu::table::{Candidates, Width};
use std::fmt;
use std::str::FromStr;

/// A study: the parameter that it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Study {
    /// The published record's setting at each load, with lookups by every kernel.
    Seed,
    /// The operation.
    Operations,
    /// Candidates and width of the buckets.
    Buckets,
    /// The row size.
    Dim,
    /// The share of present keys.
    HitRate,
    /// Keys per call.
    Batch,
    /// How requests spread over the keys.
    Skew,
    /// Keys per bag of a pooled lookup.
    Bags,
}

impl Study {
    /// All studies, in the order in which they run.
    pub const ALL: [Study; 8] = [
        Study::Seed,
        Study::Operations,
        Study::Buckets,
        Study::Dim,
        Study::HitRate,
        Study::Batch,
        Study::Skew,
        Study::Bags,
    ];

    /// Its name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Study::Seed => "seed",
            Study::Operations => "operations",
            Study::Buckets => "buckets",
            Study::Dim => "dim",
            Study::HitRate => "hit-rate",
            Study::Batch => "batch",
            Study::Skew => "skew",
            Study::Bags => "bags",
        }
    }
}

/// How many buckets a key may be in, and how wide they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// One or two.
    pub candidates: Candidates,
    /// Slots of each.
    pub width: Width,
}

impl Buckets {
    /// The table's default: one of 128.
    pub const DEFAULT: Buckets = Buckets {
        candidates: Candidates::One,
        width: Width::W128,
    };
}

impl fmt::Display for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let candidates = match self.candidates {
            Candidates::One => 1,
            Candidates::Two => 2,
        };
        f.pad(&format!("{candidates}x{}", self.width.slots()))
    }
}

impl FromStr for Buckets {
    type Err = String;

    fn from_str(text: &str) -> Result<Buckets, String> {
        let parse = || {
            let (candidates, slots) = text.trim().split_once('x')?;
            Some(Buckets {
                candidates: match candidates {
                    "1" => Candidates::One,
                    "2" => Candidates::Two,
                    _ => return None,
                },
                width: Width::ALL
                    .into_iter()
                    .find(|width| width.slots().to_string() == slots)?,
            })
        };
        parse().ok_or_else(|| {
            format!(
                "{text:?} is not a form of buckets: write 2x128, 1x64, or another of 1 or 2 of \
                16, 32, 64 or 128"
            )
        })
    }
}
