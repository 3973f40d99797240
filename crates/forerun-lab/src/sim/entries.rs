//! Entries of keyspaces, and the writes that change them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::key_order::KeyOrder;
use super::wall_clock::{Span, WallClock};

/// The number of a keyspace: shared ones in the order of their list, private ones by thread and
/// incarnation.
pub type KeyspaceId = u32;
pub type Key = Vec<u8>;
/// The keys of keyspaces, with their values.
pub type State = BTreeMap<(KeyspaceId, Key), Value>;
/// The result of a scan.
pub type Observed = BTreeMap<(KeyspaceId, Key), Vec<u8>>;

/// A value, and when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub bytes: Arc<[u8]>,
    pub written: Span,
}

/// One operation of a write.
#[derive(Clone, Debug)]
pub enum Change {
    Put(KeyspaceId, Key, Arc<[u8]>),
    Delete(KeyspaceId, Key),
    DeleteRange(KeyspaceId, Key, Key),
}

impl Change {
    pub fn keyspace_id(&self) -> KeyspaceId {
        match self {
            Change::Put(keyspace_id, ..)
            | Change::Delete(keyspace_id, _)
            | Change::DeleteRange(keyspace_id, ..) => *keyspace_id,
        }
    }
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Acknowledged,
    /// It failed, or was in progress when the process crashed. It is not visible, but may be
    /// visible after the next opening.
    InDoubt,
    /// It is missing: it was refused, or it was in doubt and the next opening did not find it.
    Absent,
}

/// A batch.
#[derive(Clone, Debug)]
pub struct Write {
    pub changes: Vec<Change>,
    pub outcome: WriteOutcome,
    pub written: Span,
}

/// The order and the time to live of each keyspace, and the clock they use.
pub trait KeyspaceRules {
    fn order(&self, keyspace_id: KeyspaceId) -> KeyOrder;
    fn ttl_s(&self, keyspace_id: KeyspaceId) -> Option<u64>;
    fn clock(&self) -> &WallClock;
    /// Whether the clock may be set back.
    fn clock_may_go_back(&self) -> bool;
}

/// Whether an entry must, may, or must not be visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    Required,
    Allowed,
    Forbidden,
}

impl Value {
    /// Whether a reader at that time sees it. The store's clock goes on when the system's is set
    /// back, and stands while the store is closed. So an entry lives at least for its time to live,
    /// and longer if the system's clock has not caught up.
    pub fn visibility(&self, ttl_s: Option<u64>, read: Span, clock: &WallClock) -> Visibility {
        let Some(ttl) = ttl_s else {
            return Visibility::Required;
        };
        let (lowest_written, _) = clock.extremes(self.written);
        let (_, highest_written) = clock.extremes(self.written.and_before());
        let (_, highest_since) = clock.extremes(self.written.until(read));
        let (lowest_read, _) = clock.extremes(read);
        let is_exact = !clock.was_set_back();
        let lasted = read.end.saturating_sub(self.written.start);
        let latest_date = if is_exact {
            highest_written
        } else {
            WallClock::latest_date(self.written.end)
        };
        if highest_since <= lowest_written + ttl && (is_exact || lasted <= Duration::from_secs(ttl))
        {
            Visibility::Required
        } else if lowest_read > latest_date + ttl {
            Visibility::Forbidden
        } else {
            Visibility::Allowed
        }
    }
}

impl Write {
    /// Applies its changes to a state.
    pub fn apply(&self, state: &mut State, rules: &dyn KeyspaceRules) {
        for change in &self.changes {
            apply(state, change, self.written, rules);
        }
    }

    /// Whether it changes a key.
    pub fn touches(&self, full_key: &(KeyspaceId, Key), rules: &dyn KeyspaceRules) -> bool {
        self.changes.iter().any(|change| match change {
            Change::Put(keyspace_id, key, _) | Change::Delete(keyspace_id, key) => {
                (*keyspace_id, key) == (full_key.0, &full_key.1)
            }
            Change::DeleteRange(keyspace_id, start, end) => {
                let order = rules.order(*keyspace_id);
                *keyspace_id == full_key.0
                    && order.compare(start, &full_key.1).is_le()
                    && order.compare(&full_key.1, end).is_lt()
            }
        })
    }
}

/// Applies one change to a state.
pub fn apply(state: &mut State, change: &Change, written: Span, rules: &dyn KeyspaceRules) {
    match change {
        Change::Put(keyspace_id, key, bytes) => {
            let value = Value {
                bytes: Arc::clone(bytes),
                written,
            };
            state.insert((*keyspace_id, key.clone()), value);
        }
        Change::Delete(keyspace_id, key) => drop(state.remove(&(*keyspace_id, key.clone()))),
        Change::DeleteRange(keyspace_id, start, end) => {
            let order = rules.order(*keyspace_id);
            state.retain(|(of, key), _| {
                *of != *keyspace_id
                    || order.compare(key, start).is_lt()
                    || order.compare(key, end).is_ge()
            });
        }
    }
}
