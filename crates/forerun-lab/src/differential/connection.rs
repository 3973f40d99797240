//! A running server, and connections to it.
//!
//! Each server listens on a unix socket. A request ends with a fence: a command whose answer
//! appears nowhere else. Everything before this answer is the answer to the request.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use forerun_server::Server;

/// How long an answer may take. Only this timeout shows that a server waits for more input.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server may take until it accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A request of at most this many bytes fits into the socket's buffers.
const SENT_BLINDLY_BYTES: usize = 16 << 10;

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub bytes: Vec<u8>,
    pub end: End,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With the answer to the fence: the connection is at the start of a command.
    Fence,
    /// The server closed the connection.
    Closed,
    /// The server waits for more input.
    Waiting,
}

impl End {
    /// The state of a server after its answer.
    pub(super) fn describe(self) -> &'static str {
        match self {
            End::Fence => "goes on",
            End::Closed => "closes the connection",
            End::Waiting => "waits for more",
        }
    }
}

#[derive(Debug)]
enum Running {
    Process(Child),
    Here(Option<Box<Server>>),
}

/// A server that ends when it is dropped.
#[derive(Debug)]
pub(super) struct RunningServer {
    running: Running,
    socket: PathBuf,
}

impl RunningServer {
    /// Starts a program that listens on `socket`.
    pub(super) fn process(mut command: Command, socket: PathBuf) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("start {:?}", command.get_program()))?;
        Ok(Self {
            running: Running::Process(child),
            socket,
        })
    }

    /// A server in this process that listens on `socket`.
    pub(super) fn here(server: Server, socket: PathBuf) -> Self {
        Self {
            running: Running::Here(Some(Box::new(server))),
            socket,
        }
    }

    /// A connection to it.
    pub(super) fn connect(&self) -> Result<Connection> {
        let deadline = Instant::now() + START_TIMEOUT;
        let stream = loop {
            match UnixStream::connect(&self.socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > deadline => {
                    return Err(error).with_context(|| format!("connect to {:?}", self.socket));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Connection { stream })
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        match &mut self.running {
            Running::Process(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Running::Here(server) => {
                if let Some(server) = server.take() {
                    server.drain();
                    let _ = server.wait();
                }
            }
        }
    }
}

/// A connection that sends a request and waits for the answer.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
}

impl Connection {
    /// Sends `bytes`, which end with a fence, cut at `cuts`, and reads up to the fence's answer.
    /// `answer_bytes` tells how many of the bytes received so far come before that answer, once it
    /// has arrived.
    pub(super) fn ask(
        &mut self,
        bytes: &[u8],
        cuts: &[usize],
        answer_bytes: &mut dyn FnMut(&[u8]) -> Option<usize>,
    ) -> Result<Reply> {
        if bytes.len() <= SENT_BLINDLY_BYTES {
            send(&self.stream, bytes, cuts);
            return self.read(answer_bytes);
        }
        // A server may expect its first answers to be read before it reads the rest of the request.
        let sender = self.stream.try_clone()?;
        std::thread::scope(|scope| {
            scope.spawn(|| send(&sender, bytes, cuts));
            self.read(answer_bytes)
        })
    }

    fn read(&mut self, answer_bytes: &mut dyn FnMut(&[u8]) -> Option<usize>) -> Result<Reply> {
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let end = match self.stream.read(&mut buffer) {
                Ok(0) => End::Closed,
                Ok(count) => {
                    bytes.extend_from_slice(&buffer[..count]);
                    let Some(len) = answer_bytes(&bytes) else {
                        continue;
                    };
                    bytes.truncate(len);
                    End::Fence
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => continue,
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => End::Waiting,
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => End::Closed,
                    _ => return Err(error).context("read an answer"),
                },
            };
            return Ok(Reply { bytes, end });
        }
    }
}

/// Sends `bytes`, cut at `cuts`. If the server has closed the connection, its answer can still be
/// read.
fn send(mut stream: &UnixStream, bytes: &[u8], cuts: &[usize]) {
    let mut sent = 0;
    for &cut in cuts.iter().chain([&bytes.len()]) {
        if cut > sent && stream.write_all(&bytes[sent..cut]).is_err() {
            return;
        }
        sent = sent.max(cut);
        if cut < bytes.len() {
            // Gives the server time to read this packet alone.
            std::thread::sleep(Duration::from_micros(60));
        }
    }
}
