//! Operations of the child besides its writes, so that kills happen during them too.
//!
//! ```text
//!   child   "begin 7"  ── ingest, back up, checkpoint, drop a keyspace ──  "done 7"  "begin 8" …
//!   kill                            ✝ here: "begin 7" is the last report
//! ```
//!
//! | operation | number n leaves | what must hold after a kill |
//! |---|---|---|
//! | ingestion | the keys of a keyspace, all with the value n | all have the last done or begun number |
//! | backup | a backup, the newest of at most two | the newest restores to a moment between begin and end |
//! | checkpoint | a store beside the store | it opens as of such a moment; an unfinished one may not be a store |
//! | keyspace drop | no keyspace n, which had entries before | gone if done; otherwise gone or complete |

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use forerun::{Create, Db, WriteBatch, backup::Backups};

use super::opening::Opening;
use forerun_cli::exit::CheckFailed;

/// An operation that kills should hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Ingests all keys of a keyspace.
    Ingestion,
    /// Makes a backup in a directory next to the store.
    Backup,
    /// Makes a checkpoint in a directory next to the store.
    Checkpoint,
    /// Drops a keyspace that was filled for this.
    KeyspaceDrop,
}

/// Keys per ingestion.
const INGESTED_KEYS: u32 = 2_000;
const INGESTED_VALUE_BYTES: usize = 80;
/// Entries of a keyspace to be dropped.
const DROPPED_KEYS: u32 = 150;
/// Backups that are kept.
const BACKUPS: usize = 2;

impl Operation {
    pub const ALL: [Operation; 4] = [
        Operation::Ingestion,
        Operation::Backup,
        Operation::Checkpoint,
        Operation::KeyspaceDrop,
    ];

    /// Performs operations in a loop, numbered from `first` on, and reports the beginning and the
    /// end of each, until it is killed.
    pub fn repeat(
        self,
        db: &Db,
        store: &Path,
        first: u64,
        mut say: impl FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for n in first.. {
            self.prepare(db, store, n)?;
            say(&format!("begin {n}"))?;
            self.perform(db, store, n)
                .with_context(|| format!("cannot do {self} {n}"))?;
            say(&format!("done {n}"))?;
        }
        Ok(())
    }

    fn prepare(self, db: &Db, store: &Path, n: u64) -> anyhow::Result<()> {
        match self {
            Operation::Ingestion | Operation::Backup => {}
            // The last one stays, for the check.
            Operation::Checkpoint => {
                if let Some(old) = n.checked_sub(2) {
                    remove_dir(&checkpoint_path(store, old))?;
                }
            }
            Operation::KeyspaceDrop => {
                let keyspace = db.keyspace(&dropped_name(n))?;
                let mut batch = WriteBatch::new();
                for key in 0..DROPPED_KEYS {
                    let value = [n as u8; 100];
                    batch.keyspace(&keyspace).put(&key.to_be_bytes(), &value)?;
                }
                db.write(&batch, forerun::Durability::Buffered)?;
                // Some keyspaces have runs, and some are only in the memtable and the log.
                if n.is_multiple_of(2) {
                    keyspace.flush()?;
                }
            }
        }
        Ok(())
    }

    fn perform(self, db: &Db, store: &Path, n: u64) -> anyhow::Result<()> {
        match self {
            Operation::Ingestion => {
                let mut ingestion = db.keyspace(INGESTED)?.ingest();
                for key in 0..INGESTED_KEYS {
                    ingestion.add(&key.to_be_bytes(), &ingested_value(n))?;
                }
                ingestion.commit()?;
            }
            Operation::Backup => {
                let mut backups = Backups::open_or_create(backups_path(store))?;
                backups.create(db)?;
                backups.purge_old(BACKUPS)?;
            }
            Operation::Checkpoint => db.checkpoint(checkpoint_path(store, n))?,
            Operation::KeyspaceDrop => db.drop_keyspace(&dropped_name(n))?,
        }
        Ok(())
    }

    /// Checks what number `begun`, and `done` before it, left in the opened store.
    pub fn check_store(self, db: &Db, begun: Option<u64>, done: Option<u64>) -> anyhow::Result<()> {
        match self {
            Operation::Ingestion => check_ingested(db, begun, done),
            Operation::KeyspaceDrop => check_dropped(db, begun, done),
            Operation::Backup | Operation::Checkpoint => Ok(()),
        }
    }

