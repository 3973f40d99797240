//! A connection over UCX on the server's side.
//!
//! ```text
//!   accepted ── hello, token ──> a channel of the worker's hub ──> Stream
//!           └── anything else ──> an answer that says why, closed
//! ```
//!
//! The control socket is an ordinary connection: the acceptor accepts and counts it, and the poll
//! watches it. Until the hello is complete and its token is right, nothing of it reaches UCX.

use forerun_core::sync::atomic::AtomicBool;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use forerun_cache::SharedValue;
use forerun_core::sync::{Mutex, PoisonError};
use forerun_ucx::{
    Context, ContextOptions, Devices, Hello, HelloAnswer, HelloError, Hub, SharedBytes, Stream,
    Token, Transports, is_own_user,
};
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token as PollToken};

use crate::address::{Address, Listen};
use crate::error::Error;

/// How many messages a client may send ahead: 128 KiB.
const WINDOW: u16 = 16;

/// What the connections of a listener for UCX share.
#[derive(Debug)]
pub(crate) struct UcxServer {
    pub(crate) context: Context,
    token: Option<Token>,
}

impl UcxServer {
    /// Loads UCX for a listener.
    ///
    /// # Errors
    /// [`Error::Ucx`]; [`Error::Option`] if the address requires an option that is missing.
    pub(crate) fn open(listen: &Listen) -> Result<UcxServer, Error> {
        let wrong = |reason: &str| {
            Err(Error::Option {
                option: "ucx",
                reason: format!("{}: {reason}", listen.address),
            })
        };
        let token = match &listen.ucx.token_file {
            Some(path) => Some(read_token(path)?),
            None => None,
        };
        let is_loopback = match &listen.address {
            Address::UcxTcp(address) => {
                if token.is_none() {
                    return wrong(
                        "an IP address requires a token file; a Unix socket checks the client's \
                         user instead",
                    );
                }
                address.ip().is_loopback()
            }
            _ => true,
        };
        if !is_loopback && listen.ucx.net_devices.is_none() {
            return wrong("an address that is not a loopback address requires network devices");
        }
        let options = ContextOptions {
            transports: if is_loopback {
                Transports::SharedMemory
            } else {
                Transports::Network
            },
            devices: match &listen.ucx.net_devices {
                Some(devices) => Devices::Named(devices.clone()),
                None => Devices::Loopback,
            },
        };
        let context = Context::open(&options).map_err(Error::Ucx)?;
        // UCX reports what it cannot do when it creates a worker: before the first client, here.
        Hub::new(&context).map_err(Error::Ucx)?;
        Ok(UcxServer { context, token })
    }

    /// Whether the client at the other end may connect: without a token, it has to run as this
    /// process's user.
    pub(crate) fn accepts_user_of(&self, stream: &UnixStream) -> bool {
        self.token.is_some() || is_own_user(stream)
    }

    /// A connection whose control socket is this one.
    pub(crate) fn over_tcp(self: &Arc<UcxServer>, stream: TcpStream) -> UcxSocket {
        UcxSocket::new(Control::Tcp(stream), self.clone())
    }

    /// A connection whose control socket is this one.
    pub(crate) fn over_unix(self: &Arc<UcxServer>, stream: UnixStream) -> UcxSocket {
        UcxSocket::new(Control::Unix(stream), self.clone())
    }
}

fn read_token(path: &Path) -> Result<Token, Error> {
    Token::read(path).map_err(|reason| Error::UcxToken {
        path: path.to_owned(),
        reason,
    })
}

/// The socket of the hello and of the stream's end.
#[derive(Debug)]
pub(crate) enum Control {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The worker that serves a connection.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHandle {
    pub(crate) hub: Arc<Mutex<Hub>>,
    /// The connection's number in the poll.
    pub(crate) token: usize,
    /// Set by the poll when the control socket may have something to read.
    pub(crate) control_ready: Arc<AtomicBool>,
}

/// A connection over UCX.
#[derive(Debug)]
pub struct UcxSocket {
    state: UcxState,
    server: Arc<UcxServer>,
}

#[derive(Debug)]
enum UcxState {
    /// Before the end of the hello.
    Hello {
        control: Control,
        received: Vec<u8>,
        worker: Option<WorkerHandle>,
    },
    Open(Box<Stream<Control>>),
    /// The hello was refused.
    Refused,
}

impl UcxSocket {
    fn new(control: Control, server: Arc<UcxServer>) -> UcxSocket {
        UcxSocket {
            state: UcxState::Hello {
                control,
                received: Vec::new(),
                worker: None,
            },
            server,
        }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.server.context
    }

    /// The control socket, for the poll.
    pub(crate) fn control(&mut self) -> Option<&mut Control> {
        match &mut self.state {
            UcxState::Hello { control, .. } => Some(control),
            UcxState::Open(stream) => Some(stream.control()),
            UcxState::Refused => None,
        }
    }

