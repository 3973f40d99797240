//! What a thread's own keys must hold: a plain map, and the writes since it was last certain.
//!
//! ```text
//!   base ── write ── write ── write ── …          each acknowledged, or in doubt
//!            └── floor: what must be there         moved by syncs, flushes, closes
//! ```
//!
//! While the store is open, what is visible is the base with every acknowledged write applied. After a death, it is the
//! base with the first n writes applied, n being at least the floor, and those in doubt among them each applied or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::orders::Order;

/// The number of a keyspace: shared ones as they are listed, private ones by thread and life.
pub type Space = u32;
pub type Key = Vec<u8>;
/// The keys of keyspaces, with their values.
pub type State = BTreeMap<(Space, Key), Value>;
/// What a scan found.
pub type Observed = BTreeMap<(Space, Key), Vec<u8>>;

/// A value, and between which seconds it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub bytes: Arc<[u8]>,
    pub written: Seconds,
}

/// A time, as far as it is known: in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds {
    pub from: u64,
    pub to: u64,
}

/// What is written where.
#[derive(Clone, Debug)]
pub enum Change {
    Put(Space, Key, Arc<[u8]>),
    Delete(Space, Key),
    DeleteRange(Space, Key, Key),
}

impl Change {
    pub fn space(&self) -> Space {
        match self {
            Change::Put(space, ..) | Change::Delete(space, _) | Change::DeleteRange(space, ..) => {
                *space
            }
        }
    }
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Acknowledged,
    /// It failed, or was under way when the process died: it is not visible, and may be there after the next opening.
    InDoubt,
    /// It was in doubt, and was not there after the next opening.
    Lost,
}

#[derive(Clone, Debug)]
struct Write {
    changes: Vec<Change>,
    fate: Fate,
    written: Seconds,
}

/// The order and the time to live of each keyspace.
pub trait Spaces {
    fn order(&self, space: Space) -> Order;
    fn ttl_s(&self, space: Space) -> Option<u64>;
}

/// Whether an entry must, may, or must not be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lives {
    Yes,
    Perhaps,
    No,
}

impl Value {
    /// Whether it is seen by a reader of that time.
    pub fn lives(&self, ttl_s: Option<u64>, read: Seconds) -> Lives {
        match ttl_s {
            None => Lives::Yes,
            Some(ttl) if read.to <= self.written.from + ttl => Lives::Yes,
            Some(ttl) if read.from > self.written.to + ttl => Lives::No,
            Some(_) => Lives::Perhaps,
        }
    }
}

/// A thread's writes.
#[derive(Clone, Debug, Default)]
pub struct History {
    base: State,
    /// How many writes there were before the base.
    before: usize,
    writes: Vec<Write>,
    /// What is visible.
    now: State,
}

impl History {
    /// What is visible.
    pub fn now(&self) -> &State {
        &self.now
    }

    /// How many writes there were.
    pub fn len(&self) -> usize {
        self.before + self.writes.len()
    }

    /// Notes a write.
    pub fn note(
        &mut self,
        changes: Vec<Change>,
        fate: Fate,
        written: Seconds,
        spaces: &dyn Spaces,
    ) {
        if fate == Fate::Acknowledged {
            for change in &changes {
                apply(&mut self.now, change, written, spaces);
            }
        }
        self.writes.push(Write {
            changes,
            fate,
            written,
        });
    }

    /// Forgets all about a keyspace: it was dropped.
    pub fn forget(&mut self, space: Space) {
        let others = |(of, _): &(Space, Key), _: &mut Value| *of != space;
        self.base.retain(others);
        self.now.retain(others);
        for write in &mut self.writes {
            write.changes.retain(|change| change.space() != space);
        }
    }

    /// Compares what was found after an opening with what may be there, the first `floor` writes being there for sure, and
    /// takes it for certain from now on. The first `safe` writes, at most as many, are never asked about again.
    ///
    /// # Errors
    /// What is wrong.
    pub fn resolve(
        &mut self,
        observed: &Observed,
        floor: usize,
        safe: usize,
        read: Seconds,
        spaces: &dyn Spaces,
    ) -> Result<(), String> {
        let least = floor.saturating_sub(self.before).min(self.writes.len());
        let mut reason = String::new();
        for cut in (least..=self.writes.len()).rev() {
            match self.matches(cut, observed, read, spaces) {
                Ok((state, fates)) => {
                    self.writes.truncate(cut);
                    for (write, fate) in self.writes.iter_mut().zip(fates) {
                        write.fate = fate;
                    }
                    self.now = state;
                    self.fold(safe.saturating_sub(self.before).min(cut), spaces);
                    return Ok(());
                }
                Err(why) if reason.is_empty() => reason = why,
                Err(_) => {}
            }
        }
        Err(format!(
            "{reason} (after any of {} to {} writes)",
            self.before + least,
            self.before + self.writes.len()
        ))
    }

