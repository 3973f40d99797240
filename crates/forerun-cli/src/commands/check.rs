//! `forerun check` verifies every byte of a store; `--repair` repairs it.

use std::path::PathBuf;

use anyhow::Context;
use forerun_db::{CheckReport, Options, RepairReport};
use serde_json::json;

use crate::exit::{self, CheckFailed, Outcome};
use crate::output::{self, Out};

/// Verify a store and report damage
///
/// Reads the manifest, every page of every run, and the log, and changes nothing. A damaged file is
/// reported with the offset, and the other files are still checked. The store must not be open.
/// With --repair, a damaged store is then repaired so that it opens with everything that can be
/// read, and all losses are listed. Damaged runs are kept next to the others under names that end
/// in .bad.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun check cities.db
  forerun check cities.db --json
  forerun check cities.db --repair")]
pub struct Args {
    /// The store's directory
    #[arg(value_name = "DB")]
    path: PathBuf,
    /// Report damage, then repair it
    #[arg(long)]
    repair: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let check = |options: &Options| forerun_db::check(&args.path, options);
    let checked = Options::default()
        .in_stored_order(check)
        .context("cannot check the store")?;
    for problem in &checked.problems {
        exit::warn(format_args!("{problem}"));
    }
    let repaired = if args.repair && !checked.problems.is_empty() {
        let repair = |options: &Options| forerun_db::repair(&args.path, options);
        let repaired = Options::default().in_stored_order(repair);
        Some(repaired.context("cannot repair the store")?)
    } else {
        None
    };
    let mut out = Out::stdout();
    if args.json {
        print_json(&mut out, &checked, repaired.as_ref())?;
    } else {
        print(&mut out, &checked, repaired.as_ref())?;
    }
    out.finish()?;
    match (&repaired, checked.problems.len()) {
        (_, 0) => Ok(Outcome::Done),
        (Some(repaired), _) => Ok(Outcome::partial_if(!repaired.losses.is_empty())),
        (None, problems) => Err(CheckFailed(format!(
            "{} is damaged: {}",
            args.path.display(),
            output::counted(problems as u64, "problem")
        ))
        .into()),
    }
}

fn print(
    out: &mut Out,
    checked: &CheckReport,
    repaired: Option<&RepairReport>,
) -> anyhow::Result<()> {
    let runs = &checked.runs;
    if !checked.keyspaces.is_empty() {
        out.line(format_args!("keyspaces  {:?}", checked.keyspaces))?;
    }
    out.line(format_args!(
        "runs       {}, {} in {} ({})",
        output::count(runs.runs),
        output::counted(runs.entries, "version"),
        output::counted(runs.pages, "page"),
        output::bytes(runs.bytes),
    ))?;
    out.line(format_args!("log        {}", checked.log))?;
    if checked.leftovers > 0 {
        let files = output::counted(checked.leftovers as u64, "file");
        out.line(format_args!(
            "left over  {files}, which the next opening removes"
        ))?;
    }
    out.line(format_args!(
        "found      {}",
        match checked.problems.len() {
            0 => "no damage".to_owned(),
            problems => output::counted(problems as u64, "problem"),
        }
    ))?;
    let Some(repaired) = repaired else {
        return Ok(());
    };
    if repaired.rebuilt_manifest {
        out.line(format_args!("repaired   the manifest, from the runs"))?;
    }
    out.line(format_args!(
        "repaired   {} kept, {} rewritten",
        output::counted(repaired.good_runs as u64, "run"),
        output::count(repaired.new_runs as u64),
    ))?;
    for path in &repaired.set_aside {
        out.line(format_args!("kept       {}", path.display()))?;
    }
    for loss in &repaired.losses {
        out.line(format_args!("lost       {loss}"))?;
    }
    Ok(())
}

fn print_json(
    out: &mut Out,
    checked: &CheckReport,
    repaired: Option<&RepairReport>,
) -> anyhow::Result<()> {
    let texts = |list: Vec<String>| serde_json::Value::from(list);
    let repaired = repaired.map(|repaired| {
        json!({
            "rebuilt_manifest": repaired.rebuilt_manifest,
            "good_runs": repaired.good_runs,
            "new_runs": repaired.new_runs,
            "set_aside": texts(repaired.set_aside.iter().map(|path| path.display().to_string())
                .collect()),
            "losses": texts(repaired.losses.iter().map(ToString::to_string).collect()),
        })
    });
    let object = json!({
        "runs": checked.runs.runs,
        "pages": checked.runs.pages,
        "versions": checked.runs.entries,
        "run_bytes": checked.runs.bytes,
        "log_segments": checked.log.segments,
        "log_bytes": checked.log.log_bytes,
        "last_sequence": checked.log.last_sequence,
        "leftovers": checked.leftovers,
        "problems": texts(checked.problems.iter().map(ToString::to_string).collect()),
        "repaired": repaired,
    });
    out.line(format_args!("{object}"))
}
