//! The new server: its warm-up, and the copies that it accepts.

use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use forerun_client::{RawConnection, ServerAddress};

use super::connection::{self, number, unexpected};
use super::source::{Item, push_key};
use crate::login::Login;
use crate::output::Named;

/// The new server.
pub(super) struct Target {
    connection: RawConnection,
    /// Names the warm-up: another process of the server has another token.
    token: u64,
    /// A second of the server's clock that had come when it last answered.
    second: u32,
    /// When it last answered.
    answered: Instant,
    request: Vec<u8>,
}

/// A copy expires early by the age of the second that its time to live counts from.
const SECOND_AGE_MAX: Duration = Duration::from_millis(300);

/// What the new server did with a batch of copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Filled {
    pub stored: u64,
    pub stored_bytes: u64,
    /// Keys that clients have changed on the new server, or that share a bit with such a key.
    pub changed: u64,
    /// Keys that an earlier run has copied.
    pub existing: u64,
    /// Copies that the server has no room for.
    pub refused: u64,
}

impl Target {
    /// Begins the warm-up of a server that no client has used, and returns its time limit.
    pub(super) fn begin(
        server: &ServerAddress,
        login: &Login,
        seconds: u32,
    ) -> anyhow::Result<u32> {
        let mut connection = connection::open(server, login)?;
        connection.send(format!("warm_up begin {seconds}\r\n").as_bytes())?;
        let line = connection.line()?.to_vec();
        match status(&line) {
            Some((.., left_s)) => Ok(left_s),
            None => Err(refused(&connection, &line)),
        }
    }

    /// Connects to a server that is being warmed up.
    pub(super) fn open(server: &ServerAddress, login: &Login) -> anyhow::Result<Target> {
        let mut connection = connection::open(server, login)?;
        connection.send(b"warm_up status\r\n")?;
        let line = connection.line()?.to_vec();
        match status(&line) {
            Some((token, second, _)) => Ok(Target {
                connection,
                token,
                second,
                answered: Instant::now(),
                request: Vec::new(),
            }),
            None => Err(refused(&connection, &line)),
        }
    }

    /// Whether this address leads to the new server, too.
    pub(super) fn is_at(&self, server: &ServerAddress, login: &Login) -> anyhow::Result<bool> {
        let mut connection = connection::open(server, login)?;
        connection.send(b"warm_up status\r\n")?;
        let line = connection.line()?;
        Ok(status(line).is_some_and(|(token, ..)| token == self.token))
    }

    /// A second of the server's clock that has come, and not long ago.
    pub(super) fn second(&mut self) -> anyhow::Result<u32> {
        if self.answered.elapsed() > SECOND_AGE_MAX {
            self.connection.send(b"warm_up status\r\n")?;
            self.read_status()?;
        }
        Ok(self.second)
    }

    fn read_status(&mut self) -> anyhow::Result<()> {
        let line = self.connection.line()?.to_vec();
        match status(&line) {
            Some((token, second, _)) if token == self.token => self.second = second,
            _ => return Err(refused(&self.connection, &line)),
        }
        self.answered = Instant::now();
        Ok(())
    }

    /// Offers copies to the server. `second` had come on its clock before the items were read.
    pub(super) fn fill(&mut self, items: &[Item], second: u32) -> anyhow::Result<Filled> {
        self.request.clear();
        for item in items {
            self.push_fill(item, second)?;
        }
        self.request.extend_from_slice(b"warm_up status\r\n");
        self.connection.send(&self.request)?;
        let mut filled = Filled::default();
        for item in items {
            let line = self.connection.line()?;
            match line {
                b"FILLED" => {
                    filled.stored += 1;
                    filled.stored_bytes += item.value.len() as u64;
                }
                b"NOT_FILLED" => filled.changed += 1,
                b"EXISTS" => filled.existing += 1,
                _ if line.starts_with(b"SERVER_ERROR") => filled.refused += 1,
                _ => {
                    let line = line.to_vec();
                    return Err(refused(&self.connection, &line));
                }
            }
        }
        self.read_status()?;
        Ok(filled)
    }

