//! Steps that copy the store: checkpoints, backups, and restored stores. A copy must hold the
//! values that the thread's keys had when it was made, and the same stamp in all keyspaces.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use forerun_db::{Background, Backups, Create, Db, Error, FileCopyOptions};

use super::client_thread::{CallStart, ClientThread, PrivateKeyspace, ThreadModel};
use super::compare::compare;
use super::draw::{private_name, shared_name};
use super::entries::{Key, KeyspaceId, KeyspaceRules, State, Value, Visibility};
use super::faults::SimIo;
use super::reads::OpenStore;
use super::simulation::{Opened, Outcome, STORE, Simulation, Stop, violation};
use super::stamps::{MinVisible, STAMP_KEY, decode};

/// One in this many restored stores is not opened at once.
const UNOPENED_ONE_IN: u32 = 3;

/// The copies that a thread made, across incarnations.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    made: u32,
    /// The last checkpoint.
    checkpoint: Option<(PathBuf, Expected)>,
    /// The store that was restored last.
    restored: Option<(PathBuf, Expected)>,
    /// The backups, by number.
    backups: BTreeMap<u64, Expected>,
}

/// The expected contents of a copy.
#[derive(Clone, Debug)]
pub struct Expected {
    state: State,
    /// Expired entries, which a copy shows again if the clock was set back.
    dormant: BTreeMap<(KeyspaceId, Key), Vec<Value>>,
    private: Option<KeyspaceId>,
    min_visible: MinVisible,
}

impl Copies {
    /// A path that no copy has yet.
    pub fn next_path(&mut self, thread: usize, what: &str) -> PathBuf {
        self.made += 1;
        PathBuf::from(format!("/{what}-{thread}-{}", self.made))
    }
}

impl ClientThread<'_> {
    fn expected(&self, start: &CallStart) -> Expected {
        Expected {
            state: self.model.history.current().clone(),
            dormant: if self.simulation.clock_may_go_back() {
                self.model.history.dormant(self.simulation)
            } else {
                BTreeMap::new()
            },
            private: self.private_keyspace().map(|(keyspace_id, _)| keyspace_id),
            min_visible: start.min_visible,
        }
    }

    pub fn checkpoint(&mut self) -> Outcome {
        let path = self.model.copies.next_path(self.model.thread, "copy");
        let start = self.begin();
        let expected = self.expected(&start);
        match self.opened.db.checkpoint(&path) {
            Ok(()) if self.is_alive() => {
                let io = self.simulation.io();
                self.simulation
                    .check_copy(&io, &path, &self.model, &expected)?;
                self.model.copies.checkpoint = Some((path, expected));
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(error) => self.allow(&error, "make a checkpoint"),
        }
    }

    fn backups(&self) -> forerun_db::Result<Backups> {
        let path = format!("/backups-{}", self.model.thread);
        let mut backups =
            Backups::open_with_io(Arc::new(self.simulation.io()), path, Create::IfMissing)?;
        // A panic is a finding.
        backups.set_copy_options(FileCopyOptions::default().on_progress(|progress| {
            assert!(
                0 < progress.done_bytes && progress.done_bytes <= progress.total_bytes,
                "{progress:?}"
            );
        }));
        Ok(backups)
    }

    pub fn backup(&mut self) -> Outcome {
        let start = self.begin();
        let expected = self.expected(&start);
        let made = self.backups().and_then(|mut backups| {
            let made = backups.create(&self.opened.db)?;
            Ok((made, backups.verify()))
        });
        match made {
            Ok((made, checked)) if self.is_alive() => {
                self.model.copies.backups.insert(made.number, expected);
                match checked {
                    // Files left by earlier attempts were removed before this backup was made.
                    Ok(checked) if checked.leftovers > 0 => violation(format!(
                        "{} files that no backup needs are left beside backup {}",
                        checked.leftovers, made.number
                    )),
                    Ok(checked) => match checked.problems.first() {
                        Some(problem) => self.allow(problem, "verify the backups"),
                        None => Ok(()),
                    },
                    Err(error) => self.allow(&error, "verify the backups"),
                }
            }
            Ok(_) => Ok(()),
            Err(error) => self.allow(&error, "make a backup"),
        }
    }

    /// Restores the oldest backup and the newest.
    pub fn restore(&mut self) -> Outcome {
        let io = self.simulation.io();
        let result = self.simulation.restore_all(&io, &mut self.model);
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => self.allow(&error, "restore a backup"),
            Err(stop) => Err(stop),
        }
    }

    pub fn keep_backups(&mut self, newest: u8) -> Outcome {
        if self.model.copies.backups.is_empty() {
            return Ok(());
        }
        let newest = usize::from(newest);
        let kept = self.backups().and_then(|mut backups| {
            backups.purge_old(newest)?;
            Ok((backups.list()?, backups.verify()?.leftovers))
        });
        let known = &mut self.model.copies.backups;
        match kept {
            Ok(_) if self.simulation.io().is_crashed() => {
                known.clear();
                Ok(())
            }
            Ok((_, leftovers)) if leftovers > 0 => violation(format!(
                "{leftovers} files that no backup needs are left after backups were removed"
            )),
            Ok((list, _)) if list.backups.len() <= newest => {
                // Backups whose creation was not reported count too.
                let oldest = list.backups.iter().map(|backup| backup.number).min();
                if let (true, Some(oldest)) = (list.backups.len() == newest, oldest) {
                    known.retain(|number, _| *number >= oldest);
                }
                Ok(())
            }
            Ok((list, _)) => violation(format!(
                "{} backups are left, and only {newest} should be kept",
                list.backups.len()
            )),
            Err(error) => {
                // Some backups may have been removed, and it is not known which.
                known.clear();
                self.allow(&error, "remove backups")
            }
        }
    }
}

