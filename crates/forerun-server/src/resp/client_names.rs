//! What clients say about themselves, for `CLIENT LIST` on any connection.
//!
//! ```text
//!   CLIENT SETNAME, SETINFO, HELLO ──► NamedClient ──► ClientNames, by the connection's number
//!                                         └ dropped with its session, which removes the entry
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

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
}

/// The clients that speak RESP, by the number of their connection.
#[derive(Debug, Default)]
pub(crate) struct ClientNames(Mutex<BTreeMap<u64, ClientName>>);

/// The entry of one client.
#[derive(Debug)]
pub(crate) struct NamedClient {
    all: Arc<ClientNames>,
    connection: u64,
}

/// Whether a text may be a name: printable characters other than spaces.
pub(crate) fn is_name(text: &[u8]) -> bool {
    text.len() <= NAME_BYTES_MAX && text.iter().all(u8::is_ascii_graphic)
}

impl ClientNames {
    /// Adds a client.
    pub(crate) fn add(self: &Arc<Self>, connection: u64) -> NamedClient {
        self.names().insert(connection, ClientName::default());
        NamedClient {
            all: Arc::clone(self),
            connection,
        }
    }

    /// What the client of a connection has said, if it speaks RESP.
    pub(crate) fn get(&self, connection: u64) -> Option<ClientName> {
        self.names().get(&connection).cloned()
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<u64, ClientName>> {
        // A change is complete even if a thread panics after it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NamedClient {
    /// Changes what the client has said.
    pub(crate) fn change(&self, change: impl FnOnce(&mut ClientName)) {
        if let Some(name) = self.all.names().get_mut(&self.connection) {
            change(name);
        }
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
    use super::*;

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
