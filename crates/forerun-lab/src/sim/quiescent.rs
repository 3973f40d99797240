//! Checks the store at rest, when no thread uses it and no call fails. It must become idle, hold
//! the expected entries, stay within its limits, and accept writes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forerun_db::{Db, Error, Stats};

use super::client_thread::{ClientThread, PrivateKeyspace, ThreadModel};
use super::compare::compare;
use super::program::{Change, ChangeKind, Op, ReadDirection, Step, StepKeyspace};
use super::reads::read;
use super::runtime;
use super::simulation::{IncarnationEnd, Opened, Outcome, STORE, Simulation, Stop, violation};

/// The maximum memory of an open run, in addition to cached pages: its index and its filter, a word
/// for each page, and its root page, which has at most 4 KiB of rows or one row with a key of 4 KB
/// and a value of 5 KB.
const RUN_BYTES_MAX: usize = 12 << 10;

/// The minimum that a cache reserves for pages: one frame, or this fraction of the cache.
const FRAME_BYTES: usize = (4 << 10) + 64;
const PAGES_SHARE: usize = 4;

/// The time that an idle store has to return to its limits. At first, a background thread may still
/// hold a page or a run. The cache then evicts the excess within a second.
const LIMITS_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time that a store at rest may take for a write.
const WRITE_MAX: Duration = Duration::from_secs(60);

/// Checks a store that no thread uses, after all faults have ended.
pub fn check_quiescent(
    simulation: &Simulation,
    models: &mut [ThreadModel],
    has_failed: bool,
) -> Outcome {
    let Some(opened) = simulation.store() else {
        return violation("the store is not open");
    };
    let db = &opened.db;
    let poisoned = db.stats().poisoned;
    if let Some(cause) = &poisoned
        && !has_failed
    {
        return violation(format!("the store refuses writes: {cause}"));
    }
    for model in models.iter_mut() {
        let (observed, read) = simulation.observe(&opened, model)?;
        if model.opening == opened.number {
            compare(&model.history.all_visible(), &observed, read, simulation).map_err(|why| {
                Stop::Violation(format!("at rest, of thread {}: {why}", model.thread))
            })?;
        } else {
            // This thread ended before another one closed and reopened the store.
            model.opening = opened.number;
            simulation.resolve(model, &observed, read, IncarnationEnd::Kept)?;
        }
    }
    match poisoned {
        None => wait_idle(simulation, &opened)?,
        Some(_) => opened.refuses_writes.store(true, SeqCst),
    }
    check_limits(simulation, db)?;
    write_again(simulation, &opened, models)?;
    // Otherwise the store ends with writes that only its log has.
    if simulation.program.seed.is_multiple_of(2)
        && !simulation.is_over()
        && db.stats().poisoned.is_none()
    {
        wait_idle(simulation, &opened)?;
    }
    Ok(())
}

/// Flushes and compacts until everything is done. Failed work is retried after a while.
fn wait_idle(simulation: &Simulation, opened: &Opened) -> Outcome {
    const TRIES: usize = 60;
    let mut last = None;
    for _ in 0..TRIES {
        let done = opened.db.flush().and_then(|()| opened.db.wait_idle());
        match done {
            Ok(()) => return Ok(()),
            Err(error) => {
                let is_poisoned = matches!(error, Error::Poisoned { .. });
                simulation.allow(&error, Some(opened), "wait_idle")?;
                if is_poisoned {
                    return Ok(());
                }
                last = Some(error);
            }
        }
        runtime::sleep(Duration::from_secs(2));
    }
    violation(format!(
        "the store is still busy, although the faults ended long ago: {last:?}"
    ))
}

/// Verifies all runs, and returns how many there are.
fn verify(db: &Db) -> Outcome<u64> {
    match db.verify() {
        Ok(verified) => match verified.problems.first() {
            None => Ok(verified.runs),
            Some(problem) => violation(format!("the store is damaged: {problem}")),
        },
        Err(error) => violation(format!("the store cannot be verified: {error}")),
    }
}

/// Checks that the store soon returns to its limits on memory and open files.
fn check_limits(simulation: &Simulation, db: &Db) -> Outcome {
    let start = runtime::elapsed();
    loop {
        // Runs of range deletions count too, and only a verification counts them.
        let runs = verify(db)?;
        let stats = db.stats();
        simulation.check_memtables(&stats)?;
        if stats.poisoned.is_some() {
            // The files of replaced runs are closed in a later epoch. The workers that would
            // advance it may have ended.
            forerun_core::epoch::pin().flush();
        }
        let (_, open_runs) = simulation.io().open_files();
        // A store that refuses writes keeps the runs that only a failed manifest names.
        let kept_runs = match stats.poisoned {
            Some(_) => run_files(simulation),
            None => runs,
        };
        let max_open_files = simulation.options().max_open_files;
        match over_limit(&stats, runs, kept_runs, open_runs, max_open_files) {
            None => return Ok(()),
            Some(why) if runtime::elapsed() - start > LIMITS_TIMEOUT => return violation(why),
            Some(_) => runtime::sleep(Duration::from_millis(100)),
        }
    }
}

