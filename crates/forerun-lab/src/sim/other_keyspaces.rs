//! Steps in the private keyspaces of other threads, which their owners drop and create again at any
//! time. Until then such a keyspace behaves like any other, and afterwards each call returns an
//! error.

use std::time::Duration;

use forerun_db::Error;

use super::client_thread::ClientThread;
use super::draw::private_name;
use super::program::ReadDirection;
use super::reads::read;
use super::runtime;
use super::simulation::{Outcome, violation};

/// How often the keyspace is read.
const ROUNDS: usize = 3;

impl ClientThread<'_> {
    /// Writes a key to the private keyspace of another thread, and reads it several times.
    pub fn use_other(&mut self, thread: u8, number: u8, len: u16) -> Outcome {
        let name = private_name(usize::from(thread));
        if usize::from(thread) == self.model.thread {
            return Ok(());
        }
        let Some(keyspace) = self.opened.db.find_keyspace(&name) else {
            return Ok(());
        };
        // The owner does not compare keys that begin with a letter other than its own.
        let key = [self.model.letter(), b'o', number];
        let value = vec![number; usize::from(len)];
        let start = self.begin();
        match keyspace.put(key, &value) {
            Ok(()) if start.refuses_writes && self.is_alive() => {
                return violation("a store that refuses writes accepted one");
            }
            Ok(()) => {}
            Err(error @ Error::MemoryLimit { .. }) => return self.allow_no_memory(&error, &start),
            Err(error) => {
                return self.allow_dropped(&error, "write to a keyspace of another thread");
            }
        }
        let expires = self.simulation.program.store.private.ttl_s.is_some();
        for _ in 0..ROUNDS {
            match keyspace.get(key) {
                Ok(found) if found.as_ref() == Some(&value) => {}
                Ok(None) if expires => {}
                Ok(_) if !self.is_alive() => {}
                Ok(found) => {
                    return violation(format!(
                        "a key in {name:?} has {:?} bytes, expected {len}",
                        found.map(|found| found.len())
                    ));
                }
                Err(error) => {
                    return self.allow_dropped(&error, "read a keyspace of another thread");
                }
            }
            match read(keyspace.iter(), ReadDirection::Forward) {
                Ok(entries) => {
                    let is_there = entries.iter().any(|(of, _)| of.eq_ignore_ascii_case(&key));
                    if !is_there && !expires && self.is_alive() {
                        return violation(format!("a scan of {name:?} misses a key"));
                    }
                }
                Err(error) => {
                    return self.allow_dropped(&error, "scan a keyspace of another thread");
                }
            }
            runtime::sleep(Duration::from_millis(1));
        }
        match keyspace.delete(key) {
            Ok(()) => Ok(()),
            Err(error @ Error::MemoryLimit { .. }) => self.allow_no_memory(&error, &start),
            Err(error) => self.allow_dropped(&error, "delete a key of another thread's keyspace"),
        }
    }

    fn allow_dropped(&self, error: &Error, doing: &str) -> Outcome {
        match error {
            Error::KeyspaceDropped { .. } => Ok(()),
            _ => self.allow_write(error, doing),
        }
    }
}
