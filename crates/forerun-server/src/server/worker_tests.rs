//! A worker with a client that never stops sending, or one that reads without end. Each step stays
//! short, whatever the client does.

use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forerun_cache::{Cache, CacheOptions};
use forerun_core::sync::time;

use super::super::buffers::Buffers;
use super::*;
use crate::address::{Address, Listen, Peer};
use crate::error::Error;
use crate::health::Health;
use crate::settings::Settings;
use crate::shared::NoServer;
use crate::system::{Carrier, Listening, Ready, Wake};

/// Maximum number of bytes that a connection may read in one turn, and that it may write: eight
/// buffers.
const TURN_BYTES_MAX: u64 = 8 * (64 << 10);

/// The size of a large value.
const LARGE_BYTES: usize = 16 << 20;

/// A system whose sockets always have data. Every poll reports every socket and takes ten seconds.
#[derive(Clone, Debug)]
struct BusySystem {
    start: Instant,
    polls: Arc<AtomicU64>,
}

/// A client that repeats a request and reads all answers.
#[derive(Debug)]
struct BusySocket {
    client: Client,
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug)]
enum Client {
    /// Sends an endless value.
    Stores,
    /// Asks for the same large value again and again.
    Gets,
    /// Sends this once.
    Sends(&'static [u8]),
    /// Sends this once, and never reads.
    Sleeps(&'static [u8]),
}

#[derive(Debug)]
struct Poll(Arc<AtomicU64>);

#[derive(Debug)]
struct Waker;

#[derive(Debug)]
struct NoListener;

impl Read for BusySocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // The value is too large to store, so receiving it costs little.
        const REQUEST: &[u8] = b"set k 0 0 1000000000\r\n";
        if let Client::Sends(bytes) | Client::Sleeps(bytes) = self.client {
            if self.read.swap(bytes.len() as u64, Ordering::Relaxed) > 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            into[..bytes.len()].copy_from_slice(bytes);
            return Ok(bytes.len());
        }
        if let Client::Gets = self.client {
            const GET: &[u8] = b"get large\r\n";
            let at = self.read.fetch_add(into.len() as u64, Ordering::Relaxed) as usize;
            for (index, byte) in into.iter_mut().enumerate() {
                *byte = GET[(at + index) % GET.len()];
            }
            return Ok(into.len());
        }
        let sent = self.read.fetch_add(into.len() as u64, Ordering::Relaxed) as usize;
        into.fill(b'x');
        let rest = &REQUEST[REQUEST.len().min(sent)..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(into.len())
    }
}

impl Write for BusySocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Client::Sleeps(_) = self.client {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.written
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Carrier for BusySocket {}

impl Wake for Waker {
    fn wake(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Readiness for Poll {
    type Socket = BusySocket;
    type Listener = NoListener;

    fn poll(&mut self, _: Option<Duration>, mut tell: impl FnMut(Ready)) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        for token in [WAKE, 0, 1] {
            tell(Ready {
                token,
                readable: true,
                read_closed: false,
                writable: true,
            });
        }
        Ok(())
    }

    fn register(&self, _: &mut BusySocket, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn register_listener(&self, _: &mut NoListener, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn deregister(&self, _: &mut BusySocket) -> io::Result<()> {
        Ok(())
    }
}

impl Listening for NoListener {
    type Socket = BusySocket;

    fn accept(&self) -> io::Result<(BusySocket, Peer)> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn address(&self) -> &Address {
        unreachable!("no test binds a listener")
    }

    fn speaks_tls(&self) -> bool {
        false
    }
}

impl BusySystem {
    fn second(&self) -> u32 {
        10 * self.polls.load(Ordering::Relaxed) as u32
    }
}

impl System for BusySystem {
    type Socket = BusySocket;
    type Listener = NoListener;
    type Poll = Poll;
    type File = Cursor<Vec<u8>>;

    fn bind(&self, _: &Listen, _: u32) -> Result<NoListener, Error> {
        Ok(NoListener)
    }

    fn poll(&self, _: usize) -> io::Result<(Poll, Arc<dyn Wake>)> {
        Ok((Poll(self.polls.clone()), Arc::new(Waker)))
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_secs(self.second().into())
    }

    fn unix_s(&self) -> u64 {
        0
    }

    fn tick(&self, cache: &Cache) {
        cache.advance(self.second());
    }

    fn create(&self, _: &Path) -> io::Result<Cursor<Vec<u8>>> {
        Err(ErrorKind::Unsupported.into())
    }

    fn open(&self, _: &Path) -> io::Result<Cursor<Vec<u8>>> {
        Err(ErrorKind::Unsupported.into())
    }

    fn sync(&self, _: &Cursor<Vec<u8>>) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn is_directory(&self, _: &Path) -> bool {
        false
    }

    fn spawn(&self, _: &str, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
}

/// A worker with one connection whose client stores, the acceptor's handle to it, and the number of
/// bytes that the connection has read.
fn worker_with_busy_client() -> (Worker<BusySystem>, WorkerHandle<BusySocket>, Arc<AtomicU64>) {
    let cache = Arc::new(Cache::new(CacheOptions::default()).expect("a cache"));
    let [read, written] = [Arc::default(), Arc::default()];
    let socket = BusySocket {
        client: Client::Stores,
        read: Arc::clone(&read),
        written,
    };
    let (worker, handle) = worker_with(socket, cache);
    (worker, handle, read)
}

/// A worker with a connection on this socket, and the acceptor's handle to it.
fn worker_with(
    socket: BusySocket,
    cache: Arc<Cache>,
) -> (Worker<BusySystem>, WorkerHandle<BusySocket>) {
    let shared = Shared::new(Settings::default(), cache, Box::new(NoServer));
    let health = Arc::new(Health::starting());
    let buffers = Buffers::new(1 << 20);
    let connections = Arc::new(Connections::new(2, buffers, health, time::now()));
    let system = BusySystem {
        start: time::now(),
        polls: Arc::default(),
    };
    let setup = Setup {
        system,
        shared: Arc::new(shared),
        connections: connections.clone(),
        handle: ServerHandle::new(),
        tls: None,
        users: None,
        idle_timeout_s: 0,
        handshake_timeout_s: 0,
    };
    let (mut worker, handle) = Worker::new(setup, None).expect("a worker needs no resources");
    let ticket = connections
        .admit(Peer::Unix, &"unix".into(), 0)
        .expect("the limit is not reached");
    handle.send(Message::Adopt {
        socket,
        ticket,
        tls: false,
        protocol: Protocol::Memcached,
    });
    worker.step().expect("the poll works");
    (worker, handle)
}

/// Returns the number of bytes counted during a step.
fn step(worker: &mut Worker<BusySystem>, counted: &AtomicU64) -> u64 {
    let before = counted.load(Ordering::Relaxed);
    worker.step().expect("the poll works");
    counted.load(Ordering::Relaxed) - before
}

#[test]
fn a_connection_gets_one_turn_a_step_however_often_it_is_called() {
    let (mut worker, _handle, read) = worker_with_busy_client();
    for _ in 0..5 {
        // The connection has more to do since its last turn, and the poll reports it as well.
        let bytes = step(&mut worker, &read);
        assert!((1..=TURN_BYTES_MAX).contains(&bytes), "{bytes} bytes");
    }
}

/// A worker with a client that asks for a value of 16 MiB again and again, and the number of bytes
/// that were sent to it.
fn worker_with_reading_client() -> (Worker<BusySystem>, WorkerHandle<BusySocket>, Arc<AtomicU64>) {
    let options = CacheOptions::default()
        .memory_limit_bytes(64 << 20)
        .max_item_bytes(20 << 20);
    let cache = Arc::new(Cache::new(options).expect("a cache"));
    let value = vec![b'v'; LARGE_BYTES];
    let stored = cache.store(forerun_cache::Store::set("large", &value));
    assert!(matches!(stored, forerun_cache::StoreResult::Stored { .. }));
    let written = Arc::<AtomicU64>::default();
    let socket = BusySocket {
        client: Client::Gets,
        read: Arc::default(),
        written: Arc::clone(&written),
    };
    let (worker, handle) = worker_with(socket, cache);
    (worker, handle, written)
}

#[test]
fn a_client_that_reads_large_values_as_fast_as_it_can_gets_short_turns() {
    let (mut worker, _handle, written) = worker_with_reading_client();
    let mut total = written.load(Ordering::Relaxed);
    for _ in 0..100 {
        let bytes = step(&mut worker, &written);
        assert!((1..=TURN_BYTES_MAX).contains(&bytes), "{bytes} bytes");
        total += bytes;
    }
    // All of it arrives: several values.
    assert!(total > 2 * LARGE_BYTES as u64, "{total}");
}

#[test]
fn a_drain_whose_time_is_over_sends_whole_answers() {
    let (mut worker, handle, written) = worker_with_reading_client();
    handle.send(Message::Drain(worker.setup.system.now()));
    let bytes = step(&mut worker, &written);
    assert!(bytes > LARGE_BYTES as u64, "{bytes} bytes");
}

#[test]
fn a_drain_does_not_serve_one_connection_for_long_while_others_wait() {
    let (mut worker, handle, read) = worker_with_busy_client();
    let deadline = worker.setup.system.now() + Duration::from_secs(3600);
    handle.send(Message::Drain(deadline));
    let bytes = step(&mut worker, &read);
    assert!(bytes <= 2 * TURN_BYTES_MAX, "{bytes} bytes");
    let mut steps = 1;
    while !worker.is_done() {
        let bytes = step(&mut worker, &read);
        assert!(bytes <= TURN_BYTES_MAX, "{bytes} bytes");
        steps += 1;
        assert!(
            steps < 100,
            "a client that never stops sending keeps the server from ending"
        );
    }
}

/// A worker with a connection whose client has sent this and stops, in a server whose uploads take
/// more than half of their limit.
fn worker_with_stopped_client(
    sent: &'static [u8],
) -> (
    Worker<BusySystem>,
    WorkerHandle<BusySocket>,
    forerun_cache::ValueBuffer,
) {
    let options = CacheOptions::default()
        .memory_limit_bytes(64 << 20)
        .max_item_bytes(16 << 20);
    let cache = Arc::new(Cache::new(options).expect("a cache"));
    let mut upload = cache.value_buffer(15 << 20).expect("there is room");
    upload
        .put(&cache, &vec![0; 10 << 20])
        .expect("there is room");
    let socket = BusySocket {
        client: Client::Sends(sent),
        read: Arc::default(),
        written: Arc::default(),
    };
    let (mut worker, handle) = worker_with(socket, cache);
    // The server has been up for a while when the bytes arrive.
    worker.step().expect("the poll works");
    assert!(worker.now_s() > STALL_S);
    (worker, handle, upload)
}

#[test]
fn a_new_upload_has_as_long_as_any_other_to_make_progress() {
    let (mut worker, handle, _upload) = worker_with_stopped_client(b"set v 0 0 1000000\r\nxx");
    worker.close_stalled();
    assert_eq!(worker.connections.len(), 1, "it has just begun");
    handle.send(Message::CloseStalled);
    // A step takes ten seconds.
    worker.step().expect("the poll works");
    assert_eq!(worker.connections.len(), 0);
}

#[test]
fn a_reader_that_finds_no_room_takes_the_place_of_one_that_sleeps() {
    let options = CacheOptions::default()
        .memory_limit_bytes(64 << 20)
        .max_item_bytes(20 << 20);
    let cache = Arc::new(Cache::new(options).expect("a cache"));
    let value = vec![b'v'; LARGE_BYTES];
    for key in ["a", "b"] {
        let stored = cache.store(forerun_cache::Store::set(key, &value));
        assert!(matches!(stored, forerun_cache::StoreResult::Stored { .. }));
    }
    let asks = |request| BusySocket {
        client: Client::Sleeps(request),
        read: Arc::default(),
        written: Arc::default(),
    };
    let (mut worker, handle) = worker_with(asks(b"get a\r\n"), cache);
    worker.step().expect("the poll works");
    let buffers_of = |worker: &Worker<BusySystem>| {
        let buffers = worker.setup.connections.buffers();
        buffers.values().bytes()
    };
    assert_eq!(buffers_of(&worker), LARGE_BYTES);
    let ticket = worker
        .setup
        .connections
        .admit(Peer::Unix, &"unix".into(), 0)
        .expect("the limit is not reached");
    handle.send(Message::Adopt {
        socket: asks(b"get b\r\n"),
        ticket,
        tls: false,
        protocol: Protocol::Memcached,
    });
    for _ in 0..3 {
        worker.step().expect("the poll works");
    }
    // Both values together exceed the limit.
    let open: Vec<usize> = worker.connections.iter().map(|(key, _)| key).collect();
    assert_eq!(open, [1]);
    assert_eq!(buffers_of(&worker), LARGE_BYTES);
}

#[test]
fn a_lack_of_memory_for_uploads_closes_no_connection_without_one() {
    let (mut worker, handle, _upload) = worker_with_stopped_client(b"get par");
    for _ in 0..3 {
        handle.send(Message::CloseStalled);
        worker.step().expect("the poll works");
    }
    assert_eq!(worker.connections.len(), 1);
}

#[test]
fn items_expire_while_the_server_drains() {
    let (mut worker, handle, read) = worker_with_busy_client();
    let deadline = worker.setup.system.now() + Duration::from_secs(3600);
    handle.send(Message::Drain(deadline));
    for _ in 0..5 {
        step(&mut worker, &read);
    }
    // Usually the acceptor sets the clock, but now it is waiting for its workers.
    let (clock, system) = (worker.setup.shared.cache.now(), &worker.setup.system);
    assert_eq!(clock, system.second());
}

#[test]
fn requests_that_a_drain_finds_waiting_see_the_current_time() {
    let (mut worker, handle, read) = worker_with_busy_client();
    let deadline = worker.setup.system.now() + Duration::from_secs(3600);
    handle.send(Message::Drain(deadline));
    step(&mut worker, &read);
    // The process may have been stopped for a while before this step.
    let (clock, system) = (worker.setup.shared.cache.now(), &worker.setup.system);
    assert_eq!(clock, system.second());
}
