//! One result of `forerun-bench seeds`: a line of JSON with these names.

use serde::{Deserialize, Serialize};

/// A row of a seed's table, with ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeedRow {
    /// `seeds`.
    pub bench: String,
    /// The seed's number, as `004`.
    pub seed: String,
    /// The document.
    pub source: String,
    /// The table's title.
    pub table: String,
    /// The row's name.
    pub row: String,
    /// The unit of the figures that have none of their own.
    pub unit: String,
    /// The machine and the setting of the document.
    pub conditions: String,
    /// The document's figures.
    pub theirs: Vec<TheirFigure>,
    /// Our figures.
    pub ours: Vec<OurFigure>,
    /// Why a figure is missing, or what a committed one was measured with.
    pub note: String,
    /// What follows, in two sentences.
    pub follows: String,
}

/// A figure of a document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TheirFigure {
    /// Its column.
    pub column: String,
    /// The figure; null if the document gives none.
    pub value: Option<f64>,
}

/// A figure of ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OurFigure {
    /// Its column.
    pub column: String,
    /// The figure; null if neither this machine nor a committed result has one.
    pub value: Option<f64>,
    /// The command that measured it here; null for a committed one.
    pub command: Option<String>,
    /// The committed file that it is from, from the root of the repository.
    pub file: Option<String>,
    /// The machine that measured the committed one.
    pub device: Option<String>,
}
