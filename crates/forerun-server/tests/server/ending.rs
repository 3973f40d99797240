//! Draining, and starting again with what was there.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use forerun_server::{Error, Server, ServerOptions, SnapshotError, SnapshotOptions};

use super::place::{PATIENCE, ask, cache, connect, expect, options, rest, start, stat, tcp, until};

#[test]
fn a_drain_answers_what_was_received_and_takes_no_more() {
    let server = start(options());
    let mut idle = connect(&server);
    ask(&mut idle, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    let mut asks = connect(&server);
    ask(&mut asks, "mn\r\n", "MN\r\n");
    let address = tcp(&server);
    asks.write_all(b"get k\r\n").expect("it is sent");
    server.drain();
    server.wait().expect("it ends well");
    assert_eq!(rest(&mut idle), b"");
    assert_eq!(rest(&mut asks), b"VALUE k 0 1\r\nv\r\nEND\r\n");
    let error = TcpStream::connect(address).expect_err("nobody listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_value_on_its_way_in_is_let_in() {
    let server = start(options());
    let mut stream = connect(&server);
    ask(&mut stream, "mn\r\n", "MN\r\n");
    stream
        .write_all(b"set k 0 0 10\r\n01234")
        .expect("it is sent");
    until("half of it is there", || {
        let mut other = connect(&server);
        stat(&mut other, "bytes_read")
            .parse::<u64>()
            .is_ok_and(|bytes| bytes >= 4 + 19)
    });
    server.drain();
    std::thread::sleep(Duration::from_millis(50));
    stream.write_all(b"56789\r\n").expect("it is sent");
    assert_eq!(rest(&mut stream), b"STORED\r\n");
    server.wait().expect("it ends well");
}

#[test]
fn a_reader_that_never_reads_does_not_hold_up_the_end() {
    let server = start(ServerOptions {
        drain_timeout: Duration::from_millis(200),
        ..options()
    });
    let mut stream = connect(&server);
    let value = "x".repeat(500_000);
    ask(
        &mut stream,
        &format!("set k 0 0 500000\r\n{value}\r\n"),
        "STORED\r\n",
    );
    stream
        .write_all("get k\r\n".repeat(50).as_bytes())
        .expect("it is sent");
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    server.drain();
    server.wait().expect("it ends well");
    assert!(start.elapsed() < PATIENCE / 2);
}

#[test]
fn shutdown_is_obeyed_where_it_is_enabled() {
    let server = start(options());
    let mut stream = connect(&server);
    stream.write_all(b"shutdown\r\n").expect("it is sent");
    expect(&mut stream, "ERROR");
    let mut enabled = options();
    enabled.settings.shutdown_command = true;
    let server = start(enabled);
    connect(&server)
        .write_all(b"shutdown\r\n")
        .expect("it is sent");
    server.wait().expect("it ends well");
}

fn with_snapshot(path: &std::path::Path, ignore_bad: bool) -> ServerOptions {
    ServerOptions {
        snapshot: Some(SnapshotOptions {
            path: path.to_owned(),
            ignore_bad,
        }),
        ..options()
    }
}

#[test]
fn a_server_starts_with_what_the_one_before_it_held() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    let server = start(with_snapshot(&path, false));
    let mut stream = connect(&server);
    for number in 0..500 {
        let set = format!("set key{number} {number} 0 3\r\nabc\r\n");
        ask(&mut stream, &set, "STORED\r\n");
    }
    ask(&mut stream, "set soon 0 1 1\r\nx\r\n", "STORED\r\n");
    ask(&mut stream, "set later 0 1000 1\r\nx\r\n", "STORED\r\n");
    stream.write_all(b"gets key7\r\n").expect("it is sent");
    expect(&mut stream, "VALUE key7 7 3 ");
    let mut cas = [0; 1];
    std::io::Read::read_exact(&mut stream, &mut cas).expect("a number");
    server.drain();
    server.wait().expect("it ends well");

    std::thread::sleep(Duration::from_millis(1100));
    let server = start(with_snapshot(&path, false));
    let mut stream = connect(&server);
    for number in 0..500 {
        let answer = format!("VALUE key{number} {number} 3\r\nabc\r\nEND\r\n");
        ask(&mut stream, &format!("get key{number}\r\n"), &answer);
    }
    ask(&mut stream, "get soon\r\n", "END\r\n");
    ask(
        &mut stream,
        "get later\r\n",
        "VALUE later 0 1\r\nx\r\nEND\r\n",
    );
    // One that was held before may not be taken for a new value's.
    ask(&mut stream, "set new 0 0 1\r\nx\r\n", "STORED\r\n");
    ask(&mut stream, "cas new 0 0 1 1\r\ny\r\n", "EXISTS\r\n");
}

#[test]
fn a_snapshot_is_written_while_the_server_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    let server = start(with_snapshot(&path, false));
    let mut stream = connect(&server);
    ask(&mut stream, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    server.snapshot();
    until("it is written", || path.exists());
    ask(&mut stream, "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    let copy = cache();
    let read = forerun_server::read_snapshot(&copy, &path).expect("it is whole");
    assert_eq!(read.expect("it is there").items, 1);
}

#[test]
fn a_bad_snapshot_keeps_a_server_from_starting_unless_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    std::fs::write(&path, "something else").expect("a file");
    let error = Server::start(with_snapshot(&path, false), cache()).expect_err("it is bad");
    assert!(
        matches!(error, Error::Snapshot(SnapshotError::NotASnapshot { .. })),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).expect("it is left"), b"something else");
    let server = start(with_snapshot(&path, true));
    ask(&mut connect(&server), "get k\r\n", "END\r\n");
    let bad = dir.path().join("cache.snapshot.bad");
    assert_eq!(std::fs::read(bad).expect("it is kept"), b"something else");
}
