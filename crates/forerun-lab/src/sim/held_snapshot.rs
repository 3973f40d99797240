//! Snapshots that a thread holds. They never change, and all ways to read one agree.

use std::collections::BTreeMap;

use forerun_db::{Keyspace, Snapshot, Values};

use super::client_thread::ClientThread;
use super::compare::check_value;
use super::draw::KEYS;
use super::entries::{Key, KeyspaceId, KeyspaceRules, State};
use super::program::ReadDirection;
use super::reads::{Entries, Source, read};
use super::simulation::{Outcome, Stop, violation};
use super::wall_clock::Span;

/// A snapshot that a thread holds, and the values that it must return for the thread's keys.
pub struct HeldSnapshot {
    snapshot: Snapshot,
    opening: u64,
    at: Span,
    expected: State,
    private: Option<(KeyspaceId, Keyspace)>,
    /// The entries that the first read through it returned.
    all: BTreeMap<KeyspaceId, Entries>,
}

impl HeldSnapshot {
    /// Called when a keyspace was dropped.
    pub fn forget(&mut self, keyspace_id: KeyspaceId) {
        if self
            .private
            .as_ref()
            .is_some_and(|(of, _)| *of == keyspace_id)
        {
            self.private = None;
        }
        self.expected.retain(|(of, _), _| *of != keyspace_id);
    }
}

impl ClientThread<'_> {
    pub fn take_snapshot(&mut self) -> Outcome {
        let start = self.simulation.begin();
        let snapshot = self.opened.db.snapshot();
        self.snapshot = Some(HeldSnapshot {
            snapshot,
            opening: self.opened.number,
            at: self.simulation.end(start),
            expected: self.model.history.current().clone(),
            private: self.private_keyspace(),
            all: BTreeMap::new(),
        });
        Ok(())
    }

    pub fn read_snapshot(&mut self) -> Outcome {
        let Some(mut held) = self.snapshot.take() else {
            return Ok(());
        };
        if held.opening != self.opened.number {
            // It belongs to an opening that has been closed.
            return Ok(());
        }
        let now = self.open_store();
        let mut keyspaces = now.keyspaces();
        keyspaces.retain(|(keyspace_id, _)| (*keyspace_id as usize) < self.opened.keyspaces.len());
        keyspaces.extend(held.private.clone());
        for (keyspace_id, keyspace) in keyspaces {
            let source = Source::Snapshot(held.snapshot.keyspace(&keyspace));
            match self.read_all_ways(keyspace_id, &source, &held.expected, held.at) {
                Ok(Ok(entries)) => match held.all.get(&keyspace_id) {
                    Some(first) if *first != entries => {
                        return violation(format!(
                            "a snapshot of keyspace {keyspace_id} returned {} entries at first and \
                             {} different ones later",
                            first.len(),
                            entries.len()
                        ));
                    }
                    Some(_) => {}
                    None => drop(held.all.insert(keyspace_id, entries)),
                },
                Ok(Err(error)) => {
                    self.allow(&error, "read a snapshot")?;
                    return Ok(());
                }
                Err(stop) => return Err(stop),
            }
        }
        self.snapshot = Some(held);
        Ok(())
    }

    /// Reads a keyspace in all ways, which must agree with each other and with the expected
    /// contents of the thread's keys. Returns everything that was read.
    fn read_all_ways(
        &self,
        keyspace_id: KeyspaceId,
        source: &Source<'_>,
        expected: &State,
        at: Span,
    ) -> Outcome<forerun_db::Result<Entries>> {
        let entries = match read(source.iter(), ReadDirection::Forward) {
            Ok(entries) => entries,
            Err(error) => return Ok(Err(error)),
        };
        self.check_order(keyspace_id, &entries)?;
        self.check_own(keyspace_id, expected, &entries, at, "snapshot, scan")?;
        for direction in [ReadDirection::Backward, ReadDirection::Both] {
            match read(source.iter(), direction) {
                Ok(others) if others == entries => {}
                Ok(others) => {
                    return violation(format!(
                        "a snapshot of keyspace {keyspace_id} returns {} entries forward and {} \
                         {direction:?}",
                        entries.len(),
                        others.len()
                    ));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        let order = self.simulation.order(keyspace_id);
        let own =
            |(key, _): &&(Key, Vec<u8>)| order.canonical(key).first() == Some(&self.model.letter());
        match read(
            source.range(self.model.bounds(order)),
            ReadDirection::Backward,
        ) {
            Ok(part) if part.iter().eq(entries.iter().filter(own)) => {}
            Ok(part) => {
                return violation(format!(
                    "a snapshot of keyspace {keyspace_id} returns {} entries of the thread in a \
                     range and {} in a scan",
                    part.len(),
                    entries.iter().filter(own).count()
                ));
            }
            Err(error) => return Ok(Err(error)),
        }
        let keys: Vec<Key> = (0..KEYS).map(|number| self.key(number)).collect();
        let mut values = Values::new();
        if let Err(error) = source.multi_get(&keys, &mut values) {
            return Ok(Err(error));
        }
        for (position, key) in keys.into_iter().enumerate() {
            let (one, batched) = (source.get(&key), values.get(position));
            match (one, batched) {
                (Ok(one), Ok(batched)) => {
                    let full_key = (keyspace_id, key);
                    for (found, how) in [(one.as_deref(), "get"), (batched, "multi_get")] {
                        check_value(
                            &full_key,
                            expected.get(&full_key),
                            found,
                            at,
                            self.simulation,
                        )
                        .map_err(|why| Stop::Violation(format!("snapshot, {how}: {why}")))?;
                    }
                }
                (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
            }
        }
        Ok(Ok(entries))
    }
}
