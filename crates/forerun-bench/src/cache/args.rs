//! The arguments of the bench.

use crate::output::{Output, Timing};
use forerun_core::size::parse_size;
use std::path::PathBuf;

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Keys per second of a batch, of one key at a time, and of MemC3's design.
    Multiget,
    /// Hit ratios at several memory sizes, compared with memcached.
    Hits,
}

/// The cache in process: multi-gets compared with MemC3's design, and hit ratios compared with
/// memcached's
#[derive(clap::Args, Clone, Debug, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench cache --part multiget --items 2M --value 64
  forerun-bench cache --part hits --trace orm-busy.trace.xz --value-scale 8 --memory \
  16Mi,32Mi,64Mi,128Mi
  forerun-bench cache --part hits --keys 1M --zipf 0.99 --memory 32Mi,64Mi,128Mi,256Mi

A trace is a sequence of 4-byte big-endian keys, plain or compressed with xz. Values have the \
sizes of Facebook's ETC (a generalised Pareto distribution) by key, times --value-scale. Both \
caches get the same multi-gets, and missing keys are set. memcached gets --memory as its -m; our \
limit is the growth of memcached's process.")]
pub struct Args {
    /// Parts to measure [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub part: Vec<Part>,

    /// Items for multiget [default: 2M; with --quick 5k]
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub items: Option<usize>,

    /// Bytes of multiget's values
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "64")]
    pub value: usize,

    /// Keys per batch
    #[arg(long, value_name = "N", value_parser = parse_size, default_value = "100")]
    pub batch: usize,

    /// A trace of reads for hits, instead of the zipf mix
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Maximum reads for hits [default: all of a trace; 5M of the mix]
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub reads: Option<usize>,

    /// Keys of the mix [default: 1M]
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub keys: Option<usize>,

    /// The mix's skew: how fast popularity falls with rank
    #[arg(long, value_name = "S", default_value = "0.99")]
    pub zipf: f64,

    /// Memory sizes for hits, passed to memcached as -m [default: 16Mi,32Mi,64Mi,128Mi]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub memory: Vec<usize>,

    /// Factor for the sizes of ETC's values
    #[arg(long, value_name = "N", default_value = "1")]
    pub value_scale: usize,

    /// The memcached to compare with; left out if it is missing
    #[arg(long, value_name = "PATH", default_value = "memcached")]
    pub memcached: PathBuf,

    /// How long a case is timed.
    #[command(flatten)]
    pub timing: Timing,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

impl Default for Args {
    fn default() -> Args {
        Args {
            part: Vec::new(),
            items: None,
            value: 64,
            batch: 100,
            trace: None,
            reads: None,
            keys: None,
            zipf: 0.99,
            memory: Vec::new(),
            value_scale: 1,
            memcached: "memcached".into(),
            timing: Timing::default(),
            output: Output::default(),
        }
    }
}

impl Args {
    pub(super) fn measures(&self, part: Part) -> bool {
        self.part.is_empty() || self.part.contains(&part)
    }

    pub(super) fn items(&self) -> usize {
        let default = if self.output.quick { 5000 } else { 2_000_000 };
        self.items.unwrap_or(default).max(1)
    }
}
