//! The demo's first half: loads the cities, opens the store again, and looks some of them up.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use forerun_db::{Db, Durability, Options, Values, WriteBatch};
use forerun_measure::progress::Progress;

use super::cities::{CREDIT, Record};
use crate::exit::{CheckFailed, UsageError};
use crate::output::{self, Out, Printable};

/// Entries per batch while loading.
pub const LOAD_BATCH: usize = 1024;

/// Loads the records into a new store in `dir`, opens the store again, and checks every record.
pub fn load(records: &[Record], dir: &Path, out: &mut Out) -> anyhow::Result<Db> {
    let occupied = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if occupied {
        return Err(UsageError(format!(
            "{} is not empty: the demo needs an empty directory",
            dir.display()
        ))
        .into());
    }
    let total_bytes: usize = records
        .iter()
        .map(|record| record.key.len() + record.value.len())
        .sum();
    out.line(format_args!(
        "{}: {}",
        CREDIT,
        output::counted(records.len() as u64, "record")
    ))?;
    out.flush()?;

    let began = Instant::now();
    let db = Db::open(dir, Options::default()).context("cannot create the store")?;
    let progress = Progress::on_terminal().rate("load", Some(records.len() as u64), "records");
    let mut batch = WriteBatch::new();
    let mut put = 0;
    for some in records.chunks(LOAD_BATCH) {
        batch.clear();
        for record in some {
            batch.put(&record.key, &record.value)?;
        }
        db.write(&batch, Durability::Buffered)
            .context("cannot load the records")?;
        put += some.len() as u64;
        progress.update(put, put);
    }
    db.flush_wal().context("cannot make the records durable")?;
    progress.finish();
    out.line(format_args!(
        "loaded {} into {} in {}, on stable storage",
        output::bytes(total_bytes as u64),
        dir.display(),
        pace(records.len(), "records", began)
    ))?;
    db.close().context("cannot close the store")?;

    let began = Instant::now();
    let db = Db::open(dir, Options::default()).context("cannot open the store again")?;
    out.line(format_args!(
        "opened again from its log in {}",
        pace(records.len(), "records", began)
    ))?;
    let found = db.iter().count();
    if found != records.len() {
        let problem = format!(
            "{found} of {} records were found after the store was opened again",
            records.len()
        );
        return Err(CheckFailed(problem).into());
    }
    Ok(db)
}

/// Prints some lookups: a prefix scan, and a batch that includes a missing key.
pub fn samples(db: &Db, out: &mut Out) -> anyhow::Result<()> {
    let mut some = Vec::new();
    for prefix in ["AD/", "IS/Reykjavík/", "JP/Kyoto/", "CH/Zürich/"] {
        if let Some(entry) = db.prefix(prefix.as_bytes()).next() {
            some.push(entry.context("cannot scan")?.0);
        }
    }
    some.push(b"XX/Atlantis/0,0".to_vec());
    let mut values = Values::new();
    let began = Instant::now();
    db.multi_get(&some, &mut values)
        .context("cannot look up a batch")?;
    let took = began.elapsed();
    out.line(format_args!(
        "\none batch of {}, answered in {}:",
        output::counted(some.len() as u64, "key"),
        output::time(took)
    ))?;
    for (at, key) in some.iter().enumerate() {
        match values.get(at)? {
            Some(value) => out.line(format_args!(
                "  {}\n    {}",
                Printable(key),
                Printable(value)
            ))?,
            None => out.line(format_args!("  {}\n    not found", Printable(key)))?,
        }
    }
    out.flush()
}

/// A rate and its time: `1.24 s (116 k records/s)`.
fn pace(number: usize, what: &str, began: Instant) -> String {
    let took = began.elapsed();
    format!(
        "{} ({} {what}/s)",
        output::time(took),
        output::per_second(number as u64, took)
    )
}
