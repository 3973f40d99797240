//! `forerun-bench gpu-roofline`: reads of 32, 64 and 128 bytes at random places in a GPU's memory.
//! No lookup can exceed this rate.
//!
//! ```text
//!   buffer    ...|##|.......|##|.|##|............|##|...     a request reads a piece of its own size, by number
//!             no address comes from memory, so only memory bounds the rate; sums prove that all was read
//! ```
//!
//! If no GPU is found, one thread of the CPU makes the same reads, and no GPU figures are printed.

use crate::on_gpu::{self, OnGpu, Timer};
use crate::output::{Output, Timing, on_stdout, or, write_facts};
use anyhow::{Context, Result, ensure};
use forerun_core::size::parse_count;
use forerun_gpu::study::{RandomReads, RequestBytes};
use forerun_gpu::{DeviceBuffer, Gpu};
use forerun_measure::harness::{Case, Outcome, Plan, Sample, measure};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::{Chart, Report, Section, Shape};
use forerun_measure::size::{count, digits, short, spread};
use forerun_measure::text_table::TextTable;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::time::Duration;

/// Random reads of 32, 64 and 128 bytes in a GPU's memory: the ceiling for lookups there
#[derive(clap::Args, Clone, Debug, Default)]
#[command(after_help = "\
Examples:
  forerun-bench gpu-roofline                                      1, 8 and 32 GiB of the GPU's \
  memory
  forerun-bench gpu-roofline --buffer 128Mi,1Gi,64Gi --report roofline.html
  forerun-bench gpu-roofline --check                              do the reads return the right \
  data?
  forerun-bench gpu-roofline --once --buffer 1Gi                  one launch of each kernel, for a \
  profiler

If no GPU is found, one thread of the CPU makes the same reads, and no GPU figures are printed. \
For all of the CPU's threads, use `forerun-bench roofline`.")]
pub struct Args {
    /// Buffer sizes [default: 1Gi,8Gi,32Gi; without a GPU 256Mi; with --quick 1Mi]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    pub buffer: Vec<u64>,

    /// Bytes per request, of 32, 64, 128 [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_request)]
    pub request: Vec<RequestBytes>,

    /// Which GPU to use, and what to do there.
    #[command(flatten)]
    pub gpu: OnGpu,

    /// How long a case is timed.
    #[command(flatten)]
    pub timing: Timing,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

fn parse_request(text: &str) -> Result<RequestBytes, String> {
    let all = RequestBytes::ALL.into_iter();
    let found = all.into_iter().find(|r| r.bytes().to_string() == text);
    found.ok_or_else(|| format!("{text:?} is not a request size: write 32, 64 or 128"))
}

/// One result: a line of JSON with these names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuRooflineRow {
    /// `gpu-roofline`.
    pub bench: String,
    /// `gpu`, or `cpu` if no GPU was found.
    pub engine: String,
    /// The GPU's name; null without one.
    pub device: Option<String>,
    /// Bytes of the buffer.
    pub buffer_bytes: u64,
    /// Bytes per request.
    pub request_bytes: u64,
    /// Rounds.
    pub rounds: u64,
    /// Requests per second: the median of the rounds.
    pub requests_per_second: f64,
    /// The slowest round.
    pub requests_per_second_min: f64,
    /// The fastest round.
    pub requests_per_second_max: f64,
    /// Units of 10^9 bytes per second: the median of the rounds.
    pub gb_per_second: f64,
}

/// Measures and prints to the standard output.
///
/// # Errors
/// A buffer that cannot be allocated, a wrong sum, or an error of the device.
pub fn run(args: &Args) -> Result<()> {
    on_stdout(|out| run_to(args, &Progress::on_terminal(), out))
}

/// [`run`], printing to `out`.
///
/// # Errors
/// The same as for [`run`].
pub fn run_to(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    args.output.check()?;
    let gpu = args.gpu.open(args.output.json, out)?;
    let requests = or(&args.request, &RequestBytes::ALL);
    if args.gpu.check || args.gpu.once {
        return check(gpu.as_ref(), args, &requests, out);
    }
    let mut facts = machine::facts();
    facts.push(on_gpu::fact(gpu.as_ref()));
    if !args.output.json {
        write_facts(out, &facts)?;
    }
    let plan = args.plan();
    let mut rows = Vec::new();
    for buffer_bytes in args.buffers(gpu.as_ref()) {
        let outcomes = match &gpu {
            Some(gpu) => OnDevice::new(gpu, buffer_bytes, args.output.quick)?
                .measure(&requests, &plan, progress),
            None => on_cpu(buffer_bytes, &requests, &plan, progress),
        };
        let outcomes = outcomes.with_context(|| format!("{}B of memory", count(buffer_bytes)))?;
        let device = gpu.as_ref().map(|gpu| gpu.info().name.clone());
        for (request, outcome) in requests.iter().zip(&outcomes) {
            rows.push(GpuRooflineRow::of(
                device.clone(),
                buffer_bytes,
                *request,
                outcome,
            ));
        }
    }
    if !args.output.json_rows(&rows, out)? {
        writeln!(out, "\n{}", table(&rows).to_text())?;
        writeln!(out, "Medians of {} rounds.", plan.rounds)?;
    }
    args.output.write_report(&report(facts, &rows))
}

