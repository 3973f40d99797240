//! A time series whose rows expire.
//!
//! ```text
//!  keys     | expired ............ | live ............................ |
//!                                    ^ scans: the first 100 rows         ^ batches: 100 rows per write, at --rate
//!                                                       reads: 64 rows     of the last quarter of the TTL
//! ```
//!
//! Nothing may expire early: a row that a read does not find must be as old as the TTL. Engines may
//! show expired rows until they drop them.

use crate::engine::{Reader, Store, Writer};
use crate::workload::EntryBuffer;
use crate::workloads::clients::READ_BATCH;
use crate::workloads::latencies::{Call, Kind, Latencies};
use crate::workloads::opened_store::{Measured, OpenedStore};
use crate::workloads::rows::{KeyOrder, Rows};
use crate::workloads::run::{Client, Operations, Run};
use crate::ycsb::client::Scanned;
use anyhow::{Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Rows per write.
const BATCH: u64 = 100;

/// Rows per scan.
const SCAN_ROWS: usize = 100;

/// Runs.
///
/// # Errors
/// A failed call of the store, or a wrong answer.
pub(super) fn run(opened: &OpenedStore<'_>) -> Result<Measured> {
    let plan = opened.plan;
    let series = Series::new(plan.value_bytes, plan.ttl)?;
    let (store, series) = (&*opened.stores[0], &series);
    let batches_per_second = plan.rate_bytes / (BATCH * series.rows.row_bytes()) as f64;
    let recent = (batches_per_second * plan.ttl.as_secs_f64() / 4.0).ceil() as usize;
    let mut clients: Vec<Client<'_>> = vec![Box::new(move |run: &Run| {
        let mut latencies = Latencies::new(Kind::Write, run.origin)?;
        let client = Appends::new(series, store)?;
        run.repeat(Some(batches_per_second), &mut latencies, client)?;
        Ok(vec![("batches", latencies)])
    })];
    for seed in 0..plan.readers as u64 {
        let strategy = &*opened.strategy;
        let per_second = Some(plan.reads_per_second);
        clients.push(Box::new(move |run: &Run| {
            let mut latencies = Latencies::new(Kind::Read, run.origin)?;
            let client = Recent {
                series,
                reader: store.reader(strategy)?,
                batches: recent,
                rng: SmallRng::seed_from_u64(seed),
                expected: EntryBuffer::default(),
            };
            run.repeat(per_second, &mut latencies, client)?;
            Ok(vec![("reads", latencies)])
        }));
        clients.push(Box::new(move |run: &Run| {
            let mut latencies = Latencies::new(Kind::Read, run.origin)?;
            let client = Oldest {
                series,
                reader: store.reader(strategy)?,
                found: Scanned::default(),
                expected: EntryBuffer::default(),
            };
            run.repeat(per_second, &mut latencies, client)?;
            Ok(vec![("scans", latencies)])
        }));
    }
    opened.measure(|origin| Run::new(origin, Some(plan.duration)).clients(&clients))
}

/// The rows, and when they were written.
struct Series {
    rows: Rows,
    ttl: Duration,
    /// When the write of each batch began, for those that have returned.
    written: Mutex<Vec<Instant>>,
}

impl Series {
    fn new(value_bytes: usize, ttl: Duration) -> Result<Series> {
        Ok(Series {
            // Each is written once, so no versions are counted.
            rows: Rows::new(0, KeyOrder::ByNumber, value_bytes)?,
            ttl,
            written: Mutex::default(),
        })
    }

    fn written(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of the first `batches`, those that are still live at this time.
    fn live_batches(&self, batches: usize, at: Instant) -> usize {
        let written = self.written();
        let expired = written.partition_point(|written| *written + self.ttl <= at);
        batches.saturating_sub(expired)
    }

    fn check(&self, row: u64, found: (&[u8], &[u8]), expected: &mut EntryBuffer) -> Result<()> {
        self.rows.fill(row, 1, expected);
        ensure!(
            found == (&expected.key[..], &expected.value[..]),
            "a wrong answer for row {row}"
        );
        Ok(())
    }
}

/// Appends rows.
struct Appends<'a> {
    series: &'a Series,
    writer: Box<dyn Writer + 'a>,
    next: u64,
    entries: Vec<EntryBuffer>,
}

impl<'a> Appends<'a> {
    fn new(series: &'a Series, store: &'a dyn Store) -> Result<Appends<'a>> {
        Ok(Appends {
            series,
            writer: store.writer()?,
            next: 0,
            entries: vec![EntryBuffer::default(); BATCH as usize],
        })
    }
}

impl Operations for Appends<'_> {
    type Operation = ();

    fn prepare(&mut self) -> Result<()> {
        for entry in &mut self.entries {
            self.series.rows.fill(self.next, 1, entry);
            self.next += 1;
        }
        Ok(())
    }

    fn call(&mut self, (): &()) -> Result<()> {
        self.writer.write_many(&self.entries)
    }

    fn finish(&mut self, (): (), call: Call, latencies: &mut Latencies) -> Result<()> {
        self.series.written().push(call.began);
        latencies.keys += BATCH;
        latencies.put_bytes += BATCH * self.series.rows.row_bytes();
        Ok(())
    }
}

