//! The result of [`describe`](crate::describe): data for programs, and text for people.

use forerun_core::size::counted;
use std::fmt;
use std::path::PathBuf;

use crate::Result;
use crate::run::dump::PageDescription;

/// Bytes of a key to show.
const SHOWN_BYTES: usize = 40;

/// Files of a store. Displays as text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Description {
    /// The manifest; `None` if the store has no runs.
    Manifest(Option<ManifestDescription>),
    /// A run.
    Run(Box<RunDescription>),
    /// A page of a run.
    Page {
        /// The number of the run.
        run: u64,
        /// The number of the page in it.
        number: u32,
        /// The page.
        page: PageDescription,
    },
}

/// The manifest of a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ManifestDescription {
    /// The number of the next run.
    pub next_run: u64,
    /// The number of the first log segment that is still needed.
    pub first_segment: u64,
    /// Writes up to this sequence number are in runs.
    pub flushed_sequence: u64,
    /// The keyspaces, the store's own first.
    pub keyspaces: Vec<KeyspaceDescription>,
}

/// A keyspace in the manifest.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyspaceDescription {
    /// Its number.
    pub id: u32,
    /// Its name. The name of the store's own keyspace is empty.
    pub name: String,
    /// The name of its comparator.
    pub comparator: String,
    /// Its runs, by level.
    pub levels: Vec<Vec<RunSummary>>,
    /// Runs of range deletions.
    pub range_deletions: Vec<RunSummary>,
}

/// A run in the manifest.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunSummary {
    /// Its number.
    pub number: u64,
    /// The size of its file in bytes.
    pub bytes: u64,
    /// The description from its file, or the reason why the file cannot be read.
    pub run: Result<RunDescription>,
}

/// A run, as its file describes it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunDescription {
    /// Its number.
    pub number: u64,
    /// Its file.
    pub path: PathBuf,
    /// The size of the file in bytes.
    pub file_bytes: u64,
    /// The checksum of its contents.
    pub checksum: u64,
    /// The number of its keyspace.
    pub keyspace: u32,
    /// The name of its keyspace.
    pub keyspace_name: String,
    /// The name of its comparator.
    pub comparator: String,
    /// Versions in it.
    pub entries: u64,
    /// Deletions among them.
    pub deletions: u64,
    /// Whether each entry deletes a range, from its key up to its value.
    pub holds_range_deletions: bool,
    /// Bytes of keys and values before compression.
    pub raw_bytes: u64,
    /// How pages are compressed, judging by the root: `none`, `lz4` or `zstd`.
    pub compression: String,
    /// The size of its dictionary in bytes; 0 if it has none.
    pub dictionary_bytes: usize,
    /// The lowest sequence number in it.
    pub smallest_sequence: u64,
    /// The highest sequence number in it.
    pub largest_sequence: u64,
    /// Whether it comes from an ingestion; its pages then store 1 as the sequence number.
    pub is_ingested: bool,
    /// The first key.
    pub smallest_key: Vec<u8>,
    /// The last key.
    pub largest_key: Vec<u8>,
    /// When it was made, in seconds since 1970.
    pub created_unix: u64,
    /// Leaf pages.
    pub leaf_pages: u32,
    /// Pages above them.
    pub internal_pages: u32,
    /// The size of its filter in bytes.
    pub filter_bytes: usize,
    /// The size of its index in bytes; 0 if it has none.
    pub index_bytes: usize,
    /// Where the root page begins in the file.
    pub root_offset: u64,
    /// Bytes of the root page in the file.
    pub root_stored_bytes: u64,
    /// Bytes of the root page in memory.
    pub root_raw_bytes: u64,
}

impl RunDescription {
    /// The number of its pages. The last one is the root.
    pub fn pages(&self) -> u32 {
        self.leaf_pages + self.internal_pages
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Description::Manifest(None) => writeln!(f, "no manifest: the store has no runs"),
            Description::Manifest(Some(manifest)) => manifest.fmt(f),
            Description::Run(run) => run.fmt(f),
            Description::Page { run, number, page } => {
                write!(f, "page {number} of run {run}: {page}")
            }
        }
    }
}

