//! The command line of the bench `gather`.

use super::gather_study::{IndexOrder, MultiprocessorLimit, Study};
use crate::on_gpu::OnGpu;
use crate::output::Output;
use crate::roofline::PagesArg;
use forerun_core::size::parse_size;
use forerun_gpu::gather::{AccessWidth, Direction, KernelVersion};

/// Row gathers from pinned host memory to the GPU and back, against contiguous copies
#[derive(clap::Args, Clone, Debug, Default)]
#[command(after_help = "\
Examples:
  forerun-bench gather                                      all studies, in some minutes on a GPU
  forerun-bench gather --study seed --report gather.html
  forerun-bench gather --study row-bytes --row-bytes 576,656 --version v3,v5-r2
  forerun-bench gather --check                              does the GPU copy the same as the CPU?
  forerun-bench gather --once --version v4                  one launch, for a profiler

If no GPU is found, the same rows are copied on the CPU, and no GPU figures are printed.

Each study changes one parameter of the published record's setting: 128 requests of 2048 rows of \
656 bytes, out of 300000. Every method is checked byte by byte against a poisoned destination, and \
then timed in rounds that alternate between the methods; figures are medians.")]
pub struct Args {
    /// Studies [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub study: Vec<Study>,

    /// Requests per batch
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub requests: Option<usize>,

    /// Rows per request
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub rows: Option<usize>,

    /// Rows on each side
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub slots: Option<usize>,

    /// Bytes per row, for the study of row sizes; the other studies use the first [default: 64 to
    /// 4096]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub row_bytes: Vec<usize>,

    /// Index orders for the study of indices [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub indices: Vec<IndexOrder>,

    /// Offsets of the host's rows from a page, in bytes, for the study of offsets [default:
    /// 0,16,48,8,4,1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub offset: Vec<usize>,

    /// Maximum multiprocessors, for their study and that of a concurrent matrix product [default:
    /// 1,2,4,8,16,all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub multiprocessors: Vec<MultiprocessorLimit>,

    /// Kernel versions to run instead of those of each study
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub version: Vec<KernelVersion>,

    /// The unit of the kernels, in bytes: 16, 8, 4 or 1 [default: the largest that fits]
    #[arg(long)]
    pub unit: Option<AccessWidth>,

    /// With --once: the direction [default: gather]
    #[arg(long, value_parser = parse_direction)]
    pub direction: Option<Direction>,

    /// With --once: copies from the GPU's memory instead of the host's
    #[arg(long, conflicts_with = "direction", requires = "once")]
    pub within_device: bool,

    /// The kind of memory pages of the pinned host memory [default: small]
    #[arg(long, value_name = "PAGES")]
    pub pages: Option<PagesArg>,

    /// How many rows ahead the CPU's copy prefetches; each value is measured as its own method
    /// [default: 0, and by the row's size]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub ahead: Vec<usize>,

    /// Threads of the CPU's copy [default: all cores]
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub threads: Option<usize>,

    /// Which GPU to use, and what to do there.
    #[command(flatten)]
    pub gpu: OnGpu,

    /// Leave out PyTorch, which otherwise runs too if python3 has it with CUDA
    #[arg(long)]
    pub no_pytorch: bool,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

fn parse_direction(text: &str) -> Result<Direction, String> {
    match text {
        "gather" => Ok(Direction::Gather),
        "scatter" => Ok(Direction::Scatter),
        _ => Err(format!(
            "{text:?} is not a direction: write gather or scatter"
        )),
    }
}

impl Args {
    pub(super) fn rounds(&self) -> usize {
        self.output.rounds(20)
    }

    /// The studies to run.
    pub(super) fn studies(&self) -> Vec<Study> {
        if self.study.is_empty() {
            Study::ALL.to_vec()
        } else {
            self.study.clone()
        }
    }

    pub(super) fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or(cores).max(1)
    }

    pub(super) fn ahead(&self) -> Vec<Option<usize>> {
        if self.ahead.is_empty() {
            vec![Some(0), None]
        } else {
            self.ahead.iter().copied().map(Some).collect()
        }
    }
}