/// Looks up recent rows.
struct Recent<'a> {
    series: &'a Series,
    reader: Box<dyn Reader + 'a>,
    /// How many batches count as recent.
    batches: usize,
    rng: SmallRng,
    expected: EntryBuffer,
}

impl Operations for Recent<'_> {
    type Operation = Vec<u64>;

    fn prepare(&mut self) -> Result<Vec<u64>> {
        let end = self.series.written().len() as u64 * BATCH;
        let begin = end.saturating_sub(self.batches as u64 * BATCH);
        if begin == end {
            return Ok(Vec::new());
        }
        let draw = |_| self.rng.random_range(begin..end);
        Ok((0..READ_BATCH).map(draw).collect())
    }

    fn call(&mut self, rows: &Vec<u64>) -> Result<()> {
        self.series.rows.read(&mut *self.reader, rows).map(drop)
    }

    fn finish(&mut self, rows: Vec<u64>, call: Call, latencies: &mut Latencies) -> Result<()> {
        for (at, &row) in rows.iter().enumerate() {
            if let Some(value) = self.reader.value(at) {
                let key = self.series.rows.key(row);
                self.series.check(row, (&key, value), &mut self.expected)?;
                continue;
            }
            let written = self.series.written()[(row / BATCH) as usize];
            let age = call.ended - written;
            ensure!(
                age >= self.series.ttl,
                "a wrong answer: row {row} has expired after {age:?}"
            );
        }
        latencies.keys += rows.len() as u64;
        Ok(())
    }
}

/// Scans the oldest rows.
struct Oldest<'a> {
    series: &'a Series,
    reader: Box<dyn Reader + 'a>,
    found: Scanned,
    expected: EntryBuffer,
}

impl Operations for Oldest<'_> {
    /// How many batches had been written.
    type Operation = usize;

    fn prepare(&mut self) -> Result<usize> {
        self.found.clear();
        Ok(self.series.written().len())
    }

    fn call(&mut self, _: &usize) -> Result<()> {
        let found = &mut self.found;
        let mut each = |key: &[u8], value: &[u8]| found.push(key, value);
        self.reader.scan(&[], SCAN_ROWS, &mut each)?;
        Ok(())
    }

    fn finish(&mut self, batches: usize, call: Call, latencies: &mut Latencies) -> Result<()> {
        let live = self.series.live_batches(batches, call.ended) * BATCH as usize;
        let found = self.found.len();
        ensure!(
            found >= live.min(SCAN_ROWS),
            "a wrong answer: a scan found {found} rows, but {live} were live"
        );
        let mut before = None;
        for at in 0..found {
            let key = self.found.key(at);
            let row = u64::from_be_bytes(key.try_into()?);
            ensure!(
                before < Some(row),
                "a wrong answer: row {row} is not in order"
            );
            before = Some(row);
            let entry = (key, self.found.value(at));
            self.series.check(row, entry, &mut self.expected)?;
        }
        latencies.keys += found as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::MapEngine;
    use crate::engine::{Engine, KeyspaceSpec, StoreLocation};

    fn call(ended: Instant) -> Call {
        Call {
            intended: ended,
            began: ended,
            ended,
        }
    }

    #[test]
    fn a_row_that_expires_early_is_a_wrong_answer_and_one_that_expires_is_none() {
        let spec = KeyspaceSpec {
            name: "series".into(),
            ttl: None,
        };
        let stores = MapEngine
            .open_keyspaces(&StoreLocation::default(), &[spec])
            .unwrap();
        let store = &*stores[0];
        let ttl = Duration::from_secs(60);
        let series = Series::new(40, ttl).unwrap();
        let mut latencies = Latencies::new(Kind::Write, Instant::now()).unwrap();
        let mut appends = Appends::new(&series, store).unwrap();
        let began = Instant::now();
        for _ in 0..3 {
            appends.prepare().unwrap();
            appends.call(&()).unwrap();
            appends.finish((), call(began), &mut latencies).unwrap();
        }
        assert_eq!(latencies.keys, 300);
        let mut recent = Recent {
            series: &series,
            reader: store.reader("batch").unwrap(),
            batches: 1,
            rng: SmallRng::seed_from_u64(1),
            expected: EntryBuffer::default(),
        };
        let mut oldest = Oldest {
            series: &series,
            reader: store.reader("batch").unwrap(),
            found: Scanned::default(),
            expected: EntryBuffer::default(),
        };
        let mut wrong = |ended: Instant| {
            let rows = recent.prepare().unwrap();
            assert!(rows.iter().all(|row| (200..300).contains(row)));
            recent.call(&rows).unwrap();
            let looked_up = recent.finish(rows, call(ended), &mut latencies);
            let batches = oldest.prepare().unwrap();
            oldest.call(&batches).unwrap();
            let scanned = oldest.finish(batches, call(ended), &mut latencies);
            (looked_up.is_err(), scanned.is_err())
        };
        assert_eq!(wrong(began), (false, false));
        let mut writer = store.writer().unwrap();
        writer.delete_range(&[], &300_u64.to_be_bytes()).unwrap();
        assert_eq!(wrong(began + ttl / 2), (true, true));
        assert_eq!(wrong(began + ttl), (false, false));
    }
}
