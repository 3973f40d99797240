//! The rows of a keyspace: their keys, and which versions of their values a read may find.
//!
//! ```text
//!  key    | a number, big-endian |                8 bytes; the row's number, or a scramble of it
//!  value  | row | version | letters ... |         as in YCSB's records, of any length
//! ```

use crate::engine::{Reader, Store};
use crate::workload::{EntryBuffer, Shuffle, mix};
use crate::ycsb::expected_versions::{ExpectedVersions, PendingWrite};
use crate::ycsb::record;
use anyhow::{Context, Result, ensure};

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 8;

/// Rows per write of a load, and keys per lookup of a check.
const BATCH: u64 = 100;

/// The most rows that are looked up when a run is over.
const CHECKED_MAX: u64 = 100_000;

/// The order of a keyspace's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOrder {
    /// By the rows' numbers.
    ByNumber,
    /// Random.
    Scattered,
}

/// Rows, numbered from 0.
pub(super) struct Rows {
    order: KeyOrder,
    value_bytes: usize,
    count: u64,
    expected: ExpectedVersions,
}

impl Rows {
    /// Rows of which none has been written.
    pub(super) fn new(count: u64, order: KeyOrder, value_bytes: usize) -> Result<Rows> {
        Ok(Rows {
            order,
            value_bytes,
            count,
            expected: ExpectedVersions::new(count)?,
        })
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Bytes of a row.
    pub(super) fn row_bytes(&self) -> u64 {
        (KEY_BYTES + self.value_bytes) as u64
    }

    pub(super) fn key(&self, row: u64) -> [u8; KEY_BYTES] {
        match self.order {
            KeyOrder::ByNumber => row.to_be_bytes(),
            // A bijection, so no two rows have the same key.
            KeyOrder::Scattered => mix(row).to_be_bytes(),
        }
    }

    /// Begins to write a row's next version, and fills in its entry.
    pub(super) fn begin(&self, row: u64, entry: &mut EntryBuffer) -> PendingWrite {
        let write = self.expected.begin(row);
        self.fill(row, write.version, entry);
        write
    }

    /// Records that a write has returned.
    pub(super) fn end(&self, write: PendingWrite) {
        self.expected.end(write);
    }

    /// The oldest version that a read which begins now may find.
    pub(super) fn oldest(&self, row: u64) -> u64 {
        self.expected.oldest(row)
    }

    /// Fills in the entry of a version of a row.
    pub(super) fn fill(&self, row: u64, version: u64, entry: &mut EntryBuffer) {
        entry.key.clear();
        entry.key.extend_from_slice(&self.key(row));
        record::value_of_bytes(row, version, self.value_bytes, &mut entry.value);
    }

    /// Checks what a read has found for a row.
    pub(super) fn check(
        &self,
        row: u64,
        found: Option<&[u8]>,
        oldest: u64,
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let mut check = || {
            let found = found.context("it was not found")?;
            let version = record::version_in_bytes(row, found, self.value_bytes, scratch)?;
            let newest = self.expected.newest(row);
            ensure!(
                (oldest..=newest).contains(&version),
                "version {version} was found instead of {oldest} to {newest}"
            );
            Ok(())
        };
        check().with_context(|| format!("a wrong answer for row {row}"))
    }

    /// Writes the first version of all rows, in random order.
    pub(super) fn load(&self, store: &dyn Store, tell: impl Fn(u64)) -> Result<()> {
        let mut writer = store.writer()?;
        let mut entries = vec![EntryBuffer::default(); BATCH as usize];
        let order = Shuffle::new(self.count);
        for first in (0..self.count).step_by(BATCH as usize) {
            let turns = first..self.count.min(first + BATCH);
            let size = (turns.end - turns.start) as usize;
            let batch = turns.zip(&mut entries);
            let writes: Vec<_> = batch
                .map(|(turn, entry)| self.begin(order.at(turn), entry))
                .collect();
            writer.write_many(&entries[..size]).context("loading")?;
            writes.into_iter().for_each(|write| self.end(write));
            tell(first);
        }
        Ok(())
    }

    /// Loads all rows in ascending order, past the memtables. Calls `before_last` before the last
    /// row is added.
    pub(super) fn ingest(
        &self,
        store: &dyn Store,
        mut before_last: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        ensure!(self.order == KeyOrder::ByNumber, "the keys are not sorted");
        let mut row = 0;
        store.ingest(&mut |entry| {
            if row == self.count {
                return Ok(false);
            }
            if row + 1 == self.count {
                before_last()?;
            }
            self.fill(row, 1, entry);
            row += 1;
            Ok(true)
        })?;
        // None of them is read before the ingestion returns.
        for row in 0..self.count {
            self.end(self.expected.begin(row));
        }
        Ok(())
    }

    /// Looks up evenly spaced rows, all if they are not too many, and checks the answers.
    pub(super) fn verify(&self, store: &dyn Store, strategy: &str) -> Result<()> {
        let mut reader = store.reader(strategy)?;
        let mut scratch = Vec::new();
        let step = self.count.div_ceil(CHECKED_MAX).max(1);
        let rows: Vec<u64> = (0..self.count).step_by(step as usize).collect();
        for rows in rows.chunks(BATCH as usize) {
            self.read(&mut *reader, rows)?;
            for (at, &row) in rows.iter().enumerate() {
                self.check(row, reader.value(at), self.oldest(row), &mut scratch)?;
            }
        }
        Ok(())
    }

    /// Looks up rows, and returns how many were found.
    pub(super) fn read(&self, reader: &mut dyn Reader, rows: &[u64]) -> Result<usize> {
        let keys: Vec<[u8; KEY_BYTES]> = rows.iter().map(|row| self.key(*row)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        reader.read(&keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::MapEngine;
    use crate::engine::{Engine, KeyspaceSpec, StoreLocation};

    fn store() -> Box<dyn Store> {
        let spec = KeyspaceSpec {
            name: "rows".into(),
            ttl: None,
        };
        let mut stores = MapEngine
            .open_keyspaces(&StoreLocation::default(), &[spec])
            .unwrap();
        stores.pop().unwrap()
    }

    #[test]
    fn loaded_rows_are_found_and_a_lost_or_an_old_one_is_noticed() {
        let store = store();
        let rows = Rows::new(250, KeyOrder::Scattered, 40).unwrap();
        rows.load(&*store, |_| ()).unwrap();
        rows.verify(&*store, "batch").unwrap();
        let mut writer = store.writer().unwrap();
        let mut entry = EntryBuffer::default();
        let write = rows.begin(7, &mut entry);
        // Until the write returns, both versions are right.
        rows.verify(&*store, "batch").unwrap();
        rows.end(write);
        let error = format!("{:#}", rows.verify(&*store, "batch").unwrap_err());
        assert!(
            error.contains("version 1 was found instead of 2 to 2"),
            "{error}"
        );
        writer.write(&entry.key, &entry.value).unwrap();
        rows.verify(&*store, "batch").unwrap();
        writer.delete(&rows.key(200)).unwrap();
        let error = format!("{:#}", rows.verify(&*store, "batch").unwrap_err());
        assert!(error.contains("row 200: it was not found"), "{error}");
    }

    #[test]
    fn ingested_rows_are_in_order_of_their_numbers() {
        let store = store();
        let rows = Rows::new(250, KeyOrder::ByNumber, 40).unwrap();
        let mut calls = 0;
        let mut before_last = || {
            calls += 1;
            Ok(())
        };
        rows.ingest(&*store, &mut before_last).unwrap();
        assert_eq!(calls, 1);
        rows.verify(&*store, "batch").unwrap();
        let scattered = Rows::new(250, KeyOrder::Scattered, 40).unwrap();
        assert!(scattered.ingest(&*store, || Ok(())).is_err());
    }
}