impl ClientThread<'_> {
    /// Deletes the newest backup that is known to exist, or the oldest.
    pub fn delete_backup(&mut self, is_newest: bool) -> Outcome {
        let mut known = self.model.copies.backups.keys().copied();
        let number = if is_newest {
            known.next_back()
        } else {
            known.next()
        };
        let Some(number) = number else { return Ok(()) };
        let deleted = self.backups().and_then(|mut backups| {
            backups.delete(number)?;
            Ok((backups.list()?, backups.verify()?.leftovers))
        });
        // A failed call may still have deleted the backup.
        self.model.copies.backups.remove(&number);
        match deleted {
            Ok(_) if !self.is_alive() => Ok(()),
            Ok((_, leftovers)) if leftovers > 0 => violation(format!(
                "{leftovers} files that no backup needs are left after backup {number} was deleted"
            )),
            Ok((list, _)) => {
                if list.backups.iter().any(|backup| backup.number == number) {
                    violation(format!("backup {number} was deleted and is still listed"))
                } else {
                    Ok(())
                }
            }
            Err(error) => self.allow(&error, "delete a backup"),
        }
    }
}

impl Simulation {
    /// Checks all copies that a thread made, as they are now on a disk.
    ///
    /// # Errors
    /// [`Stop::Violation`]
    pub fn check_copies(&self, io: &SimIo, model: &mut ThreadModel) -> Outcome {
        let Copies {
            checkpoint,
            restored,
            ..
        } = model.copies.clone();
        for (path, expected) in checkpoint.into_iter().chain(restored) {
            self.check_copy(io, &path, model, &expected)?;
        }
        match self.restore_all(io, model)? {
            Ok(()) => Ok(()),
            Err(error) => violation(format!("a backup cannot be restored: {error}")),
        }
    }

    /// Restores the oldest backup and the newest, and checks what they hold.
    fn restore_all(&self, io: &SimIo, model: &mut ThreadModel) -> Outcome<forerun_db::Result<()>> {
        let known = model.copies.backups.clone();
        let Some((oldest, newest)) = known.keys().next().zip(known.keys().last()) else {
            return Ok(Ok(()));
        };
        let path = format!("/backups-{}", model.thread);
        let opened = Backups::open_with_io(Arc::new(io.clone()), path, Create::Never);
        let backups = match opened {
            Ok(backups) => backups,
            Err(error) => return Ok(Err(error)),
        };
        let list = match backups.list() {
            Ok(list) => list,
            Err(error) => return Ok(Err(error)),
        };
        let listed: Vec<u64> = list.backups.iter().map(|backup| backup.number).collect();
        if let Some(number) = known.keys().find(|number| !listed.contains(number)) {
            return violation(format!("backup {number} is missing: there are {listed:?}"));
        }
        let mut numbers = vec![*oldest, *newest];
        numbers.dedup();
        for number in numbers {
            let into = model.copies.next_path(model.thread, "restored");
            if let Err(error) = backups.restore(Some(number), &into) {
                return Ok(Err(error));
            }
            let expected = &known[&number];
            // Some are not opened before the process crashes or the power is lost.
            if !model.copies.made.is_multiple_of(UNOPENED_ONE_IN) {
                self.check_copy(io, &into, model, expected)?;
            }
            if !io.is_crashed() {
                model.copies.restored = Some((into, expected.clone()));
            }
        }
        Ok(Ok(()))
    }

