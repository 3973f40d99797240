//! What a seed's tables are made of, and where each of our figures is found.
//!
//! ```text
//!   Document ─ Measurement   a command of this program, run once
//!            └ Table ─ Column    ours: fields of a measured row, or of a committed one
//!                    └ TableRow  theirs: figures; and more fields
//!
//!   a cell = the row with the fields of its column and its row ─> the value of one more field
//! ```

use super::committed::CommittedResults;
use crate::bench_rows::Measurement;
use crate::bench_rows::figures::Fields;
use forerun_measure::size::{digits, short};

/// One of the five documents in which Forerun's methods began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Seed {
    /// HierarchicalKV's pull request 251: finding pointers in full GPU tables
    #[value(name = "000")]
    FindPtr,
    /// Fast H2D: rows gathered from pinned host memory
    #[value(name = "001")]
    CopyOperator,
    /// WiredTiger's change WT-16838: prefetching in the search of a page's rows
    #[value(name = "002")]
    RowSearch,
    /// SimdHT-Bench: vector instructions in hash tables
    #[value(name = "003")]
    SimdHash,
    /// RocksDB's pull request 14428: batched lookups in a memtable by finger search
    #[value(name = "004")]
    FingerSearch,
}

impl Seed {
    /// All of them.
    pub const ALL: [Seed; 5] = [
        Seed::FindPtr,
        Seed::CopyOperator,
        Seed::RowSearch,
        Seed::SimdHash,
        Seed::FingerSearch,
    ];

    /// Its number.
    pub fn number(self) -> &'static str {
        match self {
            Seed::FindPtr => "000",
            Seed::CopyOperator => "001",
            Seed::RowSearch => "002",
            Seed::SimdHash => "003",
            Seed::FingerSearch => "004",
        }
    }
}

/// The extent of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Tiny sizes.
    pub(super) quick: bool,
    /// Cores of this machine.
    pub(super) cores: usize,
    /// Whether RocksDB is measured along.
    pub(super) with_peers: bool,
}

impl Scale {
    /// The numbers of threads of seed 004 that this machine has cores for.
    pub(super) fn threads(&self) -> String {
        let all = [1, 2, 4, 8].into_iter();
        let fit = all.filter(|threads| *threads == 1 || *threads <= self.cores);
        fit.map(|threads| threads.to_string())
            .collect::<Vec<_>>()
            .join(",")
    }

    /// One of two texts: of the whole run, or of a quick one.
    pub(super) fn either<T>(&self, whole: T, quick: T) -> T {
        if self.quick { quick } else { whole }
    }
}

/// A seed's tables, and what fills our columns.
pub(super) struct Document {
    pub(super) seed: Seed,
    /// The document, in words.
    pub(super) source: &'static str,
    pub(super) measurements: Vec<Measurement>,
    pub(super) tables: Vec<Table>,
    /// The rows that stand for the document on a page of many.
    pub(super) headlines: Vec<Headline>,
}

/// A figure of theirs and one of ours.
pub(super) struct Headline {
    /// The title of the table, and the name of its row.
    pub(super) table: &'static str,
    pub(super) row: &'static str,
    /// The columns; the source may have none.
    pub(super) theirs: &'static str,
    pub(super) ours: &'static str,
}

/// Which figures of a row are the better ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

/// A table of a document, or one of ours that continues it.
pub(super) struct Table {
    pub(super) title: &'static str,
    /// The source's machine and setting.
    pub(super) conditions: &'static str,
    /// The unit of the plotted columns.
    pub(super) unit: &'static str,
    /// The format of the columns that are plotted.
    pub(super) plotted: Format,
    /// Which of them are better.
    pub(super) better: Better,
    /// The columns of the source.
    pub(super) theirs: Vec<(&'static str, Format)>,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<TableRow>,
    /// What a machine lacks on which some column is not measured.
    pub(super) lacks: &'static str,
    /// What follows from the rows.
    pub(super) follows: &'static str,
}

/// One of our columns.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) format: Format,
    /// The field with the figure, and what it is multiplied by.
    pub(super) value: &'static str,
    pub(super) scale: f64,
    /// Whether the figure is of another kind than the table's, such as a latency among rates.
    pub(super) is_apart: bool,
    /// The measurement of this machine, and the fields of its rows.
    pub(super) here: Option<(&'static str, Fields)>,
    /// Where the figure is if this machine has none.
    pub(super) committed: Option<(CommittedResults, Fields)>,
}

impl Column {
    /// A column of a measurement.
    pub(super) fn here(name: &'static str, measurement: &'static str, fields: Fields) -> Column {
        Column {
            here: Some((measurement, fields)),
            ..Column::empty(name)
        }
    }

