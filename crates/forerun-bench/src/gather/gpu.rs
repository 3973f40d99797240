//! Measures the batch on a GPU: the kernels, and the alternatives that they are compared with, in
//! the same rounds.
//!
//! | method         | what is timed |
//! |----------------|---------------|
//! | a version, `default` | the launch, by events on its stream, after one untimed launch |
//! | `contiguous`   | one `cuMemcpyHtoDAsync` (or `DtoH`) of the same number of bytes, likewise |
//! | `batch`        | `cuMemcpyBatchAsync`, one piece per row, by events; the stream is idle before, so the time of the call itself counts |
//! | `cpu-then-copy` | rows gathered by the CPU's threads into pinned memory, then one copy (or the reverse), by the clock |

use super::args::Args;
use super::gather_study::{IndexOrder, Study};
use super::link::limit_of_contiguous;
use super::result_row::GatherRow;
use super::setting::{POISON, Setting, fill, verify};
use crate::on_gpu::Timer;
use crate::roofline::PagesArg;
use anyhow::{Context, Result};
use forerun_gpu::gather::cpu::{self, CpuOptions, Indices, Pairs};
use forerun_gpu::gather::{
    CopySpec, DeviceCopyOptions, DevicePairs, Direction, GatherError, IndexType, KernelChoice,
    KernelVersion, RowCopy, copy_within_device, gather, scatter,
};
use forerun_gpu::{
    BatchTransfer, DeviceBuffer, Gpu, GpuError, Piece, PinnedBuffer, Stream, Transfer,
};
use forerun_measure::harness::{Case, Outcome, Plan, Sample, measure};
use forerun_measure::progress::Progress;
use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// A method of copying a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyMethod {
    /// The kernel that is chosen by default.
    Default,
    /// A version by name.
    Version(KernelVersion),
    /// One copy of the same number of bytes.
    Contiguous,
    /// The driver's batch of copies.
    Batch,
    /// Gathered by the CPU, then copied.
    CpuThenCopy,
}

impl CopyMethod {
    pub(super) fn name(self) -> String {
        match self {
            CopyMethod::Default => "default".into(),
            CopyMethod::Version(version) => version.to_string(),
            CopyMethod::Contiguous => "contiguous".into(),
            CopyMethod::Batch => "batch".into(),
            CopyMethod::CpuThenCopy => "cpu-then-copy".into(),
        }
    }

    /// The methods of a study; the contiguous copy comes first.
    pub(super) fn of(study: Study, args: &Args) -> Vec<CopyMethod> {
        use KernelVersion::{V3, V4, V5R1, V5R2, V6};
        let versions: &[KernelVersion] = match study {
            Study::Seed => &KernelVersion::ALL,
            Study::Indices => &[V3, V4, V5R1, V6],
            Study::RowBytes => &[V3, V4, V5R1, V5R2, V6],
            Study::Direction => &[V3, V4, V5R1, V5R2, V6],
            Study::Offset => &[V3, V5R1],
            Study::Multiprocessors => &[V4, V5R1, V5R2, V6],
            Study::MatrixProduct => &[],
        };
        let versions = if args.version.is_empty() {
            versions
        } else {
            &args.version
        };
        let mut methods = vec![CopyMethod::Contiguous, CopyMethod::Default];
        methods.extend(versions.iter().map(|&version| CopyMethod::Version(version)));
        if matches!(study, Study::Seed | Study::Direction) {
            methods.extend([CopyMethod::Batch, CopyMethod::CpuThenCopy]);
        }
        methods
    }
}

/// Both sides of a setting, and the objects that copy between them.
pub(super) struct Fixture {
    stream: Stream,
    gpu: Gpu,
    setting: Setting,
    spec: CopySpec,
    pub(super) host: PinnedBuffer,
    pub(super) device: DeviceBuffer,
    pair_list: Vec<i32>,
    pairs: DeviceBuffer,
    /// The buffer that the host's rows pass through in `cpu-then-copy`.
    staging: Option<PinnedBuffer>,
    threads: NonZeroUsize,
}

