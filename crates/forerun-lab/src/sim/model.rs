//! The expected contents of a thread's own keys: a plain map of certain values, and the writes
//! since then.
//!
//! ```text
//!   base ── write ── write ── write ── …          each acknowledged, or in doubt
//!            └── floor: the least that must be there         moved by syncs, flushes, closes
//! ```
//!
//! While the store is open, the base with every acknowledged write applied is visible. After a
//! crash, it is the base with the first n writes applied, where n is at least the floor and each
//! write in doubt among them may be applied or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::compare::{compare, show, show_key};
use super::entries::{
    Change, Key, KeyspaceId, KeyspaceRules, Observed, State, Value, Visibility, Write,
    WriteOutcome, apply,
};
use super::wall_clock::Span;

/// A thread's writes.
#[derive(Clone, Debug, Default)]
pub struct History {
    base: State,
    /// How many writes came before the base.
    before: usize,
    writes: Vec<Write>,
    /// The visible state.
    current: State,
    /// Entries that were seen to have expired since the store was opened.
    expired: State,
    /// Values that the store may hold instead of those of the state. They had expired when the
    /// store was opened, so it was not visible which of them it holds. One of them returns if the
    /// clock is set back before another opening.
    hidden: BTreeMap<(KeyspaceId, Key), Vec<HiddenValue>>,
    /// Every value that was ever put, with its key.
    ever: BTreeSet<(Key, Arc<[u8]>)>,
}

/// A value that may be there unless its key was written since.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HiddenValue {
    value: Value,
    /// How many writes there were when it had expired.
    since: usize,
}

impl History {
    /// The visible state.
    pub fn current(&self) -> &State {
        &self.current
    }

    /// The number of writes.
    pub fn len(&self) -> usize {
        self.before + self.writes.len()
    }

    /// How many of the last writes were acknowledged.
    pub fn acknowledged_of_last(&self, writes: usize) -> usize {
        let last = self.writes.iter().rev().take(writes);
        last.filter(|write| write.outcome == WriteOutcome::Acknowledged)
            .count()
    }

    /// Records a write.
    pub fn note(
        &mut self,
        changes: Vec<Change>,
        outcome: WriteOutcome,
        written: Span,
        rules: &dyn KeyspaceRules,
    ) {
        for change in &changes {
            if let Change::Put(_, key, bytes) = change {
                self.ever.insert((key.clone(), Arc::clone(bytes)));
            }
        }
        if outcome == WriteOutcome::Acknowledged {
            for change in &changes {
                apply(&mut self.current, change, written, rules);
            }
        }
        self.writes.push(Write {
            changes,
            outcome,
            written,
        });
    }

    /// Whether a value was ever put under a key, in any keyspace.
    pub fn ever_put(&self, key: &[u8], bytes: &[u8]) -> bool {
        self.ever.contains(&(key.to_vec(), Arc::from(bytes)))
    }

    /// The visible value of a key in the open store. An entry that was seen to expire does not
    /// return.
    pub fn visible(&self, full_key: &(KeyspaceId, Key)) -> Option<&Value> {
        let value = self.current.get(full_key)?;
        (self.expired.get(full_key) != Some(value)).then_some(value)
    }

    /// The same for all keys.
    pub fn all_visible(&self) -> State {
        let full_keys = self.current.keys();
        let visible = full_keys
            .filter_map(|full_key| Some((full_key.clone(), self.visible(full_key)?.clone())));
        visible.collect()
    }

    /// The same for all keys of a keyspace.
    pub fn visible_in(&self, keyspace_id: KeyspaceId) -> State {
        let mut visible = self.all_visible();
        visible.retain(|full_key, _| full_key.0 == keyspace_id);
        visible
    }

    /// Records that an entry was not found. If there was one, it has expired, and does not return
    /// while the store is open.
    pub fn note_absent(&mut self, full_key: &(KeyspaceId, Key)) {
        if let Some(value) = self.current.get(full_key) {
            self.expired.insert(full_key.clone(), value.clone());
        }
    }