/// Checks the metrics of a store that was compacted while no thread read it: runs hold exactly the
/// entries that a scan returns, except that some may have expired.
pub fn check_entries(simulation: &Simulation, opened: &Opened) -> Outcome {
    let stats = opened.db.stats();
    let all: u64 = stats.levels.iter().map(|level| level.entries).sum();
    let mut sum = 0;
    for keyspace in &stats.keyspaces {
        let stored: u64 = keyspace.levels.iter().map(|level| level.entries).sum();
        sum += stored;
        let Some(found) = opened
            .keyspaces
            .iter()
            .find(|of| of.name() == keyspace.name)
        else {
            continue;
        };
        let scanned = match read(found.iter(), ReadDirection::Forward) {
            Ok(entries) => entries.len() as u64,
            Err(error) => {
                return violation(format!("a compacted keyspace cannot be read: {error}"));
            }
        };
        let is_exact = found.ttl().is_none();
        let in_memory = keyspace.memtable_entries;
        if is_exact && (stored, in_memory) != (scanned, 0) {
            return violation(format!(
                "keyspace {:?} was compacted and has {scanned} entries, {stored} in runs and \
                 {in_memory} in memtables",
                keyspace.name
            ));
        }
    }
    // Runs whose entries have expired may be removed at any time.
    if sum == all || simulation.program.has_ttl() {
        Ok(())
    } else {
        violation(format!(
            "the levels have {all} entries together, and {sum} by keyspace"
        ))
    }
}

/// The number of files of runs in the store's directory.
fn run_files(simulation: &Simulation) -> u64 {
    let files = simulation.files_in(Path::new(STORE));
    files.iter().filter(|name| name.ends_with(".run")).count() as u64
}

/// Which limit of the cache or of open files is exceeded.
fn over_limit(
    stats: &Stats,
    runs: u64,
    kept_runs: u64,
    open_runs: u64,
    max_open_files: Option<usize>,
) -> Option<String> {
    // Pages get the part of the cache that open runs do not use, and at least their share.
    let capacity = stats.cache.capacity_bytes;
    let least_pages = (capacity / PAGES_SHARE).max(FRAME_BYTES);
    let max_bytes = capacity.max(runs as usize * RUN_BYTES_MAX + least_pages);
    if stats.cache.used_bytes > max_bytes {
        return Some(format!(
            "the cache is over its limit of {max_bytes} bytes, with {runs} runs: {}",
            stats.cache
        ));
    }
    let max_open = kept_runs.min(max_open_files.unwrap_or(usize::MAX) as u64);
    (open_runs > max_open).then(|| {
        format!(
            "{open_runs} files of runs are open; there are {kept_runs} runs, {max_open} may be open"
        )
    })
}

/// Writes to each keyspace. The store accepts the writes, unless it refuses all of them until it is
/// reopened.
fn write_again(
    simulation: &Simulation,
    opened: &Arc<Opened>,
    models: &mut [ThreadModel],
) -> Outcome {
    let refuses = opened.refuses_writes.load(SeqCst);
    let shared = (0..opened.keyspaces.len()).map(|number| StepKeyspace::Shared(number as u8));
    let mut keyspaces: Vec<StepKeyspace> = shared.collect();
    let model = &mut models[0];
    if matches!(model.private, PrivateKeyspace::Present(_)) {
        keyspaces.push(StepKeyspace::Private);
    }
    let steps: Vec<Step> = keyspaces
        .into_iter()
        .map(|keyspace| Step {
            id: 0,
            op: Op::Write {
                changes: vec![Change {
                    keyspace,
                    kind: ChangeKind::Put { key: 3, len: 20 },
                }],
                durability: None,
            },
        })
        .collect();
    let start = runtime::elapsed();
    *model = ClientThread::new(simulation, model.clone(), Arc::clone(opened)).run(&steps);
    let took = runtime::elapsed() - start;
    let accepted = model.history.acknowledged_of_last(steps.len());
    if refuses || simulation.is_over() {
        return Ok(());
    }
    if accepted < steps.len() {
        return violation(format!(
            "{accepted} of {} writes are accepted, although the faults ended long ago",
            steps.len()
        ));
    }
    if took > WRITE_MAX {
        return violation(format!(
            "writes take {took:?}, although the faults ended long ago"
        ));
    }
    Ok(())
}

impl Simulation {
    /// Checks the memory of memtables, which stays within its limit at any time.
    ///
    /// # Errors
    /// [`Stop::Violation`]
    pub fn check_memtables(&self, stats: &Stats) -> Outcome {
        let (used, limit) = (
            stats.memtables_used_bytes,
            self.options().memory_limit_bytes,
        );
        if used > limit {
            violation(format!("memtables use {used} of {limit} bytes"))
        } else {
            Ok(())
        }
    }
}
