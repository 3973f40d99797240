//! The incarnations of the store in sequence, each from an opening to its end, and the checks
//! between them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forerun_core::sync::thread;
use forerun_db::{Error, Recovery, check_with_io};

use super::client_thread::{ClientThread, PrivateKeyspace, ThreadModel};
use super::draw::THREADS;
use super::entries::Observed;
use super::faults::SimIo;
use super::program::{Crash, End, FaultKind, Incarnation};
use super::quiescent::{check_entries, check_quiescent};
use super::reads::OpenStore;
use super::runtime;
use super::simulation::{IncarnationEnd, Opened, Outcome, STORE, Simulation, Stop, violation};
use super::wall_clock::Span;

/// Runs a simulation's program to its end or to the first violation, which it reports.
pub fn run(simulation: &Arc<Simulation>) {
    match run_incarnations(simulation) {
        Ok(()) => {}
        Err(Stop::Violation(text)) => simulation.report(text),
        Err(Stop::Crashed) => {
            simulation.report("the process crashed although nothing killed it".to_owned())
        }
    }
    // All threads of the store must end, even after a finding.
    drop(simulation.set_store(None));
}

fn run_incarnations(simulation: &Arc<Simulation>) -> Outcome {
    let mut models: Vec<ThreadModel> = (0..THREADS).map(ThreadModel::new).collect();
    let mut ended = IncarnationEnd::Kept;
    for (number, incarnation) in simulation.program.incarnations.iter().enumerate() {
        simulation.note(|| {
            let Incarnation {
                faults,
                end,
                end_fault,
                ..
            } = incarnation;
            format!("incarnation {number}: {faults:?}, {end:?}, {end_fault:?}")
        });
        ended = run_incarnation(simulation, number, incarnation, &mut models, ended)?;
        if simulation.is_over() {
            return Ok(());
        }
    }
    simulation.note(|| "the last incarnation".to_owned());
    run_last_incarnation(simulation, models, ended)
}