    /// Forgets everything about a keyspace that was dropped.
    pub fn forget(&mut self, keyspace_id: KeyspaceId) {
        let others = |(of, _): &(KeyspaceId, Key), _: &mut Value| *of != keyspace_id;
        self.base.retain(others);
        self.current.retain(others);
        self.hidden.retain(|(of, _), _| *of != keyspace_id);
        for write in &mut self.writes {
            write
                .changes
                .retain(|change| change.keyspace_id() != keyspace_id);
        }
    }

    /// Compares what was found after an opening with the possible contents, where the first `floor`
    /// writes must be there, and makes it the certain state. The first `durable` writes, where
    /// `durable` is at most `floor`, are never checked again.
    ///
    /// # Errors
    /// A description of the mismatch.
    pub fn resolve(
        &mut self,
        observed: &Observed,
        floor: usize,
        durable: usize,
        read: Span,
        rules: &dyn KeyspaceRules,
    ) -> Result<(), String> {
        let writes_min = floor.saturating_sub(self.before).min(self.writes.len());
        let mut reason = String::new();
        let mut found: Option<MatchingState> = None;
        for cut in (writes_min..=self.writes.len()).rev() {
            if found.is_some() && !rules.clock_may_go_back() {
                break;
            }
            match self.matches(cut, observed, read, rules) {
                Ok(matched) => match &mut found {
                    None => found = Some(matched),
                    // An expired entry looks like one that was never written.
                    Some(found) => found.others.extend(matched.all()),
                },
                Err(why) if reason.is_empty() => reason = why,
                Err(_) => {}
            }
        }
        let Some(found) = found else {
            return Err(format!(
                "{reason} (after any of {} to {} writes)",
                self.before + writes_min,
                self.before + self.writes.len()
            ));
        };
        let MatchingState {
            mut state,
            outcomes,
            others,
        } = found;
        let cut = outcomes.len();
        self.writes.truncate(cut);
        for (write, outcome) in self.writes.iter_mut().zip(outcomes) {
            write.outcome = outcome;
        }
        self.hide(others, &state, observed);
        state.retain(|full_key, _| observed.contains_key(full_key));
        self.current = state;
        self.expired.clear();
        self.fold(durable.saturating_sub(self.before).min(cut), rules);
        Ok(())
    }

    /// Notes values that may be there, but were not seen.
    fn hide(
        &mut self,
        others: Vec<((KeyspaceId, Key), Value)>,
        chosen: &State,
        observed: &Observed,
    ) {
        let since = self.len();
        for (full_key, value) in others {
            if observed.contains_key(&full_key) || chosen.get(&full_key) == Some(&value) {
                continue;
            }
            let hidden = self.hidden.entry(full_key).or_default();
            if hidden.iter().all(|other| other.value != value) {
                hidden.push(HiddenValue { value, since });
            }
        }
    }

    /// Adds the entries that returned to a state after some of the writes: those that had expired,
    /// and whose keys were not written since.
    fn add_returned(
        &self,
        state: &mut State,
        outcomes: &[WriteOutcome],
        observed: &Observed,
        read: Span,
        rules: &dyn KeyspaceRules,
    ) {
        for (full_key, hidden) in &self.hidden {
            let Some(bytes) = observed.get(full_key) else {
                continue;
            };
            if state
                .get(full_key)
                .is_some_and(|value| value.bytes[..] == bytes[..])
            {
                continue;
            }
            let is_it = |hidden: &&HiddenValue| {
                hidden.value.bytes[..] == bytes[..]
                    && hidden
                        .value
                        .visibility(rules.ttl_s(full_key.0), read, rules.clock())
                        != Visibility::Forbidden
                    && !self.is_written_since(hidden.since, full_key, outcomes, rules)
            };
            if let Some(hidden) = hidden.iter().find(is_it) {
                state.insert(full_key.clone(), hidden.value.clone());
            }
        }
    }

