//! The lives of the store, one after the other, each from an opening to its end, and the checks
//! between them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forerun_core::sync::thread;
use forerun_db::{Error, Recovery, check_with_io};

use super::at_rest::{check_at_rest, check_entries};
use super::draw::THREADS;
use super::entries::Observed;
use super::faults::SimIo;
use super::program::{Death, End, FaultKind, Life};
use super::reads::Now;
use super::rt;
use super::simulation::{Ended, Opened, Outcome, STORE, Simulation, Stop, flaw};
use super::user::{Memory, Private, User};
use super::wall::Span;

/// Runs a simulation's program to its end or to the first flaw, and reports the flaw.
pub fn run(simulation: &Arc<Simulation>) {
    match run_lives(simulation) {
        Ok(()) => {}
        Err(Stop::Flaw(text)) => simulation.report(text),
        Err(Stop::Dead) => {
            simulation.report("the process died although nothing killed it".to_owned())
        }
    }
    // All threads of the store must end, even after a finding.
    drop(simulation.set_store(None));
}

fn run_lives(simulation: &Arc<Simulation>) -> Outcome {
    let mut memories: Vec<Memory> = (0..THREADS).map(Memory::new).collect();
    let mut ended = Ended::Kept;
    for (number, life) in simulation.program.lives.iter().enumerate() {
        simulation.note(|| {
            let Life {
                faults,
                end,
                end_fault,
                ..
            } = life;
            format!("life {number}: {faults:?}, {end:?}, {end_fault:?}")
        });
        ended = one_life(simulation, number, life, &mut memories, ended)?;
        if simulation.is_over() {
            return Ok(());
        }
    }
    simulation.note(|| "the last life".to_owned());
    last_life(simulation, memories, ended)
}

fn one_life(
    simulation: &Arc<Simulation>,
    number: usize,
    life: &Life,
    memories: &mut Vec<Memory>,
    before: Ended,
) -> Outcome<Ended> {
    let io = simulation.io();
    let options = life.options.as_deref();
    simulation.set_options(options.unwrap_or(&simulation.program.store), life.recovery);
    let (panics, faults): (Vec<_>, Vec<_>) = life
        .faults
        .iter()
        .partition(|planned| matches!(planned.kind, FaultKind::Panic { .. }));
    let death = match life.end {
        End::Death { how, at_call } => Some((how, at_call)),
        End::Close | End::Drop => None,
    };
    io.plan(&faults, death.and_then(|(_, at_call)| at_call));
    if let Some(planned) = panics.first()
        && let FaultKind::Panic { count } = planned.kind
    {
        simulation.panics.plan(planned.at, count);
    }
    let panics_before = simulation.panics.met();
    let begun = simulation.open().and_then(|opened| {
        begin(simulation, &opened, memories, before, Adopt::Yes)?;
        simulation.set_store(Some(opened));
        Ok(())
    });
    let has_begun = begun.is_ok();
    match begun {
        Ok(()) => {
            run_threads(simulation, life, memories)?;
            if simulation.is_over() {
                return Ok(Ended::Kept);
            }
        }
        Err(Stop::Dead) => {}
        Err(other) => return Err(other),
    }
    if let Some(fault) = life.end_fault
        && death.is_none()
        && has_begun
        && !io.is_dead()
    {
        leave_under_fault(simulation, &io, life.end, fault)?;
        return Ok(Ended::Kept);
    }
    let panicked = simulation.panics.met() - panics_before;
    simulation.panics.end_faults();
    simulation
        .counts
        .faults
        .fetch_add(io.end_faults() + panicked, SeqCst);
    let has_failed = io.has_failed() || panicked > 0;
    if !io.is_dead() {
        check_at_rest(simulation, memories, has_failed)?;
    }
    match (io.is_dead(), death) {
        (false, None) => {
            leave(simulation, &io, life.end, has_failed)?;
            Ok(Ended::Kept)
        }
        (_, death) => {
            let how = death.map_or(Death::Process, |(how, _)| how);
            let ended = match how {
                Death::Power => Ended::PowerLost,
                Death::Process if has_begun => Ended::Kept,
                // Nobody has read the state that the previous life left.
                Death::Process => before,
            };
            die(simulation, number, how, memories, ended)
        }
    }
}