    /// A column of committed results only.
    pub(super) fn committed(name: &'static str, file: CommittedResults, fields: Fields) -> Column {
        Column::empty(name).or(file, fields)
    }

    fn empty(name: &'static str) -> Column {
        Column {
            name,
            format: Format::Rate,
            value: "keys_per_second",
            scale: 1.0,
            is_apart: false,
            here: None,
            committed: None,
        }
    }

    /// Falls back to committed results.
    pub(super) fn or(self, file: CommittedResults, fields: Fields) -> Column {
        Column {
            committed: Some((file, fields)),
            ..self
        }
    }

    /// Takes another field.
    pub(super) fn of(self, value: &'static str, format: Format) -> Column {
        Column {
            value,
            format,
            ..self
        }
    }

    pub(super) fn times(self, scale: f64) -> Column {
        Column { scale, ..self }
    }

    pub(super) fn apart(self) -> Column {
        Column {
            is_apart: true,
            ..self
        }
    }
}

/// A row of a table.
pub(super) struct TableRow {
    pub(super) name: String,
    /// The source's figures, in the order of its columns; NaN where it gives none.
    pub(super) theirs: Vec<f64>,
    /// What our rows have besides the fields of the columns.
    pub(super) fields: Fields,
    /// The field with the figure, if not the column's.
    pub(super) value: Option<&'static str>,
    /// The measurement that has it, if not the column's.
    pub(super) measurement: Option<&'static str>,
    /// Which figures are better, if not those that are for the table.
    pub(super) better: Option<Better>,
    /// The cores that it needs.
    pub(super) cores: usize,
    /// A remark.
    pub(super) note: &'static str,
}

impl TableRow {
    pub(super) fn new(name: impl Into<String>, theirs: &[f64], fields: Fields) -> TableRow {
        TableRow {
            name: name.into(),
            theirs: theirs.to_vec(),
            fields,
            value: None,
            measurement: None,
            better: None,
            cores: 1,
            note: "",
        }
    }

    /// Takes another field than the columns do.
    pub(super) fn of(self, value: &'static str) -> TableRow {
        TableRow {
            value: Some(value),
            ..self
        }
    }

    /// Takes another measurement than the columns do.
    pub(super) fn in_measurement(self, name: &'static str) -> TableRow {
        TableRow {
            measurement: Some(name),
            ..self
        }
    }

    /// Higher figures are better, whatever they are in the table.
    pub(super) fn higher(self) -> TableRow {
        TableRow {
            better: Some(Better::Higher),
            ..self
        }
    }

    pub(super) fn on_cores(self, cores: usize) -> TableRow {
        TableRow { cores, ..self }
    }

    pub(super) fn note(self, note: &'static str) -> TableRow {
        TableRow { note, ..self }
    }
}

/// How a figure is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `2.41 M`.
    Rate,
    /// `44.5`.
    Digits,
    /// `1.45x`.
    Times,
    /// A share, as `88%`.
    Percent,
    /// A ratio less 1, as `+3.6%`.
    Change,
}

impl Format {
    pub(super) fn write(self, value: f64) -> String {
        match self {
            Format::Rate => short(value),
            Format::Digits => digits(value),
            Format::Times => format!("{}x", digits(value)),
            Format::Percent => format!("{}%", digits(100.0 * value)),
            Format::Change => format!("{:+.1}%", 100.0 * value),
        }
    }
}
