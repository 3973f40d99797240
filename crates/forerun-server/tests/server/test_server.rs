//! A server on a free port, and clients with time limits.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_cache::{Cache, CacheOptions};
use forerun_server::{Address, Listen, Server, ServerOptions};

/// Maximum time that a test waits for anything.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Options for a server on a free port of the loopback interface.
pub fn options() -> ServerOptions {
    let loopback = Listen::parse("127.0.0.1:0", 0).expect("it is an address");
    ServerOptions::new(loopback).threads(2)
}

pub fn cache() -> Arc<Cache> {
    Arc::new(Cache::new(CacheOptions::default()).expect("a cache"))
}

pub fn start(options: ServerOptions) -> Server {
    Server::start(options, cache()).expect("it starts")
}

/// The server's first TCP address.
pub fn tcp(server: &Server) -> SocketAddr {
    let tcp = server.addresses().iter().find_map(|address| match address {
        Address::Tcp(address) => Some(*address),
        _ => None,
    });
    tcp.expect("it listens on TCP")
}

pub fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(tcp(server)).expect("it accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
    stream.set_write_timeout(Some(TIMEOUT)).expect("a time");
    stream
}

/// Sends a request and expects an answer.
pub fn ask(stream: &mut (impl Read + Write), request: &str, answer: &str) {
    stream.write_all(request.as_bytes()).expect("it is sent");
    expect(stream, answer);
}

/// Expects these bytes next.
pub fn expect(stream: &mut impl Read, answer: &str) {
    let mut got = vec![0; answer.len()];
    let mut done = 0;
    while done < got.len() {
        match stream.read(&mut got[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}, after {:?}", String::from_utf8_lossy(&got[..done])),
        }
    }
    assert_eq!(String::from_utf8_lossy(&got[..done]), answer);
}

/// Reads everything until the other end closes.
pub fn rest(stream: &mut impl Read) -> Vec<u8> {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => rest,
    }
}

/// Waits until a condition is true.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a value from `stats`.
pub fn stat(stream: &mut TcpStream, name: &str) -> String {
    stream.write_all(b"stats\r\n").expect("it is sent");
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    while !text.ends_with(b"END\r\n") {
        let count = stream.read(&mut piece).expect("statistics come");
        assert!(count > 0, "closed within statistics");
        text.extend_from_slice(&piece[..count]);
    }
    let text = String::from_utf8(text).expect("they are text");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .to_owned()
}
