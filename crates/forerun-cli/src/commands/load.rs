//! `forerun load` loads the rows of a table into a store.
//!
//! ```text
//!   rows ─> batch ─┬─> put: log, memtable                  the first rows, and all rows after a key that is out of order
//!                  └─> ingest: directly into runs        once the keys of many rows have been in order
//! ```
//!
//! Memory holds one batch, whatever the length of the file. Before a batch is written, its keys are
//! looked up as one batch, so that the summary can report new and replaced keys: a key column that
//! is not unique is noticed at once.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use forerun_core::size::parse_count;
use forerun_db::{
    Bytewise, Comparator, Db, Durability, Ingestion, Keyspace, Op, Values, WriteBatch,
};
use forerun_measure::progress::{Progress, RateBar};

use crate::exit::{self, Outcome, UsageError};
use crate::input::Source;
use crate::input::parsed_row::{BadRow, KeySpec, Row, Step};
use crate::input::rows::{Format, Rows, parse_delimiter};
use crate::open_store::{DurabilityArg, KeyspaceArgs, StoreArgs};
use crate::output::{self, Out};

/// Maximum rows per batch.
const BATCH_ROWS: usize = 512;
/// A batch is also written when its keys and values reach this size.
const BATCH_BYTES: usize = 4 << 20;
/// Rows that must have ascending keys before the following rows are ingested. For fewer rows,
/// ingestion does not pay.
const ASCENDING_ROWS: u64 = 8192;
/// Bytes of keys and values after which an ingestion is committed and the next one begins. A load
/// that is interrupted keeps what was committed.
const INGESTION_BYTES: usize = 256 << 20;
/// Number of bad rows that `--skip-bad` reports one by one. The rest are only counted.
const BAD_ROWS_NAMED: u64 = 5;

/// Load a CSV, TSV or NDJSON file into a store
///
/// The store is created if it does not exist. The key consists of the columns given by --key. The
/// value is the whole row: a JSON object for CSV and TSV, the unchanged line for NDJSON. In NDJSON,
/// a key that is a number is stored as it is written: 1 and 1.0 are two keys. A later row replaces
/// an earlier one with the same key. If the load fails, the rows before the error stay in the
/// store.
///
/// Rows in ascending byte order of their keys are written directly into runs, without the log, in
/// about half the time: sort large files by key. All rows after the first one that is out of order
/// go through the log and the memtable. With --durability synced, all rows do. If a load is killed,
/// sorted rows survive up to the last commit (every 256 MiB).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun load cities.db cities.csv.gz --key id
  forerun load cities.db cities.tsv --key country --key name --separator /
  forerun load cities.db countries.csv --key code --keyspace countries
  forerun load cities.db export.csv --delimiter ';' --key id
  zcat events.ndjson.gz | forerun load events.db - --format ndjson --key id --skip-bad")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// The file, optionally compressed with gzip or xz; - for standard input
    file: PathBuf,
    /// The file's format [default: from its name: .csv, .tsv, .ndjson, .jsonl]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The field separator of a CSV file: one ASCII character, or tab [default: ,]
    #[arg(long, value_name = "CHAR", value_parser = parse_delimiter)]
    delimiter: Option<u8>,
    /// The key column; if given several times, the columns are joined
    #[arg(long, value_name = "COLUMN", required = true)]
    key: Vec<String>,
    /// The separator between several key columns
    #[arg(long, default_value = "/")]
    separator: String,
    /// Skip bad rows, report the first few and count the rest, instead of stopping at the first
    #[arg(long)]
    skip_bad: bool,
    /// Durability of each batch of rows while loading; at the end, all rows are on stable storage
    #[arg(long, value_enum, default_value_t = DurabilityArg::Buffered)]
    durability: DurabilityArg,
    /// Maximum number of bytes to write to runs per second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_count)]
    rate: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The result of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Summary {
    rows: u64,
    replaced: u64,
    bad: u64,
}

impl Summary {
    fn json(self, took: Duration) -> serde_json::Value {
        serde_json::json!({
            "rows": self.rows,
            "new_keys": self.rows - self.replaced,
            "replaced": self.replaced,
            "skipped": self.bad,
            "seconds": took.as_secs_f64(),
        })
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let format = args
        .format
        .or_else(|| Format::of_name(&args.file))
        .ok_or_else(|| {
            let name = args.file.display();
            UsageError(format!(
                "cannot tell the format of {name} from its name; use --format"
            ))
        })?;
    let layout = format
        .layout(args.delimiter)
        .map_err(|problem| UsageError(problem.to_owned()))?;
    // Open the input first: a wrong name must not leave an empty store behind.
    let key = KeySpec {
        columns: args.key.clone(),
        separator: args.separator.clone(),
    };
    let mut rows = Rows::new(Source::open(&args.file)?, layout, key)?;
    let db = args.store.open_or_create()?;
    if args.rate.is_some() {
        db.set_write_rate(args.rate);
    }
    let keyspace = args.keyspace.open_or_create(&db)?;

    let progress = Progress::on_terminal().rate("load", rows.place().total_bytes(), "rows");
    let mut loader = Loader::new(&db, &keyspace, args.durability.into());
    let loaded = loader.load(&mut rows, args.skip_bad, &progress);
    // The rows before an error are valid. They stay, durably.
    let kept = loader
        .put_pending()
        .and_then(|()| loader.commit())
        .and_then(|()| db.flush_wal().context("cannot make the rows durable"));
    let took = progress.finish();
    let summary = loader.summary;
    if let Err(error) = loaded.and(kept) {
        let rows = output::counted(summary.rows, "row");
        return Err(error.context(format!("stopped after {rows}")));
    }
    db.close().context("cannot close the store")?;

    let mut out = Out::stdout();
    if args.json {
        out.line(format_args!("{}", summary.json(took)))?;
    } else {
        out.line(format_args!(
            "loaded {} in {} ({} rows/s): {}, {} replaced",
            output::counted(summary.rows, "row"),
            output::time(took),
            output::per_second(summary.rows, took),
            output::counted(summary.rows - summary.replaced, "new key"),
            output::count(summary.replaced),
        ))?;
    }
    out.finish()?;
    if summary.bad > 0 {
        exit::warn(format_args!(
            "skipped {}",
            output::counted(summary.bad, "bad row")
        ));
    }
    Ok(Outcome::partial_if(summary.bad > 0))
}

/// Writes rows in batches.
struct Loader<'a> {
    db: &'a Db,
    keyspace: &'a Keyspace,
    durability: Durability,
    batch: WriteBatch,
    batch_bytes: usize,
    keys: Vec<Vec<u8>>,
    found: Values,
    /// The last row's key, while all keys so far ascend.
    ascending_to: Option<Vec<u8>>,
    ingestion: Option<Ingestion>,
    ingestion_bytes: usize,
    summary: Summary,
}

