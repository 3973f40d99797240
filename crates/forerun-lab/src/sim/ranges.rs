//! Steps that read a part of a keyspace: a range with bounds of each kind, and a prefix.

use std::ops::Bound;

use forerun_db::{Error, Iter};

use super::compare::show_key;
use super::entries::{Key, KeyspaceNo, KeyspaceRules, State};
use super::orders::Order;
use super::program::{ReadDirection, StepKeyspace};
use super::reads::read;
use super::simulation::{Outcome, flaw};
use super::user::User;
use super::wall::Span;

impl User<'_> {
    pub fn range(
        &mut self,
        keyspace: StepKeyspace,
        from: Bound<u8>,
        to: Bound<u8>,
        direction: ReadDirection,
    ) -> Outcome {
        let Some((space, keyspace)) = self.space(keyspace) else {
            return Ok(());
        };
        let order = self.simulation.order(space);
        let (from, to) = (from.map(|key| self.key(key)), to.map(|key| self.key(key)));
        let spelled = |bound: &Bound<Key>| bound.as_ref().map(|key| self.spell(space, key));
        let begun = self.simulation.begin();
        let iter = keyspace.range((spelled(&from), spelled(&to)));
        let is_inside = |key: &[u8]| lies_within(order, key, &from, &to);
        self.check_part(space, iter, direction, begun, "range", is_inside)
    }

    pub fn prefix(
        &mut self,
        keyspace: StepKeyspace,
        number: u8,
        len: u8,
        direction: ReadDirection,
    ) -> Outcome {
        let Some((space, keyspace)) = self.space(keyspace) else {
            return Ok(());
        };
        let mut prefix = self.key(number);
        prefix.truncate(usize::from(len));
        let begun = self.simulation.begin();
        let iter = keyspace.prefix(&prefix);
        let keeps_prefixes = matches!(self.simulation.order(space), Order::Bytes | Order::Reverse);
        if !keeps_prefixes {
            return match read(iter, direction) {
                Err(Error::PrefixOrder { .. }) => Ok(()),
                Ok(_) => {
                    flaw("a prefix scan succeeded in an order that does not keep prefixes together")
                }
                Err(error) => self.allow(&error, "scan a prefix"),
            };
        }
        let is_inside = |key: &[u8]| key.starts_with(&prefix);
        self.check_part(space, iter, direction, begun, "prefix", is_inside)
    }

    /// Reads a part of a keyspace. It must contain the thread's keys in this part, and no key
    /// outside it.
    fn check_part(
        &mut self,
        space: KeyspaceNo,
        iter: Iter,
        direction: ReadDirection,
        begun: Span,
        how: &str,
        is_inside: impl Fn(&[u8]) -> bool,
    ) -> Outcome {
        let entries = match read(iter, direction) {
            Ok(entries) => entries,
            Err(error) => return self.allow(&error, how),
        };
        let read = self.simulation.end(begun);
        self.check_order(space, &entries)?;
        let order = self.simulation.order(space);
        let is_outside = |(key, _): &&(Key, Vec<u8>)| !is_inside(&order.canonical(key));
        if let Some((key, _)) = entries.iter().find(is_outside) {
            return flaw(format!(
                "{how}: {} is out of bounds",
                show_key(&(space, key.clone()))
            ));
        }
        let mut expected: State = self.memory.history.visible_in(space);
        expected.retain(|(_, key), _| is_inside(key));
        let own = self.check_own(space, &expected, &entries, read, how)?;
        let absent = expected
            .keys()
            .filter(|full_key| !own.contains_key(*full_key));
        absent.for_each(|full_key| self.memory.history.note_absent(full_key));
        Ok(())
    }
}

fn lies_within(order: Order, key: &[u8], from: &Bound<Key>, to: &Bound<Key>) -> bool {
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
