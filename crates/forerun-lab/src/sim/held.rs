//! Snapshots and iterators that a thread holds. They never change, and all ways to read a snapshot
//! agree.

use std::collections::BTreeMap;

use forerun_db::{Error, Iter, Keyspace, Snapshot, Values};

use super::compare::{check_value, show};
use super::draw::KEYS;
use super::entries::{Key, KeyspaceNo, KeyspaceRules, State, Value, Visibility};
use super::program::{ReadDirection, StepKeyspace};
use super::readers::Reading;
use super::reads::{Entries, Source, read};
use super::rt;
use super::simulation::{Outcome, Simulation, Stop, flaw};
use super::user::User;
use super::wall::Span;

/// A snapshot that a thread holds, and the values that it must return for the thread's keys.
pub struct HeldSnapshot {
    snapshot: Snapshot,
    opening: u64,
    at: Span,
    expected: State,
    private: Option<(KeyspaceNo, Keyspace)>,
    /// What the first read through it returned.
    all: BTreeMap<KeyspaceNo, Entries>,
}

impl HeldSnapshot {
    /// Called when a keyspace was dropped.
    pub fn forget(&mut self, space: KeyspaceNo) {
        if self.private.as_ref().is_some_and(|(of, _)| *of == space) {
            self.private = None;
        }
        self.expected.retain(|(of, _), _| *of != space);
    }
}

/// An iterator over the thread's own keys, and the entries that it must still return.
pub struct HeldIter {
    iter: Iter,
    _reading: Reading,
    opening: u64,
    space: KeyspaceNo,
    at: Span,
    left: Vec<(Key, Value)>,
}

