//! Measures a sweep and makes its rows.
//!
//! ```text
//!  for each size, for each shelf of tables that fit in memory together, for each load factor
//!    fill, verify
//!    round after round                                        (harness)
//!      for each hit rate x skew x batch                       a group: what is compared
//!        for each number of threads x updates                 a cell
//!          for each table x instruction set x strategy        a case
//!        random lines by as many threads                      a case: what the shares are of
//! ```

use super::contender::{Contender, FIND_BATCH, GET};
use super::keys::{Keys, Skew, Stream, Word};
use super::row::HashRow;
use super::shelf::{self, Shelved};
use super::sweep::{Cell, Sweep};
use super::turn::{self, Shot};
use crate::harness::{self, Case, Outcome, Plan, Sample};
use crate::progress::Bar;
use crate::row::Row;
use crate::threads::Cores;
use anyhow::{Context, Result, bail};
use forerun_core::Pages;
use forerun_core::arch::Isa;
use forerun_core::roofline::Probe;
use std::collections::{BTreeMap, HashSet};

/// The design that the studies compare with.
pub(super) const MEMC3: &str = "memc3";

/// What all sweeps of a run share.
pub(super) struct Bench<'a> {
    pub(super) study: Option<u8>,
    pub(super) plan: Plan,
    pub(super) cores: Cores,
    pub(super) probe: &'a Probe,
    /// How many lines in flight a thread give the highest rate, by number of threads.
    pub(super) in_flight: BTreeMap<usize, usize>,
    /// What tables may take together.
    pub(super) memory_bytes: usize,
    /// Keys of a stream.
    pub(super) stream_len: usize,
    /// The engine and strategy that `speedup_vs_peer` compares with.
    pub(super) peer: Option<(String, String)>,
    pub(super) bar: &'a Bar,
}

/// A way to look a batch up: a contender's, by its place in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    at: usize,
    isa: Isa,
    strategy: String,
}

/// What a case measures.
enum Head {
    /// Random lines, by as many threads.
    Lines { threads: usize },
    /// Lookups: the cell's place in the sweep, and the way.
    Lookup { cell: usize, way: Way },
}

/// A row and where it stands in the table: load factor, cell, contender.
type Placed = ((usize, usize, usize), HashRow);

