//! The limits of a server under load, compared with its statistics and with the memory that the
//! system reports.

use std::collections::HashMap;
use std::net::SocketAddr;

use forerun_cli::exit::CheckFailed;

use super::TLS_CLIENTS;
use super::wire::{Target, Wire};

/// By how much a turn of the server's worker may exceed a limit.
const EXCESS_BYTES: u64 = 1 << 20;

/// How far a server's memory may exceed the limit of its cache, in addition to what is documented:
/// the program, the buffers of connections, and the connections themselves.
const MEMORY_EXCESS: f64 = 0.03;
/// The same for limits below 267 MiB: the server's threads take some MiB even then.
const MEMORY_EXCESS_BYTES: u64 = 8 << 20;

/// A connection without its buffers, and one with TLS.
const CONNECTION_BYTES: u64 = 512;
const TLS_CONNECTION_BYTES: u64 = 8 << 10;

/// The limits of a server, and what it has taken.
pub struct Limits {
    wire: Wire,
    /// What uploads may take together, and also values that wait for their readers.
    values_bytes_max: u64,
    connections_bytes: u64,
    /// The last statistics.
    statistics: HashMap<String, String>,
    /// The most that values took which waited for their readers.
    pub waiting_bytes_max: u64,
}

impl Limits {
    /// For a server with this memory limit, item limit and number of connections.
    pub fn connect(
        server: SocketAddr,
        memory_bytes: u64,
        item_bytes_max: u64,
        connections: u64,
    ) -> Result<Limits, CheckFailed> {
        let tls_connections = connections / u64::from(TLS_CLIENTS) + 1;
        let mut limits = Limits {
            wire: Wire::connect(&Target::Plain(server)).map_err(CheckFailed)?,
            values_bytes_max: (memory_bytes / 4).max(item_bytes_max) + EXCESS_BYTES,
            connections_bytes: connections * CONNECTION_BYTES
                + tls_connections * TLS_CONNECTION_BYTES,
            statistics: HashMap::new(),
            waiting_bytes_max: 0,
        };
        limits.check()?;
        Ok(limits)
    }

    /// Asks for the statistics, and compares the memory of connections with its limits.
    ///
    /// # Errors
    /// The limit that does not hold.
    pub fn check(&mut self) -> Result<(), CheckFailed> {
        self.read_statistics().map_err(CheckFailed)?;
        let buffer_bytes = self.number("read_buf_bytes")? + self.number("response_obj_bytes")?;
        let buffer_bytes_max = self.number("read_buf_limit_bytes")? + EXCESS_BYTES;
        let waiting_bytes = self.number("response_value_bytes")?;
        self.waiting_bytes_max = self.waiting_bytes_max.max(waiting_bytes);
        for (what, bytes, bytes_max) in [
            (
                "uploads",
                self.number("upload_bytes")?,
                self.values_bytes_max,
            ),
            ("waiting values", waiting_bytes, self.values_bytes_max),
            ("buffers", buffer_bytes, buffer_bytes_max),
        ] {
            if bytes > bytes_max {
                let fault = format!("{what} take {bytes} bytes, {bytes_max} are allowed");
                return Err(CheckFailed(fault));
            }
        }
        Ok(())
    }

    /// The most that the process may take if the limit of the cache is `limit_bytes`.
    pub fn memory_bytes_max(&self, limit_bytes: u64) -> Result<u64, CheckFailed> {
        let excess_bytes = (limit_bytes as f64 * MEMORY_EXCESS) as u64;
        Ok(limit_bytes
            + excess_bytes.max(MEMORY_EXCESS_BYTES)
            + self.number("program_bytes")?
            + self.number("read_buf_limit_bytes")?
            + EXCESS_BYTES
            + self.connections_bytes)
    }

    /// How many items the server has evicted.
    pub fn evictions(&self) -> Result<u64, CheckFailed> {
        self.number("evictions")
    }

    /// How many connections the server has closed because the memory of connections was short.
    pub fn closed(&self) -> Result<u64, CheckFailed> {
        Ok(self.number("read_buf_oom")? + self.number("response_obj_oom")?)
    }

    fn number(&self, name: &str) -> Result<u64, CheckFailed> {
        let text = self.statistics.get(name).and_then(|text| text.parse().ok());
        text.ok_or_else(|| CheckFailed(format!("the statistics have no number {name}")))
    }

    fn read_statistics(&mut self) -> Result<(), String> {
        self.wire.send(b"stats\r\n")?;
        self.statistics.clear();
        loop {
            let line = String::from_utf8_lossy(self.wire.line()?).into_owned();
            if line == "END" {
                return Ok(());
            }
            let statistic = line
                .strip_prefix("STAT ")
                .and_then(|rest| rest.split_once(' '))
                .ok_or_else(|| format!("stats was answered {line:?}"))?;
            let (name, value) = statistic;
            self.statistics.insert(name.to_owned(), value.to_owned());
        }
    }
}
