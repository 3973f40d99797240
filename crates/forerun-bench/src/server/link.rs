//! What carries the load's connections: sockets or UCX, and how the client waits for replies.
//!
//! ```text
//!            tcp                               ucx
//!   sleep    epoll                             poll UCX once, then its descriptor
//!   poll     epoll without waiting, again      poll UCX again
//! ```

use super::form::Protocol;
use super::ucx_link::{UcxLink, UcxLinks};
use anyhow::{Context as _, Result};
use clap::ValueEnum;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a server may leave a request unanswered.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

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
    /// The protocol of its requests.
    pub protocol: Protocol,
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
    Ucx(Box<UcxLink>),
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
    ucx: Option<UcxLinks>,
}

impl LinkPoll {
    pub(super) fn new(place: &Place, wait: ClientWait, links: usize) -> Result<LinkPoll> {
        let poll = Poll::new()?;
        let ucx = match place {
            Place::Tcp(_) => None,
            Place::Ucx(_) => Some(UcxLinks::open(poll.registry(), HUB)?),
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
                let stream = ucx.connect(path, token, TIMEOUT);
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
                    ucx.poll(ready);
                    if ready.is_empty() && self.wait == ClientWait::Sleep && ucx.arm()? {
                        self.poll_system(TIMEOUT)?;
                    }
                }
            }
            let links = self.events.iter().map(|event| event.token());
            ready.extend(links.filter(|token| *token != HUB).map(|token| token.0));
        }
        if let Some(ucx) = &self.ucx
            && ready.is_empty()
        {
            // A server that is gone has closed the control sockets.
            ucx.look_at_controls();
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
            ucx.progress();
        }
    }
}