impl<'a> Loader<'a> {
    fn new(db: &'a Db, keyspace: &'a Keyspace, durability: Durability) -> Loader<'a> {
        // Ingested rows must ascend in the keyspace's order.
        let is_by_bytes = keyspace.comparator_name() == Bytewise.name();
        Loader {
            db,
            keyspace,
            durability,
            batch: WriteBatch::new(),
            batch_bytes: 0,
            keys: Vec::new(),
            found: Values::new(),
            // With synced durability a row cannot wait for the following rows.
            ascending_to: (durability == Durability::Buffered && is_by_bytes).then(Vec::new),
            ingestion: None,
            ingestion_bytes: 0,
            summary: Summary::default(),
        }
    }

    fn load(&mut self, rows: &mut Rows, skip_bad: bool, progress: &RateBar) -> anyhow::Result<()> {
        let mut row = Row::default();
        loop {
            let bad = match rows.next(&mut row)? {
                Step::End => return Ok(()),
                Step::Bad(bad) => Some(bad),
                Step::Row => {
                    self.note_order(&row.key)?;
                    // Only an oversized key or value is refused here, and nothing of it is kept.
                    let mut batch = self.batch.keyspace(self.keyspace);
                    let put = batch.put(&row.key, &row.value);
                    put.err().map(|error| BadRow {
                        name: rows.place().name().to_owned(),
                        number: row.number,
                        line: row.line,
                        problem: error.to_string(),
                    })
                }
            };
            match bad {
                Some(bad) if skip_bad => self.count_bad(&bad),
                Some(bad) => return Err(bad.into()),
                None => {
                    self.keys.push(row.key.clone());
                    self.batch_bytes += row.key.len() + row.value.len();
                }
            }
            if self.keys.len() >= BATCH_ROWS || self.batch_bytes >= BATCH_BYTES {
                self.put_pending()?;
                progress.update(rows.place().raw_bytes(), self.summary.rows);
            }
        }
    }

    /// Checks whether keys still ascend. If not, the pending ingestion is committed, so that its
    /// rows come before this one.
    fn note_order(&mut self, key: &[u8]) -> anyhow::Result<()> {
        match &mut self.ascending_to {
            None => {}
            Some(last) if self.summary.rows == 0 && self.keys.is_empty() || **last < *key => {
                last.clear();
                last.extend_from_slice(key);
            }
            Some(_) => {
                self.put_pending()?;
                self.commit()?;
                self.ascending_to = None;
            }
        }
        Ok(())
    }

    /// Commits the pending ingestion.
    fn commit(&mut self) -> anyhow::Result<()> {
        self.ingestion_bytes = 0;
        if let Some(ingestion) = self.ingestion.take() {
            ingestion.commit().context("cannot write rows")?;
        }
        Ok(())
    }

    fn count_bad(&mut self, bad: &BadRow) {
        self.summary.bad += 1;
        if self.summary.bad <= BAD_ROWS_NAMED {
            exit::warn(format_args!("skipped: {bad}"));
        }
    }

    /// Writes the pending rows. They are removed even if that fails: a failed batch is never
    /// retried.
    fn put_pending(&mut self) -> anyhow::Result<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let rows = self.keys.len() as u64;
        let put = self.put_batch();
        self.ingestion_bytes += self.batch_bytes;
        self.batch.clear();
        self.batch_bytes = 0;
        self.keys.clear();
        self.summary.replaced += put?;
        self.summary.rows += rows;
        if self.ingestion_bytes >= INGESTION_BYTES {
            self.commit()?;
        }
        Ok(())
    }

    /// Writes the batch and returns how many of its rows replaced another.
    fn put_batch(&mut self) -> anyhow::Result<u64> {
        let rows = self.keys.len();
        self.keys.sort_unstable();
        self.keys.dedup();
        self.keyspace
            .multi_get(&self.keys, &mut self.found)
            .context("cannot look up the rows' keys")?;
        let put = match self.ascending_to {
            Some(_) if self.summary.rows >= ASCENDING_ROWS => {
                let ingestion = self.ingestion.get_or_insert_with(|| self.keyspace.ingest());
                self.batch.ops().try_for_each(|op| match op {
                    Op::Put { key, value } => ingestion.add(key, value),
                    Op::Delete { key } => ingestion.delete(key),
                    // A load deletes no ranges.
                    Op::DeleteRange { .. } => Ok(()),
                })
            }
            _ => self.db.write(&self.batch, self.durability).map(drop),
        };
        put.context("cannot write rows")?;
        Ok((rows - self.keys.len() + self.found.found()) as u64)
    }
}
