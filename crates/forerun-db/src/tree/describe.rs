//! Describes a store's files for people: the runs it has, a run's metadata, a page's content.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use crate::io::{Io, OsIo};
use crate::run::{self, Holds, Page, PageKind, PageLocation, Run};
use crate::tree::manifest::{Manifest, RunRecord};
use crate::tree::offline::Place;
use crate::{Access, Error, Options, Result};

/// Bytes of a key to show.
const SHOWN_BYTES: usize = 40;

/// What [`describe`] shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescribeOptions {
    /// Show the run with this number instead of the manifest.
    pub run: Option<u64>,
    /// Show the page with this number in the run instead of the run's metadata. Leaves come first,
    /// numbered from 0 in key order, then the levels above them; the last page is the root.
    pub page: Option<u32>,
    /// Maximum number of rows of the page to show.
    pub rows: usize,
}

/// Describes, as text, the files of a store that nobody has open: the manifest with its runs, one
/// run, or one page of a run.
///
/// # Errors
/// [`Error::NotAStore`], [`Error::Locked`], [`Error::NewerFormat`], [`Error::ComparatorMismatch`],
/// [`Error::KeyspaceComparator`], [`Error::Io`]; [`Error::CorruptFile`], also for a run or a page
/// that does not exist.
pub fn describe(
    path: impl AsRef<Path>,
    options: &Options,
    what: DescribeOptions,
) -> Result<String> {
    let path = path.as_ref();
    let io: Arc<dyn Io> = Arc::new(OsIo);
    let place = Place::open(&io, path, options, Access::ReadOnly)?;
    let open = |number: u64| {
        let file = run::path(path, number);
        let meta = Run::read_meta(&*io, &file)?;
        let order = options.order_of(path, &meta.keyspace_name, &meta.comparator)?;
        Run::open(&*io, &file, number, order, &place.cache)
    };
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = match what {
        DescribeOptions { run: None, .. } => match Manifest::read(&*io, path)? {
            Some(manifest) => write_manifest(&mut text, &manifest, open),
            None => writeln!(text, "no manifest: the store has no runs"),
        },
        DescribeOptions {
            run: Some(number),
            page: None,
            ..
        } => write_run(&mut text, &open(number)?),
        DescribeOptions {
            run: Some(number),
            page: Some(page),
            rows,
        } => {
            let run = open(number)?;
            let bytes = find_page(&run, page)?;
            write!(
                text,
                "page {page} of run {number}: {}",
                run::dump::page(Page::new(&bytes), rows)
            )
        }
    };
    Ok(text)
}

fn write_manifest(
    text: &mut String,
    manifest: &Manifest,
    open: impl Fn(u64) -> Result<Run>,
) -> std::fmt::Result {
    writeln!(text, "next run       {}", manifest.next_run)?;
    writeln!(text, "first segment  {}", manifest.first_segment)?;
    writeln!(
        text,
        "in runs        up to sequence number {}",
        manifest.flushed_sequence
    )?;
    for keyspace in &manifest.keyspaces {
        writeln!(text, "keyspace {} {:?}", keyspace.id, keyspace.name)?;
        writeln!(text, "  comparator   {}", keyspace.comparator)?;
        for (level, records) in keyspace.levels.iter().enumerate() {
            if records.is_empty() {
                continue;
            }
            let bytes: u64 = records.iter().map(|run| run.bytes).sum();
            writeln!(
                text,
                "  level {level}      {} run{}, {bytes} bytes",
                records.len(),
                if records.len() == 1 { "" } else { "s" }
            )?;
            for record in records {
                write_record(text, record, &open)?;
            }
        }
        if !keyspace.range_runs.is_empty() {
            writeln!(text, "  deletions of ranges")?;
        }
        for record in &keyspace.range_runs {
            write_record(text, record, &open)?;
        }
    }
    Ok(())
}

