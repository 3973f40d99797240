//! Copies the moved items of one old server, a batch at a time.
//!
//! ```text
//!   list of keys ── those that move ──► batch: read their items ──► offer them to the new server
//!                                              └ the new server's second is older than the read
//! ```

use std::time::{Duration, Instant};

use forerun_client::ServerAddress;
use forerun_measure::progress::RateBar;

use super::connection::{self, unexpected};
use super::moved_keys::MovedKeys;
use super::source::{Item, ItemReader, KeyList, ListedKey, ReadItems, push_key};
use super::target::{Filled, Target};
use crate::login::Login;

/// A batch has at most this many keys,
const BATCH_KEYS: usize = 200;
/// and takes no further key once its items take this many bytes.
const BATCH_BYTES: u64 = 1 << 20;

/// What was done with the keys of an old server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    pub listed: u64,
    pub moved: u64,
    /// What the moved items take on the old server.
    pub moved_bytes: u64,
    pub gone: u64,
    /// Keys that have changed on the old server since it listed them.
    pub changed: u64,
    pub stale: u64,
    pub unreadable: u64,
    pub filled: Filled,
    pub deleted: u64,
}

/// Limits the bytes that are copied per second.
pub(super) struct Pace {
    bytes_per_s: Option<u64>,
    started: Instant,
    bytes: u64,
}

impl Pace {
    pub(super) fn new(bytes_per_s: Option<u64>) -> Pace {
        Pace {
            bytes_per_s,
            started: Instant::now(),
            bytes: 0,
        }
    }

    /// Waits until `more` bytes after those before are not too fast.
    fn wait(&mut self, more: u64) {
        let Some(rate) = self.bytes_per_s else {
            return;
        };
        self.bytes += more;
        let due = Duration::from_secs_f64(self.bytes as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(self.started.elapsed()));
    }
}

/// What one run does.
pub(super) struct Run<'a> {
    pub moved: &'a MovedKeys,
    pub login: &'a Login,
    pub pace: Pace,
    pub bar: &'a RateBar,
    /// Keys of the servers before this one, for the progress bar.
    pub listed_before: u64,
}

impl Run<'_> {
    /// Counts the keys of an old server that move.
    pub(super) fn count(&self, at: usize, server: &ServerAddress) -> anyhow::Result<Copied> {
        let mut copied = Copied::default();
        let mut keys = KeyList::open(server, self.login)?;
        while let Some(key) = keys.next()? {
            self.note(at, &key, &mut copied);
        }
        Ok(copied)
    }

    /// Copies the keys of an old server that move.
    pub(super) fn copy(
        &mut self,
        at: usize,
        server: &ServerAddress,
        target: &mut Target,
    ) -> anyhow::Result<Copied> {
        let mut copied = Copied::default();
        let mut reader = ItemReader::open(server, self.login)?;
        let mut keys = KeyList::open(server, self.login)?;
        let (mut batch, mut batch_bytes) = (Vec::new(), 0);
        while let Some(key) = keys.next()? {
            if !self.note(at, &key, &mut copied) {
                continue;
            }
            batch_bytes += key.size_bytes;
            batch.push(key);
            if batch.len() == BATCH_KEYS || batch_bytes >= BATCH_BYTES {
                self.copy_batch(&batch, &mut reader, target, &mut copied)?;
                batch.clear();
                batch_bytes = 0;
            }
        }
        self.copy_batch(&batch, &mut reader, target, &mut copied)?;
        Ok(copied)
    }

    /// Counts a key. Returns whether it moves.
    fn note(&self, at: usize, key: &ListedKey, copied: &mut Copied) -> bool {
        copied.listed += 1;
        if copied.listed.is_multiple_of(1024) {
            let position = self.listed_before + copied.listed;
            self.bar.update(position, position);
        }
        let moves = self.moved.moves(&key.key, at);
        if moves {
            copied.moved += 1;
            copied.moved_bytes += key.size_bytes;
        }
        moves
    }

    fn copy_batch(
        &mut self,
        keys: &[ListedKey],
        reader: &mut ItemReader,
        target: &mut Target,
        copied: &mut Copied,
    ) -> anyhow::Result<()> {
        // The answer to the last batch came before the items are read.
        let second = target.second()?;
        let read = reader.read(keys)?;
        let bytes = read.items.iter().map(Item::len_bytes).sum();
        let ReadItems {
            items,
            gone,
            changed: changed_there,
            stale,
            unreadable,
        } = read;
        let Filled {
            stored,
            stored_bytes,
            changed,
            existing,
            refused,
        } = target.fill(&items, second)?;
        copied.gone += gone;
        copied.changed += changed_there;
        copied.stale += stale;
        copied.unreadable += unreadable;
        copied.filled.stored += stored;
        copied.filled.stored_bytes += stored_bytes;
        copied.filled.changed += changed;
        copied.filled.existing += existing;
        copied.filled.refused += refused;
        // What was sent, not what the old server has said of its items.
        self.pace.wait(bytes);
        Ok(())
    }

    /// Deletes the keys of an old server that belong to another one by now.
    pub(super) fn delete_moved(&self, at: usize, server: &ServerAddress) -> anyhow::Result<u64> {
        let mut connection = connection::open(server, self.login)?;
        let mut keys = KeyList::open(server, self.login)?;
        let (mut request, mut waiting, mut deleted) = (Vec::new(), 0, 0);
        loop {
            let key = keys.next()?;
            if let Some(ListedKey { key, .. }) = &key
                && self.moved.has_left(key, at)
            {
                let start = request.len();
                request.extend_from_slice(b"md ");
                match push_key(key, &mut request) {
                    Some(flag) => {
                        request.extend_from_slice(flag);
                        request.extend_from_slice(b"\r\n");
                        waiting += 1;
                    }
                    None => request.truncate(start),
                }
            }
            if waiting == BATCH_KEYS || key.is_none() {
                connection.send(&request)?;
                request.clear();
                for _ in 0..std::mem::take(&mut waiting) {
                    match connection.line()? {
                        b"HD" => deleted += 1,
                        // It has expired or was evicted since it was listed.
                        b"NF" => {}
                        line => {
                            let line = line.to_vec();
                            return Err(unexpected(&connection, &line));
                        }
                    }
                }
            }
            if key.is_none() {
                return Ok(deleted);
            }
        }
    }
}
