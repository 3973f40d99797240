//! `Db`: a store, which is also its own default keyspace.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forerun::backup::FileCopyOptions;
use forerun::stats::{StatsLevel, prometheus_text};
use forerun::{Access, KeyspaceOptions, Options, WalMode};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::background_call::run_long;
use crate::batch::WriteBatch;
use crate::copy_progress;
use crate::errors::{exception, invalid, is_forked, unknown};
use crate::events::Events;
use crate::keyspace::{Keyspace, durability_of};
use crate::numeric_arguments;
use crate::read_source::ReadSource;
use crate::snapshot::SnapshotView;
use crate::stats;
use crate::store_options::{CreateStore, Rate, Size, bytes_of};

/// An ordered, durable key-value store in a directory.
///
/// `path`: the directory. `create`: "if_missing" or True creates a missing store, "never" or False
/// raises `NotFoundError` for one, "must_be_new" raises `AlreadyExistsError` for an existing one.
/// `durability`: the default for all writes. "buffered" survives the end of the process; "synced"
/// survives the loss of power. `wal`: if False, there is no log, and entries that are not flushed
/// are lost with the process. `memory_limit_bytes`: the maximum memory of all memtables; writes
/// wait when it is reached. `memtable_bytes`: the size at which a memtable is written to disk.
/// `cache_bytes`: the maximum memory of the page cache; by default half of what the process may use
/// beyond memtables and 512 MiB, which it takes as pages arrive and gives back when memory is
/// scarce. `background_threads`: how many threads compact runs; by default half of the cores, from
/// 2 to 4. `use_direct_reads`: reads pages past the memory of the operating system (`O_DIRECT`),
/// which raises an error where the file system cannot. `scrub_rate_bytes`: how many bytes per
/// second a background thread reads to find damage; by default none. `compression`: of what is
/// written to runs: "none", "lz4" (the default), "zstd", "zstd:LEVEL" or
/// "zstd:LEVEL:DICTIONARY_SIZE", such as "zstd:6:16KiB"; `bottommost_compression`: the same for the
/// last level, which has most of the data. `ttl_seconds`: entries expire after this time, in whole
/// seconds; by default they never expire. `read_only`: changes nothing in the directory, which may
/// be on a read-only file system; every write raises an error. `stats_level`: "sampled" times one
/// in 1,024 lookups and buffered writes for `stats`, "all" every one. `event_listener`: called with
/// a dict, a `forerun.events.DbEvent`, for each flush, compaction, wait of a write, failure in the
/// background and end of a scrub, by a thread of its own and one at a time. What it raises is
/// reported and changes nothing. If it is slow, events are dropped and counted. `close` returns
/// after the last call.
///
/// A size is a number of bytes, or a text such as "2GiB", "512MB" or "25%" of the memory that the
/// process may use. An argument that is `None` takes the engine's default.
#[pyclass(extends = Keyspace, frozen, module = "forerun")]
pub(crate) struct Db {
    path: PathBuf,
    /// What calls the listener, if there is one.
    events: Option<Arc<Events>>,
}

