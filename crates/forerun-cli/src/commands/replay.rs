//! `forerun replay` replays the reads of a trace in batches.
//!
//! The keys of a request are consecutive in a trace, so a batch of consecutive keys represents one
//! multi-get of the traced program.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use forerun_db::{Db, Durability, Values, WriteBatch};
use forerun_measure::harness::Plan;
use forerun_measure::progress::Progress;
use forerun_measure::result_row::Row;

use crate::exit::{Outcome, UsageError};
use crate::input::Source;
use crate::input::trace::{Trace, TraceFormat};
use crate::measure::{Length, Lookups, table};
use crate::open_store::StoreArgs;
use crate::output::{self, Out};

/// Batch size of `--fill`.
const FILL_BATCH: usize = 1024;
/// Number of reads at the beginning of the trace whose answers are compared one by one, before
/// anything is measured.
const CHECKED_READS: usize = 50_000;

/// Replay a trace of reads in batches
///
/// The trace is read into memory first. Then all its reads are answered, in turn one key at a time
/// (`get`) and in batches of consecutive keys (`multiget`). Reports the median of the rounds and
/// the ratio to `get`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun replay orm.db orm-busy.trace.xz --format u32be --fill --batch 64
  forerun replay cities.db keys.txt.gz --batch 8,64
  forerun replay orm.db orm-busy.trace.xz --format u32be --rounds 3 --json")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// The trace, optionally compressed with gzip or xz; - for standard input
    trace: PathBuf,
    /// The trace's format
    #[arg(long, value_enum, default_value_t = TraceFormat::Text)]
    format: TraceFormat,
    /// Batch sizes, measured in this order
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "64",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: Vec<u32>,
    /// Number of rounds; the median is reported
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    rounds: u32,
    /// First write each distinct key of the trace with a generated value; creates the store if it
    /// does not exist
    #[arg(long)]
    fill: bool,
    /// Length of the generated values
    #[arg(long, value_name = "BYTES", default_value_t = 100, requires = "fill",
          value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    value_bytes: u32,
    /// Print one JSON object per result
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let trace = Trace::read(Source::open(&args.trace)?, args.format)?;
    match &trace {
        Trace::Text(keys) => replay(args, &keys.as_slices()),
        Trace::U32(keys) => replay(args, keys),
        Trace::U64(keys) => replay(args, keys),
    }
}

fn replay<K: AsRef<[u8]> + Eq + Hash>(args: &Args, reads: &[K]) -> anyhow::Result<Outcome> {
    let db = if args.fill {
        args.store.open_or_create()?
    } else {
        args.store.open_existing()?
    };
    let distinct = first_reads(reads);
    if args.fill {
        fill(&db, &distinct, args.value_bytes as usize)?;
    }
    let hits = count_hits(&db, reads)?;
    let batches: Vec<usize> = args.batch.iter().map(|&batch| batch as usize).collect();
    let lookups = Lookups {
        db: &db,
        reads,
        // Every turn reads the whole trace.
        hits: &|_| hits,
        batches: &batches,
        about: about(args, &distinct, hits as f64 / reads.len() as f64),
    };
    lookups.check(CHECKED_READS, |at| {
        let key = reads[at].as_ref();
        Ok(if args.fill {
            Some(Cow::Owned(made_up_value(key, args.value_bytes as usize)))
        } else {
            db.get(key).context("cannot look up a key")?.map(Cow::Owned)
        })
    })?;
    let plan = Plan::new(args.rounds as usize, Duration::ZERO);
    let rows = lookups.measure(&plan, Length::AllReads, &Progress::on_terminal())?;
    db.close().context("cannot close the store")?;

    let mut out = Out::stdout();
    if args.json {
        for row in &rows {
            out.line(format_args!("{}", row.to_json()?))?;
        }
    } else {
        out.line(format_args!(
            "{} of {}, {:.1}% found; the median of {}",
            output::counted(reads.len() as u64, "read"),
            output::counted(distinct.len() as u64, "distinct key"),
            hits as f64 / reads.len() as f64 * 100.0,
            output::counted(args.rounds.into(), "round"),
        ))?;
        out.bytes(table(&rows).to_text().as_bytes())?;
    }
    out.finish()?;
    Ok(Outcome::Done)
}

/// The fields that all rows share.
fn about<K: AsRef<[u8]>>(args: &Args, distinct: &[&K], hit_rate: f64) -> Row {
    let total_bytes: usize = distinct.iter().map(|key| key.as_ref().len()).sum();
    Row {
        bench: "replay".to_owned(),
        case: args.trace.display().to_string(),
        keys: distinct.len() as u64,
        key_bytes: (total_bytes / distinct.len().max(1)) as u64,
        value_bytes: if args.fill {
            args.value_bytes.into()
        } else {
            0
        },
        hit_rate: Some(hit_rate),
        ..Row::default()
    }
}

/// Counts the reads whose keys exist, with batches of a fixed size.
fn count_hits<K: AsRef<[u8]>>(db: &Db, reads: &[K]) -> anyhow::Result<usize> {
    let mut values = Values::new();
    let mut hits = 0;
    for keys in reads.chunks(256) {
        db.multi_get(keys, &mut values)
            .context("cannot look up a batch")?;
        hits += values.found();
    }
    Ok(hits)
}

/// Each distinct key once, in the order of the first reads. This is the order in which a program
/// would have written them.
fn first_reads<K: AsRef<[u8]> + Eq + Hash>(reads: &[K]) -> Vec<&K> {
    let mut seen = HashSet::new();
    reads.iter().filter(|&key| seen.insert(key)).collect()
}

fn fill<K: AsRef<[u8]>>(db: &Db, keys: &[&K], value_bytes: usize) -> anyhow::Result<()> {
    let progress = Progress::on_terminal().rate("fill", Some(keys.len() as u64), "keys");
    let mut batch = WriteBatch::new();
    let mut put = 0;
    for some in keys.chunks(FILL_BATCH) {
        batch.clear();
        for key in some {
            let key = key.as_ref();
            batch
                .put(key, &made_up_value(key, value_bytes))
                .map_err(|error| UsageError(format!("the trace cannot fill a store: {error}")))?;
        }
        db.write(&batch, Durability::Buffered)
            .context("cannot fill the store")?;
        put += some.len() as u64;
        progress.update(put, put);
    }
    progress.finish();
    db.flush_wal()
        .context("cannot make the filled store durable")
}

/// A value that only this key has, so that every wrong answer is noticed.
fn made_up_value(key: &[u8], length: usize) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let mut state = hasher.finish();
    let mut value = Vec::with_capacity(length.next_multiple_of(8));
    while value.len() < length {
        // One step of a SplitMix64 generator.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value.extend_from_slice(&(mixed ^ (mixed >> 27)).to_le_bytes());
    }
    value.truncate(length);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_keys_keep_the_order_of_their_first_reads() {
        let reads: [&[u8; 1]; 5] = [b"b", b"a", b"b", b"c", b"a"];
        assert_eq!(first_reads(&reads), [&b"b", &b"a", &b"c"]);
    }

    #[test]
    fn generated_values_have_their_length_and_differ() {
        for length in [0, 1, 7, 8, 9, 100] {
            assert_eq!(made_up_value(b"a", length).len(), length);
        }
        assert_eq!(made_up_value(b"a", 100), made_up_value(b"a", 100));
        assert_ne!(made_up_value(b"a", 100), made_up_value(b"b", 100));
    }
}
