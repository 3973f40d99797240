//! Clients that are refused while they go on sending. They learn why, and cost little.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use forerun_server::VerifyClient;

use super::certificates::Certificates;
use super::multi_get_frames::{ENABLE, ENABLED, Frame, read_answer};
use super::test_server::{TIMEOUT, ask, connect, options, start, stat, until};

/// More than the system buffers between two sockets, and less than the server discards.
const MORE: usize = 12 << 20;

/// A frame with an unknown form.
fn bad_frame() -> Vec<u8> {
    Frame {
        form: 9,
        ..Frame::of(5, &["a"])
    }
    .bytes()
}

/// Sends everything before it reads anything. Returns what comes until the end of the stream, which
/// must be no reset.
fn sends_all_then_reads(stream: &mut (impl Read + Write), bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).expect("the server takes it");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("a clean end");
    answer
}

#[test]
fn a_client_that_goes_on_sending_after_a_bad_frame_reads_the_error() {
    let certificates = Certificates::new();
    let bytes = [bad_frame(), vec![b'x'; MORE]].concat();
    let server = start(options());
    let mut plain = connect(&server);
    ask(&mut plain, ENABLE, ENABLED);
    let answer = sends_all_then_reads(&mut plain, &bytes);
    assert_eq!(read_answer(&mut answer.as_slice()).code(), 1);

    let server = start(options().tls(certificates.options(VerifyClient::No)));
    let mut tls = certificates.client(None, &server);
    ask(&mut tls, ENABLE, ENABLED);
    let answer = sends_all_then_reads(&mut tls, &bytes);
    assert_eq!(read_answer(&mut answer.as_slice()).code(), 1);
}

#[test]
fn answers_before_a_line_that_is_too_long_arrive() {
    let server = start(options());
    let sent = [b"mn\r\n".to_vec(), vec![b'x'; MORE]].concat();
    assert_eq!(
        sends_all_then_reads(&mut connect(&server), &sent),
        b"MN\r\n"
    );
}

#[test]
fn a_client_of_the_binary_protocol_that_goes_on_sending_is_answered() {
    let server = start(options());
    let sent = [vec![0x80], vec![0; MORE]].concat();
    let answer = sends_all_then_reads(&mut connect(&server), &sent);
    assert_eq!(answer[..2], [0x81, 0]);
}

#[test]
fn a_client_that_does_not_authenticate_reads_the_errors_before_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let users = dir.path().join("users");
    std::fs::write(&users, "alice:s3cret\n").expect("a file");
    let server = start(options().auth_file(users));
    let wrong = b"set x 0 0 9\r\nalice bad\r\n".to_vec();
    let sent = [wrong, vec![b'x'; MORE]].concat();
    let answer = sends_all_then_reads(&mut connect(&server), &sent);
    assert_eq!(answer, b"CLIENT_ERROR authentication failure\r\n");
}

#[test]
fn a_client_without_tls_that_goes_on_sending_reads_the_alert() {
    let certificates = Certificates::new();
    let server = start(options().tls(certificates.options(VerifyClient::No)));
    let sent = b"get key\r\n".repeat(MORE / 9);
    let answer = sends_all_then_reads(&mut connect(&server), &sent);
    // An alert (21) that is fatal (2).
    assert_eq!((answer[0], answer[5]), (21, 2), "{answer:?}");
}

#[test]
fn a_client_beyond_the_limit_reads_why_although_it_has_sent_requests() {
    let server = start(options().connection_limit(1));
    let mut first = connect(&server);
    ask(&mut first, "mn\r\n", "MN\r\n");
    for _ in 0..100 {
        let mut stream = connect(&server);
        let answer = sends_all_then_reads(&mut stream, &b"get k\r\n".repeat(1000));
        assert_eq!(answer, b"ERROR Too many open connections\r\n");
    }
    ask(&mut first, "mn\r\n", "MN\r\n");
}

#[test]
fn a_client_of_the_metrics_that_sends_a_body_reads_the_answer() {
    let server = start(options().metrics(Some(([127, 0, 0, 1], 0).into())));
    let address = server.metrics_address().expect("it was asked for");
    let head = b"PUT /metrics HTTP/1.1\r\nContent-Length: 500000\r\n\r\n".to_vec();
    let mut stream = TcpStream::connect(address).expect("it accepts");
    let answer = sends_all_then_reads(&mut stream, &[head, vec![b'x'; 500_000]].concat());
    assert!(answer.starts_with(b"HTTP/1.1 405 "), "{answer:?}");
}

#[test]
fn a_refused_client_that_never_stops_sending_is_cut_off() {
    let server = start(options());
    let mut stream = connect(&server);
    ask(&mut stream, ENABLE, ENABLED);
    stream.write_all(&bad_frame()).expect("it is sent");
    let piece = vec![b'x'; 1 << 20];
    let mut sent = 0;
    let error = loop {
        match stream.write(&piece) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
        // What the server discards, and what the system buffers.
        assert!(sent < 64 << 20, "the server reads without end");
    };
    let kinds = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
    assert!(kinds.contains(&error.kind()), "{error}");
    assert!(sent > MORE, "only {sent} bytes");
}

#[test]
fn a_refused_client_that_stays_is_closed_after_some_seconds() {
    let server = start(options());
    let mut asks = connect(&server);
    let refuse = || {
        let mut stream = connect(&server);
        ask(&mut stream, ENABLE, ENABLED);
        stream.write_all(&bad_frame()).expect("it is sent");
        stream
    };
    let begun = Instant::now();
    let mut stay: Vec<TcpStream> = (0..50).map(|_| refuse()).collect();
    // One that sends a byte now and then.
    let mut sender = stay.pop().expect("one");
    let sends = std::thread::spawn(move || {
        while sender.write_all(b"x").is_ok() && begun.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(100));
        }
        begun.elapsed()
    });
    // They have read the end of the stream long before.
    for stream in &mut stay {
        assert_eq!(read_answer(stream).code(), 1);
        assert_eq!(stream.read(&mut [0]).expect("a clean end"), 0);
    }
    // Meanwhile others are served.
    ask(&mut asks, "mn\r\n", "MN\r\n");
    until("all are closed", || {
        stat(&mut asks, "curr_connections") == "1"
    });
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(4), "{took:?}");
    let sent = sends.join().expect("it ends");
    assert!(sent < Duration::from_secs(30), "{sent:?}");
    // Those that close at once make room at once.
    let begun = Instant::now();
    drop((0..50).map(|_| refuse()).collect::<Vec<_>>());
    until("all are closed", || {
        stat(&mut asks, "curr_connections") == "1"
    });
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[test]
fn a_refused_client_does_not_delay_a_drain() {
    let server = start(options());
    let mut stream = connect(&server);
    ask(&mut stream, ENABLE, ENABLED);
    stream.write_all(&bad_frame()).expect("it is sent");
    assert_eq!(read_answer(&mut stream).code(), 1);
    let begun = Instant::now();
    server.drain();
    server.wait().expect("it ends well");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}
