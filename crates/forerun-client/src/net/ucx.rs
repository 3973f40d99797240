//! Connections over UCX.
//!
//! ```text
//!   Connecting ── the control socket is connected ──> Hello ── the server's answer ──> Open
//!
//!   epoll   │ control socket │ the hub's descriptor │        the descriptor to wait for
//! ```
//!
//! Each connection has a hub of its own, so calls of several threads do not wait for each other.

use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use forerun_core::sync::{Mutex, PoisonError};
use forerun_ucx::{
    ChannelId, Context, ContextOptions, Devices, Hello, HelloAnswer, Hub, Stream, Token,
    Transports, UcxError, is_own_user,
};
use rustix::event::epoll;

use super::plain_socket::PlainSocket;
use crate::error::Error;
use crate::options::ClientOptions;
use crate::server_address::{Endpoint, ServerAddress};

/// How many messages a server may send ahead: 256 KiB.
const WINDOW: u16 = 32;

/// UCX for the connections of a client.
#[derive(Debug)]
pub(crate) struct UcxClient {
    context: Context,
    token: Option<Token>,
}

impl PartialEq for UcxClient {
    fn eq(&self, other: &UcxClient) -> bool {
        self.context.is(&other.context)
    }
}

impl Eq for UcxClient {}

impl UcxClient {
    /// Loads UCX if one of the servers is reached over it.
    ///
    /// # Errors
    /// [`Error::Ucx`], [`Error::UcxToken`].
    pub(crate) fn open(
        servers: &[ServerAddress],
        options: &ClientOptions,
    ) -> Result<Option<Arc<UcxClient>>, Error> {
        let endpoints = servers.iter().map(|server| &server.endpoint);
        let mut over_ucx = endpoints.filter(|endpoint| endpoint.is_ucx()).peekable();
        if over_ucx.peek().is_none() {
            return Ok(None);
        }
        let token = match &options.ucx_token_file {
            Some(path) => Some(Token::read(path).map_err(|reason| Error::UcxToken {
                path: path.clone(),
                reason,
            })?),
            None => None,
        };
        let options = if over_ucx.all(is_local) {
            // All of these servers are on this host.
            ContextOptions::default()
        } else {
            ContextOptions {
                transports: Transports::Network,
                devices: Devices::Environment,
            }
        };
        Ok(Some(Arc::new(UcxClient {
            context: Context::open(&options)?,
            token,
        })))
    }
}

/// Whether the address says that the server is on this host.
fn is_local(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Unix(_) | Endpoint::UcxUnix(_) => true,
        Endpoint::Tcp { host, .. } | Endpoint::UcxTcp { host, .. } => {
            let address = host.parse::<IpAddr>();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        }
    }
}

/// A connection over UCX.
#[derive(Debug)]
pub(crate) struct UcxSocket {
    state: UcxState,
    client: Arc<UcxClient>,
    epoll: OwnedFd,
}

#[derive(Debug)]
enum UcxState {
    Connecting(PlainSocket),
    /// The hello is sent.
    Hello {
        control: PlainSocket,
        hub: Arc<Mutex<Hub>>,
        channel: ChannelId,
        received: Vec<u8>,
    },
    Open {
        stream: Stream<PlainSocket>,
        /// Whether the control socket may have something to read.
        control_ready: Arc<AtomicBool>,
    },
    /// The connection has failed.
    Failed,
}

