//! Runs one turn of a case: threads look up batches, and another thread may update the table
//! concurrently.
//!
//! ```text
//!  reader   | step: batch batch batch ... | check | step: batch ...      only the steps are timed
//!  updater  |  u u     u u      u u     u u    ...                       never ahead of its share of all operations
//! ```

use super::contender::{ContenderTable, Updater};
use super::keys::{Keys, Stream, Word};
use crate::threads::{Cores, Ready};
use crate::workload::mix;
use anyhow::{Context, Result, ensure};
use forerun_core::arch::Isa;
use forerun_measure::harness::{Sample, Turn};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// The kind of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum UpdateKind {
    /// A present key gets another value.
    #[default]
    Upsert,
    /// One operation: removes an entry and inserts a new one.
    Churn,
}

impl fmt::Display for UpdateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            UpdateKind::Upsert => "upsert",
            UpdateKind::Churn => "churn",
        })
    }
}

/// The work of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnSpec<'a> {
    pub(super) strategy: &'a str,
    pub(super) isa: Isa,
    pub(super) batch: usize,
    /// Lookup threads.
    pub(super) threads: usize,
    /// The share of all operations that an additional thread makes as updates; 0 for none.
    pub(super) updates: f64,
    pub(super) update_kind: UpdateKind,
    pub(super) rounds: usize,
}

/// The progress of churn in a table, from turn to turn: which of the entries that no thread looks
/// up are currently in the table.
#[derive(Debug, Default)]
pub(super) struct Churn {
    done: AtomicU64,
}

impl Churn {
    /// Whether the table still holds exactly its initial entries.
    pub(super) fn is_untouched(&self) -> bool {
        // Relaxed: read between turns, whose threads have been joined.
        self.done.load(Ordering::Relaxed) == 0
    }

    /// Replaces the next entry with another: first the entries of the first generation, one by one,
    /// with those of a second, then back, and so on.
    fn step<K: Word, V: Word>(&self, keys: &Keys, updater: &mut dyn Updater<K, V>) -> Result<()> {
        let (stable, span) = (keys.stable(), keys.entries() - keys.stable());
        ensure!(span > 0, "churn needs a table of at least eight entries");
        // Relaxed: only one thread counts, and turns are joined.
        let done = self.done.fetch_add(1, Ordering::Relaxed);
        let (round, at) = (done / span, done % span);
        let generation = |round: u64| stable + (round & 1) * span + at;
        let (out, in_) = (generation(round), generation(round + 1));
        ensure!(
            updater.remove(keys.key(out))?,
            "an entry to be removed is not in the table"
        );
        updater.upsert(keys.key(in_), keys.value(in_))
    }
}

/// Runs one turn.
///
/// # Errors
/// A wrong answer, or the table's errors.
pub(super) fn run<K: Word, V: Word>(
    subject: &dyn ContenderTable<K, V>,
    (keys, stream, churn): (&Keys, &Stream<K>, &Churn),
    spec: &TurnSpec<'_>,
    cores: &Cores,
    turn: &Turn,
) -> Result<Sample> {
    subject.set_isa(spec.isa);
    let reading = AtomicUsize::new(spec.threads);
    let reads = AtomicU64::new(0);
    let writes = spec.updates > 0.0;
    let rates = cores.run(spec.threads + usize::from(writes), |thread, ready| {
        if thread == spec.threads {
            let mut updater = subject.updater().context("this design has no updates")?;
            let mut numbers = turn.seed;
            let mut update = || match spec.update_kind {
                UpdateKind::Churn => churn.step(keys, &mut *updater),
                UpdateKind::Upsert => {
                    numbers = numbers.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let number = mix(numbers);
                    let index = number % keys.stable();
                    let value = keys.value::<V>(index).to_u64() | (number >> 63);
                    updater.upsert(keys.key(index), V::from_u64(value))
                }
            };
            return update_concurrently(spec.updates, &reading, &reads, &mut update, ready);
        }
        // However this thread ends, it must notify the updater.
        let _done = DoneOnDrop(&reading);
        let mut finder = subject.finder(spec.strategy)?;
        let step = stream.step_len();
        let mut values = vec![V::default(); step];
        let mut found = vec![false; step];
        let mut at = start(stream.steps(), turn.round, spec, thread);
        ready.wait();
        let sample = Sample::repeat_timed(turn, || {
            let keys = stream.step(at);
            let mut found_count = 0;
            let begin = Instant::now();
            let answers = values.chunks_mut(spec.batch);
            let marks = found.chunks_mut(spec.batch);
            for ((keys, values), found) in keys.chunks(spec.batch).zip(answers).zip(marks) {
                found_count += finder.find(keys, values, found);
            }
            let took = begin.elapsed();
            stream.check(at, found_count, &values, &found)?;
            at = (at + 1) % stream.steps();
            // Relaxed: it paces the updater and orders nothing.
            reads.fetch_add(step as u64, Ordering::Relaxed);
            Ok((step as u64, took))
        })?;
        Ok(sample.per_second)
    })?;
    Ok(Sample {
        per_second: rates[..spec.threads].iter().sum(),
        beside_per_second: writes.then(|| rates[spec.threads]),
    })
}

