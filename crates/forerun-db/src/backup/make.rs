//! Making a backup: copies and verifies the runs of the store that no backup has, then writes the
//! record.

use super::backup_record::Record;
use super::copy::{self, Meter};
use super::listing::{Listing, record_name, run_name};
use super::{Backup, Backups};
use crate::db::BackupSource;
use crate::io::replace::replace_file;
use crate::run::Run;
use crate::tree::levels::record as record_of;
use crate::tree::verify::{VerifyReport, verify_run};
use crate::{Db, Error, Result, panics};

impl Backups {
    /// Backs up a store as it is now, with all its keyspaces. Reads and writes continue, except
    /// that writes wait at the beginning until the latest ones are flushed. Copies are verified
    /// page by page. Runs that an earlier backup already has are not read again;
    /// [`verify`](Self::verify) does that.
    ///
    /// # Errors
    /// [`Error::InsideStore`]: this directory is inside the store's directory.
    /// [`Error::CorruptFile`]: the store's data is damaged. [`Error::Io`]; [`Error::Closed`]: the
    /// store was closed during the backup. [`Error::Interrupted`]. [`Error::Panicked`]: a function
    /// of the caller, or a comparator, panicked. In all cases there is no new backup, and the
    /// others are unchanged. Also the errors of [`Db::flush`].
    pub fn create(&mut self, db: &Db) -> Result<Backup> {
        let mut found = self.look()?;
        db.check_outside(&self.dir)?;
        self.remove_unused(&found)?;
        let source = db.backup_source()?;
        let number = found.last_number() + 1;
        // Verifying the copies compares keys.
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

    fn fill(&self, number: u64, found: &Listing, source: &BackupSource<'_>) -> Result<Record> {
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
                    // It was lost or truncated. A new copy repairs the backups that need it.
                    Err(Error::CorruptFile { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            })
            .collect::<Result<_>>()?;
        let runs = source.catalog.runs.iter().zip(known);
        let new_bytes = runs.clone().filter(|(_, known)| known.is_none());
        let new_bytes = new_bytes.map(|(run, _)| run.meta().file_bytes).sum();
        let mut meter = Meter::new(self, Some(source.stop), new_bytes);
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
        // All other names come before the one that makes it a backup.
        self.sync()?;
        replace_file(&*self.io, &self.dir, &record_name(number), &record.encode())?;
        Ok(record)
    }

    /// Copies a run, verifies the whole copy, and returns the checksum of its bytes.
    fn copy_run(&self, run: &Run, source: &BackupSource<'_>, meter: &mut Meter<'_>) -> Result<u64> {
        let named = record_of(run);
        let to = self.dir.join(run_name(&named));
        let from = (run.file(), run.path());
        let checksum = copy::copy(from, &*self.io, &to, named.bytes, meter)?;
        let order = run.order().clone();
        let checked = Run::open_without_filter(&*self.io, &to, named.number, order, source.cache);
        let checked = checked.and_then(|copy| {
            verify_run(&copy, source.stop, &mut VerifyReport::default())?;
            if record_of(&copy) == named {
                Ok(checksum)
            } else {
                Err(copy.corrupt(0, "it is not the run that it was"))
            }
        });
        checked.map_err(|error| match error {
            // Verify the copy, not the store's own file.
            Error::CorruptFile { offset, reason, .. } => {
                Error::corrupt_file(run.path(), offset, reason)
            }
            other => other,
        })
    }

    /// Removes the remains of a backup that could not be made, if possible.
    fn give_up(&mut self, number: u64) {
        // First remove the record, durably: a backup that reappears must find its runs.
        let _ = self.io.remove(&self.dir.join(record_name(number)));
        let removed = self.sync().and_then(|()| self.look());
        if let Err(error) = removed.and_then(|found| self.remove_unused(&found)) {
            let path = self.dir.display();
            tracing::warn!(%path, %error, "remains of a backup stay until the next backup");
        }
    }
}