    /// Opens a copy and checks its contents.
    fn check_copy(
        &self,
        io: &SimIo,
        path: &std::path::Path,
        model: &ThreadModel,
        expected: &Expected,
    ) -> Outcome {
        match self.read_copy(io, path, model, expected) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => violation(format!("the copy {}: {why}", path.display())),
            Err(error) => {
                let doing = format!("read the copy {}", path.display());
                if io.is_crashed() {
                    Err(Stop::Crashed)
                } else {
                    self.allow(&error, None, &doing)
                }
            }
        }
    }

    fn read_copy(
        &self,
        io: &SimIo,
        path: &std::path::Path,
        model: &ThreadModel,
        expected: &Expected,
    ) -> forerun_db::Result<Result<(), String>> {
        let options = self
            .options()
            .create(Create::Never)
            .background(Background::Caller);
        let start = self.begin();
        let db = Db::open_with_io(Arc::new(io.clone()), path, options)?;
        let mut keyspaces = vec![db.default_keyspace()];
        for number in 1..self.program.store.keyspaces.len() {
            match db.find_keyspace(&shared_name(number)) {
                Some(keyspace) => keyspaces.push(keyspace),
                None => return Ok(Err(format!("keyspace {number} is missing"))),
            }
        }
        let private = db.find_keyspace(&private_name(model.thread));
        let private = match (expected.private, private) {
            (Some(keyspace_id), Some(keyspace)) => Some((keyspace_id, keyspace)),
            (Some(_), None) => return Ok(Err("the private keyspace is missing".to_owned())),
            (None, _) => None,
        };
        let opened = Opened::of_copy(db, keyspaces);
        let now = OpenStore {
            opened: &opened,
            private,
            shape: self,
        };
        let mut observed = now.observe_own(model)?;
        let read = self.end(start);
        // A copy is opened like a store that is reopened: an entry that had expired, but is not
        // recorded as expired, returns if the clock was set back.
        if self.clock().was_set_back() {
            observed.retain(|full_key, bytes| {
                let values = expected.dormant.get(full_key).into_iter().flatten();
                let mut values = values.filter(|value| value.bytes[..] == bytes[..]);
                !values.any(|value| {
                    value.visibility(self.ttl_s(full_key.0), read, &self.clock)
                        != Visibility::Forbidden
                })
            });
        }
        if let Err(why) = compare(&expected.state, &observed, read, self) {
            return Ok(Err(why));
        }
        let mut stamps = Vec::new();
        for keyspace_id in self.stamped_keyspaces() {
            let value = opened.keyspaces[keyspace_id as usize].get(STAMP_KEY)?;
            stamps.push(value.as_deref().and_then(decode));
        }
        if let Err(why) = self.stamps.check_moment(&stamps, expected.min_visible) {
            return Ok(Err(why));
        }
        let verified = opened.db.verify()?;
        if let Some(problem) = verified.problems.first() {
            return Err(problem.clone());
        }
        let Opened { db, .. } = opened;
        db.close()?;
        Ok(Ok(()))
    }

    /// Drops a private keyspace that is in doubt. A private keyspace that certainly exists must be
    /// there, and no other may.
    ///
    /// # Errors
    /// [`Stop`]
    pub fn resolve_private(&self, opened: &Opened, model: &mut ThreadModel) -> Outcome {
        const TRIES: usize = 100;
        let name = private_name(model.thread);
        for _ in 0..TRIES {
            let is_there = opened.db.find_keyspace(&name).is_some();
            match (model.private, is_there) {
                (PrivateKeyspace::Present(_), true) | (PrivateKeyspace::Absent, false) => {
                    return Ok(());
                }
                (PrivateKeyspace::Present(_), false) => {
                    return violation(format!("keyspace {name:?} is missing"));
                }
                (PrivateKeyspace::Absent, true) => {
                    return violation(format!("keyspace {name:?} was dropped and is there again"));
                }
                (PrivateKeyspace::InDoubt, false) => {
                    model.private = PrivateKeyspace::Absent;
                    return Ok(());
                }
                (PrivateKeyspace::InDoubt, true) => {
                    let dropped = opened.db.drop_keyspace(&name);
                    if let Err(error) = dropped {
                        self.allow(&error, Some(opened), "drop a keyspace that may exist")?;
                        if matches!(error, Error::Poisoned { .. }) {
                            return Ok(());
                        }
                    }
                }
            }
            super::runtime::sleep(std::time::Duration::from_millis(10));
        }
        violation("a keyspace cannot be dropped, although the faults ended long ago")
    }

    /// Files in the store's directory that do not belong there.
    pub fn unknown_files(&self) -> Vec<String> {
        let mut files = self.files_in(STORE.as_ref());
        let is_known = |name: &String| {
            // An unfinished file that a crash leaves behind stays until the file is written again.
            let whole = name.strip_suffix(".new").unwrap_or(name);
            matches!(whole, "FORMAT" | "LOCK" | "MANIFEST" | "CLOSED")
                || name.starts_with("wal-") && name.ends_with(".log")
                || name.starts_with("run-") && name.ends_with(".run")
        };
        files.retain(|name| !is_known(name));
        files
    }
}
