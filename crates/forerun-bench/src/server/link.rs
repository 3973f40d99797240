//! What carries the load's connections: sockets or UCX, and how the client waits for replies.
//!
//! ```text
//!            tcp                               ucx
//!   sleep    epoll                             poll UCX once, then its descriptor
//!   poll     epoll without waiting, again      poll UCX again
//! ```

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use forerun_core::sync::atomic::{AtomicBool, Ordering};
use forerun_core::sync::{Arc, Mutex, MutexGuard, PoisonError};
use forerun_ucx::{Context, ContextOptions, Hello, HelloAnswer, Hub, Stream};
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a server may leave a request unanswered.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// How many messages a connection over UCX receives ahead.
const WINDOW: u16 = 64;
/// The token of UCX's descriptor.
const HUB: Token = Token(usize::MAX);

/// What carries connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// TCP over the loopback interface
    #[default]
    Tcp,
    /// UCX, over shared memory unless UCX_TLS says otherwise; needs libucp
    Ucx,
}

/// What a client does while it has no reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ClientWait {
    /// Sleeps until a reply comes
    #[default]
    Sleep,
    /// Asks again and again
    Poll,
}

/// How a client reaches a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkKind {
    /// What carries the connections.
    pub transport: Transport,
    /// What the client does while it has no reply.
    pub wait: ClientWait,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::Tcp => "tcp",
            Transport::Ucx => "ucx",
        })
    }
}

impl fmt::Display for ClientWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ClientWait::Sleep => "sleep",
            ClientWait::Poll => "poll",
        })
    }
}

/// Where a server accepts connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over UCX, through this Unix socket.
    Ucx(PathBuf),
}

/// A connection.
pub(super) enum Link {
    Tcp(TcpStream),
    Ucx(Box<Stream<UnixStream>>),
}

