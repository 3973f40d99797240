//! What is measured of a node's storage, and the entries that it gets.

use anyhow::Result;
use forerun_raft::{Request, TypeConfig};
use openraft::{CommittedLeaderId, EntryPayload, LogId};

pub type Entry = openraft::Entry<TypeConfig>;

pub const KEY_BYTES: usize = 16;
pub const VALUE_BYTES: usize = 100;

pub trait Node {
    fn name(&self) -> &str;

    /// What a call of a case guarantees when it ends.
    fn durability(&self, case: &str) -> &'static str;

    /// Adds entries to the log, and waits until they are on stable storage.
    fn append(&mut self, entries: Vec<Entry>) -> Result<()>;

    /// Applies entries to the state machine.
    fn apply(&mut self, entries: Vec<Entry>) -> Result<()>;

    /// Writes everything to disk and merges it.
    fn compact(&mut self) -> Result<()>;

    /// Looks up keys in the state machine, and copies the values. Returns how many were found.
    fn multi_get(&mut self, keys: &[[u8; KEY_BYTES]]) -> Result<usize>;
}

/// Makes entries, each of which puts one key, and keys to look up.
pub struct Entries {
    keys: u64,
    ordered: u64,
    applied: u64,
    appended: u64,
    random: u64,
}

impl Entries {
    pub fn new(keys: u64) -> Entries {
        Entries {
            keys,
            ordered: 0,
            applied: 0,
            appended: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Entries with the next keys, to fill a state machine.
    pub fn ordered(&mut self, count: u64) -> Vec<Entry> {
        let first = self.ordered;
        self.ordered += count;
        (first..first + count)
            .map(|number| {
                self.applied += 1;
                entry(self.applied, number)
            })
            .collect()
    }

    /// Entries with random keys, to be applied.
    pub fn random(&mut self, count: u64) -> Vec<Entry> {
        (0..count)
            .map(|_| {
                self.applied += 1;
                entry(self.applied, self.draw())
            })
            .collect()
    }

    /// Entries with random keys, to be appended.
    pub fn appended(&mut self, count: u64) -> Vec<Entry> {
        (0..count)
            .map(|_| {
                self.appended += 1;
                entry(self.appended, self.draw())
            })
            .collect()
    }

    /// Random keys that exist.
    pub fn keys(&mut self, count: usize) -> Vec<[u8; KEY_BYTES]> {
        (0..count).map(|_| key(self.draw())).collect()
    }

    /// The number of a key (xorshift).
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % self.keys
    }
}

fn entry(index: u64, number: u64) -> Entry {
    let mut value = vec![b'.'; VALUE_BYTES];
    value[..8].copy_from_slice(&index.to_le_bytes());
    Entry {
        log_id: LogId::new(CommittedLeaderId::new(1, 1), index),
        payload: EntryPayload::Normal(Request::new().put(key(number), value)),
    }
}

/// Keys in random order: a hash of their numbers.
fn key(number: u64) -> [u8; KEY_BYTES] {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&mixed.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}
