//! `forerun-bench gpu-table`: every operation of the hash table in a GPU's memory, by load, bucket
//! form, row size, hit rate, batch and skew.
//!
//! ```text
//!   args.rs                 the command line
//!   setting.rs              the tables and their requests
//!   operation.rs            operations
//!   keys.rs                 keys, rows, calls
//!   fixture.rs              a filled table, and one call to it
//!   selfcheck.rs            --check
//!   pooled_check.rs         its check of pooled lookups
//!   pooled_batch.rs         bags of keys, and their sums
//!   peer.rs                 other tables, measured by their own programs
//!   result_row.rs, show.rs  results
//! ```
//!
//! If no GPU is found, the bench says so, measures the table on the CPU and exits successfully. It
//! then prints no GPU figures.

mod args;
mod fixture;
mod keys;
mod operation;
mod peer;
mod pooled_batch;
mod pooled_check;
mod result_row;
mod selfcheck;
mod setting;
mod show;
mod table_study;

pub use args::Args;
pub use operation::Op;
pub use result_row::GpuTableRow;
pub use table_study::{Buckets, Study};

use crate::gpu_roofline::Ceiling;
use crate::on_gpu::{self, CommandTimes, report_check};
use crate::output::{on_stdout, write_facts};
use anyhow::{Context, Result, ensure};
use fixture::Fixture;
use forerun_gpu::Gpu;
use forerun_gpu::study::RequestBytes;
use forerun_gpu::table::{LookupMode, Traffic};
use forerun_measure::harness::{Case, Outcome, Plan, Sample, measure};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::{Report, Tile};
use forerun_measure::size::count;
use operation::OpVariant;
use setting::{Setting, variants_of};
use std::cell::RefCell;
use std::io::Write;
use std::time::Duration;

const INTRO: &str = "Operations of a hash table in a GPU's memory, many keys per call. Every \
                    variant is compared with the inserted data before it is timed.";

/// Measures and prints to the standard output.
///
/// # Errors
/// An invalid command line, a wrong answer, an error of the device, or a failing peer: everything
/// else is measured and printed before its error.
pub fn run(args: &Args) -> Result<()> {
    on_stdout(|out| run_to(args, &Progress::on_terminal(), out))
}

/// Printed for `--check` if there is no GPU.
const TESTED: &str = "The tests run every kernel on the CPU, and compare it with the table there.";

/// [`run`], printing to `out`.
///
/// # Errors
/// The same as for [`run`].
pub fn run_to(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    args.output.check()?;
    if args.counts {
        return count_requests(args, out);
    }
    let gpu = args.gpu.open(args.output.json, out)?;
    if args.gpu.check {
        return report_check(
            gpu.as_ref(),
            TESTED,
            |gpu| selfcheck::run(gpu, progress),
            out,
        );
    }
    if args.gpu.once {
        return once(gpu.as_ref(), args, out);
    }
    Bench {
        gpu,
        args,
        progress,
        failed_peers: Vec::new(),
        ceiling: None,
        report: Report::new("The hash table in a GPU's memory", INTRO),
    }
    .run(out)
}

/// Runs every variant of the first setting once.
fn once(gpu: Option<&Gpu>, args: &Args, out: &mut dyn Write) -> Result<()> {
    let setting = Setting::seed(args, gpu.is_some());
    setting.check()?;
    let mut fixture = Fixture::new(gpu, &setting)?;
    let mut variants = variants_of(Study::Seed, args, &setting);
    for variant in variants_of(Study::Operations, args, &setting) {
        if !variants.contains(&variant) {
            variants.push(variant);
        }
    }
    variants.sort_by_key(|variant| !variant.op.only_reads());
    for variant in &variants {
        if !variant.op.only_reads() && !fixture.written {
            fixture.before_writers()?;
        }
        fixture.check(*variant).with_context(|| variant.name())?;
    }
    let names: Vec<String> = variants.into_iter().map(OpVariant::name).collect();
    match gpu {
        Some(gpu) => writeln!(
            out,
            "Launched once each on {}: {}",
            gpu.info().name,
            names.join(", ")
        )?,
        None => writeln!(
            out,
            "Done once each on the CPU, without a launch: {}",
            names.join(", ")
        )?,
    }
    Ok(())
}