impl Bench<'_> {
    /// Measures the sweep's cells of one width, and hands the rows of each size over as soon as they
    /// are there.
    ///
    /// # Errors
    /// Names that no contender has, a table that fails, or one that answers wrongly.
    pub(super) fn measure<K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        contenders: &[&dyn Contender<K, V>],
        emit: &mut dyn FnMut(Vec<HashRow>) -> Result<()>,
    ) -> Result<()> {
        let contenders = self.chosen(sweep, contenders);
        if contenders.is_empty() {
            return Ok(());
        }
        for &size_bytes in &sweep.sizes {
            let mut rows: Vec<Placed> = Vec::new();
            let mut tables: Vec<Shelved<'_, K, V>> = Vec::new();
            for shelf in self.shelves(sweep, &contenders, size_bytes) {
                // A baseline may stay where it is, unless it must be filled from little again.
                let fits = |table: &Shelved<'_, K, V>| {
                    sweep.load_factors.len() == 1 && shelf.contains(&table.at)
                };
                tables.retain(fits);
                for &at in &shelf {
                    if tables.iter().all(|table| table.at != at) {
                        tables.push(Shelved::new(at, contenders[at]));
                    }
                }
                for nth in 0..sweep.load_factors.len() {
                    let new = self
                        .load_factor(sweep, size_bytes, nth, &mut tables)
                        .with_context(|| format!("a table of {size_bytes} bytes"))?;
                    rows.extend(new);
                }
            }
            // Stable, so that of a baseline measured with every shelf the first rows are kept.
            rows.sort_by_key(|(place, _)| *place);
            let mut seen = HashSet::new();
            let mut kept = Vec::new();
            for (place, row) in rows {
                let way = (row.common.isa.clone(), row.common.strategy.clone());
                if seen.insert((place, way)) {
                    kept.push(row);
                }
            }
            emit(kept)?;
        }
        Ok(())
    }

    /// How many steps of the bar [`Bench::measure`] will make.
    pub(super) fn steps<K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        contenders: &[&dyn Contender<K, V>],
    ) -> u64 {
        let contenders = self.chosen(sweep, contenders);
        if contenders.is_empty() {
            return 0;
        }
        let cells = sweep.cells();
        let probes = probes(&cells).len();
        let mut cases = 0;
        for &size_bytes in &sweep.sizes {
            for shelf in self.shelves(sweep, &contenders, size_bytes) {
                let ways: usize = shelf
                    .iter()
                    .map(|at| ways(sweep, *at, contenders[*at]).len())
                    .sum();
                cases += sweep.load_factors.len() * (cells.len() * ways + probes);
            }
        }
        (cases * self.plan.rounds) as u64
    }

    /// The contenders that a sweep asks for: all, or by name; those that can be updated beside
    /// readers if it has such cells. There may be none for keys and values of this width.
    fn chosen<'c, K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        contenders: &[&'c dyn Contender<K, V>],
    ) -> Vec<&'c dyn Contender<K, V>> {
        let updated = sweep.updates.iter().any(|share| *share > 0.0);
        let wanted = |contender: &&&dyn Contender<K, V>| {
            let named = sweep.designs.is_empty() || sweep.designs.contains(&contender.design());
            named && (!updated || contender.is_shared())
        };
        contenders.iter().filter(wanted).copied().collect()
    }

    fn shelves<K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        contenders: &[&dyn Contender<K, V>],
        size_bytes: usize,
    ) -> Vec<Vec<usize>> {
        let slots = slots::<K, V>(size_bytes);
        let most = most(&sweep.load_factors);
        let is_baseline = |contender: &dyn Contender<K, V>| {
            let peer = self.peer.as_ref();
            contender.design() == MEMC3
                || peer.is_some_and(|(engine, _)| engine == contender.engine())
        };
        shelf::shelves(contenders, &is_baseline, (slots, most), self.memory_bytes)
    }

    /// Measures the cells of one size and load factor on some tables.
    fn load_factor<K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        size_bytes: usize,
        nth: usize,
        tables: &mut [Shelved<'_, K, V>],
    ) -> Result<Vec<Placed>> {
        let load_factor = sweep.load_factors[nth];
        let slots = slots::<K, V>(size_bytes);
        let keys = Keys::new((slots as f64 * load_factor) as u64, 1)?;
        let cells = sweep.cells();
        self.bar.tell(&format!("filling tables to {load_factor}"));
        shelf::fill(tables, &keys, slots, most(&sweep.load_factors), &self.cores)?;
        let tables = &*tables;

        // Answers go to a step's arrays, which must not take the place of a table in the cache.
        let step: usize = if size_bytes <= 1 << 20 { 1024 } else { 4096 };
        let mut streams: Vec<((f64, Skew, usize), Stream<K>)> = Vec::new();
        for cell in &cells {
            let kind = (cell.hit_rate, cell.skew, step.next_multiple_of(cell.batch));
            if streams.iter().all(|(other, _)| *other != kind) {
                let (hit_rate, skew, step) = kind;
                let stream = Stream::new::<V>(&keys, hit_rate, skew, step, self.stream_len, 2)?;
                streams.push((kind, stream));
            }
        }
        let stream_of = |cell: &Cell| {
            let kind = (cell.hit_rate, cell.skew, step.next_multiple_of(cell.batch));
            streams.iter().find(|(other, _)| *other == kind)
        };

        let mut heads = Vec::new();
        let mut cases = Vec::new();
        let mut rows = Vec::new();
        let mut unreached = 0;
        for (at, cell) in cells.iter().enumerate() {
            let group = group(&cells, at);
            let (_, stream) = stream_of(cell).context("every cell has its stream")?;
            for table in tables {
                let ways = ways(sweep, table.at, table.contender);
                let Some(subject) = &table.subject else {
                    unreached += ways.len();
                    let head = self.head::<K, V>(&keys, cell, table.contender, &ways[0]);
                    rows.push((
                        (nth, at, table.at),
                        HashRow {
                            size_bytes: size_bytes as u64,
                            load_factor,
                            full_at: table.full_at,
                            ..head
                        },
                    ));
                    continue;
                };
                for way in ways {
                    turn::verify(&**subject, &keys, &way.strategy, way.isa, cell.batch)
                        .with_context(|| table.contender.design())?;
                    let name = format!("{} {} {}", table.contender.design(), way.isa, way.strategy);
                    heads.push(Head::Lookup {
                        cell: at,
                        way: way.clone(),
                    });
                    let (keys, cell) = (&keys, *cell);
                    cases.push(Case::new(group, name, move |turn| {
                        let shot = Shot {
                            strategy: &way.strategy,
                            isa: way.isa,
                            batch: cell.batch,
                            threads: cell.threads,
                            updates: cell.updates,
                            update_kind: cell.update_kind,
                            rounds: self.plan.rounds,
                        };
                        let parts = (keys, stream, &table.churn);
                        turn::run(&**subject, parts, &shot, &self.cores, turn)
                    }));
                }
            }
            for (last, threads) in probes(&cells) {
                if last == at {
                    heads.push(Head::Lines { threads });
                    cases.push(Case::new(group, "random lines", move |turn| {
                        let in_flight = self.in_flight.get(&threads).copied().unwrap_or(16);
                        let rate = self.probe.lines_per_second(
                            threads,
                            in_flight,
                            turn.round,
                            turn.duration,
                        )?;
                        Ok(Sample {
                            per_second: rate,
                            beside_per_second: None,
                        })
                    }));
                }
            }
        }
        let outcomes = harness::measure_on(cases, &self.plan, self.bar)?;
        self.bar.skip((unreached * self.plan.rounds) as u64);

        for (number, head) in heads.iter().enumerate() {
            let Head::Lookup { cell: at, way } = head else {
                continue;
            };
            let cell = &cells[*at];
            let table = tables.iter().find(|table| table.at == way.at);
            let Some((table, subject)) = table.and_then(|t| Some((t, t.subject.as_ref()?))) else {
                continue;
            };
            let asked = stream_of(cell).map_or(&[][..], |(_, stream)| stream.step(0));
            let lines: Option<u64> = asked
                .iter()
                .map(|key| subject.lines_touched(*key).map(u64::from))
                .sum();
            let memory_bytes = subject.memory_bytes();
            let mut row = HashRow {
                size_bytes: size_bytes as u64,
                memory_bytes: memory_bytes.map(|bytes| bytes as u64),
                bytes_per_entry: memory_bytes
                    .map(|bytes| bytes as f64 / subject.len().max(1) as f64),
                load_factor,
                load_factor_had: subject
                    .slots()
                    .map(|slots| keys.entries() as f64 / slots.max(1) as f64),
                lines_per_lookup: lines.map(|lines| lines as f64 / asked.len().max(1) as f64),
                ..self.head::<K, V>(&keys, cell, table.contender, way)
            };
            let rivals = Rivals {
                cells: &cells,
                heads: &heads,
                outcomes: &outcomes,
                number,
                at: *at,
                way,
            };
            self.compare(&mut row, &rivals, tables);
            rows.push(((nth, *at, table.at), row));
        }
        Ok(rows)
    }

    fn head<K: Word, V: Word>(
        &self,
        keys: &Keys,
        cell: &Cell,
        contender: &dyn Contender<K, V>,
        way: &Way,
    ) -> HashRow {
        let common = Row {
            bench: "hash".into(),
            case: "lookup".into(),
            engine: contender.engine().to_owned(),
            strategy: way.strategy.clone(),
            keys: keys.entries(),
            key_bytes: K::BYTES as u64,
            value_bytes: V::BYTES as u64,
            batch: cell.batch as u64,
            threads: cell.threads as u64,
            hit_rate: Some(cell.hit_rate),
            pages: Pages::Huge.to_string(),
            isa: way.isa.to_string(),
            rounds: self.plan.rounds as u64,
            ..Row::default()
        };
        HashRow {
            common,
            study: self.study,
            design: contender.design(),
            skew: cell.skew.to_string(),
            updates: cell.updates,
            update_kind: (cell.updates > 0.0).then(|| cell.update_kind.to_string()),
            ..HashRow::default()
        }
    }

    /// Sets a row's rates and ratios.
    fn compare<K: Word, V: Word>(
        &self,
        row: &mut HashRow,
        rivals: &Rivals<'_>,
        tables: &[Shelved<'_, K, V>],
    ) {
        let outcome = &rivals.outcomes[rivals.number];
        let (cell, way) = (&rivals.cells[rivals.at], rivals.way);
        row.common = std::mem::take(&mut row.common).with_rates(
            outcome.per_second(),
            outcome.per_second_min(),
            outcome.per_second_max(),
        );
        row.common.inserts_per_second = outcome.beside_per_second();
        row.common.roofline_share = rivals.lines(cell.threads);
        let same_cell = |other: &Cell| other == cell;
        let of = |name: &str| tables.iter().find(|table| table.contender.design() == name);
        row.common.speedup_vs_single = rivals.ratio(same_cell, |other| {
            (other.at, other.isa, other.strategy.as_str()) == (way.at, way.isa, GET)
        });
        row.speedup_vs_scalar = rivals.ratio(same_cell, |other| {
            (other.at, other.isa, &other.strategy) == (way.at, Isa::Scalar, &way.strategy)
        });
        row.speedup_vs_memc3 = of(MEMC3).and_then(|memc3| {
            let by = |strategy: &str| {
                rivals.ratio(same_cell, |other| {
                    other.at == memc3.at && other.strategy == strategy
                })
            };
            by(&way.strategy).or_else(|| by(FIND_BATCH))
        });
        row.common.speedup_vs_peer = self.peer.as_ref().and_then(|(engine, strategy)| {
            let peer = |other: &Way| {
                let table = tables.iter().find(|table| table.at == other.at);
                table.is_some_and(|table| table.contender.engine() == engine)
                    && other.strategy == *strategy
            };
            rivals.ratio(same_cell, peer)
        });
        let alone = Cell {
            threads: 1,
            ..*cell
        };
        if cell.threads > 1 {
            row.speedup_vs_one_thread = rivals.ratio(|other| *other == alone, |other| other == way);
        }
        if cell.updates > 0.0 {
            let quiet = |other: &Cell| {
                let asked = Cell {
                    updates: 0.0,
                    update_kind: other.update_kind,
                    ..*cell
                };
                *other == asked
            };
            row.share_of_quiet = rivals.ratio(quiet, |other| other == way);
        }
    }
}

