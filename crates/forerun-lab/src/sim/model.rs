//! The expected contents of a thread's own keys: a plain map, and the writes since it was last
//! certain.
//!
//! ```text
//!   base ── write ── write ── write ── …          each acknowledged, or in doubt
//!            └── floor: the least that must be there         moved by syncs, flushes, closes
//! ```
//!
//! While the store is open, the base with every acknowledged write applied is visible. After a
//! death, it is the base with the first n writes applied, where n is at least the floor and each
//! write in doubt among them may be applied or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::orders::Order;
use super::wall::{Span, WallClock};

/// The number of a keyspace: shared ones in the order of their list, private ones by thread and
/// life.
pub type Space = u32;
pub type Key = Vec<u8>;
/// The keys of keyspaces, with their values.
pub type State = BTreeMap<(Space, Key), Value>;
/// The result of a scan.
pub type Observed = BTreeMap<(Space, Key), Vec<u8>>;

/// A value, and when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub bytes: Arc<[u8]>,
    pub written: Span,
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

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Acknowledged,
    /// It failed, or was in progress when the process died: it is not visible, but may be there
    /// after the next opening.
    InDoubt,
    /// It was in doubt, and was not there after the next opening.
    Lost,
}

#[derive(Clone, Debug)]
struct Write {
    changes: Vec<Change>,
    fate: Fate,
    written: Span,
}

/// The order and the time to live of each keyspace, and the clock they use.
pub trait Spaces {
    fn order(&self, space: Space) -> Order;
    fn ttl_s(&self, space: Space) -> Option<u64>;
    fn clock(&self) -> &WallClock;
}

/// Whether an entry must, may, or must not be visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lives {
    Yes,
    Perhaps,
    No,
}

impl Value {
    /// Whether a reader at that time sees it. It lives at least for its time to live, counted from
    /// when the clock last showed less than its time of writing: the store records a second only if
    /// it is later than the last one, and otherwise the last one counts.
    pub fn lives(&self, ttl_s: Option<u64>, read: Span, clock: &WallClock) -> Lives {
        let Some(ttl) = ttl_s else { return Lives::Yes };
        let (lowest_written, _) = clock.extremes(self.written);
        let (_, highest_written) = clock.extremes(self.written.and_before());
        let (_, highest_since) = clock.extremes(self.written.until(read));
        let (lowest_read, _) = clock.extremes(read);
        if highest_since <= lowest_written + ttl {
            Lives::Yes
        } else if lowest_read > highest_written + ttl {
            Lives::No
        } else {
            Lives::Perhaps
        }
    }
}

/// A thread's writes.
#[derive(Clone, Debug, Default)]
pub struct History {
    base: State,
    /// How many writes came before the base.
    before: usize,
    writes: Vec<Write>,
    /// What is visible.
    now: State,
    /// Entries that were seen to have expired since the store was opened.
    expired: State,
    /// Every value that was ever put, with its key.
    ever: BTreeSet<(Key, Arc<[u8]>)>,
}

impl History {
    /// What is visible.
    pub fn now(&self) -> &State {
        &self.now
    }

    /// The number of writes.
    pub fn len(&self) -> usize {
        self.before + self.writes.len()
    }

    /// Records a write.
    pub fn note(&mut self, changes: Vec<Change>, fate: Fate, written: Span, spaces: &dyn Spaces) {
        for change in &changes {
            if let Change::Put(_, key, bytes) = change {
                self.ever.insert((key.clone(), Arc::clone(bytes)));
            }
        }
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

    /// Whether a value was ever put under a key, in any keyspace.
    pub fn ever_put(&self, key: &[u8], bytes: &[u8]) -> bool {
        self.ever.contains(&(key.to_vec(), Arc::from(bytes)))
    }

    /// What is visible of a key in the open store: an entry that was seen to expire does not
    /// return.
    pub fn visible(&self, place: &(Space, Key)) -> Option<&Value> {
        let value = self.now.get(place)?;
        (self.expired.get(place) != Some(value)).then_some(value)
    }

    /// The same for all keys of a keyspace.
    pub fn visible_in(&self, space: Space) -> State {
        let places = self.now.keys().filter(|place| place.0 == space);
        let visible =
            places.filter_map(|place| Some((place.clone(), self.visible(place)?.clone())));
        visible.collect()
    }

    /// An entry was not found: if there was one, it has expired, and does not return while the
    /// store is open.
    pub fn note_absent(&mut self, place: &(Space, Key)) {
        if let Some(value) = self.now.get(place) {
            self.expired.insert(place.clone(), value.clone());
        }
    }

    /// Forgets everything about a keyspace that was dropped.
    pub fn forget(&mut self, space: Space) {
        let others = |(of, _): &(Space, Key), _: &mut Value| *of != space;
        self.base.retain(others);
        self.now.retain(others);
        for write in &mut self.writes {
            write.changes.retain(|change| change.space() != space);
        }
    }

    /// Compares what was found after an opening with the possible contents, where the first `floor`
    /// writes must be there, and makes it the certain state. The first `safe` writes, at most as
    /// many, are never checked again.
    ///
    /// # Errors
    /// What is wrong.
    pub fn resolve(
        &mut self,
        observed: &Observed,
        floor: usize,
        safe: usize,
        read: Span,
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
                    self.expired.clear();
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

    /// Makes the first writes part of the base, as long as none is in doubt.
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

    /// The state after the first `cut` writes if it is what was found, and the fate of each write.
    fn matches(
        &self,
        cut: usize,
        observed: &Observed,
        read: Span,
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

    /// [`matches`](Self::matches) if too many writes are in doubt to try all combinations: each key
    /// separately.
    fn matches_by_key(
        &self,
        writes: &[Write],
        observed: &Observed,
        read: Span,
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
                    written: Span::default(),
                };
                // Applied to a map of only this key, a write shows what it does to the key.
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
                            && value.lives(spaces.ttl_s(space), read, spaces.clock()) != Lives::No
                    }
                    (Some(value), None) => {
                        value.lives(spaces.ttl_s(space), read, spaces.clock()) != Lives::Yes
                    }
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
fn apply(state: &mut State, change: &Change, written: Span, spaces: &dyn Spaces) {
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

/// Compares what was read with a state.
///
/// # Errors
/// What is wrong.
pub fn compare(
    state: &State,
    observed: &Observed,
    read: Span,
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
    read: Span,
    spaces: &dyn Spaces,
) -> Result<(), String> {
    let ttl_s = spaces.ttl_s(place.0);
    let (lives, bytes) = match expected {
        Some(value) => (
            value.lives(ttl_s, read, spaces.clock()),
            Some(&value.bytes[..]),
        ),
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
        (Some(value), _, Some(ttl)) => {
            let (written, read) = (
                spaces.clock().extremes(value.written),
                spaces.clock().extremes(read),
            );
            format!(
                ", written at {} to {} s with a time to live of {ttl} s, read at {} to {} s",
                written.0, written.1, read.0, read.1
            )
        }
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

/// A readable key.
pub fn show_place((space, key): &(Space, Key)) -> String {
    format!(
        "key {:?} of keyspace {space}",
        key.escape_ascii().to_string()
    )
}

/// A readable value: its beginning, which names the write.
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
#[path = "model_tests.rs"]
mod tests;
