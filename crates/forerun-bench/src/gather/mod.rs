//! `forerun-bench gather`: scattered rows between pinned host memory and a GPU, compared with
//! contiguous copies and other alternatives.
//!
//! ```text
//!   args.rs                 the command line
//!   setting.rs              what is copied, and its check byte by byte
//!   gpu.rs                  the alternatives on a GPU
//!   concurrent_product.rs   a matrix product during the copy
//!   cpu.rs                  the CPU's copy
//!   link.rs                 the rate that the link allows
//!   pytorch.rs              PyTorch's copy, by pytorch.py
//!   selfcheck/              --check
//!   result_row.rs, show.rs  results
//! ```
//!
//! If no GPU is found, the bench says so, measures the CPU's copy and exits successfully. It then
//! prints no GPU figures.

mod args;
mod concurrent_product;
mod cpu;
mod gather_study;
mod gpu;
mod link;
mod pytorch;
mod result_row;
mod selfcheck;
mod setting;
mod show;

pub use args::Args;
pub use gather_study::{IndexOrder, MultiprocessorLimit, Study};
pub use result_row::GatherRow;

use crate::on_gpu::{self, report_check};
use crate::output::{on_stdout, write_facts};
use anyhow::Result;
use forerun_gpu::Gpu;
use forerun_gpu::gather::Direction;
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::{Report, Tile};
use pytorch::Pytorch;
use setting::Setting;
use std::io::Write;

const INTRO: &str = "Rows scattered over pinned host memory, copied to a GPU and back, compared \
                    with one contiguous copy of the same number of bytes. Every method is checked \
                    byte by byte before it is timed.";

/// Measures and prints to the standard output.
///
/// # Errors
/// An invalid command line, a wrong copy, or an error of the device.
pub fn run(args: &Args) -> Result<()> {
    on_stdout(|out| run_to(args, &Progress::on_terminal(), out))
}

/// Printed for `--check` if there is no GPU.
const TESTED: &str = "The tests check the CPU's copy, and the kernels on the CPU.";

/// [`run`], printing to `out`.
///
/// # Errors
/// The same as for [`run`].
pub fn run_to(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    args.output.check()?;
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
        report: Report::new("Row gather", INTRO),
    }
    .run(out)
}

fn once(gpu: Option<&Gpu>, args: &Args, out: &mut dyn Write) -> Result<()> {
    let mut setting = Setting::seed(args);
    if let Some(direction) = args.direction {
        setting.direction = direction;
    }
    if setting.direction == Direction::Scatter {
        setting.order = IndexOrder::Unique;
    }
    setting.check()?;
    match gpu {
        Some(gpu) => writeln!(out, "Launched once: {}", gpu::once(gpu, &setting, args)?)?,
        None => {
            let elapsed = cpu::once(&setting)?;
            writeln!(
                out,
                "Copied once on the CPU, in {:.3} ms; there was no launch.",
                elapsed.as_secs_f64() * 1e3
            )?;
        }
    }
    Ok(())
}

struct Bench<'a> {
    gpu: Option<Gpu>,
    args: &'a Args,
    progress: &'a Progress,
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
        for study in self.args.studies() {
            self.study(study, out)?;
        }
        self.args.output.write_report(&self.report)
    }

    fn study(&mut self, study: Study, out: &mut dyn Write) -> Result<()> {
        let settings = Setting::of(study, self.args)?;
        let mut rows = Vec::new();
        let mut notes = Vec::new();
        match &self.gpu {
            Some(gpu) if study == Study::MatrixProduct => {
                rows = concurrent_product::study(gpu, &settings, self.args, self.progress)?;
            }
            Some(gpu) => {
                for setting in &settings {
                    let measured = gpu::study(gpu, setting, self.args, self.progress)?;
                    rows.extend(measured.rows);
                    for note in measured.lacking {
                        if !notes.contains(&note) {
                            notes.push(note);
                        }
                    }
                }
            }
            None if study.is_of_the_gpu() => {
                notes.push("it needs a GPU".to_owned());
            }
            None => {
                for setting in &settings {
                    rows.extend(cpu::study(setting, self.args, self.progress)?);
                }
            }
        }
        // PyTorch is compared in the study of both directions.
        if study == Study::Direction && !self.args.no_pytorch {
            match (&self.gpu, settings.first()) {
                (Some(_), Some(setting)) => match pytorch::study(setting, self.args)? {
                    Pytorch::Measured(more) => rows.extend(more),
                    Pytorch::Absent(reason) => notes.push(format!("PyTorch: {reason}")),
                },
                _ => notes.push("PyTorch's method needs a GPU".to_owned()),
            }
        }
        self.show(study, &settings, &rows, &notes, out)
    }

    fn show(
        &mut self,
        study: Study,
        settings: &[Setting],
        rows: &[GatherRow],
        notes: &[String],
        out: &mut dyn Write,
    ) -> Result<()> {
        if self.args.output.json {
            for row in rows {
                writeln!(out, "{}", serde_json::to_string(row)?)?;
            }
        } else {
            writeln!(out, "\nStudy: {}", study.name())?;
            if let (Study::Seed, Some(setting)) = (study, settings.first()) {
                for row in rows {
                    show::seed(out, setting, row)?;
                }
            }
            if !rows.is_empty() {
                writeln!(out, "{}", show::table(study, rows).to_text())?;
            }
            for row in rows.iter().filter(|row| row.method == "default") {
                if let Some(why) = &row.why {
                    writeln!(out, "default: {why}")?;
                    break;
                }
            }
            if rows.iter().any(|row| row.share_of_limit.is_some()) {
                let pcie = self.gpu.as_ref().and_then(|gpu| gpu.info().pcie.as_ref());
                let payload = pcie.and_then(|link| link.payload_bytes);
                writeln!(out, "{}", link::describe(payload))?;
            }
            for note in notes {
                writeln!(out, "not measured: {note}")?;
            }
        }
        out.flush()?;
        if !rows.is_empty() {
            show::section(&mut self.report, study, rows);
        }
        let best = rows.iter().find(|row| row.method == "default");
        if let (Study::Seed, Some(row)) = (study, best) {
            self.report.tiles.push(Tile::new(
                "the default in the published setting",
                format!("{:.2} GiB/s", row.gib_per_second),
            ));
        }
        Ok(())
    }
}
