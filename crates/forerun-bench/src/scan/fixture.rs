//! An engine's store, loaded and warm, and its turns.
//!
//! ```text
//!  open --> load, in random order --> one:     compact ─────────────────────┐
//!                                     several: overwrite, in three portions ─┴─> look all up --> turns
//! ```

use super::args::{Direction, Runs};
use crate::engine::{self, Engine, Reader, Store, StoreLocation, StoreRequirements};
use crate::threads::Cores;
use crate::workload::{Dataset, EntryBuffer};
use anyhow::{Context, Result, ensure};
use forerun_measure::harness::{Sample, Turn};
use forerun_measure::progress::Progress;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Entries per write of the load.
const LOAD_BATCH: usize = 100;

/// The clock is read after this many entries, or after one scan if that is longer.
const ENTRIES_PER_STEP: usize = 1000;

/// Keys to begin at, drawn before timing starts.
const STARTS: usize = 1 << 14;

/// What is scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scans {
    pub direction: Direction,
    /// Entries per scan.
    pub length: usize,
}

/// A loaded store.
pub(super) struct Fixture<'a> {
    engine: &'a dyn Engine,
    store: Box<dyn Store>,
    data: Dataset,
    cores: Cores,
}

impl<'a> Fixture<'a> {
    /// Opens a store and loads it.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) fn load(
        engine: &'a dyn Engine,
        data: Dataset,
        runs: Runs,
        place: &StoreLocation,
        progress: &Progress,
    ) -> Result<Fixture<'a>> {
        let keys = data.keys();
        let requirements = StoreRequirements {
            place: place.clone(),
            ..StoreRequirements::of(&data, keys)
        };
        let store = engine.open(&requirements)?;
        let bar = progress.steps(&format!("loading {}", engine.name()), keys);
        let mut writer = store.writer()?;
        engine::load(&mut *writer, &data, 0..keys, LOAD_BATCH, |done| {
            bar.at(done)
        })?;
        store.wait_idle()?;
        match runs {
            Runs::One => store.compact()?,
            Runs::Several => {
                // The load order is random, so each portion is spread over all keys.
                for share in [10, 50] {
                    let turns = 0..keys / share;
                    engine::load(&mut *writer, &data, turns, LOAD_BATCH, |_| ())?;
                    store.wait_idle()?;
                }
                engine::load(&mut *writer, &data, 0..keys / 100, LOAD_BATCH, |_| ())?;
            }
        }
        drop(writer);
        bar.set_status("looking all up");
        let mut reader = store.reader(&engine.batched())?;
        let indices: Vec<u64> = (0..keys).collect();
        for indices in indices.chunks(LOAD_BATCH) {
            let keys: Vec<Vec<u8>> = indices.iter().map(|index| data.present(*index)).collect();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let found = reader.read(&keys)?;
            ensure!(found == keys.len(), "only {found} of {} keys", keys.len());
        }
        drop(reader);
        Ok(Fixture {
            engine,
            store,
            data,
            cores: Cores::available(),
        })
    }

    pub(super) fn engine(&self) -> &'a dyn Engine {
        self.engine
    }

    /// Facts to report about the store.
    pub(super) fn facts(&self) -> Vec<(String, String)> {
        self.store.facts()
    }

    /// Runs one turn. Its rate is in entries per second.
    ///
    /// # Errors
    /// A failed scan, or, in the first round, a wrong one.
    pub(super) fn turn(&self, turn: &Turn, scans: Scans, threads: usize) -> Result<Sample> {
        let strategy = self.engine.batched();
        // The engine itself may not be shared.
        let (store, data) = (&*self.store, &self.data);
        let samples = self.cores.run(threads, |thread, ready| {
            let mut reader = store.reader(&strategy)?;
            // Not the turn's own seed: all engines scan the same entries.
            let seed = (turn.round as u64) << 32 ^ thread as u64;
            let starts = starts(data, scans, seed);
            if turn.round == 0 {
                for (index, key) in starts.iter().take(16) {
                    check(data, &mut *reader, scans, (*index, key))
                        .with_context(|| format!("a wrong answer for a scan from {index}"))?;
                }
            }
            let mut starts = starts.iter().cycle();
            let mut read = 0_u64;
            ready.wait();
            let sample = Sample::repeat(turn, || {
                let mut entries = 0;
                while entries < ENTRIES_PER_STEP {
                    let (_, from) = starts.next().context("no scan")?;
                    entries += scan(&mut *reader, scans, from, &mut |key, value| {
                        read += lines(key) + lines(value);
                    })?;
                }
                Ok(entries as u64)
            })?;
            std::hint::black_box(read);
            Ok(sample)
        })?;
        Ok(Sample {
            per_second: samples.iter().map(|sample| sample.per_second).sum(),
            beside_per_second: None,
        })
    }
}

