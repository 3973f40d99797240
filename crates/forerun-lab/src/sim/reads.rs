//! Steps that read the current state of the store. Every way to read must return what the thread
//! knows about its own keys.

use forerun_db::{Iter, Keyspace, KeyspaceSnapshot, Strategy, Values};

use super::compare::{check_value, compare, show};
use super::entries::{Key, KeyspaceNo, KeyspaceRules, Observed, State, Value};
use super::program::{ReadDirection, StepKeyspace};
use super::rt;
use super::simulation::{Opened, Outcome, Simulation, Stop, flaw};
use super::stamps::{BEACON_KEY, STAMP_KEY, decode};
use super::user::{Memory, User};
use super::wall::Span;

/// Entries in the order in which they were read.
pub type Entries = Vec<(Key, Vec<u8>)>;

/// The current state of the store.
pub struct Now<'a> {
    pub opened: &'a Opened,
    pub private: Option<(KeyspaceNo, Keyspace)>,
    pub shape: &'a Simulation,
}

/// A keyspace, now or in a snapshot.
pub enum Source<'a> {
    Now(&'a Keyspace),
    At(KeyspaceSnapshot<'a>),
}

impl Source<'_> {
    pub fn get(&self, key: &[u8]) -> forerun_db::Result<Option<Vec<u8>>> {
        match self {
            Source::Now(keyspace) => keyspace.get(key),
            Source::At(snapshot) => snapshot.get(key),
        }
    }

    pub fn multi_get(&self, keys: &[Key], values: &mut Values) -> forerun_db::Result<()> {
        match self {
            Source::Now(keyspace) => keyspace.multi_get(keys, values),
            Source::At(snapshot) => snapshot.multi_get(keys, values),
        }
    }

    pub fn iter(&self) -> Iter {
        match self {
            Source::Now(keyspace) => keyspace.iter(),
            Source::At(snapshot) => snapshot.iter(),
        }
    }

    pub fn range(&self, (from, to): (Key, Key)) -> Iter {
        match self {
            Source::Now(keyspace) => keyspace.range(from..to),
            Source::At(snapshot) => snapshot.range(from..to),
        }
    }
}