    /// Gives the connection to a worker.
    pub(crate) fn put_at(&mut self, new: WorkerHandle) {
        if let UcxState::Hello { worker, .. } = &mut self.state {
            *worker = Some(new);
        }
    }

    /// Whether the hello is not complete.
    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self.state, UcxState::Hello { .. })
    }

    /// Memory of this process for the connection's bytes: received, and to be sent.
    pub(crate) fn buffered_bytes(&self) -> (usize, usize) {
        match &self.state {
            UcxState::Hello { received, .. } => (received.capacity(), 0),
            UcxState::Open(stream) => stream.buffered_bytes(),
            UcxState::Refused => (0, 0),
        }
    }

    /// Writes a part of this range of a value, of which UCX keeps a share until it is sent.
    pub(crate) fn write_value(
        &mut self,
        value: &SharedValue,
        range: Range<usize>,
    ) -> io::Result<usize> {
        let lent: SharedBytes = Arc::new(LentValue(value.clone()));
        self.stream()?.write_shared(&lent, range)
    }

    /// The stream, once the hello is complete.
    fn stream(&mut self) -> io::Result<&mut Stream<Control>> {
        if matches!(self.state, UcxState::Hello { .. }) {
            self.read_hello()?;
        }
        match &mut self.state {
            UcxState::Open(stream) => Ok(stream),
            _ => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Reads the hello and answers it.
    fn read_hello(&mut self) -> io::Result<()> {
        let UcxState::Hello {
            control,
            received,
            worker,
        } = &mut self.state
        else {
            return Ok(());
        };
        let mut piece = [0; 1024];
        let hello = loop {
            match Hello::parse(received, self.server.token.as_ref()) {
                Ok(None) => {}
                Ok(Some(hello)) => break Ok(hello),
                Err(error) => break Err(error),
            }
            match control.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => received.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        let worker = worker.clone().ok_or(ErrorKind::NotConnected)?;
        let connected = hello.and_then(|hello| connect(&hello, &worker));
        let (answer, channel) = match connected {
            Ok((answer, channel)) => (HelloAnswer(Ok(answer)), Ok(channel)),
            Err(error) => (HelloAnswer(Err(error.clone())), Err(error)),
        };
        let bytes = answer.to_bytes();
        // The socket is new, so it takes the answer at once.
        let is_sent = control.write(&bytes).is_ok_and(|sent| sent == bytes.len());
        let state = std::mem::replace(&mut self.state, UcxState::Refused);
        let (UcxState::Hello { control, .. }, Ok(channel)) = (state, &channel) else {
            let error = channel.err().unwrap_or(HelloError::Magic);
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        };
        let stream = Stream::new(control, &[], worker.hub, *channel, worker.control_ready);
        if !is_sent {
            return Err(ErrorKind::WriteZero.into());
        }
        self.state = UcxState::Open(Box::new(stream));
        Ok(())
    }
}

/// A share of a value.
struct LentValue(SharedValue);

impl AsRef<[u8]> for LentValue {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Opens a channel to the client.
fn connect(
    hello: &Hello,
    worker: &WorkerHandle,
) -> Result<(Hello, forerun_ucx::ChannelId), HelloError> {
    let mut hub = worker.hub.lock().unwrap_or_else(PoisonError::into_inner);
    let (channel, key) = hub.open(worker.token, WINDOW);
    if let Err(error) = hub.connect(channel, &hello.address, hello.key, hello.window) {
        hub.close(channel);
        let reason = error.to_string();
        return Err(HelloError::Unreachable { reason });
    }
    let answer = Hello {
        address: hub.address().to_vec(),
        key,
        window: WINDOW,
    };
    Ok((answer, channel))
}

impl Read for UcxSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream()?.read(into)
    }
}

impl Write for UcxSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.state {
            // The acceptor tells a client that there are too many.
            UcxState::Hello { control, .. } => control.write(bytes),
            _ => self.stream()?.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream()?.write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Control {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Control::Tcp(stream) => stream.read(into),
            Control::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Control {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Control::Tcp(stream) => stream.write(bytes),
            Control::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Source for Control {
    fn register(&mut self, to: &Registry, token: PollToken, what: Interest) -> io::Result<()> {
        match self {
            Control::Tcp(stream) => stream.register(to, token, what),
            Control::Unix(stream) => stream.register(to, token, what),
        }
    }

    fn reregister(&mut self, to: &Registry, token: PollToken, what: Interest) -> io::Result<()> {
        match self {
            Control::Tcp(stream) => stream.reregister(to, token, what),
            Control::Unix(stream) => stream.reregister(to, token, what),
        }
    }

    fn deregister(&mut self, from: &Registry) -> io::Result<()> {
        match self {
            Control::Tcp(stream) => stream.deregister(from),
            Control::Unix(stream) => stream.deregister(from),
        }
    }
}
