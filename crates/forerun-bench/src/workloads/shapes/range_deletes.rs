//! Many range deletes over live data, then reads.
//!
//! ```text
//!  rows     0 1 2 3 | 4 5 6 7 | 8 9 10 11 | ...      ROWS_PER_RANGE per range
//!  deleted  x x     | x x     | x x       |          in random order, one range per write
//!
//!  then     reads  --reads times a second, 64 random rows, of which half are deleted
//!           scans  as often, 100 rows from a random one on
//! ```

use crate::engine::{Reader, Store, Writer};
use crate::workload::Shuffle;
use crate::workloads::clients::READ_BATCH;
use crate::workloads::latencies::{Call, Kind, Latencies};
use crate::workloads::opened_store::{Measured, OpenedStore};
use crate::workloads::plan::ROWS_PER_RANGE;
use crate::workloads::rows::{KEY_BYTES, KeyOrder, Rows};
use crate::workloads::run::{Classes, Client, Operations, Run};
use crate::ycsb::client::Scanned;
use anyhow::{Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Instant;

/// Rows that a range delete removes.
const DELETED_ROWS: u64 = 2;

/// Rows per scan.
const SCAN_ROWS: usize = 100;

fn is_deleted(row: u64) -> bool {
    row % ROWS_PER_RANGE < DELETED_ROWS
}

/// Loads and runs.
///
/// # Errors
/// A failed call of the store, or a wrong answer.
pub(super) fn run(opened: &OpenedStore<'_>) -> Result<Measured> {
    let plan = opened.plan;
    let count = plan.rows(opened.shape);
    let rows = [Rows::new(count, KeyOrder::ByNumber, plan.value_bytes)?];
    opened.load(&rows)?;
    let (store, rows) = (&*opened.stores[0], &rows[0]);
    let ranges = plan.ranges;
    let deletes: Client<'_> = Box::new(move |run: &Run| delete(run, store, rows, ranges));
    let mut readers: Vec<Client<'_>> = Vec::new();
    for seed in 0..plan.readers as u64 {
        let (per_second, strategy) = (Some(plan.reads_per_second), &*opened.strategy);
        readers.push(Box::new(move |run: &Run| {
            let mut latencies = Latencies::new(Kind::Read, run.origin)?;
            let client = Reads::new(store, rows, strategy, seed)?;
            run.repeat(per_second, &mut latencies, client)?;
            Ok(vec![("reads", latencies)])
        }));
        readers.push(Box::new(move |run: &Run| {
            let mut latencies = Latencies::new(Kind::Read, run.origin)?;
            let client = Scans {
                reads: Reads::new(store, rows, strategy, !seed)?,
                found: Scanned::default(),
            };
            run.repeat(per_second, &mut latencies, client)?;
            Ok(vec![("scans", latencies)])
        }));
    }
    opened.measure(|origin| {
        let mut classes = Run::new(origin, None).clients(&[deletes])?;
        classes.extend(Run::new(origin, Some(plan.duration)).clients(&readers)?);
        Ok(classes)
    })
}

/// Deletes all ranges.
fn delete(run: &Run, store: &dyn Store, rows: &Rows, ranges: u64) -> Result<Classes> {
    let mut latencies = Latencies::new(Kind::Write, run.origin)?;
    let mut writer: Box<dyn Writer + '_> = store.writer()?;
    let order = Shuffle::new(ranges);
    for turn in 0..ranges {
        let first = order.at(turn) * ROWS_PER_RANGE;
        let (from, to) = (rows.key(first), rows.key(first + DELETED_ROWS));
        let began = Instant::now();
        writer.delete_range(&from, &to)?;
        latencies.record(Call {
            intended: began,
            began,
            ended: Instant::now(),
        })?;
        latencies.keys += 1;
        latencies.put_bytes += 2 * KEY_BYTES as u64;
    }
    Ok(vec![("range deletes", latencies)])
}

/// Looks up random rows.
struct Reads<'a> {
    rows: &'a Rows,
    reader: Box<dyn Reader + 'a>,
    rng: SmallRng,
    scratch: Vec<u8>,
}

impl<'a> Reads<'a> {
    fn new(store: &'a dyn Store, rows: &'a Rows, strategy: &str, seed: u64) -> Result<Reads<'a>> {
        Ok(Reads {
            rows,
            reader: store.reader(strategy)?,
            rng: SmallRng::seed_from_u64(seed),
            scratch: Vec::new(),
        })
    }
}

