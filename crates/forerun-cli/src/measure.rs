//! Measures lookups: the same reads, answered one key at a time and in batches, in alternating
//! rounds.
//!
//! Rounds, medians and ratios come from [`forerun_measure::harness`]. This module defines one turn
//! on a store, and checks every answer of every method before it reports a figure.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::time::Instant;

use anyhow::Context;
use forerun_db::{Db, Values};
use forerun_measure::harness::{self, Case, Plan, Sample, Turn};
use forerun_measure::progress::Progress;
use forerun_measure::result_row::Row;
use forerun_measure::size::{digits, short, spread};
use forerun_measure::text_table::TextTable;

use crate::exit::CheckFailed;
use crate::output::Named;

/// The reads to measure.
pub struct Lookups<'a, K> {
    /// The store.
    pub db: &'a Db,
    /// The keys, in the order in which they are read.
    pub reads: &'a [K],
    /// Returns the number of hits in a range of reads.
    pub hits: &'a dyn Fn(Range<usize>) -> usize,
    /// Batch sizes. Each one is measured.
    pub batches: &'a [usize],
    /// The fields that all results share.
    pub about: Row,
}

/// The length of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Until each read was answered once.
    AllReads,
    /// Until the plan's time is over. The reads repeat if necessary.
    Time,
}

/// How the keys of a turn are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One key after the other with [`Db::read`], which uses the hash indexes as a batch does. Each
    /// value is copied into one buffer, so that the baseline pays for no allocation that
    /// [`Db::get`] would make and a batch would not.
    Get,
    /// In batches, with [`Db::multi_get`].
    MultiGet,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Get => "get",
            Method::MultiGet => "multiget",
        })
    }
}

/// What is measured, the baseline first.
const METHODS: [Method; 2] = [Method::Get, Method::MultiGet];

/// The answers to one group of keys. The memory is reused from group to group.
#[derive(Default)]
struct Answers {
    /// The answers of a batch.
    values: Values,
    /// The last value that [`Method::Get`] found.
    value: Vec<u8>,
}

