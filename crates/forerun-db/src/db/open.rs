//! Opening and closing.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Commit, Counters, Inner, Visible, Writer};
use crate::io::Io;
use crate::memtable::{MemTable, MemTableConfig};
use crate::store_dir::StoreDir;
use crate::wal::closed;
use crate::wal::recovery::{Circumstances, recover};
use crate::wal::report::BadRange;
use crate::wal::writer::LogWriter;
use crate::{Error, Options, Recovery, Result, WalMode};

pub(super) fn open(io: Arc<dyn Io>, path: &Path, options: Options) -> Result<Inner> {
    let mut dir = StoreDir::open(&*io, path, options.create, options.comparator.name())?;
    let memtable = MemTable::new(MemTableConfig {
        limit_bytes: options.memory_limit_bytes,
        comparator: Arc::clone(&options.comparator),
        checks: options.checks,
        pages: options.pages,
    })?;

    let mut bad_mark = None;
    let closed = match dir.closed {
        Some(Err(reason)) => {
            let path = path.join(closed::NAME);
            if options.recovery != Recovery::SkipCorrupt {
                return Err(Error::corrupt_file(&path, 0, reason));
            }
            bad_mark = Some(BadRange {
                path,
                offset: 0,
                len_bytes: 0,
                reason: reason.into(),
            });
            None
        }
        Some(Ok(closed)) => Some(closed),
        None => None,
    };
    let is_marked_closed = dir.closed.is_some();
    let circumstances = Circumstances {
        recovery: options.recovery,
        closed,
        power_lost: dir.power_lost(),
    };
    let (tail, mut recovery) = recover(&io, path, &dir.segments, &circumstances, &mut |record| {
        memtable
            .prepare(record.ops.clone())?
            .publish(record.first_sequence);
        Ok(())
    })?;
    recovery.skipped.extend(bad_mark);
    dir.note_recovered();
    tracing::info!(path = %path.display(), %recovery, "opened");

    let last_sequence = recovery.last_sequence;
    let writer = match options.wal {
        WalMode::On => Writer::Logged(Commit::new(LogWriter::new(
            io,
            path,
            options.wal_segment_bytes,
            tail,
            is_marked_closed,
        ))),
        WalMode::Off => Writer::unlogged(last_sequence + 1),
    };
    Ok(Inner {
        path: path.to_owned(),
        memtable,
        comparator: options.comparator,
        durability: options.durability,
        writer,
        visible: Visible::new(last_sequence),
        counters: Counters::default(),
        recovery,
        dir: Mutex::new(Some(dir)),
    })
}

impl Inner {
    pub(super) fn close(&self) -> Result<()> {
        let closed = self.writer.close();
        // The lock goes last: until here the files are ours.
        *self.dir.lock().unwrap_or_else(PoisonError::into_inner) = None;
        closed
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let is_open = self
            .dir
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some();
        if is_open && let Err(error) = self.close() {
            tracing::warn!(path = %self.path.display(), %error, "the store was dropped and could not be closed cleanly");
        }
    }
}