    /// Makes the first writes part of the base, as far as none is in doubt.
    fn fold(&mut self, writes: usize, spaces: &dyn Spaces) {
        let certain = self.writes.iter().take(writes);
        let certain = certain
            .take_while(|write| write.fate != Fate::InDoubt)
            .count();
        for write in self.writes.drain(..certain) {
            if write.fate == Fate::Acknowledged {
                for change in &write.changes {
                    apply(&mut self.base, change, write.written, spaces);
                }
            }
        }
        self.before += certain;
    }

    /// The state after the first `cut` writes if it is what was found, and the fate of each.
    fn matches(
        &self,
        cut: usize,
        observed: &Observed,
        read: Seconds,
        spaces: &dyn Spaces,
    ) -> Result<(State, Vec<Fate>), String> {
        const MOST_DOUBTS: usize = 5;
        let writes = &self.writes[..cut];
        let doubts: Vec<usize> = (0..cut)
            .filter(|n| writes[*n].fate == Fate::InDoubt && !writes[*n].changes.is_empty())
            .collect();
        let mut fates: Vec<Fate> = writes.iter().map(|write| write.fate).collect();
        if doubts.len() > MOST_DOUBTS {
            let state = self.matches_by_key(writes, observed, read, spaces)?;
            return Ok((state, fates));
        }
        let mut reason = String::new();
        for applied in 0..1_u32 << doubts.len() {
            for (number, doubt) in doubts.iter().enumerate() {
                fates[*doubt] = match applied & (1 << number) {
                    0 => Fate::Lost,
                    _ => Fate::Acknowledged,
                };
            }
            let mut state = self.base.clone();
            for (write, fate) in writes.iter().zip(&fates) {
                if *fate == Fate::Acknowledged {
                    for change in &write.changes {
                        apply(&mut state, change, write.written, spaces);
                    }
                }
            }
            match compare(&state, observed, read, spaces) {
                Ok(()) => {
                    state.retain(|key, _| observed.contains_key(key));
                    return Ok((state, fates));
                }
                Err(why) if reason.is_empty() => reason = why,
                Err(_) => {}
            }
        }
        Err(reason)
    }

    /// [`matches`](Self::matches) where too many writes are in doubt to try all of their combinations: each key by itself.
    fn matches_by_key(
        &self,
        writes: &[Write],
        observed: &Observed,
        read: Seconds,
        spaces: &dyn Spaces,
    ) -> Result<State, String> {
        let mut keys: BTreeSet<(Space, Key)> = self.base.keys().cloned().collect();
        for change in writes.iter().flat_map(|write| &write.changes) {
            if let Change::Put(space, key, _) = change {
                keys.insert((*space, key.clone()));
            }
        }
        keys.extend(observed.keys().cloned());
        let mut certain = State::new();
        for (space, key) in keys {
            let place = (space, key);
            let mut candidates = vec![self.base.get(&place).cloned()];
            for write in writes.iter().filter(|write| write.fate != Fate::Lost) {
                let mut state = State::new();
                let marker = Value {
                    bytes: Arc::from(&b""[..]),
                    written: Seconds { from: 0, to: 0 },
                };
                // Applied to a map of this key alone, a write tells what it makes of it.
                state.insert(place.clone(), marker.clone());
                for change in &write.changes {
                    apply(&mut state, change, write.written, spaces);
                }
                let after = state.remove(&place);
                if after.as_ref() == Some(&marker) {
                    continue;
                }
                if write.fate == Fate::Acknowledged {
                    candidates.clear();
                }
                candidates.push(after);
            }
            let found = observed.get(&place);
            let fits = candidates
                .into_iter()
                .find(|candidate| match (candidate, found) {
                    (None, None) => true,
                    (Some(value), Some(bytes)) => {
                        value.bytes[..] == bytes[..]
                            && value.lives(spaces.ttl_s(space), read) != Lives::No
                    }
                    (Some(value), None) => value.lives(spaces.ttl_s(space), read) != Lives::Yes,
                    (None, Some(_)) => false,
                });
            match (fits, found) {
                (Some(Some(value)), Some(_)) => drop(certain.insert(place, value)),
                (Some(_), _) => {}
                (None, _) => {
                    return Err(format!(
                        "{} holds {}, which none of the writes explains",
                        show_place(&place),
                        show(found.map(Vec::as_slice))
                    ));
                }
            }
        }
        Ok(certain)
    }
}

/// Applies one change to a state.
fn apply(state: &mut State, change: &Change, written: Seconds, spaces: &dyn Spaces) {
    match change {
        Change::Put(space, key, bytes) => {
            let value = Value {
                bytes: Arc::clone(bytes),
                written,
            };
            state.insert((*space, key.clone()), value);
        }
        Change::Delete(space, key) => drop(state.remove(&(*space, key.clone()))),
        Change::DeleteRange(space, start, end) => {
            let order = spaces.order(*space);
            state.retain(|(of, key), _| {
                *of != *space
                    || order.compare(key, start).is_lt()
                    || order.compare(key, end).is_ge()
            });
        }
    }
}

