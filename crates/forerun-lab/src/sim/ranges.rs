//! Steps that read a part of a keyspace: a range with bounds of each kind, and a prefix.

use std::ops::Bound;

use forerun_db::{Error, Iter};

use super::client_thread::ClientThread;
use super::compare::show_key;
use super::entries::{Key, KeyspaceId, KeyspaceRules, State};
use super::key_order::KeyOrder;
use super::program::{ReadDirection, StepKeyspace};
use super::reads::read;
use super::simulation::{Outcome, violation};
use super::wall_clock::Span;

impl ClientThread<'_> {
    pub fn range(
        &mut self,
        keyspace: StepKeyspace,
        from: Bound<u8>,
        to: Bound<u8>,
        direction: ReadDirection,
    ) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.keyspace(keyspace) else {
            return Ok(());
        };
        let order = self.simulation.order(keyspace_id);
        let (from, to) = (from.map(|key| self.key(key)), to.map(|key| self.key(key)));
        let spelled = |bound: &Bound<Key>| bound.as_ref().map(|key| self.spell(keyspace_id, key));
        let start = self.simulation.begin();
        let iter = keyspace.range((spelled(&from), spelled(&to)));
        let is_inside = |key: &[u8]| lies_within(order, key, &from, &to);
        self.check_part(keyspace_id, iter, direction, start, "range", is_inside)
    }

    pub fn prefix(
        &mut self,
        keyspace: StepKeyspace,
        number: u8,
        len: u8,
        direction: ReadDirection,
    ) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.keyspace(keyspace) else {
            return Ok(());
        };
        let mut prefix = self.key(number);
        prefix.truncate(usize::from(len));
        let start = self.simulation.begin();
        let iter = keyspace.prefix(&prefix);
        let keeps_prefixes = matches!(
            self.simulation.order(keyspace_id),
            KeyOrder::Bytes | KeyOrder::Reverse
        );
        if !keeps_prefixes {
            return match read(iter, direction) {
                Err(Error::PrefixOrder { .. }) => Ok(()),
                Ok(_) => violation(
                    "a prefix scan succeeded in an order that does not keep prefixes together",
                ),
                Err(error) => self.allow(&error, "scan a prefix"),
            };
        }
        let is_inside = |key: &[u8]| key.starts_with(&prefix);
        self.check_part(keyspace_id, iter, direction, start, "prefix", is_inside)
    }

    /// Reads a part of a keyspace. The result must contain the thread's keys in this part, and no
    /// key outside it.
    fn check_part(
        &mut self,
        keyspace_id: KeyspaceId,
        iter: Iter,
        direction: ReadDirection,
        start: Span,
        how: &str,
        is_inside: impl Fn(&[u8]) -> bool,
    ) -> Outcome {
        let entries = match read(iter, direction) {
            Ok(entries) => entries,
            Err(error) => return self.allow(&error, how),
        };
        let read = self.simulation.end(start);
        self.check_order(keyspace_id, &entries)?;
        let order = self.simulation.order(keyspace_id);
        let is_outside = |(key, _): &&(Key, Vec<u8>)| !is_inside(&order.canonical(key));
        if let Some((key, _)) = entries.iter().find(is_outside) {
            return violation(format!(
                "{how}: {} is out of bounds",
                show_key(&(keyspace_id, key.clone()))
            ));
        }
        let mut expected: State = self.model.history.visible_in(keyspace_id);
        expected.retain(|(_, key), _| is_inside(key));
        let own = self.check_own(keyspace_id, &expected, &entries, read, how)?;
        let absent = expected
            .keys()
            .filter(|full_key| !own.contains_key(*full_key));
        absent.for_each(|full_key| self.model.history.note_absent(full_key));
        Ok(())
    }
}

fn lies_within(order: KeyOrder, key: &[u8], from: &Bound<Key>, to: &Bound<Key>) -> bool {
    let is_after_start = match from {
        Bound::Included(from) => order.compare(from, key).is_le(),
        Bound::Excluded(from) => order.compare(from, key).is_lt(),
        Bound::Unbounded => true,
    };
    let is_before_end = match to {
        Bound::Included(to) => order.compare(key, to).is_le(),
        Bound::Excluded(to) => order.compare(key, to).is_lt(),
        Bound::Unbounded => true,
    };
    is_after_start && is_before_end
}