impl Fixture {
    pub(super) fn new(gpu: &Gpu, setting: &Setting, args: &Args) -> Result<Fixture> {
        let pair_list = setting.pair_list();
        let bytes: Vec<u8> = pair_list.iter().flat_map(|i| i.to_ne_bytes()).collect();
        let mut fixture = Fixture {
            stream: Stream::high_priority(gpu)?,
            gpu: gpu.clone(),
            setting: setting.clone(),
            spec: setting.spec(),
            host: PinnedBuffer::with_pages(
                gpu,
                setting.host_bytes(),
                args.pages.unwrap_or(PagesArg::Small).into(),
            )?,
            device: DeviceBuffer::new(gpu, setting.device_bytes())?,
            pairs: DeviceBuffer::from_slice(gpu, &bytes)?,
            pair_list,
            staging: None,
            threads: NonZeroUsize::new(args.threads()).unwrap_or(NonZeroUsize::MIN),
        };
        fixture.spec.kernel = KernelChoice::default().unit(args.unit);
        fill(fixture.host.as_mut_slice());
        if setting.direction == Direction::Scatter {
            fixture
                .device
                .write(0, &fixture.host.as_slice()[setting.offset..])?;
        }
        Ok(fixture)
    }

    /// The copy that a method requests from the kernel.
    fn spec_of(&self, method: CopyMethod) -> CopySpec {
        let mut spec = self.spec.clone();
        if let CopyMethod::Version(version) = method {
            spec.kernel = spec.kernel.version(version);
            // The published record limits its fifth version to 16 multiprocessors.
            if self.setting.study == Study::Seed && version == KernelVersion::V4 {
                spec.kernel.multiprocessors = Some(16);
            }
            if !version.can_be_capped() {
                return spec;
            }
        }
        if let Some(cap) = self.setting.cap {
            spec.kernel.multiprocessors = Some(cap.number());
        }
        spec
    }

