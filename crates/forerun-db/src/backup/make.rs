//! A backup is made: what of the store's runs no backup has is copied and looked at, then the record is written.

use super::copy::{self, Meter};
use super::found::{Found, record_name, run_name};
use super::record::Record;
use super::{Backup, Backups};
use crate::db::BackupSource;
use crate::io::replace::replace_file;
use crate::run::Run;
use crate::tree::levels::record as record_of;
use crate::tree::verify::{Verified, verify_run};
use crate::{Db, Error, Result, panics};

impl Backups {
    /// Makes a backup of a store as it is now, with all of its keyspaces. Reads and writes go on meanwhile, except that
    /// writes wait, at its beginning, until the latest of them are in runs. What is copied is checked page by page; what
    /// an earlier backup has is not read again: [`verify`](Self::verify) does that.
    ///
    /// # Errors
    /// [`Error::CorruptFile`]: what is to be backed up is damaged. [`Error::Io`]; [`Error::Closed`]: the store was closed
    /// meanwhile. There is no new backup then, and the others are as they were. And as [`Db::flush`].
    pub fn create(&mut self, db: &Db) -> Result<Backup> {
        let mut found = self.look()?;
        self.remove_unused(&found)?;
        let source = db.backup_source()?;
        let number = found.last_number() + 1;
        // Keys of what is copied are compared.
        match panics::catch("backing up a store", || self.fill(number, &found, &source)) {
            Ok(record) => {
                found.records.insert(number, Ok(record));
                found
                    .backup(number)
                    .ok_or_else(|| self.no_backup(Some(number)))
            }
            Err(error) => {
                self.give_up(number);
                Err(error)
            }
        }
    }

    fn fill(&self, number: u64, found: &Found, source: &BackupSource<'_>) -> Result<Record> {
        let manifest = source.catalog.manifest.clone();
        let checksums = found.checksums();
        let known: Vec<Option<u64>> = manifest
            .runs()
            .map(|run| {
                let Some(checksum) = checksums.get(&run_name(run)) else {
                    return Ok(None);
                };
                match copy::open(&*self.io, &self.dir.join(run_name(run)), run.bytes) {
                    Ok(_) => Ok(Some(*checksum)),
                    // It was lost, or cut: another copy mends the backups that need it.
                    Err(Error::CorruptFile { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            })
            .collect::<Result<_>>()?;
        let runs = source.catalog.runs.iter().zip(known);
        let new_bytes = runs.clone().filter(|(_, known)| known.is_none());
        let new_bytes = new_bytes.map(|(run, _)| run.meta().file_bytes).sum();
        let mut meter = Meter::new(self.watch.as_ref(), source.stop, new_bytes);
        let checksums = runs.map(|(run, known)| match known {
            Some(checksum) => Ok(checksum),
            None => self.copy_run(run, source, &mut meter),
        });
        let record = Record {
            number,
            created_unix: self.io.unix_time_s(),
            checksums: checksums.collect::<Result<_>>()?,
            manifest,
        };
        // All names before the one that makes it a backup.
        self.sync()?;
        replace_file(&*self.io, &self.dir, &record_name(number), &record.encode())?;
        Ok(record)
    }

    /// Copies a run, looks at all of the copy, and returns the checksum of its bytes.
    fn copy_run(&self, run: &Run, source: &BackupSource<'_>, meter: &mut Meter<'_>) -> Result<u64> {
        let named = record_of(run);
        let to = self.dir.join(run_name(&named));
        let from = (run.file(), run.path());
        let checksum = copy::copy(from, &*self.io, &to, named.bytes, meter)?;
        let order = run.order().clone();
        let checked = Run::open(&*self.io, &to, named.number, order, source.cache);
        let checked = checked.and_then(|copy| {
            verify_run(&copy, source.stop, &mut Verified::default())?;
            match record_of(&copy) == named {
                true => Ok(checksum),
                false => Err(copy.corrupt(0, "it is not the run that it was")),
            }
        });
        checked.map_err(|error| match error {
            // It is the store's that is to be looked at.
            Error::CorruptFile { offset, reason, .. } => {
                Error::corrupt_file(run.path(), offset, reason)
            }
            other => other,
        })
    }

    /// Removes what is there of a backup that could not be made, as far as that succeeds.
    fn give_up(&mut self, number: u64) {
        // First what may make it a backup, durably: one that comes back must find its runs.
        let _ = self.io.remove(&self.dir.join(record_name(number)));
        let removed = self.sync().and_then(|()| self.look());
        if let Err(error) = removed.and_then(|found| self.remove_unused(&found)) {
            let path = self.dir.display();
            tracing::warn!(%path, %error, "what is left of a backup stays until the next one is made");
        }
    }
}
