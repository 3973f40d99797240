//! Checks snapshots: everything in a complete one must have existed while it was written.

use std::path::Path;

use forerun_cache::{Cache, CacheOptions, Clock};
use forerun_server::simulation::read_snapshot;

use super::checks::Failure;
use super::disk::DiskPlan;
use super::model::{Model, Moment, read_value};
use super::system::SimSystem;

/// The copies of a running server.
#[derive(Debug, Default)]
pub struct Copies {
    /// A copy was requested and has not been started.
    is_requested: bool,
    writing: Option<CopyInProgress>,
    /// The number of the last copy that was completed.
    completed: Option<u64>,
}

/// A copy that is being written.
#[derive(Clone, Copy, Debug)]
struct CopyInProgress {
    began: Moment,
    /// The number of the file that it replaces.
    before: Option<u64>,
    /// A disk call may have failed.
    may_fail: bool,
}

impl Copies {
    /// Records that a client or an operator has requested a copy.
    pub fn note_request(&mut self) {
        self.is_requested = true;
    }

    /// Records that the server is about to end. A copy that has not been started is not written.
    pub fn forget_request(&mut self) {
        self.is_requested = false;
    }

    /// Called after a turn of the acceptor. The previous copy has the number `before`.
    ///
    /// # Errors
    /// The server did not begin to write a requested copy.
    pub fn after_acceptor(
        &mut self,
        has_begun: bool,
        now: Moment,
        before: Option<u64>,
    ) -> Result<(), Failure> {
        if std::mem::take(&mut self.is_requested) && !has_begun {
            let message = "a copy was requested, but the server does not write it";
            return Err(Failure::new("snapshot", message));
        }
        if has_begun {
            self.writing.get_or_insert(CopyInProgress {
                began: now,
                before,
                may_fail: false,
            });
        }
        Ok(())
    }

    /// Checks the snapshot at `path` if it was just written. Returns whether there was one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(
        &mut self,
        sim: &SimSystem,
        path: &Path,
        now: Moment,
        model: &mut Model,
    ) -> Result<bool, Failure> {
        let Some(writing) = &mut self.writing else {
            return Ok(false);
        };
        writing.may_fail |= sim.disk_may_fail();
        if sim.task_count() > 0 {
            return Ok(false);
        }
        let CopyInProgress {
            began,
            before,
            may_fail,
        } = *writing;
        self.writing = None;
        if sim.file_number(path) != before {
            if !sim.survives_power_loss(path) && !may_fail {
                let message = "a copy was completed, and a loss of power would take it";
                return Err(Failure::new("durability", message));
            }
            self.completed = sim.file_number(path).filter(|_| !may_fail);
            self.check_file(sim, path, began, now, model)?;
            return Ok(true);
        }
        if may_fail {
            Ok(false)
        } else {
            Err(Failure::new(
                "snapshot",
                "a copy was requested but not written, and the disk did not fail",
            ))
        }
    }

    /// Checks the copy that a crashed server left: it must be intact, and the last one that
    /// the server completed or a newer one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_after_crash(&self, sim: &SimSystem, path: &Path) -> Result<(), Failure> {
        let wrong = |message: String| Failure::new("durability", message);
        let left = sim.file_number(path);
        if left < self.completed {
            return Err(wrong(format!(
                "copy {:?} was completed, and {left:?} is left after the server's crash",
                self.completed
            )));
        }
        if left.is_none() {
            return Ok(());
        }
        load(sim, path).map_err(wrong).map(drop)
    }

    /// Checks a snapshot that was written between two moments.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_file(
        &mut self,
        sim: &SimSystem,
        path: &Path,
        began: Moment,
        ended: Moment,
        model: &mut Model,
    ) -> Result<(), Failure> {
        let wrong = |message: String| Failure::new("snapshot", message);
        let cache = load(sim, path).map_err(wrong)?;
        let guard = cache.pin();
        let mut missing = Vec::new();
        for (name, history) in &model.history {
            let found = guard.peek(name.as_bytes());
            let Some(item) = found else {
                if model.in_progress.get(name).is_some_and(|count| *count > 0) {
                    continue;
                }
                let stays = history.iter().find_map(|lived| {
                    lived.entry.as_ref().filter(|entry| {
                        !lived.uncertain
                            && entry.set.acked.step < began.step
                            && lived.replaced_from.is_none_or(|turn| turn > ended.step)
                            && !model.is_over(entry, ended)
                            && entry.expiry.is_none()
                    })
                });
                missing.extend(stays.map(|entry| (name.clone(), entry.clone())));
                continue;
            };
            let (_, version) = read_value(name, item.value()).map_err(wrong)?;
            let was_there = history.iter().any(|lived| {
                lived
                    .entry
                    .as_ref()
                    .is_some_and(|entry| entry.version == version)
                    && lived.from_step <= ended.step
                    && lived.until_step.is_none_or(|turn| turn >= began.step)
            });
            let is_known = history.iter().any(|lived| {
                lived
                    .entry
                    .as_ref()
                    .is_some_and(|entry| entry.version == version)
            });
            let is_new = !is_known && model.versions_sent.contains(&(name.clone(), version));
            if !was_there && !is_new {
                return Err(wrong(format!(
                    "{name}: version {version} was not there while it was written"
                )));
            }
        }
        for (name, entry) in missing {
            if !model.is_evicted(&name, &entry, ended) {
                return Err(wrong(format!(
                    "{name} was there all the time and is missing: {entry:?}"
                )));
            }
        }
        Ok(())
    }
}

/// Loads a snapshot into a cache that is large enough for it.
fn load(sim: &SimSystem, path: &Path) -> Result<Cache, String> {
    let options = CacheOptions::default()
        .clock(Clock::Manual)
        .memory_limit_bytes(256 << 20)
        .max_item_bytes(1 << 20);
    let cache = Cache::new(options).map_err(|error| error.to_string())?;
    let disk = sim.set_disk(DiskPlan::default());
    let read = read_snapshot(sim, &cache, path);
    sim.set_disk(disk);
    match read {
        Ok(Some(_)) => Ok(cache),
        Ok(None) => Err(format!("{} is missing", path.display())),
        Err(error) => Err(error.to_string()),
    }
}