impl fmt::Display for ManifestDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "next run       {}", self.next_run)?;
        writeln!(f, "first segment  {}", self.first_segment)?;
        writeln!(
            f,
            "in runs        up to sequence number {}",
            self.flushed_sequence
        )?;
        for keyspace in &self.keyspaces {
            writeln!(f, "keyspace {} {:?}", keyspace.id, keyspace.name)?;
            writeln!(f, "  comparator   {}", keyspace.comparator)?;
            for (level, runs) in keyspace.levels.iter().enumerate() {
                if runs.is_empty() {
                    continue;
                }
                let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
                writeln!(
                    f,
                    "  level {level}      {}, {bytes} bytes",
                    counted(runs.len(), "run")
                )?;
                runs.iter().try_for_each(|run| run.fmt(f))?;
            }
            if !keyspace.range_deletions.is_empty() {
                writeln!(f, "  deletions of ranges")?;
            }
            keyspace
                .range_deletions
                .iter()
                .try_for_each(|run| run.fmt(f))?;
        }
        Ok(())
    }
}

impl fmt::Display for RunSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "    run {:>6}  {:>12} bytes  ", self.number, self.bytes)?;
        match &self.run {
            Ok(run) => {
                let (from, to) = (QuotedKey(&run.smallest_key), QuotedKey(&run.largest_key));
                writeln!(
                    f,
                    "{:>9} versions  @{}..{}  {from} .. {to}",
                    run.entries, run.smallest_sequence, run.largest_sequence
                )
            }
            Err(error) => writeln!(f, "{error}"),
        }
    }
}

impl fmt::Display for RunDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "run            {}", self.number)?;
        writeln!(
            f,
            "file           {}, {} bytes",
            self.path.display(),
            self.file_bytes
        )?;
        writeln!(f, "checksum       {:016x}", self.checksum)?;
        writeln!(
            f,
            "keyspace       {} {:?}",
            self.keyspace, self.keyspace_name
        )?;
        writeln!(f, "comparator     {}", self.comparator)?;
        writeln!(
            f,
            "versions       {}, {} of them deletions{}",
            self.entries,
            self.deletions,
            if self.holds_range_deletions {
                "; each deletes a range, from its key up to its value"
            } else {
                ""
            }
        )?;
        writeln!(f, "raw bytes      {}", self.raw_bytes)?;
        writeln!(f, "compression    {}", self.compression)?;
        writeln!(f, "dictionary     {} bytes", self.dictionary_bytes)?;
        writeln!(
            f,
            "sequence       {}..{}{}",
            self.smallest_sequence,
            self.largest_sequence,
            if self.is_ingested {
                ", from an ingestion: the pages store 1"
            } else {
                ""
            }
        )?;
        writeln!(
            f,
            "keys           {} .. {}",
            QuotedKey(&self.smallest_key),
            QuotedKey(&self.largest_key)
        )?;
        writeln!(
            f,
            "created        {} (seconds since 1970)",
            self.created_unix
        )?;
        writeln!(
            f,
            "pages          {} leaves, {} above them",
            self.leaf_pages, self.internal_pages
        )?;
        writeln!(f, "filter         {} bytes", self.filter_bytes)?;
        writeln!(f, "index          {} bytes", self.index_bytes)?;
        writeln!(
            f,
            "root           page {} at {}, {} bytes, {} in memory",
            self.pages() - 1,
            self.root_offset,
            self.root_stored_bytes,
            self.root_raw_bytes
        )
    }
}

/// A quoted key: unprintable bytes are escaped and long keys truncated.
struct QuotedKey<'a>(&'a [u8]);

impl std::fmt::Display for QuotedKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cut = &self.0[..self.0.len().min(SHOWN_BYTES)];
        let dots = if cut.len() < self.0.len() { "..." } else { "" };
        write!(f, "\"{}{dots}\"", cut.escape_ascii())
    }
}
