//! `forerun put` writes a few entries to a store.

use std::ffi::{OsStr, OsString};
use std::io::Read;

use anyhow::Context;
use forerun_db::{Error, WriteBatch};
use serde_json::json;

use crate::commands::get::parse_key;
use crate::exit::{self, Outcome, UsageError};
use crate::open_store::{DurabilityArg, KeyspaceArgs, StoreArgs};
use crate::output::Out;

/// Write entries to a store
///
/// The arguments are keys and values in turn. They are written in one batch: either all of them or
/// none. A later entry replaces an earlier one with the same key. To load a file, use `forerun
/// load`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun put towns.db CH/Bern 46.948,7.447 --create
  forerun put towns.db CH/Biel 47.137,7.246 DE/Bonn 50.734,7.100
  forerun put towns.db CH/map - < switzerland.png
  forerun put towns.db FR/Lyon 45.764,4.836 --json
  forerun put trace.db --hex 0800002a --hex-values 00ff")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys and values in turn; a value of - is read from standard input
    #[arg(required = true, value_name = "KEY VALUE")]
    entries: Vec<OsString>,
    /// Create the store and the keyspace if they do not exist
    #[arg(long)]
    create: bool,
    /// Keys are hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// Values are hexadecimal digits
    #[arg(long)]
    hex_values: bool,
    /// Durability of the entries when the command ends
    #[arg(long, value_enum, default_value_t = DurabilityArg::Synced)]
    durability: DurabilityArg,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let entries = entries(args)?;
    let db = if args.create {
        args.store.open_or_create()?
    } else {
        args.store.open_existing().map_err(suggest_create)?
    };
    let keyspace = if args.create {
        args.keyspace.open_or_create(&db)?
    } else {
        args.keyspace.existing(&db).map_err(suggest_create)?
    };
    let mut batch = WriteBatch::new();
    for (key, value) in &entries {
        batch
            .keyspace(&keyspace)
            .put(key, value)
            .context("cannot write the entry")?;
    }
    db.write(&batch, args.durability.into())
        .context("cannot write the entries")?;
    drop(keyspace);
    db.close().context("cannot close the store")?;
    if args.json {
        let mut out = Out::stdout();
        out.line(format_args!("{}", json!({"entries": entries.len()})))?;
        out.finish()?;
    }
    Ok(Outcome::Done)
}

/// Adds to the error that nothing is there to write to that `--create` would create it.
fn suggest_create(error: anyhow::Error) -> anyhow::Error {
    let is_missing = match error.downcast_ref() {
        Some(Error::NotAStore { path, .. }) => !path.exists(),
        Some(Error::UnknownKeyspace { .. }) => true,
        _ => false,
    };
    if is_missing {
        anyhow::anyhow!("{}; --create creates it", exit::one_line(&error))
    } else {
        error
    }
}

type Entry = (Vec<u8>, Vec<u8>);

/// The entries on the command line. Standard input is read here, before the store is opened.
fn entries(args: &Args) -> anyhow::Result<Vec<Entry>> {
    let (pairs, rest) = args.entries.as_chunks::<2>();
    if let [key] = rest {
        let key = key.to_string_lossy();
        return Err(UsageError(format!("the key {key:?} has no value")).into());
    }
    let is_input = |value: &OsStr| value == "-";
    if pairs.iter().filter(|[_, value]| is_input(value)).count() > 1 {
        let problem = "only one value can be read from standard input";
        return Err(UsageError(problem.to_owned()).into());
    }
    let mut entries = Vec::with_capacity(pairs.len());
    for [key, value] in pairs {
        let key = parse_key(key, args.hex)?;
        let value = if is_input(value) {
            let mut value = Vec::new();
            // One byte more than the maximum. The store's own error states the limit.
            let max = forerun_db::VALUE_BYTES_MAX as u64 + 1;
            std::io::stdin()
                .take(max)
                .read_to_end(&mut value)
                .context("cannot read standard input")?;
            value
        } else {
            parse_key(value, args.hex_values)?
        };
        entries.push((key, value));
    }
    Ok(entries)
}