impl<K: AsRef<[u8]>> Lookups<'_, K> {
    /// Measures, and returns a row for each batch size and method.
    ///
    /// # Errors
    /// The store's errors, and [`CheckFailed`] if a batch does not find every existing key.
    pub fn measure(
        &self,
        plan: &Plan,
        length: Length,
        progress: &Progress,
    ) -> anyhow::Result<Vec<Row>> {
        let mut cases = Vec::new();
        for (group, &batch) in self.batches.iter().enumerate() {
            for method in METHODS {
                let name = format!("{method}, batches of {batch}");
                cases.push(Case::new(group, name, move |turn: &Turn| {
                    self.turn(turn, batch, method, length)
                }));
            }
        }
        let outcomes = harness::measure(cases, plan, progress)?;
        let cells = self
            .batches
            .iter()
            .flat_map(|&batch| METHODS.map(|method| (batch, method)));
        Ok(cells
            .zip(&outcomes)
            .enumerate()
            .map(|(at, ((batch, method), outcome))| {
                let single = &outcomes[at - at % METHODS.len()];
                Row {
                    engine: "forerun".to_owned(),
                    strategy: method.to_string(),
                    batch: batch as u64,
                    threads: 1,
                    rounds: plan.rounds as u64,
                    isa: forerun_core::arch::isa().to_string(),
                    speedup_vs_single: Some(outcome.ratio_to(single)),
                    ..self.about.clone()
                }
                .with_rates(
                    outcome.per_second(),
                    outcome.per_second_min(),
                    outcome.per_second_max(),
                )
            })
            .collect())
    }

    fn turn(
        &self,
        turn: &Turn,
        batch: usize,
        method: Method,
        length: Length,
    ) -> anyhow::Result<Sample> {
        let mut answers = Answers::default();
        if length == Length::AllReads {
            let began = Instant::now();
            self.answer(0..self.reads.len(), batch, method, &mut answers)?;
            return Ok(Sample::new(self.reads.len() as u64, began.elapsed()));
        }
        // The clock is read after each step. A step has at least 1,024 keys, in whole batches.
        let step = batch * 1024usize.div_ceil(batch);
        // Each turn starts at another position, so that it does not repeat reads that are still in
        // the caches.
        let mut begin = turn.seed as usize * 7919 % self.reads.len().max(1);
        Sample::repeat(turn, || {
            let end = (begin + step).min(self.reads.len());
            self.answer(begin..end, batch, method, &mut answers)?;
            let answered = end - begin;
            begin = if end == self.reads.len() { 0 } else { end };
            Ok(answered as u64)
        })
    }

    fn answer(
        &self,
        range: Range<usize>,
        batch: usize,
        method: Method,
        answers: &mut Answers,
    ) -> anyhow::Result<()> {
        let mut found = 0;
        let reads = &self.reads[range.clone()];
        match method {
            Method::Get => {
                for key in reads {
                    found += usize::from(self.get(key, &mut answers.value)?);
                }
            }
            Method::MultiGet => {
                for keys in reads.chunks(batch) {
                    self.multi_get(keys, &mut answers.values)?;
                    found += answers.values.found();
                }
            }
        }
        let expected = (self.hits)(range);
        if found != expected {
            let problem =
                format!("{method} in batches of {batch} found {found} keys instead of {expected}");
            return Err(CheckFailed(problem).into());
        }
        Ok(())
    }

    /// Copies the value of `key` into `value`, and returns whether the key is there.
    fn get(&self, key: &K, value: &mut Vec<u8>) -> anyhow::Result<bool> {
        let copied = self.db.read(key, |bytes| {
            value.clear();
            value.extend_from_slice(bytes);
        });
        Ok(copied.context("cannot look up a key")?.is_some())
    }

    fn multi_get(&self, keys: &[K], values: &mut Values) -> anyhow::Result<()> {
        self.db
            .multi_get(keys, values)
            .context("cannot look up a batch")
    }

    /// Answers the first `count` reads with each batch size and method, and compares every answer
    /// with `expected`, which takes the position of the read.
    ///
    /// # Errors
    /// [`CheckFailed`] at the first wrong answer.
    pub fn check<'e>(
        &self,
        count: usize,
        expected: impl Fn(usize) -> anyhow::Result<Option<Cow<'e, [u8]>>>,
    ) -> anyhow::Result<()> {
        let reads = &self.reads[..self.reads.len().min(count)];
        let expected: Vec<_> = (0..reads.len()).map(expected).collect::<Result<_, _>>()?;
        let mut answers = Answers::default();
        for (key, expected) in reads.iter().zip(&expected) {
            let found = self.get(key, &mut answers.value)?;
            compare(
                Method::Get,
                key.as_ref(),
                found.then_some(&answers.value),
                expected.as_deref(),
            )?;
        }
        let values = &mut answers.values;
        for &batch in self.batches {
            for (keys, expected) in reads.chunks(batch).zip(expected.chunks(batch)) {
                self.multi_get(keys, values)?;
                for (at, (key, expected)) in keys.iter().zip(expected).enumerate() {
                    let method = format_args!("{} in batches of {batch}", Method::MultiGet);
                    compare(method, key.as_ref(), values.get(at)?, expected.as_deref())?;
                }
            }
        }
        Ok(())
    }
}

/// Fails unless a method found what was expected.
fn compare(
    method: impl fmt::Display,
    key: &[u8],
    found: Option<&[u8]>,
    expected: Option<&[u8]>,
) -> anyhow::Result<()> {
    if found == expected {
        return Ok(());
    }
    let what = match found {
        Some(_) => "another value",
        None => "nothing",
    };
    let problem = format!("{method} found {what} for key {}", Named(key));
    Err(CheckFailed(problem).into())
}