/// Whether the model takes over the contents found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adopt {
    Yes,
    No,
}

/// Checks the contents of the store after an opening.
fn begin(
    simulation: &Simulation,
    opened: &Opened,
    memories: &mut [Memory],
    ended: Ended,
    adopt: Adopt,
) -> Outcome {
    simulation.compare_with_read_only(opened)?;
    let keeps_all = simulation.keeps_all() && ended == Ended::Kept;
    let stamps = &simulation.stamps;
    simulation.with_stamps(opened, |found| match adopt {
        Adopt::Yes => stamps.resolve(found, keeps_all, ended == Ended::PowerLost),
        Adopt::No => stamps.look(found, keeps_all),
    })?;
    for memory in memories {
        simulation.settle_private(opened, memory)?;
        let (observed, read) = simulation.observe(opened, memory)?;
        match adopt {
            Adopt::Yes => {
                memory.opening = opened.number;
                simulation.resolve(memory, &observed, read, ended)?;
            }
            Adopt::No => {
                let floor = simulation.floor(memory.thread).after(ended);
                let history = &mut memory.history;
                let resolved = history.resolve(&observed, floor, floor, read, simulation);
                resolved.map_err(|why| Stop::Flaw(after(ended, memory.thread, &why)))?;
            }
        }
    }
    Ok(())
}

fn after(ended: Ended, thread: usize, why: &str) -> String {
    let what = match ended {
        Ended::Kept => "after an opening",
        Ended::PowerLost => "after the power was lost",
    };
    format!("{what}, of thread {thread}: {why}")
}

impl Simulation {
    /// Makes the contents found for a thread's keys the certain state.
    ///
    /// # Errors
    /// [`Stop::Flaw`]: they are not among the possible ones.
    pub fn resolve(
        &self,
        memory: &mut Memory,
        observed: &Observed,
        read: Span,
        ended: Ended,
    ) -> Outcome {
        let thread = memory.thread;
        let floor = self.floor(thread);
        let history = &mut memory.history;
        let resolved = history.resolve(observed, floor.after(ended), floor.power_lost, read, self);
        resolved.map_err(|why| Stop::Flaw(after(ended, thread, &why)))?;
        self.resolved(thread, memory.opening, history.len(), ended);
        Ok(())
    }

    /// A thread's keys as they are in the store; reading is retried until it succeeds.
    pub fn observe(&self, opened: &Opened, memory: &Memory) -> Outcome<(Observed, Span)> {
        const TRIES: usize = 100;
        let private = match memory.private {
            Private::Present(space) => {
                let name = super::draw::private_name(memory.thread);
                opened.db.find_keyspace(&name).map(|found| (space, found))
            }
            _ => None,
        };
        let now = Now {
            opened,
            private,
            shape: self,
        };
        for _ in 0..TRIES {
            let begun = self.begin();
            match now.observe_own(memory) {
                Ok(observed) => return Ok((observed, self.end(begun))),
                Err(error) => self.allow(&error, Some(opened), "read the store")?,
            }
            rt::sleep(Duration::from_millis(10));
        }
        flaw("the store cannot be read, although the faults ended long ago")
    }
}

fn run_threads(simulation: &Arc<Simulation>, life: &Life, memories: &mut Vec<Memory>) -> Outcome {
    let Some(opened) = simulation.store() else {
        return flaw("the store is not open");
    };
    let mut threads = Vec::new();
    let mut rest = memories.split_off(life.threads.len().min(memories.len()));
    for (memory, steps) in memories.drain(..).zip(&life.threads) {
        let (simulation, opened, steps) =
            (Arc::clone(simulation), Arc::clone(&opened), steps.clone());
        let name = format!("user {}", memory.thread);
        let body = move || User::new(&simulation, memory, opened).run(&steps);
        let spawned = thread::Builder::new().name(name).spawn(body);
        match spawned {
            Ok(handle) => threads.push(handle),
            Err(error) => return flaw(format!("no thread can be started: {error}")),
        }
    }
    drop(opened);
    for handle in threads {
        match handle.join() {
            Ok(memory) => memories.push(memory),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text =
                    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                return flaw(format!(
                    "a user's thread panicked: {}",
                    text.unwrap_or_default()
                ));
            }
        }
    }
    memories.append(&mut rest);
    Ok(())
}

