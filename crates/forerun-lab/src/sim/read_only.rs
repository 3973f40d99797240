//! Read-only openings of a store that was closed and of one whose process crashed. They change no
//! byte, keep writers out, and return what the next opening for writing returns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forerun_db::{Access, Create, Db, Error, Keyspace};

use super::draw::shared_name;
use super::entries::{KeyspaceId, KeyspaceRules};
use super::faults::SimIo;
use super::program::ReadDirection;
use super::reads::{Entries, Source, read};
use super::runtime;
use super::simulation::{Opened, Outcome, STORE, Simulation, Stop, lock, violation};

/// The contents of the shared keyspaces.
type Shared = BTreeMap<KeyspaceId, Entries>;

/// The contents that a read-only opening returned.
#[derive(Debug)]
pub struct ReadOnlyContents {
    shared: Shared,
    /// When it began to read.
    at: Duration,
}

impl Simulation {
    /// Opens the store read-only, if the program says so.
    ///
    /// # Errors
    /// [`Stop::Violation`]
    pub fn check_read_only(&self, io: &SimIo) -> Outcome {
        *lock(&self.seen) = None;
        if !self.program.opens_read_only {
            return Ok(());
        }
        let before = contents(io);
        let seen = self.read_twice(io);
        let seen =
            seen.map_err(|error| Stop::Violation(format!("a read-only opening failed: {error}")))?;
        *lock(&self.seen) = seen?;
        let (open, _) = io.open_files();
        if open > 0 {
            return violation(format!(
                "{open} files are still open after read-only stores were closed"
            ));
        }
        match changed(&before, &contents(io)) {
            None => Ok(()),
            Some(path) => violation(format!("a read-only opening changed {}", path.display())),
        }
    }

    /// Opens the store twice at the same time, and returns its contents.
    fn read_twice(&self, io: &SimIo) -> forerun_db::Result<Outcome<Option<ReadOnlyContents>>> {
        let with = |access| {
            let options = self.options().access(access).create(Create::Never);
            Db::open_with_io(Arc::new(io.clone()), STORE, options)
        };
        let first = match with(Access::ReadOnly) {
            Ok(first) => first,
            // The store was just being created, or the log holds more than fits into memory.
            Err(Error::NotAStore { .. } | Error::MemoryLimit { .. }) => return Ok(Ok(None)),
            Err(error) => return Err(error),
        };
        let second = with(Access::ReadOnly)?;
        // If a loss of power removed the file, readers have nothing to lock and exclude no writer.
        let has_lock = io.disk().read(Path::new(STORE).join("LOCK")).is_some();
        if has_lock {
            match with(Access::ReadWrite) {
                Err(Error::Locked { .. }) => {}
                Ok(_) => {
                    return Ok(violation(
                        "a store was opened for writing while others had it open read-only",
                    ));
                }
                Err(error) => return Err(error),
            }
        }
        match first.put(b"late", b"") {
            Err(Error::ReadOnly { .. }) => {}
            other => {
                return Ok(violation(format!(
                    "a read-only store did not refuse a write: {other:?}"
                )));
            }
        }
        let at = runtime::elapsed();
        let (one, other) = (self.read_shared(&first)?, self.read_shared(&second)?);
        if !self.agree(&one, &other, at) {
            return Ok(violation(
                "two read-only openings returned different entries",
            ));
        }
        second.close()?;
        first.close()?;
        Ok(Ok(Some(ReadOnlyContents { shared: other, at })))
    }

    /// The contents of the shared keyspaces.
    fn read_shared(&self, db: &Db) -> forerun_db::Result<Shared> {
        let mut seen = Shared::new();
        for number in 0..self.program.store.keyspaces.len() {
            let keyspace = match number {
                0 => Some(db.default_keyspace()),
                _ => db.find_keyspace(&shared_name(number)),
            };
            if let Some(keyspace) = keyspace {
                seen.insert(number as KeyspaceId, entries(&keyspace)?);
            }
        }
        Ok(seen)
    }

    /// Checks that the store holds what a read-only opening returned.
    ///
    /// # Errors
    /// [`Stop`]
    pub fn compare_with_read_only(&self, opened: &Opened) -> Outcome {
        let Some(seen) = lock(&self.seen).take() else {
            return Ok(());
        };
        match self.read_shared(&opened.db) {
            Ok(now) if self.agree(&seen.shared, &now, seen.at) => Ok(()),
            Ok(now) => {
                let of = |seen: &Shared, keyspace_id: KeyspaceId| {
                    seen.get(&keyspace_id).map_or(0, Vec::len)
                };
                let counts = now
                    .keys()
                    .map(|keyspace_id| (of(&seen.shared, *keyspace_id), of(&now, *keyspace_id)));
                violation(format!(
                    "the store holds other entries than a read-only opening \
                     returned. Entries of each keyspace, read-only and now: {:?}",
                    counts.collect::<Vec<_>>()
                ))
            }
            Err(error) => self.allow(&error, Some(opened), "read the store"),
        }
    }

    /// Whether a reader that began then returned the same entries as a later one, except those that
    /// expired in between.
    fn agree(&self, seen: &Shared, later: &Shared, at: Duration) -> bool {
        let none = Entries::new();
        let keyspaces = 0..self.program.store.keyspaces.len() as KeyspaceId;
        keyspaces.into_iter().all(|keyspace_id| {
            let of = |seen: &Shared| {
                seen.get(&keyspace_id)
                    .cloned()
                    .unwrap_or_else(|| none.clone())
            };
            let (seen, later) = (of(seen), of(later));
            match self.ttl_s(keyspace_id) {
                None => seen == later,
                // An expired entry returns if the clock was set back in between.
                Some(_) if self.clock.was_set_back_since(at) => true,
                Some(_) => later.iter().all(|entry| seen.contains(entry)),
            }
        })
    }
}

/// The contents of a keyspace.
fn entries(keyspace: &Keyspace) -> forerun_db::Result<Entries> {
    read(Source::Live(keyspace).iter(), ReadDirection::Forward)
}

type Contents = BTreeMap<PathBuf, Vec<u8>>;

/// The files of the store.
fn contents(io: &SimIo) -> Contents {
    let files = io.disk().files().into_iter();
    let files = files.filter(|path| path.parent() == Some(Path::new(STORE)));
    files
        .filter_map(|path| io.disk().read(&path).map(|bytes| (path, bytes)))
        .collect()
}

/// A file that was changed, removed or created.
fn changed(before: &Contents, after: &Contents) -> Option<PathBuf> {
    let paths = before.keys().chain(after.keys());
    let mut changed = paths.filter(|path| before.get(*path) != after.get(*path));
    changed.next().cloned()
}