/// The rows as a printable table.
pub fn table(rows: &[Row]) -> TextTable {
    let mut table = TextTable::new([
        "batch",
        "strategy",
        "keys/s",
        "ns per key",
        "slowest-fastest",
        "vs get",
    ]);
    for row in rows {
        table.push([
            row.batch.to_string(),
            row.strategy.clone(),
            short(row.keys_per_second),
            digits(row.ns_per_key),
            spread(row.keys_per_second_min, row.keys_per_second_max),
            row.speedup_vs_single
                .map_or("-".to_owned(), |ratio| format!("{ratio:.2}x")),
        ]);
    }
    table
}

/// Compares [`Method::Get`] with batches, one line per batch size.
pub fn comparison(rows: &[Row]) -> TextTable {
    let mut table = TextTable::new([
        "batch",
        "one at a time, ns per key",
        "overlapped, ns per key",
        "keys/s",
        "speedup",
    ]);
    for pair in rows.chunks_exact(2) {
        table.push([
            pair[0].batch.to_string(),
            digits(pair[0].ns_per_key),
            digits(pair[1].ns_per_key),
            short(pair[1].keys_per_second),
            pair[1]
                .speedup_vs_single
                .map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_has_one_line_per_batch() {
        let row = |batch, strategy: &str, rate: f64| {
            let row = Row {
                batch,
                strategy: strategy.to_owned(),
                threads: 1,
                ..Row::default()
            };
            Row {
                speedup_vs_single: Some(rate / 1e6),
                ..row.with_rates(rate, rate, rate)
            }
        };
        let rows = [
            row(1, "get", 1e6),
            row(1, "multiget", 1e6),
            row(8, "get", 1e6),
            row(8, "multiget", 4e6),
        ];
        let table = comparison(&rows);
        assert_eq!(table.rows[1], ["8", "1000", "250", "4.00 M", "4.00"]);
        assert_eq!(table.rows.len(), 2);
    }

    fn db_of_even_keys(dir: &std::path::Path) -> Db {
        let db = Db::open(dir, forerun_db::Options::default()).unwrap();
        for n in (0..200u32).step_by(2) {
            db.put(&n.to_be_bytes(), &n.to_le_bytes()).unwrap();
        }
        db
    }

    #[test]
    fn each_batch_and_method_has_a_row_and_wrong_answers_none() {
        let dir = tempfile::tempdir().unwrap();
        let db = db_of_even_keys(dir.path());
        let reads: Vec<[u8; 4]> = (0..200u32).map(u32::to_be_bytes).collect();
        let mut lookups = Lookups {
            db: &db,
            reads: &reads,
            hits: &|range| range.filter(|at| at % 2 == 0).count(),
            batches: &[1, 7, 64],
            about: Row {
                bench: "test".to_owned(),
                ..Row::default()
            },
        };
        let plan = Plan::new(2, std::time::Duration::from_micros(100));
        for length in [Length::AllReads, Length::Time] {
            let rows = lookups.measure(&plan, length, &Progress::hidden()).unwrap();
            assert_eq!(rows.len(), 3 * 2);
            assert!(
                rows.iter()
                    .all(|row| row.bench == "test" && row.keys_per_second > 0.0)
            );
            let get = rows.iter().filter(|row| row.strategy == "get");
            assert!(
                get.clone().count() == 3
                    && get.clone().all(|row| row.speedup_vs_single == Some(1.0))
            );
            assert_eq!(table(&rows).rows.len(), rows.len());
        }
        let value = |at: usize| {
            at.is_multiple_of(2)
                .then(|| Cow::Owned((at as u32).to_le_bytes().to_vec()))
        };
        lookups.check(200, |at| Ok(value(at))).unwrap();
        lookups
            .check(200, |at| Ok(value(at).filter(|_| at != 150)))
            .unwrap_err();
        lookups
            .check(200, |at| Ok(value(if at == 150 { 152 } else { at })))
            .unwrap_err();
        lookups
            .check(200, |at| {
                Ok(value(at).or((at == 151).then(|| Cow::Borrowed(&b""[..]))))
            })
            .unwrap_err();
        lookups.hits = &|range| range.len();
        lookups
            .measure(&plan, Length::AllReads, &Progress::hidden())
            .unwrap_err();
    }
}