/// Closes the store, or drops its last handle.
fn leave(simulation: &Simulation, io: &SimIo, end: End, has_failed: bool) -> Outcome {
    let Some(opened) = simulation.set_store(None) else {
        return flaw("the store is not open");
    };
    let poisoned = opened.db.stats().poisoned;
    let (marks, least) = (simulation.marks(opened.number), simulation.stamps.least());
    let Some(Opened { db, spaces, .. }) = Arc::into_inner(opened) else {
        return flaw("a thread still holds the store");
    };
    drop(spaces);
    match end {
        End::Drop => drop(db),
        _ => match db.close() {
            // Closing makes the log durable.
            Ok(()) => {
                simulation.is_closed.store(true, SeqCst);
                if simulation.keeps_all() {
                    simulation.make_safe(&marks);
                    simulation.stamps.make_safe(least);
                }
            }
            Err(_) if poisoned.is_some() => {}
            Err(error) => return flaw(format!("the store cannot be closed: {error}")),
        },
    }
    look_offline(simulation, io, has_failed)?;
    simulation.look_read_only(io)
}

/// Closes the store, or drops its last handle, while calls fail. No acknowledged write may be lost,
/// and no file may stay open.
fn leave_under_fault(simulation: &Simulation, io: &SimIo, end: End, fault: FaultKind) -> Outcome {
    let Some(opened) = simulation.set_store(None) else {
        return flaw("the store is not open");
    };
    let (marks, least) = (simulation.marks(opened.number), simulation.stamps.least());
    let Some(Opened { db, spaces, .. }) = Arc::into_inner(opened) else {
        return flaw("a thread still holds the store");
    };
    drop(spaces);
    io.fail(fault);
    match end {
        End::Drop => drop(db),
        _ => match db.close() {
            Ok(()) if simulation.keeps_all() => {
                simulation.make_safe(&marks);
                simulation.stamps.make_safe(least);
            }
            Ok(()) => {}
            Err(error) => simulation.allow(&error, None, "close the store")?,
        },
    }
    simulation.panics.end_faults();
    simulation.counts.faults.fetch_add(io.end_faults(), SeqCst);
    let (open, _) = io.open_files();
    if open > 0 {
        return flaw(format!(
            "{open} files are still open after the store was closed while calls failed"
        ));
    }
    look_dead(simulation, io)?;
    simulation.look_read_only(io)
}

/// Checks what a closed store leaves: no open file, and no file that it does not need.
fn look_offline(simulation: &Simulation, io: &SimIo, has_failed: bool) -> Outcome {
    let (open, _) = io.open_files();
    if open > 0 {
        return flaw(format!(
            "{open} files are still open after the store was closed"
        ));
    }
    match check_with_io(Arc::new(io.clone()), STORE, &simulation.options()) {
        Ok(checked) => {
            if let Some(problem) = checked.problems.first() {
                return flaw(format!(
                    "the store is damaged after it was closed: {problem}"
                ));
            }
            if checked.leftovers > 0 && !has_failed {
                let files = simulation.files_in(Path::new(STORE));
                return flaw(format!(
                    "{} runs are left that no manifest names: {files:?}",
                    checked.leftovers
                ));
            }
        }
        Err(Error::NotAStore { .. }) if has_failed => {}
        Err(error) => {
            return flaw(format!(
                "the store cannot be checked after it was closed: {error}"
            ));
        }
    }
    match simulation.unknown_files() {
        files if !files.is_empty() && !has_failed => {
            flaw(format!("unknown files are left: {files:?}"))
        }
        _ => Ok(()),
    }
}