#[pymethods]
impl Db {
    #[new]
    #[pyo3(
        signature = (
            path, *, create=CreateStore::DEFAULT, durability="buffered", wal=true,
            memory_limit_bytes=None,
            memtable_bytes=None, cache_bytes=None, background_threads=None,
            use_direct_reads=false, scrub_rate_bytes=None, compression=None,
            bottommost_compression=None, ttl_seconds=None, read_only=false, stats_level="sampled",
            event_listener=None
        ),
        text_signature = "(path, *, create='if_missing', durability='buffered', wal=True, \
            memory_limit_bytes=None, memtable_bytes=None, cache_bytes=None, \
            background_threads=None, use_direct_reads=False, scrub_rate_bytes=None, \
            compression=None, bottommost_compression=None, \
            ttl_seconds=None, read_only=False, stats_level='sampled', event_listener=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        create: CreateStore,
        durability: &str,
        wal: bool,
        memory_limit_bytes: Option<Size>,
        memtable_bytes: Option<Size>,
        cache_bytes: Option<Size>,
        #[pyo3(from_py_with = numeric_arguments::background_threads)] background_threads: Option<
            usize,
        >,
        use_direct_reads: bool,
        scrub_rate_bytes: Option<Rate>,
        compression: Option<&str>,
        bottommost_compression: Option<&str>,
        #[pyo3(from_py_with = numeric_arguments::store_ttl_seconds)] ttl_seconds: Option<f64>,
        read_only: bool,
        stats_level: &str,
        event_listener: Option<Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Db>> {
        let (default, durability) = (Options::default(), durability_of(durability)?);
        let (mut run, mut tree) = (default.run, default.tree);
        if let Some(compression) = compression {
            run = run.compression(compression.parse().map_err(exception)?);
        }
        if let Some(compression) = bottommost_compression {
            tree = tree.bottommost_compression(compression.parse().map_err(exception)?);
        }
        let mut options = Options::default()
            .run(run)
            .tree(tree)
            .create(create.0)
            .durability(durability)
            .wal(if wal { WalMode::On } else { WalMode::Off })
            .memory_limit_bytes(bytes_of(memory_limit_bytes).unwrap_or(default.memory_limit_bytes))
            .memtable_bytes(bytes_of(memtable_bytes).unwrap_or(default.memtable_bytes))
            .cache_bytes(bytes_of(cache_bytes))
            .background_threads(background_threads.unwrap_or(default.background_threads))
            .use_direct_reads(use_direct_reads)
            .scrub_rate_bytes(scrub_rate_bytes.map_or(0, |Rate(bytes)| bytes))
            .ttl(ttl_of(ttl_seconds)?)
            .stats_level(stats_level_of(stats_level)?)
            .access(if read_only {
                Access::ReadOnly
            } else {
                Access::ReadWrite
            });
        let mut events = None;
        if let Some(listener) = event_listener {
            let (listening, listener) = Events::listen(&listener)?;
            (events, options) = (Some(listening), options.event_listener(listener));
        }
        let open =
            move || options.in_stored_order(|options| forerun::Db::open(&path, options.clone()));
        let db = run_long(py, "opening a store", open)?.map_err(exception)?;
        let (own, path) = (db.default_keyspace(), db.path().to_owned());
        Ok(Keyspace::layers("store", db, own, durability).add_subclass(Db { path, events }))
    }

    /// The directory, as an absolute path.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Returns the keyspace with this name, and creates it if it is missing. Its entries expire
    /// after `ttl_seconds`, a whole number of seconds; by default they never expire. A keyspace
    /// keeps the time to live that it was created with; a different one is an error.
    #[pyo3(signature = (name, *, ttl_seconds=None))]
    fn keyspace(
        slf: &Bound<'_, Db>,
        name: &str,
        #[pyo3(from_py_with = numeric_arguments::store_ttl_seconds)] ttl_seconds: Option<f64>,
    ) -> PyResult<Py<Keyspace>> {
        let db = open(slf)?;
        let keyspace = match ttl_of(ttl_seconds)? {
            None => slf.py().detach(|| db.keyspace(name)),
            ttl => {
                let options = KeyspaceOptions::default().ttl(ttl);
                slf.py().detach(|| db.keyspace_with(name, options))
            }
        };
        let durability = slf.as_super().get().durability_or(None)?;
        let keyspace = keyspace.map_err(exception)?;
        let layers = Keyspace::layers("keyspace", db, keyspace, durability);
        Py::new(slf.py(), layers)
    }

    /// The names of all keyspaces.
    fn keyspaces(slf: &Bound<'_, Db>) -> PyResult<Vec<String>> {
        Ok(open(slf)?.keyspaces())
    }

    /// Deletes a keyspace and its entries.
    fn drop_keyspace(slf: &Bound<'_, Db>, name: &str) -> PyResult<()> {
        let db = open(slf)?;
        let name = name.to_owned();
        let drop = move || db.drop_keyspace(&name);
        run_long(slf.py(), "dropping a keyspace", drop)?.map_err(exception)
    }

    /// Returns a batch of writes. They take effect together at the end of its `with` block; if the
    /// block raises an exception, none takes effect. The default `durability` is that of the store.
    #[pyo3(signature = (*, durability=None))]
    fn batch(slf: &Bound<'_, Db>, durability: Option<&str>) -> PyResult<WriteBatch> {
        let durability = slf.as_super().get().durability_or(durability)?;
        Ok(WriteBatch::new(open(slf)?, durability))
    }

    /// Returns a view of the store as of now, which later writes do not change.
    fn snapshot(slf: &Bound<'_, Db>) -> PyResult<Py<SnapshotView>> {
        let db = open(slf)?;
        SnapshotView::new(slf.py(), db.snapshot().into(), db.default_keyspace())
    }

    /// Makes all writes so far durable.
    fn sync(slf: &Bound<'_, Db>) -> PyResult<()> {
        let db = open(slf)?;
        run_long(slf.py(), "syncing", move || db.flush_wal())?.map_err(exception)
    }

