//! Measures the batch on the CPU, if there is no GPU.

use super::args::Args;
use super::result_row::GatherRow;
use super::setting::{POISON, Setting, fill, verify};
use anyhow::{Context, Result};
use forerun_gpu::gather::cpu::{self, CopyOptions, CpuOptions, Indices, Pairs};
use forerun_gpu::gather::{CopySpec, Direction};
use forerun_measure::harness::{Case, Plan, Sample, measure};
use forerun_measure::progress::Progress;
use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// A method of copying a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyMethod {
    /// The same number of bytes in one piece.
    Contiguous,
    /// Row by row.
    Rows(CpuOptions),
}

impl CopyMethod {
    fn name(self) -> String {
        match self {
            CopyMethod::Contiguous => "contiguous".into(),
            CopyMethod::Rows(CpuOptions {
                prefetch_distance,
                threads,
                ..
            }) => {
                let fetch = match prefetch_distance {
                    Some(0) => "memcpy".to_owned(),
                    Some(n) => format!("ahead-{n}"),
                    None => "prefetched".to_owned(),
                };
                match threads.get() {
                    1 => fetch,
                    n => format!("{fetch}-{n}-threads"),
                }
            }
        }
    }

    fn all(args: &Args) -> Vec<CopyMethod> {
        let mut methods = vec![CopyMethod::Contiguous];
        for threads in [1, args.threads()]
            .into_iter()
            .filter_map(NonZeroUsize::new)
        {
            for prefetch_distance in args.ahead() {
                let method = CopyMethod::Rows(
                    CpuOptions::default()
                        .prefetch_distance(prefetch_distance)
                        .threads(threads),
                );
                if !methods.contains(&method) {
                    methods.push(method);
                }
            }
        }
        methods
    }
}

/// Both sides of a setting, in ordinary memory.
struct Fixture {
    spec: CopySpec,
    direction: Direction,
    pairs: Vec<i32>,
    source: Vec<u8>,
    destination: Vec<u8>,
    bytes: usize,
}

impl Fixture {
    fn new(setting: &Setting) -> Fixture {
        let (host, device) = (setting.host_bytes(), setting.device_bytes());
        let (source, destination) = match setting.direction {
            Direction::Gather => (host, device),
            Direction::Scatter => (device, host),
        };
        let mut source = vec![0; source];
        fill(&mut source);
        Fixture {
            spec: setting.spec(),
            direction: setting.direction,
            pairs: setting.pair_list(),
            source,
            destination: vec![POISON; destination],
            bytes: setting.bytes() as usize,
        }
    }

    fn copy(&mut self, method: CopyMethod) -> Result<Duration> {
        let pairs = Pairs::interleaved(Indices::I32(&self.pairs))?;
        let start = Instant::now();
        match method {
            CopyMethod::Contiguous => {
                let source = &self.source[..self.bytes];
                self.destination[..self.bytes].copy_from_slice(source);
            }
            CopyMethod::Rows(how) => {
                let options = CopyOptions::default().cpu(how);
                let run = match self.direction {
                    Direction::Gather => cpu::gather,
                    Direction::Scatter => cpu::scatter,
                };
                run(
                    &self.source,
                    &mut self.destination,
                    &self.spec,
                    &pairs,
                    options,
                )?;
            }
        }
        Ok(start.elapsed())
    }
}

/// Measures a setting with all methods.
pub(super) fn study(setting: &Setting, args: &Args, progress: &Progress) -> Result<Vec<GatherRow>> {
    let fixture = RefCell::new(Fixture::new(setting));
    let methods = CopyMethod::all(args);
    let mut checked = Vec::new();
    for method in &methods {
        let mut fixture = fixture.borrow_mut();
        let mut bytes = 0;
        if *method != CopyMethod::Contiguous {
            fixture.destination.fill(POISON);
            fixture.copy(*method)?;
            bytes = verify(
                setting,
                &fixture.pairs,
                &fixture.source,
                &fixture.destination,
            )
            .with_context(|| method.name())?;
        }
        checked.push(bytes);
    }
    let cases = methods.iter().map(|&method| {
        let fixture = &fixture;
        Case::new(0, method.name(), move |_| {
            let mut fixture = fixture.borrow_mut();
            let elapsed = fixture.copy(method)?;
            Ok(Sample::new(fixture.bytes as u64, elapsed))
        })
    });
    let plan = Plan::new(args.rounds(), Duration::ZERO);
    let outcomes = measure(cases.collect(), &plan, progress)?;
    let rows = methods.iter().zip(&outcomes).zip(checked);
    Ok(rows
        .map(|((method, outcome), bytes_checked)| GatherRow {
            bytes_checked,
            share_of_contiguous: Some(outcome.ratio_to(&outcomes[0])),
            ..GatherRow::of(setting, "cpu", &method.name()).with_outcome(outcome)
        })
        .collect())
}

/// Copies the batch once.
pub(super) fn once(setting: &Setting) -> Result<Duration> {
    Fixture::new(setting).copy(CopyMethod::Rows(CpuOptions::default()))
}
