//! Steps that change the store.

use std::sync::Arc;

use forerun_db::{Durability, Error, Keyspace, WalMode, WriteBatch};

use super::client_thread::{CallStart, ClientThread, PrivateKeyspace, WriteKind};
use super::draw::private_name;
use super::entries::{Change, KeyspaceId, KeyspaceRules, WriteOutcome};
use super::key_order::KeyOrder;
use super::program::{self, ChangeKind, StepKeyspace};
use super::simulation::{Outcome, Stop, violation};
use super::stamps::{BEACON_KEY, STAMP_KEY, encode};

impl ClientThread<'_> {
    pub fn write(
        &mut self,
        changes: &[program::Change],
        durability: Option<Durability>,
    ) -> Outcome {
        let mut ready: Vec<(Keyspace, Change)> = Vec::new();
        let first = self.model.history.len();
        for (number, change) in changes.iter().enumerate() {
            let Some((keyspace_id, keyspace)) = self.keyspace(change.keyspace) else {
                continue;
            };
            let change = match change.kind {
                ChangeKind::Put { key, len } => {
                    let value = self.value(first, number, len);
                    Change::Put(keyspace_id, self.key(key), value)
                }
                ChangeKind::Delete { key } => Change::Delete(keyspace_id, self.key(key)),
                ChangeKind::DeleteRange { from, to } => {
                    let (from, to) = (self.key(from), self.key(to));
                    if self
                        .simulation
                        .order(keyspace_id)
                        .compare(&from, &to)
                        .is_le()
                    {
                        Change::DeleteRange(keyspace_id, from, to)
                    } else {
                        Change::DeleteRange(keyspace_id, to, from)
                    }
                }
            };
            ready.push((keyspace, change));
        }
        self.write_ready(ready, durability)
    }

    /// Writes changes in one batch.
    pub fn write_ready(
        &mut self,
        ready: Vec<(Keyspace, Change)>,
        durability: Option<Durability>,
    ) -> Outcome {
        let is_empty = |change: &Change| match change {
            Change::DeleteRange(_, from, to) => from == to,
            _ => false,
        };
        let has_empty = ready.iter().any(|(_, change)| is_empty(change));
        let start = self.begin();
        let own = self.simulation.program.store.durability;
        let used = match &ready[..] {
            // The method takes no durability, so the store's own applies.
            [(_, Change::DeleteRange(..))] => own,
            _ => durability.unwrap_or(own),
        };
        let result = match &ready[..] {
            [] => return Ok(()),
            [(keyspace, change)] => self.write_one(keyspace, change, durability),
            _ => self.write_batch(&ready, used),
        };
        let is_off = self.has_no_log_for(used);
        match result {
            // Nothing is written.
            Err(Error::EmptyRange { .. }) if has_empty => return Ok(()),
            Err(Error::LogOff) if is_off => return Ok(()),
            Err(error @ Error::MemoryLimit { .. }) => return self.allow_no_memory(&error, &start),
            Ok(()) if has_empty && self.is_alive() => {
                return violation("the deletion of an empty range succeeded");
            }
            Ok(()) if is_off => {
                return violation("a synced write succeeded in a store without a log");
            }
            _ => {}
        }
        let changes = ready.into_iter().map(|(_, change)| change).collect();
        let is_durable = used == Durability::Synced;
        self.note_write(
            changes,
            &start,
            result.as_ref().copied(),
            is_durable,
            WriteKind::Write,
        )
    }

    /// Whether a write with this durability needs a log, and the store has none.
    fn has_no_log_for(&self, durability: Durability) -> bool {
        durability == Durability::Synced && self.simulation.program.store.wal == WalMode::Off
    }

    fn write_batch(
        &self,
        ready: &[(Keyspace, Change)],
        durability: Durability,
    ) -> forerun_db::Result<()> {
        let mut batch = WriteBatch::new();
        for (keyspace, change) in ready {
            let mut batch = batch.keyspace(keyspace);
            match change {
                Change::Put(keyspace_id, key, value) => {
                    batch.put(&self.spell(*keyspace_id, key), value)?
                }
                Change::Delete(keyspace_id, key) => batch.delete(&self.spell(*keyspace_id, key))?,
                Change::DeleteRange(_, from, to) => batch.delete_range(from, to)?,
            }
        }
        self.opened.db.write(&batch, durability).map(drop)
    }

    /// Writes one operation with the method for it.
    fn write_one(
        &self,
        keyspace: &Keyspace,
        change: &Change,
        durability: Option<Durability>,
    ) -> forerun_db::Result<()> {
        match change {
            Change::DeleteRange(_, from, to) => keyspace.delete_range(from, to),
            Change::Put(keyspace_id, key, value) => {
                let key = self.spell(*keyspace_id, key);
                match durability {
                    None => keyspace.put(&key, value),
                    Some(durability) => keyspace.put_with(&key, value, durability),
                }
            }
            Change::Delete(keyspace_id, key) => {
                let key = self.spell(*keyspace_id, key);
                match durability {
                    None => keyspace.delete(&key),
                    Some(durability) => keyspace.delete_with(&key, durability),
                }
            }
        }
    }

    /// Returns one of the spellings of a key, if the order treats several as equal.
    pub fn spell(&self, keyspace_id: KeyspaceId, key: &[u8]) -> Vec<u8> {
        match self.simulation.order(keyspace_id) {
            KeyOrder::Folding if self.model.history.len() % 2 == 1 => key.to_ascii_uppercase(),
            _ => key.to_vec(),
        }
    }

    /// A value that no other write has.
    fn value(&self, write: usize, number: usize, len: u16) -> Arc<[u8]> {
        let name = format!("{}.{write}.{number} ", self.model.thread);
        let bytes = name.bytes().cycle().take(usize::from(len));
        bytes.collect()
    }

    pub fn stamp(&mut self, durability: Durability) -> Outcome {
        let keyspaces = self.simulation.stamped_keyspaces();
        if keyspaces.is_empty() {
            return Ok(());
        }
        let start = self.begin();
        let stamp = self.simulation.stamps.begin();
        let value = encode(stamp);
        let mut batch = WriteBatch::new();
        for keyspace_id in keyspaces {
            let keyspace = &self.opened.keyspaces[keyspace_id as usize];
            let put = batch.keyspace(keyspace).put(STAMP_KEY, &value);
            put.map_err(|error| Stop::Violation(error.to_string()))?;
        }
        let result = self.opened.db.write(&batch, durability);
        let is_off = self.has_no_log_for(durability);
        let outcome = result.as_ref().map(|_| ());
        if self.write_outcome(&start, outcome, WriteKind::Stamp)? == WriteOutcome::Absent {
            self.simulation.stamps.refuse(stamp);
        }
        match result {
            Ok(_) if is_off => violation("a synced stamp was written in a store without a log"),
            Ok(sequence) if self.is_alive() => {
                let stamps = &self.simulation.stamps;
                let acknowledged = stamps.acknowledge(stamp, sequence, start.min_visible);
                acknowledged.map_err(Stop::Violation)?;
                if durability == Durability::Synced {
                    self.mark_durable(&start);
                    self.simulation
                        .stamps
                        .mark_durable(start.min_visible.with(sequence));
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(Error::LogOff) if is_off => Ok(()),
            Err(error @ Error::MemoryLimit { .. }) => self.allow_no_memory(&error, &start),
            Err(error) => self.allow_write(&error, "write a stamp"),
        }
    }

    /// A write may be refused for lack of memory only if readers hold memory, because no write is
    /// larger than the limit.
    pub fn allow_no_memory(&self, error: &Error, start: &CallStart) -> Outcome {
        let is_read = self.simulation.readers.any_since(start.at.start);
        if is_read || !self.is_alive() {
            Ok(())
        } else {
            violation(format!(
                "a write is refused for lack of memory, but no thread reads: {error}"
            ))
        }
    }

    pub fn ingest(
        &mut self,
        keyspace: StepKeyspace,
        keys: &[(u8, Option<u16>)],
        commits: bool,
    ) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.keyspace(keyspace) else {
            return Ok(());
        };
        let order = self.simulation.order(keyspace_id);
        let first = self.model.history.len();
        let changes: Vec<Change> = keys
            .iter()
            .enumerate()
            .map(|(number, (key, len))| {
                let key = self.key(*key);
                match len {
                    None => Change::Delete(keyspace_id, key),
                    Some(len) => Change::Put(keyspace_id, key, self.value(first, number, *len)),
                }
            })
            .collect();
        let has_beacon = commits && self.simulation.stamped_keyspaces().contains(&keyspace_id);
        let mut written = changes.clone();
        if has_beacon {
            let beacon = Change::Put(
                keyspace_id,
                BEACON_KEY.to_vec(),
                self.value(first, keys.len(), 20),
            );
            written.push(beacon);
        }
        written.sort_by(|a, b| order.compare(key_of(a), key_of(b)));
        let start = self.begin();
        let result = self.put_in(&keyspace, &written, commits);
        if has_beacon && result.is_ok() && self.is_alive() {
            self.simulation.note_beacon(keyspace_id, self.opened.number);
        }
        if !commits {
            return match result {
                Ok(()) => Ok(()),
                Err(error) => self.allow(&error, "prepare an ingestion"),
            };
        }
        if written.is_empty() {
            // An empty ingestion does nothing, so it also succeeds in a store that refuses writes.
            return match result {
                Ok(()) => Ok(()),
                Err(error) => self.allow(&error, "ingest nothing"),
            };
        }
        self.note_write(
            changes,
            &start,
            result.as_ref().copied(),
            true,
            WriteKind::Ingestion,
        )
    }

    fn put_in(
        &self,
        keyspace: &Keyspace,
        changes: &[Change],
        commits: bool,
    ) -> forerun_db::Result<()> {
        let mut ingestion = keyspace.ingest();
        for change in changes {
            match change {
                Change::Put(_, key, value) if key == BEACON_KEY => ingestion.add(key, value)?,
                Change::Put(keyspace_id, key, value) => {
                    ingestion.add(&self.spell(*keyspace_id, key), value)?
                }
                Change::Delete(_, key) | Change::DeleteRange(_, key, _) => ingestion.delete(key)?,
            }
        }
        if commits {
            ingestion.commit().map(drop)
        } else {
            Ok(())
        }
    }

    pub fn create_keyspace(&mut self) -> Outcome {
        if self.model.private != PrivateKeyspace::Absent {
            return Ok(());
        }
        let name = private_name(self.model.thread);
        match self.opened.db.keyspace(&name) {
            Ok(keyspace) if self.is_alive() => {
                let keyspace_id = self.model.next_private();
                self.model.private = PrivateKeyspace::Present(keyspace_id);
                self.private = Some(keyspace);
                Ok(())
            }
            Ok(_) => {
                self.model.private = PrivateKeyspace::InDoubt;
                Ok(())
            }
            Err(error) => {
                self.model.private = PrivateKeyspace::InDoubt;
                self.allow(&error, "create a keyspace")
            }
        }
    }

    pub fn drop_keyspace(&mut self) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.private_keyspace() else {
            return Ok(());
        };
        let name = private_name(self.model.thread);
        let dropped = self.opened.db.drop_keyspace(&name);
        self.forget_private(keyspace_id);
        match dropped {
            Ok(()) if self.is_alive() => {
                self.model.private = PrivateKeyspace::Absent;
                match keyspace.put(b"late", b"") {
                    Ok(()) => violation("a keyspace that was dropped accepted a write"),
                    Err(Error::KeyspaceDropped { .. }) => Ok(()),
                    Err(error) => self.allow(&error, "write to a dropped keyspace"),
                }
            }
            Ok(()) => Ok(()),
            Err(error) => self.allow(&error, "drop a keyspace"),
        }
    }

    fn forget_private(&mut self, keyspace_id: KeyspaceId) {
        self.model.private = PrivateKeyspace::InDoubt;
        self.private = None;
        self.model.history.forget(keyspace_id);
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.forget(keyspace_id);
        }
    }
}

fn key_of(change: &Change) -> &[u8] {
    match change {
        Change::Put(_, key, _) | Change::Delete(_, key) | Change::DeleteRange(_, key, _) => key,
    }
}