impl Read for Link {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Link::Tcp(stream) => stream.read(into),
            Link::Ucx(stream) => stream.read(into),
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Link::Tcp(stream) => stream.write(bytes),
            Link::Ucx(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens links and waits until some are ready.
pub(super) struct LinkPoll {
    poll: Poll,
    events: Events,
    wait: ClientWait,
    ucx: Option<Ucx>,
}

struct Ucx {
    hub: Arc<Mutex<Hub>>,
    /// Of each link: makes it look at its control socket.
    controls: Vec<Arc<AtomicBool>>,
}

fn lock(hub: &Mutex<Hub>) -> MutexGuard<'_, Hub> {
    hub.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LinkPoll {
    pub(super) fn new(place: &Place, wait: ClientWait, links: usize) -> Result<LinkPoll> {
        let poll = Poll::new()?;
        let ucx = match place {
            Place::Tcp(_) => None,
            Place::Ucx(_) => {
                let context = Context::open(&ContextOptions::default())?;
                let hub = Hub::new(&context)?;
                let descriptor = hub.as_fd().as_raw_fd();
                let registry = poll.registry();
                registry.register(&mut SourceFd(&descriptor), HUB, Interest::READABLE)?;
                Some(Ucx {
                    hub: Arc::new(Mutex::new(hub)),
                    controls: Vec::new(),
                })
            }
        };
        Ok(LinkPoll {
            poll,
            events: Events::with_capacity(links.max(16)),
            wait,
            ucx,
        })
    }

    /// Opens a link. `token` is its number for [`wait`](Self::wait).
    pub(super) fn open(&mut self, place: &Place, token: usize) -> Result<Link> {
        match place {
            Place::Tcp(server) => {
                // Connected here and not by mio, so that a refusal is reported here.
                let stream = std::net::TcpStream::connect(server)
                    .with_context(|| format!("cannot connect to {server}"))?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let mut stream = TcpStream::from_std(stream);
                let interest = Interest::READABLE | Interest::WRITABLE;
                let registry = self.poll.registry();
                registry.register(&mut stream, Token(token), interest)?;
                Ok(Link::Tcp(stream))
            }
            Place::Ucx(path) => {
                let ucx = self.ucx.as_mut().context("the place was another before")?;
                let stream = ucx.connect(path, token);
                let stream =
                    stream.with_context(|| format!("cannot connect to {}", path.display()))?;
                Ok(Link::Ucx(Box::new(stream)))
            }
        }
    }

    /// Waits until links are ready, and appends their numbers to `ready`.
    pub(super) fn wait(&mut self, ready: &mut Vec<usize>) -> Result<()> {
        let begin = Instant::now();
        while ready.is_empty() && begin.elapsed() < TIMEOUT {
            match &self.ucx {
                None => self.poll_system(match self.wait {
                    ClientWait::Sleep => TIMEOUT,
                    ClientWait::Poll => Duration::ZERO,
                })?,
                Some(ucx) => {
                    let mut hub = lock(&ucx.hub);
                    hub.progress();
                    hub.take_ready(|link| ready.push(link.tag));
                    if ready.is_empty() && self.wait == ClientWait::Sleep && hub.arm()? {
                        drop(hub);
                        self.poll_system(TIMEOUT)?;
                    }
                }
            }
            let links = self.events.iter().map(|event| event.token());
            ready.extend(links.filter(|token| *token != HUB).map(|token| token.0));
        }
        if ready.is_empty() {
            // A server that is gone has closed the control sockets.
            for control in self.ucx.iter().flat_map(|ucx| &ucx.controls) {
                // Relaxed: one thread uses the flag.
                control.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn poll_system(&mut self, timeout: Duration) -> Result<()> {
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => self.events.clear(),
            polled => polled?,
        }
        Ok(())
    }

    /// Lets UCX send while the caller waits for something else.
    pub(super) fn progress(&self) {
        if let Some(ucx) = &self.ucx {
            lock(&ucx.hub).progress();
        }
    }
}

impl Ucx {
    fn connect(&mut self, path: &Path, tag: usize) -> Result<Stream<UnixStream>> {
        let (stream, control_ready) = connect_over_ucx(&self.hub, path, tag, TIMEOUT)?;
        self.controls.push(control_ready);
        Ok(stream)
    }
}

/// Opens a stream of a hub to the server at this Unix socket, which has to answer within `timeout`.
/// Also returns the flag that makes the stream look at its control socket.
///
/// # Errors
/// The system's, UCX's, or the server's reason.
pub fn connect_over_ucx(
    hub: &Arc<Mutex<Hub>>,
    path: &Path,
    tag: usize,
    timeout: Duration,
) -> Result<(Stream<UnixStream>, Arc<AtomicBool>)> {
    let mut control = UnixStream::connect(path)?;
    control.set_read_timeout(Some(timeout))?;
    let (channel, hello) = {
        let mut hub = lock(hub);
        let (channel, key) = hub.open(tag, WINDOW);
        let address = hub.address().to_vec();
        let window = WINDOW;
        (
            channel,
            Hello {
                address,
                key,
                window,
            },
        )
    };
    let connected = control.write_all(&hello.to_bytes(None)).map_err(Into::into);
    let connected = connected.and_then(|()| {
        let answer = read_answer(&mut control)?;
        lock(hub).connect(channel, &answer.address, answer.key, answer.window)?;
        Ok(())
    });
    if let Err(error) = connected {
        lock(hub).close(channel);
        return Err(error);
    }
    control.set_nonblocking(true)?;
    let control_ready = Arc::new(AtomicBool::new(true));
    let stream = Stream::new(control, &[], hub.clone(), channel, control_ready.clone());
    Ok((stream, control_ready))
}

fn read_answer(control: &mut UnixStream) -> Result<Hello> {
    let mut received = Vec::new();
    loop {
        if let Some((answer, _)) = HelloAnswer::parse(&received)? {
            return Ok(answer);
        }
        let mut piece = [0; 256];
        let count = control.read(&mut piece)?;
        ensure!(count > 0, "the server closed the connection");
        received.extend_from_slice(&piece[..count]);
    }
}