impl UcxSocket {
    /// `control` is connected or connecting.
    pub(crate) fn new(control: PlainSocket, client: Arc<UcxClient>) -> io::Result<UcxSocket> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let epoll = forerun_core::above_standard_streams(epoll)?;
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        epoll::add(&epoll, &control, epoll::EventData::new_u64(0), both)?;
        Ok(UcxSocket {
            state: UcxState::Connecting(control),
            client,
            epoll,
        })
    }

    /// Sends the hello if the control socket is connected.
    ///
    /// # Errors
    /// Why connecting failed.
    pub(crate) fn connected(&mut self) -> io::Result<()> {
        let UcxState::Connecting(control) = std::mem::replace(&mut self.state, UcxState::Failed)
        else {
            return Err(ErrorKind::NotConnected.into());
        };
        let mut control = control;
        control.connected()?;
        if let PlainSocket::Unix(socket) = &control
            && self.client.token.is_none()
            && !is_own_user(socket)
        {
            // Whoever may create files there could have put a socket in the server's place.
            let reason = "the server over UCX runs as another user";
            return Err(io::Error::new(ErrorKind::PermissionDenied, reason));
        }
        let mut hub = Hub::new(&self.client.context).map_err(io::Error::other)?;
        // Each request waits for its answer. What is left after a time-out is of no use.
        hub.set_drop_time(Duration::ZERO);
        let data = epoll::EventData::new_u64(0);
        epoll::modify(&self.epoll, &control, data, epoll::EventFlags::IN)?;
        epoll::add(&self.epoll, &hub, data, epoll::EventFlags::IN)?;
        let (channel, key) = hub.open(0, WINDOW);
        let hello = Hello {
            address: hub.address().to_vec(),
            key,
            window: WINDOW,
        };
        let bytes = hello.to_bytes(self.client.token.as_ref());
        // The socket is new, so it takes all of it at once. A server with too many connections
        // says so and closes before it reads.
        match control.write(&bytes) {
            Ok(count) if count < bytes.len() => return Err(ErrorKind::WriteZero.into()),
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
        self.state = UcxState::Hello {
            control,
            hub: Arc::new(Mutex::new(hub)),
            channel,
            received: Vec::new(),
        };
        Ok(())
    }

    /// The stream, once the server has answered the hello.
    fn stream(&mut self) -> io::Result<&mut Stream<PlainSocket>> {
        if matches!(self.state, UcxState::Hello { .. }) {
            self.read_answer()?;
        }
        match &mut self.state {
            UcxState::Open { stream, .. } => Ok(stream),
            UcxState::Connecting(_) => Err(ErrorKind::WouldBlock.into()),
            _ => Err(ErrorKind::NotConnected.into()),
        }
    }

    fn read_answer(&mut self) -> io::Result<()> {
        let UcxState::Hello {
            control, received, ..
        } = &mut self.state
        else {
            return Ok(());
        };
        let mut piece = [0; 1024];
        let parsed = loop {
            match HelloAnswer::parse(received) {
                Ok(None) => {}
                Ok(Some(parsed)) => break parsed,
                Err(error) => return Err(io::Error::new(ErrorKind::InvalidData, error)),
            }
            match control.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => received.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        let (answer, len_bytes) = parsed;
        let UcxState::Hello {
            control,
            hub,
            channel,
            received,
        } = std::mem::replace(&mut self.state, UcxState::Failed)
        else {
            return Ok(());
        };
        hub.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .connect(channel, &answer.address, answer.key, answer.window)
            .map_err(io::Error::other)?;
        let control_ready = Arc::new(AtomicBool::new(true));
        let rest = &received[len_bytes..];
        self.state = UcxState::Open {
            stream: Stream::new(control, rest, hub, channel, control_ready.clone()),
            control_ready,
        };
        Ok(())
    }

    /// Lets UCX work. Returns whether the connection can be read, or written if it has something to
    /// write.
    pub(crate) fn poll(&self, has_output: bool) -> bool {
        let UcxState::Open { stream, .. } = &self.state else {
            return false;
        };
        let mut hub = stream.hub().lock().unwrap_or_else(PoisonError::into_inner);
        hub.progress();
        drop(hub);
        stream.can_read() || (has_output && stream.can_write())
    }

    /// Prepares to wait for the descriptor. Returns false if UCX cannot report everything.
    pub(crate) fn arm(&self) -> bool {
        match &self.state {
            UcxState::Open {
                stream,
                control_ready,
            } => {
                // After the wait, the control socket may have something to read.
                // Relaxed: the thread that uses the connection sets and reads it.
                control_ready.store(true, Ordering::Relaxed);
                let mut hub = stream.hub().lock().unwrap_or_else(PoisonError::into_inner);
                hub.arm().unwrap_or(false) && hub.wait_max().is_none()
            }
            UcxState::Hello { hub, .. } => {
                let mut hub = hub.lock().unwrap_or_else(PoisonError::into_inner);
                hub.progress();
                hub.arm().unwrap_or(false)
            }
            UcxState::Connecting(_) | UcxState::Failed => true,
        }
    }

    /// Makes the next read look at the control socket and at what UCX has received.
    pub(crate) fn look_again(&self) {
        if let UcxState::Open { control_ready, .. } = &self.state {
            // Relaxed: as in `arm`.
            control_ready.store(true, Ordering::Relaxed);
        }
        self.poll(false);
    }
}

impl AsFd for UcxSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Read for UcxSocket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream()?.read(bytes)
    }
}

impl Write for UcxSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl From<UcxError> for Error {
    fn from(error: UcxError) -> Error {
        Error::Ucx(error)
    }
}
