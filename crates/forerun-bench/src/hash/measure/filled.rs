//! Measures the cases of tables with one size and one load factor, and creates their rows.

use super::super::contender::Contender;
use super::super::keys::{Keys, Skew, Stream, Word};
use super::super::result_row::HashRow;
use super::super::run_turn::{self, TurnSpec};
use super::super::sweep::{Cell, Sweep};
use super::super::table_group::{self, GroupTable};
use super::case::{CaseKind, Variant, group, probes, variants};
use super::compare::Rivals;
use super::{Bench, PlacedRow, load_factor_max, slots};
use anyhow::{Context, Result};
use forerun_core::Pages;
use forerun_measure::harness::{self, Case, Sample};
use forerun_measure::result_row::Row;

impl Bench<'_> {
    /// Measures the cells of one size and load factor on some tables.
    pub(super) fn load_factor<K: Word, V: Word>(
        &self,
        sweep: &Sweep,
        size_bytes: usize,
        nth: usize,
        tables: &mut [GroupTable<'_, K, V>],
    ) -> Result<Vec<PlacedRow>> {
        let load_factor = sweep.load_factors[nth];
        let slots = slots::<K, V>(size_bytes);
        let keys = Keys::new::<K>((slots as f64 * load_factor) as u64, 1)?;
        let cells = sweep.cells();
        self.bar
            .set_status(&format!("filling tables to {load_factor}"));
        table_group::fill(
            tables,
            &keys,
            slots,
            load_factor_max(&sweep.load_factors),
            &self.cores,
        )?;
        let tables = &*tables;

        // Answers go to a step's arrays, which must not evict a table from the cache.
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

        let mut headings = Vec::new();
        let mut cases = Vec::new();
        let mut rows = Vec::new();
        let mut unreached = 0;
        for (at, cell) in cells.iter().enumerate() {
            let group = group(&cells, at);
            let (_, stream) = stream_of(cell).context("every cell has its stream")?;
            for table in tables {
                let variants = variants(sweep, table.at, table.contender);
                let Some(subject) = &table.subject else {
                    unreached += variants.len();
                    let head = self.head::<K, V>(&keys, cell, table.contender, &variants[0]);
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
                for variant in variants {
                    run_turn::verify(
                        &**subject,
                        &keys,
                        &variant.strategy,
                        variant.isa,
                        cell.batch,
                    )
                    .with_context(|| table.contender.design())?;
                    let name = format!(
                        "{} {} {}",
                        table.contender.design(),
                        variant.isa,
                        variant.strategy
                    );
                    headings.push(CaseKind::Lookup {
                        cell: at,
                        variant: variant.clone(),
                    });
                    let (keys, cell) = (&keys, *cell);
                    cases.push(Case::new(group, name, move |turn| {
                        let spec = TurnSpec {
                            strategy: &variant.strategy,
                            isa: variant.isa,
                            batch: cell.batch,
                            threads: cell.threads,
                            updates: cell.updates,
                            update_kind: cell.update_kind,
                            rounds: self.plan.rounds,
                        };
                        let parts = (keys, stream, &table.churn);
                        run_turn::run(&**subject, parts, &spec, &self.cores, turn)
                    }));
                }
            }
            for (last, threads) in probes(&cells) {
                if last == at {
                    headings.push(CaseKind::Lines { threads });
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

        for (number, head) in headings.iter().enumerate() {
            let CaseKind::Lookup { cell: at, variant } = head else {
                continue;
            };
            let cell = &cells[*at];
            let table = tables.iter().find(|table| table.at == variant.at);
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
                ..self.head::<K, V>(&keys, cell, table.contender, variant)
            };
            let rivals = Rivals {
                cells: &cells,
                headings: &headings,
                outcomes: &outcomes,
                number,
                at: *at,
                variant,
            };
            self.compare(&mut row, &rivals, tables);
            rows.push(((nth, *at, table.at), row));
        }
        Ok(rows)
    }

    /// A row without results.
    pub(super) fn head<K: Word, V: Word>(
        &self,
        keys: &Keys,
        cell: &Cell,
        contender: &dyn Contender<K, V>,
        variant: &Variant,
    ) -> HashRow {
        let common = Row {
            bench: "hash".into(),
            case: "lookup".into(),
            engine: contender.engine().to_owned(),
            strategy: variant.strategy.clone(),
            keys: keys.entries(),
            key_bytes: K::BYTES as u64,
            value_bytes: V::BYTES as u64,
            batch: cell.batch as u64,
            threads: cell.threads as u64,
            hit_rate: Some(cell.hit_rate),
            pages: Pages::Huge.to_string(),
            isa: variant.isa.to_string(),
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
}
