//! The command line of the bench `workloads`.

use super::shape::Shape;
use crate::output::Output;
use forerun_core::size::{parse_count, parse_size};
use std::path::PathBuf;

/// Latencies of stores with several keyspaces under six shapes of work, with default options
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench workloads --shape hot-keyspace --seconds 180 --report hot.html
  forerun-bench workloads --shape queue --steps 10M --json
  forerun-bench workloads --dir /mnt/disk                  all six

Shapes: a hot-keyspace: batches of 100 rows go to one keyspace at --rate, 2 single puts a second \
to each of nine others, and multi_gets of 64 keys to all. b nightly-load: 10M sorted rows are \
ingested into one keyspace, beside puts to and reads of another. c queue: push at one end, pop \
(the first entry of an iterator, and its delete) at the other. d range-deletes: 1M range deletes \
over live rows, then reads and scans. e time-series: rows are appended at --rate and expire; the \
newest are read and the oldest scanned. f overwrite: random single puts over 10M rows by two \
threads. An engine that lacks what a shape needs skips it.

Clients of a, b, e and the readers of d are paced: an operation is due at its time whatever the \
earlier ones took, and its latency counts from then, so that a stall is seen in every operation \
that it delayed (no coordinated omission). Operations that were due but had not begun at the end \
count with their wait. Clients of c, the deletes of d, and f go as fast as the store lets them, \
and count from the call.

The report and --json have the 99th percentile and the maximum of each second. longest call: the \
longest single call of the store; of all that write, it is the longest stall. Writes are with the \
operating system when they return. Values carry their row and version, and every answer is \
checked. \
The load is not measured. Each of the --rounds, here 1 by default, has a fresh store per engine; \
the latencies of all rounds count together.

--quick shows that everything runs: 2000 rows, 500 ranges, 0.1 s.")]
pub struct Args {
    /// Shapes, by name or letter, in this order [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub shape: Vec<Shape>,

    /// Seconds that a shape runs after its load [default: 60; with --quick 0.1]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub seconds: Option<f64>,

    /// Rows that are loaded into each keyspace [default: 400k in a, 10M in b (400k beside them) and
    /// f, 10k entries that wait in c]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub rows: Option<u64>,

    /// Bytes per value [default: 500]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub value_bytes: Option<usize>,

    /// Bytes per second that go to the hot keyspace, or to the time series [default: 16M]
    #[arg(long, value_name = "BYTES", value_parser = parse_count)]
    pub rate: Option<u64>,

    /// Keyspaces of the shape hot-keyspace [default: 10]
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub keyspaces: Option<usize>,

    /// Puts per second to each cold keyspace [default: 2]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub cold_puts: Option<u64>,

    /// Lookups (or scans) per second of each reader [default: 200]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub reads: Option<u64>,

    /// Readers, each with its own thread [default: 1]
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub readers: Option<usize>,

    /// Steps of the queue, in place of --seconds
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub steps: Option<u64>,

    /// Range deletes, each of two out of four rows [default: 1M; with --quick 500]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub ranges: Option<u64>,

    /// Seconds until a row of the time series expires [default: 10; with --quick 1]
    #[arg(long, value_name = "S", value_parser = parse_count)]
    pub ttl: Option<u64>,

    /// Threads that overwrite [default: 2]
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub threads: Option<usize>,

    /// Temporary directory for the stores [default: the system's, which may be in memory]
    #[arg(long, value_name = "DIRECTORY")]
    pub dir: Option<PathBuf>,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

/// A day, which is more than anybody waits for.
const SECONDS_MAX: f64 = 86_400.0;

/// Parses a time, as `60` or `2.5`.
fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= SECONDS_MAX => Ok(seconds),
        _ => Err(format!(
            "{text:?} is not a number of seconds above 0 and up to {SECONDS_MAX}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_above_zero_and_at_most_a_day() {
        assert_eq!(parse_seconds("2.5"), Ok(2.5));
        for text in ["0", "-1", "NaN", "inf", "86401", "soon"] {
            assert!(parse_seconds(text).unwrap_err().contains(text));
        }
    }
}
