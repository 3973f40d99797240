//! Snapshots: everything in a complete one must have existed while it was written.

use std::path::Path;

use forerun_cache::{Cache, CacheOptions};
use forerun_server::simulation::read_snapshot;

use super::checks::Failure;
use super::model::{Model, Stamp, read_value};
use super::system::{DiskPlan, Sim};

/// The snapshot that is being written.
#[derive(Debug, Default)]
pub struct Copies {
    asked: bool,
    began: Option<Stamp>,
    last: Option<Vec<u8>>,
}

impl Copies {
    pub fn asked(&mut self) {
        self.asked = true;
    }

    /// A thread began to write.
    pub fn began(&mut self, now: Stamp) {
        self.began.get_or_insert(now);
    }

    /// Checks the snapshot at `path` if it was just written. Returns whether there was one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(
        &mut self,
        sim: &Sim,
        path: &Path,
        is_written: bool,
        now: Stamp,
        model: &Model,
    ) -> Result<bool, Failure> {
        let Some(began) = self.began.filter(|_| is_written) else {
            return Ok(false);
        };
        self.began = None;
        let file = sim.file(path);
        if file.is_none() || file == self.last {
            return Ok(false);
        }
        self.last = file;
        self.check_file(sim, path, began, now, model)?;
        Ok(true)
    }

    /// Checks a snapshot that was written between two moments.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_file(
        &mut self,
        sim: &Sim,
        path: &Path,
        began: Stamp,
        ended: Stamp,
        model: &Model,
    ) -> Result<(), Failure> {
        let wrong = |what: String| Failure::new("snapshot", what);
        let cache = Cache::new(CacheOptions {
            memory_limit_bytes: 256 << 20,
            max_item_bytes: 1 << 20,
            ..CacheOptions::default()
        });
        let cache = cache.map_err(|error| wrong(error.to_string()))?;
        let disk = sim.set_disk(DiskPlan::default());
        let read = read_snapshot(sim, &cache, path);
        sim.set_disk(disk);
        let read = read.map_err(|error| wrong(error.to_string()))?;
        if read.is_none() {
            return Err(wrong(format!("{} is missing", path.display())));
        }
        let guard = cache.pin();
        for (name, history) in &model.history {
            let found = guard.peek(name.as_bytes());
            let Some(item) = found else {
                if model.under_way.get(name).is_some_and(|count| *count > 0) {
                    continue;
                }
                let stays = history.iter().find(|lived| {
                    lived.entry.as_ref().is_some_and(|entry| {
                        !lived.unsure
                            && entry.set.acked.turn < began.turn
                            && lived.replaced_from.is_none_or(|turn| turn > ended.turn)
                            && !model.may_be_gone(entry, ended)
                            && entry.expiry.is_none()
                    })
                });
                if let Some(stays) = stays {
                    return Err(wrong(format!(
                        "{name} was there all the time and is missing: {stays:?}"
                    )));
                }
                continue;
            };
            let (_, version) = read_value(name, item.value()).map_err(wrong)?;
            let was_there = history.iter().any(|lived| {
                lived
                    .entry
                    .as_ref()
                    .is_some_and(|entry| entry.version == version)
                    && lived.from_turn <= ended.turn
                    && lived.until_turn.is_none_or(|turn| turn >= began.turn)
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
        Ok(())
    }
}
