//! What clients say about themselves, for `CLIENT LIST` on any connection.
//!
//! ```text
//!   CLIENT SETNAME, SETINFO, HELLO ──► NamedClient ──► ClientNames, by the connection's number
//!                                         └ dropped with its session, which removes the entry
//! ```
//!
//! Each request notes its command, which therefore has a place of its own, outside the lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use super::command_list::{COMMANDS, SUBCOMMANDS};
use super::command_spec::{Command, Spec};

/// The longest name.
const NAME_BYTES_MAX: usize = 1 << 10;

/// What one client has said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientName {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    /// Who has logged in.
    pub(crate) user: Vec<u8>,
    /// The version of the protocol; 0 until the client has sent a command.
    pub(crate) protocol: i64,
    /// The number of the database.
    pub(crate) database: u16,
    pub(crate) last_command: LastCommand,
}

/// The command that a client has sent last. 0: none, or an unknown one.
///
/// ```text
///   bits 15 to 8   the place of its subcommand in the list, plus 1
///   bits 7 to 0    the place of the command, plus 1
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastCommand(u16);

/// The clients that speak RESP, by the number of their connection.
#[derive(Debug, Default)]
pub(crate) struct ClientNames(Mutex<BTreeMap<u64, Entry>>);

#[derive(Debug)]
struct Entry {
    name: ClientName,
    last_command: Arc<AtomicU16>,
}

/// The entry of one client.
#[derive(Debug)]
pub(crate) struct NamedClient {
    all: Arc<ClientNames>,
    connection: u64,
    last_command: Arc<AtomicU16>,
}

impl LastCommand {
    /// A command that has no subcommand.
    #[inline]
    pub(crate) fn plain(command: Command) -> LastCommand {
        LastCommand(command as u16 + 1)
    }

    /// The command of a request. As in Redis, one with an unknown subcommand is none.
    #[inline]
    pub(crate) fn of(spec: &Spec, arguments: &[&[u8]]) -> LastCommand {
        let plain = LastCommand::plain(spec.command);
        match arguments.get(1) {
            Some(word) if spec.has_subcommands() => {
                let mut all = SUBCOMMANDS.iter();
                let place = all.position(|one| {
                    one.of == spec.command && one.name.as_bytes().eq_ignore_ascii_case(word)
                });
                place.map_or(LastCommand::default(), |place| {
                    LastCommand(plain.0 | (place as u16 + 1) << 8)
                })
            }
            _ => plain,
        }
    }

    /// Its name, as `CLIENT LIST` shows it.
    pub(crate) fn name(self) -> String {
        let [command, subcommand] = self.0.to_le_bytes();
        let command = usize::from(command).checked_sub(1);
        let Some(spec) = command.and_then(|place| COMMANDS.get(place)) else {
            return "NULL".to_owned();
        };
        let subcommand = usize::from(subcommand).checked_sub(1);
        match subcommand.and_then(|place| SUBCOMMANDS.get(place)) {
            Some(subcommand) => format!("{}|{}", spec.name, subcommand.name),
            None => spec.name.to_owned(),
        }
    }
}

/// Whether a text may be a name: printable characters other than spaces.
pub(crate) fn is_name(text: &[u8]) -> bool {
    text.len() <= NAME_BYTES_MAX && text.iter().all(u8::is_ascii_graphic)
}

impl ClientNames {
    /// Adds a client.
    pub(crate) fn add(self: &Arc<Self>, connection: u64) -> NamedClient {
        let last_command = Arc::new(AtomicU16::new(0));
        let entry = Entry {
            name: ClientName::default(),
            last_command: Arc::clone(&last_command),
        };
        self.names().insert(connection, entry);
        NamedClient {
            all: Arc::clone(self),
            connection,
            last_command,
        }
    }

    /// What the client of a connection has said, if it speaks RESP.
    pub(crate) fn get(&self, connection: u64) -> Option<ClientName> {
        let names = self.names();
        let entry = names.get(&connection)?;
        Some(ClientName {
            // Relaxed, here and below: only shown.
            last_command: LastCommand(entry.last_command.load(Ordering::Relaxed)),
            ..entry.name.clone()
        })
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        // A change is complete even if a thread panics after it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NamedClient {
    /// Changes what the client has said.
    pub(crate) fn change(&self, change: impl FnOnce(&mut ClientName)) {
        if let Some(entry) = self.all.names().get_mut(&self.connection) {
            change(&mut entry.name);
        }
    }

    /// Notes which command the client has sent.
    #[inline]
    pub(crate) fn note(&self, command: LastCommand) {
        self.last_command.store(command.0, Ordering::Relaxed);
    }

    /// What the client has said.
    pub(crate) fn get(&self) -> ClientName {
        self.all.get(self.connection).unwrap_or_default()
    }
}

impl Drop for NamedClient {
    fn drop(&mut self) {
        self.all.names().remove(&self.connection);
    }
}

#[cfg(test)]
mod tests {
    use super::super::command_table::find;
    use super::*;

    #[test]
    fn the_last_command_is_shown_with_its_subcommand() {
        let all = Arc::new(ClientNames::default());
        let client = all.add(7);
        let shown = || all.get(7).map(|client| client.last_command.name());
        assert_eq!(shown().as_deref(), Some("NULL"));
        for (line, expected) in [
            ("get client", "get"),
            ("CLIENT List", "client|list"),
            ("slowlog reset", "slowlog|reset"),
            ("CONFIG foo", "NULL"),
            ("COMMAND", "command"),
            ("watch a", "watch"),
        ] {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let spec = find(words[0]).expect(line);
            client.note(LastCommand::of(spec, &words));
            assert_eq!(shown().as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_name_is_known_while_its_client_is_connected() {
        let all = Arc::new(ClientNames::default());
        let (first, second) = (all.add(7), all.add(8));
        first.change(|client| client.name = b"worker".to_vec());
        assert_eq!(
            all.get(7).map(|client| client.name),
            Some(b"worker".to_vec())
        );
        assert_eq!(second.get(), ClientName::default());
        drop(first);
        assert_eq!(all.get(7), None);
        assert!(is_name(b"a-b_c") && is_name(b"") && !is_name(b"a b") && !is_name(b"a\n"));
    }
}
