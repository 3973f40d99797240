//! Readers and writers of every speed transfer 20 MB, with and without TLS.
//!
//! A client's speed determines how often, and with how many bytes left, the server finds the socket
//! full. If a server then waits for an event that never comes, it stalls for good, and the client's
//! read times out.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forerun_cache::{Cache, CacheOptions};
use forerun_server::{Listen, Server, ServerOptions, VerifyClient};
use rustls::{ClientConnection, Stream};

use super::certificates::Certificates;
use super::test_server::{ask, expect, options, until};

/// Timeout of a client's read or write. A loaded machine is slow, but only a stall exceeds this.
const STALLED: Duration = Duration::from_secs(60);
/// Length of a value, and the number of values that make 20 MB.
const VALUE_BYTES: usize = 1_000_000;
const VALUES: usize = 20;

/// The speed at which a client reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speed {
    /// As fast as it can.
    AtOnce,
    /// 8 KiB every 100 us.
    Slowly,
    /// A megabyte at once, then nothing for 10 ms.
    Bursts,
    /// Starts only after the server has found the socket full, then reads or writes as fast as it
    /// can.
    AfterPause,
    /// The first 3,000 bytes one by one.
    BytesFirst,
}

const SPEEDS: [Speed; 5] = [
    Speed::AtOnce,
    Speed::Slowly,
    Speed::Bursts,
    Speed::AfterPause,
    Speed::BytesFirst,
];

/// A socket whose reads and writes have a limited speed.
struct Paced {
    socket: TcpStream,
    speed: Speed,
    /// Bytes read or written so far.
    done: usize,
}

impl Paced {
    /// How many of `max_bytes` bytes the next call may transfer.
    fn allowed(&self, max_bytes: usize) -> usize {
        match self.speed {
            Speed::Slowly => {
                thread::sleep(Duration::from_micros(100));
                max_bytes.min(8 << 10)
            }
            Speed::Bursts => {
                const BURST: usize = 1 << 20;
                if self.done.is_multiple_of(BURST) {
                    thread::sleep(Duration::from_millis(10));
                }
                max_bytes.min(BURST - self.done % BURST)
            }
            Speed::BytesFirst if self.done < 3_000 => max_bytes.min(1),
            Speed::AtOnce | Speed::AfterPause | Speed::BytesFirst => max_bytes,
        }
    }
}

impl Read for Paced {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let allowed = self.allowed(into.len());
        let count = self.socket.read(&mut into[..allowed])?;
        self.done += count;
        Ok(count)
    }
}

impl Write for Paced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let allowed = self.allowed(bytes.len());
        let count = self.socket.write(&bytes[..allowed])?;
        self.done += count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A client with or without TLS.
struct Client {
    socket: Paced,
    tls: Option<Box<ClientConnection>>,
}

impl Client {
    /// Sets the speed of all later reads and writes.
    fn set_speed(&mut self, speed: Speed) {
        self.socket.speed = speed;
        self.socket.done = 0;
    }

    /// Closes the sending side.
    fn shut_down(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            while tls.wants_write() {
                tls.write_tls(&mut self.socket).expect("it is sent");
            }
        }
        let socket = &self.socket.socket;
        socket.shutdown(Shutdown::Write).expect("it is open");
    }

    /// Expects `answer` next. Reports a wrong answer by name, without printing megabytes.
    fn expect(&mut self, answer: &[u8], what: &str) {
        let mut piece = vec![0; 64 << 10];
        let mut done = 0;
        while done < answer.len() {
            let max_bytes = piece.len().min(answer.len() - done);
            match self.read(&mut piece[..max_bytes]) {
                Ok(0) => panic!("{what}: it ends after {done} of {} bytes", answer.len()),
                Ok(count) => {
                    let same = piece[..count] == answer[done..done + count];
                    assert!(
                        same,
                        "{what}: wrong bytes between {done} and {}",
                        done + count
                    );
                    done += count;
                }
                Err(error) => panic!("{what}: {error} after {done} of {} bytes", answer.len()),
            }
        }
    }

    /// Expects the end of the connection. With TLS, close_notify must announce it.
    fn expect_end(&mut self, what: &str) {
        match self.read(&mut [0]) {
            Ok(0) => {}
            other => panic!("{what}: {other:?} in the place of the end"),
        }
    }
}

impl Read for Client {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => Stream::new(tls.as_mut(), &mut self.socket).read(into),
            None => self.socket.read(into),
        }
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => Stream::new(tls.as_mut(), &mut self.socket).write(bytes),
            None => self.socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => Stream::new(tls.as_mut(), &mut self.socket).flush(),
            None => Ok(()),
        }
    }
}

