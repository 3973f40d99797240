//! The sizes of a run: the command line, with defaults filled in and checked.

use super::args::Args;
use super::shape::Shape;
use crate::engine::{KeyspaceSpec, StoreLocation};
use crate::output::or;
use crate::ycsb::record::VALUE_BYTES_MIN;
use anyhow::{Result, ensure};
use forerun_measure::size::short;
use std::time::Duration;

/// Rows per write to the hot keyspace.
pub(super) const HOT_BATCH: usize = 100;

/// Rows from the beginning of one range to that of the next.
pub(super) const ROWS_PER_RANGE: u64 = 4;

/// The most clients of a kind.
const CLIENTS_MAX: usize = 64;

/// The most keyspaces.
const KEYSPACES_MAX: usize = 1000;

/// The most rows of a keyspace, and four times the most ranges.
const ROWS_MAX: u64 = u32::MAX as u64;

/// What to run, and how large it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub shapes: Vec<Shape>,
    pub duration: Duration,
    pub value_bytes: usize,
    /// Bytes per second.
    pub rate_bytes: f64,
    pub keyspaces: usize,
    /// Of each cold keyspace.
    pub cold_puts_per_second: f64,
    /// Of each reader.
    pub reads_per_second: f64,
    pub readers: usize,
    pub steps: Option<u64>,
    pub ranges: u64,
    pub ttl: Duration,
    /// Threads that overwrite.
    pub threads: usize,
    pub rounds: usize,
    pub place: StoreLocation,
    /// The rows of every shape, if not its own default.
    rows: Option<u64>,
}

impl Plan {
    pub(super) fn new(args: &Args) -> Result<Plan> {
        let quick = args.output.quick;
        let either = |tiny: u64, usual: u64| if quick { tiny } else { usual };
        let seconds = if quick { 0.1 } else { 60.0 };
        let count = |what: &str, asked: Option<u64>, default: u64, max: u64| -> Result<u64> {
            let asked = asked.unwrap_or(default);
            ensure!((1..=max).contains(&asked), "{what} must be from 1 to {max}");
            Ok(asked)
        };
        let clients = |what: &str, asked: Option<usize>, default: u64, max: usize| {
            let asked = asked.map(|asked| asked as u64);
            count(what, asked, default, max as u64).map(|count| count as usize)
        };
        let value_bytes = args.value_bytes.unwrap_or(500);
        ensure!(
            value_bytes >= VALUE_BYTES_MIN,
            "values need at least {VALUE_BYTES_MIN} bytes, for their row and version"
        );
        let rows = args.rows.or(quick.then_some(2000));
        let per_second_max = 1_000_000;
        Ok(Plan {
            shapes: or(&args.shape, &Shape::ALL),
            duration: Duration::from_secs_f64(args.seconds.unwrap_or(seconds)),
            value_bytes,
            rate_bytes: count("--rate", args.rate, 16_000_000, 1 << 40)? as f64,
            keyspaces: clients("--keyspaces", args.keyspaces, 10, KEYSPACES_MAX)?,
            cold_puts_per_second: count("--cold-puts", args.cold_puts, 2, per_second_max)? as f64,
            reads_per_second: count("--reads", args.reads, 200, per_second_max)? as f64,
            readers: clients("--readers", args.readers, 1, CLIENTS_MAX)?,
            steps: args.steps,
            ranges: count(
                "--ranges",
                args.ranges,
                either(500, 1_000_000),
                ROWS_MAX / 4,
            )?,
            ttl: Duration::from_secs(count("--ttl", args.ttl, either(1, 10), ROWS_MAX)?),
            threads: clients("--threads", args.threads, 2, CLIENTS_MAX)?,
            rounds: args.output.rounds.unwrap_or(1) as usize,
            place: StoreLocation {
                parent: args.dir.clone(),
                cache_bytes: None,
            },
            rows: rows
                .map(|rows| count("--rows", Some(rows), rows, ROWS_MAX))
                .transpose()?,
        })
    }

