//! The store at rest: no thread uses it, and no call fails. It must become idle, hold what it
//! should, stay within its limits, and take writes again.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forerun_db::{Db, Error, Stats};

use super::compare::compare;
use super::program::{Change, Op, Place, Step, What};
use super::rt;
use super::user::{Memory, Private, User};
use super::world::{Ended, Opened, Outcome, Stop, World, flaw};

/// The most that the root page of a run takes: keys are few and short.
const ROOT_MAX_BYTES: usize = 4 << 10;

/// The least that a cache has for pages: a frame, or this share of it.
const FRAME_BYTES: usize = 4 << 10;
const PAGES_SHARE: usize = 4;

/// The cache may have lent so much beyond its limit to readers that have gone: pages are freed in a
/// later epoch. A cache of the larger size has space for that.
const LENT_MAX_BYTES: usize = 512 << 10;
const LARGE_CACHE_BYTES: usize = 512 << 10;

/// Runs that were replaced, but whose files are not closed yet: that too happens in a later epoch.
const REPLACED_RUNS_MAX: usize = 8;

/// The time in which a store at rest takes a write.
const WRITE_MAX: Duration = Duration::from_secs(60);

/// Checks a store that nobody uses and that no fault hits any more.
pub fn be_quiet(world: &World, memories: &mut [Memory], has_failed: bool) -> Outcome {
    let Some(opened) = world.store() else {
        return flaw("the store is not open");
    };
    let db = &opened.db;
    let poisoned = db.stats().poisoned;
    if let Some(cause) = &poisoned
        && !has_failed
    {
        return flaw(format!("the store takes no more writes: {cause}"));
    }
    for memory in memories.iter_mut() {
        let (observed, read) = world.observe(&opened, memory)?;
        if memory.opening == opened.number {
            compare(memory.history.now(), &observed, read, world).map_err(|why| {
                Stop::Flaw(format!("at rest, of thread {}: {why}", memory.thread))
            })?;
        } else {
            // The thread was done before another one closed and reopened the store.
            memory.opening = opened.number;
            world.resolve(memory, &observed, read, Ended::Kept)?;
        }
    }
    match poisoned {
        None => wait_idle(world, &opened)?,
        Some(_) => opened.refuses_writes.store(true, SeqCst),
    }
    stay_within_limits(world, db)?;
    match db.verify() {
        Ok(verified) => match verified.problems.first() {
            None => {}
            Some(problem) => return flaw(format!("the store is damaged: {problem}")),
        },
        Err(error) => return flaw(format!("the store cannot be verified: {error}")),
    }
    write_again(world, &opened, memories)?;
    // Otherwise the store ends with writes that only its log has.
    if world.program.seed.is_multiple_of(2) && !world.is_over() && db.stats().poisoned.is_none() {
        wait_idle(world, &opened)?;
    }
    Ok(())
}

/// Flushes and compacts until everything is done. Failed work is retried after a while.
fn wait_idle(world: &World, opened: &Opened) -> Outcome {
    const TRIES: usize = 60;
    let mut last = None;
    for _ in 0..TRIES {
        let done = opened.db.flush().and_then(|()| opened.db.wait_idle());
        match done {
            Ok(()) => return Ok(()),
            Err(error) => {
                let is_poisoned = matches!(error, Error::Poisoned { .. });
                world.allow(&error, Some(opened), "wait_idle")?;
                if is_poisoned {
                    return Ok(());
                }
                last = Some(error);
            }
        }
        rt::sleep(Duration::from_secs(2));
    }
    flaw(format!(
        "the store is still busy long after all faults: {last:?}"
    ))
}

/// Checks the limits of memory and of open files.
fn stay_within_limits(world: &World, db: &Db) -> Outcome {
    let stats = db.stats();
    world.check_memtables(&stats)?;
    let runs: usize = stats.levels.iter().map(|level| level.runs).sum();
    // The root pages of all runs are in memory, even if the cache is too small for them.
    let capacity = stats.cache.capacity_bytes;
    let least_pages = (capacity / PAGES_SHARE).max(FRAME_BYTES);
    let most = match capacity >= LARGE_CACHE_BYTES {
        true => capacity,
        false => capacity.max(runs * ROOT_MAX_BYTES + least_pages) + LENT_MAX_BYTES,
    };
    if stats.cache.used_bytes > most {
        return flaw(format!(
            "the cache is over its limit of {most} bytes, with {runs} runs: {}",
            stats.cache
        ));
    }
    let (_, open_runs) = world.io().open_files();
    let limit = world.options.max_open_files.unwrap_or(usize::MAX);
    let most = limit.min(runs + REPLACED_RUNS_MAX);
    if open_runs > most as u64 {
        return flaw(format!(
            "{open_runs} files of runs are open, there are {runs} runs, and {most} may be open"
        ));
    }
    Ok(())
}

/// Writes to each keyspace. The store takes the writes, unless it refuses all of them until it is
/// opened again.
fn write_again(world: &World, opened: &Arc<Opened>, memories: &mut [Memory]) -> Outcome {
    let refuses = opened.refuses_writes.load(SeqCst);
    let shared = (0..opened.spaces.len()).map(|space| Place::Shared(space as u8));
    let mut places: Vec<Place> = shared.collect();
    let memory = &mut memories[0];
    if matches!(memory.private, Private::Present(_)) {
        places.push(Place::Private);
    }
    let steps: Vec<Step> = places
        .into_iter()
        .map(|place| Step {
            id: 0,
            op: Op::Write {
                changes: vec![Change {
                    place,
                    what: What::Put { key: 3, len: 20 },
                }],
                durability: None,
            },
        })
        .collect();
    let begun = rt::elapsed();
    *memory = User::new(world, memory.clone(), Arc::clone(opened)).run(&steps);
    let took = rt::elapsed() - begun;
    let accepted = memory.history.accepted_last(steps.len());
    match accepted == steps.len() {
        _ if refuses || world.is_over() => Ok(()),
        true if took <= WRITE_MAX => Ok(()),
        true => flaw(format!("writes take {took:?} long after all faults")),
        false => flaw(format!(
            "long after all faults, {accepted} of {} writes are accepted",
            steps.len()
        )),
    }
}

impl World {
    /// Checks the memory of memtables, which stays within its limit at any time.
    ///
    /// # Errors
    /// [`Stop::Flaw`]
    pub fn check_memtables(&self, stats: &Stats) -> Outcome {
        let (used, limit) = (stats.memtables_used_bytes, self.options.memory_limit_bytes);
        match used > limit {
            true => flaw(format!("memtables use {used} of {limit} bytes")),
            false => Ok(()),
        }
    }
}
