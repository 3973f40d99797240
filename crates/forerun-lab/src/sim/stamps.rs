//! Stamps: numbers that any thread writes into all shared keyspaces without a time to live, in one
//! batch.
//!
//! A reader at one moment sees the same number everywhere, and none older than the last one
//! acknowledged before it began. After a death, the number is not older than the last one that was
//! safe.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::simulation::lock;

/// The key of a stamp, which sorts after all keys of threads in every order.
pub const STAMP_KEY: &[u8] = b"~stamp";

/// The key of a beacon, which ingestions write and nobody deletes. It also sorts after all keys of
/// threads.
pub const BEACON_KEY: &[u8] = b"~beacon";

#[derive(Debug, Default)]
pub struct Stamps(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The opening of the store that this belongs to.
    opening: u64,
    last: u64,
    /// The sequence number of each acknowledged stamp; `None` for the others.
    written: BTreeMap<u64, Option<u64>>,
    /// The stamp found when the store was opened.
    base: Option<u64>,
    /// The highest sequence numbers that were acknowledged, and that are safe.
    acknowledged: u64,
    safe: u64,
}

/// The minimum that a reader must see: the highest sequence number that was acknowledged before it
/// began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Least {
    /// The opening of the store that it belongs to. It says nothing about other openings.
    opening: u64,
    sequence: u64,
}

impl Least {
    /// Returns the same minimum with this acknowledged sequence number.
    pub fn with(self, sequence: u64) -> Least {
        Least { sequence, ..self }
    }
}

impl Stamps {
    /// Draws a new stamp to be written.
    pub fn begin(&self) -> u64 {
        let mut known = lock(&self.0);
        known.last += 1;
        let stamp = known.last;
        known.written.insert(stamp, None);
        stamp
    }

    /// Records that the store refused a stamp, so nobody may read it.
    pub fn refuse(&self, stamp: u64) {
        lock(&self.0).written.remove(&stamp);
    }

    /// Records that a stamp was acknowledged with this sequence number.
    pub fn acknowledge(&self, stamp: u64, sequence: u64, least: Least) -> Result<(), String> {
        let mut known = lock(&self.0);
        if known.opening != least.opening {
            return Ok(());
        }
        known.written.insert(stamp, Some(sequence));
        known.acknowledged = known.acknowledged.max(sequence);
        match sequence > least.sequence {
            true => Ok(()),
            false => Err(format!(
                "a batch got sequence number {sequence} after {} was acknowledged",
                least.sequence
            )),
        }
    }

    /// The minimum that a reader that begins now must see.
    pub fn least(&self) -> Least {
        let known = lock(&self.0);
        Least {
            opening: known.opening,
            sequence: known.acknowledged,
        }
    }

    /// Records that everything that was acknowledged up to then is safe.
    pub fn make_safe(&self, least: Least) {
        let mut known = lock(&self.0);
        if known.opening == least.opening {
            known.safe = known.safe.max(least.sequence);
        }
    }

    /// Checks what one reader read: the stamp of each keyspace.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, stamps: &[Option<u64>], least: Least) -> Result<Least, String> {
        let known = lock(&self.0);
        let mut seen = least;
        if known.opening != least.opening {
            return Ok(seen);
        }
        for stamp in stamps {
            if let Some(sequence) = known.sequence(*stamp)? {
                if sequence < least.sequence {
                    return Err(format!(
                        "read stamp {stamp:?} with sequence number {sequence}, after {} was \
                         acknowledged or read",
                        least.sequence
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
    /// What is wrong.
    pub fn check_moment(&self, stamps: &[Option<u64>], least: Least) -> Result<Least, String> {
        match stamps.iter().all(|stamp| *stamp == stamps[0]) {
            true => self.check(stamps, least),
            false => Err(format!(
                "only a part of a batch is visible: the stamps are {stamps:?}"
            )),
        }
    }

    /// Checks the stamps after an opening.
    ///
    /// # Errors
    /// What is wrong.
    pub fn look(&self, stamps: &[Option<u64>], keeps_all: bool) -> Result<(), String> {
        let least = {
            let known = lock(&self.0);
            Least {
                opening: known.opening,
                sequence: match keeps_all {
                    true => known.acknowledged,
                    false => known.safe,
                },
            }
        };
        self.check_moment(stamps, least).map(drop)
    }

    /// Like [`look`](Self::look), and makes the stamps found certain. `is_safe` says whether they
    /// would survive a loss of power.
    ///
    /// # Errors
    /// What is wrong.
    pub fn resolve(
        &self,
        stamps: &[Option<u64>],
        keeps_all: bool,
        is_safe: bool,
    ) -> Result<(), String> {
        self.look(stamps, keeps_all)?;
        let found = stamps.first().copied().flatten();
        let mut known = lock(&self.0);
        if is_safe {
            *known = Known {
                opening: known.opening + 1,
                last: known.last,
                base: found,
                ..Known::default()
            };
            return Ok(());
        }
        // A stamp whose sequence number was never returned is newer than all acknowledged ones.
        let sequence = known.sequence(found)?;
        let sequence = sequence.unwrap_or(known.acknowledged + 1);
        if let Some(stamp) = found.filter(|_| found != known.base) {
            known.written.insert(stamp, Some(sequence));
        }
        known.acknowledged = sequence;
        let is_lost = |of: &Option<u64>| of.is_some_and(|of| of > sequence);
        known.written.retain(|_, of| !is_lost(of));
        known.opening += 1;
        Ok(())
    }
}

impl Known {
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
