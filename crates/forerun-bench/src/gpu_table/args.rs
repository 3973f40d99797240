//! The command line of the bench `gpu-table`.

use super::operation::Op;
use super::table_study::{Buckets, Study};
use crate::on_gpu::OnGpu;
use crate::output::{Output, or};
use crate::skew::Skew;
use forerun_core::size::{parse_count, parse_size};
use forerun_gpu::table::LookupMode;
use forerun_measure::size::parse_share;
use std::path::PathBuf;

/// The hash table in a GPU's memory: every operation, by load, width, row, hit rate, batch and skew
#[derive(clap::Args, Clone, Debug, Default)]
#[command(after_help = "\
Examples:
  forerun-bench gpu-table                                     all studies, some minutes on a GPU
  forerun-bench gpu-table --study seed --report gpu-table.html
  forerun-bench gpu-table --study buckets --buckets 2x128,1x64 --lookup thread,narrow,wide
  forerun-bench gpu-table --study operations --op find_ptr,insert_or_assign --load 1
  forerun-bench gpu-table --check                             does the GPU give the CPU's answers?
  forerun-bench gpu-table --once --slots 64Ki --batch 4Ki     each kernel once, for \
  compute-sanitizer
  forerun-bench gpu-table --study seed --peer build/hkv --peer build/cuco

If no GPU is found, the bench measures the table on the CPU at a small size and prints no GPU \
figures.

Each study changes one parameter of the published record's setting: rows of 8 numbers, 128 Mi \
slots, 2^20 keys per call, 0.6 of them present, loads of 0.50, 0.75 and 1.00. A call is timed in \
two ways: by events of its stream, and by the host's clock from the call to the end of the wait. \
Every variant is checked before it is timed, in rounds that alternate between the variants; \
figures are medians. B-KV/s are units of 2^30 keys per second, as in the record.")]
pub struct Args {
    /// Studies [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub study: Vec<Study>,

    /// Slots of the table [default: 128Mi; without a GPU 1Mi]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub slots: Option<u64>,

    /// Entries per slot [default: 0.5,0.75,1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_share)]
    pub load: Vec<f64>,

    /// Bucket shapes, candidates x slots, for their study; the other studies use the first
    /// [default: 1x128,1x64,2x128,2x64,1x32]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub buckets: Vec<Buckets>,

    /// 4-byte numbers per row, for their study; the other studies use the first [default: 8,32,64]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    pub dim: Vec<u64>,

    /// Share of the requested keys that are present, for its study; the other studies use the first
    /// [default: 0.6,0,0.25,0.9,1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_share)]
    pub hit_rate: Vec<f64>,

    /// Keys per call, for their study; the other studies use the first [default: 1Mi, and 1Ki to
    /// 4Mi; without a GPU 64Ki, and 1Ki to 256Ki]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub batch: Vec<usize>,

    /// How requests spread over the keys, for its study [default: uniform,zipf:0.99,zipf:1.2]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub skew: Vec<Skew>,

    /// Keys per bag of pooled lookups, for their study; the other studies use the first [default:
    /// 32, and 1 to 1024]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub bag: Vec<usize>,

    /// Operations to run instead of those of each study
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub op: Vec<Op>,

    /// Lookup kernels to run instead of those of each study: by-load, narrow, wide, thread,
    /// pipeline, seed-rule
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_lookup)]
    pub lookup: Vec<LookupMode>,

    /// Counts the requests to memory of `find_ptr` by each kernel at each load, on the CPU, instead
    /// of measuring
    #[arg(long, conflicts_with_all = ["once", "check", "report"])]
    pub counts: bool,

    /// Programs that measure peers in the published setting and print rows in this bench's format:
    /// see suites/gpu-peers
    #[arg(long, value_name = "PROGRAM")]
    pub peer: Vec<PathBuf>,

    /// Which GPU to use, and what to do there.
    #[command(flatten)]
    pub gpu: OnGpu,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

fn parse_lookup(text: &str) -> Result<LookupMode, String> {
    let found = LookupMode::ALL
        .into_iter()
        .find(|lookup| lookup.name() == text);
    let names = || LookupMode::ALL.map(LookupMode::name).join(", ");
    found.ok_or_else(|| {
        format!(
            "{text:?} is not a way to find slots; available: {}",
            names()
        )
    })
}

impl Args {
    pub(super) fn rounds(&self) -> usize {
        self.output.rounds(11)
    }

    pub(super) fn studies(&self) -> Vec<Study> {
        or(&self.study, &Study::ALL)
    }

    pub(super) fn loads(&self) -> Vec<f64> {
        let default: &[f64] = if self.output.quick {
            &[0.5, 1.0]
        } else {
            &[0.5, 0.75, 1.0]
        };
        or(&self.load, default)
    }
}
