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
pub(super) mod tests {
    use std::io::{self, Write};
    use std::net::{Shutdown, TcpListener};

    use super::*;

    /// A connection whose server has sent `bytes` and ignores what it receives.
    pub(in super::super) fn of(bytes: &[u8]) -> RawConnection {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let bytes = bytes.to_vec();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let server = ServerAddress::tcp("127.0.0.1", port);
        open(&server, &Login::default()).expect("a connection")
    }
}