/// A server that listens with and without TLS. Its cache holds [`value`] as `big`.
struct TlsServer {
    certificates: Certificates,
    server: Server,
}

impl TlsServer {
    fn new() -> TlsServer {
        TlsServer::with_drain_timeout(STALLED)
    }

    fn with_drain_timeout(drain_timeout: Duration) -> TlsServer {
        let certificates = Certificates::new();
        let mut options: ServerOptions = options();
        options
            .listen
            .extend(Listen::parse("notls:127.0.0.1:0", 0).expect("it is an address"));
        options.tls = Some(certificates.options(VerifyClient::No));
        options.drain_timeout = drain_timeout;
        let cache = Cache::new(
            CacheOptions::default()
                .memory_limit_bytes(128 << 20)
                .max_item_bytes(2 << 20),
        );
        let server = Server::start(options, Arc::new(cache.expect("a cache")));
        let place = TlsServer {
            certificates,
            server: server.expect("it starts"),
        };
        let mut client = place.client(false);
        client
            .write_all(&[&set_line("big")[..], &value(), b"\r\n"].concat())
            .expect("it is sent");
        expect(&mut client, "STORED\r\n");
        place
    }

    fn client(&self, in_tls: bool) -> Client {
        self.client_at(in_tls, Speed::AtOnce)
    }

    /// Returns a client that has this speed from its first byte on.
    fn client_at(&self, in_tls: bool, speed: Speed) -> Client {
        let (socket, tls) = if in_tls {
            let stream = self.certificates.client(None, &self.server);
            (stream.sock, Some(Box::new(stream.conn)))
        } else {
            let plain = self.server.addresses()[1].to_string();
            (TcpStream::connect(plain).expect("it accepts"), None)
        };
        socket.set_read_timeout(Some(STALLED)).expect("a time");
        socket.set_write_timeout(Some(STALLED)).expect("a time");
        let mut client = Client {
            socket: Paced {
                socket,
                speed,
                done: 0,
            },
            tls,
        };
        // The handshake is complete.
        ask(&mut client, "mn\r\n", "MN\r\n");
        client
    }

    /// Number of connections that wait for their readers.
    fn waiting(&self, client: &mut Client) -> usize {
        client.write_all(b"stats conns\r\n").expect("it is sent");
        let mut text = Vec::new();
        let mut piece = [0; 4096];
        while !text.ends_with(b"END\r\n") {
            let count = client.read(&mut piece).expect("statistics come");
            text.extend_from_slice(&piece[..count]);
        }
        let text = String::from_utf8(text).expect("they are text");
        text.matches(":state conn_mwrite").count()
    }
}

