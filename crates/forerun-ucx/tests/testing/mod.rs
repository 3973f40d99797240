//! Pairs of streams in one process, over the transports that `UCX_TLS` allows.

#![allow(dead_code, reason = "each test uses a part")]

mod transports;

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::sync::Mutex;
use forerun_ucx::{Context, Hub, Stream};

pub use transports::{again_with, ucx};

/// Longer than any test waits.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One side of a pair.
pub struct Side {
    pub stream: Stream<UnixStream>,
    pub control_ready: Arc<AtomicBool>,
    /// The other side's hub.
    peer: Arc<Mutex<Hub>>,
}

pub fn hub(context: &Context) -> Arc<Mutex<Hub>> {
    Arc::new(Mutex::new(Hub::new(context).expect("a hub")))
}

/// Two streams that are connected to each other, with windows of `window` messages.
pub fn pair_of(hubs: &[Arc<Mutex<Hub>>; 2], window: u16) -> [Side; 2] {
    let (left, right) = UnixStream::pair().expect("sockets");
    let [a, b] = hubs.clone();
    let open = |hub: &Arc<Mutex<Hub>>| {
        let mut hub = hub.lock().expect("not poisoned");
        let (channel, key) = hub.open(7, window);
        (channel, key, hub.address().to_vec())
    };
    let (at_a, key_a, address_a) = open(&a);
    let (at_b, key_b, address_b) = open(&b);
    let mut lock = a.lock().expect("not poisoned");
    lock.connect(at_a, &address_b, key_b, window)
        .expect("connected");
    drop(lock);
    let mut lock = b.lock().expect("not poisoned");
    lock.connect(at_b, &address_a, key_a, window)
        .expect("connected");
    drop(lock);
    let (peer_a, peer_b) = (b.clone(), a.clone());
    let sides = [(left, a, at_a, peer_a), (right, b, at_b, peer_b)];
    sides.map(|(control, hub, channel, peer)| {
        control.set_nonblocking(true).expect("a socket");
        let control_ready = Arc::new(AtomicBool::new(false));
        Side {
            stream: Stream::new(control, &[], hub, channel, control_ready.clone()),
            control_ready,
            peer,
        }
    })
}

pub fn pair(context: &Context, window: u16) -> [Side; 2] {
    pair_of(&[hub(context), hub(context)], window)
}

impl Side {
    /// Lets UCX work, and makes the stream look at its control socket.
    pub fn progress(&self) -> bool {
        self.control_ready.store(true, Ordering::Relaxed);
        self.stream.hub().lock().expect("not poisoned").progress()
    }

    /// Sends all bytes; `other` works in the meantime.
    pub fn send(&mut self, mut bytes: &[u8], mut other: impl FnMut() -> bool) {
        let start = Instant::now();
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.progress();
                    other();
                }
                Err(error) => panic!("{error}"),
            }
            assert!(start.elapsed() < PATIENCE, "{} bytes are left", bytes.len());
        }
    }

    /// Reads once, without waiting. `None` means that nothing has arrived.
    pub fn read(&mut self, bytes: usize) -> io::Result<Option<Vec<u8>>> {
        self.progress();
        let mut into = vec![0; bytes];
        match self.stream.read(&mut into) {
            Ok(count) => {
                into.truncate(count);
                Ok(Some(into))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps the other side's hub no longer.
    pub fn forget_peer(&mut self) {
        self.peer = self.stream.hub().clone();
    }

    /// Waits for bytes or the end. The other side works in the meantime.
    pub fn wait(&mut self) -> io::Result<Vec<u8>> {
        let start = Instant::now();
        loop {
            self.peer.lock().expect("not poisoned").progress();
            if let Some(bytes) = self.read(64 << 10)? {
                return Ok(bytes);
            }
            assert!(start.elapsed() < PATIENCE, "nothing arrives");
        }
    }
}
