//! `forerun backup` keeps several backups of a store in one directory; `forerun restore` restores
//! one.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use forerun_core::size::parse_count;
use forerun_db::{Backup, Backups, Create};
use serde_json::json;

use super::checkpoint::with_progress;
use crate::exit::{self, CheckFailed, Outcome};
use crate::open_store::StoreOptions;
use crate::output::{self, Out};

/// Back up a store, or list, verify and prune existing backups
///
/// DIR holds any number of backups. Data that several backups have in common is stored once, so a
/// backup takes time and space only for what is new since the one before. It is a full copy,
/// checked page by page, and later changes of the store do not affect it. A backup is either
/// complete or absent.
#[derive(Debug, clap::Args)]
#[command(
    allow_missing_positional = true,
    after_help = "\
Examples:
  forerun backup cities.db backups
  forerun backup cities.db backups --keep 7     make one, then remove all but the newest 7
  forerun backup cities.db backups --rate 50MiB
  forerun backup backups --list
  forerun backup backups --verify
  forerun restore backups cities-again.db"
)]
pub struct Args {
    /// The store's directory
    #[arg(value_name = "DB", required_unless_present_any = ["list", "verify", "keep"])]
    db: Option<PathBuf>,
    /// The directory of backups; created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// List the backups
    #[arg(long, conflicts_with_all = ["db", "verify", "keep"])]
    list: bool,
    /// Read every byte of all backups and report damage
    #[arg(long, conflicts_with_all = ["db", "keep"])]
    verify: bool,
    /// Keep the N newest backups and remove the others
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,
    /// Maximum number of bytes to copy, or to verify, per second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_count, conflicts_with = "list")]
    rate: Option<u64>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: StoreOptions,
}

/// Restore a store from a backup
///
/// DB must not exist yet or be empty. Every byte read from the backup is verified; if one is wrong,
/// no store is created.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun restore backups cities.db
  forerun restore backups cities.db --backup 3
  forerun restore backups cities.db --json")]
pub struct RestoreArgs {
    /// The directory of backups
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The directory of the new store
    #[arg(value_name = "DB")]
    into: PathBuf,
    /// Number of the backup [default: the newest]
    #[arg(long, value_name = "N")]
    backup: Option<u64>,
    /// Maximum number of bytes to copy per second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_count)]
    rate: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    if args.list {
        return list(args);
    }
    if args.verify {
        return verify(args);
    }
    let mut out = Out::stdout();
    let mut backups = match &args.db {
        Some(db) => create(args, db, &mut out)?,
        None => open(&args.dir)?,
    };
    if let Some(newest) = args.keep {
        let newest = usize::try_from(newest).unwrap_or(usize::MAX);
        let removed = backups
            .purge_old(newest)
            .context("cannot remove older backups")?;
        if args.json {
            out.line(format_args!(
                "{}",
                json!(
                    { "removed": removed.backups, "files": removed.files, "bytes": removed.bytes })
            ))?;
        } else {
            out.line(format_args!(
                "removed {} and {} ({})",
                output::counted(removed.backups.len() as u64, "backup"),
                output::counted(removed.files as u64, "file"),
                output::bytes(removed.bytes)
            ))?;
        }
    }
    out.finish()?;
    Ok(Outcome::Done)
}

/// Runs `forerun restore`.
pub fn restore(args: &RestoreArgs) -> anyhow::Result<Outcome> {
    let mut backups = open(&args.dir)?;
    let start = Instant::now();
    let restored = with_progress("restore", args.rate, |options| {
        backups.set_copy_options(options);
        backups.restore(args.backup, &args.into)
    });
    let backup = restored.context("cannot restore")?;
    let took = start.elapsed();
    let mut out = Out::stdout();
    let into = args.into.display();
    if args.json {
        let mut object = object(&backup);
        object["path"] = into.to_string().into();
        object["seconds"] = took.as_secs_f64().into();
        out.line(format_args!("{object}"))?;
    } else {
        out.line(format_args!(
            "{into} was restored from backup {} of {}: {} in {}",
            backup.number,
            output::utc(backup.created_unix),
            output::bytes(backup.bytes),
            output::time(took)
        ))?;
    }
    out.finish()?;
    Ok(Outcome::Done)
}

