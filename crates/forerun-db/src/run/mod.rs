//! Runs: immutable sorted files of versions, each a B-tree of pages.
//!
//! ```text
//!   file    │ header │ leaf 0 │ leaf 1 │ … │ internal │ leaf … │ … │ root │ filter │ meta │ footer │
//!
//!   lookup  filter ─ may be here ─> root ─> internal ─> leaf: first version not before (key, sequence)
//!
//!   page.rs          a page, byte by byte            page_builder.rs, page_check.rs: made, validated
//!   search.rs        where a key is in a page        search/compare.rs, page_search.rs
//!   filter.rs        which keys cannot be in the run
//!   stored.rs        a page as it lies in the file: checksum, compression
//!   meta.rs          what a run says of itself; header, footer
//!   writer.rs        versions in order -> a file       out.rs: its end; pending.rs: numbered when it is written
//!   reader.rs        a file -> an open run
//!   dump.rs          a page, for people
//!   lookup.rs        keys, one or many, in the runs that may hold them
//!   cursor.rs        all versions of a run, in order      level_cursor.rs: of a level
//! ```
//!
//! `docs/internals/format.md` defines the bytes.

pub(crate) mod cursor;
pub(crate) mod dump;
#[cfg(test)]
mod file_tests;
mod filter;
#[doc(hidden)]
pub mod fuzz;
pub(crate) mod level_cursor;
pub(crate) mod lookup;
mod meta;
mod obsolete_files;
mod page;
mod page_builder;
mod page_check;
mod page_search;
#[cfg(test)]
mod page_tests;
mod pending;
mod reader;
mod run_output;

mod stored;
#[cfg(test)]
pub(crate) mod testing;
mod writer;

pub(crate) use filter::Filter;
pub(crate) use meta::{Holds, RunMeta};
pub(crate) use obsolete_files::ObsoleteFiles;
pub(crate) use page::{Page, PageKind};
pub use page_search::{PageSearch, UnknownPageSearch};
pub(crate) use pending::{INGESTED_SEQUENCE, PendingRun};
pub(crate) use reader::Run;
pub(crate) use stored::{PageLocation, unstore};
pub(crate) use writer::RunWriter;

use std::path::{Path, PathBuf};

/// How the pages of a run are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// The most bytes of a page, from 4 KiB to 64 KiB; what is below or above counts as that. Only a page of one row
    /// may be larger, and an internal page of two. Default: 16 KiB.
    pub page_bytes: usize,
    /// How pages are compressed. Default: [`Compression::Lz4`].
    pub compression: Compression,
    /// Bits a key of the filter, at most 64; 0 for none. At the default of 10, one missing key in 100 is looked for in vain.
    pub filter_bits_per_key: u32,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            page_bytes: 16 << 10,
            compression: Compression::default(),
            filter_bits_per_key: 10,
        }
    }
}

impl RunOptions {
    /// The smallest limit of a page.
    pub const MIN_PAGE_BYTES: usize = 4 << 10;
    /// The largest one.
    pub const MAX_PAGE_BYTES: usize = 64 << 10;

    /// The limit of a page, brought into its bounds.
    pub(crate) fn page_limit_bytes(&self) -> usize {
        self.page_bytes
            .clamp(Self::MIN_PAGE_BYTES, Self::MAX_PAGE_BYTES)
    }
}

/// How the pages of a run are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// They are not.
    None,
    /// By LZ4, each page that gets an eighth smaller by it.
    #[default]
    Lz4,
}

/// What is looked up: the newest version of a key that is not newer than a sequence number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchKey<'k> {
    /// The user key.
    pub(crate) key: &'k [u8],
    /// The newest sequence number that is seen.
    pub(crate) sequence: u64,
    /// The key's hash, for the filters of all runs.
    pub(crate) hash: u64,
    /// Versions up to this sequence number have expired.
    pub(crate) expired_sequence: u64,
}

impl<'k> SearchKey<'k> {
    /// The empty key, as of nothing: to fill an array with.
    pub(crate) const NONE: SearchKey<'static> = SearchKey {
        key: &[],
        sequence: 0,
        hash: 0,
        expired_sequence: 0,
    };

    /// Hashes the key.
    #[inline]
    pub(crate) fn new(key: &'k [u8], sequence: u64) -> Self {
        let hash = filter::hash(key);
        SearchKey {
            key,
            sequence,
            hash,
            expired_sequence: 0,
        }
    }
}

/// The path of a run's file.
pub(crate) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("run-{number:06}.run"))
}

/// The number in a run's name; `None` if it is another file's.
pub(crate) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("run-")?.strip_suffix(".run")?;
    let number = digits.parse().ok()?;
    // Only the form that `path` gives: no sign, no missing or extra zeros.
    (number > 0 && format!("{number:06}") == digits).then_some(number)
}