/// What a case can be compared with.
struct Rivals<'a> {
    cells: &'a [Cell],
    heads: &'a [Head],
    outcomes: &'a [Outcome],
    /// The case, its cell and its way.
    number: usize,
    at: usize,
    way: &'a Way,
}

impl Rivals<'_> {
    /// How many times as fast as the first case that fits.
    fn ratio(&self, cell: impl Fn(&Cell) -> bool, way: impl Fn(&Way) -> bool) -> Option<f64> {
        let fits = |head: &Head| match head {
            Head::Lookup {
                cell: at,
                way: other,
            } => cell(&self.cells[*at]) && way(other),
            Head::Lines { .. } => false,
        };
        let rival = self.heads.iter().position(fits)?;
        Some(self.outcomes[self.number].ratio_to(&self.outcomes[rival]))
    }

    /// The share of the random lines that were read in the same group.
    fn lines(&self, wanted: usize) -> Option<f64> {
        let outcome = &self.outcomes[self.number];
        let mut pairs = self.heads.iter().zip(self.outcomes);
        let (_, lines) = pairs.find(|(head, lines)| {
            lines.group == outcome.group
                && matches!(head, Head::Lines { threads } if *threads == wanted)
        })?;
        Some(outcome.ratio_to(lines))
    }
}