struct Bench<'a> {
    gpu: Option<Gpu>,
    args: &'a Args,
    progress: &'a Progress,
    /// What went wrong with the peers that failed.
    failed_peers: Vec<String>,
    /// The ceiling of the GPU's memory, measured when first needed.
    ceiling: Option<Ceiling>,
    report: Report,
}

impl Bench<'_> {
    fn run(mut self, out: &mut dyn Write) -> Result<()> {
        let mut facts = machine::facts();
        facts.push(on_gpu::fact(self.gpu.as_ref()));
        if !self.args.output.json {
            write_facts(out, &facts)?;
        }
        self.report.facts = facts;
        let mut fixture = None;
        for study in self.args.studies() {
            self.study(study, &mut fixture, out)?;
        }
        self.args.output.write_report(&self.report)?;
        // All else has been measured and written by now.
        ensure!(
            self.failed_peers.is_empty(),
            "{}",
            self.failed_peers.join("\n")
        );
        Ok(())
    }

    fn study(
        &mut self,
        study: Study,
        fixture: &mut Option<Fixture>,
        out: &mut dyn Write,
    ) -> Result<()> {
        let settings = Setting::of(study, self.args, self.gpu.is_some())?;
        let mut rows = Vec::new();
        let mut notes = Vec::new();
        for setting in &settings {
            let ready = match fixture.take() {
                Some(mut used) if !used.written && setting.shares_table(&used.setting) => {
                    used.turn_to(setting)?;
                    used
                }
                // Free the old table's memory before the new table's is allocated.
                used => {
                    drop(used);
                    Fixture::new(self.gpu.as_ref(), setting).with_context(|| {
                        format!(
                            "a table of {} slots, dim {}",
                            count(setting.slots),
                            setting.dim
                        )
                    })?
                }
            };
            let cell = RefCell::new(ready);
            // With --json, the output is rows only; --counts gives these as rows.
            let is_shown = self.gpu.is_none() && !self.args.output.json;
            if is_shown && matches!(study, Study::Seed | Study::Buckets) {
                let counted = counted(&mut cell.borrow_mut())?;
                notes.extend(counted.iter().map(describe_counts));
            }
            rows.extend(self.measure(&cell)?);
            *fixture = Some(cell.into_inner());
        }
        if study == Study::Seed {
            self.peers(&mut rows, &mut notes);
        }
        self.show(study, &rows, &notes, out)
    }

    /// All variants of one setting: first those that only read the table, then the writers.
    fn measure(&mut self, fixture: &RefCell<Fixture>) -> Result<Vec<GpuTableRow>> {
        let setting = fixture.borrow().setting.clone();
        let variants = variants_of(setting.study, self.args, &setting);
        let variants = self.different(variants);
        let (readers, writers): (Vec<OpVariant>, Vec<OpVariant>) = variants
            .into_iter()
            .partition(|variant| variant.op.only_reads());
        let mut rows = Vec::new();
        for (group, variants) in [readers, writers].into_iter().enumerate() {
            if variants.is_empty() {
                continue;
            }
            if group == 1 {
                fixture.borrow_mut().before_writers()?;
            }
            rows.extend(self.group(fixture, &setting, &variants)?);
        }
        Ok(rows)
    }

    /// The CPU has only one way to find slots, whichever was requested.
    fn different(&self, mut variants: Vec<OpVariant>) -> Vec<OpVariant> {
        if self.gpu.is_none() {
            variants
                .iter_mut()
                .for_each(|variant| variant.lookup = LookupMode::ByLoad);
            let mut seen = Vec::new();
            variants.retain(|variant| {
                let first = !seen.contains(variant);
                seen.push(*variant);
                first
            });
        }
        variants
    }

    fn group(
        &mut self,
        fixture: &RefCell<Fixture>,
        setting: &Setting,
        variants: &[OpVariant],
    ) -> Result<Vec<GpuTableRow>> {
        let mut found = Vec::new();
        for variant in variants {
            found.push(
                fixture
                    .borrow_mut()
                    .check(*variant)
                    .with_context(|| variant.name())?,
            );
        }
        let took: Vec<RefCell<Vec<(u64, CommandTimes)>>> =
            variants.iter().map(|_| RefCell::default()).collect();
        let cases = variants.iter().zip(&took).map(|(&variant, took)| {
            Case::new(0, variant.name(), move |_| {
                let (items, turn) = fixture.borrow_mut().turn(variant)?;
                took.borrow_mut().push((items, turn));
                Ok(Sample::new(items, turn.device))
            })
        });
        let plan = Plan::new(self.args.rounds(), Duration::ZERO);
        let outcomes = measure(cases.collect(), &plan, self.progress)?;
        let of = |lookup: LookupMode| -> Option<&Outcome> {
            let wanted = OpVariant {
                op: Op::FindPtr,
                lookup,
            };
            outcomes.get(variants.iter().position(|variant| *variant == wanted)?)
        };
        let mut model = None;
        let mut rows = Vec::new();
        for (at, (variant, outcome)) in variants.iter().zip(&outcomes).enumerate() {
            let engine = if self.gpu.is_some() { "gpu" } else { "cpu" };
            let items = fixture.borrow().items(variant.op);
            let mut row = GpuTableRow::of(setting, engine, *variant, items)
                .with_outcome(outcome, &took[at].borrow());
            row.device = self.gpu.as_ref().map(|gpu| gpu.info().name.clone());
            row.found = found[at];
            if variant.op == Op::FindPtr {
                row.ratio_to_thread = of(LookupMode::Thread).map(|other| outcome.ratio_to(other));
                row.ratio_to_seed_rule =
                    of(LookupMode::SeedRule).map(|other| outcome.ratio_to(other));
            }
            if variant.op.is_lookup() {
                let traffic = match &self.gpu {
                    None => fixture.borrow_mut().traffic(variant.lookup)?,
                    Some(_) => self.model(&mut model, setting)?.traffic(variant.lookup)?,
                };
                self.weigh(&mut row, setting, *variant, &traffic)?;
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// A smaller table on the CPU, equally full and of the same form: its counts hold for the large
    /// one.
    fn model<'m>(
        &self,
        model: &'m mut Option<Fixture>,
        setting: &Setting,
    ) -> Result<&'m mut Fixture> {
        let small = Setting {
            slots: setting.slots.min(1 << 20),
            batch: setting.batch.min(1 << 16),
            dim: 0,
            ..setting.clone()
        };
        Ok(match model {
            Some(made) => made,
            none => none.insert(Fixture::new(None, &small)?),
        })
    }

    /// The requests of a lookup, and how close it comes to the limit of the device's memory.
    fn weigh(
        &mut self,
        row: &mut GpuTableRow,
        setting: &Setting,
        variant: OpVariant,
        traffic: &Traffic,
    ) -> Result<()> {
        let lookups = traffic.lookups.max(1) as f64;
        let row_bytes = setting.row_bytes();
        let copied = if variant.op.gives_rows() || variant.op.pools() {
            row_bytes
        } else {
            0
        };
        let rows = traffic.row_requests(copied);
        let (requests, bytes) = cost(variant.op, traffic, copied, setting);
        row.requests_per_lookup = Some(requests);
        row.bytes_per_lookup = Some(bytes);
        let Some(gpu) = &self.gpu else { return Ok(()) };
        let slots = setting.slots;
        if self.ceiling.is_none() {
            // The sizes of the arrays that are read: digests, keys, rows. Beyond 8 GiB the rate
            // changes little, and the table needs memory too.
            let arrays = [slots, slots * 8, slots * row_bytes.max(8)].map(|b| b.min(8 << 30));
            self.ceiling = Some(Ceiling::measure(gpu, &arrays, self.progress)?);
        }
        if let Some(ceiling) = &self.ceiling {
            let seconds =
                |request, n: u64, bytes| ceiling.seconds(request, n as f64 / lookups, bytes);
            let digests = &traffic.digests;
            let least = seconds(RequestBytes::B32, digests.b32, slots)
                + seconds(RequestBytes::B64, digests.b64, slots)
                + seconds(RequestBytes::B128, digests.b128, slots)
                + seconds(RequestBytes::B32, traffic.keys, slots * 8)
                + seconds(RequestBytes::B32, rows.b32, slots * row_bytes)
                + seconds(RequestBytes::B64, rows.b64, slots * row_bytes)
                + seconds(RequestBytes::B128, rows.b128, slots * row_bytes);
            row.share_of_ceiling = Some(least * row.keys_per_second);
        }
        Ok(())
    }

    fn peers(&mut self, rows: &mut Vec<GpuTableRow>, notes: &mut Vec<String>) {
        if self.gpu.is_none() {
            let skipped = self.args.peer.iter().map(|program| program.display());
            notes.extend(skipped.map(|peer| format!("not measured: {peer}: it needs a GPU")));
            return;
        }
        let peers = peer::studies(&Setting::seed(self.args, true), self.args);
        rows.extend(peers.rows);
        notes.extend_from_slice(&peers.failures);
        self.failed_peers.extend(peers.failures);
    }

    fn show(
        &mut self,
        study: Study,
        rows: &[GpuTableRow],
        notes: &[String],
        out: &mut dyn Write,
    ) -> Result<()> {
        if self.args.output.json_rows(rows, out)? {
            notes.iter().for_each(|note| eprintln!("{note}"));
        } else {
            writeln!(out, "\nStudy: {}", study.name())?;
            writeln!(out, "{}", show::table(study, rows).to_text())?;
            for note in notes {
                writeln!(out, "{note}")?;
            }
            out.flush()?;
        }
        show::section(&mut self.report, study, rows);
        let ours = |row: &&GpuTableRow| row.engine == "gpu" && row.variant() == "find_ptr";
        let full = rows
            .iter()
            .filter(ours)
            .max_by(|a, b| a.load.total_cmp(&b.load));
        if let (Study::Seed, Some(row)) = (study, full) {
            self.report.tiles.push(Tile::new(
                format!("find_ptr at load {:.2}, by events", row.load),
                format!("{:.2} G keys/s", row.keys_per_second / 1e9),
            ));
        }
        Ok(())
    }
}