    /// Whether a key was written after the first `since` writes.
    fn is_written_since(
        &self,
        since: usize,
        full_key: &(KeyspaceId, Key),
        outcomes: &[WriteOutcome],
        rules: &dyn KeyspaceRules,
    ) -> bool {
        let later = self.writes.iter().zip(outcomes);
        let mut later = later.skip(since.saturating_sub(self.before));
        later.any(|(write, outcome)| {
            *outcome == WriteOutcome::Acknowledged && write.touches(full_key, rules)
        })
    }

    /// The entries that may return in another opening of the store or in a copy, once the clock was
    /// set back: those that are not visible but may be there.
    pub fn dormant(&self, rules: &dyn KeyspaceRules) -> BTreeMap<(KeyspaceId, Key), Vec<Value>> {
        let mut state = self.base.clone();
        for write in &self.writes {
            if write.outcome == WriteOutcome::Acknowledged {
                write.apply(&mut state, rules);
            }
        }
        let mut dormant: BTreeMap<(KeyspaceId, Key), Vec<Value>> = BTreeMap::new();
        for (full_key, value) in state {
            dormant.entry(full_key).or_default().push(value);
        }
        let outcomes: Vec<WriteOutcome> = self.writes.iter().map(|write| write.outcome).collect();
        for (full_key, hidden) in &self.hidden {
            let hidden = hidden
                .iter()
                .filter(|hidden| !self.is_written_since(hidden.since, full_key, &outcomes, rules));
            let values = hidden.map(|hidden| hidden.value.clone());
            dormant.entry(full_key.clone()).or_default().extend(values);
        }
        dormant.retain(|full_key, values| {
            let is_lasting = rules.ttl_s(full_key.0).is_none();
            !is_lasting && !self.current.contains_key(full_key) && !values.is_empty()
        });
        dormant
    }

    /// Makes the first writes part of the base, as long as none is in doubt.
    fn fold(&mut self, writes: usize, rules: &dyn KeyspaceRules) {
        let certain = self.writes.iter().take(writes);
        let certain = certain
            .take_while(|write| write.outcome != WriteOutcome::InDoubt)
            .count();
        for (number, write) in (self.before..).zip(self.writes.drain(..certain)) {
            if write.outcome == WriteOutcome::Acknowledged {
                write.apply(&mut self.base, rules);
                for (full_key, hidden) in &mut self.hidden {
                    if write.touches(full_key, rules) {
                        hidden.retain(|hidden| hidden.since > number);
                    }
                }
            }
        }
        self.hidden.retain(|_, hidden| !hidden.is_empty());
        self.before += certain;
    }

    /// The state after the first `cut` writes if it is what was found, and the outcome of each
    /// write.
    fn matches(
        &self,
        cut: usize,
        observed: &Observed,
        read: Span,
        rules: &dyn KeyspaceRules,
    ) -> Result<MatchingState, String> {
        const IN_DOUBT_MAX: usize = 8;
        let writes = &self.writes[..cut];
        let in_doubt: Vec<usize> = (0..cut)
            .filter(|n| {
                writes[*n].outcome == WriteOutcome::InDoubt && !writes[*n].changes.is_empty()
            })
            .collect();
        let mut outcomes: Vec<WriteOutcome> = writes.iter().map(|write| write.outcome).collect();
        if in_doubt.len() > IN_DOUBT_MAX {
            return self.matches_by_key(outcomes, observed, read, rules);
        }
        let mut reason = String::new();
        let mut found: Option<MatchingState> = None;
        for applied in 0..1_u32 << in_doubt.len() {
            for (number, doubt) in in_doubt.iter().enumerate() {
                outcomes[*doubt] = match applied & (1 << number) {
                    0 => WriteOutcome::Absent,
                    _ => WriteOutcome::Acknowledged,
                };
            }
            let mut state = self.base.clone();
            for (write, outcome) in writes.iter().zip(&outcomes) {
                if *outcome == WriteOutcome::Acknowledged {
                    write.apply(&mut state, rules);
                }
            }
            self.add_returned(&mut state, &outcomes, observed, read, rules);
            match compare(&state, observed, read, rules) {
                Ok(()) => match &mut found {
                    Some(found) => found.others.extend(state),
                    None => {
                        found = Some(MatchingState {
                            state,
                            outcomes: outcomes.clone(),
                            others: Vec::new(),
                        });
                    }
                },
                Err(why) if reason.is_empty() => reason = why,
                Err(_) => {}
            }
            if found.is_some() && !rules.clock_may_go_back() {
                break;
            }
        }
        found.ok_or(reason)
    }