/// The strategy that stands for every one that a design has.
const ALL: &str = "all";

/// Refuses names of designs and strategies that none of the contenders has.
///
/// # Errors
/// The first unknown name, with those there are.
pub(super) fn check_names<K: Word, V: Word>(
    sweep: &Sweep,
    contenders: &[&dyn Contender<K, V>],
) -> Result<()> {
    let designs: Vec<String> = contenders.iter().map(|one| one.design()).collect();
    let mut strategies = vec![ALL.to_owned()];
    for name in contenders.iter().flat_map(|one| one.strategies()) {
        if !strategies.contains(&name) {
            strategies.push(name);
        }
    }
    let known = [
        ("design", &sweep.designs, designs),
        ("strategy", &sweep.strategies, strategies),
    ];
    for (what, asked, known) in known {
        if let Some(unknown) = asked.iter().find(|name| !known.contains(name)) {
            bail!("no {what} is called {unknown:?}: use {}", known.join(", "));
        }
    }
    Ok(())
}

/// The ways in which a sweep measures a contender. What it has no code or no strategy for is
/// measured by the nearest that it has.
fn ways<K: Word, V: Word>(sweep: &Sweep, at: usize, contender: &dyn Contender<K, V>) -> Vec<Way> {
    let (isas, strategies) = (contender.isas(), contender.strategies());
    let every = sweep.strategies.iter().any(|name| name == ALL);
    let mut chosen: Vec<&String> = strategies
        .iter()
        .filter(|name| every || sweep.strategies.contains(name))
        .collect();
    if chosen.is_empty() {
        let batch = strategies.iter().find(|name| *name == FIND_BATCH);
        chosen.extend(batch.or(strategies.first()));
    }
    let mut sets: Vec<Isa> = sweep
        .isas
        .iter()
        .filter(|isa| isas.contains(isa))
        .copied()
        .collect();
    if sets.is_empty() {
        sets.extend(isas.first());
    }
    let way = |isa: Isa| {
        let way = move |strategy: &&String| Way {
            at,
            isa,
            strategy: (*strategy).clone(),
        };
        chosen.iter().map(way).collect::<Vec<Way>>()
    };
    sets.into_iter().flat_map(way).collect()
}

