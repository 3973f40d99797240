//! Steps that read the current state of the store. Every way to read must return what the thread
//! knows about its own keys.

use forerun_db::{Iter, Keyspace, KeyspaceSnapshot, Values};

use super::client_thread::{ClientThread, ThreadModel};
use super::compare::{check_value, compare, show};
use super::entries::{Key, KeyspaceId, KeyspaceRules, Observed, State, Value};
use super::program::{ReadDirection, StepKeyspace};
use super::runtime;
use super::simulation::{Opened, Outcome, Simulation, Stop, violation};
use super::stamps::{BEACON_KEY, STAMP_KEY, decode};
use super::wall_clock::Span;

/// Entries in the order in which they were read.
pub type Entries = Vec<(Key, Vec<u8>)>;

/// The current state of the store.
pub struct OpenStore<'a> {
    pub opened: &'a Opened,
    pub private: Option<(KeyspaceId, Keyspace)>,
    pub shape: &'a Simulation,
}

/// A keyspace, now or in a snapshot.
pub enum Source<'a> {
    Live(&'a Keyspace),
    Snapshot(KeyspaceSnapshot<'a>),
}

impl Source<'_> {
    pub fn get(&self, key: &[u8]) -> forerun_db::Result<Option<Vec<u8>>> {
        match self {
            Source::Live(keyspace) => keyspace.get(key),
            Source::Snapshot(snapshot) => snapshot.get(key),
        }
    }

    pub fn multi_get(&self, keys: &[Key], values: &mut Values) -> forerun_db::Result<()> {
        match self {
            Source::Live(keyspace) => keyspace.multi_get(keys, values),
            Source::Snapshot(snapshot) => snapshot.multi_get(keys, values),
        }
    }

    pub fn iter(&self) -> Iter {
        match self {
            Source::Live(keyspace) => keyspace.iter(),
            Source::Snapshot(snapshot) => snapshot.iter(),
        }
    }

    pub fn range(&self, (from, to): (Key, Key)) -> Iter {
        match self {
            Source::Live(keyspace) => keyspace.range(from..to),
            Source::Snapshot(snapshot) => snapshot.range(from..to),
        }
    }
}

impl OpenStore<'_> {
    /// All keyspaces that the thread knows.
    pub fn keyspaces(&self) -> Vec<(KeyspaceId, Keyspace)> {
        let shared = self.opened.keyspaces.iter().cloned();
        let shared = shared
            .enumerate()
            .map(|(id, keyspace)| (id as KeyspaceId, keyspace));
        shared.chain(self.private.clone()).collect()
    }

    /// The thread's own keys, read by scans.
    ///
    /// # Errors
    /// The error of a read.
    pub fn observe_own(&self, model: &ThreadModel) -> forerun_db::Result<Observed> {
        let mut observed = Observed::new();
        for (keyspace_id, keyspace) in self.keyspaces() {
            let order = self.shape.order(keyspace_id);
            let entries = read(
                Source::Live(&keyspace).range(model.bounds(order)),
                ReadDirection::Forward,
            )?;
            for (key, value) in entries {
                observed.insert((keyspace_id, order.canonical(&key)), value);
            }
        }
        Ok(observed)
    }
}

/// Reads an iterator to its end.
///
/// # Errors
/// The error of a step.
pub fn read(mut iter: Iter, direction: ReadDirection) -> forerun_db::Result<Entries> {
    let (mut front, mut back) = (Entries::new(), Entries::new());
    loop {
        let is_back = match direction {
            ReadDirection::Forward => false,
            ReadDirection::Backward => true,
            ReadDirection::Both => (front.len() * 7 + back.len() * 3) % 5 < 2,
        };
        let (entry, entries) = if is_back {
            (iter.next_entry_back()?, &mut back)
        } else {
            (iter.next_entry()?, &mut front)
        };
        match entry {
            Some(entry) => entries.push((entry.key.to_vec(), entry.value.to_vec())),
            None => break,
        }
    }
    back.reverse();
    front.extend(back);
    Ok(front)
}

