//! Runs: immutable sorted files of versions, each a B-tree of pages.
//!
//! ```text
//!   file    │ header │ (dictionary) │ leaf 0 │ leaf 1 │ … │ internal │ leaf … │ … │ root │ filter │ index │ meta │ footer │
//!
//!   lookup  index ─> record in a resident leaf
//!           filter ─ may be here ─> root ─> internal ─> leaf: first version not before (key, sequence)
//!
//!   page.rs            a page, byte by byte; page_builder.rs builds it, page_check.rs validates it
//!   page_search/       finds a key in a page
//!   filter.rs          rules out keys that cannot be in the run
//!   record_index.rs    finds a key's record by the key's hash; key_places.rs gathers what it is built from
//!   stored.rs          a page in the file: codec, checksum
//!   compression.rs     the choice of a compression; codec.rs compresses and decompresses,
//!                      held_leaves.rs trains a dictionary
//!   meta.rs            metadata, header, footer
//!   writer.rs          writes versions to a file; run_output.rs buffers, pending.rs numbers versions last
//!   reader.rs          opens a file as a run; ends.rs reads both its ends, line_aligned.rs is memory
//!   index_and_filter.rs  loads the index or else the filter
//!   obsolete_files.rs  removes files of obsolete runs, at a pace
//!   leaf_head.rs       the prefix of a leaf in memory, beside its slot
//!   leaf_places.rs     where verified leaves are in the file
//!   lookup.rs          finds a key in runs; indexed_record.rs reads a record that an index has found,
//!                      stored_record.rs one in a leaf that is not in memory;
//!                      plain_lookup.rs does neither interleaved nor with an index, for comparison
//!   cursor/            all versions of a run, in order; level_cursor.rs: of a level
//!   interleaved_seek.rs seeks of several cursors that overlap
//!   loaded_page.rs     the pages that a cursor is at
//!   dump.rs            prints a page
//! ```
//!
//! `docs/internals/format-runs.md` defines the bytes.

mod anchors;
mod codec;
mod compression;
#[cfg(test)]
mod compression_tests;
pub(crate) mod cursor;
pub(crate) mod dump;
mod ends;
#[cfg(test)]
mod file_tests;
mod filter;
#[cfg(test)]
mod format_tests;
mod held_leaves;
mod index_and_filter;
pub(crate) mod indexed_record;
pub(crate) mod interleaved_seek;
mod key_places;
mod leaf_head;
mod leaf_places;
pub(crate) mod level_cursor;
mod line_aligned;
mod loaded_page;
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
#[cfg(any(test, feature = "study"))]
pub(crate) mod plain_lookup;
mod reader;
mod record_index;
mod run_output;
mod stored;
pub(crate) mod stored_record;
// Hidden: for the fuzz targets.
#[doc(hidden)]
pub mod testing;
mod writer;

pub(crate) use codec::Codec;
pub use compression::{Compression, ZstdOptions};
pub(crate) use filter::Filter;
pub(crate) use index_and_filter::Probe;
#[cfg(test)]
pub(crate) use meta::header_of;
pub(crate) use meta::{Contents, RunMeta};
pub(crate) use obsolete_files::{DELETE_RATE_BYTES, ObsoleteFiles};
pub(crate) use page::{Page, PageKind};
#[cfg(any(test, feature = "study"))]
pub use page_search::PageSearch;
pub(crate) use pending::{INGESTED_SEQUENCE, PendingRun};
pub(crate) use reader::Run;
pub(crate) use record_index::{RecordAddress, RecordIndex};
pub(crate) use stored::PageLocation;
#[cfg(test)]
pub(crate) use stored::{TRAILER_BYTES, checksum};
pub(crate) use writer::RunWriter;

use std::path::{Path, PathBuf};

use crate::Result;

/// How the pages of a run are written.
///
/// ```
/// use forerun_db::{Compression, Options, RunOptions};
///
/// let run = RunOptions::default().page_bytes(4 << 10).compression(Compression::None);
/// let options = Options::default().run(run);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct RunOptions {
    /// Maximum size of a page in bytes, from 4 KiB to 64 KiB. Other values are clamped.
    /// Only a page with one row, or an internal page with two, may be larger. The cache has frames
    /// of the store's page size: pages of 4 KiB of a keyspace in a store of 16 KiB use a quarter of
    /// each. Default: 16 KiB.
    pub page_bytes: usize,
    /// Compression of pages, unless
    /// [`TreeOptions::compression_per_level`](crate::TreeOptions::compression_per_level) has
    /// another for the level. Default: [`Compression::Lz4`].
    pub compression: Compression,
    /// Filter bits for each key, at most 64; 0 means no filter. With the default of 10, the filter
    /// passes one missing key in 100.
    pub filter_bits_per_key: u32,
    /// Whether runs have an index from a key's hash to its record, with which a lookup of one key
    /// searches no pages. It takes 57 bits for each key in the file, and as many in memory, where
    /// [`Options::cache_bytes`](crate::Options::cache_bytes) limits it. Without it, files are
    /// smaller. Default: true.
    pub index: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            page_bytes: 16 << 10,
            compression: Compression::default(),
            filter_bits_per_key: 10,
            index: true,
        }
    }
}

forerun_core::setters! {
    RunOptions {
        page_bytes: usize,
        compression: Compression,
        filter_bits_per_key: u32,
        index: bool,
    }
}

impl RunOptions {
    /// The lowest limit for a page.
    pub const PAGE_BYTES_MIN: usize = 4 << 10;
    /// The highest limit for a page.
    pub const PAGE_BYTES_MAX: usize = 64 << 10;

    /// Refuses a compression that does not exist.
    pub(crate) fn check(&self) -> Result<()> {
        self.compression
            .check("compression", self.page_limit_bytes())
    }

    /// The page limit, clamped to its bounds.
    pub(crate) fn page_limit_bytes(&self) -> usize {
        self.page_bytes
            .clamp(Self::PAGE_BYTES_MIN, Self::PAGE_BYTES_MAX)
    }
}

/// A lookup's target: the newest version of a key that is not newer than a sequence number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchKey<'k> {
    /// The user key.
    pub(crate) key: &'k [u8],
    /// The newest visible sequence number.
    pub(crate) sequence: u64,
    /// The key's hash, for the filters of all runs.
    pub(crate) hash: u64,
    /// Versions up to this sequence number have expired.
    pub(crate) expired_sequence: u64,
}

impl<'k> SearchKey<'k> {
    /// The empty key at sequence number 0, to initialize arrays.
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

/// The number in a run's file name; `None` for any other file.
pub(crate) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("run-")?.strip_suffix(".run")?;
    let number = digits.parse().ok()?;
    // Accept only the form that `path` writes: no sign, no missing or extra zeros.
    (number > 0 && format!("{number:06}") == digits).then_some(number)
}
