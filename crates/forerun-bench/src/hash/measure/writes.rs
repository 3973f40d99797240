//! Measures batches of removals and insertions, by one thread that owns the table.
//!
//! ```text
//!   numbers   … | oldest ──── present entries ──── newest | next …        the window moves on, the load stays
//!   a step      remove batch batch …  (timed)      insert batch batch …  (timed)
//! ```
//!
//! A sample has the rate of the insertions, and that of the removals beside it. A design that finds
//! no slot for a new entry, because it is fuller than after a fill, is reported as full.

use super::super::contender::{Contender, ContenderTable, FIND_BATCH, GET, InsertOutcome, Isa};
use super::super::keys::{Keys, Word, numbers};
use super::super::result_row::HashRow;
use super::super::sweep::{Cell, Sweep};
use super::super::table_group::{self, GroupTable};
use super::case::Variant;
use super::{Bench, MEMC3, load_factor_max, slots};
use anyhow::{Context, Result, ensure};
use forerun_measure::harness::{self, Case, Outcome, Sample, Turn};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A table, and which numbers its entries have.
struct Window<'a, K: Word, V: Word> {
    at: usize,
    contender: &'a dyn Contender<K, V>,
    table: Mutex<WindowTable<K, V>>,
}

struct WindowTable<K: Word, V: Word> {
    /// `None` if it was full before.
    subject: Option<Box<dyn ContenderTable<K, V>>>,
    oldest: u64,
    full_at: Option<f64>,
}

/// Keys that a step takes from the table's older end to its newer one.
const STEP_KEYS: u64 = 4096;

impl<K: Word, V: Word> WindowTable<K, V> {
    /// Removes the oldest entries and inserts as many new ones, and returns how long each took.
    /// `None` if the table was full.
    fn step(
        &mut self,
        keys: &Keys,
        count: u64,
        batch: usize,
    ) -> Result<Option<(Duration, Duration)>> {
        let Some(subject) = &mut self.subject else {
            return Ok(None);
        };
        let numbered = |from: u64| (from..from + count).map(|at| at % numbers::<K>());
        let old: Vec<K> = numbered(self.oldest).map(|at| keys.key(at)).collect();
        let (new, values): (Vec<K>, Vec<V>) = numbered(self.oldest + keys.entries())
            .map(|at| (keys.key::<K>(at), keys.value::<V>(at)))
            .unzip();
        let start = Instant::now();
        let removed: usize = old.chunks(batch).map(|keys| subject.remove(keys)).sum();
        let removing = start.elapsed();
        ensure!(
            removed == old.len(),
            "{removed} of {} present keys were removed",
            old.len()
        );
        let start = Instant::now();
        for (keys, values) in new.chunks(batch).zip(values.chunks(batch)) {
            if subject.insert(keys, values)? == InsertOutcome::Full {
                let slots = subject.slots().unwrap_or_default().max(1);
                self.full_at = Some(subject.len() as f64 / slots as f64);
                self.subject = None;
                return Ok(None);
            }
        }
        self.oldest += count;
        Ok(Some((start.elapsed(), removing)))
    }

    /// Steps for a turn.
    fn turn(&mut self, keys: &Keys, count: u64, batch: usize, turn: &Turn) -> Result<Sample> {
        let (mut inserting, mut removing, mut moved) = (Duration::ZERO, Duration::ZERO, 0);
        let start = Instant::now();
        while start.elapsed() < turn.warm_up {
            self.step(keys, count, batch)?;
        }
        while inserting + removing < turn.duration {
            let Some((insertion, removal)) = self.step(keys, count, batch)? else {
                return Ok(Sample {
                    per_second: 0.0,
                    beside_per_second: Some(0.0),
                });
            };
            inserting += insertion;
            removing += removal;
            moved += count;
        }
        Ok(Sample {
            beside_per_second: Some(Sample::new(moved, removing).per_second),
            ..Sample::new(moved, inserting)
        })
    }