impl Operations for Reads<'_> {
    type Operation = Vec<u64>;

    fn prepare(&mut self) -> Result<Vec<u64>> {
        let rows = 0..self.rows.count();
        let draw = |_| self.rng.random_range(rows.clone());
        Ok((0..READ_BATCH).map(draw).collect())
    }

    fn call(&mut self, rows: &Vec<u64>) -> Result<()> {
        self.rows.read(&mut *self.reader, rows).map(drop)
    }

    fn finish(&mut self, rows: Vec<u64>, _: Call, latencies: &mut Latencies) -> Result<()> {
        for (at, &row) in rows.iter().enumerate() {
            let found = self.reader.value(at);
            if is_deleted(row) {
                ensure!(found.is_none(), "a wrong answer: row {row} is deleted");
            } else {
                self.rows.check(row, found, 1, &mut self.scratch)?;
            }
        }
        latencies.keys += rows.len() as u64;
        Ok(())
    }
}

/// Scans from random rows on.
struct Scans<'a> {
    reads: Reads<'a>,
    found: Scanned,
}

impl Operations for Scans<'_> {
    /// The row to begin at.
    type Operation = u64;

    fn prepare(&mut self) -> Result<u64> {
        self.found.clear();
        Ok(self.reads.rng.random_range(0..self.reads.rows.count()))
    }

    fn call(&mut self, from: &u64) -> Result<()> {
        let (found, from) = (&mut self.found, self.reads.rows.key(*from));
        let mut each = |key: &[u8], value: &[u8]| found.push(key, value);
        self.reads.reader.scan(&from, SCAN_ROWS, &mut each)?;
        Ok(())
    }

    fn finish(&mut self, from: u64, _: Call, latencies: &mut Latencies) -> Result<()> {
        let (rows, found) = (self.reads.rows, &self.found);
        let live = (from..rows.count()).filter(|row| !is_deleted(*row));
        let expected: Vec<u64> = live.take(SCAN_ROWS).collect();
        ensure!(
            found.len() == expected.len(),
            "a wrong answer: a scan from row {from} found {} rows instead of {}",
            found.len(),
            expected.len()
        );
        for (at, &row) in expected.iter().enumerate() {
            ensure!(
                found.key(at) == rows.key(row),
                "a wrong answer: a scan from row {from} found another row than {row}"
            );
            rows.check(row, Some(found.value(at)), 1, &mut self.reads.scratch)?;
        }
        latencies.keys += found.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::MapEngine;
    use crate::engine::{Engine, KeyspaceSpec, StoreLocation};
    use std::time::Duration;

    #[test]
    fn a_deleted_row_that_is_found_and_a_live_one_that_is_not_are_wrong_answers() {
        let spec = KeyspaceSpec {
            name: "rows".into(),
            ttl: None,
        };
        let stores = MapEngine
            .open_keyspaces(&StoreLocation::default(), &[spec])
            .unwrap();
        let store = &*stores[0];
        let rows = Rows::new(40, KeyOrder::ByNumber, 40).unwrap();
        rows.load(store, |_| ()).unwrap();
        let reads = || Reads::new(store, &rows, "batch", 1).unwrap();
        let wrong = || {
            let run = Run::new(Instant::now(), Some(Duration::from_millis(50)));
            let mut latencies = Latencies::new(Kind::Read, run.origin).unwrap();
            let looked_up = run.repeat(None, &mut latencies, reads());
            let mut scans = Scans {
                reads: reads(),
                found: Scanned::default(),
            };
            let scanned = scans.call(&0).and_then(|()| {
                let now = Instant::now();
                let call = Call {
                    intended: now,
                    began: now,
                    ended: now,
                };
                scans.finish(0, call, &mut latencies)
            });
            (looked_up.is_err(), scanned.is_err())
        };
        assert_eq!(wrong(), (true, true));
        let run = Run::new(Instant::now(), None);
        let classes = delete(&run, store, &rows, 10).unwrap();
        assert_eq!((classes[0].1.keys, classes[0].1.put_bytes), (10, 160));
        assert_eq!(wrong(), (false, false));
        store.writer().unwrap().delete(&rows.key(2)).unwrap();
        assert_eq!(wrong(), (true, true));
    }
}
