//! `forerun load`: a table's rows into a store.
//!
//! ```text
//!   rows ─> batch ─┬─> put: log, memtable                  the first rows, and all from a key that does not ascend on
//!                  └─> ingest: runs, once and for all      where the keys of many rows have ascended
//! ```
//!
//! Memory holds one batch, whatever the file's length. Before a batch goes in, its keys are looked
//! up, as one batch too, so that the summary can tell new keys from replaced ones: a key column
//! that is not unique shows at once.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use forerun_db::{
    Bytewise, Comparator, Db, Durability, Ingestion, Keyspace, Op, Values, WriteBatch,
};

use crate::exit::{self, Outcome, UsageError};
use crate::input::Source;
use crate::input::rows::{BadRow, Format, KeySpec, Row, Rows, Step, parse_delimiter};
use crate::output::{self, Out};
use crate::progress::Progress;
use crate::store::{DurabilityArg, KeyspaceArgs, StoreArgs};

/// Rows of a batch, unless their bytes end it before.
const BATCH_ROWS: usize = 512;
/// Bytes of keys and values after which a batch is put.
const BATCH_BYTES: usize = 4 << 20;
/// Rows that must have had ascending keys before the next are ingested: fewer are as well put.
const ASCENDING_ROWS: u64 = 8192;
/// Bytes of keys and values after which an ingestion is committed, and another begun: a load that
/// is cut short keeps what was committed.
const INGESTION_BYTES: usize = 256 << 20;
/// Bad rows that are named one by one under `--skip-bad`; the rest are counted.
const BAD_ROWS_NAMED: u64 = 5;

/// Load a CSV, TSV or NDJSON file into a store
///
/// The store is made where there is none. A key is made of the columns that --key names; the value
/// is the whole row: a JSON object for CSV and TSV, the line as it stands for NDJSON. A later row
/// replaces an earlier one of the same key. Rows before a fault stay in the store.
///
/// Rows whose keys ascend, byte by byte, are written straight to where they stay, past the log, in
/// about half the time: where the file is large, have it sorted by the key. From the first row on
/// that does not ascend, rows are put as any others; so are all with --durability synced. A load
/// that is killed keeps of ascending rows what was committed: every 256 MiB.
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
    /// The file, plain or in gzip or xz; - for standard input
    file: PathBuf,
    /// The file's format [default: told by its name: .csv, .tsv, .ndjson, .jsonl]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The character between a CSV file's fields: one ASCII character, or tab [default: ,]
    #[arg(long, value_name = "CHAR", value_parser = parse_delimiter)]
    delimiter: Option<u8>,
    /// The column that holds the key; given several times, they are joined
    #[arg(long, value_name = "COLUMN", required = true)]
    key: Vec<String>,
    /// What joins several key columns
    #[arg(long, default_value = "/")]
    separator: String,
    /// Pass over bad rows, name the first few and count them, instead of ending at the first
    #[arg(long)]
    skip_bad: bool,
    /// How durable a batch of rows is before the next; at the end all are on stable storage
    #[arg(long, value_enum, default_value_t = DurabilityArg::Buffered)]
    durability: DurabilityArg,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a load has come to.
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
                "the name of {name} does not tell its format: give --format"
            ))
        })?;
    let layout = format
        .layout(args.delimiter)
        .map_err(|problem| UsageError(problem.to_owned()))?;
    // The input first: a wrong name must not leave an empty store behind.
    let key = KeySpec {
        columns: args.key.clone(),
        separator: args.separator.clone(),
    };
    let mut rows = Rows::new(Source::open(&args.file)?, layout, key)?;
    let db = args.store.open_or_create()?;
    let keyspace = args.keyspace.open_or_create(&db)?;

    let progress = Progress::new("load", rows.place().total_bytes(), "rows");
    let mut loader = Loader::new(&db, &keyspace, args.durability.into());
    let loaded = loader.load(&mut rows, args.skip_bad, &progress);
    // Rows before a fault are good: they stay, durably.
    let kept = loader
        .put_pending()
        .and_then(|()| loader.commit())
        .and_then(|()| db.flush_wal().context("cannot make the rows durable"));
    let took = progress.finish();
    let summary = loader.summary;
    if let Err(error) = loaded.and(kept) {
        let rows = output::counted(summary.rows, "row");
        return Err(error.context(format!("loaded {rows}, then met a fault")));
    }
    db.close().context("cannot close the store")?;

    let mut out = Out::stdout();
    match args.json {
        true => out.line(format_args!("{}", summary.json(took)))?,
        false => out.line(format_args!(
            "loaded {} in {} ({} rows/s): {}, {} replaced",
            output::counted(summary.rows, "row"),
            output::time(took),
            output::per_second(summary.rows, took),
            output::counted(summary.rows - summary.replaced, "new key"),
            output::count(summary.replaced),
        ))?,
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

/// Puts rows in batches.
struct Loader<'a> {
    db: &'a Db,
    keyspace: &'a Keyspace,
    durability: Durability,
    batch: WriteBatch,
    batch_bytes: usize,
    keys: Vec<Vec<u8>>,
    found: Values,
    /// The last row's key, as long as each row's was behind the one before.
    ascending_to: Option<Vec<u8>>,
    ingestion: Option<Ingestion>,
    ingestion_bytes: usize,
    summary: Summary,
}

impl<'a> Loader<'a> {
    fn new(db: &'a Db, keyspace: &'a Keyspace, durability: Durability) -> Loader<'a> {
        // What is ingested must ascend in the order of the keyspace.
        let is_by_bytes = keyspace.comparator_name() == Bytewise.name();
        Loader {
            db,
            keyspace,
            durability,
            batch: WriteBatch::new(),
            batch_bytes: 0,
            keys: Vec::new(),
            found: Values::new(),
            // A row that is to be durable before the next cannot wait for the others.
            ascending_to: (durability == Durability::Buffered && is_by_bytes).then(Vec::new),
            ingestion: None,
            ingestion_bytes: 0,
            summary: Summary::default(),
        }
    }

    fn load(&mut self, rows: &mut Rows, skip_bad: bool, progress: &Progress) -> anyhow::Result<()> {
        let mut row = Row::default();
        loop {
            let bad = match rows.next(&mut row)? {
                Step::End => return Ok(()),
                Step::Bad(bad) => Some(bad),
                Step::Row => {
                    self.note_order(&row.key)?;
                    // Only a key or a value that is too long is refused here, and nothing of it is
                    // kept.
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

    /// Sees whether keys still ascend. If they cease to, what waits goes in as before, and is there
    /// when the row comes.
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

    /// Makes what was ingested a part of the store.
    fn commit(&mut self) -> anyhow::Result<()> {
        self.ingestion_bytes = 0;
        if let Some(ingestion) = self.ingestion.take() {
            ingestion.commit().context("cannot put rows")?;
        }
        Ok(())
    }

    fn count_bad(&mut self, bad: &BadRow) {
        self.summary.bad += 1;
        if self.summary.bad <= BAD_ROWS_NAMED {
            exit::warn(format_args!("skipped: {bad}"));
        }
    }

    /// Puts the rows that wait. They are taken off also where that fails: a failed batch is never
    /// tried twice.
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

    /// Puts the batch and tells how many of its rows took the place of another.
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
        put.context("cannot put rows")?;
        Ok((rows - self.keys.len() + self.found.found()) as u64)
    }
}
