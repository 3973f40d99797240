//! The command line of the bench `ycsb`.

use super::expected_versions::WRITERS_MAX;
use super::mix::Workload;
use super::record::{KEY_BYTES_MAX, VALUE_BYTES};
use crate::output::{Output, Threads, or};
use anyhow::{Result, ensure};
use forerun_core::size::{parse_count, parse_size};
use std::path::PathBuf;

/// YCSB's core workloads A to F on the store, reads in batches
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench ycsb --records 1M --ops 50k --batch 1,64
  forerun-bench ycsb --workload b,c,d --threads 2 --cache-share 0.1,1.25 --dir /mnt/disk
  forerun-bench ycsb --workload c --report ycsb.html

Workloads: a 50% reads, 50% updates; b 95% reads, 5% updates; c reads; d 95% reads of the newest \
records, 5% inserts; e 95% scans of 1 to 100 records, 5% inserts; f 50% reads, 50% \
read-modify-writes. Records are ten fields of a hundred bytes under `user` and a hashed number. \
Requests are zipfian (0.99, scattered over the keys); in d, latest.

How a batch is run: a client draws its operations in YCSB's order. The reads are looked up \
together (multi_get), ahead of the batch's writes to other records; the writes follow one by one, \
in order. If a read requests a record that an earlier write of its batch changes, the batch is cut \
there, and its first part runs first. So a client gets the same answers as if it ran one operation \
after the other. A read-modify-write is a read of the batch and then a write. In d, reads choose \
among the records whose inserts had returned when the batch was drawn. In e nothing is batched: \
scans and inserts run one at a time, and the workload is measured once.

After the load every record is read once and checked, which also fills the caches.

Rounds alternate between the engines: each runs the same --ops operations, drawn from the same \
seed, on one store that goes through all rounds and workloads. Only the store's calls are timed: \
drawing operations, composing values and checking answers are not. Writes are with the operating \
system when they return, which is the default durability.

--quick shows that everything runs: 2000 records, 400 operations per round.")]
pub struct Args {
    /// Records to load [default: 1M; with --quick 2000]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub records: Option<u64>,

    /// Operations per round, of all threads together [default: 50k; with --quick 400]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub ops: Option<u64>,

    /// Workloads, in this order [default: a,b,c,f,d,e, as YCSB recommends]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub workload: Vec<Workload>,

    /// Operations per batch; batches of one are always measured too, as the baseline [default:
    /// 1,64]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub batch: Vec<usize>,

    /// How many threads.
    #[command(flatten)]
    pub threads: Threads,

    /// Bytes of cache of each engine that has one; the stores are reloaded for each size [default:
    /// what each engine takes by default]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    #[arg(conflicts_with = "cache_share")]
    pub cache: Vec<u64>,

    /// The same, as a share of the data's bytes: 0.1 or 10%; at 1.25 all pages fit, including their
    /// overhead
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_cache_share)]
    pub cache_share: Vec<f64>,

    /// Temporary directory for the stores [default: the system's, which may be in memory]
    #[arg(long, value_name = "DIRECTORY")]
    pub dir: Option<PathBuf>,

    /// Check every answer in all rounds, not only in the first
    #[arg(long)]
    pub check: bool,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

/// Reads a share that may exceed the whole, as `1.25` or `125%`.
fn parse_cache_share(text: &str) -> Result<f64, String> {
    let trimmed = text.trim();
    let share = match trimmed.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().map(|percent| percent / 100.0),
        None => trimmed.parse::<f64>(),
    };
    match share {
        Ok(share) if (0.0..=100.0).contains(&share) => Ok(share),
        _ => Err(format!("{text:?} is not a share: write 0.1, or 10%")),
    }
}

/// The lists, with defaults filled in and checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub records: u64,
    pub operations: u64,
    pub workloads: Vec<Workload>,
    /// Ascending; the first one is 1.
    pub batches: Vec<usize>,
    pub threads: Vec<usize>,
    /// `None`: each engine's default.
    pub cache_bytes: Vec<Option<u64>>,
}

