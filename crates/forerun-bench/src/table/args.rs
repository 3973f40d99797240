//! The command line of the bench `table`.

use super::access::Access;
use crate::output::{Output, or};
use anyhow::{Result, ensure};
use forerun_measure::size::{parse_count, parse_share, parse_size};
use forerun_table::{Admission, Dtype, RowType, Score};
use std::path::PathBuf;

/// Rows looked up in a table of which memory holds a part and the disk the rest
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench table --rows 10M --report table.html
  forerun-bench table --budget 1 --access uniform --batch 1024          all rows in memory, none in a cache
  forerun-bench table --access zipf:1,trace:orm-busy.trace.xz --budget 0.5,0.1
  forerun-bench table --score lru,lfu --admission always,second-touch --budget 0.1 --json
  forerun-bench table --replay --access trace:orm-busy.trace.xz --score lru,lfu --admission always,second-touch,by-score

Rows are of 64 float32 unless --dim says otherwise. A trace is a file of 4-byte big-endian numbers, as it is or in xz; \
its table has one row for each number in it. A budget is the share of the rows that memory may hold; the store has a \
cache of its own besides (--cache), and the system's. Where a budget is below 1, the accesses first run untimed until \
memory holds what they use. With --replay each is instead played once from its beginning, with nothing in memory at \
first and one thread that also moves the rows: to compare what policies keep, not how fast they are.

\"lines\" is rows a second, times the cache lines that a row and its bucket take, over the random cache lines a second \
that as many threads read in the same rounds.")]
pub struct Args {
    /// Rows in the table, but for traces [default: 2M; with --quick 3000]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub rows: Option<u64>,

    /// Elements of 4 bytes a row [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=65_536))]
    pub dim: Option<u32>,

    /// Which rows are asked for: uniform, zipf:1, trace:FILE [default: zipf:1,uniform]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub access: Vec<Access>,

    /// Shares of the rows that memory may hold, as 0.1 or 10% [default: 1,0.5,0.1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_share)]
    pub budget: Vec<f64>,

    /// Keys a batch [default: 64,256,1024,4096]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub batch: Vec<usize>,

    /// Threads that look up, each pinned to a core [default: 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub threads: Vec<usize>,

    /// Which rows leave memory first: lru, lfu [default: lfu]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_score)]
    pub score: Vec<Score>,

    /// Which rows come up: always, second-touch, by-score [default: second-touch]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_admission)]
    pub admission: Vec<Admission>,

    /// Plays each access once instead of measuring in rounds: hit rates that do not depend on the
    /// machine
    #[arg(long, conflicts_with = "threads")]
    pub replay: bool,

    /// The store's own cache [default: 64MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_count)]
    pub cache: Option<u64>,

    /// Bytes of the store's pages [default: the table's]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub page: Option<usize>,

    /// Where the stores are to lie [default: the system's place for temporary files]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Rounds, times and formats.
    #[command(flatten)]
    pub output: Output,
}

/// The lists with their defaults filled in, and fit to be measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) rows: u64,
    pub(super) row: RowType,
    pub(super) access: Vec<Access>,
    pub(super) budgets: Vec<f64>,
    pub(super) batches: Vec<usize>,
    pub(super) threads: Vec<usize>,
    /// Keys that a thread asks for before it begins anew.
    pub(super) stream_len: usize,
}

impl Args {
    pub(super) fn plan(&self) -> Result<Plan> {
        let quick = self.output.quick;
        let rows = self.rows.unwrap_or(if quick { 3000 } else { 2_000_000 });
        let batches = or(&self.batch, &[64, 256, 1024, 4096]);
        let threads = or(&self.threads, &[1]);
        let budgets = or(&self.budget, &[1.0, 0.5, 0.1]);
        ensure!(rows > 0, "a table needs at least one row");
        ensure!(
            rows <= u64::from(u32::MAX),
            "{rows} rows are more than memory numbers: {} at most",
            u32::MAX
        );
        ensure!(!batches.contains(&0), "a batch needs at least one key");
        ensure!(!threads.contains(&0), "it takes at least one thread");
        ensure!(
            budgets.iter().all(|&budget| budget > 0.0),
            "a budget of nothing holds no row"
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

/// Keys that a thread asks for before it begins anew: some times as many as there are rows, or
/// memory would in the end have all that is asked for, whatever its budget. Up to half a GiB of
/// them.
fn stream_len(quick: bool, rows: u64) -> usize {
    const TIMES: u64 = 4;
    match quick {
        true => 1 << 13,
        false => rows.saturating_mul(TIMES).clamp(1 << 22, 1 << 26) as usize,
    }
}

/// The name of a score policy.
pub(super) fn score_name(score: Score) -> &'static str {
    match score {
        Score::Lru => "lru",
        Score::Lfu => "lfu",
        Score::Custom => "custom",
    }
}

/// The name of an admission policy.
pub(super) fn admission_name(admission: Admission) -> &'static str {
    match admission {
        Admission::Always => "always",
        Admission::SecondTouch => "second-touch",
        Admission::ByScore => "by-score",
    }
}

fn parse_score(text: &str) -> Result<Score, String> {
    let known = [Score::Lru, Score::Lfu];
    let named = known.into_iter().find(|&score| score_name(score) == text);
    named.ok_or_else(|| format!("{text:?} is no score: write lru or lfu"))
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
    named.ok_or_else(|| format!("{text:?} is no admission: write always, second-touch or by-score"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_get_their_defaults_and_what_makes_no_sense_is_refused() {
        let plan = Args::default().plan().unwrap();
        assert_eq!((plan.rows, plan.row.bytes()), (2_000_000, 256));
        assert_eq!(plan.batches, [64, 256, 1024, 4096]);
        let refusals = [
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
                    threads: vec![0],
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
        for (args, word) in refusals {
            let refusal = args.plan().unwrap_err().to_string();
            assert!(refusal.contains(word), "{refusal}");
        }
    }

    #[test]
    fn policies_are_read_as_they_are_named() {
        assert_eq!(parse_score("lru"), Ok(Score::Lru));
        assert_eq!(parse_admission("by-score"), Ok(Admission::ByScore));
        assert!(parse_score("mru").unwrap_err().contains("mru"));
        assert!(parse_admission("never").unwrap_err().contains("never"));
    }
}
