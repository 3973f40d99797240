//! The hash and the place of each key of a run that is being written, for its filter and its index.
//!
//! ```text
//!   hashes    │ key 0 │ key 1 │ … │ key n │      8 bytes each
//!   offsets   │ key 0 │ key 1 │ … │ key n │      2 bytes each: of the newest version's record in its leaf
//!   ends      │ leaf 0 │ leaf 1 │ … │          how many keys are in this leaf and the ones before
//! ```

use super::page::Page;
use super::record_index::{LocationBits, RecordAddress, RecordIndex};

/// Keys of a run, in the order of writing.
#[derive(Default)]
pub(super) struct KeyPlaces {
    hashes: Vec<u64>,
    /// 0 for an offset that takes more than 16 bits.
    offsets: Vec<u16>,
    ends: Vec<usize>,
    /// The rows of the unfinished leaf that are the newest versions of their keys.
    rows: Vec<u32>,
}

impl KeyPlaces {
    /// Adds a key, whose newest version becomes a row of the unfinished leaf.
    pub(super) fn add(&mut self, hash: u64, row: usize) {
        self.hashes.push(hash);
        self.rows.push(row as u32);
    }

    /// Notes where the leaf's records are.
    pub(super) fn finish_leaf(&mut self, leaf: Page<'_>) {
        let offsets = self.rows.drain(..).map(|row| {
            let at = leaf.record(row as usize).at;
            u16::try_from(at).unwrap_or(0)
        });
        self.offsets.extend(offsets);
        self.ends.push(self.hashes.len());
    }

    pub(super) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// The index of all keys, if there can be one.
    pub(super) fn index(&self, bits: LocationBits) -> Option<RecordIndex> {
        let (mut page, ends) = (0, &self.ends);
        let keys = self.hashes.iter().zip(&self.offsets).enumerate();
        let keys = keys.map(move |(at, (hash, offset))| {
            while ends[page] <= at {
                page += 1;
            }
            let place = RecordAddress {
                page: page as u32,
                offset: u32::from(*offset),
            };
            (*hash, place)
        });
        RecordIndex::build(keys, bits)
    }
}
