//! A client over UCX that is used like a blocking socket.

#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../forerun-ucx/tests/testing/transports.rs"]
mod transports;

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::sync::Mutex;
use forerun_server::{Listen, Server, ServerOptions, UcxOptions};
use forerun_ucx::{ChannelId, Context, Hello, HelloAnswer, Hub, Token};

use super::test_server::{TIMEOUT, options, start};
#[allow(unused_imports, reason = "each test uses a part")]
pub use transports::{again_with, ucx};

/// Options for a server that listens over UCX alone, through a Unix socket.
pub fn ucx_options(path: &Path) -> ServerOptions {
    let listen = Listen::unix(path, 0o600).over_ucx(UcxOptions::default());
    ServerOptions::new(vec![listen])
}

/// A server that listens over UCX at this path, and a connection to it.
pub fn served_over_ucx(path: &Path) -> Option<(Server, UcxClient)> {
    let context = ucx()?;
    let server = start(ucx_options(path));
    Some((server, UcxClients::new(&context).connect(path)))
}

/// A server over UCX and TCP, in a directory of its own.
pub struct Both {
    pub server: Server,
    pub path: PathBuf,
    pub clients: UcxClients,
    _dir: tempfile::TempDir,
}

pub fn both(change: impl FnOnce(ServerOptions) -> ServerOptions) -> Option<Both> {
    let context = ucx()?;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ucx");
    let mut options = options();
    options.listen.extend(ucx_options(&path).listen);
    Some(Both {
        server: start(change(options)),
        clients: UcxClients::new(&context),
        path,
        _dir: dir,
    })
}

/// Connections of one thread, which share a hub.
#[derive(Clone)]
pub struct UcxClients {
    hub: Arc<Mutex<Hub>>,
}

/// A control socket of the standard library.
pub trait StdSocket: forerun_ucx::ControlSocket {
    fn set_times(&self) -> io::Result<()>;
    fn never_block(&self) -> io::Result<()>;
}

impl StdSocket for UnixStream {
    fn set_times(&self) -> io::Result<()> {
        self.set_read_timeout(Some(TIMEOUT))
    }

    fn never_block(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

impl StdSocket for TcpStream {
    fn set_times(&self) -> io::Result<()> {
        self.set_read_timeout(Some(TIMEOUT))
    }

    fn never_block(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

/// A connection.
pub struct UcxClient<C: StdSocket = UnixStream> {
    stream: forerun_ucx::Stream<C>,
    control_ready: Arc<AtomicBool>,
}

impl UcxClients {
    pub fn new(context: &Context) -> UcxClients {
        let hub = Hub::new(context).expect("a hub");
        UcxClients {
            hub: Arc::new(Mutex::new(hub)),
        }
    }

    /// Lets UCX work.
    pub fn progress(&self) {
        self.hub.lock().expect("not poisoned").progress();
    }

    /// Opens a channel, and composes its hello.
    pub fn hello(&self, window: u16) -> (ChannelId, Hello) {
        let mut hub = self.hub.lock().expect("not poisoned");
        let (channel, key) = hub.open(0, window);
        let hello = Hello {
            address: hub.address().to_vec(),
            key,
            window,
        };
        (channel, hello)
    }

    pub fn connect(&self, path: &Path) -> UcxClient {
        self.try_connect(path, None).expect("it accepts")
    }

    pub fn try_connect(&self, path: &Path, token: Option<&Token>) -> io::Result<UcxClient> {
        self.connect_over(UnixStream::connect(path)?, token)
    }

    pub fn connect_over<C: StdSocket>(
        &self,
        mut control: C,
        token: Option<&Token>,
    ) -> io::Result<UcxClient<C>> {
        control.set_times()?;
        let (channel, hello) = self.hello(32);
        // A server with too many connections says so and closes before it reads.
        let _ = control.write_all(&hello.to_bytes(token));
        let answer = read_answer(&mut control)?;
        let mut hub = self.hub.lock().expect("not poisoned");
        hub.connect(channel, &answer.address, answer.key, answer.window)
            .map_err(io::Error::other)?;
        drop(hub);
        control.never_block()?;
        let control_ready = Arc::new(AtomicBool::new(true));
        let hub = self.hub.clone();
        Ok(UcxClient {
            stream: forerun_ucx::Stream::new(control, &[], hub, channel, control_ready.clone()),
            control_ready,
        })
    }
}

/// Reads the server's answer to a hello.
pub fn read_answer(control: &mut impl Read) -> io::Result<Hello> {
    let mut received = Vec::new();
    loop {
        match HelloAnswer::parse(&received) {
            Ok(Some((answer, _))) => return Ok(answer),
            Ok(None) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
        let mut piece = [0; 256];
        match control.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => received.extend_from_slice(&piece[..count]),
        }
    }
}

impl<C: StdSocket> UcxClient<C> {
    /// The stream.
    pub fn stream(&mut self) -> &mut forerun_ucx::Stream<C> {
        &mut self.stream
    }

    /// The control socket.
    pub fn control(&mut self) -> &mut C {
        self.stream.control()
    }

    /// Repeats a call until it does not have to wait.
    fn wait<T>(
        &mut self,
        mut call: impl FnMut(&mut forerun_ucx::Stream<C>) -> io::Result<T>,
    ) -> io::Result<T> {
        let start = Instant::now();
        loop {
            match call(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            if start.elapsed() > TIMEOUT {
                return Err(ErrorKind::TimedOut.into());
            }
            if !self.progress() && start.elapsed() > Duration::from_millis(1) {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// Lets UCX work, and makes the stream look at its control socket.
    pub fn progress(&self) -> bool {
        self.control_ready.store(true, Ordering::Relaxed);
        self.stream.hub().lock().expect("not poisoned").progress()
    }
}

impl<C: StdSocket> Read for UcxClient<C> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.wait(|stream| stream.read(into))
    }
}

impl<C: StdSocket> Write for UcxClient<C> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
