//! `forerun demo` shows on real data how much batched lookups gain on this machine.
//!
//! ```text
//! cities        the data set, with a key and a record for each place
//! city_lookups  loads it, opens it again, looks up some of it
//! mod           compares batches with single lookups, on the cities and then on a larger store
//! report_page   the results as a page with plots
//! temporary     a directory that is removed at the end, also when a signal ends the demo
//! ```

mod cities;
mod city_lookups;
mod report_page;
mod temporary;

use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use forerun_db::{Db, Durability, Options, WalMode, WriteBatch};
use forerun_measure::harness::Plan;
use forerun_measure::progress::Progress;
use forerun_measure::result_row::Row;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::exit::Outcome;
use crate::measure::{Length, Lookups, comparison};
use crate::output::{self, Out};
use city_lookups::LOAD_BATCH;

/// Batch sizes; the report has a row for each.
const BATCHES: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 256, 1024];
/// Entries of the large store, and the lengths of its keys and values. The store takes 350 MB, more
/// than the caches of most CPUs.
const LARGE_ENTRIES: usize = 2_000_000;
const LARGE_KEY_BYTES: usize = 16;
const LARGE_VALUE_BYTES: usize = 100;
/// Twice the size of the memtable, so that the whole store stays in the memtable.
const LARGE_MEMORY_BYTES: usize = 2 << 30;

/// Show on real data how much batched lookups gain
///
/// Takes about a minute. The data set is the cities of GeoNames (CC BY 4.0). The demo loads it into
/// a store on disk, looks up some of it, and compares batches of lookups with one key at a time.
/// Then it does the same on a store of 2,000,000 entries, which is larger than the caches of most
/// CPUs.
/// Every answer is checked against the source.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun demo
  forerun demo --report what-a-batch-is-worth.html --dir cities.db")]
pub struct Args {
    /// File for the page with the plots
    #[arg(long, value_name = "FILE.html", default_value = "forerun-demo.html")]
    report: PathBuf,
    /// Directory for the store of cities, which is then kept [default: a temporary directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Use tiny sizes and times, to check that everything runs; the figures mean nothing
    #[arg(long)]
    quick: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    // A mistyped path must not cost a minute.
    check_writable(&args.report)
        .with_context(|| format!("cannot write the page {}", args.report.display()))?;
    let temporary = temporary::Directory::new()?;
    let dir = args
        .dir
        .clone()
        .unwrap_or_else(|| temporary.path().join("cities"));

    let mut out = Out::stdout();
    let records = cities::records(if args.quick { 2000 } else { usize::MAX });
    let db = city_lookups::load(&records, &dir, &mut out)?;
    city_lookups::samples(&db, &mut out)?;

    let plan = if args.quick {
        Plan::new(1, Duration::from_micros(50))
    } else {
        Plan::new(5, Duration::from_millis(100))
    };
    let mut sets = Vec::new();
    out.line(format_args!(
        "\nRandom cities looked up in batches: one key at a time, and with the \
         misses of a batch overlapped:"
    ))?;
    out.flush()?;
    let cities = measure_cities(&db, &records, &plan)?;
    out.bytes(comparison(&cities).to_text().as_bytes())?;
    out.flush()?;
    sets.push(cities);
    db.close().context("cannot close the store")?;

    let entries = if args.quick { 5000 } else { LARGE_ENTRIES };
    out.line(format_args!(
        "\nThe same on {} entries (keys of {LARGE_KEY_BYTES} bytes, values of \
         {LARGE_VALUE_BYTES}):",
        output::count(entries as u64),
    ))?;
    out.flush()?;
    let large = measure_large(&records, entries, &temporary.path().join("large"), &plan)?;
    out.bytes(comparison(&large).to_text().as_bytes())?;
    sets.push(large);

    let page = report_page::page(&sets);
    std::fs::write(&args.report, page.to_html())
        .with_context(|| format!("cannot write the page {}", args.report.display()))?;
    out.line(format_args!(
        "\nEvery answer was checked against the source. The same with plots: {}",
        args.report.display()
    ))?;
    if let Some(dir) = &args.dir {
        let dir = dir.display();
        out.line(format_args!(
            "The cities stay in {dir}; try: forerun scan {dir} --prefix IS/ --limit 5"
        ))?;
    }
    out.finish()?;
    Ok(Outcome::Done)
}

/// Checks that a file can be written. Leaves no new file, since the demo may be interrupted.
fn check_writable(path: &Path) -> std::io::Result<()> {
    match std::fs::File::create_new(path) {
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            std::fs::File::options().append(true).open(path).map(drop)
        }
        Err(error) => Err(error),
    }
}