impl Args {
    fn plan(&self) -> Plan {
        Plan {
            rounds: self.output.rounds(7),
            ..self.output.plan(&self.timing)
        }
    }

    fn buffers(&self, gpu: Option<&Gpu>) -> Vec<u64> {
        let default: &[u64] = match gpu {
            _ if self.output.quick => &[1 << 20],
            Some(_) => &[1 << 30, 8 << 30, 32 << 30],
            None => &[256 << 20],
        };
        or(&self.buffer, default)
    }
}

impl GpuRooflineRow {
    fn of(
        device: Option<String>,
        buffer_bytes: u64,
        request: RequestBytes,
        outcome: &Outcome,
    ) -> GpuRooflineRow {
        GpuRooflineRow {
            bench: "gpu-roofline".into(),
            engine: if device.is_some() { "gpu" } else { "cpu" }.into(),
            device,
            buffer_bytes,
            request_bytes: request.bytes(),
            rounds: outcome.samples.len() as u64,
            requests_per_second: outcome.per_second(),
            requests_per_second_min: outcome.per_second_min(),
            requests_per_second_max: outcome.per_second_max(),
            gb_per_second: outcome.per_second() * request.bytes() as f64 / 1e9,
        }
    }
}

/// A filled buffer on a device, and the kernels that read it.
struct OnDevice {
    timer: Timer,
    buffer: DeviceBuffer,
    sum: DeviceBuffer,
    reads: u64,
}

impl OnDevice {
    fn new(gpu: &Gpu, buffer_bytes: u64, quick: bool) -> Result<OnDevice> {
        let len =
            usize::try_from(buffer_bytes).context("a buffer beyond this machine's addresses")?;
        let made = OnDevice {
            timer: Timer::new(gpu)?,
            buffer: DeviceBuffer::new(gpu, len)?,
            sum: DeviceBuffer::from_slice(gpu, &[0; 8])?,
            reads: if quick { 1 << 12 } else { 1 << 25 },
        };
        made.timer.time(&RandomReads::fill(&made.buffer)?, 0)?;
        Ok(made)
    }

    /// Launches once, and returns the time.
    fn read(&self, request: RequestBytes, reads: u64, seed: u64) -> Result<Duration> {
        let command = RandomReads::new(&self.buffer, &self.sum, request, reads, seed)?;
        Ok(self.timer.time(&command, 0)?.device)
    }

    /// Launches once with few reads, and compares the sum.
    fn check(&self, request: RequestBytes, reads: u64) -> Result<()> {
        self.sum.write(0, &[0; 8])?;
        self.read(request, reads, 3)?;
        let mut sum = [0; 8];
        self.sum.read(0, &mut sum)?;
        let expected = RandomReads::expected(self.buffer.len() as u64, request, reads, 3);
        ensure!(
            u64::from_ne_bytes(sum) == expected,
            "reads of {} bytes: the sum of the data read is wrong",
            request.bytes()
        );
        Ok(())
    }

    fn measure(
        &self,
        requests: &[RequestBytes],
        plan: &Plan,
        progress: &Progress,
    ) -> Result<Vec<Outcome>> {
        for request in requests {
            self.check(*request, 10_000)?;
        }
        let cases = requests.iter().map(|&request| {
            Case::new(0, format!("{} bytes", request.bytes()), move |turn| {
                let seed = turn.seed << 20;
                Ok(Sample::new(
                    self.reads,
                    self.read(request, self.reads, seed)?,
                ))
            })
        });
        measure(cases.collect(), plan, progress)
    }
}

/// The same reads on one thread of the CPU.
fn on_cpu(
    buffer_bytes: u64,
    requests: &[RequestBytes],
    plan: &Plan,
    progress: &Progress,
) -> Result<Vec<Outcome>> {
    const STEP: u64 = 1 << 12;
    ensure!(
        buffer_bytes >= 128,
        "a buffer of {buffer_bytes} bytes is too small for a request of 128"
    );
    let len =
        usize::try_from(buffer_bytes / 8).context("a buffer beyond this machine's addresses")?;
    let mut words = Vec::new();
    words
        .try_reserve_exact(len)
        .context("not enough memory for the buffer")?;
    words.extend(RandomReads::words().take(len));
    for request in requests {
        let expected = RandomReads::expected(buffer_bytes, *request, STEP, 3);
        ensure!(
            RandomReads::on_cpu(&words, *request, STEP, 3) == expected,
            "the sum differs"
        );
    }
    let cases = requests.iter().map(|&request| {
        let words = &words;
        Case::new(0, format!("{} bytes", request.bytes()), move |turn| {
            let mut seed = turn.seed << 20;
            Sample::repeat(turn, || {
                std::hint::black_box(RandomReads::on_cpu(words, request, STEP, seed));
                seed += STEP;
                Ok(STEP)
            })
        })
    });
    measure(cases.collect(), plan, progress)
}