/// Ends a life by the death of the process or by a loss of power. The possible results are checked
/// on several disks; the next life continues with one of them.
fn die(
    simulation: &Simulation,
    number: usize,
    how: Death,
    memories: &mut [Memory],
    ended: Ended,
) -> Outcome<Ended> {
    const DISKS: u64 = 3;
    let io = simulation.io();
    io.die();
    simulation.counts.deaths.fetch_add(1, SeqCst);
    drop(simulation.set_store(None));
    let (open, _) = io.open_files();
    if open > 0 {
        return flaw(format!(
            "{open} files are still open after all handles were dropped"
        ));
    }
    let disks = match how {
        Death::Process => vec![io.after_kill()],
        Death::Power => {
            let seed = simulation
                .program
                .seed
                .wrapping_mul(31)
                .wrapping_add(number as u64);
            let drawn = (0..DISKS).map(|disk| match disk {
                0 => seed % 2,
                _ => seed.wrapping_mul(1000).wrapping_add(disk) | 2,
            });
            drawn.map(|seed| io.after_power_loss(seed)).collect()
        }
    };
    let last = disks.len() - 1;
    for (disk, after) in disks.into_iter().enumerate() {
        simulation.note(|| format!("after {how:?}: disk {disk}"));
        simulation.set_io(after.clone());
        look_dead(simulation, &after)?;
        simulation.look_read_only(&after)?;
        if disk == last {
            for memory in memories.iter_mut() {
                simulation.check_copies(&after, memory)?;
            }
        } else {
            let mut memories = memories.to_vec();
            for memory in &mut memories {
                simulation.check_copies(&after, memory)?;
            }
            let opened = simulation.open()?;
            begin(simulation, &opened, &mut memories, ended, Adopt::No)?;
        }
    }
    Ok(ended)
}

/// A store that was not closed must be undamaged.
fn look_dead(simulation: &Simulation, io: &SimIo) -> Outcome {
    match check_with_io(Arc::new(io.clone()), STORE, &simulation.options()) {
        Ok(checked) => match checked.problems.first() {
            None => Ok(()),
            Some(problem) => flaw(format!("the store is damaged after a death: {problem}")),
        },
        // The store was just being created.
        Err(Error::NotAStore { .. }) => Ok(()),
        Err(error) => flaw(format!(
            "the store cannot be checked after a death: {error}"
        )),
    }
}

/// Everything is in runs, so the log must consist only of the segment for the next write.
fn look_at_log(simulation: &Simulation) -> Outcome {
    let mut segments = simulation.files_in(Path::new(STORE));
    segments.retain(|name| name.ends_with(".log"));
    match segments.len() {
        0 | 1 => Ok(()),
        _ => flaw(format!(
            "everything is in runs, and the log still has these segments: {segments:?}"
        )),
    }
}

/// A life without faults: everything must be there, including what faults had made unavailable.
fn last_life(simulation: &Arc<Simulation>, mut memories: Vec<Memory>, ended: Ended) -> Outcome {
    let io = simulation.io();
    io.plan(&[], None);
    // A store that was closed has no interrupted write.
    let recovery = match simulation.is_closed.load(SeqCst) {
        true => Recovery::Strict,
        false => Recovery::DropTail,
    };
    simulation.set_options(&simulation.program.store, recovery);
    let opened = simulation.open()?;
    simulation.set_options(&simulation.program.store, Recovery::DropTail);
    begin(simulation, &opened, &mut memories, ended, Adopt::Yes)?;
    simulation.set_store(Some(opened));
    check_at_rest(simulation, &mut memories, false)?;
    for memory in &mut memories {
        simulation.check_copies(&io, memory)?;
    }
    let Some(opened) = simulation.store() else {
        return flaw("the store is not open");
    };
    if let Err(error) = opened.db.compact() {
        return flaw(format!("the store cannot be compacted: {error}"));
    }
    if let Err(error) = opened.db.wait_idle() {
        return flaw(format!("the compacted store does not become idle: {error}"));
    }
    check_entries(simulation, &opened)?;
    drop(opened);
    look_at_log(simulation)?;
    check_at_rest(simulation, &mut memories, false)?;
    leave(simulation, &io, End::Close, false)?;
    // Files that a death left unfinished have been written again.
    let mut unfinished = simulation.files_in(Path::new(STORE));
    unfinished.retain(|name| matches!(name.as_str(), "MANIFEST.new" | "CLOSED.new"));
    if !unfinished.is_empty() {
        return flaw(format!("unfinished files are left: {unfinished:?}"));
    }
    let Some(damage) = &simulation.program.damage else {
        return Ok(());
    };
    simulation.note(|| format!("damage: {:?}, {:?}", damage.when, damage.overwrites));
    let opened = simulation.open()?;
    begin(simulation, &opened, &mut memories, Ended::Kept, Adopt::Yes)?;
    super::damage::run(simulation, damage, opened, memories)
}
