//! The two servers that are compared, and connections to them.
//!
//! Each server listens on a unix socket in its own directory. Both are restarted for every history,
//! so a seed always gives the same run. A request ends with a fence: two commands with known
//! answers that appear in succession nowhere else. Everything before these answers is the answer to
//! the request.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forerun_cache::{Cache, CacheOptions, Clock};
use forerun_server::{Listen, Server, ServerOptions};

use super::counters::number;
use super::known_differences::Version;

/// The memory of each server. It is large enough that neither evicts.
const MEMORY_MIB: usize = 512;

/// How long an answer may take. Only this timeout shows that a server waits for more input.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A request of at most this many bytes fits into the socket's buffers.
const SENT_BLINDLY_BYTES: usize = 16 << 10;

/// The bytes that end a request.
const FENCE: &[u8] = b"mn\r\nversion\r\n";

/// The bytes that end requests of the binary protocol: a `noop` whose opaque no other request has.
const BINARY_FENCE: &[u8; 24] = b"\x80\x0a\0\0\0\0\0\0\0\0\0\0\xfe\xed\xfe\xed\0\0\0\0\0\0\0\0";

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

/// A program that speaks memcached's protocol on a unix socket.
#[derive(Clone, Debug)]
pub(super) struct Memcached {
    program: PathBuf,
    pub version: Version,
}

impl Memcached {
    /// Asks `program` for its version. `None` if there is no such program.
    pub(super) fn find(program: &Path) -> Result<Option<Self>> {
        let output = match Command::new(program).arg("-V").output() {
            Ok(output) => output,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("start {program:?}")),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        match Version::parse(&text) {
            Some(version) => Ok(Some(Self {
                program: program.to_owned(),
                version,
            })),
            None => bail!("{program:?} -V printed {text:?}, not a version"),
        }
    }

    /// Starts the program in `dir`.
    pub(super) fn start(&self, dir: &Path) -> Result<Peer> {
        let socket = dir.join("memcached.sock");
        let child = Command::new(&self.program)
            // Configured like this server: with fixed slabs, and without watchers, because
            // memcached refuses a `watch` that arrives together with other commands. The thread
            // that maintains the LRU holds recently read items for a while, and whether a number is
            // changed in place depends on that.
            .args(["-W", "-o", "no_slab_reassign,no_lru_maintainer"])
            .args(["-u", "root", "-t", "1", "-I", "4m", "-m"])
            .arg(MEMORY_MIB.to_string())
            .arg("-s")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("start {:?}", self.program))?;
        Ok(Peer {
            running: Running::Process(child),
            cache: None,
            socket,
            version_line: format!("VERSION {}\r\n", self.version).into_bytes(),
        })
    }
}

#[derive(Debug)]
enum Running {
    Process(Child),
    Here(Option<Box<Server>>),
}

/// A server that ends when it is dropped.
#[derive(Debug)]
pub(super) struct Peer {
    running: Running,
    /// The cache of this workspace's server.
    cache: Option<Arc<Cache>>,
    socket: PathBuf,
    version_line: Vec<u8>,
}

impl Peer {
    /// Starts this workspace's server in `dir`.
    pub(super) fn ours(dir: &Path) -> Result<Self> {
        let socket = dir.join("forerun.sock");
        let cache = Cache::new(
            CacheOptions::default()
                .clock(Clock::Manual)
                .memory_limit_bytes(MEMORY_MIB << 20)
                .max_item_bytes(4 << 20),
        )?;
        let mut options = ServerOptions::new(vec![Listen::unix(&socket, 0o700)]);
        options.drain_timeout = Duration::ZERO;
        options.settings.watch_enabled = false;
        let version_line = format!("VERSION {}\r\n", options.settings.version).into_bytes();
        let cache = Arc::new(cache);
        let server = Server::start(options, cache.clone())?;
        Ok(Self {
            running: Running::Here(Some(Box::new(server))),
            cache: Some(cache),
            socket,
            version_line,
        })
    }

    /// The number that this workspace's server holds under `key`, if any. The read leaves no trace.
    pub(super) fn number(&self, key: &[u8]) -> Option<u64> {
        let guard = self.cache.as_ref()?.pin();
        number(guard.peek(key)?.value())
    }

    /// A connection to it, which will speak the binary or the text protocol.
    pub(super) fn connect(&self, is_binary: bool) -> Result<Connection> {
        let deadline = Instant::now() + Duration::from_secs(20);
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
        let (fence, fence_answer) = if is_binary {
            let mut answer = BINARY_FENCE.to_vec();
            answer[0] = 0x81;
            (&BINARY_FENCE[..], answer)
        } else {
            (FENCE, [b"MN\r\n", &self.version_line[..]].concat())
        };
        Ok(Connection {
            stream,
            fence,
            fence_answer,
        })
    }
}

impl Drop for Peer {
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
    fence: &'static [u8],
    fence_answer: Vec<u8>,
}

impl Connection {
    /// Sends a command whose answer ends with `END`, and nothing else until that has arrived: while
    /// memcached lists its keys, it accepts no commands from the connection.
    pub(super) fn ask_list(&mut self, bytes: &[u8]) -> Result<Reply> {
        // If the connection is closed, the read notices.
        let _ = self.stream.write_all(bytes);
        let mut reply = self.read(b"END\r\n")?;
        if reply.end == End::Fence {
            reply.bytes.extend_from_slice(b"END\r\n");
        }
        Ok(reply)
    }

    /// Sends `bytes`, cut at `cuts` and followed by a fence, and reads up to the fence's answer.
    pub(super) fn ask(&mut self, bytes: &[u8], cuts: &[usize]) -> Result<Reply> {
        let mut all = bytes.to_vec();
        all.extend_from_slice(self.fence);
        let fence = self.fence_answer.clone();
        if all.len() <= SENT_BLINDLY_BYTES {
            send(&self.stream, &all, cuts);
            return self.read(&fence);
        }
        // A server may expect its first answers to be read before it reads the rest of the request.
        let sender = self.stream.try_clone()?;
        std::thread::scope(|scope| {
            scope.spawn(|| send(&sender, &all, cuts));
            self.read(&fence)
        })
    }

    /// Reads up to `fence`, which is left out.
    fn read(&mut self, fence: &[u8]) -> Result<Reply> {
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let end = match self.stream.read(&mut buffer) {
                Ok(0) => End::Closed,
                Ok(count) => {
                    bytes.extend_from_slice(&buffer[..count]);
                    if !bytes.ends_with(fence) {
                        continue;
                    }
                    bytes.truncate(bytes.len() - fence.len());
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