    /// The copy of a method that runs a kernel.
    pub(super) fn row_copy(&mut self, method: CopyMethod) -> Result<RowCopy<'_>, GpuError> {
        let spec = self.spec_of(method);
        let shape = [self.setting.pairs() as u64, 2];
        let pairs = DevicePairs::interleaved(&self.pairs, 0, IndexType::I32, &shape)?;
        let options = DeviceCopyOptions::default();
        match self.setting.direction {
            Direction::Gather => gather(&self.host, &self.device, &spec, &pairs, &options),
            Direction::Scatter => scatter(&self.device, &mut self.host, &spec, &pairs, &options),
        }
    }

    fn pieces(&self) -> Vec<Piece> {
        let row_bytes = self.setting.row_bytes as u64;
        let piece = |pair: &[i32]| {
            let (host, device) = match self.setting.direction {
                Direction::Gather => (pair[0], pair[1]),
                Direction::Scatter => (pair[1], pair[0]),
            };
            Piece {
                host_offset: self.setting.offset as u64 + host as u64 * row_bytes,
                device_offset: device as u64 * row_bytes,
                len: row_bytes,
            }
        };
        self.pair_list.chunks_exact(2).map(piece).collect()
    }

    /// Copies the batch once, and returns the time.
    pub(super) fn copy(&mut self, method: CopyMethod) -> Result<Duration> {
        let direction = self.setting.direction;
        let whole = Piece {
            host_offset: 0,
            device_offset: 0,
            len: self.setting.bytes(),
        };
        let gpu = self.gpu.clone();
        match method {
            CopyMethod::Default | CopyMethod::Version(_) => {
                let copy = self.row_copy(method)?;
                Ok(Timer::new(&gpu)?.time(&copy, 1)?.device)
            }
            CopyMethod::Contiguous => {
                let copy = match direction {
                    Direction::Gather => Transfer::to_device(&self.host, &self.device, whole)?,
                    Direction::Scatter => Transfer::to_host(&self.device, &mut self.host, whole)?,
                };
                Ok(Timer::new(&gpu)?.time(&copy, 1)?.device)
            }
            CopyMethod::Batch => {
                let pieces = self.pieces();
                let copy = match direction {
                    Direction::Gather => {
                        BatchTransfer::to_device(&self.host, &self.device, &pieces)?
                    }
                    Direction::Scatter => {
                        BatchTransfer::to_host(&self.device, &mut self.host, &pieces)?
                    }
                };
                Ok(Timer::new(&gpu)?.time(&copy, 0)?.device)
            }
            CopyMethod::CpuThenCopy => self.cpu_then_copy(whole),
        }
    }

    /// Gathers on the CPU into pinned memory and copies that, or the reverse.
    fn cpu_then_copy(&mut self, whole: Piece) -> Result<Duration> {
        let rows = self.setting.pairs() as u64;
        let staged = match self.staging.take() {
            Some(staging) => staging,
            None => PinnedBuffer::new(&self.gpu, whole.len as usize)?,
        };
        let staging = self.staging.insert(staged);
        let mut spec = self.spec.clone();
        // The staging memory takes the device's place: it holds the batch's rows in order.
        spec.device.rows = rows;
        let pairs = Pairs::interleaved(Indices::I32(&self.pair_list))?;
        let threads = CpuOptions::default().threads(self.threads);
        let options = || cpu::CopyOptions::default().cpu(threads);
        let start = Instant::now();
        match self.setting.direction {
            Direction::Gather => {
                let (host, staged) = (self.host.as_slice(), staging.as_mut_slice());
                cpu::gather(host, staged, &spec, &pairs, options())?;
                let copy = Transfer::to_device(staging, &self.device, whole)?;
                self.gpu.scope(|scope| scope.enqueue(&self.stream, &copy))?;
            }
            Direction::Scatter => {
                let copy = Transfer::to_host(&self.device, staging, whole)?;
                self.gpu.scope(|scope| scope.enqueue(&self.stream, &copy))?;
                drop(copy);
                let (staged, host) = (staging.as_slice(), self.host.as_mut_slice());
                cpu::scatter(staged, host, &spec, &pairs, options())?;
            }
        }
        Ok(start.elapsed())
    }

    /// Copies once into a poisoned destination and compares every byte.
    fn check(&mut self, method: CopyMethod) -> Result<u64> {
        match self.setting.direction {
            Direction::Gather => {
                self.device.fill(POISON)?;
                self.copy(method)?;
                let device = self.device.to_vec()?;
                verify(
                    &self.setting,
                    &self.pair_list,
                    self.host.as_slice(),
                    &device,
                )
            }
            Direction::Scatter => {
                self.host.as_mut_slice().fill(POISON);
                self.copy(method)?;
                let device = self.device.to_vec()?;
                verify(
                    &self.setting,
                    &self.pair_list,
                    &device,
                    self.host.as_slice(),
                )
            }
        }
    }
}

/// Describes why this device or driver does not support a method, or returns the error.
fn lacking(error: &anyhow::Error) -> Option<String> {
    match error.downcast_ref::<GpuError>()? {
        error @ GpuError::MissingFunction { .. } => Some(error.to_string()),
        GpuError::Refused(
            error @ (GatherError::NoKernel { .. }
            | GatherError::VersionNeedsNewerDevice { .. }
            | GatherError::UnitDoesNotFit { .. }),
        ) => Some(error.to_string()),
        _ => None,
    }
}

/// The results of a setting: a row for each method, and the unsupported methods with the reason.
pub(super) struct Measured {
    pub(super) rows: Vec<GatherRow>,
    pub(super) lacking: Vec<String>,
}

