//! Draining a server.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use forerun_server::Server;

use super::test_server::{TIMEOUT, ask, connect, expect, options, rest, start, stat, tcp, until};

#[test]
fn a_drain_answers_received_requests_and_accepts_no_more() {
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
    let error = TcpStream::connect(address).expect_err("no server listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_value_being_received_is_accepted() {
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
fn a_multi_get_frame_that_has_partly_arrived_is_answered() {
    let server = start(options());
    let mut stream = connect(&server);
    ask(&mut stream, "multi_get 1\r\n", "MULTI_GET 1 64\r\n");
    let frame = b"\xf6\x01\0\0\x02\0\0\0abcd\0\0\x01\0\x01k";
    stream.write_all(&frame[..10]).expect("it is sent");
    until("half of it is there", || {
        let mut other = connect(&server);
        stat(&mut other, "bytes_read")
            .parse::<u64>()
            .is_ok_and(|bytes| bytes >= 13 + 10)
    });
    server.drain();
    std::thread::sleep(Duration::from_millis(50));
    stream.write_all(&frame[10..]).expect("it is sent");
    let answer = b"\xf7\x01\0\x01\x04\0\0\0abcd\0\0\x01\0\xff\xff\xff\xff";
    assert_eq!(rest(&mut stream), answer);
    server.wait().expect("it ends well");
}

#[test]
fn a_connection_that_becomes_a_watcher_does_not_hold_up_the_end() {
    let server = start(options());
    let mut stream = connect(&server);
    ask(&mut stream, "mn\r\n", "MN\r\n");
    stream.write_all(b"watch fetc").expect("it is sent");
    until("half of it is there", || {
        let mut other = connect(&server);
        stat(&mut other, "bytes_read")
            .parse::<u64>()
            .is_ok_and(|bytes| bytes >= 4 + 10)
    });
    let start = Instant::now();
    server.drain();
    std::thread::sleep(Duration::from_millis(50));
    stream.write_all(b"hers\r\n").expect("it is sent");
    assert_eq!(rest(&mut stream), b"OK\r\n");
    server.wait().expect("it ends well");
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[test]
fn requests_after_an_answer_to_a_slow_reader_are_answered() {
    let server = start(options());
    let mut stream = connect(&server);
    let value = "x".repeat(500_000);
    ask(
        &mut stream,
        &format!("set k 0 0 500000\r\n{value}\r\n"),
        "STORED\r\n",
    );
    // This is more than the buffers of both sockets can hold.
    stream
        .write_all("get k\r\n".repeat(40).as_bytes())
        .expect("it is sent");
    let mut other = connect(&server);
    until("the first answers are on their way", || {
        stat(&mut other, "cmd_get")
            .parse::<u64>()
            .is_ok_and(|gets| gets > 0)
    });
    // The server reads nothing more until these answers are read.
    stream.write_all(b"mn\r\n").expect("it is sent");
    server.drain();
    std::thread::sleep(Duration::from_millis(100));
    let answers = rest(&mut stream);
    assert!(
        answers.ends_with(b"END\r\nMN\r\n"),
        "{} bytes came",
        answers.len()
    );
    server.wait().expect("it ends well");
}

/// Asserts that a server whose client has just sent something ends soon after it is asked to.
fn assert_ends_soon(server: Server) {
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    server.drain();
    server.wait().expect("it ends well");
    assert!(start.elapsed() < TIMEOUT / 2);
}

#[test]
fn a_reader_that_never_reads_does_not_hold_up_the_end() {
    let server = start(options().drain_timeout(Duration::from_millis(200)));
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
    assert_ends_soon(server);
}

#[test]
fn a_silent_client_does_not_hold_up_the_end_longer_than_the_idle_timeout() {
    let options = options().idle_timeout(Duration::from_secs(1));
    let server = start(options.drain_timeout(TIMEOUT));
    let mut stream = connect(&server);
    ask(&mut stream, "mn\r\n", "MN\r\n");
    // The server waits for the rest of this command.
    stream
        .write_all(b"set k 0 0 10\r\n01234")
        .expect("it is sent");
    assert_ends_soon(server);
}

#[test]
fn a_drain_timeout_beyond_any_clock_is_a_long_one() {
    let server = start(options().drain_timeout(Duration::MAX));
    let mut stream = connect(&server);
    ask(&mut stream, "mn\r\n", "MN\r\n");
    assert_ends_soon(server);
}

#[test]
fn a_drain_delay_beyond_any_clock_is_a_long_one() {
    let server = start(options().drain_delay(Duration::MAX));
    server.drain();
    std::thread::sleep(Duration::from_millis(100));
    ask(&mut connect(&server), "mn\r\n", "MN\r\n");
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