    /// Merges all runs into one level. Useful after many writes and before many reads.
    fn compact(slf: &Bound<'_, Db>) -> PyResult<()> {
        let db = open(slf)?;
        run_long(slf.py(), "compacting", move || db.compact())?.map_err(exception)
    }

    /// Waits until no flush or compaction is due, obsolete files are deleted, and indexes and
    /// filters are in memory, as far as they fit into the cache.
    fn wait_idle(slf: &Bound<'_, Db>) -> PyResult<()> {
        let db = open(slf)?;
        run_long(slf.py(), "waiting for compactions", move || db.wait_idle())?.map_err(exception)
    }

    /// Copies the store as of now into a new directory, with hard links where the file system
    /// allows them. Where it does not, `rate_bytes` is how many bytes per second to copy at most.
    /// `progress`: called now and then with the bytes done and the bytes in total; what it raises
    /// ends the call.
    #[pyo3(signature = (into, *, rate_bytes=None, progress=None))]
    fn checkpoint(
        slf: &Bound<'_, Db>,
        into: PathBuf,
        rate_bytes: Option<Rate>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let db = open(slf)?;
        let copy = move |options: &FileCopyOptions| db.checkpoint_with(into, options);
        copy_progress::run(slf.py(), "making a checkpoint", rate_bytes, progress, copy)?
            .map_err(exception)
    }

    /// Returns all metrics of the store's statistics as a dict. Metrics of a part begin with its
    /// name, as in `cache_hits`; those of `levels` are sums over all levels.
    fn stats<'py>(slf: &Bound<'py, Db>) -> PyResult<Bound<'py, PyDict>> {
        let db = open(slf)?;
        let stats = slf.py().detach(|| db.stats());
        stats::dict(slf.py(), &stats)
    }

    /// Returns the store's statistics in Prometheus's text format, version 0.0.4, with histograms
    /// of how long operations take. All names begin with `prefix`.
    #[pyo3(signature = (prefix="forerun_db"))]
    fn prometheus_text(slf: &Bound<'_, Db>, prefix: &str) -> PyResult<String> {
        let db = open(slf)?;
        Ok(prometheus_text(prefix, &slf.py().detach(|| db.stats())))
    }

    /// Closes the store. All writes are durable afterwards, unless the store has no log
    /// (`wal=False`): then call `flush` first, or the entries in memtables are lost.
    fn close(slf: &Bound<'_, Db>) -> PyResult<()> {
        match slf.as_super().as_super().get().take() {
            Some(ReadSource::Keyspace(db, _)) => {
                let events = slf.get().events.clone();
                let is_listener = events.as_ref().is_some_and(|events| events.is_listener());
                let close = move || {
                    let closed = db.close();
                    if let Some(events) = events {
                        events.end(is_listener);
                    }
                    closed
                };
                run_long(slf.py(), "closing a store", close)?.map_err(exception)
            }
            _ => Ok(()),
        }
    }

    fn __enter__(slf: Bound<'_, Db>) -> Bound<'_, Db> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(slf: &Bound<'_, Db>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        // A fork that leaves the block leaves the store to its parent.
        match slf.as_super().as_super().get().source() {
            Err(error) if is_forked(slf.py(), &error) => Ok(()),
            _ => Db::close(slf),
        }
    }

    fn __repr__(slf: &Bound<'_, Db>) -> String {
        let path = &slf.get().path;
        let shown = Keyspace::shown(slf.as_super(), |db, _| {
            let stats = db.stats();
            let runs: usize = stats.levels.iter().map(|level| level.runs).sum();
            let bytes: u64 = stats.levels.iter().map(|level| level.bytes).sum();
            format!(
                "memtables_used_bytes={}, cache_used_bytes={}, runs={runs}, run_bytes={bytes}",
                stats.memtables_used_bytes, stats.cache.used_bytes,
            )
        });
        format!("forerun.Db({path:?}, {shown})")
    }
}

/// The engine's handle to an open store.
pub(crate) fn open(slf: &Bound<'_, Db>) -> PyResult<forerun::Db> {
    Ok(Keyspace::handles(slf.as_super())?.0)
}

fn stats_level_of(name: &str) -> PyResult<StatsLevel> {
    match name {
        "sampled" => Ok(StatsLevel::Sampled),
        "all" => Ok(StatsLevel::All),
        other => Err(unknown("stats_level", other, "sampled, all")),
    }
}

fn ttl_of(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let ttl = seconds.map(Duration::try_from_secs_f64).transpose();
    ttl.map_err(|error| invalid(format!("`ttl_seconds`: {error}")))
}
