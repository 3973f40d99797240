//! The command line of the bench `table`.

use super::access::Access;
use crate::output::{Output, Threads, Timing, or};
use anyhow::{Result, ensure};
use forerun_core::size::{parse_count, parse_size};
use forerun_measure::size::parse_share;
use forerun_table::{Admission, Dtype, EvictStrategy, RowType};
use std::path::PathBuf;

/// Lookups of rows in a table that is partly in memory and otherwise on disk
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench table --rows 10M --report table.html
  forerun-bench table --budget 1 --access uniform --batch 1024          all rows in memory, none \
  in a cache
  forerun-bench table --access zipf:1,trace:orm-busy.trace.xz --budget 0.5,0.1
  forerun-bench table --evict-strategy lru,lfu --admission always,second-touch --budget 0.1 --json
  forerun-bench table --replay --access trace:orm-busy.trace.xz --evict-strategy lru,lfu \
  --admission always,second-touch,by-score

Rows have 64 float32 elements unless --dim says otherwise. A trace is a file of 4-byte big-endian \
numbers, plain or compressed with xz; its table has one row for each number in it. A budget is the \
share of the rows that memory may hold; the store also has its own cache (--cache), and the \
system's. If a budget is below 1, the accesses first run untimed until memory is warm. With \
--replay, each access is instead replayed once from its beginning, with nothing in memory at first \
and one thread that also moves the rows: to compare what policies keep, not how fast they are.

\"lines\" is rows per second, times the cache lines of a row and its bucket, over the random cache \
lines per second that the same number of threads read in the same rounds.")]
pub struct Args {
    /// Rows in the table, except for traces [default: 2M; with --quick 3000]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub rows: Option<u64>,

    /// 4-byte elements per row [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=65_536))]
    pub dim: Option<u32>,

    /// How rows are requested: uniform, zipf:1, trace:FILE [default: zipf:1,uniform]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub access: Vec<Access>,

    /// Shares of the rows that memory may hold, as 0.1 or 10% [default: 1,0.5,0.1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_share)]
    pub budget: Vec<f64>,

    /// Keys per batch [default: 64,256,1024,4096]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub batch: Vec<usize>,

    /// How many threads.
    #[command(flatten)]
    pub threads: Threads,

    /// Which rows are demoted first: lru, lfu [default: lfu]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_evict_strategy)]
    pub evict_strategy: Vec<EvictStrategy>,

    /// Which rows are promoted: always, second-touch, by-score [default: second-touch]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_admission)]
    pub admission: Vec<Admission>,

    /// Replay each access once instead of measuring in rounds: hit rates that do not depend on the
    /// machine
    #[arg(long, conflicts_with = "threads")]
    pub replay: bool,

    /// The store's own cache [default: 64MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_count)]
    pub cache: Option<u64>,

    /// Bytes of the store's pages [default: the table's]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub page: Option<usize>,

    /// Directory for the stores [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// How long a case is timed.
    #[command(flatten)]
    pub timing: Timing,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

/// The lists, with defaults filled in and checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) rows: u64,
    pub(super) row: RowType,
    pub(super) access: Vec<Access>,
    pub(super) budgets: Vec<f64>,
    pub(super) batches: Vec<usize>,
    pub(super) threads: Vec<usize>,
    /// Keys that a thread requests before it starts over.
    pub(super) stream_len: usize,
}

impl Args {
    pub(super) fn plan(&self) -> Result<Plan> {
        let quick = self.output.quick;
        let rows = self.rows.unwrap_or(if quick { 3000 } else { 2_000_000 });
        let batches = or(&self.batch, &[64, 256, 1024, 4096]);
        let threads = self.threads.list()?;
        let budgets = or(&self.budget, &[1.0, 0.5, 0.1]);
        ensure!(rows > 0, "a table needs at least one row");
        ensure!(
            rows <= u64::from(u32::MAX),
            "{rows} rows are more than the limit of {}",
            u32::MAX
        );
        ensure!(!batches.contains(&0), "a batch needs at least one key");
        ensure!(
            budgets.iter().all(|&budget| budget > 0.0),
            "a budget of 0 holds no rows"
        );
        Ok(Plan {
            rows,
            row: RowType::new(Dtype::F32, self.dim.unwrap_or(64)),
            access: or(&self.access, &[Access::Zipf(1.0), Access::Uniform]),
            budgets,
            batches,
            threads,
            stream_len: stream_len(quick, rows),
        })
    }
}

/// Keys that a thread requests before it starts over. It is a multiple of the number of rows;
/// otherwise memory would eventually hold everything that is requested, whatever its budget. At
/// most half a GiB of keys.
fn stream_len(quick: bool, rows: u64) -> usize {
    const TIMES: u64 = 4;
    if quick {
        1 << 13
    } else {
        rows.saturating_mul(TIMES).clamp(1 << 22, 1 << 26) as usize
    }
}

/// The name of an admission policy.
pub(super) fn admission_name(admission: Admission) -> &'static str {
    match admission {
        Admission::Always => "always",
        Admission::SecondTouch => "second-touch",
        Admission::ByScore => "by-score",
        // A policy of a later release.
        _ => "unknown",
    }
}

fn parse_evict_strategy(text: &str) -> Result<EvictStrategy, String> {
    let known = [EvictStrategy::Lru, EvictStrategy::Lfu];
    let named = known.into_iter().find(|strategy| strategy.name() == text);
    named.ok_or_else(|| format!("{text:?} is not an eviction strategy: write lru or lfu"))
}

fn parse_admission(text: &str) -> Result<Admission, String> {
    let known = [
        Admission::Always,
        Admission::SecondTouch,
        Admission::ByScore,
    ];
    let named = known
        .into_iter()
        .find(|&admission| admission_name(admission) == text);
    named.ok_or_else(|| {
        format!("{text:?} is not an admission policy: write always, second-touch or by-score")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(list: &[usize]) -> Threads {
        Threads {
            threads: list.to_vec(),
        }
    }

    #[test]
    fn lists_get_defaults_and_invalid_ones_are_refused() {
        let plan = Args::default().plan().unwrap();
        assert_eq!((plan.rows, plan.row.bytes()), (2_000_000, 256));
        assert_eq!(plan.batches, [64, 256, 1024, 4096]);
        let invalid = [
            (
                Args {
                    rows: Some(0),
                    ..Args::default()
                },
                "row",
            ),
            (
                Args {
                    rows: Some(1 << 40),
                    ..Args::default()
                },
                "1099511627776",
            ),
            (
                Args {
                    batch: vec![64, 0],
                    ..Args::default()
                },
                "batch",
            ),
            (
                Args {
                    threads: threads(&[0]),
                    ..Args::default()
                },
                "thread",
            ),
            (
                Args {
                    budget: vec![0.0],
                    ..Args::default()
                },
                "budget",
            ),
        ];
        for (args, word) in invalid {
            let error = args.plan().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn policies_round_trip_as_text() {
        assert_eq!(parse_evict_strategy("lru"), Ok(EvictStrategy::Lru));
        assert_eq!(parse_admission("by-score"), Ok(Admission::ByScore));
        assert!(parse_evict_strategy("mru").unwrap_err().contains("mru"));
        assert!(parse_admission("never").unwrap_err().contains("never"));
    }
}
