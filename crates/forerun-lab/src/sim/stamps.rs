//! Stamps: numbers that any thread writes into all shared keyspaces without a time to live, in one
//! batch.
//!
//! A reader at one moment sees the same number everywhere, and none older than the last one
//! acknowledged before it began. After a crash, the number is not older than the last one that was
//! durable.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::simulation::lock;

/// The key of a stamp, which sorts after all keys of threads in every order.
pub const STAMP_KEY: &[u8] = b"~stamp";

/// The key of a beacon, which ingestions write and no thread deletes. It also sorts after all keys
/// of threads.
pub const BEACON_KEY: &[u8] = b"~beacon";

#[derive(Debug, Default)]
pub struct Stamps(Mutex<StampState>);

#[derive(Debug, Default)]
struct StampState {
    /// The opening of the store that this belongs to.
    opening: u64,
    last: u64,
    /// The sequence number of each acknowledged stamp; `None` for the others.
    written: BTreeMap<u64, Option<u64>>,
    /// The stamp found when the store was opened.
    base: Option<u64>,
    /// The highest sequence number that was acknowledged, and the highest that is durable.
    acknowledged: u64,
    durable: u64,
}

/// The minimum that a reader must see: the highest sequence number that was acknowledged before it
/// began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MinVisible {
    /// The opening of the store that it belongs to. It says nothing about other openings.
    opening: u64,
    sequence: u64,
}

impl MinVisible {
    /// Returns the same minimum with this acknowledged sequence number.
    pub fn with(self, sequence: u64) -> MinVisible {
        MinVisible { sequence, ..self }
    }
}

impl Stamps {
    /// Draws a new stamp to be written.
    pub fn begin(&self) -> u64 {
        let mut state = lock(&self.0);
        state.last += 1;
        let stamp = state.last;
        state.written.insert(stamp, None);
        stamp
    }

    /// Records that the store refused a stamp, so no thread may read it.
    pub fn refuse(&self, stamp: u64) {
        lock(&self.0).written.remove(&stamp);
    }

    /// Records that a stamp was acknowledged with this sequence number.
    pub fn acknowledge(
        &self,
        stamp: u64,
        sequence: u64,
        min_visible: MinVisible,
    ) -> Result<(), String> {
        let mut state = lock(&self.0);
        if state.opening != min_visible.opening {
            return Ok(());
        }
        state.written.insert(stamp, Some(sequence));
        state.acknowledged = state.acknowledged.max(sequence);
        if sequence > min_visible.sequence {
            Ok(())
        } else {
            Err(format!(
                "a batch got sequence number {sequence} after {} was acknowledged",
                min_visible.sequence
            ))
        }
    }

    /// The minimum that a reader that begins now must see.
    pub fn min_visible(&self) -> MinVisible {
        let state = lock(&self.0);
        MinVisible {
            opening: state.opening,
            sequence: state.acknowledged,
        }
    }

    /// Records that everything that was acknowledged up to then is durable.
    pub fn mark_durable(&self, min_visible: MinVisible) {
        let mut state = lock(&self.0);
        if state.opening == min_visible.opening {
            state.durable = state.durable.max(min_visible.sequence);
        }
    }

    /// Checks what one reader read: the stamp of each keyspace.
    ///
    /// # Errors
    /// A description of the mismatch.
    pub fn check(
        &self,
        stamps: &[Option<u64>],
        min_visible: MinVisible,
    ) -> Result<MinVisible, String> {
        let state = lock(&self.0);
        let mut seen = min_visible;
        if state.opening != min_visible.opening {
            return Ok(seen);
        }
        for stamp in stamps {
            if let Some(sequence) = state.sequence(*stamp)? {
                if sequence < min_visible.sequence {
                    return Err(format!(
                        "read stamp {stamp:?} with sequence number {sequence}, after {} was \
                         acknowledged or read",
                        min_visible.sequence
                    ));
                }
                seen.sequence = seen.sequence.max(sequence);
            }
        }
        Ok(seen)
    }

    /// Checks what was read at one moment: it must be the same everywhere.
    ///
    /// # Errors
    /// A description of the mismatch.
    pub fn check_moment(
        &self,
        stamps: &[Option<u64>],
        min_visible: MinVisible,
    ) -> Result<MinVisible, String> {
        if stamps.iter().all(|stamp| *stamp == stamps[0]) {
            self.check(stamps, min_visible)
        } else {
            Err(format!(
                "only a part of a batch is visible: the stamps are {stamps:?}"
            ))
        }
    }

    /// Checks the stamps after an opening.
    ///
    /// # Errors
    /// A description of the mismatch.
    pub fn check_opening(&self, stamps: &[Option<u64>], keeps_all: bool) -> Result<(), String> {
        let min_visible = {
            let state = lock(&self.0);
            MinVisible {
                opening: state.opening,
                sequence: if keeps_all {
                    state.acknowledged
                } else {
                    state.durable
                },
            }
        };
        self.check_moment(stamps, min_visible).map(drop)
    }

    /// Does the same as [`check_opening`](Self::check_opening), and makes the stamps found certain.
    /// `is_durable` says whether they would survive a loss of power.
    ///
    /// # Errors
    /// A description of the mismatch.
    pub fn resolve(
        &self,
        stamps: &[Option<u64>],
        keeps_all: bool,
        is_durable: bool,
    ) -> Result<(), String> {
        self.check_opening(stamps, keeps_all)?;
        let found = stamps.first().copied().flatten();
        let mut state = lock(&self.0);
        if is_durable {
            *state = StampState {
                opening: state.opening + 1,
                last: state.last,
                base: found,
                ..StampState::default()
            };
            return Ok(());
        }
        // A stamp whose sequence number was never returned is newer than all acknowledged ones.
        let sequence = state.sequence(found)?;
        let sequence = sequence.unwrap_or(state.acknowledged + 1);
        if let Some(stamp) = found.filter(|_| found != state.base) {
            state.written.insert(stamp, Some(sequence));
        }
        state.acknowledged = sequence;
        let is_lost = |of: &Option<u64>| of.is_some_and(|of| of > sequence);
        state.written.retain(|_, of| !is_lost(of));
        state.opening += 1;
        Ok(())
    }
}

impl StampState {
    /// The sequence number of a stamp that was read, if known.
    fn sequence(&self, stamp: Option<u64>) -> Result<Option<u64>, String> {
        if stamp == self.base {
            return Ok(Some(0));
        }
        match stamp {
            None => Err("a stamp is missing".to_owned()),
            Some(stamp) => match self.written.get(&stamp) {
                Some(sequence) => Ok(*sequence),
                None => Err(format!(
                    "read stamp {stamp}, which was overwritten, lost or refused"
                )),
            },
        }
    }
}

/// A value that contains a stamp, long enough to fill memtables.
pub fn encode(stamp: u64) -> Vec<u8> {
    format!("{stamp:<30}").into_bytes()
}

/// The stamp in a value.
pub fn decode(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.trim_end().parse().ok()
}