impl User<'_> {
    pub fn take_snapshot(&mut self) -> Outcome {
        let begun = self.simulation.begin();
        let snapshot = self.opened.db.snapshot();
        self.snapshot = Some(HeldSnapshot {
            snapshot,
            opening: self.opened.number,
            at: self.simulation.end(begun),
            expected: self.memory.history.now().clone(),
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
        let now = self.now();
        let mut spaces = now.spaces();
        spaces.retain(|(space, _)| (*space as usize) < self.opened.spaces.len());
        spaces.extend(held.private.clone());
        for (space, keyspace) in spaces {
            let source = Source::At(held.snapshot.keyspace(&keyspace));
            match self.read_all_ways(space, &source, &held.expected, held.at) {
                Ok(Ok(entries)) => match held.all.get(&space) {
                    Some(first) if *first != entries => {
                        return flaw(format!(
                            "a snapshot of keyspace {space} returned {} entries at first and {} \
                             different ones later",
                            first.len(),
                            entries.len()
                        ));
                    }
                    Some(_) => {}
                    None => drop(held.all.insert(space, entries)),
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
        space: KeyspaceNo,
        source: &Source<'_>,
        expected: &State,
        at: Span,
    ) -> Outcome<forerun_db::Result<Entries>> {
        let entries = match read(source.iter(), ReadDirection::Forward) {
            Ok(entries) => entries,
            Err(error) => return Ok(Err(error)),
        };
        self.check_order(space, &entries)?;
        self.check_own(space, expected, &entries, at, "snapshot, scan")?;
        for direction in [ReadDirection::Backward, ReadDirection::Both] {
            match read(source.iter(), direction) {
                Ok(others) if others == entries => {}
                Ok(others) => {
                    return flaw(format!(
                        "a snapshot of keyspace {space} returns {} entries forward and {} \
                         {direction:?}",
                        entries.len(),
                        others.len()
                    ));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        let order = self.simulation.order(space);
        let own = |(key, _): &&(Key, Vec<u8>)| {
            order.canonical(key).first() == Some(&self.memory.letter())
        };
        match read(
            source.range(self.memory.bounds(order)),
            ReadDirection::Backward,
        ) {
            Ok(part) if part.iter().eq(entries.iter().filter(own)) => {}
            Ok(part) => {
                return flaw(format!(
                    "a snapshot of keyspace {space} returns {} entries of the thread in a range \
                     and {} in a scan",
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
                    let full_key = (space, key);
                    for (found, how) in [(one.as_deref(), "get"), (batched, "multi_get")] {
                        check_value(
                            &full_key,
                            expected.get(&full_key),
                            found,
                            at,
                            self.simulation,
                        )
                        .map_err(|why| Stop::Flaw(format!("snapshot, {how}: {why}")))?;
                    }
                }
                (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
            }
        }
        Ok(Ok(entries))
    }

    pub fn begin_iter(&mut self, keyspace: StepKeyspace) -> Outcome {
        let Some((space, keyspace)) = self.space(keyspace) else {
            return Ok(());
        };
        let order = self.simulation.order(space);
        let begun = self.simulation.begin();
        let iter = Source::Now(&keyspace).range(self.memory.bounds(order));
        let own = self.memory.history.now().iter();
        let own = own.filter(|((of, _), _)| *of == space);
        let mut left: Vec<(Key, Value)> = own
            .map(|((_, key), value)| (key.clone(), value.clone()))
            .collect();
        left.sort_by(|(a, _), (b, _)| order.compare(a, b));
        self.iter = Some(HeldIter {
            iter,
            _reading: self.simulation.readers.begin(),
            opening: self.opened.number,
            space,
            at: self.simulation.end(begun),
            left,
        });
        Ok(())
    }

    pub fn step_iter(&mut self, steps: u8, is_back: bool) -> Outcome {
        let Some(mut held) = self.iter.take() else {
            return Ok(());
        };
        for _ in 0..steps {
            match held.step(is_back, self.simulation) {
                Ok(true) => rt::point(),
                Ok(false) => return Ok(()),
                Err(IterStop::Flaw(text)) => return flaw(text),
                Err(IterStop::Failed(error)) => {
                    if held.opening == self.opened.number {
                        self.allow(&error, "step an iterator")?;
                    }
                    return Ok(());
                }
            }
        }
        self.iter = Some(held);
        Ok(())
    }
}

enum IterStop {
    Flaw(String),
    Failed(Error),
}

impl HeldIter {
    /// Moves one step. Returns whether there was an entry.
    fn step(&mut self, is_back: bool, simulation: &Simulation) -> Result<bool, IterStop> {
        let order = simulation.order(self.space);
        let entry = match is_back {
            false => self.iter.next_entry(),
            true => self.iter.next_entry_back(),
        };
        let entry = entry.map_err(IterStop::Failed)?;
        let found = entry.map(|entry| (order.canonical(entry.key), entry.value.to_vec()));
        let ttl_s = simulation.ttl_s(self.space);
        loop {
            let next = match is_back {
                false => self.left.first().cloned(),
                true => self.left.last().cloned(),
            };
            let is_next = match (&next, &found) {
                (Some((key, value)), Some((found_key, bytes))) => {
                    key == found_key && value.bytes[..] == bytes[..]
                }
                _ => false,
            };
            let visibility = next
                .as_ref()
                .map(|(_, value)| value.visibility(ttl_s, self.at, &simulation.clock));
            let wrong = |next: Option<&(Key, Value)>| {
                let entry = |entry: Option<(&[u8], &[u8])>| match entry {
                    Some((key, value)) => format!("{} = {}", show(Some(key)), show(Some(value))),
                    None => "the end".to_owned(),
                };
                let found = found.as_ref().map(|(key, value)| (&key[..], &value[..]));
                let next = next.map(|(key, value)| (&key[..], &value.bytes[..]));
                Err(IterStop::Flaw(format!(
                    "an iterator of keyspace {} returned {}, expected {}",
                    self.space,
                    entry(found),
                    entry(next)
                )))
            };
            match visibility {
                None if found.is_none() => return Ok(false),
                None => return wrong(None),
                Some(Visibility::Required) if !is_next => return wrong(next.as_ref()),
                _ => {}
            }
            match is_back {
                false => drop(self.left.remove(0)),
                true => drop(self.left.pop()),
            }
            match visibility {
                Some(Visibility::Forbidden) if is_next => return wrong(None),
                _ if is_next => return Ok(true),
                // The entry has expired, or may have.
                _ => {}
            }
        }
    }
}