fn measure_cities(db: &Db, records: &[cities::Record], plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut order: Vec<&cities::Record> = records.iter().collect();
    order.shuffle(&mut SmallRng::seed_from_u64(1));
    let reads: Vec<&[u8]> = order.iter().map(|record| record.key.as_slice()).collect();
    let mean = |length: fn(&cities::Record) -> usize| {
        (records.iter().map(length).sum::<usize>() / records.len().max(1)) as u64
    };
    let lookups = Lookups {
        db,
        reads: &reads,
        hits: &|range| range.len(),
        batches: &BATCHES,
        about: Row {
            bench: "demo".to_owned(),
            case: "cities".to_owned(),
            keys: records.len() as u64,
            key_bytes: mean(|record| record.key.len()),
            value_bytes: mean(|record| record.value.len()),
            hit_rate: Some(1.0),
            ..Row::default()
        },
    };
    lookups.check(reads.len(), |at| {
        Ok(Some(Cow::Borrowed(order[at].value.as_slice())))
    })?;
    lookups.measure(plan, Length::Time, &Progress::on_terminal())
}

/// The large store holds pieces of the cities' records. Its log is off, because this measures
/// memory.
fn measure_large(
    records: &[cities::Record],
    entries: usize,
    dir: &Path,
    plan: &Plan,
) -> anyhow::Result<Vec<Row>> {
    let db = Db::open(
        dir,
        Options::default()
            .wal(WalMode::Off)
            .memory_limit_bytes(LARGE_MEMORY_BYTES)
            .memtable_bytes(LARGE_MEMORY_BYTES / 2),
    )
    .context("cannot open the large store")?;
    fill_large(&db, records, entries)?;
    let mut rng = SmallRng::seed_from_u64(2);
    let numbers: Vec<u32> = (0..entries.min(200_000))
        .map(|_| rng.random_range(0..entries as u32))
        .collect();
    let reads: Vec<[u8; LARGE_KEY_BYTES]> =
        numbers.iter().map(|&number| large_key(number)).collect();
    let lookups = Lookups {
        db: &db,
        reads: &reads,
        hits: &|range| range.len(),
        batches: &BATCHES,
        about: Row {
            bench: "demo".to_owned(),
            case: "large".to_owned(),
            keys: entries as u64,
            key_bytes: LARGE_KEY_BYTES as u64,
            value_bytes: LARGE_VALUE_BYTES as u64,
            hit_rate: Some(1.0),
            ..Row::default()
        },
    };
    lookups.check(50_000, |at| {
        Ok(Some(Cow::Owned(large_value(records, numbers[at]).to_vec())))
    })?;
    let rows = lookups.measure(plan, Length::Time, &Progress::on_terminal())?;
    db.close().context("cannot close the large store")?;
    Ok(rows)
}

fn fill_large(db: &Db, records: &[cities::Record], entries: usize) -> anyhow::Result<()> {
    let progress = Progress::on_terminal().rate("load", Some(entries as u64), "entries");
    let mut batch = WriteBatch::new();
    for begin in (0..entries).step_by(LOAD_BATCH) {
        batch.clear();
        let end = entries.min(begin + LOAD_BATCH);
        for number in begin as u32..end as u32 {
            batch.put(&large_key(number), &large_value(records, number))?;
        }
        db.write(&batch, Durability::Buffered)
            .context("cannot fill the large store")?;
        progress.update(end as u64, end as u64);
    }
    progress.finish();
    Ok(())
}

/// Sixteen hexadecimal digits that look random and never repeat: the steps of SplitMix64 are
/// invertible.
fn large_key(number: u32) -> [u8; LARGE_KEY_BYTES] {
    let mut bits = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    std::array::from_fn(|at| b"0123456789abcdef"[(bits >> (60 - 4 * at)) as usize & 15])
}

/// A value of a hundred bytes that only this number has: the number, then a record's text, cut or
/// padded with spaces.
fn large_value(records: &[cities::Record], number: u32) -> [u8; LARGE_VALUE_BYTES] {
    let mut value = [b' '; LARGE_VALUE_BYTES];
    let digits = number.to_string();
    let record = &records[number as usize % records.len()].value;
    let text = digits.bytes().chain([b' ']).chain(record.iter().copied());
    value
        .iter_mut()
        .zip(text)
        .for_each(|(byte, letter)| *byte = letter);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn large_keys_never_repeat_and_values_name_their_number() {
        let keys: HashSet<[u8; 16]> = (0..20_000).map(large_key).collect();
        assert_eq!(keys.len(), 20_000);
        let records = cities::records(10);
        assert!(large_value(&records, 1234).starts_with(b"1234 {"));
        assert_ne!(large_value(&records, 3), large_value(&records, 13));
    }
}