fn write_record(
    text: &mut String,
    record: &RunRecord,
    open: impl Fn(u64) -> Result<Run>,
) -> std::fmt::Result {
    write!(
        text,
        "    run {:>6}  {:>12} bytes  ",
        record.number, record.bytes
    )?;
    match open(record.number) {
        Ok(run) => {
            let meta = run.meta();
            let (from, to) = (Shown(&meta.smallest), Shown(&meta.largest));
            writeln!(
                text,
                "{:>9} versions  @{}..{}  {from} .. {to}",
                meta.entries, meta.smallest_sequence, meta.largest_sequence
            )
        }
        Err(error) => writeln!(text, "{error}"),
    }
}

fn write_run(text: &mut String, run: &Run) -> std::fmt::Result {
    let meta = run.meta();
    let root = run.root_location();
    writeln!(text, "run            {}", run.number())?;
    writeln!(
        text,
        "file           {}, {} bytes",
        run.path().display(),
        meta.file_bytes
    )?;
    writeln!(text, "checksum       {:016x}", meta.checksum)?;
    writeln!(
        text,
        "keyspace       {} {:?}",
        meta.keyspace, meta.keyspace_name
    )?;
    writeln!(text, "comparator     {}", meta.comparator)?;
    writeln!(
        text,
        "versions       {}, {} of them deletions{}",
        meta.entries,
        meta.deletions,
        match meta.holds {
            Holds::Keys => "",
            Holds::Ranges => "; each deletes a range, from its key up to its value",
        }
    )?;
    writeln!(text, "raw bytes      {}", meta.raw_bytes)?;
    writeln!(
        text,
        "sequence       {}..{}{}",
        meta.smallest_sequence,
        meta.largest_sequence,
        match meta.ingested_sequence {
            0 => "",
            _ => ", from an ingestion: the pages store 1",
        }
    )?;
    writeln!(
        text,
        "keys           {} .. {}",
        Shown(&meta.smallest),
        Shown(&meta.largest)
    )?;
    writeln!(
        text,
        "created        {} (seconds since 1970)",
        meta.created_unix
    )?;
    writeln!(
        text,
        "pages          {} leaves, {} above them",
        meta.leaf_pages, meta.internal_pages
    )?;
    writeln!(text, "filter         {} bytes", run.filter_bytes())?;
    writeln!(
        text,
        "root           page {} at {}, {} bytes, {} in memory",
        meta.pages() - 1,
        root.offset,
        root.stored_len,
        root.raw_len
    )
}

/// Finds a page by its number. Only the pages above it know where it is stored.
fn find_page(run: &Run, wanted: u32) -> Result<Vec<u8>> {
    let mut stored = Vec::new();
    let mut level = vec![(run.meta().pages() - 1, run.root_location())];
    // A child's number is lower than its parent's, so this ends.
    while !level.is_empty() {
        let mut below: Vec<(u32, PageLocation)> = Vec::new();
        for (number, location) in level {
            if number != wanted && number < run.meta().leaf_pages {
                continue;
            }
            let mut bytes = Vec::new();
            run.read_page(location, &mut stored, &mut bytes)?;
            if number == wanted {
                return Ok(bytes);
            }
            let page = Page::new(&bytes);
            if page.kind() == PageKind::Internal {
                let children = (0..page.rows()).map(|row| page.child(row));
                below.extend(children.filter(|(child, _)| *child < number));
            }
        }
        level = below;
    }
    let reason = format!(
        "there is no page {wanted}; there are {}",
        run.meta().pages()
    );
    Err(Error::corrupt_file(run.path(), 0, reason))
}

/// A quoted key: unprintable bytes are escaped and long keys truncated.
struct Shown<'a>(&'a [u8]);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cut = &self.0[..self.0.len().min(SHOWN_BYTES)];
        let dots = if cut.len() < self.0.len() { "..." } else { "" };
        write!(f, "\"{}{dots}\"", cut.escape_ascii())
    }
}