impl ClientThread<'_> {
    pub fn get(&mut self, keyspace: StepKeyspace, number: u8) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.keyspace(keyspace) else {
            return Ok(());
        };
        self.check_beacon(keyspace_id, Source::Live(&keyspace))?;
        let key = self.key(number);
        let start = self.simulation.begin();
        match keyspace.get(&self.spell(keyspace_id, &key)) {
            Ok(value) => {
                let read = self.simulation.end(start);
                self.check(keyspace_id, key, value.as_deref(), read, "get")
            }
            Err(error) => self.allow(&error, "get"),
        }
    }

    /// Like [`get`](Self::get), but a closure borrows the value.
    pub fn read(&mut self, keyspace: StepKeyspace, number: u8) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.keyspace(keyspace) else {
            return Ok(());
        };
        let key = self.key(number);
        let start = self.simulation.begin();
        match keyspace.read(self.spell(keyspace_id, &key), <[u8]>::to_vec) {
            Ok(value) => {
                let read = self.simulation.end(start);
                self.check(keyspace_id, key, value.as_deref(), read, "read")
            }
            Err(error) => self.allow(&error, "read"),
        }
    }

    /// A batch of lookups that returns copies of the values.
    pub fn multi_get_to_vec(&mut self, keyspace: StepKeyspace, numbers: &[u8]) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.keyspace(keyspace) else {
            return Ok(());
        };
        let keys: Vec<Key> = numbers.iter().map(|number| self.key(*number)).collect();
        let spelled: Vec<Key> = keys
            .iter()
            .map(|key| self.spell(keyspace_id, key))
            .collect();
        let start = self.simulation.begin();
        let mut values = Values::new();
        let answers = keyspace.multi_get(&spelled, &mut values);
        let values = match answers.and_then(|()| values.to_vec()) {
            Ok(values) => values,
            Err(error) => return self.allow(&error, "look up a batch"),
        };
        let read = self.simulation.end(start);
        if values.len() != keys.len() {
            return violation(format!(
                "multi_get returned {} values for {} keys",
                values.len(),
                keys.len()
            ));
        }
        for (key, value) in keys.into_iter().zip(values) {
            self.check(keyspace_id, key, value.as_deref(), read, "multi_get")?;
        }
        Ok(())
    }

    fn check(
        &mut self,
        keyspace_id: KeyspaceId,
        key: Key,
        found: Option<&[u8]>,
        read: Span,
        how: &str,
    ) -> Outcome {
        let full_key = (keyspace_id, key);
        let expected = self.model.history.visible(&full_key);
        check_value(&full_key, expected, found, read, self.simulation)
            .map_err(|why| Stop::Violation(format!("{how}: {why}")))?;
        if found.is_none() {
            self.model.history.note_absent(&full_key);
        }
        Ok(())
    }

    /// Other threads ingest the beacon repeatedly, and no thread deletes it. A snapshot that is
    /// taken after the first ingestion has it too.
    fn check_beacon(&self, keyspace_id: KeyspaceId, source: Source<'_>) -> Outcome {
        if !self.has_beacon(keyspace_id) {
            return Ok(());
        }
        match source.get(BEACON_KEY) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => violation(format!(
                "get: the beacon of keyspace {keyspace_id} is missing"
            )),
            Err(error) => self.allow(&error, "get a beacon"),
        }
    }

    fn has_beacon(&self, keyspace_id: KeyspaceId) -> bool {
        self.simulation.has_beacon(keyspace_id, self.opened.number)
    }

    pub fn multi_get(&mut self, keyspace: StepKeyspace, numbers: &[u8]) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.keyspace(keyspace) else {
            return Ok(());
        };
        let mut keys: Vec<Key> = numbers.iter().map(|number| self.key(*number)).collect();
        keys.push(BEACON_KEY.to_vec());
        let has_beacon = self.has_beacon(keyspace_id);
        let mut values = Values::new();
        let start = self.simulation.begin();
        if let Err(error) = keyspace.multi_get(&keys, &mut values) {
            return self.allow(&error, "look up a batch");
        }
        let read = self.simulation.end(start);
        for (position, key) in keys.into_iter().enumerate() {
            match values.get(position) {
                Ok(None) if key == BEACON_KEY && has_beacon => {
                    return violation(format!(
                        "multi_get: the beacon of keyspace {keyspace_id} is missing"
                    ));
                }
                Ok(_) if key == BEACON_KEY => {}
                Ok(value) => self.check(keyspace_id, key, value, read, "multi_get")?,
                Err(error) => self.allow(&error, "look up a key of a batch")?,
            }
        }
        Ok(())
    }

    pub fn scan(&mut self, keyspace: StepKeyspace, direction: ReadDirection) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.keyspace(keyspace) else {
            return Ok(());
        };
        let has_beacon = self.has_beacon(keyspace_id);
        let start = self.simulation.begin();
        match read(Source::Live(&keyspace).iter(), direction) {
            Ok(entries) => {
                let read = self.simulation.end(start);
                self.check_order(keyspace_id, &entries)?;
                if has_beacon && !entries.iter().any(|(key, _)| key == BEACON_KEY) {
                    return violation(format!(
                        "scan: the beacon of keyspace {keyspace_id} is missing"
                    ));
                }
                let expected = self.model.history.visible_in(keyspace_id);
                let own = self.check_own(keyspace_id, &expected, &entries, read, "scan")?;
                let absent = expected
                    .keys()
                    .filter(|full_key| !own.contains_key(*full_key));
                absent.for_each(|full_key| self.model.history.note_absent(full_key));
                Ok(())
            }
            Err(error) => self.allow(&error, "scan"),
        }
    }

    /// Checks that entries are in order and that each key occurs once.
    pub fn check_order(&self, keyspace_id: KeyspaceId, entries: &Entries) -> Outcome {
        let order = self.simulation.order(keyspace_id);
        let is_wrong = |pair: &&[(Key, Vec<u8>)]| order.compare(&pair[0].0, &pair[1].0).is_ge();
        match entries.windows(2).find(is_wrong) {
            None => Ok(()),
            Some(pair) => violation(format!(
                "scan of keyspace {keyspace_id}: key {} comes after {}",
                show(Some(&pair[1].0)),
                show(Some(&pair[0].0))
            )),
        }
    }

    /// Checks the thread's own keys among the entries of a keyspace, and returns them.
    pub fn check_own(
        &self,
        keyspace_id: KeyspaceId,
        expected: &State,
        entries: &Entries,
        read: Span,
        how: &str,
    ) -> Outcome<Observed> {
        let order = self.simulation.order(keyspace_id);
        let letter = self.model.letter();
        let observed: Observed = entries
            .iter()
            .map(|(key, value)| ((keyspace_id, order.canonical(key)), value.clone()))
            .filter(|((_, key), _)| key.first() == Some(&letter))
            .collect();
        let of_keyspace = |((of, _), _): &(&(KeyspaceId, Key), &Value)| *of == keyspace_id;
        let expected = expected.iter().filter(of_keyspace);
        let expected = expected.map(|(full_key, value)| (full_key.clone(), value.clone()));
        compare(&expected.collect(), &observed, read, self.simulation)
            .map_err(|why| Stop::Violation(format!("{how}: {why}")))?;
        Ok(observed)
    }

    pub fn read_stamps(&mut self, by_snapshot: bool) -> Outcome {
        let keyspaces = self.simulation.stamped_keyspaces();
        if keyspaces.is_empty() {
            return Ok(());
        }
        let mut min_visible = self.simulation.stamps.min_visible();
        if self.seen > min_visible {
            min_visible = self.seen;
        }
        let mut with_beacon = keyspaces.clone();
        with_beacon.retain(|keyspace_id| self.has_beacon(*keyspace_id));
        let snapshot = by_snapshot.then(|| self.opened.db.snapshot());
        let mut stamps = Vec::new();
        for keyspace_id in &keyspaces {
            let keyspace = &self.opened.keyspaces[*keyspace_id as usize];
            let source = || match &snapshot {
                Some(snapshot) => Source::Snapshot(snapshot.keyspace(keyspace)),
                None => Source::Live(keyspace),
            };
            if !by_snapshot || with_beacon.contains(keyspace_id) {
                self.check_beacon(*keyspace_id, source())?;
            }
            match source().get(STAMP_KEY) {
                Ok(value) => stamps.push(value.as_deref().and_then(decode)),
                Err(error) => return self.allow(&error, "read a stamp"),
            }
        }
        let known = &self.simulation.stamps;
        let seen = if by_snapshot {
            known.check_moment(&stamps, min_visible)
        } else {
            // The stamps were read one after another, so none may be older than the one before.
            stamps.chunks(1).try_fold(min_visible, |min_visible, one| {
                known.check(one, min_visible)
            })
        };
        self.seen = seen.map_err(Stop::Violation)?;
        Ok(())
    }
}

impl Simulation {
    /// The current stamps.
    ///
    /// # Errors
    /// The error of a read.
    pub fn read_stamps(&self, opened: &Opened) -> forerun_db::Result<Vec<Option<u64>>> {
        let snapshot = opened.db.snapshot();
        let keyspaces = self.stamped_keyspaces();
        let stamps = keyspaces.iter().map(|keyspace_id| {
            let keyspace = snapshot.keyspace(&opened.keyspaces[*keyspace_id as usize]);
            Ok(keyspace.get(STAMP_KEY)?.as_deref().and_then(decode))
        });
        stamps.collect()
    }

    /// Reads the stamps, retrying until it succeeds, and checks them.
    pub fn with_stamps(
        &self,
        opened: &Opened,
        check: impl Fn(&[Option<u64>]) -> Result<(), String>,
    ) -> Outcome {
        const TRIES: usize = 100;
        for _ in 0..TRIES {
            match self.read_stamps(opened) {
                Ok(stamps) => return check(&stamps).map_err(Stop::Violation),
                Err(error) => self.allow(&error, Some(opened), "read the stamps")?,
            }
            runtime::sleep(std::time::Duration::from_millis(10));
        }
        violation("the stamps cannot be read, although the faults ended long ago")
    }
}
