//! Clients of the binary protocol: over TCP, Unix sockets and TLS, and with users.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use forerun_server::{Listen, Server, ServerOptions, Settings, VerifyClient};

use crate::packets::*;

use super::certificates::Certificates;
use super::test_server::{ask, cache, connect, expect, options, rest, start, stat};

/// Sends requests and returns as many answers.
fn answers(stream: &mut (impl Read + Write), requests: &[Packet]) -> Vec<Packet> {
    stream.write_all(&pipeline(requests)).expect("it is sent");
    let mut bytes = Vec::new();
    for _ in requests {
        let start = bytes.len();
        bytes.resize(start + 24, 0);
        stream.read_exact(&mut bytes[start..]).expect("a header");
        let end = start + Packet::len_bytes(&bytes[start..]).expect("a header");
        bytes.resize(end, 0);
        stream.read_exact(&mut bytes[start + 24..]).expect("a body");
    }
    Packet::read_all(&bytes)
}

/// The status of the answer to each request.
fn statuses(stream: &mut (impl Read + Write), requests: &[Packet]) -> Vec<u16> {
    let answers = answers(stream, requests);
    answers.iter().map(|answer| answer.status).collect()
}

fn login(user_and_password: &[u8]) -> Packet {
    Packet::new(SASL_AUTH)
        .key(b"PLAIN")
        .value(user_and_password)
}

/// Options with the users `alice:s3cret` and `bob:hunter2`.
fn with_users() -> (tempfile::TempDir, ServerOptions) {
    let dir = tempfile::tempdir().expect("a directory");
    let users = dir.path().join("users");
    std::fs::write(&users, "alice:s3cret\nbob:hunter2\n").expect("a file");
    let options = options().auth_file(users);
    (dir, options)
}

/// Stores and reads a small and a large value.
fn round_trip(stream: &mut (impl Read + Write)) {
    let large = b"0123456789".repeat(70_000);
    let requests = [
        Packet::store(SET, b"small", 7, 0, b"value"),
        Packet::store(SET, b"large", 8, 0, &large),
        Packet::new(GETK).key(b"large"),
        Packet::new(GETK).key(b"small"),
        Packet::new(GET).key(b"large"),
        Packet::new(NOOP),
    ];
    let answers = answers(stream, &requests);
    assert!(answers.iter().all(|answer| answer.status == 0));
    assert!(answers[2].value == large && answers[4].value == large);
    assert_eq!(
        (&answers[3].value[..], &answers[3].key[..]),
        (&b"value"[..], &b"small"[..])
    );
}

#[test]
fn binary_clients_are_served_over_every_transport() {
    let certificates = Certificates::new();
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let mut options = options().tls(certificates.options(VerifyClient::No));
    let plain = Listen::parse("notls:127.0.0.1:0", 0).expect("it is an address");
    options.listen.extend(plain);
    options.listen.push(Listen::unix(&socket, 0o700));
    let server = start(options);
    round_trip(&mut certificates.client(None, &server));
    let plain = server.addresses()[1].to_string();
    round_trip(&mut std::net::TcpStream::connect(plain).expect("it accepts"));
    let mut unix = UnixStream::connect(&socket).expect("it accepts");
    round_trip(&mut unix);
    // Both protocols serve the same items.
    let mut text = UnixStream::connect(&socket).expect("it accepts");
    ask(
        &mut text,
        "get small\r\n",
        "VALUE small 7 5\r\nvalue\r\nEND\r\n",
    );
}

#[test]
fn a_client_that_quits_or_closes_gets_its_last_answers() {
    let server = start(options());
    let set = Packet::store(SET, b"a", 0, 0, b"x").bytes();
    for end in [
        Packet::new(QUIT).bytes(),
        Packet::new(QUITQ).bytes(),
        Vec::new(),
    ] {
        let mut stream = connect(&server);
        stream
            .write_all(&[&set[..], &end].concat())
            .expect("it is sent");
        if end.is_empty() {
            stream.shutdown(Shutdown::Write).expect("half closed");
        }
        let answers = Packet::read_all(&rest(&mut stream));
        let quits = usize::from(end.get(1) == Some(&QUIT));
        assert_eq!(answers.len(), 1 + quits);
    }
}