/// Where in the stream a thread starts: spread over the stream by round and thread, and the same
/// for everything that is compared.
fn start(steps: usize, round: usize, spec: &TurnSpec<'_>, thread: usize) -> usize {
    let starts = (spec.rounds * spec.threads).max(1);
    (round * spec.threads + thread) * steps / starts % steps
}

/// Makes updates until the last reader is done, never more than the given share of all operations.
/// Returns the rate.
fn update_concurrently(
    share: f64,
    reading: &AtomicUsize,
    reads: &AtomicU64,
    update: &mut dyn FnMut() -> Result<()>,
    ready: Ready<'_>,
) -> Result<f64> {
    ready.wait();
    let start = Instant::now();
    let mut made = 0u64;
    // Both loads are relaxed: one is a count for pacing, the other says when to stop.
    while reading.load(Ordering::Relaxed) > 0 {
        let allowed = reads.load(Ordering::Relaxed) as f64 * share / (1.0 - share);
        let due = (allowed as u64).saturating_sub(made).min(64);
        for _ in 0..due {
            update()?;
        }
        made += due;
        if due == 0 {
            std::hint::spin_loop();
        }
    }
    Ok(made as f64 / start.elapsed().as_secs_f64())
}

/// Counts a reader as done when dropped.
struct DoneOnDrop<'a>(&'a AtomicUsize);

