//! A connection to a server, which waits for each answer.

use std::time::Duration;

use anyhow::anyhow;
use forerun_client::{RawConnection, ServerAddress};

use crate::login::{self, Login};
use crate::output::Named;

/// Maximum time to connect, to wait for bytes, and for a whole line.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Connects, and authenticates if there is a user.
pub(super) fn open(server: &ServerAddress, login: &Login) -> anyhow::Result<RawConnection> {
    Ok(login.open(server, TIMEOUT)?)
}

/// An error: the server has answered something unexpected.
pub(super) fn unexpected(connection: &RawConnection, line: &[u8]) -> anyhow::Error {
    let name = connection.server();
    if line == login::UNAUTHENTICATED.as_bytes() {
        return anyhow!("{name}: {}", login::NEEDS_USER);
    }
    anyhow!("{name}: it answered {}", Named(line))
}

/// A decimal number.
pub(super) fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
#[path = "../../../../forerun-client/tests/testing/one_connection.rs"]
mod one_connection;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A connection whose server has sent `bytes` and ignores what it receives.
    pub(in super::super) fn of(bytes: &[u8]) -> RawConnection {
        let server = ServerAddress::tcp("127.0.0.1", one_connection::sending(bytes));
        open(&server, &Login::default()).expect("a connection")
    }
}
