//! Entries of keyspaces, and the writes that change them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::orders::Order;
use super::wall::{Span, WallClock};

/// The number of a keyspace: shared ones in the order of their list, private ones by thread and
/// life.
pub type KeyspaceNo = u32;
pub type Key = Vec<u8>;
/// The keys of keyspaces, with their values.
pub type State = BTreeMap<(KeyspaceNo, Key), Value>;
/// The result of a scan.
pub type Observed = BTreeMap<(KeyspaceNo, Key), Vec<u8>>;

/// A value, and when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub bytes: Arc<[u8]>,
    pub written: Span,
}

/// What is written where.
#[derive(Clone, Debug)]
pub enum Change {
    Put(KeyspaceNo, Key, Arc<[u8]>),
    Delete(KeyspaceNo, Key),
    DeleteRange(KeyspaceNo, Key, Key),
}

impl Change {
    pub fn space(&self) -> KeyspaceNo {
        match self {
            Change::Put(space, ..) | Change::Delete(space, _) | Change::DeleteRange(space, ..) => {
                *space
            }
        }
    }
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Acknowledged,
    /// It failed, or was in progress when the process died. It is not visible, but may be there
    /// after the next opening.
    InDoubt,
    /// It is not there: it was refused, or it was in doubt and the next opening did not find it.
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
    fn order(&self, space: KeyspaceNo) -> Order;
    fn ttl_s(&self, space: KeyspaceNo) -> Option<u64>;
    fn clock(&self) -> &WallClock;
    /// Whether the clock may be set back.
    fn may_go_back(&self) -> bool;
}

/// Whether an entry must, may, or must not be visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    Required,
    Allowed,
    Forbidden,
}

impl Value {
    /// Whether a reader at that time sees it. It lives at least for its time to live, counted from
    /// when the clock last showed less than its time of writing: the store records a second only if
    /// it is later than the last one, and otherwise the last one counts.
    pub fn visibility(&self, ttl_s: Option<u64>, read: Span, clock: &WallClock) -> Visibility {
        let Some(ttl) = ttl_s else {
            return Visibility::Required;
        };
        let (lowest_written, _) = clock.extremes(self.written);
        let (_, highest_written) = clock.extremes(self.written.and_before());
        let (_, highest_since) = clock.extremes(self.written.until(read));
        let (lowest_read, _) = clock.extremes(read);
        if highest_since <= lowest_written + ttl {
            Visibility::Required
        } else if lowest_read > highest_written + ttl {
            Visibility::Forbidden
        } else {
            Visibility::Allowed
        }
    }
}

impl Write {
    /// Applies its changes to a state.
    pub fn apply(&self, state: &mut State, spaces: &dyn KeyspaceRules) {
        for change in &self.changes {
            apply(state, change, self.written, spaces);
        }
    }

    /// Whether it changes a key.
    pub fn touches(&self, full_key: &(KeyspaceNo, Key), spaces: &dyn KeyspaceRules) -> bool {
        self.changes.iter().any(|change| match change {
            Change::Put(space, key, _) | Change::Delete(space, key) => {
                (*space, key) == (full_key.0, &full_key.1)
            }
            Change::DeleteRange(space, start, end) => {
                let order = spaces.order(*space);
                *space == full_key.0
                    && order.compare(start, &full_key.1).is_le()
                    && order.compare(&full_key.1, end).is_lt()
            }
        })
    }
}

/// Applies one change to a state.
pub fn apply(state: &mut State, change: &Change, written: Span, spaces: &dyn KeyspaceRules) {
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
