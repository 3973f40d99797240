//! Iterators that a thread holds. They never change.

use forerun_db::{Error, Iter};

use super::active_readers::ReaderGuard;
use super::client_thread::ClientThread;
use super::compare::show;
use super::entries::{Key, KeyspaceId, KeyspaceRules, Value, Visibility};
use super::program::StepKeyspace;
use super::reads::Source;
use super::runtime;
use super::simulation::{Outcome, Simulation, violation};
use super::wall_clock::Span;

/// An iterator over the thread's own keys, and the entries that it must still return.
pub struct HeldIter {
    iter: Iter,
    _reading: ReaderGuard,
    opening: u64,
    keyspace_id: KeyspaceId,
    at: Span,
    left: Vec<(Key, Value)>,
}

impl ClientThread<'_> {
    pub fn begin_iter(&mut self, keyspace: StepKeyspace) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.keyspace(keyspace) else {
            return Ok(());
        };
        let order = self.simulation.order(keyspace_id);
        let start = self.simulation.begin();
        let iter = Source::Live(&keyspace).range(self.model.bounds(order));
        let own = self.model.history.current().iter();
        let own = own.filter(|((of, _), _)| *of == keyspace_id);
        let mut left: Vec<(Key, Value)> = own
            .map(|((_, key), value)| (key.clone(), value.clone()))
            .collect();
        left.sort_by(|(a, _), (b, _)| order.compare(a, b));
        self.iter = Some(HeldIter {
            iter,
            _reading: self.simulation.readers.begin(),
            opening: self.opened.number,
            keyspace_id,
            at: self.simulation.end(start),
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
                Ok(true) => runtime::point(),
                Ok(false) => return Ok(()),
                Err(IterStop::Violation(text)) => return violation(text),
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
    Violation(String),
    Failed(Error),
}

impl HeldIter {
    /// Moves one step. Returns whether there was an entry.
    fn step(&mut self, is_back: bool, simulation: &Simulation) -> Result<bool, IterStop> {
        let order = simulation.order(self.keyspace_id);
        let entry = if is_back {
            self.iter.next_entry_back()
        } else {
            self.iter.next_entry()
        };
        let entry = entry.map_err(IterStop::Failed)?;
        let found = entry.map(|entry| (order.canonical(entry.key), entry.value.to_vec()));
        let ttl_s = simulation.ttl_s(self.keyspace_id);
        loop {
            let next = if is_back {
                self.left.last().cloned()
            } else {
                self.left.first().cloned()
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
                Err(IterStop::Violation(format!(
                    "an iterator of keyspace {} returned {}, expected {}",
                    self.keyspace_id,
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
            if is_back {
                drop(self.left.pop())
            } else {
                drop(self.left.remove(0))
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
