//! RESP over real sockets, beside memcached's protocol and over the same cache.

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    pub mod certificates;
    #[allow(dead_code, reason = "each test uses its part")]
    pub mod test_server;
}

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use forerun_server::{Address, Listen, Protocol, Server, ServerOptions, VerifyClient};

use server::certificates::Certificates;
use server::test_server::{self, TIMEOUT, ask, cache, expect, rest, stat, until};

/// Options for a server with a listener for each protocol.
fn options() -> ServerOptions {
    let mut options = test_server::options();
    let resp = Listen::parse("127.0.0.1:0", 0).expect("it is an address");
    let with_resp = |listen: Listen| listen.with_protocol(Protocol::Resp);
    options.listen.extend(resp.into_iter().map(with_resp));
    options
}

fn start(options: ServerOptions) -> Server {
    Server::start(options, cache()).expect("it starts")
}

/// The address of a server's listener for RESP.
fn resp_address(server: &Server) -> SocketAddr {
    let mut listeners = server.addresses().iter().zip(server.protocols());
    let found = listeners.find_map(|(address, protocol)| match (address, protocol) {
        (Address::Tcp(address), Protocol::Resp) => Some(*address),
        _ => None,
    });
    found.expect("it listens for RESP")
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(resp_address(server)).expect("it accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
    stream.set_write_timeout(Some(TIMEOUT)).expect("a time");
    stream
}

/// A request of these words.
fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Sends a line as one request and returns a line of the answer.
fn line(stream: &mut TcpStream, request_line: &str) -> String {
    let words: Vec<&[u8]> = request_line.split(' ').map(str::as_bytes).collect();
    stream.write_all(&request(&words)).expect("it is sent");
    answer_line(stream)
}

fn answer_line(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n") {
        let mut byte = [0];
        assert_eq!(
            stream.read(&mut byte).expect("an answer"),
            1,
            "closed after {text:?}"
        );
        text.push(byte[0]);
    }
    String::from_utf8_lossy(&text[..text.len() - 2]).into_owned()
}

/// The text of a bulk string, or `None` for nil.
fn bulk(stream: &mut TcpStream, request_line: &str) -> Option<String> {
    let header = line(stream, request_line);
    match header.as_str() {
        "$-1" => None,
        header if header.starts_with('$') => Some(answer_line(stream)),
        other => panic!("{request_line}: {other}"),
    }
}

#[test]
fn both_protocols_have_one_cache() {
    let server = start(options());
    let (mut memcached, mut resp) = (test_server::connect(&server), connect(&server));
    ask(&mut memcached, "set a 7 0 5\r\nhello\r\n", "STORED\r\n");
    ask(
        &mut resp,
        "*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
        "$5\r\nhello\r\n",
    );
    ask(&mut resp, "SET b world EX 100\r\n", "+OK\r\n");
    ask(
        &mut memcached,
        "get a b\r\n",
        "VALUE a 7 5\r\nhello\r\nVALUE b 0 5\r\nworld\r\nEND\r\n",
    );
    ask(&mut resp, "APPEND a !\r\n", ":6\r\n");
    ask(
        &mut memcached,
        "get a\r\n",
        "VALUE a 7 6\r\nhello!\r\nEND\r\n",
    );
    assert_eq!(
        line(&mut resp, "FOO"),
        "-ERR unknown command 'FOO', with args beginning with: "
    );
    assert_eq!(stat(&mut memcached, "cmd_resp"), "4");
    assert_eq!(stat(&mut memcached, "resp_errors"), "1");
}

#[test]
fn a_value_expires_to_the_millisecond() {
    let server = start(options());
    let mut client = connect(&server);
    ask(
        &mut client,
        "SET a 1 PX 300\r\nGET a\r\n",
        "+OK\r\n$1\r\n1\r\n",
    );
    thread::sleep(Duration::from_millis(320));
    ask(&mut client, "GET a\r\n", "$-1\r\n");
}