impl Args {
    pub(super) fn plan(&self) -> Result<Plan> {
        let (records, operations) = if self.output.quick {
            (2000, 400)
        } else {
            (1_000_000, 50_000)
        };
        let records = self.records.unwrap_or(records);
        let operations = self.ops.unwrap_or(operations);
        // YCSB recommends running inserts last, so that the other workloads see the loaded size.
        let order = [
            Workload::A,
            Workload::B,
            Workload::C,
            Workload::F,
            Workload::D,
            Workload::E,
        ];
        let mut workloads = or(&self.workload, &order);
        keep_first(&mut workloads);
        let mut batches = or(&self.batch, &[1, 64]);
        ensure!(
            !batches.contains(&0),
            "a batch needs at least one operation"
        );
        batches.push(1);
        batches.sort_unstable();
        batches.dedup();
        let mut threads = self.threads.list()?;
        keep_first(&mut threads);
        let fits = |&threads: &usize| (1..=WRITERS_MAX).contains(&threads);
        ensure!(
            threads.iter().all(fits),
            "the number of threads must be from 1 to {WRITERS_MAX}"
        );
        ensure!(records > 0, "at least one record is required");
        ensure!(
            records <= u64::from(u32::MAX) && operations <= u64::from(u32::MAX),
            "this bench measures at most {} records or operations",
            u32::MAX
        );
        let data_bytes = records * (KEY_BYTES_MAX + VALUE_BYTES) as u64;
        let of_share = |share: &f64| (share * data_bytes as f64) as u64;
        let shares = self.cache_share.iter().map(of_share);
        let sizes = self.cache.iter().copied().chain(shares).map(Some);
        let cache_bytes = or(&sizes.collect::<Vec<_>>(), &[None]);
        Ok(Plan {
            records,
            operations,
            workloads,
            batches,
            threads,
            cache_bytes,
        })
    }
}

/// Removes repeated elements of a list.
fn keep_first<T: Copy + PartialEq>(list: &mut Vec<T>) {
    let mut kept: Vec<T> = Vec::with_capacity(list.len());
    for &item in list.iter() {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    *list = kept;
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
    fn lists_get_their_defaults_the_baseline_and_no_repeats() {
        let plan = Args::default().plan().unwrap();
        assert_eq!((plan.records, plan.operations), (1_000_000, 50_000));
        assert_eq!(plan.batches, [1, 64]);
        assert_eq!(plan.workloads.len(), 6);
        assert_eq!(plan.cache_bytes, [None]);
        let args = Args {
            batch: vec![64, 8, 64],
            threads: threads(&[2, 1, 2]),
            workload: vec![Workload::C, Workload::C],
            cache_share: vec![0.1, 1.0],
            records: Some(1000),
            ..Args::default()
        };
        let plan = args.plan().unwrap();
        assert_eq!(plan.batches, [1, 8, 64]);
        assert_eq!(plan.threads, [2, 1]);
        assert_eq!(plan.workloads, [Workload::C]);
        assert_eq!(plan.cache_bytes, [Some(102_300), Some(1_023_000)]);
    }

    #[test]
    fn a_share_of_the_cache_may_exceed_the_data() {
        assert_eq!(parse_cache_share("125%"), Ok(1.25));
        assert_eq!(parse_cache_share("0.1"), Ok(0.1));
        for text in ["-1", "NaN", "most", "101"] {
            assert!(parse_cache_share(text).unwrap_err().contains(text));
        }
    }

    #[test]
    fn invalid_arguments_are_refused_with_a_message() {
        let error_of = |args: Args| args.plan().unwrap_err().to_string();
        let default = Args::default;
        let cases = [
            (
                Args {
                    batch: vec![0],
                    ..default()
                },
                "batch",
            ),
            (
                Args {
                    threads: threads(&[0]),
                    ..default()
                },
                "thread",
            ),
            (
                Args {
                    threads: threads(&[201]),
                    ..default()
                },
                "200",
            ),
            (
                Args {
                    records: Some(0),
                    ..default()
                },
                "record",
            ),
            (
                Args {
                    ops: Some(1 << 40),
                    ..default()
                },
                "operations",
            ),
        ];
        for (args, word) in cases {
            let error = error_of(args);
            assert!(error.contains(word), "{error}");
        }
    }
}