/// Launches each kernel once and compares its sum: for `--check`, and with `--once` for a profiler.
fn check(
    gpu: Option<&Gpu>,
    args: &Args,
    requests: &[RequestBytes],
    out: &mut dyn Write,
) -> Result<()> {
    let Some(gpu) = gpu else {
        writeln!(
            out,
            "Nothing was launched: this needs a GPU. The tests run the kernels on the CPU."
        )?;
        return Ok(());
    };
    writeln!(out, "{}", gpu.info())?;
    for buffer_bytes in args.buffers(Some(gpu)) {
        let device = OnDevice::new(gpu, buffer_bytes, args.output.quick)?;
        for request in requests {
            let reads = 1 << 20;
            device.check(*request, reads)?;
            writeln!(
                out,
                "checked: the sum of {reads} reads of {} bytes in {}B",
                request.bytes(),
                count(buffer_bytes)
            )?;
        }
    }
    Ok(())
}

/// The rates of a device, which other benches compare with.
pub(crate) struct Ceiling {
    rates: Vec<(u64, RequestBytes, f64)>,
}

impl Ceiling {
    /// Measures reads of all sizes in buffers of these lengths.
    pub(crate) fn measure(gpu: &Gpu, buffers: &[u64], progress: &Progress) -> Result<Ceiling> {
        let mut rates = Vec::new();
        for &bytes in buffers {
            let bytes = bytes.max(1 << 20);
            let device = OnDevice::new(gpu, bytes, false)?;
            let outcomes =
                device.measure(&RequestBytes::ALL, &Plan::new(5, Duration::ZERO), progress)?;
            let of = RequestBytes::ALL.iter().zip(&outcomes);
            rates.extend(of.map(|(request, outcome)| (bytes, *request, outcome.per_second())));
        }
        Ok(Ceiling { rates })
    }

    /// The minimum time in seconds for this many requests to an array of about this length, from
    /// the buffer whose length is nearest by ratio.
    pub(crate) fn seconds(&self, request: RequestBytes, requests: f64, array_bytes: u64) -> f64 {
        let near = self.rates.iter().filter(|(_, of, _)| *of == request);
        let apart = |bytes: u64| (bytes.max(1) as f64 / array_bytes.max(1) as f64).ln().abs();
        let near = near.min_by(|a, b| apart(a.0).total_cmp(&apart(b.0)));
        near.map_or(f64::NAN, |(.., rate)| requests / rate)
    }
}

fn table(rows: &[GpuRooflineRow]) -> TextTable {
    let mut table = TextTable::new(["buffer", "request", "requests/s", "GB/s", "slowest-fastest"]);
    for row in rows {
        table.push([
            format!("{}B", count(row.buffer_bytes)),
            row.request_bytes.to_string(),
            short(row.requests_per_second),
            digits(row.gb_per_second),
            spread(row.requests_per_second_min, row.requests_per_second_max),
        ]);
    }
    table
}

fn report(facts: Vec<(String, String)>, rows: &[GpuRooflineRow]) -> Report {
    let mut report = Report::new(
        "Random reads",
        "How many requests of 32, 64 and 128 bytes at random places memory answers per second.",
    );
    report.facts = facts;
    let mut chart = Chart::new("Requests per second", Shape::Bars);
    chart.x_label = "buffer".into();
    let name = |row: &GpuRooflineRow| format!("{}B", count(row.buffer_bytes));
    for row in rows {
        if !chart.x.contains(&name(row)) {
            chart.x.push(name(row));
        }
    }
    for request in RequestBytes::ALL {
        let of: Vec<_> = rows
            .iter()
            .filter(|row| row.request_bytes == request.bytes())
            .collect();
        if of.is_empty() {
            continue;
        }
        let values = chart.x.clone().into_iter().map(|at| {
            let row = of.iter().find(|row| name(row) == at)?;
            Some((
                row.requests_per_second,
                row.requests_per_second_min,
                row.requests_per_second_max,
            ))
        });
        chart.push(format!("{} bytes", request.bytes()), values);
    }
    report.sections.push(Section::Chart(chart));
    report.sections.push(Section::Table {
        caption: "Medians of the rounds".into(),
        table: table(rows),
    });
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_uses_the_nearest_array() {
        let ceiling = Ceiling {
            rates: vec![
                (1 << 20, RequestBytes::B32, 100.0),
                (1 << 30, RequestBytes::B32, 10.0),
                (1 << 30, RequestBytes::B128, 5.0),
            ],
        };
        assert_eq!(ceiling.seconds(RequestBytes::B32, 20.0, 1 << 21), 0.2);
        assert_eq!(ceiling.seconds(RequestBytes::B32, 20.0, 1 << 29), 2.0);
        assert!(ceiling.seconds(RequestBytes::B64, 1.0, 1 << 20).is_nan());
    }

    #[test]
    fn sizes_of_requests_are_the_three() {
        assert_eq!(parse_request("64"), Ok(RequestBytes::B64));
        assert!(parse_request("16").unwrap_err().contains("32, 64 or 128"));
    }
}
