//! An engine's store and its expected contents, from loading through all turns.
//!
//! ```text
//!  open --> load, 100 records per write --> wait until idle --> read all --> turns: threads of clients, operations shared out
//!           clock, latencies              clock       checked      clock, latencies per cell
//! ```
//!
//! All records are read once before the first turn. This checks the loaded data and warms the
//! caches, so that no turn measures their filling.
//!
//! The same store goes through all turns of all workloads, in YCSB's own order. All engines get the
//! same operations in a turn, drawn from the same seed, so their stores always hold the same
//! records.

use super::client::Client;
use super::expected_versions::ExpectedVersions;
use super::mix::Requests;
use super::record::{self, KEY_BYTES_MAX, VALUE_BYTES};
use super::result_row::Loaded;
use crate::engine::{Engine, Store, StoreLocation, StoreRequirements};
use crate::process_usage;
use crate::threads::Cores;
use crate::workload::EntryBuffer;
use anyhow::{Context, Result};
use forerun_measure::harness::Sample;
use forerun_measure::progress::Progress;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Records that are loaded in one write.
pub const LOAD_BATCH: usize = 100;

/// The maximum number of operations of all turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Records that are loaded.
    pub records: u64,
    /// Records that are inserted later.
    pub inserts: u64,
    /// All writes after the load.
    pub writes: u64,
}

/// A loaded store.
pub struct Fixture<'a> {
    engine: &'a dyn Engine,
    store: Box<dyn Store>,
    expected: ExpectedVersions,
    cores: Cores,
    /// The results of loading it.
    pub load: Load,
}

/// The results of loading.
pub struct Load {
    /// Records per second until the last write returned.
    pub per_second: f64,
    /// Nanoseconds per write.
    pub latencies: Histogram<u64>,
    /// The store afterwards.
    pub loaded: Loaded,
}

/// One turn.
pub struct TurnPlan<'a> {
    /// The requests to make.
    pub requests: &'a Requests,
    /// Operations per batch.
    pub batch: usize,
    /// Clients, each on its own thread.
    pub threads: usize,
    /// Operations of all clients together.
    pub operations: u64,
    /// Whether answers are compared with the written data.
    pub checked: bool,
    /// The same for all engines.
    pub seed: u64,
}

impl<'a> Fixture<'a> {
    /// Opens a store and loads it.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn load(
        engine: &'a dyn Engine,
        reservation: Reservation,
        place: StoreLocation,
        progress: &Progress,
    ) -> Result<Fixture<'a>> {
        let requirements = StoreRequirements {
            keys: reservation.records,
            spare_entries: reservation.writes,
            key_bytes: KEY_BYTES_MAX,
            value_bytes: VALUE_BYTES,
            place,
        };
        let expected =
            ExpectedVersions::new(reservation.records.saturating_add(reservation.inserts))?;
        let before = (
            process_usage::resident_bytes(),
            process_usage::written_bytes(),
        );
        let store = engine.open(&requirements)?;
        let bar = progress.steps(&format!("loading {}", engine.name()), reservation.records);
        let mut load = fill(&*store, &expected, reservation.records, |done| bar.at(done))?;
        bar.set_status("waiting for compactions");
        let start = Instant::now();
        store.wait_idle().context("waiting for compactions")?;
        let data_bytes = load.loaded.data_bytes;
        let per_byte = |bytes: u64| bytes as f64 / data_bytes.max(1) as f64;
        let since = |before: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(before?));
        let disk_bytes = store
            .directory()
            .map(process_usage::directory_usage)
            .transpose()?
            .map(|usage| usage.bytes);
        load.loaded = Loaded {
            data_bytes,
            wait_idle_seconds: start.elapsed().as_secs_f64(),
            disk_bytes,
            disk_bytes_per_byte: disk_bytes.map(per_byte),
            write_amplification: since(before.1, process_usage::written_bytes()).map(per_byte),
            resident_bytes: since(before.0, process_usage::resident_bytes()),
        };
        bar.set_status("reading all");
        let all = Requests::all(reservation.records).operations(0);
        let mut client = Client::new(&*store, &engine.batched(), all, &expected, true)?;
        let read = client.run(reservation.records, LOAD_BATCH);
        read.context("reading what was loaded")?;
        drop(client);
        Ok(Fixture {
            engine,
            store,
            expected,
            cores: Cores::available(),
            load,
        })
    }

    /// The engine.
    pub fn engine(&self) -> &'a dyn Engine {
        self.engine
    }

    /// Facts to report about the store.
    pub fn facts(&self) -> Vec<(String, String)> {
        self.store.facts()
    }

    /// The strategy for batches of a length.
    pub fn strategy(&self, batch: usize) -> String {
        if batch == 1 {
            let first = self.engine.strategies().into_iter().next();
            first.unwrap_or_default()
        } else {
            self.engine.batched()
        }
    }

    /// Runs one turn, and adds its batches to `latencies`.
    ///
    /// # Errors
    /// A failed operation, or a wrong answer.
    pub fn turn(&self, turn: &TurnPlan<'_>, latencies: &mut Histogram<u64>) -> Result<Sample> {
        let strategy = self.strategy(turn.batch);
        let share = |thread: u64| turn.operations * thread / turn.threads as u64;
        let (store, expected) = (&*self.store, &self.expected);
        let clients = self.cores.run(turn.threads, |thread, ready| {
            let thread = thread as u64;
            let operations = turn.requests.operations(turn.seed ^ (thread + 1) << 48);
            let mut client = Client::new(store, &strategy, operations, expected, turn.checked)?;
            ready.wait();
            let made = share(thread + 1) - share(thread);
            let elapsed = client.run(made, turn.batch)?;
            Ok((Sample::new(made, elapsed), client.into_latencies()))
        })?;
        let mut per_second = 0.0;
        for (sample, of_client) in clients {
            per_second += sample.per_second;
            latencies.add(of_client)?;
        }
        Ok(Sample {
            per_second,
            beside_per_second: None,
        })
    }
}

