//! Shared code of the GPU benches: the choice of the GPU, the modes besides measuring, and the
//! clock.

use anyhow::{Context, Result};
use forerun_gpu::{Command, Event, Gpu, GpuError, Stream};
use std::io::Write;
use std::time::{Duration, Instant};

/// The options that the GPU benches share, besides [`Output`](crate::output::Output).
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
pub struct OnGpu {
    /// The GPU
    #[arg(long, value_name = "N", default_value = "0")]
    pub device: usize,

    /// Launches once, in the first setting, and exits: for a profiler or compute-sanitizer
    #[arg(long, conflicts_with = "check")]
    pub once: bool,

    /// Compares every kernel's answers with the CPU's, instead of measuring
    #[arg(long)]
    pub check: bool,
}

impl OnGpu {
    /// The GPU; if there is none, reports that and returns `None`.
    pub(crate) fn open(&self, json: bool, out: &mut dyn Write) -> Result<Option<Gpu>> {
        match Gpu::open(self.device) {
            Ok(gpu) => Ok(Some(gpu)),
            Err(error) if error.is_absent() => {
                let fact = format!("No GPU was found: {error}.");
                // With --json, the standard output is only for objects.
                if json {
                    eprintln!("{fact}");
                } else {
                    writeln!(out, "{fact}")?;
                }
                Ok(None)
            }
            Err(error) => Err(error).context("opening the GPU"),
        }
    }
}

/// The entry on the page that describes the GPU, or states that there is none.
pub(crate) fn fact(gpu: Option<&Gpu>) -> (String, String) {
    let text = match gpu {
        Some(gpu) => gpu.info().to_string(),
        None => "none found: all figures are for the CPU".into(),
    };
    ("GPU".into(), text)
}

/// Runs a bench's `--check`, and prints a line for each thing that was checked. Without a GPU it
/// prints `tested`, which names the tests that check the same code.
pub(crate) fn report_check(
    gpu: Option<&Gpu>,
    tested: &str,
    check: impl FnOnce(&Gpu) -> Result<Vec<String>>,
    out: &mut dyn Write,
) -> Result<()> {
    let Some(gpu) = gpu else {
        writeln!(out, "Nothing was checked: this needs a GPU. {tested}")?;
        return Ok(());
    };
    writeln!(out, "{}", gpu.info())?;
    for line in check(gpu)? {
        writeln!(out, "checked: {line}")?;
    }
    Ok(())
}

/// How long a command took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandTimes {
    /// Between two events of its stream, before and after it.
    pub(crate) device: Duration,
    /// By the host's clock, from the call to the end of the wait.
    pub(crate) wall: Duration,
}

/// A separate stream of the highest priority, and two events on it.
pub(crate) struct Timer {
    gpu: Gpu,
    stream: Stream,
    start: Event,
    end: Event,
}

impl Timer {
    pub(crate) fn new(gpu: &Gpu) -> Result<Timer, GpuError> {
        Ok(Timer {
            gpu: gpu.clone(),
            stream: Stream::high_priority(gpu)?,
            start: Event::new(gpu)?,
            end: Event::new(gpu)?,
        })
    }

    /// Runs a command `before` times untimed, then once timed, without a wait in between.
    pub(crate) fn time(
        &self,
        command: &dyn Command,
        before: usize,
    ) -> Result<CommandTimes, GpuError> {
        let start = Instant::now();
        self.gpu.scope(|scope| {
            for _ in 0..before {
                scope.enqueue(&self.stream, command)?;
            }
            self.stream.record(&self.start)?;
            scope.enqueue(&self.stream, command)?;
            self.stream.record(&self.end)
        })?;
        Ok(CommandTimes {
            wall: start.elapsed(),
            device: self.end.elapsed_since(&self.start)?,
        })
    }
}
