//! A server that loads its snapshot: health checks, and requests to end.

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use forerun_cache::{Store, StoreResult};
use forerun_server::{Error, Server, ServerHandle, ServerOptions, SnapshotOptions, write_snapshot};

use super::test_server::{TIMEOUT, ask, cache, connect, options, rest, start};

/// The bytes of a snapshot with a few items.
fn snapshot_bytes(dir: &Path) -> Vec<u8> {
    let path = dir.join("whole");
    let cache = cache();
    for number in 0..1000_u32 {
        let stored = cache.store(Store::set(&number.to_be_bytes(), b"value"));
        assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
    }
    write_snapshot(&cache, &path).expect("it is written");
    fs::read(&path).expect("it is there")
}

/// Options for a server whose snapshot is a pipe: the load takes as long as the writer does.
fn with_pipe(path: &Path) -> ServerOptions {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.expect("there is mkfifo").success());
    options().snapshot(SnapshotOptions::new(path))
}

/// The status and the body of an answer of the metrics server.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
    let request = format!("GET {path} HTTP/1.1\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is sent");
    let answer = String::from_utf8(rest(&mut stream)).expect("it is text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    (status.expect("a status"), body.to_owned())
}

fn statuses(address: SocketAddr) -> [u16; 4] {
    let paths = [
        "/health/live",
        "/health/started",
        "/health/ready",
        "/health",
    ];
    paths.map(|path| get(address, path).0)
}

/// An address that nobody listens at.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

#[test]
fn a_server_that_loads_its_snapshot_is_alive_and_not_ready() {
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = snapshot_bytes(dir.path());
    let path = dir.path().join("cache.snapshot");
    let metrics = free_address();
    let options = with_pipe(&path).metrics(Some(metrics));
    let writer = thread::spawn(move || {
        // Opening waits until the server reads.
        let mut pipe = File::options().write(true).open(path).expect("a reader");
        let (first, second) = bytes.split_at(bytes.len() / 2);
        pipe.write_all(first).expect("it is read");
        let seen = (statuses(metrics), get(metrics, "/metrics"));
        pipe.write_all(second).expect("it is read");
        seen
    });
    let server = start(options);
    let (during, (status, text)) = writer.join().expect("the server answered");
    assert_eq!(during, [200, 503, 503, 503]);
    assert_eq!(status, 200);
    assert!(text.contains("\nforerun_cache_items "), "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert_eq!(statuses(metrics), [200; 4]);
    let value = "VALUE \0\0\0\u{7} 0 5\r\nvalue\r\nEND\r\n";
    ask(&mut connect(&server), "get \0\0\0\u{7}\r\n", value);
    let (_, text) = get(metrics, "/metrics");
    assert!(text.contains("\nforerun_connections "), "{text}");
}

#[test]
fn a_server_that_is_asked_to_end_while_it_loads_ends_soon_and_keeps_its_snapshot() {
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = snapshot_bytes(dir.path());
    let path = dir.path().join("cache.snapshot");
    let options = with_pipe(&path);
    let handle = ServerHandle::new();
    let (requests, from) = (handle.clone(), path.clone());
    let writer = thread::spawn(move || {
        let mut pipe = File::options().write(true).open(from).expect("a reader");
        let (first, second) = bytes.split_at(bytes.len() / 2);
        pipe.write_all(first).expect("it is read");
        requests.drain();
        pipe.write_all(second).expect("it is read");
    });
    let error = Server::start_with_handle(options, cache(), handle).expect_err("it must end");
    assert!(matches!(error, Error::Interrupted), "{error}");
    writer.join().expect("it was read");
    assert!(path.exists());
}

#[test]
fn a_request_to_end_that_came_before_the_start_keeps_the_snapshot() {
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = snapshot_bytes(dir.path());
    let path = dir.path().join("whole");
    for with_snapshot in [true, false] {
        let handle = ServerHandle::new();
        handle.drain();
        let mut options = options();
        if with_snapshot {
            options = options.snapshot(SnapshotOptions::new(&path));
        }
        let error = Server::start_with_handle(options, cache(), handle).expect_err("it must end");
        assert!(matches!(error, Error::Interrupted), "{error}");
    }
    assert!(fs::read(&path).expect("it is there") == bytes);
}

#[test]
fn other_requests_during_the_start_are_served_afterwards() {
    let dir = tempfile::tempdir().expect("a directory");
    snapshot_bytes(dir.path());
    let path = dir.path().join("whole");
    let handle = ServerHandle::new();
    handle.snapshot();
    handle.reload_files();
    let options = options().snapshot(SnapshotOptions::new(&path));
    let server = Server::start_with_handle(options, cache(), handle).expect("it starts");
    let live = dir.path().join("whole.live");
    super::test_server::until("it is written", || live.exists());
    server.drain();
    server.wait().expect("it ends well");
}

#[test]
fn an_old_snapshot_is_not_loaded() {
    let dir = tempfile::tempdir().expect("a directory");
    snapshot_bytes(dir.path());
    let path = dir.path().join("whole");
    thread::sleep(Duration::from_millis(2100));
    let snapshot = SnapshotOptions::new(&path).max_age(Some(Duration::from_secs(1)));
    let cache = cache();
    let server = Server::start(options().snapshot(snapshot), cache.clone()).expect("it starts");
    assert_eq!(cache.stats().items, 0);
    assert!(!path.exists(), "no server may load it later");
    drop(server);
}

#[test]
fn a_scheduled_flush_survives_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    let with_snapshot = || options().snapshot(SnapshotOptions::new(&path));
    let server = start(with_snapshot());
    let mut stream = connect(&server);
    ask(&mut stream, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    ask(&mut stream, "flush_all 3\r\n", "OK\r\n");
    server.drain();
    server.wait().expect("it ends well");
    let begun = Instant::now();
    let server = start(with_snapshot());
    let mut stream = connect(&server);
    ask(&mut stream, "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    thread::sleep(Duration::from_millis(5500).saturating_sub(begun.elapsed()));
    ask(&mut stream, "get k\r\n", "END\r\n");
}

#[test]
fn a_server_stops_being_ready_before_it_stops_accepting() {
    let delay = Duration::from_millis(1500);
    let options = options()
        .metrics(Some(([127, 0, 0, 1], 0).into()))
        .drain_delay(delay);
    let server = start(options);
    let metrics = server.metrics_address().expect("it was asked for");
    let mut open = connect(&server);
    assert_eq!(statuses(metrics), [200; 4]);
    let asked = Instant::now();
    server.drain();
    while statuses(metrics) == [200; 4] {
        assert!(asked.elapsed() < TIMEOUT, "it stays ready");
    }
    assert_eq!(statuses(metrics), [200, 200, 503, 200]);
    ask(&mut open, "mn\r\n", "MN\r\n");
    ask(&mut connect(&server), "mn\r\n", "MN\r\n");
    assert!(
        asked.elapsed() < delay,
        "this machine is too slow for the test"
    );
    while statuses(metrics) == [200, 200, 503, 200] {
        assert!(asked.elapsed() < TIMEOUT, "the drain never begins");
    }
    assert!(asked.elapsed() >= delay, "{:?}", asked.elapsed());
    assert_eq!(statuses(metrics), [200, 200, 503, 503]);
    assert_eq!(rest(&mut open), b"");
    server.wait().expect("it ends well");
}
