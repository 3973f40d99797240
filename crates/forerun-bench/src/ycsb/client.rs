//! One client: draws operations, executes them a batch at a time, and checks the answers.
//!
//! ```text
//!  a batch, as drawn     R1  R2  W3  R4  W5 | R3  W3  R6 |
//!                                           ^ reads what an earlier write of the piece changes
//!  a piece, as run      look up 1 2 4 together, write 3, write 5;   look up 3 6 together, write 3
//! ```
//!
//! The reads of a batch move ahead of writes to other records, which changes no answer, and are
//! looked up together. A read does not move ahead of a write to its own record: there the piece
//! ends, its reads and then its writes are executed, and the next piece begins. So every client
//! gets the same answers as if it executed one operation after the other. A read-modify-write is
//! such a read and a write; a scan is executed alone, after the operations drawn before it. Writes
//! are executed one by one, in the order drawn.
//!
//! Only calls of the store are timed. Drawing, composing keys and values, and checking are not.

use super::expected_versions::{ExpectedVersions, PendingWrite};
use super::mix::{Operation, Operations};
use super::record;
use crate::engine::{Reader, Store, Writer};
use crate::workload::EntryBuffer;
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// A client of a store.
pub struct Client<'a> {
    reader: Box<dyn Reader + 'a>,
    writer: Box<dyn Writer + 'a>,
    operations: Operations,
    expected: &'a ExpectedVersions,
    /// Whether answers are compared with the expected ones.
    checked: bool,
    /// Nanoseconds per batch.
    latencies: Histogram<u64>,
    reads: Vec<u64>,
    /// The oldest allowed version of each read's record.
    oldest: Vec<u64>,
    writes: Vec<Write>,
    /// The records of the writes, except inserts.
    written: HashSet<u64>,
    keys: Vec<Vec<u8>>,
    entry: EntryBuffer,
    scanned: Scanned,
}

/// A write that waits for its piece to end.
#[derive(Clone, Copy)]
enum Write {
    Version(u64),
    Insert,
}

