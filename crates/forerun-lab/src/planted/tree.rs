//! A copy of the sources with the patches.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::patches::Patch;

/// The crate that has the switch, and the module's place in it.
const CORE: &str = "crates/forerun-core/src/lib.rs";
const SWITCH_PLACE: &str = "crates/forerun-core/src/planted.rs";
const SWITCH: &str = include_str!("../../planted/switch.rs");

/// The directory of a copy for the files of its builds.
const BUILDS: &str = "target";

/// The sources of the project: a git checkout, with what has been modified in it.
#[derive(Debug)]
pub struct Sources {
    root: PathBuf,
}

impl Sources {
    /// The sources that this program was built from.
    pub fn of_this_program() -> Sources {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        Sources {
            root: root.canonicalize().unwrap_or(root),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The text of a file, by its path from the root.
    pub fn read(&self, file: &str) -> anyhow::Result<String> {
        let path = self.root.join(file);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    /// Every file that git tracks, or would track, by its path from the root.
    fn files(&self) -> anyhow::Result<Vec<String>> {
        let mut git = Command::new("git");
        git.current_dir(&self.root);
        git.args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        let output = git.output().context("cannot run git")?;
        ensure!(
            output.status.success(),
            "git cannot list the files of {}: {}",
            self.root.display(),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
        let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
        let mut files: Vec<String> = names.split_terminator('\0').map(str::to_owned).collect();
        // A file that has been deleted is tracked until that is committed.
        files.retain(|file| self.root.join(file).is_file());
        files.sort();
        files.dedup();
        Ok(files)
    }
}

/// Files that patches change, in a temporary directory.
struct PatchedFiles {
    dir: tempfile::TempDir,
    files: BTreeSet<String>,
}

impl PatchedFiles {
    /// The files as the sources have them.
    fn new(sources: &Sources, patches: &[Patch]) -> anyhow::Result<PatchedFiles> {
        let dir = tempfile::tempdir().context("cannot make a directory for the patched files")?;
        let files: BTreeSet<String> = patches
            .iter()
            .flat_map(|patch| patch.files.iter().cloned())
            .collect();
        for file in files.iter().filter(|file| sources.root.join(file).exists()) {
            write(&dir.path().join(file), sources.read(file)?.as_bytes())?;
        }
        Ok(PatchedFiles { dir, files })
    }

    fn apply(&self, patch: &Patch, options: &[&str]) -> Result<(), String> {
        apply(patch, self.dir.path(), options)
    }

    fn texts(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let read = |file: &String| {
            let text = fs::read_to_string(self.dir.path().join(file));
            Ok((file.clone(), text.with_context(|| format!("read {file}"))?))
        };
        self.files.iter().map(read).collect()
    }
}

/// Applies a patch in a directory, with these options of `git apply`, or says what git said.
pub fn apply(patch: &Patch, dir: &Path, options: &[&str]) -> Result<(), String> {
    let mut git = Command::new("git");
    git.current_dir(dir);
    // The directory may be within the checkout. Git would then take it for a part of that.
    git.env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap_or(dir));
    git.arg("apply").args(options).arg(&patch.path);
    let output = git
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Checks that each patch applies to the sources alone, and that all of them apply in either order
/// of their names with the same result.
///
/// # Errors
/// A patch does not apply. The error names it and says how to refresh it.
pub fn check(sources: &Sources, patches: &[Patch]) -> anyhow::Result<()> {
    let files = PatchedFiles::new(sources, patches)?;
    let stale: String = patches
        .iter()
        .filter_map(|patch| {
            let said = files.apply(patch, &["--check"]).err()?;
            Some(stale(patch, &said))
        })
        .collect();
    ensure!(stale.is_empty(), "{}", stale.trim_end());
    let forward = patched(sources, patches)?;
    let backward: Vec<Patch> = patches.iter().rev().cloned().collect();
    let backward = patched(sources, &backward)?;
    for (file, text) in &forward {
        ensure!(
            backward[file] == *text,
            "{file} depends on the order in which the patches are applied"
        );
    }
    Ok(())
}

/// The text of every file that the patches change, with all of them.
fn patched(sources: &Sources, patches: &[Patch]) -> anyhow::Result<BTreeMap<String, String>> {
    let files = PatchedFiles::new(sources, patches)?;
    for patch in patches {
        let Err(said) = files.apply(patch, &[]) else {
            continue;
        };
        if PatchedFiles::new(sources, patches)?
            .apply(patch, &["--check"])
            .is_err()
        {
            bail!("{}", stale(patch, &said).trim_end());
        }
        bail!(
            "{} applies alone, but not with the other patches: leave three unchanged lines \
             between two defects\n{said}",
            patch.place()
        );
    }
    files.texts()
}

/// The message about a patch that does not apply to the sources.
fn stale(patch: &Patch, said: &str) -> String {
    let (name, place) = (&patch.name, patch.place());
    let said: String = said.lines().map(|line| format!("  {line}\n")).collect();
    format!(
        "{place} no longer applies to the sources:\n{said}\
         To refresh it: forerun-lab planted edit {name}, edit the sources in the directory that \
         it prints, forerun-lab planted save {name}\n"
    )
}

/// Copies the sources to a directory, with the switch and these patches. Only files that differ are
/// written, so that a second build compiles only those.
///
/// # Errors
/// A patch does not apply, or a file cannot be written.
pub fn copy(sources: &Sources, patches: &[Patch], to: &Path) -> anyhow::Result<()> {
    // What else is in the directory is removed, so it must be a copy already, or empty.
    let is_empty = fs::read_dir(to).map_or(true, |mut entries| entries.next().is_none());
    ensure!(
        is_empty || to.join(SWITCH_PLACE).exists(),
        "{} is neither empty nor an earlier copy of the sources",
        to.display()
    );
    write(&to.join(SWITCH_PLACE), SWITCH.as_bytes())?;
    let files = sources.files()?;
    let mut patched = patched(sources, patches)?;
    patched.insert(CORE.to_owned(), with_switch(sources)?);
    for file in &files {
        if patched.contains_key(file) {
            continue;
        }
        let path = sources.root.join(file);
        let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        write(&to.join(file), &bytes)?;
    }
    for (file, text) in &patched {
        write(&to.join(file), text.as_bytes())?;
    }
    let wanted = files.iter().chain(patched.keys()).map(PathBuf::from);
    let wanted = wanted.chain([PathBuf::from(SWITCH_PLACE)]).collect();
    remove_others(to, to, &wanted)
}

/// A source file of a copy that differs from the sources.
pub struct Change {
    pub file: String,
    pub before: String,
    pub after: String,
}

/// What was edited in a copy that has no other patches.
///
/// # Errors
/// A file is missing in the copy or cannot be read.
pub fn changes(sources: &Sources, copy: &Path) -> anyhow::Result<Vec<Change>> {
    let mut changes = Vec::new();
    for file in sources.files()? {
        if !(file.starts_with("crates/") && file.ends_with(".rs")) || file == CORE {
            continue;
        }
        let (before, path) = (sources.read(&file)?, copy.join(&file));
        let after = fs::read_to_string(&path);
        let after = after.with_context(|| format!("read {}", path.display()))?;
        if before != after {
            changes.push(Change {
                file,
                before,
                after,
            });
        }
    }
    Ok(changes)
}

fn with_switch(sources: &Sources) -> anyhow::Result<String> {
    Ok(sources.read(CORE)? + "\npub mod planted;\n")
}

/// Writes a file and its directories, unless it has these bytes already.
pub fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    let write = || {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::write(path, bytes)
    };
    write().with_context(|| format!("write {}", path.display()))
}

/// Removes what an earlier copy left in a directory. The files of builds stay.
fn remove_others(dir: &Path, root: &Path, wanted: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    for entry in entries {
        let path = entry?.path();
        let place = path.strip_prefix(root).unwrap_or(&path);
        if place == Path::new(BUILDS) {
            continue;
        }
        if path.is_dir() {
            remove_others(&path, root, wanted)?;
        } else if !wanted.contains(place) {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}