fn open(dir: &Path) -> anyhow::Result<Backups> {
    Backups::open(dir).context("cannot open the backups")
}

fn create(args: &Args, db: &Path, out: &mut Out) -> anyhow::Result<Backups> {
    // Open the store first: if it does not exist, no directory is created.
    let db = args.options.open(db, Create::Never)?;
    let mut backups = Backups::open_or_create(&args.dir).context("cannot open the backups")?;
    let start = Instant::now();
    let made = with_progress("backup", args.rate, |options| {
        backups.set_copy_options(options);
        backups.create(&db)
    });
    let made = made.context("cannot create the backup")?;
    db.close().context("cannot close the store")?;
    if args.json {
        out.line(format_args!("{}", object(&made)))?;
    } else {
        out.line(format_args!(
            "created backup {}: {}, {} of it new, in {}",
            made.number,
            output::bytes(made.bytes),
            output::bytes(made.own_bytes),
            output::time(start.elapsed())
        ))?;
    }
    Ok(backups)
}

fn list(args: &Args) -> anyhow::Result<Outcome> {
    let list = open(&args.dir)?.list().context("cannot list the backups")?;
    for (_, error) in &list.damaged {
        exit::warn(format_args!("{error}"));
    }
    let mut out = Out::stdout();
    if !args.json && !list.backups.is_empty() {
        out.line(format_args!(
            "backup  made                         last write   runs        size         own"
        ))?;
    }
    for backup in &list.backups {
        if args.json {
            out.line(format_args!("{}", object(backup)))?;
        } else {
            out.line(format_args!(
                "{:>6}  {}  {:>16}  {:>5}  {:>10}  {:>10}",
                backup.number,
                output::utc(backup.created_unix),
                output::count(backup.last_sequence),
                output::count(backup.runs as u64),
                output::bytes(backup.bytes),
                output::bytes(backup.own_bytes)
            ))?;
        }
    }
    out.finish()?;
    Ok(Outcome::partial_if(!list.damaged.is_empty()))
}

fn verify(args: &Args) -> anyhow::Result<Outcome> {
    let mut backups = open(&args.dir)?;
    let checked = with_progress("verify", args.rate, |options| {
        backups.set_copy_options(options);
        backups.verify()
    });
    let checked = checked.context("cannot verify the backups")?;
    for problem in &checked.problems {
        exit::warn(format_args!("{problem}"));
    }
    let mut out = Out::stdout();
    if args.json {
        out.line(format_args!(
            "{}",
            json!({
                "backups": checked.backups,
                "runs": checked.runs,
                "bytes": checked.bytes,
                "leftovers": checked.leftovers,
                "problems": checked.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
            })
        ))?;
    } else {
        out.line(format_args!(
            "backups    {}, {} in {}",
            output::count(checked.backups as u64),
            output::bytes(checked.bytes),
            output::counted(checked.runs as u64, "run")
        ))?;
        if checked.leftovers > 0 {
            let files = output::counted(checked.leftovers as u64, "file");
            out.line(format_args!(
                "left over  {files}, which the next backup removes"
            ))?;
        }
        let found = match checked.problems.len() {
            0 => "no damage".to_owned(),
            problems => output::counted(problems as u64, "problem"),
        };
        out.line(format_args!("found      {found}"))?;
    }
    out.finish()?;
    match checked.problems.len() {
        0 => Ok(Outcome::Done),
        problems => Err(CheckFailed(format!(
            "backups in {} are damaged: {}",
            args.dir.display(),
            output::counted(problems as u64, "problem")
        ))
        .into()),
    }
}

fn object(backup: &Backup) -> serde_json::Value {
    json!({
        "backup": backup.number,
        "created": output::utc(backup.created_unix),
        "last_sequence": backup.last_sequence,
        "keyspaces": backup.keyspaces,
        "runs": backup.runs,
        "bytes": backup.bytes,
        "own_bytes": backup.own_bytes,
    })
}
