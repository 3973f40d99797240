//! Reads a store's files to describe them: the runs it has, a run's metadata, a page's content.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use forerun_core::size::counted;

use super::ClosedStore;
use super::description::{
    Description, KeyspaceDescription, ManifestDescription, RunDescription, RunSummary,
};
use crate::io::{Io, OsIo};
use crate::run::{self, Contents, Page, PageKind, PageLocation, Run};
use crate::tree::manifest::{Keyspace, Manifest, RunRecord};
use crate::{Access, Error, Options, Result};

/// Options of [`describe`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DescribeOptions {
    /// Show the run with this number instead of the manifest. Default: none.
    pub run: Option<u64>,
    /// Show the page with this number in the run instead of the run's metadata. Leaves come first,
    /// numbered from 0 in key order, then the levels above them; the last page is the root.
    /// Default: none.
    pub page: Option<u32>,
    /// Maximum number of rows of the page to show. Default: 0.
    pub rows: usize,
}

forerun_core::setters! {
    DescribeOptions { rows: usize } into { run: Option<u64>, page: Option<u32> }
}

/// Describes the files of a store that is not open: the manifest with its runs, one run, or one
/// page of a run.
///
/// ```
/// use forerun_db::{Db, DescribeOptions, Description, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// Db::open(&path, Options::default())?.close()?;
/// let description = forerun_db::describe(&path, &Options::default(), DescribeOptions::default())?;
/// assert!(matches!(description, Description::Manifest(_)));
/// println!("{description}");
/// # Ok::<(), forerun_db::Error>(())
/// ```
///
/// # Errors
/// [`Error::NotAStore`], [`Error::Locked`], [`Error::NewerFormat`], [`Error::OlderFormat`],
/// [`Error::ComparatorMismatch`], [`Error::KeyspaceComparator`], [`Error::Io`],
/// [`Error::CorruptFile`]; [`Error::BadOption`] for a run or a page that does not exist.
pub fn describe(
    path: impl AsRef<Path>,
    options: &Options,
    what: DescribeOptions,
) -> Result<Description> {
    let path = path.as_ref();
    let io: Arc<dyn Io> = Arc::new(OsIo);
    let store = ClosedStore::open(&io, path, options, Access::ReadOnly)?;
    let open = |number: u64| {
        let file = run::path(path, number);
        let meta = Run::read_meta(&*io, &file)?;
        let order = options.order_of(path, &meta.keyspace_name, &meta.comparator)?;
        Run::open_without_filter(&*io, &file, number, order, &store.cache)
    };
    let open_chosen = |number: u64| {
        open(number).map_err(|error| match error.io_kind() {
            Some(ErrorKind::NotFound) => Error::BadOption {
                option: "run",
                reason: format!("there is no {}", run::path(path, number).display()),
            },
            _ => error,
        })
    };
    Ok(match what {
        DescribeOptions { run: None, .. } => {
            let manifest = Manifest::read(&*io, path)?;
            Description::Manifest(manifest.map(|manifest| describe_manifest(&manifest, open)))
        }
        DescribeOptions {
            run: Some(number),
            page: None,
            ..
        } => Description::Run(Box::new(describe_run(&open_chosen(number)?))),
        DescribeOptions {
            run: Some(number),
            page: Some(page),
            rows,
        } => {
            let run = open_chosen(number)?;
            let bytes = find_page(&run, page)?;
            Description::Page {
                run: number,
                number: page,
                page: run::dump::page(Page::new(&bytes), rows),
            }
        }
    })
}

fn describe_manifest(
    manifest: &Manifest,
    open: impl Fn(u64) -> Result<Run>,
) -> ManifestDescription {
    let summaries = |records: &[RunRecord]| -> Vec<RunSummary> {
        records
            .iter()
            .map(|record| summary(record, &open))
            .collect()
    };
    let describe = |keyspace: &Keyspace| KeyspaceDescription {
        id: keyspace.id,
        name: keyspace.name.clone(),
        comparator: keyspace.comparator.clone(),
        levels: keyspace
            .levels
            .iter()
            .map(|records| summaries(records))
            .collect(),
        range_deletions: summaries(&keyspace.range_runs),
    };
    ManifestDescription {
        next_run: manifest.next_run,
        first_segment: manifest.first_segment,
        flushed_sequence: manifest.flushed_sequence,
        keyspaces: manifest.keyspaces.iter().map(describe).collect(),
    }
}

fn summary(record: &RunRecord, open: impl Fn(u64) -> Result<Run>) -> RunSummary {
    RunSummary {
        number: record.number,
        bytes: record.bytes,
        run: open(record.number).map(|run| describe_run(&run)),
    }
}

fn describe_run(run: &Run) -> RunDescription {
    let (meta, root) = (run.meta(), run.root_location());
    RunDescription {
        number: run.number(),
        path: run.path().to_owned(),
        file_bytes: meta.file_bytes,
        checksum: meta.checksum,
        keyspace: meta.keyspace,
        keyspace_name: meta.keyspace_name.clone(),
        comparator: meta.comparator.clone(),
        entries: meta.entries,
        deletions: meta.deletions,
        holds_range_deletions: meta.holds == Contents::Ranges,
        raw_bytes: meta.raw_bytes,
        compression: run.codec().to_string(),
        dictionary_bytes: run.dictionary_stored_bytes(),
        smallest_sequence: meta.smallest_sequence,
        largest_sequence: meta.largest_sequence,
        is_ingested: meta.ingested_sequence != 0,
        smallest_key: meta.smallest.clone(),
        largest_key: meta.largest.clone(),
        created_unix: meta.created_unix,
        leaf_pages: meta.leaf_pages,
        internal_pages: meta.internal_pages,
        filter_bytes: run.filter_bytes(),
        index_bytes: run.index_bytes(),
        root_offset: root.offset,
        root_stored_bytes: u64::from(root.stored_len),
        root_raw_bytes: u64::from(root.raw_len),
    }
}

/// Finds a page by its number. Only the pages above it know where it is stored.
fn find_page(run: &Run, wanted: u32) -> Result<Vec<u8>> {
    let pages = run.meta().pages();
    if wanted >= pages {
        return Err(Error::BadOption {
            option: "page",
            reason: format!("run {} has {}", run.number(), counted(pages, "page")),
        });
    }
    let mut stored = Vec::new();
    let mut level = vec![(pages - 1, run.root_location())];
    // A child's number is lower than its parent's, so this ends.
    while !level.is_empty() {
        let mut below: Vec<(u32, PageLocation)> = Vec::new();
        for (number, location) in level {
            if number != wanted && number < run.meta().leaf_pages {
                continue;
            }
            let mut bytes = Vec::new();
            run.read_page(number, location, &mut stored, &mut bytes)?;
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
    let reason = format!("no page above it leads to page {wanted}");
    Err(Error::corrupt_file(run.path(), 0, reason))
}
