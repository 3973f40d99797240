//! What a manifest describes, read when a store is opened.

use forerun_core::sync::atomic::{AtomicU64, Ordering};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::keyspace_data::KeyspaceData;
use super::keyspaces::{KeyspaceSet, Keyspaces};
use super::tree::Tree;
use crate::cache::{CacheOptions, PageCache};
use crate::clock::{Clock, Expiry};
use crate::io::open_files::{self, OpenFiles};
use crate::io::reclaim::ReclaimIo;
use crate::io::{Io, OpenMode, direct};
use crate::memtable::RegionPool;
use crate::run::lookup::ReadContext;
use crate::store_dir::{self, StoreDir};
use crate::tree::catalog::Catalog;
use crate::tree::limiter::RateLimiter;
use crate::tree::manifest::{self, Keyspace};
use crate::{Error, Options, Result};

/// The store as the manifest describes it.
pub(super) struct Loaded {
    pub(super) io: Arc<dyn Io>,
    pub(super) path: PathBuf,
    pub(super) keyspaces: Keyspaces,
    pub(super) tree: Tree,
    pub(super) clock: Arc<Clock>,
    pub(super) regions: Arc<RegionPool>,
}

impl Loaded {
    /// Reads the manifest and opens the runs that it names.
    pub(super) fn load(options: &Options, dir: &StoreDir) -> Result<Loaded> {
        let max_open = options
            .max_open_files
            .unwrap_or_else(open_files::default_limit);
        let open_files = if options.use_direct_reads {
            check_direct_reads(&*dir.io, &dir.path)?;
            OpenFiles::direct(Arc::clone(&dir.io), max_open)
        } else {
            OpenFiles::new(Arc::clone(&dir.io), max_open)
        };
        let reclaiming = ReclaimIo::new(Arc::new(open_files));
        let io: Arc<dyn Io> = Arc::new(reclaiming.clone());
        let path = dir.path.clone();
        let (page_bytes, pages) = (options.run.page_limit_bytes(), options.pages);
        let cache = match options.cache_bytes {
            Some(capacity_bytes) => PageCache::new(CacheOptions {
                capacity_bytes,
                page_bytes,
                pages,
            })?,
            None => PageCache::automatic(page_bytes, pages, options.memory_limit_bytes)?,
        };
        let catalog = Catalog::open(&io, &path, options, &cache)?;
        // They hold the file system, so it does not hold them.
        let obsolete = Arc::downgrade(catalog.obsolete_files());
        reclaiming.reclaim_with(&path, move || {
            obsolete.upgrade().is_some_and(|files| files.remove_one())
        });
        let reading = ReadContext {
            cache: Arc::clone(&cache),
            backend: options.reads,
            verify_checksums: options.lookups_verify(),
        };
        static STORES: AtomicU64 = AtomicU64::new(1);
        // Relaxed: the numbers only have to differ.
        let number = STORES.fetch_add(1, Ordering::Relaxed);
        let set = open_keyspaces(number, &path, options, &catalog, &reading)?;
        let Some(own) = set.by_id(0).cloned() else {
            let reason = "it has no keyspace of the store's own";
            return Err(Error::corrupt_file(&path.join(manifest::NAME), 0, reason));
        };
        let ttls = set.iter().filter_map(|keyspace| keyspace.expiry.as_ref());
        let marks = catalog.marks().to_vec();
        let clock = Clock::new(Arc::clone(&io), marks, ttls.map(Expiry::ttl));
        let limiter = RateLimiter::new(options.tree.write_rate_bytes);
        Ok(Loaded {
            tree: Tree::new(Arc::clone(&io), path.clone(), catalog, limiter, cache),
            keyspaces: Keyspaces::new(number, own, set, reading),
            clock: Arc::new(clock),
            regions: Arc::new(RegionPool::new(options.memtable_bytes)),
            io,
            path,
        })
    }
}

/// Reads a file of the store directly, to find out whether its file system has such reads.
fn check_direct_reads(io: &dyn Io, dir: &Path) -> Result<()> {
    let path = dir.join(store_dir::FORMAT);
    let opened = io.open(&path, OpenMode::ReadDirect);
    let read = opened.and_then(|file| file.read_at(&mut [0], 0));
    read.map(drop).map_err(|error| {
        if direct::is_refusal(&error) {
            Error::BadOption {
                option: "use_direct_reads",
                reason: format!("{} cannot be read directly: {error}", path.display()),
            }
        } else {
            Error::io("read", &path, error)
        }
    })
}

/// Makes the keyspaces that the manifest names, each with its options.
fn open_keyspaces(
    store: u64,
    path: &Path,
    options: &Options,
    catalog: &Catalog,
    reading: &ReadContext,
) -> Result<KeyspaceSet> {
    let mut keyspaces = Vec::new();
    for Keyspace {
        id,
        name,
        comparator,
        ttl,
        ..
    } in catalog.keyspaces()
    {
        let options = options.of_stored_keyspace(path, name, comparator)?;
        let options = options.with_stored_ttl(name, *ttl)?;
        if let Some(runs) = catalog.runs_of(*id) {
            let keyspace =
                KeyspaceData::new(store, *id, name, comparator, options, runs, reading.clone());
            keyspaces.push(Arc::new(keyspace));
        }
    }
    Ok(KeyspaceSet::new(keyspaces))
}