fn run_incarnation(
    simulation: &Arc<Simulation>,
    number: usize,
    incarnation: &Incarnation,
    models: &mut Vec<ThreadModel>,
    before: IncarnationEnd,
) -> Outcome<IncarnationEnd> {
    let io = simulation.io();
    let options = incarnation.options.as_deref();
    simulation.set_options(
        options.unwrap_or(&simulation.program.store),
        incarnation.recovery,
    );
    let (panics, faults): (Vec<_>, Vec<_>) = incarnation
        .faults
        .iter()
        .partition(|planned| matches!(planned.kind, FaultKind::Panic { .. }));
    let crash = match incarnation.end {
        End::Crash { how, at_call } => Some((how, at_call)),
        End::Close | End::Drop => None,
    };
    io.plan(&faults, crash.and_then(|(_, at_call)| at_call));
    if let Some(planned) = panics.first()
        && let FaultKind::Panic { count } = planned.kind
    {
        simulation.panics.plan(planned.at, count);
    }
    let panics_before = simulation.panics.happened();
    let start = simulation.open().and_then(|opened| {
        check_opening(simulation, &opened, models, before, Adopt::Yes)?;
        simulation.set_store(Some(opened));
        Ok(())
    });
    let was_opened = start.is_ok();
    match start {
        Ok(()) => {
            run_threads(simulation, incarnation, models)?;
            if simulation.is_over() {
                return Ok(IncarnationEnd::Kept);
            }
        }
        Err(Stop::Crashed) => {}
        Err(other) => return Err(other),
    }
    if let Some(fault) = incarnation.end_fault
        && crash.is_none()
        && was_opened
        && !io.is_crashed()
    {
        close_under_fault(simulation, &io, incarnation.end, fault)?;
        return Ok(IncarnationEnd::Kept);
    }
    let panicked = simulation.panics.happened() - panics_before;
    simulation.panics.end_faults();
    simulation
        .counts
        .faults
        .fetch_add(io.end_faults() + panicked, SeqCst);
    let has_failed = io.has_failed() || panicked > 0;
    if !io.is_crashed() {
        check_quiescent(simulation, models, has_failed)?;
    }
    match (io.is_crashed(), crash) {
        (false, None) => {
            close(simulation, &io, incarnation.end, has_failed)?;
            Ok(IncarnationEnd::Kept)
        }
        (_, crash) => {
            let how = crash.map_or(Crash::Process, |(how, _)| how);
            let ended = match how {
                Crash::Power => IncarnationEnd::PowerLost,
                Crash::Process if was_opened => IncarnationEnd::Kept,
                // No thread has read the state that the previous incarnation left.
                Crash::Process => before,
            };
            end_by_crash(simulation, number, how, models, ended)
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
fn check_opening(
    simulation: &Simulation,
    opened: &Opened,
    models: &mut [ThreadModel],
    ended: IncarnationEnd,
    adopt: Adopt,
) -> Outcome {
    simulation.compare_with_read_only(opened)?;
    let keeps_all = simulation.keeps_all() && ended == IncarnationEnd::Kept;
    let stamps = &simulation.stamps;
    simulation.with_stamps(opened, |found| match adopt {
        Adopt::Yes => stamps.resolve(found, keeps_all, ended == IncarnationEnd::PowerLost),
        Adopt::No => stamps.check_opening(found, keeps_all),
    })?;
    for model in models {
        simulation.resolve_private(opened, model)?;
        let (observed, read) = simulation.observe(opened, model)?;
        match adopt {
            Adopt::Yes => {
                model.opening = opened.number;
                simulation.resolve(model, &observed, read, ended)?;
            }
            Adopt::No => {
                let floor = simulation.floor(model.thread).after(ended);
                let history = &mut model.history;
                let resolved = history.resolve(&observed, floor, floor, read, simulation);
                resolved.map_err(|why| Stop::Violation(after(ended, model.thread, &why)))?;
            }
        }
    }
    Ok(())
}

fn after(ended: IncarnationEnd, thread: usize, why: &str) -> String {
    let what = match ended {
        IncarnationEnd::Kept => "after an opening",
        IncarnationEnd::PowerLost => "after the power was lost",
    };
    format!("{what}, of thread {thread}: {why}")
}

impl Simulation {
    /// Makes the contents found for a thread's keys the certain state.
    ///
    /// # Errors
    /// [`Stop::Violation`]: they are not among the possible ones.
    pub fn resolve(
        &self,
        model: &mut ThreadModel,
        observed: &Observed,
        read: Span,
        ended: IncarnationEnd,
    ) -> Outcome {
        let thread = model.thread;
        let floor = self.floor(thread);
        let history = &mut model.history;
        let resolved = history.resolve(observed, floor.after(ended), floor.power_lost, read, self);
        resolved.map_err(|why| Stop::Violation(after(ended, thread, &why)))?;
        self.resolved(thread, model.opening, history.len(), ended);
        Ok(())
    }

    /// A thread's keys as they are in the store; reading is retried until it succeeds.
    pub fn observe(&self, opened: &Opened, model: &ThreadModel) -> Outcome<(Observed, Span)> {
        const TRIES: usize = 100;
        let private = match model.private {
            PrivateKeyspace::Present(keyspace_id) => {
                let name = super::draw::private_name(model.thread);
                opened
                    .db
                    .find_keyspace(&name)
                    .map(|found| (keyspace_id, found))
            }
            _ => None,
        };
        let now = OpenStore {
            opened,
            private,
            shape: self,
        };
        for _ in 0..TRIES {
            let start = self.begin();
            match now.observe_own(model) {
                Ok(observed) => return Ok((observed, self.end(start))),
                Err(error) => self.allow(&error, Some(opened), "read the store")?,
            }
            runtime::sleep(Duration::from_millis(10));
        }
        violation("the store cannot be read, although the faults ended long ago")
    }
}

fn run_threads(
    simulation: &Arc<Simulation>,
    incarnation: &Incarnation,
    models: &mut Vec<ThreadModel>,
) -> Outcome {
    let Some(opened) = simulation.store() else {
        return violation("the store is not open");
    };
    let mut threads = Vec::new();
    let mut rest = models.split_off(incarnation.threads.len().min(models.len()));
    for (model, steps) in models.drain(..).zip(&incarnation.threads) {
        let (simulation, opened, steps) =
            (Arc::clone(simulation), Arc::clone(&opened), steps.clone());
        let name = format!("user {}", model.thread);
        let body = move || ClientThread::new(&simulation, model, opened).run(&steps);
        let spawned = thread::Builder::new().name(name).spawn(body);
        match spawned {
            Ok(handle) => threads.push(handle),
            Err(error) => return violation(format!("no thread can be started: {error}")),
        }
    }
    drop(opened);
    for handle in threads {
        match handle.join() {
            Ok(model) => models.push(model),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text =
                    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                return violation(format!(
                    "a user's thread panicked: {}",
                    text.unwrap_or_default()
                ));
            }
        }
    }
    models.append(&mut rest);
    Ok(())
}

/// Closes the store, or drops its last handle.
fn close(simulation: &Simulation, io: &SimIo, end: End, has_failed: bool) -> Outcome {
    let Some(opened) = simulation.set_store(None) else {
        return violation("the store is not open");
    };
    let poisoned = opened.db.stats().poisoned;
    let (acknowledged, min_visible) = (
        simulation.acknowledged_writes(opened.number),
        simulation.stamps.min_visible(),
    );
    let Some(Opened { db, keyspaces, .. }) = Arc::into_inner(opened) else {
        return violation("a thread still holds the store");
    };
    drop(keyspaces);
    match end {
        End::Drop => drop(db),
        _ => match db.close() {
            // Closing makes the log durable.
            Ok(()) => {
                simulation.is_closed.store(true, SeqCst);
                if simulation.keeps_all() {
                    simulation.mark_durable(&acknowledged);
                    simulation.stamps.mark_durable(min_visible);
                }
            }
            Err(_) if poisoned.is_some() => {}
            Err(error) => return violation(format!("the store cannot be closed: {error}")),
        },
    }
    check_closed(simulation, io, has_failed)?;
    simulation.check_read_only(io)
}

/// Closes the store, or drops its last handle, while calls fail. No acknowledged write may be lost,
/// and no file may stay open.
fn close_under_fault(simulation: &Simulation, io: &SimIo, end: End, fault: FaultKind) -> Outcome {
    let Some(opened) = simulation.set_store(None) else {
        return violation("the store is not open");
    };
    let (acknowledged, min_visible) = (
        simulation.acknowledged_writes(opened.number),
        simulation.stamps.min_visible(),
    );
    let Some(Opened { db, keyspaces, .. }) = Arc::into_inner(opened) else {
        return violation("a thread still holds the store");
    };
    drop(keyspaces);
    io.fail(fault);
    match end {
        End::Drop => drop(db),
        _ => match db.close() {
            Ok(()) if simulation.keeps_all() => {
                simulation.mark_durable(&acknowledged);
                simulation.stamps.mark_durable(min_visible);
            }
            Ok(()) => {}
            Err(error) => simulation.allow(&error, None, "close the store")?,
        },
    }
    simulation.panics.end_faults();
    simulation.counts.faults.fetch_add(io.end_faults(), SeqCst);
    let (open, _) = io.open_files();
    if open > 0 {
        return violation(format!(
            "{open} files are still open after the store was closed while calls failed"
        ));
    }
    check_unclosed(simulation, io)?;
    simulation.check_read_only(io)
}

/// Checks that a closed store leaves no open file, and no file that it does not need.
fn check_closed(simulation: &Simulation, io: &SimIo, has_failed: bool) -> Outcome {
    let (open, _) = io.open_files();
    if open > 0 {
        return violation(format!(
            "{open} files are still open after the store was closed"
        ));
    }
    match check_with_io(Arc::new(io.clone()), STORE, &simulation.options()) {
        Ok(checked) => {
            if let Some(problem) = checked.problems.first() {
                return violation(format!(
                    "the store is damaged after it was closed: {problem}"
                ));
            }
            if checked.leftovers > 0 && !has_failed {
                let files = simulation.files_in(Path::new(STORE));
                return violation(format!(
                    "{} runs are left that no manifest names: {files:?}",
                    checked.leftovers
                ));
            }
        }
        Err(Error::NotAStore { .. }) if has_failed => {}
        Err(error) => {
            return violation(format!(
                "the store cannot be checked after it was closed: {error}"
            ));
        }
    }
    match simulation.unknown_files() {
        files if !files.is_empty() && !has_failed => {
            violation(format!("unknown files are left: {files:?}"))
        }
        _ => Ok(()),
    }
}

/// Ends an incarnation by the crash of the process or by a loss of power. The possible results are
/// checked on several disks; the next incarnation continues with one of them.
fn end_by_crash(
    simulation: &Simulation,
    number: usize,
    how: Crash,
    models: &mut [ThreadModel],
    ended: IncarnationEnd,
) -> Outcome<IncarnationEnd> {
    const DISKS: u64 = 3;
    let io = simulation.io();
    io.die();
    simulation.counts.crashes.fetch_add(1, SeqCst);
    drop(simulation.set_store(None));
    let (open, _) = io.open_files();
    if open > 0 {
        return violation(format!(
            "{open} files are still open after all handles were dropped"
        ));
    }
    let disks = match how {
        Crash::Process => vec![io.after_kill()],
        Crash::Power => {
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
        check_unclosed(simulation, &after)?;
        simulation.check_read_only(&after)?;
        if disk == last {
            for model in models.iter_mut() {
                simulation.check_copies(&after, model)?;
            }
        } else {
            let mut models = models.to_vec();
            for model in &mut models {
                simulation.check_copies(&after, model)?;
            }
            let opened = simulation.open()?;
            check_opening(simulation, &opened, &mut models, ended, Adopt::No)?;
        }
    }
    Ok(ended)
}

/// A store that was not closed must be undamaged.
fn check_unclosed(simulation: &Simulation, io: &SimIo) -> Outcome {
    match check_with_io(Arc::new(io.clone()), STORE, &simulation.options()) {
        Ok(checked) => match checked.problems.first() {
            None => Ok(()),
            Some(problem) => violation(format!("the store is damaged after a crash: {problem}")),
        },
        // The store was just being created.
        Err(Error::NotAStore { .. }) => Ok(()),
        Err(error) => violation(format!(
            "the store cannot be checked after a crash: {error}"
        )),
    }
}

/// Everything is in runs, so the log must consist only of the segment for the next write.
fn check_log_is_short(simulation: &Simulation) -> Outcome {
    let mut segments = simulation.files_in(Path::new(STORE));
    segments.retain(|name| name.ends_with(".log"));
    match segments.len() {
        0 | 1 => Ok(()),
        _ => violation(format!(
            "everything is in runs, and the log still has these segments: {segments:?}"
        )),
    }
}

/// An incarnation without faults: all entries must be there, including those that faults had made
/// unavailable.
fn run_last_incarnation(
    simulation: &Arc<Simulation>,
    mut models: Vec<ThreadModel>,
    ended: IncarnationEnd,
) -> Outcome {
    let io = simulation.io();
    io.plan(&[], None);
    // A store that was closed has no interrupted write.
    let recovery = if simulation.is_closed.load(SeqCst) {
        Recovery::Strict
    } else {
        Recovery::DropTail
    };
    simulation.set_options(&simulation.program.store, recovery);
    let opened = simulation.open()?;
    simulation.set_options(&simulation.program.store, Recovery::DropTail);
    check_opening(simulation, &opened, &mut models, ended, Adopt::Yes)?;
    simulation.set_store(Some(opened));
    check_quiescent(simulation, &mut models, false)?;
    for model in &mut models {
        simulation.check_copies(&io, model)?;
    }
    let Some(opened) = simulation.store() else {
        return violation("the store is not open");
    };
    if let Err(error) = opened.db.compact() {
        return violation(format!("the store cannot be compacted: {error}"));
    }
    if let Err(error) = opened.db.wait_idle() {
        return violation(format!("the compacted store does not become idle: {error}"));
    }
    check_entries(simulation, &opened)?;
    drop(opened);
    check_log_is_short(simulation)?;
    check_quiescent(simulation, &mut models, false)?;
    close(simulation, &io, End::Close, false)?;
    // Files that a crash left unfinished have been written again.
    let mut unfinished = simulation.files_in(Path::new(STORE));
    unfinished.retain(|name| matches!(name.as_str(), "MANIFEST.new" | "CLOSED.new"));
    if !unfinished.is_empty() {
        return violation(format!("unfinished files are left: {unfinished:?}"));
    }
    let Some(damage) = &simulation.program.damage else {
        return Ok(());
    };
    simulation.note(|| format!("damage: {:?}, {:?}", damage.when, damage.overwrites));
    let opened = simulation.open()?;
    check_opening(
        simulation,
        &opened,
        &mut models,
        IncarnationEnd::Kept,
        Adopt::Yes,
    )?;
    super::damage::run(simulation, damage, opened, models)
}
