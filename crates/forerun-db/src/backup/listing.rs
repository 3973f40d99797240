//! The contents of a directory of backups.
//!
//! | name | holds |
//! |---|---|
//! | `backup-000007` | a backup's record |
//! | `run-` checksum of its footer, 16 hexadecimal digits, `-` length `.run` | a run, for all backups that name it |
//! | `backup-000008.new` | a record that is being written |
//!
//! Files with other names belong to other programs and are left alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use super::backup_record::{self, Record};
use super::{Backup, BackupList, MARK};
use crate::io::Io;
use crate::sealed::Bad;
use crate::store_dir;
use crate::tree::manifest::RunRecord;
use crate::{Error, Result};

/// The readable backups, the unreadable ones, and the other files.
pub(super) struct Listing {
    pub(super) records: BTreeMap<u64, Result<Record>>,
    /// The names of the other files that belong to backups, and the size that each name gives.
    files: Vec<(String, u64)>,
}

impl Listing {
    /// # Errors
    /// [`Error::NewerFormat`]: a newer release wrote one of the backups, so this one cannot read
    /// it. [`Error::Io`].
    pub(super) fn look(io: &dyn Io, dir: &Path) -> Result<Listing> {
        let mut found = Listing {
            records: BTreeMap::new(),
            files: Vec::new(),
        };
        for name in store_dir::names(io, dir, &MARK)?.unwrap_or_default() {
            if let Some(number) = record_number(&name) {
                found
                    .records
                    .insert(number, read_record(io, &dir.join(&name), number)?);
            } else if let Some(bytes) = file_bytes(&name) {
                found.files.push((name, bytes));
            }
        }
        found.files.sort_unstable();
        Ok(found)
    }

    /// The readable records, in the order in which they were made.
    pub(super) fn sound(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.records.values().flatten()
    }

    /// The greatest number of any backup; 0 if there are none.
    pub(super) fn last_number(&self) -> u64 {
        self.records
            .last_key_value()
            .map_or(0, |(number, _)| *number)
    }

    /// The checksums of the files that backups name, by file name.
    pub(super) fn checksums(&self) -> HashMap<String, u64> {
        let runs = self.sound().flat_map(Record::runs);
        runs.map(|(run, checksum)| (run_name(run), checksum))
            .collect()
    }

    /// Files that no backup names. Empty while any backup is unreadable, because the files that it
    /// names are unknown.
    pub(super) fn unused(&self) -> impl Iterator<Item = (&str, u64)> {
        let used: BTreeSet<String> = self
            .sound()
            .flat_map(Record::runs)
            .map(|(run, _)| run_name(run))
            .collect();
        let all_known = self.records.values().all(Result::is_ok);
        let files = self.files.iter().map(|(name, bytes)| (&**name, *bytes));
        files.filter(move |(name, _)| all_known && !used.contains(*name))
    }

    /// The description of a readable backup.
    pub(super) fn backup(&self, number: u64) -> Option<Backup> {
        let record = self.records.get(&number)?.as_ref().ok()?;
        Some(describe(record, &self.uses()))
    }

    pub(super) fn list(&self) -> BackupList {
        let (uses, mut list) = (self.uses(), BackupList::default());
        for (number, record) in &self.records {
            match record {
                Ok(record) => list.backups.push(describe(record, &uses)),
                Err(error) => list.damaged.push((*number, error.clone())),
            }
        }
        list
    }

    /// How many backups name each file.
    fn uses(&self) -> HashMap<String, usize> {
        let mut uses = HashMap::new();
        for (run, _) in self.sound().flat_map(Record::runs) {
            *uses.entry(run_name(run)).or_insert(0) += 1;
        }
        uses
    }
}

fn describe(record: &Record, uses: &HashMap<String, usize>) -> Backup {
    let record_bytes = record.encode().len() as u64;
    let own = |run: &&RunRecord| uses.get(&run_name(run)) == Some(&1);
    let runs = record.manifest.runs();
    Backup {
        number: record.number,
        created_unix: record.created_unix,
        last_sequence: record.manifest.flushed_sequence,
        keyspaces: record.manifest.keyspaces.len(),
        runs: record.checksums.len(),
        bytes: record_bytes + runs.map(|run| run.bytes).sum::<u64>(),
        own_bytes: record_bytes
            + record
                .manifest
                .runs()
                .filter(own)
                .map(|run| run.bytes)
                .sum::<u64>(),
    }
}

/// Reads a record. The result says what is wrong with it.
fn read_record(io: &dyn Io, path: &Path, number: u64) -> Result<Result<Record>> {
    let bytes = store_dir::read(io, path)?;
    match Record::decode(&bytes) {
        Ok(record) if record.number == number => Ok(Ok(record)),
        Ok(record) => {
            let reason = format!(
                "it is backup {}, under another backup's name",
                record.number
            );
            Ok(Err(Error::corrupt_file(path, 20, reason)))
        }
        Err(bad @ Bad::Bytes { .. }) => Ok(Err(bad.of(&backup_record::KIND, path, path))),
        Err(newer @ Bad::Newer(_)) => Err(newer.of(&backup_record::KIND, path, path)),
    }
}

/// The file name of a backup's record.
pub(super) fn record_name(number: u64) -> String {
    format!("backup-{number:06}")
}

/// The number in such a name; `None` if it is not a record's name.
fn record_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("backup-")?.parse().ok()?;
    // Only the canonical form: no sign, no missing or extra zeros.
    (number > 0 && record_name(number) == name).then_some(number)
}

/// The file name of a run, whatever number a store gave it.
pub(super) fn run_name(run: &RunRecord) -> String {
    format!("run-{:016x}-{}.run", run.checksum, run.bytes)
}

/// The size of a run file, from its name, or 0 for an unfinished record; `None` for any other file.
fn file_bytes(name: &str) -> Option<u64> {
    if let Some(record) = name.strip_suffix(".new") {
        return record_number(record).map(|_| 0);
    }
    let (checksum, bytes) = name
        .strip_prefix("run-")?
        .strip_suffix(".run")?
        .split_once('-')?;
    let run = RunRecord {
        number: 0,
        bytes: bytes.parse().ok()?,
        checksum: u64::from_str_radix(checksum, 16).ok()?,
    };
    (run_name(&run) == name).then_some(run.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused() {
        let run = RunRecord {
            number: 7,
            bytes: 4096,
            checksum: 0xab,
        };
        assert_eq!(run_name(&run), "run-00000000000000ab-4096.run");
        assert_eq!(file_bytes(&run_name(&run)), Some(4096));
        for number in [1, 999_999, 1_000_000] {
            assert_eq!(record_number(&record_name(number)), Some(number));
        }
        assert_eq!(file_bytes("backup-000003.new"), Some(0));
        for other in [
            "backup-0000003",
            "backup-+00003",
            "backup-000000",
            "backup-3",
            "backup-",
            "BACKUPS",
        ] {
            assert_eq!(record_number(other), None, "{other}");
            assert_eq!(file_bytes(&format!("{other}.new")), None, "{other}");
        }
        for other in [
            "run-000001.run",
            "run-00000000000000AB-4096.run",
            "run-00000000000000ab-04096.run",
            "run-ab-4096.run",
            "run-00000000000000ab-4096.run.bad",
        ] {
            assert_eq!(file_bytes(other), None, "{other}");
        }
    }
}