/// Writes the records from 0 to below `records`.
fn fill(
    store: &dyn Store,
    expected: &ExpectedVersions,
    records: u64,
    tell: impl Fn(u64),
) -> Result<Load> {
    let mut writer = store.writer()?;
    let mut latencies = Histogram::new(3)?;
    let mut elapsed = Duration::ZERO;
    let mut data_bytes = 0;
    let mut entries = vec![EntryBuffer::default(); LOAD_BATCH];
    let mut done = 0;
    while done < records {
        let size = (records - done).min(LOAD_BATCH as u64) as usize;
        let mut writes = Vec::with_capacity(size);
        for entry in &mut entries[..size] {
            let begun = expected.begin_insert()?;
            record::key(begun.record, &mut entry.key);
            record::value(begun.record, begun.version, &mut entry.value);
            data_bytes += (entry.key.len() + entry.value.len()) as u64;
            writes.push(begun);
        }
        let start = Instant::now();
        writer.write_many(&entries[..size]).context("loading")?;
        let took = start.elapsed();
        latencies.record(took.as_nanos() as u64)?;
        elapsed += took;
        writes.into_iter().for_each(|write| expected.end(write));
        done += size as u64;
        tell(done);
    }
    Ok(Load {
        per_second: Sample::new(records, elapsed).per_second,
        latencies,
        loaded: Loaded {
            data_bytes,
            ..Loaded::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::MapEngine;
    use crate::ycsb::mix::Workload;

    fn fixture() -> Fixture<'static> {
        let reservation = Reservation {
            records: 450,
            inserts: 2000,
            writes: 9000,
        };
        Fixture::load(
            &MapEngine,
            reservation,
            StoreLocation::default(),
            &Progress::hidden(),
        )
        .unwrap()
    }

    #[test]
    fn a_store_is_loaded_with_all_records_and_measured() {
        let fixture = fixture();
        assert_eq!(fixture.expected.known(), 450);
        let Load {
            per_second,
            latencies,
            loaded,
        } = &fixture.load;
        assert!(*per_second > 0.0);
        assert_eq!(latencies.len(), 5);
        assert!((450 * 1010..450 * 1023).contains(&loaded.data_bytes));
        assert_eq!(loaded.disk_bytes, None);
        assert_eq!(
            (fixture.strategy(1), fixture.strategy(2)),
            ("single".into(), "batch".into())
        );
    }

    #[test]
    fn turns_of_every_workload_share_their_operations_among_threads() {
        let fixture = fixture();
        for workload in Workload::ALL {
            let requests = Requests::new(workload, 450, 2450);
            let mut latencies = Histogram::new(3).unwrap();
            let turn = TurnPlan {
                requests: &requests,
                batch: 8,
                threads: 3,
                operations: 1001,
                checked: true,
                seed: 7,
            };
            let sample = fixture.turn(&turn, &mut latencies).unwrap();
            assert!(sample.per_second > 0.0);
            // 333, 334 and 334 operations, eight per batch.
            assert_eq!(latencies.len(), 3 * 42);
        }
    }
}
