//! The content of a snapshot: read on the node that built it, written on the one that receives it.
//!
//! ```text
//!   build     a snapshot of the store  ->  read    ->  bytes
//!   receive   bytes  ->  write  ->  entries  ->  runs of a new keyspace, not yet visible
//! ```

use std::fmt;
use std::io::{Read, Write};

use forerun_db::{Db, Ingestion, Keyspace, Snapshot};

use crate::install_order::Receiving;
use crate::snapshot_stream::{Decoder, Encoder};
use crate::{Error, Result};

/// The content of a Raft snapshot. openraft calls it `SnapshotData`.
///
/// On the node that built the snapshot, [`Read`] returns its bytes. They come from a snapshot of
/// the store while it is written to, and 64 KiB at a time are in memory. On the node that receives
/// it, [`Write`] takes the bytes, and writes the entries to a new keyspace, which nobody sees
/// before the snapshot is installed.
///
/// Reading and writing wait for the disk. In an asynchronous program, call them on a thread for
/// blocking calls. Send a snapshot as bytes also to a node of the same process: openraft may purge
/// the log before it installs data that was not received here.
pub struct SnapshotData {
    direction: Direction,
}

enum Direction {
    Built(Box<BuiltSnapshot>),
    Received(Box<ReceivedSnapshot>),
}

impl SnapshotData {
    pub(crate) fn built(view: &Snapshot, kv: &Keyspace) -> SnapshotData {
        let built = BuiltSnapshot {
            encoder: Encoder::new(view.keyspace(kv).iter()),
            frame: Vec::new(),
            position: 0,
        };
        SnapshotData {
            direction: Direction::Built(Box::new(built)),
        }
    }

    pub(crate) fn received(received: ReceivedSnapshot) -> SnapshotData {
        SnapshotData {
            direction: Direction::Received(Box::new(received)),
        }
    }

    /// Turns this into a received snapshot. One that this node has built is first copied into the
    /// one that `empty` creates.
    pub(crate) fn into_received(
        self,
        empty: impl FnOnce() -> Result<ReceivedSnapshot>,
    ) -> Result<ReceivedSnapshot> {
        match self.direction {
            Direction::Received(received) => Ok(*received),
            Direction::Built(mut built) => {
                let mut received = empty()?;
                loop {
                    let bytes = built.remaining()?;
                    if bytes.is_empty() {
                        return Ok(received);
                    }
                    let count = bytes.len();
                    received.push(bytes)?;
                    built.position += count;
                }
            }
        }
    }
}

impl fmt::Debug for SnapshotData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.direction {
            Direction::Built(_) => "SnapshotData::Built",
            Direction::Received(_) => "SnapshotData::Received",
        })
    }
}

impl Read for SnapshotData {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let Direction::Built(built) = &mut self.direction else {
            return Err(Error::SnapshotDirection(
                "this snapshot is being received; it cannot be read",
            )
            .into());
        };
        let bytes = built.remaining()?;
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        built.position += count;
        Ok(count)
    }
}

impl Write for SnapshotData {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let Direction::Received(received) = &mut self.direction else {
            return Err(Error::SnapshotDirection(
                "this snapshot was built on this node; it cannot be written to",
            )
            .into());
        };
        received.push(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct BuiltSnapshot {
    encoder: Encoder,
    frame: Vec<u8>,
    position: usize,
}

impl BuiltSnapshot {
    /// Bytes that were not yet read; empty at the end.
    fn remaining(&mut self) -> Result<&[u8]> {
        if self.position == self.frame.len() {
            self.position = 0;
            self.encoder.next(&mut self.frame)?;
        }
        Ok(&self.frame[self.position..])
    }
}

/// Entries on their way to a new keyspace, which is dropped if they do not become visible.
pub(crate) struct ReceivedSnapshot {
    db: Db,
    keyspace: Keyspace,
    /// `None` after it was committed.
    ingestion: Option<Ingestion>,
    decoder: Decoder,
    has_failed: bool,
    is_kept: bool,
    _receiving: Receiving,
}

impl ReceivedSnapshot {
    pub(crate) fn new(db: &Db, keyspace: Keyspace, receiving: Receiving) -> ReceivedSnapshot {
        ReceivedSnapshot {
            db: db.clone(),
            ingestion: Some(keyspace.ingest()),
            keyspace,
            decoder: Decoder::default(),
            has_failed: false,
            is_kept: false,
            _receiving: receiving,
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(ingestion) = self.ingestion.as_mut().filter(|_| !self.has_failed) else {
            return Err(Error::SnapshotDirection(
                "receiving this snapshot has failed; it takes no more bytes",
            ));
        };
        let pushed = self
            .decoder
            .push(bytes, |key, value| Ok(ingestion.add(key, value)?));
        self.has_failed = pushed.is_err();
        pushed
    }

    /// Makes the entries durable, in the keyspace that is returned. Until the caller has kept it
    /// with [`keep`](Self::keep), it is dropped with this value.
    pub(crate) fn commit(&mut self) -> Result<Keyspace> {
        self.decoder.check_ended()?;
        if let Some(ingestion) = self.ingestion.take() {
            ingestion.commit()?;
        }
        Ok(self.keyspace.clone())
    }

    /// From now on the keyspace survives this value.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for ReceivedSnapshot {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        drop(self.ingestion.take());
        // If this fails, the next opening drops the keyspace.
        if let Err(error) = self.db.drop_keyspace(self.keyspace.name()) {
            tracing::warn!(%error, "a received snapshot remains until the store is opened again");
        }
    }
}
