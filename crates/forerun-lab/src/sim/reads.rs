//! Steps that read: all ways of reading must agree with what the thread knows of its own keys, and with each other.

use std::collections::BTreeMap;

use forerun_db::{Error, Iter, Keyspace, KeyspaceSnapshot, Snapshot, Values};

use super::draw::KEYS;
use super::model::{
    Key, Lives, Observed, Seconds, Space, Spaces, State, Value, check_value, compare, show,
};
use super::program::{Place, Way};
use super::rt;
use super::stamps::{BEACON_KEY, STAMP_KEY, decode};
use super::user::{Memory, User};
use super::world::{Opened, Outcome, Stop, World, flaw};

/// Entries in the order in which they were read.
pub type Entries = Vec<(Key, Vec<u8>)>;

/// The store as it is now.
pub struct Now<'a> {
    pub opened: &'a Opened,
    pub private: Option<(Space, Keyspace)>,
    pub shape: &'a World,
}

/// A keyspace, now or as a snapshot has it.
pub enum Source<'a> {
    Now(&'a Keyspace),
    At(KeyspaceSnapshot<'a>),
}

impl Source<'_> {
    fn get(&self, key: &[u8]) -> forerun_db::Result<Option<Vec<u8>>> {
        match self {
            Source::Now(keyspace) => keyspace.get(key),
            Source::At(snapshot) => snapshot.get(key),
        }
    }

    fn multi_get(&self, keys: &[Key], values: &mut Values) -> forerun_db::Result<()> {
        match self {
            Source::Now(keyspace) => keyspace.multi_get(keys, values),
            Source::At(snapshot) => snapshot.multi_get(keys, values),
        }
    }

    fn iter(&self) -> Iter {
        match self {
            Source::Now(keyspace) => keyspace.iter(),
            Source::At(snapshot) => snapshot.iter(),
        }
    }

    fn range(&self, (from, to): (Key, Key)) -> Iter {
        match self {
            Source::Now(keyspace) => keyspace.range(from..to),
            Source::At(snapshot) => snapshot.range(from..to),
        }
    }
}