    /// Opens the existing copies of the store, finished ones and an interrupted one, passes them to
    /// `check`, with whether they are finished, and removes them.
    pub fn check_copies(
        self,
        store: &Path,
        opening: &Opening,
        begun: Option<u64>,
        done: Option<u64>,
        mut check: impl FnMut(&Db, bool) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self {
            Operation::Ingestion | Operation::KeyspaceDrop => Ok(()),
            Operation::Backup => check_backups(store, opening, done, &mut check),
            Operation::Checkpoint => {
                for n in [done, begun.filter(|begun| done != Some(*begun))] {
                    let Some(n) = n else { continue };
                    let path = checkpoint_path(store, n);
                    let is_done = done == Some(n);
                    match opening.open(&path, Create::Never) {
                        Ok(db) => check(&db, is_done)?,
                        // Without its last file it is not a store, and the error says so.
                        Err(forerun::DbError::NotAStore { .. }) if !is_done => {}
                        Err(error) if !is_done && !path.exists() => drop(error),
                        Err(error) => {
                            let what = if is_done { "done" } else { "begun" };
                            return fault(format!("checkpoint {n}, which was {what}: {error}"));
                        }
                    }
                    remove_dir(&path)?;
                }
                Ok(())
            }
        }
    }
}

/// Removes the backups and checkpoints that operations made next to a store.
pub fn remove_beside(store: &Path) -> anyhow::Result<()> {
    remove_dir(&backups_path(store))?;
    let parent = store.parent().unwrap_or(Path::new("."));
    let prefix = name_beside(store, "checkpoint-");
    let prefix = prefix.file_name().unwrap_or_default().as_encoded_bytes();
    for entry in std::fs::read_dir(parent).context("cannot list the directory")? {
        let path = entry.context("cannot list the directory")?.path();
        let name = path.file_name().unwrap_or_default();
        if name.as_encoded_bytes().starts_with(prefix) {
            remove_dir(&path)?;
        }
    }
    Ok(())
}

const INGESTED: &str = "ingested";

fn dropped_name(n: u64) -> String {
    format!("dropped-{n}")
}

fn ingested_value(n: u64) -> [u8; INGESTED_VALUE_BYTES] {
    let mut value = [n as u8; INGESTED_VALUE_BYTES];
    value[..8].copy_from_slice(&n.to_le_bytes());
    value
}

fn name_beside(store: &Path, suffix: &str) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn backups_path(store: &Path) -> PathBuf {
    name_beside(store, "backups")
}

fn checkpoint_path(store: &Path, n: u64) -> PathBuf {
    name_beside(store, &format!("checkpoint-{n}"))
}