impl<'a> Client<'a> {
    /// A client that reads with `strategy`.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn new(
        store: &'a dyn Store,
        strategy: &str,
        operations: Operations,
        expected: &'a ExpectedVersions,
        checked: bool,
    ) -> Result<Client<'a>> {
        Ok(Client {
            reader: store.reader(strategy)?,
            writer: store.writer()?,
            operations,
            expected,
            checked,
            latencies: Histogram::new(3)?,
            reads: Vec::new(),
            oldest: Vec::new(),
            writes: Vec::new(),
            written: HashSet::new(),
            keys: Vec::new(),
            entry: EntryBuffer::default(),
            scanned: Scanned::default(),
        })
    }

    /// Executes `operations`, in batches of `batch`, and returns how long the store took.
    ///
    /// # Errors
    /// A failed call, or a wrong answer.
    pub fn run(&mut self, operations: u64, batch: usize) -> Result<Duration> {
        let mut elapsed = Duration::ZERO;
        let mut left = operations;
        while left > 0 {
            let size = left.min(batch.max(1) as u64);
            let took = self.batch(size)?;
            self.latencies.record(took.as_nanos() as u64)?;
            elapsed += took;
            left -= size;
        }
        Ok(elapsed)
    }

    /// Nanoseconds of each batch so far.
    pub fn into_latencies(self) -> Histogram<u64> {
        self.latencies
    }

    fn batch(&mut self, size: u64) -> Result<Duration> {
        // Records that other clients insert during a batch are requested from the next batch on.
        let known = self.expected.known();
        let mut elapsed = Duration::ZERO;
        for _ in 0..size {
            let operation = self.operations.draw(known);
            if let Operation::Read(record) | Operation::Modify(record) = operation {
                if self.written.contains(&record) {
                    elapsed += self.piece()?;
                }
                self.reads.push(record);
            }
            match operation {
                Operation::Read(_) => {}
                Operation::Update(record) | Operation::Modify(record) => {
                    self.written.insert(record);
                    self.writes.push(Write::Version(record));
                }
                Operation::Insert => self.writes.push(Write::Insert),
                Operation::Scan { from, length } => {
                    elapsed += self.piece()?;
                    elapsed += self.scan(from, length)?;
                }
            }
        }
        Ok(elapsed + self.piece()?)
    }

    /// Executes the pending reads, together, and then the writes.
    fn piece(&mut self) -> Result<Duration> {
        let mut elapsed = Duration::ZERO;
        if !self.reads.is_empty() {
            elapsed += self.read()?;
            self.reads.clear();
        }
        for at in 0..self.writes.len() {
            let begun = match self.writes[at] {
                Write::Version(record) => self.expected.begin(record),
                Write::Insert => self.expected.begin_insert()?,
            };
            elapsed += self.write(begun)?;
        }
        self.writes.clear();
        self.written.clear();
        Ok(elapsed)
    }

    fn write(&mut self, begun: PendingWrite) -> Result<Duration> {
        let entry = &mut self.entry;
        record::key(begun.record, &mut entry.key);
        record::value(begun.record, begun.version, &mut entry.value);
        let start = Instant::now();
        self.writer.write(&entry.key, &entry.value)?;
        let took = start.elapsed();
        self.expected.end(begun);
        Ok(took)
    }

    fn read(&mut self) -> Result<Duration> {
        let count = self.reads.len();
        if self.keys.len() < count {
            self.keys.resize_with(count, Vec::new);
        }
        self.oldest.clear();
        for (record, key) in self.reads.iter().zip(&mut self.keys) {
            record::key(*record, key);
            self.oldest.push(self.expected.oldest(*record));
        }
        let keys: Vec<&[u8]> = self.keys[..count].iter().map(Vec::as_slice).collect();
        let start = Instant::now();
        let found = self.reader.read(&keys)?;
        let took = start.elapsed();
        ensure!(found == count, "only {found} of {count} records were found");
        for (at, (&record, &oldest)) in self.reads.iter().zip(&self.oldest).enumerate() {
            if !self.checked {
                break;
            }
            self.reader
                .value(at)
                .context("no value was given")
                .and_then(|value| record::version_of(record, value, &mut self.entry.value))
                .and_then(|version| expect(version, oldest, self.expected.newest(record)))
                .with_context(|| format!("a wrong answer for record {record}"))?;
        }
        Ok(took)
    }

    fn scan(&mut self, from: u64, length: usize) -> Result<Duration> {
        record::key(from, &mut self.entry.key);
        let scanned = &mut self.scanned;
        scanned.clear();
        let known = self.expected.known();
        let start = Instant::now();
        let count = self
            .reader
            .scan(&self.entry.key, length, &mut |key, value| {
                scanned.push(key, value);
            })?;
        let took = start.elapsed();
        ensure!(
            count == scanned.len() && (1..=length).contains(&count),
            "a scan of {length} from an existing record returned {count}"
        );
        if self.checked {
            self.check_scan(length, known)
                .with_context(|| format!("a wrong answer for a scan from record {from}"))?;
        }
        Ok(took)
    }

    /// Checks a scan: every entry is correct, they are in order, and none is missing.
    fn check_scan(&mut self, length: usize, known: u64) -> Result<()> {
        let count = self.scanned.len();
        let (first, last) = (self.scanned.key(0), self.scanned.key(count - 1));
        ensure!(first == self.entry.key, "it begins elsewhere");
        let mut key = Vec::new();
        for at in 0..count {
            let (found, value) = (self.scanned.key(at), self.scanned.value(at));
            let owner = record::owner_of(value).context("a value names no record")?;
            record::key(owner, &mut key);
            ensure!(
                found == key,
                "a value of record {owner} is under another record's key"
            );
            ensure!(
                at == 0 || self.scanned.key(at - 1) < found,
                "record {owner} is not in order"
            );
            let version = record::version_of(owner, value, &mut self.entry.value)?;
            // Only inserts run along with scans, so the oldest allowed version does not change.
            expect(
                version,
                self.expected.oldest(owner),
                self.expected.newest(owner),
            )
            .with_context(|| format!("record {owner}"))?;
        }
        // Counting all keys is slow, so it is done only for some scans, and for every scan that
        // returned too few entries, which claims that there are no more records.
        let sampled = self.latencies.len().is_multiple_of(4096);
        if count < length || sampled {
            let end = (count == length).then_some(last);
            let among = |records| count_keys(records, first, end) as usize;
            let (least, max) = (among(known), among(self.expected.begun_records()));
            ensure!(
                (least..=max).contains(&count),
                "it returned {count} records instead of {least} to {max}"
            );
        }
        Ok(())
    }
}

/// How many of the first `records` records have keys from `first` to `last`, or to the end.
fn count_keys(records: u64, first: &[u8], last: Option<&[u8]>) -> u64 {
    let mut key = Vec::new();
    let inside = |record: &u64| {
        record::key(*record, &mut key);
        key.as_slice() >= first && last.is_none_or(|last| key.as_slice() <= last)
    };
    (0..records).filter(inside).count() as u64
}

fn expect(version: u64, oldest: u64, newest: u64) -> Result<()> {
    ensure!(
        (oldest..=newest).contains(&version),
        "version {version} was found instead of {oldest} to {newest}"
    );
    Ok(())
}

/// The copied result of a scan.
#[derive(Default)]
pub(crate) struct Scanned {
    bytes: Vec<u8>,
    /// Where each entry's key and value end.
    ends: Vec<(usize, usize)>,
}

impl Scanned {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn key(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before].1);
        &self.bytes[start..self.ends[at].0]
    }

    pub(crate) fn value(&self, at: usize) -> &[u8] {
        let (start, end) = self.ends[at];
        &self.bytes[start..end]
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