    fn push_fill(&mut self, item: &Item, second: u32) -> anyhow::Result<()> {
        let expires_at = match item.ttl_s {
            None => 0,
            // The old server's answer is rounded up to a second.
            Some(ttl_s) => second.saturating_add(ttl_s - 1),
        };
        let request = &mut self.request;
        request.extend_from_slice(format!("warm_fill {} ", self.token).as_bytes());
        let Some(flag) = push_key(&item.key, request) else {
            bail!("the key {} cannot be sent", Named(&item.key));
        };
        let flag = match (flag, item.is_hash) {
            (b"", true) => &b" h"[..],
            (_, true) => b" bh",
            (flag, false) => flag,
        };
        let (flags, cas, bytes) = (item.flags, item.cas, item.value.len());
        let rest = format!(" {flags} {expires_at} {cas} {bytes}");
        for part in [rest.as_bytes(), flag, b"\r\n", &item.value, b"\r\n"] {
            request.extend_from_slice(part);
        }
        Ok(())
    }

    /// Ends the warm-up.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        let request = format!("warm_up end {}\r\n", self.token);
        self.connection.send(request.as_bytes())?;
        match self.connection.line()? {
            b"OK" => Ok(()),
            line => {
                let line = line.to_vec();
                Err(refused(&self.connection, &line))
            }
        }
    }
}

/// The token, the second and the seconds left in the answer of a server that is being warmed up.
fn status(line: &[u8]) -> Option<(u64, u32, u32)> {
    let mut words = line.strip_prefix(b"WARM_UP ")?.split(|byte| *byte == b' ');
    Some((
        number(words.next()?)?,
        number(words.next()?)?,
        number(words.next()?)?,
    ))
}

/// Why the new server does not accept copies.
fn refused(connection: &RawConnection, line: &[u8]) -> anyhow::Error {
    let name = connection.server();
    let never_again = "values on the old servers may be out of date by now, so do not copy them: \
                       clients will fill the server";
    match line {
        b"ERROR" => anyhow!(
            "{name}: it cannot be warmed up, because it does not keep track of the keys that \
             clients change meanwhile; `forerun serve` does"
        ),
        b"NOT_WARMING untouched" => anyhow!(
            "{name}: its warm-up has not begun, or the server was restarted. If no client has used \
             the server yet, run `forerun warm --begin --to {name}`. Otherwise {never_again}"
        ),
        b"NOT_WARMING written" | b"CLIENT_ERROR a client has written to the server" => anyhow!(
            "{name}: a client has written to it since it was started, and its warm-up had not \
             begun; {never_again}"
        ),
        b"NOT_WARMING flushed" => {
            anyhow!("{name}: a client has flushed it, which ended the warm-up")
        }
        b"CLIENT_ERROR the server is not empty" => anyhow!(
            "{name}: it is not empty; start it without a snapshot, and begin before any client \
             uses it"
        ),
        b"CLIENT_ERROR the warm-up has begun" => anyhow!("{name}: its warm-up has begun already"),
        b"CLIENT_ERROR the warm-up is over" => {
            anyhow!("{name}: its warm-up is over; {never_again}")
        }
        b"NOT_WARMING ended" => anyhow!("{name}: its warm-up was ended; {never_again}"),
        b"NOT_WARMING timed_out" => {
            anyhow!("{name}: the time limit of its warm-up has passed; {never_again}")
        }
        _ if line.starts_with(b"CLIENT_ERROR the server is not being warmed up") => {
            anyhow!("{name}: its warm-up is over, or the server was restarted; {never_again}")
        }
        _ if line.starts_with(b"WARM_UP ") => {
            anyhow!("{name}: the server was restarted; {never_again}")
        }
        _ => unexpected(connection, line),
    }
}