fn remove_dir(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn fault<T>(what: String) -> anyhow::Result<T> {
    Err(CheckFailed(what).into())
}

fn check_ingested(db: &Db, begun: Option<u64>, done: Option<u64>) -> anyhow::Result<()> {
    let Some(keyspace) = db.find_keyspace(INGESTED) else {
        return match done {
            Some(n) => fault(format!("ingestion {n} is lost together with its keyspace")),
            None => Ok(()),
        };
    };
    let found: Vec<_> = keyspace.iter().collect::<Result<_, _>>()?;
    if found.is_empty() && done.is_none() {
        return Ok(());
    }
    let is_whole = |n: u64| {
        let keys = (0..INGESTED_KEYS).map(u32::to_be_bytes);
        let wanted = keys.map(|key| (key.to_vec(), ingested_value(n).to_vec()));
        found.len() == INGESTED_KEYS as usize && wanted.eq(found.iter().cloned())
    };
    if done.into_iter().chain(begun).any(is_whole) {
        Ok(())
    } else {
        fault(format!(
            "the ingested keys are neither those of ingestion {done:?}, which was done, nor of \
             {begun:?}, which was begun: there are {}",
            found.len()
        ))
    }
}

fn check_dropped(db: &Db, begun: Option<u64>, done: Option<u64>) -> anyhow::Result<()> {
    for name in db.keyspaces() {
        let Some(n) = name
            .strip_prefix("dropped-")
            .and_then(|n| n.parse::<u64>().ok())
        else {
            continue;
        };
        if done.is_some_and(|done| n <= done) {
            return fault(format!("keyspace {n} was dropped but is back"));
        }
        if begun == Some(n) {
            let entries = db.keyspace(&name)?.iter().count();
            if entries != DROPPED_KEYS as usize {
                return fault(format!(
                    "keyspace {n}, whose drop had begun, still has {entries} entries"
                ));
            }
        }
        db.drop_keyspace(&name)?;
    }
    Ok(())
}

fn check_backups(
    store: &Path,
    opening: &Opening,
    done: Option<u64>,
    check: &mut impl FnMut(&Db, bool) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let path = backups_path(store);
    if !path.exists() && done.is_none() {
        return Ok(());
    }
    let backups = match Backups::open(&path) {
        // The process was killed before the directory became a directory of backups.
        Err(forerun::DbError::NotBackups { .. }) if done.is_none() => return remove_dir(&path),
        opened => opened.context("cannot open the backups")?,
    };
    if let Some(problem) = backups.verify()?.problems.first() {
        return fault(format!("a backup is damaged: {problem}"));
    }
    let list = backups.list()?.backups;
    if list.is_empty() && done.is_some() {
        return fault("all backups are lost".into());
    }
    // The finished one is the newest or the second newest.
    let into = name_beside(store, "restored");
    if let Some(newest) = list.last() {
        remove_dir(&into)?;
        backups.restore(Some(newest.number), &into)?;
        check(&opening.open(&into, Create::Never)?, done.is_some())?;
        remove_dir(&into)?;
    }
    drop(backups);
    remove_dir(&path)
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Ingestion => "ingestion",
            Operation::Backup => "backup",
            Operation::Checkpoint => "checkpoint",
            Operation::KeyspaceDrop => "keyspace-drop",
        })
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(name: &str) -> Result<Operation, String> {
        let named = Operation::ALL.into_iter().find(|of| of.to_string() == name);
        named.ok_or_else(|| format!("unknown operation {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Requested;
    use super::*;

    fn opening() -> Opening {
        Opening::draw(1, 0, &Requested::default())
    }

    /// A store, and a directory next to it.
    fn with_store(check: impl FnOnce(&Db, &Path)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let db = opening().open(&path, Create::IfMissing).unwrap();
        check(&db, &path);
        drop(db);
        remove_beside(&path).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// Performs three operations, and stops when the fourth has begun.
    fn three(operation: Operation, db: &Db, path: &Path) {
        let mut said = Vec::new();
        let ended = operation.repeat(db, path, 0, |line| {
            said.push(line.to_owned());
            match line {
                "begin 3" => anyhow::bail!("killed"),
                _ => Ok(()),
            }
        });
        ended.unwrap_err();
        assert_eq!(said[..3], ["begin 0", "done 0", "begin 1"]);
        assert_eq!(said.len(), 7);
    }

    #[test]
    fn partial_and_lost_ingestions_are_detected() {
        with_store(|db, path| {
            let operation = Operation::Ingestion;
            operation.check_store(db, None, None).unwrap();
            operation.check_store(db, None, Some(1)).unwrap_err();
            three(operation, db, path);
            let verdict = |begun, done| operation.check_store(db, begun, done);
            verdict(Some(3), Some(2)).unwrap();
            verdict(Some(2), Some(1)).unwrap();
            verdict(Some(4), Some(3)).unwrap_err();
            let keyspace = db.keyspace(INGESTED).unwrap();
            keyspace.delete(&7_u32.to_be_bytes()).unwrap();
            verdict(Some(3), Some(2)).unwrap_err();
            let (key, value) = (7_u32.to_be_bytes(), ingested_value(3));
            keyspace.put(&key, &value).unwrap();
            verdict(Some(3), Some(2)).unwrap_err();
        });
    }

    #[test]
    fn a_resurrected_or_half_dropped_keyspace_is_detected() {
        with_store(|db, path| {
            let operation = Operation::KeyspaceDrop;
            three(operation, db, path);
            operation.check_store(db, Some(3), Some(2)).unwrap();
            assert!(db.keyspaces().is_empty(), "what is left is removed");
            operation.prepare(db, path, 3).unwrap();
            operation.check_store(db, Some(3), Some(3)).unwrap_err();
            let keyspace = db.keyspace(&dropped_name(3)).unwrap();
            keyspace.delete(&0_u32.to_be_bytes()).unwrap();
            operation.check_store(db, Some(3), Some(2)).unwrap_err();
            // A keyspace that was being filled may be incomplete.
            operation.check_store(db, Some(2), Some(2)).unwrap();
        });
    }

    #[test]
    fn a_copy_that_is_missing_or_damaged_is_noticed() {
        for operation in [Operation::Backup, Operation::Checkpoint] {
            with_store(|db, path| {
                db.put(b"key", b"value").unwrap();
                let mut copies = Vec::new();
                let mut look = |begun, done| {
                    operation.check_copies(path, &opening(), begun, done, |copy, is_done| {
                        copies.push((copy.iter().count(), is_done));
                        Ok(())
                    })
                };
                look(None, None).unwrap();
                look(Some(0), None).unwrap();
                look(Some(1), Some(0)).unwrap_err();
                three(operation, db, path);
                look(Some(3), Some(2)).unwrap();
                look(Some(3), Some(2)).unwrap_err();
                assert_eq!(copies, [(1, true)]);
                three(operation, db, path);
                let damaged = match operation {
                    Operation::Backup => backups_path(path),
                    _ => checkpoint_path(path, 2),
                };
                for entry in std::fs::read_dir(&damaged).unwrap() {
                    let file = entry.unwrap().path();
                    if file
                        .extension()
                        .is_some_and(|of| of == "run" || of == "log")
                    {
                        std::fs::write(file, b"").unwrap();
                    }
                }
                let found =
                    operation.check_copies(path, &opening(), Some(3), Some(2), |_, _| Ok(()));
                found.unwrap_err();
                // For the next operation.
                remove_beside(path).unwrap();
            });
        }
    }
}