#[test]
fn users_log_in() {
    let dir = tempfile::tempdir().expect("a directory");
    let users = dir.path().join("users");
    std::fs::write(&users, "default:open\nalice:s3cret\n").expect("a file");
    let server = start(options().auth_file(users));
    let mut client = connect(&server);
    for refused in ["PING", "GET a", "MULTI", "CLIENT ID"] {
        assert_eq!(
            line(&mut client, refused),
            "-NOAUTH Authentication required."
        );
    }
    assert!(line(&mut client, "HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    assert_eq!(line(&mut client, "AUTH bad"), wrong);
    assert_eq!(line(&mut client, "HELLO 2 AUTH alice open"), wrong);
    assert_eq!(line(&mut client, "AUTH open"), "+OK");
    assert_eq!(bulk(&mut client, "ACL WHOAMI").as_deref(), Some("default"));
    assert_eq!(line(&mut client, "RESET"), "+RESET");
    assert_eq!(
        line(&mut client, "PING"),
        "-NOAUTH Authentication required."
    );
    assert_eq!(line(&mut client, "AUTH alice s3cret"), "+OK");
    assert_eq!(bulk(&mut client, "ACL WHOAMI").as_deref(), Some("alice"));
    let mut client = connect(&server);
    client.write_all(b"*11\r\n").expect("it is sent");
    expect(
        &mut client,
        "-ERR Protocol error: unauthenticated multibulk length\r\n",
    );
    assert!(rest(&mut client).is_empty());
    let mut client = connect(&server);
    client
        .write_all(b"*2\r\n$4\r\nAUTH\r\n$16385\r\n")
        .expect("it is sent");
    expect(
        &mut client,
        "-ERR Protocol error: unauthenticated bulk length\r\n",
    );
}

#[test]
fn requests_go_through_tls_whatever_their_size() {
    let certificates = Certificates::new();
    let mut options = options().tls(certificates.options(VerifyClient::No));
    options
        .listen
        .retain(|listen| listen.protocol == Protocol::Resp);
    let server = start(options);
    let mut stream = certificates.client(None, &server);
    ask(&mut stream, "SET a 1\r\nGET a\r\n", "+OK\r\n$1\r\n1\r\n");
    let value = "0123456789".repeat(90_000);
    let set = format!("*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$900000\r\n{value}\r\n");
    ask(&mut stream, &set, "+OK\r\n");
    let answer = format!("$900000\r\n{value}\r\n").repeat(3);
    ask(&mut stream, "GET b\r\nGET b\r\nGET b\r\n", &answer);
    ask(&mut stream, "QUIT\r\n", "+OK\r\n");
    assert!(rest(&mut stream).is_empty());
}

#[test]
fn a_connection_beyond_the_limit_gets_redis_error() {
    let server = start(options().connection_limit(1));
    let mut first = connect(&server);
    assert_eq!(line(&mut first, "PING"), "+PONG");
    let mut second = connect(&server);
    assert_eq!(rest(&mut second), b"-ERR max number of clients reached\r\n");
}

#[test]
fn clients_are_listed_with_their_names() {
    let server = start(options());
    let (mut first, mut second) = (connect(&server), connect(&server));
    assert_eq!(line(&mut first, "CLIENT SETNAME worker-7"), "+OK");
    assert_eq!(line(&mut second, "CLIENT SETNAME other"), "+OK");
    let header = line(&mut second, "CLIENT LIST");
    let mut text = vec![0; header[1..].parse::<usize>().expect("a length") + 2];
    second.read_exact(&mut text).expect("the list");
    let text = String::from_utf8(text).expect("a text");
    let own = first.local_addr().expect("an address");
    let named = |line: &&str| line.contains("name=worker-7");
    let line = text.lines().find(named).expect("the first client");
    assert!(line.contains(&format!("addr={own} ")), "{text}");
    assert!(line.contains(" cmd=client|setname "), "{text}");
    assert!(text.contains("name=other"), "{text}");
    drop(first);
    until("a closed connection leaves the list", || {
        let header = self::line(&mut second, "CLIENT LIST");
        let mut text = vec![0; header[1..].parse::<usize>().expect("a length") + 2];
        second.read_exact(&mut text).expect("the list");
        !String::from_utf8_lossy(&text).contains("worker-7")
    });
}

/// Each thread adds to a counter by `WATCH`, `GET`, `MULTI`, `SET`, `EXEC`, as the clients'
/// manuals show it.
#[test]
fn no_increment_under_watch_is_lost() {
    const THREADS: usize = 4;
    const ROUNDS: u32 = 100;
    let server = start(options());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let mut client = connect(&server);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    loop {
                        assert_eq!(line(&mut client, "WATCH counter"), "+OK");
                        let old = bulk(&mut client, "GET counter");
                        let next = old.map_or(0, |old| old.parse().expect("a number")) + 1_u64;
                        assert_eq!(line(&mut client, "MULTI"), "+OK");
                        assert_eq!(line(&mut client, &format!("SET counter {next}")), "+QUEUED");
                        match line(&mut client, "EXEC").as_str() {
                            "*-1" => continue,
                            "*1" => break assert_eq!(answer_line(&mut client), "+OK"),
                            other => panic!("{other}"),
                        }
                    }
                }
            });
        }
    });
    let total = (THREADS as u32 * ROUNDS).to_string();
    assert_eq!(bulk(&mut connect(&server), "GET counter"), Some(total));
}