/// Cells of the same hit rate, skew and batch are measured next to each other: the number of the
/// first such cell.
fn group(cells: &[Cell], at: usize) -> usize {
    let shape = |cell: &Cell| (cell.hit_rate, cell.skew, cell.batch);
    let first = cells
        .iter()
        .position(|cell| shape(cell) == shape(&cells[at]));
    first.unwrap_or(at)
}

/// Where random lines are to be read: after which cell, by how many threads; once a group and number
/// of threads.
fn probes(cells: &[Cell]) -> Vec<(usize, usize)> {
    let mut probes: Vec<(usize, usize)> = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        let known = |&(other, threads): &(usize, usize)| {
            group(cells, other) == group(cells, at) && threads == cell.threads
        };
        if !probes.iter().any(known) {
            probes.push((at, cell.threads));
        }
    }
    probes
}

/// Slots of a table of that size.
fn slots<K: Word, V: Word>(size_bytes: usize) -> usize {
    size_bytes / (K::BYTES + V::BYTES)
}

fn most(load_factors: &[f64]) -> f64 {
    load_factors.iter().copied().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::super::contender::tests::Map;
    use super::super::turn::UpdateKind;
    use super::*;
    use crate::progress::Progress;
    use std::time::Duration;

    fn sweep() -> Sweep {
        Sweep {
            sizes: vec![16 << 10],
            load_factors: vec![0.4, 0.8],
            hit_rates: vec![1.0, 0.5],
            threads: vec![1, 2],
            isas: vec![Isa::Scalar],
            ..Sweep::cell()
        }
    }

    /// The rows of a sweep over three maps, one of which takes half its slots, and the steps that
    /// the bar made.
    fn measure(sweep: &Sweep, memory_bytes: usize) -> Result<Vec<HashRow>> {
        let probe = Probe::new(1 << 20, Pages::Small)?;
        let bar = Progress::hidden().steps("", 0);
        let bench = Bench {
            study: Some(1),
            plan: Plan::new(2, Duration::from_micros(100)),
            cores: Cores::available(),
            probe: &probe,
            in_flight: BTreeMap::new(),
            memory_bytes,
            stream_len: 4096,
            peer: Some(("test".into(), GET.into())),
            bar: &bar,
        };
        let half = Map {
            limit: 0.5,
            ..Map::new("half")
        };
        let maps = [Map::new("one"), Map::new(MEMC3), half];
        let all = maps.each_ref().map(|map| map as &dyn Contender<u64, u64>);
        check_names(sweep, &all)?;
        bar.set_total(bench.steps(sweep, &all));
        let mut rows = Vec::new();
        bench.measure(sweep, &all, &mut |new| {
            rows.extend(new);
            Ok(())
        })?;
        assert_eq!(bar.position(), bench.steps(sweep, &all));
        Ok(rows)
    }

    #[test]
    fn every_cell_has_a_row_a_way_with_its_ratios_and_full_tables_one_without() {
        for memory_bytes in [usize::MAX, 0] {
            let rows = measure(&sweep(), memory_bytes).unwrap();
            let full = rows.iter().filter(|row| !row.is_measured());
            assert_eq!(full.clone().count(), 4);
            for row in full {
                assert_eq!((row.design.as_str(), row.load_factor), ("half", 0.8));
                assert_eq!((row.full_at, row.common.keys_per_second), (Some(0.5), 0.0));
            }
            // Two load factors, four cells, three maps, two strategies; without the full ones.
            assert_eq!(rows.len() - 4, (2 * 3 - 1) * 4 * 2);
            for row in rows.iter().filter(|row| row.is_measured()) {
                let common = &row.common;
                assert!(common.keys_per_second > 0.0 && common.ns_per_key.is_finite());
                assert!(common.roofline_share.is_some_and(|share| share > 0.0));
                assert_eq!(row.lines_per_lookup, Some(1.0));
                assert_eq!(row.speedup_vs_scalar, Some(1.0));
                assert_eq!(row.speedup_vs_one_thread.is_some(), common.threads == 2);
                assert!(row.speedup_vs_memc3.is_some() && common.speedup_vs_single.is_some());
                let bytes = row.bytes_per_entry.unwrap_or(0.0);
                assert!((bytes * row.load_factor - 16.0).abs() < 0.1);
                if row.design == MEMC3 {
                    assert_eq!(row.speedup_vs_memc3, Some(1.0));
                }
                if common.strategy == GET {
                    assert_eq!(common.speedup_vs_single, Some(1.0));
                }
            }
        }
    }

    #[test]
    fn reads_beside_updates_are_compared_with_quiet_ones() {
        let sweep = Sweep {
            load_factors: vec![0.4],
            hit_rates: vec![0.5],
            threads: vec![1],
            updates: vec![0.0, 0.5],
            update_kinds: vec![UpdateKind::Upsert, UpdateKind::Churn],
            strategies: vec![FIND_BATCH.into()],
            ..sweep()
        };
        let rows = measure(&sweep, usize::MAX).unwrap();
        assert_eq!(rows.len(), 3 * 3);
        for row in rows {
            let busy = row.updates > 0.0;
            assert_eq!(row.share_of_quiet.is_some(), busy);
            assert_eq!(row.common.inserts_per_second.is_some(), busy);
            assert_eq!(row.update_kind.is_some(), busy);
        }
    }

    #[test]
    fn names_that_nobody_has_are_refused_with_those_there_are() {
        let refusal = |change: &dyn Fn(&mut Sweep)| {
            let mut sweep = sweep();
            change(&mut sweep);
            format!("{:#}", measure(&sweep, usize::MAX).unwrap_err())
        };
        let design = refusal(&|sweep| sweep.designs = vec!["robin".into()]);
        assert!(
            design.contains("\"robin\"") && design.contains("half"),
            "{design}"
        );
        let strategy = refusal(&|sweep| sweep.strategies = vec!["guess".into()]);
        assert!(
            strategy.contains("\"guess\"") && strategy.contains(FIND_BATCH),
            "{strategy}"
        );
    }
}