/// Measures a setting with all methods of its study.
pub(super) fn study(
    gpu: &Gpu,
    setting: &Setting,
    args: &Args,
    progress: &Progress,
) -> Result<Measured> {
    let fixture = RefCell::new(Fixture::new(gpu, setting, args)?);
    let mut methods: Vec<(CopyMethod, u64, Option<forerun_gpu::gather::Plan>)> = Vec::new();
    let mut missing = Vec::new();
    for method in CopyMethod::of(setting.study, args) {
        let mut fixture = fixture.borrow_mut();
        let checked = match method {
            // This method does not copy the batch's rows, so there is nothing to compare.
            CopyMethod::Contiguous => Ok(0),
            method => fixture.check(method),
        };
        match checked {
            Ok(bytes) => {
                let plan = match method {
                    CopyMethod::Default | CopyMethod::Version(_) => {
                        Some(fixture.row_copy(method)?.plan().clone())
                    }
                    _ => None,
                };
                methods.push((method, bytes, plan));
            }
            Err(error) => match lacking(&error) {
                Some(reason) => missing.push(format!("{}: {reason}", method.name())),
                None => return Err(error).with_context(|| method.name()),
            },
        }
    }
    let cases = methods.iter().map(|&(method, ..)| {
        let fixture = &fixture;
        Case::new(0, method.name(), move |_| {
            let mut fixture = fixture.borrow_mut();
            let elapsed = fixture.copy(method)?;
            Ok(Sample::new(fixture.setting.bytes(), elapsed))
        })
    });
    let plan = Plan::new(args.rounds(), Duration::ZERO);
    let outcomes = measure(cases.collect(), &plan, progress)?;
    let of = |wanted: CopyMethod| {
        let at = methods.iter().position(|(method, ..)| *method == wanted)?;
        outcomes.get(at)
    };
    let ratio = |ours: &Outcome, other: Option<&Outcome>| other.map(|other| ours.ratio_to(other));
    let rows = methods.iter().zip(&outcomes);
    let payload = gpu.info().pcie.as_ref().and_then(|link| link.payload_bytes);
    // Neighbours in sorted order share lines, and repeated rows may be cached.
    let has_limit = setting.direction == Direction::Gather && setting.order == IndexOrder::Unique;
    let (row_bytes, offset) = (setting.row_bytes as u64, setting.offset as u64);
    let huge_bytes = fixture.borrow().host.huge_bytes();
    let limit = has_limit.then(|| limit_of_contiguous(row_bytes, offset, payload));
    let rows = rows.map(|((method, bytes_checked, plan), outcome)| GatherRow {
        device: Some(gpu.info().name.clone()),
        bytes_checked: *bytes_checked,
        share_of_contiguous: ratio(outcome, of(CopyMethod::Contiguous)),
        huge_bytes: huge_bytes.map(|bytes| bytes as u64),
        share_of_limit: plan
            .as_ref()
            .and(ratio(outcome, of(CopyMethod::Contiguous)))
            .zip(limit)
            .map(|(share, limit)| share / limit),
        ratio_to_v3: ratio(outcome, of(CopyMethod::Version(KernelVersion::V3))),
        ..GatherRow::of(setting, "gpu", &method.name())
            .with_outcome(outcome)
            .with_plan(plan.as_ref())
    });
    Ok(Measured {
        rows: rows.collect(),
        lacking: missing,
    })
}

/// Launches one kernel once and returns which.
pub(super) fn once(gpu: &Gpu, setting: &Setting, args: &Args) -> Result<String> {
    let mut fixture = Fixture::new(gpu, setting, args)?;
    let method = args
        .version
        .first()
        .map_or(CopyMethod::Default, |&v| CopyMethod::Version(v));
    let (gpu, stream) = (fixture.gpu.clone(), Stream::high_priority(gpu)?);
    if args.within_device {
        let spec = fixture.spec_of(method);
        let source = DeviceBuffer::from_slice(&gpu, fixture.host.as_slice())?;
        let shape = [setting.pairs() as u64, 2];
        let pairs = DevicePairs::interleaved(&fixture.pairs, 0, IndexType::I32, &shape)?;
        let options = DeviceCopyOptions::default();
        let copy = copy_within_device(&source, &fixture.device, &spec, &pairs, &options)?;
        gpu.scope(|scope| scope.enqueue(&stream, &copy))?;
        return Ok(format!("within the device, {}", copy.plan()));
    }
    let copy = fixture.row_copy(method)?;
    gpu.scope(|scope| scope.enqueue(&stream, &copy))?;
    Ok(copy.plan().to_string())
}