/// Compares what was read with what a state holds.
///
/// # Errors
/// What is wrong.
pub fn compare(
    state: &State,
    observed: &Observed,
    read: Seconds,
    spaces: &dyn Spaces,
) -> Result<(), String> {
    for (place, value) in state {
        let found = observed.get(place).map(Vec::as_slice);
        check_value(place, Some(value), found, read, spaces)?;
    }
    for (place, bytes) in observed {
        if !state.contains_key(place) {
            check_value(place, None, Some(bytes), read, spaces)?;
        }
    }
    Ok(())
}

/// Compares one value.
///
/// # Errors
/// What is wrong.
pub fn check_value(
    place: &(Space, Key),
    expected: Option<&Value>,
    found: Option<&[u8]>,
    read: Seconds,
    spaces: &dyn Spaces,
) -> Result<(), String> {
    let ttl_s = spaces.ttl_s(place.0);
    let (lives, bytes) = match expected {
        Some(value) => (value.lives(ttl_s, read), Some(&value.bytes[..])),
        None => (Lives::No, None),
    };
    let is_right = match (lives, found) {
        (Lives::Yes, found) => found == bytes,
        (Lives::Perhaps, None) | (Lives::No, None) => true,
        (Lives::Perhaps, found) => found == bytes,
        (Lives::No, Some(_)) => false,
    };
    if is_right {
        return Ok(());
    }
    let note = match (expected, lives, ttl_s) {
        (Some(value), _, Some(ttl)) => format!(
            ", written at {} to {} s with a time to live of {ttl} s, read at {} to {} s",
            value.written.from, value.written.to, read.from, read.to
        ),
        _ => String::new(),
    };
    Err(format!(
        "{} holds {}, and should hold {}{note}",
        show_place(place),
        show(found),
        match lives {
            Lives::No if expected.is_some() => format!("nothing, {} being expired", show(bytes)),
            _ => show(bytes),
        }
    ))
}

/// A key for people.
pub fn show_place((space, key): &(Space, Key)) -> String {
    format!(
        "key {:?} of keyspace {space}",
        key.escape_ascii().to_string()
    )
}

/// A value for people: its beginning, which names the write.
pub fn show(bytes: Option<&[u8]>) -> String {
    const SHOWN_BYTES: usize = 24;
    match bytes {
        None => "nothing".to_owned(),
        Some(bytes) => {
            let shown = &bytes[..bytes.len().min(SHOWN_BYTES)];
            format!(
                "{:?} ({} bytes)",
                shown.escape_ascii().to_string(),
                bytes.len()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Plain;

    impl Spaces for Plain {
        fn order(&self, _: Space) -> Order {
            Order::Bytes
        }

        fn ttl_s(&self, space: Space) -> Option<u64> {
            (space == 1).then_some(5)
        }
    }

    const AT: Seconds = Seconds { from: 10, to: 10 };

    fn put(key: &str, value: &str) -> Change {
        Change::Put(0, key.into(), Arc::from(value.as_bytes()))
    }

    fn observed(entries: &[(&str, &str)]) -> Observed {
        let entries = entries.iter();
        entries
            .map(|(key, value)| ((0, key.as_bytes().to_vec()), value.as_bytes().to_vec()))
            .collect()
    }

    fn history() -> History {
        let mut history = History::default();
        history.note(
            vec![put("a", "1"), put("b", "1")],
            Fate::Acknowledged,
            AT,
            &Plain,
        );
        history.note(
            vec![put("a", "2"), put("b", "2")],
            Fate::InDoubt,
            AT,
            &Plain,
        );
        history.note(
            vec![Change::DeleteRange(0, b"b".to_vec(), b"c".to_vec())],
            Fate::Acknowledged,
            AT,
            &Plain,
        );
        history
    }

    #[test]
    fn any_prefix_from_the_floor_on_is_right_and_nothing_else() {
        for (entries, floor, is_right) in [
            (&[("a", "1")][..], 3, true),
            (&[("a", "2")], 3, true),
            (&[("a", "2"), ("b", "2")], 2, true),
            (&[("a", "2"), ("b", "2")], 3, false),
            (&[("a", "2"), ("b", "1")], 0, false),
            (&[("a", "1"), ("b", "1")], 1, true),
            (&[], 0, true),
            (&[], 1, false),
            (&[("c", "1")], 0, false),
        ] {
            let mut history = history();
            let resolved = history.resolve(&observed(entries), floor, floor, AT, &Plain);
            assert_eq!(
                resolved.is_ok(),
                is_right,
                "{entries:?} from {floor}: {resolved:?}"
            );
            if is_right {
                assert_eq!(history.now().len(), entries.len());
                assert!(history.len() >= floor);
            }
        }
    }

    #[test]
    fn an_entry_is_there_as_long_as_it_lives_and_gone_a_second_later() {
        let value = Value {
            bytes: Arc::from(&b"x"[..]),
            written: Seconds { from: 10, to: 11 },
        };
        let read = |from, to| value.lives(Some(5), Seconds { from, to });
        assert_eq!(read(15, 15), Lives::Yes);
        assert_eq!(read(15, 16), Lives::Perhaps);
        assert_eq!(read(16, 16), Lives::Perhaps);
        assert_eq!(read(17, 17), Lives::No);
        assert_eq!(value.lives(None, Seconds { from: 99, to: 99 }), Lives::Yes);
    }
}