    /// The rows that a shape loads into a keyspace, or ingests.
    pub(super) fn rows(&self, shape: Shape) -> u64 {
        match shape {
            Shape::RangeDeletes => self.ranges * ROWS_PER_RANGE,
            _ => shape
                .default_rows()
                .map_or(0, |rows| self.rows.unwrap_or(rows)),
        }
    }

    /// The keyspaces of a shape.
    pub(super) fn keyspaces_of(&self, shape: Shape) -> Vec<KeyspaceSpec> {
        let spec = |name: &str, ttl| KeyspaceSpec {
            name: name.to_owned(),
            ttl,
        };
        match shape {
            Shape::HotKeyspace => {
                let cold = (1..self.keyspaces).map(|cold| spec(&format!("cold{cold}"), None));
                std::iter::once(spec("hot", None)).chain(cold).collect()
            }
            Shape::NightlyLoad => vec![spec("served", None), spec("nightly", None)],
            Shape::Queue => vec![spec("queue", None)],
            Shape::RangeDeletes | Shape::Overwrite => vec![spec("rows", None)],
            Shape::TimeSeries => vec![spec("series", Some(self.ttl))],
        }
    }

    /// What a shape does, in a few words.
    pub(super) fn about(&self, shape: Shape) -> String {
        let rate = short(self.rate_bytes);
        match shape {
            Shape::HotKeyspace => format!(
                "one hot keyspace ({rate}B/s in batches of {HOT_BATCH}), {} cold ones",
                self.keyspaces - 1
            ),
            Shape::NightlyLoad => "sorted rows are ingested beside puts and reads".to_owned(),
            Shape::Queue => "push at one end, pop at the other".to_owned(),
            Shape::RangeDeletes => format!("{} range deletes, then reads", self.ranges),
            Shape::TimeSeries => format!(
                "appends of {rate}B/s that expire after {} s, read at both ends",
                self.ttl.as_secs()
            ),
            Shape::Overwrite => format!("random overwrites by {} threads", self.threads),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Output;

    #[test]
    fn sizes_have_defaults_that_quick_makes_small() {
        let plan = Plan::new(&Args::default()).unwrap();
        assert_eq!(plan.shapes, Shape::ALL);
        assert_eq!((plan.duration, plan.rounds), (Duration::from_secs(60), 1));
        assert_eq!(
            (plan.ranges, plan.keyspaces, plan.threads),
            (1_000_000, 10, 2)
        );
        assert_eq!(plan.rows(Shape::HotKeyspace), 400_000);
        assert_eq!(plan.rows(Shape::Overwrite), 10_000_000);
        let quick = Args {
            output: Output {
                quick: true,
                ..Output::default()
            },
            ranges: Some(70),
            ..Args::default()
        };
        let plan = Plan::new(&quick).unwrap();
        assert_eq!((plan.rows(Shape::Overwrite), plan.ranges), (2000, 70));
        assert_eq!(plan.rows(Shape::RangeDeletes), 280);
        assert_eq!(plan.rows(Shape::TimeSeries), 0);
        assert_eq!(plan.duration, Duration::from_millis(100));
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        let default = Args::default;
        let cases = [
            (
                Args {
                    rows: Some(0),
                    ..default()
                },
                "--rows",
            ),
            (
                Args {
                    rate: Some(0),
                    ..default()
                },
                "--rate",
            ),
            (
                Args {
                    reads: Some(0),
                    ..default()
                },
                "--reads",
            ),
            (
                Args {
                    keyspaces: Some(0),
                    ..default()
                },
                "--keyspaces",
            ),
            (
                Args {
                    threads: Some(65),
                    ..default()
                },
                "1 to 64",
            ),
            (
                Args {
                    ranges: Some(1 << 31),
                    ..default()
                },
                "--ranges",
            ),
            (
                Args {
                    ttl: Some(0),
                    ..default()
                },
                "--ttl",
            ),
            (
                Args {
                    value_bytes: Some(31),
                    ..default()
                },
                "32 bytes",
            ),
        ];
        for (args, word) in cases {
            let error = Plan::new(&args).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