/// A megabyte without repeated parts.
fn value() -> Vec<u8> {
    let mut state = 1_u64;
    (0..VALUE_BYTES)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

fn set_line(key: &str) -> Vec<u8> {
    format!("set {key} 0 0 {VALUE_BYTES}\r\n").into_bytes()
}

/// One value in an answer.
fn answer_line(key: &str) -> Vec<u8> {
    let line = format!("VALUE {key} 0 {VALUE_BYTES}\r\n").into_bytes();
    [&line[..], &value(), b"\r\n"].concat()
}

/// Clients of every speed send `request`, expect `answer`, then send `quit`.
fn readers_get(request: &[u8], answer: &[u8], in_tls: bool) {
    let place = TlsServer::new();
    let mut observer = place.client(false);
    for speed in SPEEDS {
        let what = format!("{speed:?}, TLS {in_tls}");
        let mut client = place.client(in_tls);
        client.write_all(request).expect("it is sent");
        client.write_all(b"quit\r\n").expect("it is sent");
        client.set_speed(speed);
        if speed == Speed::AfterPause {
            until("the server waits for the reader", || {
                place.waiting(&mut observer) == 1
            });
        }
        client.expect(answer, &what);
        client.expect_end(&what);
    }
}

#[test]
fn tls_readers_of_every_speed_get_20_mb_of_answers_whole() {
    let answer = [&answer_line("big")[..], b"END\r\n"].concat();
    readers_get(&b"get big\r\n".repeat(VALUES), &answer.repeat(VALUES), true);
}

#[test]
fn tls_readers_of_every_speed_get_20_mb_of_one_multi_get_whole() {
    let request = ["get", &" big".repeat(VALUES), "\r\n"].concat();
    let answer = [&answer_line("big").repeat(VALUES)[..], b"END\r\n"].concat();
    readers_get(request.as_bytes(), &answer, true);
}

#[test]
fn plain_readers_of_every_speed_get_20_mb_of_answers_whole() {
    let answer = [&answer_line("big")[..], b"END\r\n"].concat();
    readers_get(
        &b"get big\r\n".repeat(VALUES),
        &answer.repeat(VALUES),
        false,
    );
}

#[test]
fn many_tls_readers_at_once_get_their_answers_whole() {
    let place = TlsServer::new();
    let answer = [&answer_line("big")[..], b"END\r\n"].concat();
    thread::scope(|scope| {
        for number in 0..10 {
            let (place, answer) = (&place, &answer);
            scope.spawn(move || {
                let mut client = place.client(true);
                client
                    .write_all(&b"get big\r\n".repeat(VALUES / 2))
                    .expect("it is sent");
                client.set_speed(SPEEDS[number % SPEEDS.len()]);
                for _ in 0..VALUES / 2 {
                    client.expect(answer, &format!("reader {number}"));
                }
            });
        }
    });
}

/// Clients of every speed store 20 MB and read them back.
fn writers_store(in_tls: bool) {
    let place = TlsServer::new();
    let mut request = Vec::new();
    for number in 0..VALUES {
        request.extend_from_slice(&set_line(&format!("key{number}")));
        request.extend_from_slice(&value());
        request.extend_from_slice(b"\r\n");
    }
    for speed in SPEEDS {
        let what = format!("{speed:?}, TLS {in_tls}");
        let mut client = place.client(in_tls);
        client
            .write_all(b"flush_all noreply\r\n")
            .expect("it is sent");
        client.set_speed(speed);
        client.write_all(&request).expect("it is sent");
        client.flush().expect("it is sent");
        client.set_speed(Speed::AtOnce);
        client.expect(&b"STORED\r\n".repeat(VALUES), &what);
        for number in 0..VALUES {
            let key = format!("key{number}");
            client
                .write_all(format!("get {key}\r\n").as_bytes())
                .expect("it is sent");
            client.expect(&[&answer_line(&key)[..], b"END\r\n"].concat(), &what);
        }
    }
}

#[test]
fn tls_writers_of_every_speed_store_20_mb() {
    writers_store(true);
}

#[test]
fn plain_writers_of_every_speed_store_20_mb() {
    writers_store(false);
}

#[test]
fn a_half_closed_client_gets_20_mb_and_the_end() {
    let place = TlsServer::new();
    let answer = [&answer_line("big")[..], b"END\r\n"].concat();
    for in_tls in [true, false] {
        for speed in [Speed::AtOnce, Speed::Slowly] {
            let what = format!("{speed:?}, TLS {in_tls}");
            let mut client = place.client(in_tls);
            client
                .write_all(&b"get big\r\n".repeat(VALUES))
                .expect("it is sent");
            client.shut_down();
            client.set_speed(speed);
            client.expect(&answer.repeat(VALUES), &what);
            client.expect_end(&what);
        }
    }
}

#[test]
fn a_drain_sends_close_notify_to_tls_clients() {
    let place = TlsServer::new();
    let answer = [&answer_line("big")[..], b"END\r\n"].concat();
    let mut observer = place.client(false);
    let mut idle = place.client(true);
    let mut reads = place.client(true);
    reads
        .write_all(&b"get big\r\n".repeat(VALUES))
        .expect("it is sent");
    until("the server waits for the reader", || {
        place.waiting(&mut observer) == 1
    });
    place.server.drain();
    idle.expect_end("idle");
    reads.expect(&answer.repeat(VALUES), "the reader");
    reads.expect_end("the reader");
}

#[test]
fn a_tls_client_waiting_through_the_drain_gets_close_notify() {
    let place = TlsServer::with_drain_timeout(Duration::from_millis(200));
    let mut observer = place.client(false);
    let mut half = place.client(true);
    half.write_all(b"mn\r\nset k 0 0 10\r\n01234")
        .expect("it is sent");
    half.expect(b"MN\r\n", "the half");
    ask(&mut observer, "mn\r\n", "MN\r\n");
    // The rest of the value never comes.
    place.server.drain();
    half.expect_end("the half");
}

#[test]
fn a_handshake_of_any_speed_is_completed() {
    let place = TlsServer::new();
    for speed in [Speed::BytesFirst, Speed::Slowly] {
        // The server answers a command that follows the handshake.
        let mut client = place.client_at(true, speed);
        client.write_all(b"quit\r\n").expect("it is sent");
        client.expect_end(&format!("{speed:?}"));
    }
}