impl Now<'_> {
    /// All keyspaces that the thread knows.
    pub fn spaces(&self) -> Vec<(Space, Keyspace)> {
        let shared = self.opened.spaces.iter().cloned();
        let shared = shared
            .enumerate()
            .map(|(number, space)| (number as Space, space));
        shared.chain(self.private.clone()).collect()
    }

    /// The thread's own keys, as scans find them.
    ///
    /// # Errors
    /// That of a read.
    pub fn observe_own(&self, memory: &Memory) -> forerun_db::Result<Observed> {
        let mut observed = Observed::new();
        for (space, keyspace) in self.spaces() {
            let order = self.shape.order(space);
            let entries = read(
                Source::Now(&keyspace).range(memory.bounds(order)),
                Way::Forward,
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
/// That of a step.
pub fn read(mut iter: Iter, way: Way) -> forerun_db::Result<Entries> {
    let (mut front, mut back) = (Entries::new(), Entries::new());
    loop {
        let is_back = match way {
            Way::Forward => false,
            Way::Backward => true,
            Way::Both => (front.len() * 7 + back.len() * 3) % 5 < 2,
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

/// A snapshot that a thread holds, with what it must see of the thread's keys.
pub struct HeldSnapshot {
    snapshot: Snapshot,
    opening: u64,
    at: Seconds,
    expected: State,
    private: Option<(Space, Keyspace)>,
    /// All that was read by it first.
    all: BTreeMap<Space, Entries>,
}

impl HeldSnapshot {
    /// A keyspace was dropped.
    pub fn forget(&mut self, space: Space) {
        if self.private.as_ref().is_some_and(|(of, _)| *of == space) {
            self.private = None;
        }
        self.expected.retain(|(of, _), _| *of != space);
    }
}

/// An iterator over the thread's own keys that it holds, with what it must still give.
pub struct HeldIter {
    iter: Iter,
    opening: u64,
    space: Space,
    at: Seconds,
    left: Vec<(Key, Value)>,
}

impl User<'_> {
    pub fn get(&mut self, place: Place, number: u8) -> Outcome {
        let Some((space, keyspace)) = self.space(place) else {
            return Ok(());
        };
        self.look_for_beacon(space, Source::Now(&keyspace))?;
        let key = self.key(number);
        let begun = self.world.begin();
        match keyspace.get(&self.spell(space, &key)) {
            Ok(value) => {
                let read = self.world.end(begun);
                self.check(space, key, value.as_deref(), read, "get")
            }
            Err(error) => self.allow(&error, "get"),
        }
    }

    fn check(
        &self,
        space: Space,
        key: Key,
        found: Option<&[u8]>,
        read: Seconds,
        how: &str,
    ) -> Outcome {
        let place = (space, key);
        let expected = self.memory.history.now().get(&place);
        check_value(&place, expected, found, read, self.world)
            .map_err(|why| Stop::Flaw(format!("{how}: {why}")))
    }

    /// Other threads write the beacon again and again, by ingestions; it is never away.
    /// A snapshot that is taken once the beacon is there has it too.
    fn look_for_beacon(&self, space: Space, source: Source<'_>) -> Outcome {
        if !self.is_lit(space) {
            return Ok(());
        }
        match source.get(BEACON_KEY) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => flaw(format!("get: the beacon of keyspace {space} is gone")),
            Err(error) => self.allow(&error, "get a beacon"),
        }
    }

    fn is_lit(&self, space: Space) -> bool {
        self.world.is_lit(space, self.opened.number)
    }

    pub fn multi_get(&mut self, place: Place, numbers: &[u8]) -> Outcome {
        let Some((space, keyspace)) = self.space(place) else {
            return Ok(());
        };
        let mut keys: Vec<Key> = numbers.iter().map(|number| self.key(*number)).collect();
        keys.push(BEACON_KEY.to_vec());
        let is_lit = self.is_lit(space);
        let mut values = Values::new();
        let begun = self.world.begin();
        if let Err(error) = keyspace.multi_get(&keys, &mut values) {
            return self.allow(&error, "look up a batch");
        }
        let read = self.world.end(begun);
        for (position, key) in keys.into_iter().enumerate() {
            match values.get(position) {
                Ok(None) if key == BEACON_KEY && is_lit => {
                    return flaw(format!("multi_get: the beacon of keyspace {space} is gone"));
                }
                Ok(_) if key == BEACON_KEY => {}
                Ok(value) => self.check(space, key, value, read, "multi_get")?,
                Err(error) => self.allow(&error, "look up a key of a batch")?,
            }
        }
        Ok(())
    }

    pub fn scan(&mut self, place: Place, way: Way) -> Outcome {
        let Some((space, keyspace)) = self.space(place) else {
            return Ok(());
        };
        let is_lit = self.is_lit(space);
        let begun = self.world.begin();
        match read(Source::Now(&keyspace).iter(), way) {
            Ok(entries) => {
                let read = self.world.end(begun);
                self.check_order(space, &entries)?;
                if is_lit && !entries.iter().any(|(key, _)| key == BEACON_KEY) {
                    return flaw(format!("scan: the beacon of keyspace {space} is gone"));
                }
                let expected = self.memory.history.now();
                self.check_own(space, expected, &entries, read, "scan")
            }
            Err(error) => self.allow(&error, "scan"),
        }
    }

    /// Checks that entries are in order, and each key is there once.
    fn check_order(&self, space: Space, entries: &Entries) -> Outcome {
        let order = self.world.order(space);
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

    /// Checks the thread's own keys among the entries of a keyspace.
    fn check_own(
        &self,
        space: Space,
        expected: &State,
        entries: &Entries,
        read: Seconds,
        how: &str,
    ) -> Outcome {
        let order = self.world.order(space);
        let letter = self.memory.letter();
        let observed: Observed = entries
            .iter()
            .map(|(key, value)| ((space, order.canonical(key)), value.clone()))
            .filter(|((_, key), _)| key.first() == Some(&letter))
            .collect();
        let of_space = |((of, _), _): &(&(Space, Key), &Value)| *of == space;
        let expected = expected.iter().filter(of_space);
        let expected = expected.map(|(place, value)| (place.clone(), value.clone()));
        compare(&expected.collect(), &observed, read, self.world)
            .map_err(|why| Stop::Flaw(format!("{how}: {why}")))
    }

    pub fn read_stamps(&mut self, by_snapshot: bool) -> Outcome {
        let spaces = self.world.stamped_spaces();
        if spaces.is_empty() {
            return Ok(());
        }
        let mut least = self.world.stamps.least();
        if self.seen > least {
            least = self.seen;
        }
        let mut lit = spaces.clone();
        lit.retain(|space| self.is_lit(*space));
        let snapshot = by_snapshot.then(|| self.opened.db.snapshot());
        let mut stamps = Vec::new();
        for space in &spaces {
            let keyspace = &self.opened.spaces[*space as usize];
            let source = || match &snapshot {
                Some(snapshot) => Source::At(snapshot.keyspace(keyspace)),
                None => Source::Now(keyspace),
            };
            if !by_snapshot || lit.contains(space) {
                self.look_for_beacon(*space, source())?;
            }
            match source().get(STAMP_KEY) {
                Ok(value) => stamps.push(value.as_deref().and_then(decode)),
                Err(error) => return self.allow(&error, "read a stamp"),
            }
        }
        let known = &self.world.stamps;
        let seen = match by_snapshot {
            true => known.check_moment(&stamps, least),
            // One after the other: never older than the one before.
            false => stamps
                .chunks(1)
                .try_fold(least, |least, one| known.check(one, least)),
        };
        self.seen = seen.map_err(Stop::Flaw)?;
        Ok(())
    }

    pub fn take_snapshot(&mut self) -> Outcome {
        let begun = self.world.begin();
        let snapshot = self.opened.db.snapshot();
        self.snapshot = Some(HeldSnapshot {
            snapshot,
            opening: self.opened.number,
            at: self.world.end(begun),
            expected: self.memory.history.now().clone(),
            private: self.private_space(),
            all: BTreeMap::new(),
        });
        Ok(())
    }

    pub fn read_snapshot(&mut self) -> Outcome {
        let Some(mut held) = self.snapshot.take() else {
            return Ok(());
        };
        if held.opening != self.opened.number {
            // It is of a store that is closed by now, and its handles with it.
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
                            "a snapshot of keyspace {space} gave {} entries first and {} others later",
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

    /// Reads a keyspace in all ways, which must agree with each other and with what is expected of the thread's keys.
    /// Returns all that was read.
    fn read_all_ways(
        &self,
        space: Space,
        source: &Source<'_>,
        expected: &State,
        at: Seconds,
    ) -> Outcome<forerun_db::Result<Entries>> {
        let entries = match read(source.iter(), Way::Forward) {
            Ok(entries) => entries,
            Err(error) => return Ok(Err(error)),
        };
        self.check_order(space, &entries)?;
        self.check_own(space, expected, &entries, at, "snapshot, scan")?;
        for way in [Way::Backward, Way::Both] {
            match read(source.iter(), way) {
                Ok(others) if others == entries => {}
                Ok(others) => {
                    return flaw(format!(
                        "a snapshot of keyspace {space} has {} entries forward and {} {way:?}",
                        entries.len(),
                        others.len()
                    ));
                }
                Err(error) => return Ok(Err(error)),
            }
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
                    let place = (space, key);
                    for (found, how) in [(one.as_deref(), "get"), (batched, "multi_get")] {
                        check_value(&place, expected.get(&place), found, at, self.world)
                            .map_err(|why| Stop::Flaw(format!("snapshot, {how}: {why}")))?;
                    }
                }
                (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
            }
        }
        Ok(Ok(entries))
    }

    pub fn begin_iter(&mut self, place: Place) -> Outcome {
        let Some((space, keyspace)) = self.space(place) else {
            return Ok(());
        };
        let order = self.world.order(space);
        let begun = self.world.begin();
        let iter = Source::Now(&keyspace).range(self.memory.bounds(order));
        let own = self.memory.history.now().iter();
        let own = own.filter(|((of, _), _)| *of == space);
        let mut left: Vec<(Key, Value)> = own
            .map(|((_, key), value)| (key.clone(), value.clone()))
            .collect();
        left.sort_by(|(a, _), (b, _)| order.compare(a, b));
        self.iter = Some(HeldIter {
            iter,
            opening: self.opened.number,
            space,
            at: self.world.end(begun),
            left,
        });
        Ok(())
    }

    pub fn step_iter(&mut self, steps: u8, is_back: bool) -> Outcome {
        let Some(mut held) = self.iter.take() else {
            return Ok(());
        };
        for _ in 0..steps {
            match held.step(is_back, self.world) {
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
    /// Takes one step. Tells whether there was an entry.
    fn step(&mut self, is_back: bool, world: &World) -> Result<bool, IterStop> {
        let order = world.order(self.space);
        let entry = match is_back {
            false => self.iter.next_entry(),
            true => self.iter.next_entry_back(),
        };
        let entry = entry.map_err(IterStop::Failed)?;
        let found = entry.map(|entry| (order.canonical(entry.key), entry.value.to_vec()));
        let ttl_s = world.ttl_s(self.space);
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
            let lives = next.as_ref().map(|(_, value)| value.lives(ttl_s, self.at));
            let wrong = |next: Option<&(Key, Value)>| {
                let entry = |entry: Option<(&[u8], &[u8])>| match entry {
                    Some((key, value)) => format!("{} = {}", show(Some(key)), show(Some(value))),
                    None => "its end".to_owned(),
                };
                let found = found.as_ref().map(|(key, value)| (&key[..], &value[..]));
                let next = next.map(|(key, value)| (&key[..], &value.bytes[..]));
                Err(IterStop::Flaw(format!(
                    "an iterator of keyspace {} gave {}, and should give {}",
                    self.space,
                    entry(found),
                    entry(next)
                )))
            };
            match lives {
                None if found.is_none() => return Ok(false),
                None => return wrong(None),
                Some(Lives::Yes) if !is_next => return wrong(next.as_ref()),
                _ => {}
            }
            match is_back {
                false => drop(self.left.remove(0)),
                true => drop(self.left.pop()),
            }
            match lives {
                Some(Lives::No) if is_next => return wrong(None),
                _ if is_next => return Ok(true),
                // It has expired, or may have.
                _ => {}
            }
        }
    }
}

impl World {
    /// The stamps that are there now.
    ///
    /// # Errors
    /// That of a read.
    pub fn read_stamps(&self, opened: &Opened) -> forerun_db::Result<Vec<Option<u64>>> {
        let snapshot = opened.db.snapshot();
        let spaces = self.stamped_spaces();
        let stamps = spaces.iter().map(|space| {
            let keyspace = snapshot.keyspace(&opened.spaces[*space as usize]);
            Ok(keyspace.get(STAMP_KEY)?.as_deref().and_then(decode))
        });
        stamps.collect()
    }

    /// Reads the stamps, however often it takes, and has them checked.
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
        flaw("the stamps cannot be read, long after all faults")
    }
}