/// Random requests and bytes per key, including sequential traffic, for lookups that read rows of
/// this size.
fn cost(op: Op, traffic: &Traffic, row_bytes: u64, setting: &Setting) -> (f64, f64) {
    let lookups = traffic.lookups.max(1) as f64;
    let rows = traffic.row_requests(row_bytes);
    // The key is read and its result written, together with an address or the row.
    let answer = match op {
        Op::FindPtr => 9.0,
        // An offset, a count and a row per bag.
        op if op.pools() => (12.0 + row_bytes as f64) / setting.bag_keys as f64,
        _ => 1.0 + row_bytes as f64 * traffic.found as f64 / lookups,
    };
    let sectors = rows.b32 * 32 + rows.b64 * 64 + rows.b128 * 128;
    let requests = (traffic.requests() + rows.total()) as f64 / lookups;
    (
        requests,
        (traffic.bytes + sectors) as f64 / lookups + 8.0 + answer,
    )
}

/// Counts requests at each load of the published setting.
fn count_requests(args: &Args, out: &mut dyn Write) -> Result<()> {
    for setting in Setting::of(Study::Seed, args, false)? {
        let rows = counted(&mut Fixture::new(None, &setting)?)?;
        if !args.output.json_rows(&rows, out)? {
            for row in &rows {
                writeln!(out, "{}", describe_counts(row))?;
            }
        }
    }
    Ok(())
}

/// The requests that each kernel's `find_ptr` would make to a GPU's memory: rows without rates.
fn counted(fixture: &mut Fixture) -> Result<Vec<GpuTableRow>> {
    let setting = fixture.setting.clone();
    let mut rows = Vec::new();
    for variant in variants_of(Study::Seed, &Args::default(), &setting) {
        if variant.op == Op::FindPtr {
            let traffic = fixture.traffic(variant.lookup)?;
            let (requests, bytes) = cost(variant.op, &traffic, 0, &setting);
            rows.push(GpuTableRow {
                requests_per_lookup: Some(requests),
                bytes_per_lookup: Some(bytes),
                ..GpuTableRow::of(&setting, "counted", variant, traffic.lookups)
            });
        }
    }
    Ok(rows)
}

fn describe_counts(row: &GpuTableRow) -> String {
    format!(
        "counted: {} at load {:.2}, find_ptr by {}: {:.2} requests and {:.1} bytes per key",
        row.buckets,
        row.load,
        row.lookup.as_deref().unwrap_or_default(),
        row.requests_per_lookup.unwrap_or_default(),
        row.bytes_per_lookup.unwrap_or_default()
    )
}