/// Where scans begin, so that each finds as many entries as it asks for: indices and keys.
fn starts(data: &Dataset, scans: Scans, seed: u64) -> Vec<(u64, Vec<u8>)> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let (keys, length) = (data.keys(), scans.length as u64);
    let draw = |_| {
        let first = rng.random_range(0..=keys - length);
        let index = match scans.direction {
            Direction::Forward => first,
            Direction::Backward => first + length - 1,
        };
        (index, data.present(index))
    };
    (0..STARTS).map(draw).collect()
}

/// Makes one scan and compares its entries with those that were written.
fn check(
    data: &Dataset,
    reader: &mut dyn Reader,
    scans: Scans,
    (first, from): (u64, &[u8]),
) -> Result<()> {
    let mut expected = EntryBuffer::default();
    let (mut index, mut wrong) = (first, None);
    let count = scan(reader, scans, from, &mut |key, value| {
        data.entry(index, &mut expected);
        if (key, value) != (&expected.key[..], &expected.value[..]) {
            wrong.get_or_insert(index);
        }
        index = match scans.direction {
            Direction::Forward => index + 1,
            Direction::Backward => index.wrapping_sub(1),
        };
    })?;
    ensure!(count == scans.length, "it returned {count} entries");
    match wrong {
        Some(index) => anyhow::bail!("entry {index} is another one"),
        None => Ok(()),
    }
}

fn scan(
    reader: &mut dyn Reader,
    scans: Scans,
    from: &[u8],
    each: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<usize> {
    match scans.direction {
        Direction::Forward => reader.scan(from, scans.length, each),
        Direction::Backward => reader.scan_back(from, scans.length, each),
    }
}

/// Reads a byte of each line.
fn lines(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter().step_by(forerun_core::CACHE_LINE_BYTES);
    bytes.map(|byte| u64::from(*byte)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::MapEngine;
    use std::time::Duration;

    fn turn(round: usize) -> Turn {
        Turn {
            round,
            seed: 1,
            duration: Duration::from_millis(1),
            warm_up: Duration::ZERO,
        }
    }

    #[test]
    fn both_directions_are_scanned_and_checked() {
        let data = Dataset::new(500, 16, 3, 40).unwrap();
        for runs in [Runs::One, Runs::Several] {
            let place = StoreLocation::default();
            let fixture =
                Fixture::load(&MapEngine, data, runs, &place, &Progress::hidden()).unwrap();
            for direction in [Direction::Forward, Direction::Backward] {
                for length in [1, 7, 500] {
                    let scans = Scans { direction, length };
                    let sample = fixture.turn(&turn(0), scans, 2).unwrap();
                    assert!(sample.per_second > 0.0);
                }
            }
        }
    }

    #[test]
    fn a_scan_that_misses_an_entry_or_shows_another_value_is_a_wrong_answer() {
        let data = Dataset::new(50, 16, 0, 40).unwrap();
        let place = StoreLocation::default();
        let fixture =
            Fixture::load(&MapEngine, data, Runs::One, &place, &Progress::hidden()).unwrap();
        let scans = Scans {
            direction: Direction::Forward,
            length: 50,
        };
        let mut entry = EntryBuffer::default();
        data.entry(20, &mut entry);
        entry.value[3] ^= 1;
        let mut writer = fixture.store.writer().unwrap();
        writer.write(&entry.key, &entry.value).unwrap();
        drop(writer);
        let error = format!("{:#}", fixture.turn(&turn(0), scans, 1).unwrap_err());
        assert!(error.contains("entry 20"), "{error}");
        fixture.turn(&turn(1), scans, 1).unwrap();
    }
}