#[test]
fn a_malformed_request_is_answered_although_the_client_goes_on_sending() {
    let server = start(options());
    let mut stream = connect(&server);
    let mut sent = Packet::new(NOOP).extras(b"none").bytes();
    sent.resize(2 << 20, 0);
    stream.write_all(&sent).expect("it is sent");
    let answers = Packet::read_all(&rest(&mut stream));
    assert_eq!((answers.len(), answers[0].status), (1, 4));
}

#[test]
fn a_binary_client_authenticates_with_sasl() {
    let (_dir, options) = with_users();
    let server = start(options);
    let mut stream = connect(&server);
    let mechanisms = answers(&mut stream, &[Packet::new(SASL_MECHANISMS)]);
    assert_eq!(mechanisms, [Packet::new(SASL_MECHANISMS).value(b"PLAIN")]);
    let failed = answers(&mut stream, &[login(b"\0alice\0wrong").opaque(3)]);
    assert_eq!((failed[0].status, failed[0].opaque), (0x20, 3));
    assert_eq!(failed[0].value, b"Auth failure.");
    let requests = [
        // Without a password, too early, and with a mechanism that there is not.
        login(b"\0alice"),
        Packet::new(SASL_STEP)
            .key(b"PLAIN")
            .value(b"\0alice\0s3cret"),
        Packet::new(SASL_AUTH).key(b"CRAM-MD5"),
        Packet::new(SASL_AUTH).key(&[b'P'; 33]).value(b"x"),
        login(&[b'x'; 3000]),
        Packet::new(VERSION),
        login(b"\0alice\0s3cret"),
        Packet::store(SET, b"a", 0, 0, b"x"),
        Packet::new(GET).key(b"a"),
    ];
    let expected = [0x20, 0x20, 0x20, 0x04, 0x82, 0, 0, 0, 0];
    assert_eq!(statuses(&mut stream, &requests), expected);
    // In two steps, as another user.
    let mut two_steps = connect(&server);
    let requests = [
        Packet::new(SASL_AUTH).key(b"PLAIN"),
        Packet::new(SASL_STEP)
            .key(b"PLAIN")
            .value(b"bob\0bob\0hunter2"),
        Packet::new(GET).key(b"a"),
    ];
    assert_eq!(statuses(&mut two_steps, &requests), [0x21, 0, 0]);
    // Byte by byte.
    let mut slow = connect(&server);
    slow.set_nodelay(true).expect("a socket of TCP");
    let (last, first) = (login(b"\0bob\0hunter2"), Packet::new(SASL_MECHANISMS));
    for byte in [first.bytes(), last.bytes()].concat() {
        slow.write_all(&[byte]).expect("it is sent");
    }
    assert_eq!(statuses(&mut slow, &[]), []);
    let mut head = [0; 24 + 5 + 24 + 13];
    slow.read_exact(&mut head).expect("two answers");
    assert_eq!(statuses(&mut slow, &[Packet::new(GET).key(b"a")]), [0]);
    let mut text = connect(&server);
    ask(&mut text, "set x 0 0 12\r\nalice s3cret\r\n", "STORED\r\n");
    assert_eq!(stat(&mut text, "auth_cmds"), "8");
    assert_eq!(stat(&mut text, "auth_errors"), "4");
}

#[test]
fn what_needs_a_user_ends_the_connection_without_one() {
    let (_dir, options) = with_users();
    let server = start(options);
    let refused = [
        Packet::new(GET).key(b"a"),
        Packet::new(GETQ).key(b"a"),
        Packet::new(GET).key(&[b'k'; 251]),
        Packet::new(NOOP),
        Packet::new(NOOP).value(b"x"),
        Packet::new(STAT),
        Packet::new(QUIT),
        Packet::store(SETQ, b"a", 0, 0, b"x"),
        Packet::new(0x99),
    ];
    // What needs no user is refused only because it is malformed.
    let malformed = [
        Packet::new(VERSION).value(b"x"),
        Packet::new(SASL_MECHANISMS).value(b"x"),
        Packet::new(SASL_AUTH),
        Packet::new(SASL_AUTH).key(&[b'P'; 251]),
    ];
    let refused = refused.into_iter().map(|request| (request, 0x20));
    let malformed = malformed.into_iter().map(|request| (request, 0x04));
    for (request, status) in refused.chain(malformed) {
        let mut stream = connect(&server);
        let sent = [request.clone(), Packet::new(VERSION)];
        stream.write_all(&pipeline(&sent)).expect("it is sent");
        let answers = Packet::read_all(&rest(&mut stream));
        let outline: Vec<_> = answers.iter().map(|one| (one.opcode, one.status)).collect();
        assert_eq!(outline, [(request.opcode, status)]);
    }
    // A failed attempt takes back an earlier success.
    let mut stream = connect(&server);
    let requests = [
        login(b"\0bob\0hunter2"),
        Packet::new(NOOP),
        login(b"\0bob\0x"),
    ];
    assert_eq!(statuses(&mut stream, &requests), [0, 0, 0x20]);
    assert_eq!(statuses(&mut stream, &[Packet::new(NOOP)]), [0x20]);
    assert_eq!(rest(&mut stream), b"");
}