impl Drop for DoneOnDrop<'_> {
    fn drop(&mut self) {
        // Relaxed: as for the load.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Looks up a few thousand keys, present and absent, and compares each answer.
///
/// # Errors
/// The first wrong answer.
pub(super) fn verify<K: Word, V: Word>(
    subject: &dyn ContenderTable<K, V>,
    keys: &Keys,
    strategy: &str,
    isa: Isa,
    batch: usize,
) -> Result<()> {
    subject.set_isa(isa);
    let mut finder = subject.finder(strategy)?;
    let asked = keys.stable().min(4096);
    // Spread over all entries, each followed by an absent key.
    let index = |number: u64| number * (keys.stable() / asked);
    let wanted: Vec<(K, Option<u64>)> = (0..asked)
        .flat_map(|number| {
            let index = index(number);
            [(keys.key(index), Some(index)), (keys.absent(number), None)]
        })
        .collect();
    for chunk in wanted.chunks(batch) {
        let asked: Vec<K> = chunk.iter().map(|(key, _)| *key).collect();
        let mut values = vec![V::default(); chunk.len()];
        let mut found = vec![false; chunk.len()];
        let found_count = finder.find(&asked, &mut values, &mut found);
        for (at, (key, index)) in chunk.iter().enumerate() {
            let key = key.to_u64();
            ensure!(
                found[at] == index.is_some(),
                "key {key:#x} is {} by {strategy} ({isa}, batch {batch}), at place {at} of its \
                 batch",
                if found[at] { "invented" } else { "missed" }
            );
            let value = index.map(|index| keys.value::<V>(index).to_u64());
            ensure!(
                value.is_none_or(|value| value == values[at].to_u64() & !1),
                "key {key:#x} has the value {:#x} instead of {:#x} by {strategy} ({isa}, batch \
                 {batch})",
                values[at].to_u64(),
                value.unwrap_or_default()
            );
        }
        let marked = found.iter().filter(|found| **found).count();
        ensure!(
            found_count == marked,
            "{strategy} says that it found {found_count} keys and marks {marked}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::contender::tests::Map;
    use super::super::contender::{Contender, FIND_BATCH, InsertOutcome};
    use super::super::keys::Skew;
    use super::*;
    use std::time::Duration;

    fn filled(map: &Map, keys: &Keys) -> Box<dyn ContenderTable<u64, u64>> {
        let mut subject = map.open(1000, 0.9).unwrap();
        for index in 0..keys.entries() {
            let placed = subject.insert(&[keys.key(index)], &[keys.value(index)]);
            assert_eq!(placed.unwrap(), InsertOutcome::All);
        }
        subject
    }

    fn spec(threads: usize, updates: f64, update_kind: UpdateKind) -> TurnSpec<'static> {
        TurnSpec {
            strategy: FIND_BATCH,
            isa: Isa::Scalar,
            batch: 48,
            threads,
            updates,
            update_kind,
            rounds: 1,
        }
    }

    fn turn() -> Turn {
        Turn {
            round: 0,
            seed: 9,
            // On a busy machine every thread gets its turn within this time.
            duration: Duration::from_millis(50),
            warm_up: Duration::from_micros(100),
        }
    }

    #[test]
    fn a_turn_reads_and_updates_by_its_share_and_checks_every_answer() {
        let keys = Keys::new::<u64>(500, 1).unwrap();
        let stream = Stream::new::<u64>(&keys, 0.5, Skew::Uniform, 480, 4800, 2).unwrap();
        let subject = filled(&Map::new("map"), &keys);
        let churn = Churn::default();
        let cores = Cores::available();
        for threads in [1, 2] {
            let run = |spec| {
                let parts = (&keys, &stream, &churn);
                run(&*subject, parts, &spec, &cores, &turn()).unwrap()
            };
            let quiet = run(spec(threads, 0.0, UpdateKind::Upsert));
            assert!(quiet.per_second > 0.0 && quiet.beside_per_second.is_none());
            assert!(churn.is_untouched() || threads == 2);
            for kind in [UpdateKind::Upsert, UpdateKind::Churn] {
                let busy = run(spec(threads, 0.05, kind));
                assert!(busy.beside_per_second.is_some_and(|rate| rate > 0.0));
            }
        }
        assert!(!churn.is_untouched());
        assert_eq!(subject.len(), 500);
        verify(&*subject, &keys, FIND_BATCH, Isa::Scalar, 7).unwrap();
    }

    #[test]
    fn a_table_with_wrong_answers_is_detected() {
        let keys = Keys::new::<u64>(500, 1).unwrap();
        let stream = Stream::new::<u64>(&keys, 1.0, Skew::Uniform, 480, 4800, 2).unwrap();
        let map = Map {
            error: 2,
            ..Map::new("liar")
        };
        let subject = filled(&map, &keys);
        let parts = (&keys, &stream, &Churn::default());
        let spec = spec(1, 0.0, UpdateKind::Upsert);
        let error = run(&*subject, parts, &spec, &Cores::available(), &turn()).unwrap_err();
        assert!(format!("{error:#}").contains("add up"), "{error:#}");
        let error = verify(&*subject, &keys, FIND_BATCH, Isa::Scalar, 64).unwrap_err();
        assert!(error.to_string().contains("value"), "{error}");
    }

    #[test]
    fn threads_and_rounds_start_at_different_places_of_the_stream() {
        let spec = TurnSpec {
            rounds: 5,
            ..spec(2, 0.0, UpdateKind::Upsert)
        };
        let mut starts: Vec<usize> = (0..5)
            .flat_map(|round| [0, 1].map(|thread| start(1000, round, &spec, thread)))
            .collect();
        starts.dedup();
        assert_eq!(starts.len(), 10);
        assert!(starts.iter().all(|start| *start < 1000));
    }
}