/// Writers set two keys in one transaction. Readers of both protocols never see them differ.
#[test]
fn nobody_sees_a_part_of_a_transaction() {
    const ROUNDS: u32 = 400;
    let server = start(options().threads(3));
    let mut client = connect(&server);
    assert_eq!(line(&mut client, "MSET a 0 b 0"), "+OK");
    thread::scope(|scope| {
        for writer in 0..2 {
            let mut client = connect(&server);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let value = format!("{writer}:{round}");
                    let text = format!("MULTI\r\nSET a {value}\r\nSET b {value}\r\nEXEC\r\n");
                    ask(
                        &mut client,
                        &text,
                        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n",
                    );
                }
            });
        }
        let mut resp = connect(&server);
        scope.spawn(move || {
            for _ in 0..ROUNDS {
                assert_eq!(line(&mut resp, "MGET a b"), "*2");
                let values: Vec<String> = (0..4).map(|_| answer_line(&mut resp)).collect();
                assert_eq!(values[1], values[3]);
            }
        });
        let mut memcached = test_server::connect(&server);
        scope.spawn(move || {
            for _ in 0..ROUNDS {
                memcached.write_all(b"get a b\r\n").expect("it is sent");
                let lines: Vec<String> = (0..5).map(|_| answer_line(&mut memcached)).collect();
                assert_eq!(lines[1], lines[3], "{lines:?}");
            }
        });
    });
}

/// As redis-py's lock: `SET NX PX` takes it, a script gives it back only to its owner.
#[test]
fn a_lock_has_one_owner_at_a_time() {
    const RELEASE: &[u8] = b"if redis.call('get', KEYS[1]) == ARGV[1] then \
        return redis.call('del', KEYS[1]) else return 0 end";
    let server = start(options());
    thread::scope(|scope| {
        for thread in 0..3 {
            let mut client = connect(&server);
            scope.spawn(move || {
                let token = format!("token-{thread}");
                for _ in 0..50 {
                    let set = format!("SET lock {token} NX PX 30000");
                    while line(&mut client, &set) != "+OK" {
                        thread::yield_now();
                    }
                    // Nobody else changes the number meanwhile.
                    let old = bulk(&mut client, "GET number");
                    let next = old.map_or(0, |old| old.parse().expect("a number")) + 1_u32;
                    assert_eq!(line(&mut client, &format!("SET number {next}")), "+OK");
                    let release = [&b"EVAL"[..], RELEASE, b"1", b"lock", token.as_bytes()];
                    client.write_all(&request(&release)).expect("it is sent");
                    assert_eq!(answer_line(&mut client), ":1");
                }
            });
        }
    });
    assert_eq!(
        bulk(&mut connect(&server), "GET number").as_deref(),
        Some("150")
    );
}

#[test]
fn a_large_value_in_pieces_is_stored_and_a_broken_one_leaves_nothing() {
    let server = start(options());
    let value = vec![b'v'; 900_000];
    let bytes = request(&[b"SET", b"a", &value, b"EX", b"100"]);
    let mut client = connect(&server);
    for piece in bytes.chunks(7_001) {
        client.write_all(piece).expect("it is sent");
    }
    assert_eq!(answer_line(&mut client), "+OK");
    assert_eq!(line(&mut client, "STRLEN a"), ":900000");
    let mut broken = connect(&server);
    broken.write_all(&bytes[..500_000]).expect("it is sent");
    let cache = server.shared().cache();
    until("the value takes memory", || {
        cache.stats().buffer_bytes > 400_000
    });
    drop(broken);
    until("its memory is free", || cache.stats().buffer_bytes == 0);
    assert_eq!(line(&mut client, "STRLEN a"), ":900000");
}

#[test]
fn a_request_without_end_is_cut_off_at_the_limit_of_buffers() {
    let server = start(options().buffer_limit_bytes(Some(1 << 20)));
    let mut client = connect(&server);
    let mut other = connect(&server);
    client
        .write_all(b"*2147483647\r\n$4\r\nMSET\r\n")
        .expect("it is sent");
    let piece = request(&[&[b'x'; 1_000][..]; 50])[5..].to_vec();
    // The server closes the connection long before all of this is sent.
    let is_closed = (0..10_000).any(|_| client.write_all(&piece).is_err());
    assert!(is_closed);
    assert_eq!(line(&mut other, "PING"), "+PONG");
    let mut memcached = test_server::connect(&server);
    assert_eq!(stat(&mut memcached, "read_buf_oom"), "1");
}

#[test]
fn slow_readers_of_large_answers_hold_little_memory() {
    let server = start(options());
    let mut client = connect(&server);
    let value = vec![b'v'; 60_000];
    client
        .write_all(&request(&[b"SET", b"a", &value]))
        .expect("it is sent");
    assert_eq!(answer_line(&mut client), "+OK");
    // 512 MiB or, in a moment, 120 MB.
    let all = std::env::var_os("FORERUN_ALL_CASES").is_some();
    let keys = if all { 9_000 } else { 2_000 };
    let words = [&[&b"MGET"[..]][..], &vec![&b"a"[..]; keys]].concat();
    client.write_all(&request(&words)).expect("it is sent");
    let mut memcached = test_server::connect(&server);
    thread::sleep(Duration::from_millis(200));
    let held: u64 = stat(&mut memcached, "response_obj_bytes")
        .parse()
        .expect("a number");
    assert!(held < 1 << 20, "{held}");
    let mut total = 0;
    let mut piece = vec![0; 1 << 20];
    while total < 7 + keys * (8 + value.len() + 2) {
        total += client.read(&mut piece).expect("an answer");
    }
    assert_eq!(line(&mut client, "PING"), "+PONG");
}
