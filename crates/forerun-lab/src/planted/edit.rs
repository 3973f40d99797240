//! Writes a patch, new or refreshed, from a copy of the sources in which it was edited.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;

use super::patches::{self, PLACE, Patch};
use super::tree::{self, Change, Sources};

/// The arguments of `edit`.
#[derive(Args, Debug)]
pub struct EditArgs {
    /// The defect.
    name: String,
    /// Where to copy the sources [default: target/planted-edit]
    #[arg(long, value_name = "DIRECTORY")]
    into: Option<PathBuf>,
}

/// The arguments of `save`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forerun-lab planted save sync-skipped
  forerun-lab planted save new-defect --description 'It loses the last key.' --found-by sim")]
pub struct SaveArgs {
    /// The defect.
    name: String,
    /// What it does, in one sentence; required if the defect is new.
    #[arg(long)]
    description: Option<String>,
    /// What must find it: `sim`, `server-sim` or 'CRATE TESTS NAME'; required if the defect is new.
    #[arg(long, value_name = "FINDER")]
    found_by: Vec<String>,
    /// The copy that was edited [default: target/planted-edit]
    #[arg(long, value_name = "DIRECTORY")]
    from: Option<PathBuf>,
}

/// The default directory of the copy.
const COPY: &str = "planted-edit";

/// Copies the sources, and applies as much of the patch as possible.
///
/// # Errors
/// The sources cannot be copied.
pub fn edit(args: &EditArgs, sources: &Sources) -> anyhow::Result<ExitCode> {
    let name = &args.name;
    let copy = super::place(args.into.as_deref(), sources, COPY)?;
    tree::copy(sources, &[], &copy)?;
    println!("The sources are in {}.", copy.display());
    let path = sources.root().join(PLACE).join(format!("{name}.patch"));
    if !path.exists() {
        println!("There is no defect {name} yet. Add a branch in forerun-db or forerun-server:");
        println!("  if forerun_core::planted::is(\"{name}\") {{ … }}");
        println!("Then: forerun-lab planted save {name} --description '…' --found-by sim");
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(said) = tree::apply(&Patch::read(&path)?, &copy, &["--reject"]) {
        print!("{said}");
        println!("Git has put what does not apply beside each file, in FILE.rej.");
    }
    println!("Edit them there. Then: forerun-lab planted save {name}");
    Ok(ExitCode::SUCCESS)
}

/// Writes the patch.
///
/// # Errors
/// Nothing was edited, or the patch would be invalid.
pub fn save(args: &SaveArgs, sources: &Sources) -> anyhow::Result<ExitCode> {
    let place = format!("{PLACE}/{}.patch", args.name);
    let path = sources.root().join(&place);
    let header = match (&args.description, path.exists()) {
        (None, true) if args.found_by.is_empty() => {
            patches::header(&sources.read(&place)?).to_owned()
        }
        (Some(description), _) => patches::new_header(description, &args.found_by),
        (None, _) => anyhow::bail!("{place} gets a new header: --description is missing"),
    };
    let copy = super::place(args.from.as_deref(), sources, COPY)?;
    let changes = tree::changes(sources, &copy)?;
    ensure!(
        !changes.is_empty(),
        "nothing was edited in {}",
        copy.display()
    );
    let text = header + &diff(&changes)?;
    Patch::parse(&path, &text).with_context(|| format!("cannot save {place}"))?;
    tree::write(&path, text.as_bytes())?;
    tree::check(sources, &Patch::all(sources.root())?)?;
    println!("{place}");
    Ok(ExitCode::SUCCESS)
}

/// The changes as a patch, without the numbers of git's objects.
fn diff(changes: &[Change]) -> anyhow::Result<String> {
    let dir = tempfile::tempdir().context("cannot make a directory for the changed files")?;
    for change in changes {
        let file = Path::new(&change.file);
        tree::write(&dir.path().join("a").join(file), change.before.as_bytes())?;
        tree::write(&dir.path().join("b").join(file), change.after.as_bytes())?;
    }
    let mut git = Command::new("git");
    git.current_dir(dir.path());
    git.args([
        "diff",
        "--no-index",
        "--no-color",
        "--no-ext-diff",
        "--unified=3",
    ]);
    git.args([
        "--diff-algorithm=histogram",
        "--src-prefix=",
        "--dst-prefix=",
        "a",
        "b",
    ]);
    let output = git.output().context("cannot run git")?;
    // 1: the directories differ.
    ensure!(
        output.status.code() == Some(1),
        "git cannot compare the files: {}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    let text = String::from_utf8(output.stdout).context("the changes are not UTF-8")?;
    let lines = text.lines().filter(|line| !line.starts_with("index "));
    Ok(lines.map(|line| format!("{line}\n")).collect())
}