#[test]
fn the_first_byte_decides_how_a_client_authenticates() {
    let (_dir, options) = with_users();
    let server = start(options);
    // `noop` contains a line feed.
    let version = Packet::new(VERSION).bytes();
    // After a text command, 0x80 begins a line.
    let mut stream = connect(&server);
    ask(&mut stream, "get a\r\n", "CLIENT_ERROR unauthenticated\r\n");
    stream
        .write_all(&[&version[..], b"\r\n"].concat())
        .expect("it is sent");
    expect(&mut stream, "CLIENT_ERROR unauthenticated\r\n");
    ask(
        &mut stream,
        "set x 0 0 12\r\nalice s3cret\r\n",
        "STORED\r\n",
    );
    stream
        .write_all(&[&version[..], b"\r\n"].concat())
        .expect("it is sent");
    expect(&mut stream, "ERROR\r\n");
    ask(&mut stream, "mn\r\n", "MN\r\n");
    // After a binary request, a line is no request.
    let mut stream = connect(&server);
    assert_eq!(statuses(&mut stream, &[login(b"\0alice\0s3cret")]), [0]);
    stream
        .write_all(b"get a and more than a header\r\n")
        .expect("it is sent");
    assert_eq!(rest(&mut stream), b"");
}

#[test]
fn a_binary_client_that_does_not_authenticate_in_time_is_closed() {
    let (_dir, options) = with_users();
    let limit = Duration::from_secs(2);
    let server: Server = start(options.handshake_timeout(limit));
    let mut served = connect(&server);
    assert_eq!(statuses(&mut served, &[login(b"\0alice\0s3cret")]), [0]);
    let begun = Instant::now();
    let mut late = connect(&server);
    assert_eq!(statuses(&mut late, &[login(b"\0alice\0wrong")]), [0x20]);
    assert_eq!(rest(&mut late), b"");
    assert!(begun.elapsed() + Duration::from_secs(1) >= limit);
    assert_eq!(statuses(&mut served, &[Packet::new(NOOP)]), [0]);
}

#[test]
fn a_server_with_users_and_without_the_protocol_refuses_it() {
    let (_dir, options) = with_users();
    let options = options.settings(Settings::default().binary_protocol(false));
    let server = Server::start(options, cache()).expect("it starts");
    let mut stream = connect(&server);
    stream
        .write_all(&login(b"\0alice\0s3cret").bytes())
        .expect("it is sent");
    let answers = Packet::read_all(&rest(&mut stream));
    assert_eq!((answers.len(), answers[0].status), (1, 0x81));
}

#[test]
fn the_first_byte_of_a_refused_protocol_is_no_way_to_stay_connected() {
    let (_dir, options) = with_users();
    let limit = Duration::from_secs(2);
    let settings = Settings::default().binary_protocol(false);
    let server = start(options.settings(settings).handshake_timeout(limit));
    let begun = Instant::now();
    let mut late = connect(&server);
    late.write_all(&[0x80]).expect("it is sent");
    assert_eq!(rest(&mut late), b"");
    assert!(begun.elapsed() + Duration::from_secs(1) >= limit);
    let mut text = connect(&server);
    ask(&mut text, "set x 0 0 12\r\nalice s3cret\r\n", "STORED\r\n");
    assert_eq!(stat(&mut text, "handshake_timeouts"), "1");
}
