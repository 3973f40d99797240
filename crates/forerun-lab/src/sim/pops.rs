//! Steps that use a keyspace as a queue: they find the first or the last of the thread's own
//! entries with an iterator, and delete it. Scans then come across more and more deleted keys.

use std::sync::atomic::Ordering::SeqCst;

use forerun_db::Keyspace;

use super::client_thread::ClientThread;
use super::entries::{Change, Key, KeyspaceId, KeyspaceRules};
use super::program::StepKeyspace;
use super::reads::Entries;
use super::simulation::Outcome;

impl ClientThread<'_> {
    /// Takes entries from one end of the thread's own keys, at most so many.
    pub fn pop(
        &mut self,
        keyspace: StepKeyspace,
        count: u8,
        is_back: bool,
        by_range: bool,
    ) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.keyspace(keyspace) else {
            return Ok(());
        };
        for _ in 0..count {
            // What a call returns after a crash is lost, so the model does not know whether the
            // last deletion is there.
            if self.opened.is_closing.load(SeqCst) || !self.is_alive() {
                break;
            }
            let Some(key) = self.first_key(keyspace_id, &keyspace, is_back)? else {
                break;
            };
            let (from, to) = self.model.bounds(self.simulation.order(keyspace_id));
            let changes = match (by_range, is_back) {
                (false, _) => vec![Change::Delete(keyspace_id, key)],
                (true, true) => vec![Change::DeleteRange(keyspace_id, key, to)],
                // The end of a range is excluded.
                (true, false) => vec![
                    Change::DeleteRange(keyspace_id, from, key.clone()),
                    Change::Delete(keyspace_id, key),
                ],
            };
            let ready = changes.into_iter().map(|change| (keyspace.clone(), change));
            self.write_ready(ready.collect(), None)?;
        }
        Ok(())
    }

    /// The first of the thread's own keys, or the last. No key of the model comes before it.
    fn first_key(
        &mut self,
        keyspace_id: KeyspaceId,
        keyspace: &Keyspace,
        is_back: bool,
    ) -> Outcome<Option<Key>> {
        let order = self.simulation.order(keyspace_id);
        let (from, to) = self.model.bounds(order);
        let start = self.simulation.begin();
        let mut iter = keyspace.range(from..to);
        let found = if is_back {
            iter.next_back()
        } else {
            iter.next()
        };
        drop(iter);
        let found = match found.transpose() {
            Ok(found) => found,
            Err(error) => return self.allow(&error, "pop").map(|()| None),
        };
        let read = self.simulation.end(start);
        let key = found.as_ref().map(|(key, _)| order.canonical(key));
        let mut expected = self.model.history.visible_in(keyspace_id);
        if let Some(key) = &key {
            expected.retain(|(_, other), _| {
                let at = order.compare(other, key);
                if is_back { at.is_ge() } else { at.is_le() }
            });
        }
        let entries: Entries = found.into_iter().collect();
        let own = self.check_own(keyspace_id, &expected, &entries, read, "pop")?;
        let absent = expected
            .keys()
            .filter(|full_key| !own.contains_key(*full_key));
        absent.for_each(|full_key| self.model.history.note_absent(full_key));
        Ok(key)
    }
}