impl Now<'_> {
    /// All keyspaces that the thread knows.
    pub fn spaces(&self) -> Vec<(KeyspaceNo, Keyspace)> {
        let shared = self.opened.spaces.iter().cloned();
        let shared = shared
            .enumerate()
            .map(|(number, space)| (number as KeyspaceNo, space));
        shared.chain(self.private.clone()).collect()
    }

    /// The thread's own keys, read by scans.
    ///
    /// # Errors
    /// The error of a read.
    pub fn observe_own(&self, memory: &Memory) -> forerun_db::Result<Observed> {
        let mut observed = Observed::new();
        for (space, keyspace) in self.spaces() {
            let order = self.shape.order(space);
            let entries = read(
                Source::Now(&keyspace).range(memory.bounds(order)),
                ReadDirection::Forward,
            )?;
            for (key, value) in entries {
                observed.insert((space, order.canonical(&key)), value);
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
        let (entry, entries) = match is_back {
            false => (iter.next_entry()?, &mut front),
            true => (iter.next_entry_back()?, &mut back),
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

impl User<'_> {
    pub fn get(&mut self, keyspace: StepKeyspace, number: u8) -> Outcome {
        let Some((space, keyspace)) = self.space(keyspace) else {
            return Ok(());
        };
        self.check_beacon(space, Source::Now(&keyspace))?;
        let key = self.key(number);
        let begun = self.simulation.begin();
        match keyspace.get(&self.spell(space, &key)) {
            Ok(value) => {
                let read = self.simulation.end(begun);
                self.check(space, key, value.as_deref(), read, "get")
            }
            Err(error) => self.allow(&error, "get"),
        }
    }

    /// Like [`get`](Self::get), but a closure borrows the value.
    pub fn read(&mut self, keyspace: StepKeyspace, number: u8) -> Outcome {
        let Some((space, keyspace)) = self.space(keyspace) else {
            return Ok(());
        };
        let key = self.key(number);
        let begun = self.simulation.begin();
        match keyspace.read(self.spell(space, &key), <[u8]>::to_vec) {
            Ok(value) => {
                let read = self.simulation.end(begun);
                self.check(space, key, value.as_deref(), read, "read")
            }
            Err(error) => self.allow(&error, "read"),
        }
    }

    /// A batch of lookups that returns copies of the values.
    pub fn multi_get_vec(&mut self, keyspace: StepKeyspace, numbers: &[u8]) -> Outcome {
        let Some((space, keyspace)) = self.space(keyspace) else {
            return Ok(());
        };
        let keys: Vec<Key> = numbers.iter().map(|number| self.key(*number)).collect();
        let spelled: Vec<Key> = keys.iter().map(|key| self.spell(space, key)).collect();
        let begun = self.simulation.begin();
        let values = match keyspace.multi_get_vec(&spelled) {
            Ok(values) => values,
            Err(error) => return self.allow(&error, "look up a batch"),
        };
        let read = self.simulation.end(begun);
        if values.len() != keys.len() {
            return flaw(format!(
                "multi_get_vec returned {} values for {} keys",
                values.len(),
                keys.len()
            ));
        }
        for (key, value) in keys.into_iter().zip(values) {
            self.check(space, key, value.as_deref(), read, "multi_get_vec")?;
        }
        Ok(())
    }

    fn check(
        &mut self,
        space: KeyspaceNo,
        key: Key,
        found: Option<&[u8]>,
        read: Span,
        how: &str,
    ) -> Outcome {
        let full_key = (space, key);
        let expected = self.memory.history.visible(&full_key);
        check_value(&full_key, expected, found, read, self.simulation)
            .map_err(|why| Stop::Flaw(format!("{how}: {why}")))?;
        if found.is_none() {
            self.memory.history.note_absent(&full_key);
        }
        Ok(())
    }

    /// Other threads ingest the beacon repeatedly, and nobody deletes it. A snapshot that is taken
    /// after the first ingestion has it too.
    fn check_beacon(&self, space: KeyspaceNo, source: Source<'_>) -> Outcome {
        if !self.has_beacon(space) {
            return Ok(());
        }
        match source.get(BEACON_KEY) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => flaw(format!("get: the beacon of keyspace {space} is missing")),
            Err(error) => self.allow(&error, "get a beacon"),
        }
    }

    fn has_beacon(&self, space: KeyspaceNo) -> bool {
        self.simulation.has_beacon(space, self.opened.number)
    }

    pub fn multi_get(
        &mut self,
        keyspace: StepKeyspace,
        numbers: &[u8],
        strategy: Strategy,
    ) -> Outcome {
        let Some((space, keyspace)) = self.space(keyspace) else {
            return Ok(());
        };
        let mut keys: Vec<Key> = numbers.iter().map(|number| self.key(*number)).collect();
        keys.push(BEACON_KEY.to_vec());
        let has_beacon = self.has_beacon(space);
        let mut values = Values::new();
        let begun = self.simulation.begin();
        if let Err(error) = keyspace.multi_get_with(&keys, strategy, &mut values) {
            return self.allow(&error, "look up a batch");
        }
        let read = self.simulation.end(begun);
        for (position, key) in keys.into_iter().enumerate() {
            match values.get(position) {
                Ok(None) if key == BEACON_KEY && has_beacon => {
                    return flaw(format!(
                        "multi_get: the beacon of keyspace {space} is missing"
                    ));
                }
                Ok(_) if key == BEACON_KEY => {}
                Ok(value) => self.check(space, key, value, read, "multi_get")?,
                Err(error) => self.allow(&error, "look up a key of a batch")?,
            }
        }
        Ok(())
    }

    pub fn scan(&mut self, keyspace: StepKeyspace, direction: ReadDirection) -> Outcome {
        let Some((space, keyspace)) = self.space(keyspace) else {
            return Ok(());
        };
        let has_beacon = self.has_beacon(space);
        let begun = self.simulation.begin();
        match read(Source::Now(&keyspace).iter(), direction) {
            Ok(entries) => {
                let read = self.simulation.end(begun);
                self.check_order(space, &entries)?;
                if has_beacon && !entries.iter().any(|(key, _)| key == BEACON_KEY) {
                    return flaw(format!("scan: the beacon of keyspace {space} is missing"));
                }
                let expected = self.memory.history.visible_in(space);
                let own = self.check_own(space, &expected, &entries, read, "scan")?;
                let absent = expected
                    .keys()
                    .filter(|full_key| !own.contains_key(*full_key));
                absent.for_each(|full_key| self.memory.history.note_absent(full_key));
                Ok(())
            }
            Err(error) => self.allow(&error, "scan"),
        }
    }

    /// Checks that entries are in order and that each key occurs once.
    pub fn check_order(&self, space: KeyspaceNo, entries: &Entries) -> Outcome {
        let order = self.simulation.order(space);
        let is_wrong = |pair: &&[(Key, Vec<u8>)]| order.compare(&pair[0].0, &pair[1].0).is_ge();
        match entries.windows(2).find(is_wrong) {
            None => Ok(()),
            Some(pair) => flaw(format!(
                "scan of keyspace {space}: key {} comes after {}",
                show(Some(&pair[1].0)),
                show(Some(&pair[0].0))
            )),
        }
    }

    /// Checks the thread's own keys among the entries of a keyspace, and returns them.
    pub fn check_own(
        &self,
        space: KeyspaceNo,
        expected: &State,
        entries: &Entries,
        read: Span,
        how: &str,
    ) -> Outcome<Observed> {
        let order = self.simulation.order(space);
        let letter = self.memory.letter();
        let observed: Observed = entries
            .iter()
            .map(|(key, value)| ((space, order.canonical(key)), value.clone()))
            .filter(|((_, key), _)| key.first() == Some(&letter))
            .collect();
        let of_space = |((of, _), _): &(&(KeyspaceNo, Key), &Value)| *of == space;
        let expected = expected.iter().filter(of_space);
        let expected = expected.map(|(full_key, value)| (full_key.clone(), value.clone()));
        compare(&expected.collect(), &observed, read, self.simulation)
            .map_err(|why| Stop::Flaw(format!("{how}: {why}")))?;
        Ok(observed)
    }

    pub fn read_stamps(&mut self, by_snapshot: bool) -> Outcome {
        let spaces = self.simulation.stamped_keyspaces();
        if spaces.is_empty() {
            return Ok(());
        }
        let mut least = self.simulation.stamps.least();
        if self.seen > least {
            least = self.seen;
        }
        let mut with_beacon = spaces.clone();
        with_beacon.retain(|space| self.has_beacon(*space));
        let snapshot = by_snapshot.then(|| self.opened.db.snapshot());
        let mut stamps = Vec::new();
        for space in &spaces {
            let keyspace = &self.opened.spaces[*space as usize];
            let source = || match &snapshot {
                Some(snapshot) => Source::At(snapshot.keyspace(keyspace)),
                None => Source::Now(keyspace),
            };
            if !by_snapshot || with_beacon.contains(space) {
                self.check_beacon(*space, source())?;
            }
            match source().get(STAMP_KEY) {
                Ok(value) => stamps.push(value.as_deref().and_then(decode)),
                Err(error) => return self.allow(&error, "read a stamp"),
            }
        }
        let known = &self.simulation.stamps;
        let seen = match by_snapshot {
            true => known.check_moment(&stamps, least),
            // The stamps were read one after another, so none may be older than the one before.
            false => stamps
                .chunks(1)
                .try_fold(least, |least, one| known.check(one, least)),
        };
        self.seen = seen.map_err(Stop::Flaw)?;
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
        let spaces = self.stamped_keyspaces();
        let stamps = spaces.iter().map(|space| {
            let keyspace = snapshot.keyspace(&opened.spaces[*space as usize]);
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
                Ok(stamps) => return check(&stamps).map_err(Stop::Flaw),
                Err(error) => self.allow(&error, Some(opened), "read the stamps")?,
            }
            rt::sleep(std::time::Duration::from_millis(10));
        }
        flaw("the stamps cannot be read, although the faults ended long ago")
    }
}