    /// [`matches`](Self::matches) if too many writes are in doubt to try all combinations: each key
    /// separately.
    fn matches_by_key(
        &self,
        outcomes: Vec<WriteOutcome>,
        observed: &Observed,
        read: Span,
        rules: &dyn KeyspaceRules,
    ) -> Result<MatchingState, String> {
        let writes = &self.writes[..outcomes.len()];
        let mut others = Vec::new();
        let mut keys: BTreeSet<(KeyspaceId, Key)> = self.base.keys().cloned().collect();
        for change in writes.iter().flat_map(|write| &write.changes) {
            if let Change::Put(keyspace_id, key, _) = change {
                keys.insert((*keyspace_id, key.clone()));
            }
        }
        keys.extend(observed.keys().cloned());
        let mut certain = State::new();
        for (keyspace_id, key) in keys {
            let full_key = (keyspace_id, key);
            let mut candidates = vec![self.base.get(&full_key).cloned()];
            let hidden = self.hidden.get(&full_key).into_iter().flatten();
            candidates.extend(hidden.map(|hidden| Some(hidden.value.clone())));
            for write in writes
                .iter()
                .filter(|write| write.outcome != WriteOutcome::Absent)
            {
                let mut state = State::new();
                let marker = Value {
                    bytes: Arc::from(&b""[..]),
                    written: Span::default(),
                };
                // Applied to a map of only this key, a write shows what it does to the key.
                state.insert(full_key.clone(), marker.clone());
                write.apply(&mut state, rules);
                let after = state.remove(&full_key);
                if after.as_ref() == Some(&marker) {
                    continue;
                }
                if write.outcome == WriteOutcome::Acknowledged {
                    candidates.clear();
                }
                candidates.push(after);
            }
            let found = observed.get(&full_key);
            if found.is_none() {
                let there = candidates.iter().flatten();
                others.extend(there.map(|value| (full_key.clone(), value.clone())));
            }
            let fits = candidates
                .into_iter()
                .find(|candidate| match (candidate, found) {
                    (None, None) => true,
                    (Some(value), Some(bytes)) => {
                        value.bytes[..] == bytes[..]
                            && value.visibility(rules.ttl_s(keyspace_id), read, rules.clock())
                                != Visibility::Forbidden
                    }
                    (Some(value), None) => {
                        value.visibility(rules.ttl_s(keyspace_id), read, rules.clock())
                            != Visibility::Required
                    }
                    (None, Some(_)) => false,
                });
            match (fits, found) {
                (Some(Some(value)), Some(_)) => drop(certain.insert(full_key, value)),
                (Some(_), _) => {}
                (None, _) => {
                    return Err(format!(
                        "{} holds {}, which no write explains",
                        show_key(&full_key),
                        show(found.map(Vec::as_slice))
                    ));
                }
            }
        }
        Ok(MatchingState {
            state: certain,
            outcomes,
            others,
        })
    }
}

/// A state that matches what was found.
struct MatchingState {
    state: State,
    /// The outcomes of the writes that lead to it.
    outcomes: Vec<WriteOutcome>,
    /// The values in other matching states.
    others: Vec<((KeyspaceId, Key), Value)>,
}

impl MatchingState {
    fn all(self) -> impl Iterator<Item = ((KeyspaceId, Key), Value)> {
        self.state.into_iter().chain(self.others)
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
