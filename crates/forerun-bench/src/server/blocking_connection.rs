//! A connection that waits for its answers, for commands that are not timed or come one at a time.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a server may leave a command unanswered.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection that waits for its answers.
pub(super) struct BlockingConnection {
    stream: BufReader<TcpStream>,
    line: Vec<u8>,
}

impl BlockingConnection {
    pub(super) fn connect(address: SocketAddr) -> Result<BlockingConnection> {
        let stream = TcpStream::connect(address).context("cannot connect to the server")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(BlockingConnection {
            stream: BufReader::with_capacity(256 << 10, stream),
            line: Vec::new(),
        })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = self.stream.get_mut().write_all(bytes);
        sent.context("cannot write to the server")
    }

    /// The next line of an answer, without its line end.
    pub(super) fn line(&mut self) -> Result<&[u8]> {
        self.line.clear();
        let read = self.stream.read_until(b'\n', &mut self.line);
        ensure!(
            read.context("cannot read from the server")? > 0,
            "the server closed the connection"
        );
        Ok(self.line.trim_ascii_end())
    }

    /// Reads lines up to this one. Values contain no line end, and none of them equals this line.
    pub(super) fn await_line(&mut self, last: &[u8]) -> Result<()> {
        while self.line()? != last {}
        Ok(())
    }
}