    /// Checks that the table holds its entries, and none that was removed.
    fn verify(&self, keys: &Keys) -> Result<()> {
        let Some(subject) = &self.subject else {
            return Ok(());
        };
        let expected = keys.entries() as usize;
        ensure!(subject.len() == expected, "{} entries", subject.len());
        let mut finder = subject
            .finder(FIND_BATCH)
            .or_else(|_| subject.finder(GET))?;
        let count = keys.entries().min(1024);
        let newest = self.oldest + keys.entries() - count;
        for (from, is_present) in [(newest, true), (newest + count, false)] {
            let asked: Vec<K> = (from..from + count)
                .map(|at| keys.key(at % numbers::<K>()))
                .collect();
            let (mut values, mut found) =
                (vec![V::default(); asked.len()], vec![false; asked.len()]);
            finder.find(&asked, &mut values, &mut found);
            for (at, (value, found)) in (from..).zip(values.iter().zip(found)) {
                let at = at % numbers::<K>();
                let is_right = !is_present || *value == keys.value(at);
                ensure!(
                    found == is_present && is_right,
                    "a wrong answer after writes"
                );
            }
        }
        Ok(())
    }
}

impl Bench<'_> {
    /// Like [`Bench::measure`], for batches of insertions and removals.
    ///
    /// # Errors
    /// The same.
    pub(in super::super) fn measure_writes<K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        contenders: &[&dyn Contender<K, V>],
        emit: &mut dyn FnMut(Vec<HashRow>) -> Result<()>,
    ) -> Result<()> {
        let contenders = self.chosen(sweep, contenders);
        for &size_bytes in &sweep.sizes {
            for &load_factor in &sweep.load_factors {
                let mut rows = Vec::new();
                for group in self.table_groups(sweep, &contenders, size_bytes) {
                    let of_group = group.iter().map(|&at| (at, contenders[at]));
                    let of_group: Vec<_> = of_group.collect();
                    let new = self
                        .writes_of(sweep, size_bytes, load_factor, &of_group)
                        .with_context(|| format!("a table of {size_bytes} bytes"))?;
                    // A baseline is measured with every group; its first rows are kept.
                    let known = |row: &HashRow, rows: &[HashRow]| {
                        rows.iter().any(|other| other.design == row.design)
                    };
                    let new = new.into_iter().filter(|row| !known(row, &rows));
                    let new: Vec<HashRow> = new.collect();
                    rows.extend(new);
                }
                emit(rows)?;
            }
        }
        Ok(())
    }

    /// How many steps of the progress bar [`Bench::measure_writes`] will make.
    pub(in super::super) fn write_steps<K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        contenders: &[&dyn Contender<K, V>],
    ) -> u64 {
        let contenders = self.chosen(sweep, contenders);
        let groups = |&size_bytes: &usize| self.table_groups(sweep, &contenders, size_bytes);
        let tables: usize = sweep
            .sizes
            .iter()
            .flat_map(groups)
            .map(|group| group.len() + 1)
            .sum();
        (tables * sweep.load_factors.len() * sweep.batches.len() * self.plan.rounds) as u64
    }

    /// The rows of the tables that are in memory together.
    fn writes_of<K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        size_bytes: usize,
        load_factor: f64,
        contenders: &[(usize, &dyn Contender<K, V>)],
    ) -> Result<Vec<HashRow>> {
        let slots = slots::<K, V>(size_bytes);
        let keys = Keys::new::<K>((slots as f64 * load_factor) as u64, 1)?;
        let tables = contenders.iter();
        let mut tables: Vec<GroupTable<'_, K, V>> = tables
            .map(|&(at, contender)| GroupTable::new(at, contender))
            .collect();
        let load_max = load_factor_max(&sweep.load_factors);
        self.bar
            .set_status(&format!("filling tables to {load_factor}"));
        table_group::fill(&mut tables, &keys, slots, load_max, &self.cores)?;
        let windows: Vec<Window<'_, K, V>> = tables
            .into_iter()
            .map(|table| Window {
                at: table.at,
                contender: table.contender,
                table: Mutex::new(WindowTable {
                    subject: table.subject,
                    oldest: 0,
                    full_at: table.full_at,
                }),
            })
            .collect();

        let mut cases = Vec::new();
        for (group, &batch) in sweep.batches.iter().enumerate() {
            // The window must not meet its own end among the numbers of present keys.
            let count = (keys.entries() / 16).clamp(1, STEP_KEYS);
            let count = count.next_multiple_of(batch as u64);
            ensure!(
                count <= keys.entries() / 8,
                "a batch of {batch} is more than an eighth of the table's {} entries",
                keys.entries()
            );
            for window in &windows {
                let name = format!("{} writes", window.contender.design());
                let keys = &keys;
                cases.push(Case::new(group, name, move |turn| {
                    let mut samples = self.cores.run(1, |_, ready| {
                        // A failed turn ends the run, so what it left does not matter.
                        let table = window.table.lock();
                        let mut table = table.unwrap_or_else(PoisonError::into_inner);
                        if let Some(subject) = &table.subject {
                            subject.set_isa(best_isa(window.contender));
                        }
                        ready.wait();
                        table.turn(keys, count, batch, turn)
                    })?;
                    samples.pop().context("one thread ran")
                }));
            }
            cases.push(Case::new(group, "random lines", move |turn| {
                let in_flight = self.in_flight.get(&1).copied().unwrap_or(16);
                let (round, duration) = (turn.round, turn.duration);
                let rate = self.probe.lines_per_second(1, in_flight, round, duration)?;
                Ok(Sample {
                    per_second: rate,
                    beside_per_second: None,
                })
            }));
        }
        let outcomes = harness::measure_on(cases, &self.plan, self.bar)?;

        let per_batch = windows.len() + 1;
        let mut rows = Vec::new();
        for (nth, window) in windows.iter().enumerate() {
            let table = window.table.lock();
            let table = table.unwrap_or_else(PoisonError::into_inner);
            let design = window.contender.design();
            table.verify(&keys).with_context(|| design.clone())?;
            for (group, &batch) in sweep.batches.iter().enumerate() {
                let of = |nth: usize, group: usize| &outcomes[group * per_batch + nth];
                let memc3 = windows
                    .iter()
                    .position(|one| one.contender.design() == MEMC3);
                for (operation, outcome_of) in [
                    ("insert", inserts as fn(&Outcome) -> Outcome),
                    ("remove", removals),
                ] {
                    let outcome = outcome_of(of(nth, group));
                    let ratio = |other: &Outcome| outcome.ratio_to(&outcome_of(other));
                    let variant = Variant {
                        at: window.at,
                        isa: best_isa(window.contender),
                        strategy: operation.to_owned(),
                    };
                    let cell = sweep.cells().into_iter().next();
                    let cell = Cell {
                        batch,
                        ..cell.context("a sweep has a cell")?
                    };
                    let mut row = HashRow {
                        size_bytes: size_bytes as u64,
                        load_factor,
                        full_at: table.full_at,
                        ..self.head::<K, V>(&keys, &cell, window.contender, &variant)
                    };
                    row.common.case = operation.to_owned();
                    row.common.hit_rate = None;
                    if let Some(subject) = &table.subject {
                        let bytes = subject.memory_bytes();
                        row.memory_bytes = bytes.map(|bytes| bytes as u64);
                        row.bytes_per_entry = bytes.map(|b| b as f64 / keys.entries() as f64);
                        let slots = subject.slots();
                        row.load_factor_had = slots.map(|n| keys.entries() as f64 / n as f64);
                        let lines = of(windows.len(), group);
                        row.common.roofline_share = Some(outcome.ratio_to(lines));
                        let single = sweep.batches.iter().position(|batch| *batch == 1);
                        row.common.speedup_vs_single = single.map(|at| ratio(of(nth, at)));
                        row.speedup_vs_memc3 = memc3.map(|memc3| ratio(of(memc3, group)));
                        row.common = row.common.with_rates(
                            outcome.per_second(),
                            outcome.per_second_min(),
                            outcome.per_second_max(),
                        );
                    }
                    rows.push(row);
                }
            }
        }
        Ok(rows)
    }
}

/// The contender's best instruction set.
fn best_isa<K: Word, V: Word>(contender: &dyn Contender<K, V>) -> Isa {
    contender.isas().first().copied().unwrap_or(Isa::Scalar)
}

fn inserts(outcome: &Outcome) -> Outcome {
    outcome.clone()
}

/// The rates that were measured beside the insertions.
fn removals(outcome: &Outcome) -> Outcome {
    let samples = outcome.samples.iter().map(|sample| Sample {
        per_second: sample.beside_per_second.unwrap_or_default(),
        beside_per_second: None,
    });
    Outcome {
        samples: samples.collect(),
        ..outcome.clone()
    }
}
