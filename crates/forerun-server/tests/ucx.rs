//! The server over UCX: the same sessions as over TCP, and clients that lie, stall or die.

mod server {
    pub mod conversations;
    pub mod test_server;
    pub mod ucx_client;
}
mod testing;

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forerun_server::{Address, Error, Listen, Server, UcxOptions};
use forerun_ucx::{Context, Token};
use server::conversations::{check_alike, play};
use server::test_server::{TIMEOUT, ask, connect, expect, options, rest, start, stat, until};
use server::ucx_client::{UcxClients, again_with, both, read_answer, ucx};

const TESTS: [&str; 7] = [
    "the_conversations_are_the_same_over_tcp_and_ucx",
    "values_of_every_size_arrive_whole",
    "a_client_that_stalls_costs_a_bounded_amount_and_delays_nobody",
    "a_client_that_dies_is_closed_at_once",
    "hundreds_of_clients_are_served_and_leave_nothing_behind",
    "an_idle_client_is_closed_and_a_draining_server_answers_first",
    "the_connection_limit_holds",
];

#[test]
fn the_same_over_ucx_tcp() {
    if ucx().is_some() {
        again_with("tcp,self", &TESTS);
    }
}

#[test]
fn the_same_over_named_shared_memory() {
    if ucx().is_some() {
        again_with("posix,self", &TESTS);
    }
}

#[test]
fn the_conversations_are_the_same_over_tcp_and_ucx() {
    if ucx().is_none() {
        return;
    }
    let new = || both(|options| options.threads(1)).expect("UCX is installed");
    let over_tcp = play(|| {
        let both = new();
        let stream = connect(&both.server);
        (both, stream)
    });
    let over_ucx = play(|| {
        let both = new();
        let stream = both.clients.connect(&both.path);
        (both, stream)
    });
    check_alike(&over_ucx, &over_tcp);
}

#[test]
fn values_of_every_size_arrive_whole() {
    let Some(both) = both(|options| options) else {
        return;
    };
    let mut client = both.clients.connect(&both.path);
    for bytes in [
        0, 1, 100, 8_191, 8_192, 8_193, 70_000, 131_072, 500_000, 1_000_000,
    ] {
        let value: String = (0..bytes)
            .map(|at| char::from(b'a' + (at % 23) as u8))
            .collect();
        ask(
            &mut client,
            &format!("set k 5 0 {bytes}\r\n{value}\r\n"),
            "STORED\r\n",
        );
        let answer = format!("VALUE k 5 {bytes}\r\n{value}\r\nEND\r\n");
        ask(&mut client, "get k\r\n", &answer);
        // Many answers of one request, and many requests at once.
        let count = (2_000_000 / (bytes + 100)).min(500);
        client
            .write_all("get k\r\n".repeat(count).as_bytes())
            .expect("it is sent");
        for _ in 0..count {
            expect(&mut client, &answer);
        }
    }
    ask(&mut client, "mn\r\n", "MN\r\n");
}

#[test]
fn a_client_that_stalls_costs_a_bounded_amount_and_delays_nobody() {
    let Some(both) = both(|options| options.threads(1)) else {
        return;
    };
    let mut stalled: Vec<_> = (0..30).map(|_| both.clients.connect(&both.path)).collect();
    let value = "v".repeat(100_000);
    ask(
        &mut stalled[0],
        &format!("set k 0 0 100000\r\n{value}\r\n"),
        "STORED\r\n",
    );
    for client in &mut stalled {
        // Nobody reads 100 answers of 100 KB.
        client
            .write_all(&b"get k\r\n".repeat(100))
            .expect("they are sent");
    }
    // The clients' UCX worker still works; only the clients do not read.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        stalled[0].progress();
    }
    let mut tcp = connect(&both.server);
    let output: usize = stat(&mut tcp, "response_obj_bytes")
        .parse()
        .expect("a number");
    let input: usize = stat(&mut tcp, "read_buf_bytes").parse().expect("a number");
    assert!(output < 30 * (300 << 10), "{output}");
    assert!(input < 30 * (256 << 10), "{input}");
    let begin = Instant::now();
    for _ in 0..100 {
        ask(&mut tcp, "mn\r\n", "MN\r\n");
    }
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    let clients = both.clients.clone();
    let mut other = clients.connect(&both.path);
    ask(&mut other, "mn\r\n", "MN\r\n");
    // A stalled client that reads again gets everything.
    let answer = format!("VALUE k 0 100000\r\n{value}\r\nEND\r\n");
    for _ in 0..100 {
        expect(&mut stalled[7], &answer);
    }
    drop(stalled);
    until("their memory is free", || {
        stat(&mut tcp, "response_obj_bytes") == "0"
    });
}

#[test]
fn a_client_that_dies_is_closed_at_once() {
    let Some(both) = both(|options| options) else {
        return;
    };
    let mut tcp = connect(&both.server);
    // Another process, which is killed in the middle of a value.
    let program = std::env::current_exe().expect("this executable");
    let mut child = Command::new(program)
        .args(["--exact", "--nocapture", "a_client_in_another_process"])
        .env("FORERUN_UCX_SOCKET", &both.path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    until("it is connected", || {
        stat(&mut tcp, "curr_connections") == "2"
    });
    until("it has begun", || stat(&mut tcp, "cmd_set") == "1");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    until("it is closed", || stat(&mut tcp, "curr_connections") == "1");
    assert_eq!(stat(&mut tcp, "upload_bytes"), "0");
    // The server serves others as before.
    ask(
        &mut both.clients.connect(&both.path),
        "get k\r\n",
        "VALUE k 0 1\r\nv\r\nEND\r\n",
    );
}

/// The client that [`a_client_that_dies_is_closed_at_once`] kills.
#[test]
fn a_client_in_another_process() {
    let Some(path) = std::env::var_os("FORERUN_UCX_SOCKET") else {
        return;
    };
    let context = ucx().expect("the parent has it");
    let mut client = UcxClients::new(&context).connect(path.as_ref());
    ask(&mut client, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    client
        .write_all(b"set big 0 0 500000\r\nonly a part")
        .expect("it is sent");
    std::thread::sleep(TIMEOUT);
}

#[test]
fn hundreds_of_clients_are_served_and_leave_nothing_behind() {
    let Some(both) = both(|options| options) else {
        return;
    };
    let mut tcp = connect(&both.server);
    for _ in 0..2 {
        let mut clients: Vec<_> = (0..300).map(|_| both.clients.connect(&both.path)).collect();
        assert_eq!(stat(&mut tcp, "curr_connections"), "301");
        for (at, client) in clients.iter_mut().enumerate() {
            let value = "x".repeat(at);
            ask(
                client,
                &format!("set k{at} 0 0 {at}\r\n{value}\r\n"),
                "STORED\r\n",
            );
        }
        for (at, client) in clients.iter_mut().enumerate() {
            let answer = format!("VALUE k{at} 0 {at}\r\n{}\r\nEND\r\n", "x".repeat(at));
            ask(client, &format!("get k{at}\r\n"), &answer);
        }
        drop(clients);
        until("they are closed", || {
            stat(&mut tcp, "curr_connections") == "1"
        });
        assert_eq!(stat(&mut tcp, "read_buf_bytes"), "0");
        assert_eq!(stat(&mut tcp, "response_obj_bytes"), "0");
    }
}

#[test]
fn garbage_is_refused_and_harms_nobody() {
    let Some(both) = both(|options| options) else {
        return;
    };
    let mut good = both.clients.connect(&both.path);
    let (_, hello) = both.clients.hello(32);
    let valid = hello.to_bytes(None);
    let changed = |at: usize, to: u8| {
        let mut bytes = valid.clone();
        bytes[at] = to;
        bytes
    };
    for (bytes, reason) in [
        (b"get a\r\n".to_vec(), "does not speak version 1"),
        (changed(7, 9), "does not speak version 1"),
        (changed(11, 0xff), "length of the address"),
        (changed(14, 1), "reserved"),
        (
            [&valid[..], b"get a\r\n"].concat(),
            "bytes follow the address",
        ),
    ] {
        let mut control = UnixStream::connect(&both.path).expect("it accepts");
        control.set_read_timeout(Some(TIMEOUT)).expect("a time");
        control.write_all(&bytes).expect("it is sent");
        let error = read_answer(&mut control).expect_err("garbage").to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(control.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    }
    // A hello that never ends, and one that is cut off.
    let mut half = UnixStream::connect(&both.path).expect("it accepts");
    half.write_all(&valid[..30]).expect("it is sent");
    drop(UnixStream::connect(&both.path).expect("it accepts"));
    // Bytes on the control socket of an open connection.
    let mut client = both.clients.connect(&both.path);
    ask(&mut client, "mn\r\n", "MN\r\n");
    client
        .control()
        .write_all(b"get a\r\n")
        .expect("it is sent");
    let ended = client.read(&mut [0; 10]);
    assert!(!matches!(ended, Ok(1..)), "{ended:?}");
    ask(&mut good, "mn\r\n", "MN\r\n");
    let mut tcp = connect(&both.server);
    until("the bad ones are closed", || {
        stat(&mut tcp, "curr_connections") == "3"
    });
    drop(half);
    until("all are closed", || {
        stat(&mut tcp, "curr_connections") == "2"
    });
}

#[test]
fn a_token_is_required_and_checked() {
    let Some(context) = ucx() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ucx");
    let token = dir.path().join("token");
    std::fs::write(&token, "a token of enough bytes\n").expect("a file");
    let place = Listen::unix(&path, 0o600);
    let ucx_options = UcxOptions::default().token_file(token.clone());
    let mut options = options();
    options.listen.push(place.over_ucx(ucx_options));
    let server = start(options);
    let clients = UcxClients::new(&context);
    let right = Token::read(&token).expect("a token");
    let mut client = clients
        .try_connect(&path, Some(&right))
        .expect("the right token");
    ask(&mut client, "mn\r\n", "MN\r\n");
    std::fs::write(&token, "another token, also long\n").expect("a file");
    let wrong = Token::read(&token).expect("a token");
    for token in [None, Some(&wrong)] {
        let error = clients
            .try_connect(&path, token)
            .err()
            .expect("no right token");
        assert!(error.to_string().contains("token"), "{error}");
    }
    // A refused client learns of it just before its connection is closed.
    let mut asks = connect(&server);
    until("the others are closed", || {
        stat(&mut asks, "curr_connections") == "2"
    });
}

#[test]
fn what_would_be_open_to_others_does_not_start() {
    if ucx().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let token = dir.path().join("token");
    std::fs::write(&token, "a token of enough bytes\n").expect("a file");
    let error_of = |address: &str, options: UcxOptions| {
        let place = Listen::parse(address, 0).expect("an address").remove(0);
        let mut server = self::options();
        server.listen = vec![place.over_ucx(options)];
        let cache = server::test_server::cache();
        Server::start(server, cache).expect_err("it does not start")
    };
    let error = error_of("127.0.0.1:0", UcxOptions::default()).to_string();
    assert!(error.contains("requires a token file"), "{error}");
    let with_token = UcxOptions::default().token_file(token);
    let error = error_of("0.0.0.0:0", with_token).to_string();
    assert!(error.contains("requires network devices"), "{error}");
    let absent = UcxOptions::default().token_file(dir.path().join("absent"));
    let error = error_of("127.0.0.1:0", absent);
    assert!(matches!(error, Error::UcxToken { .. }), "{error}");
}

#[test]
fn a_server_over_tcp_control_sockets_has_a_port() {
    let Some(context) = ucx() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let token = dir.path().join("token");
    std::fs::write(&token, "a token of enough bytes\n").expect("a file");
    let place = Listen::parse("ucx:127.0.0.1:0", 0)
        .expect("an address")
        .remove(0);
    let mut options = options();
    options.listen = vec![place.over_ucx(UcxOptions::default().token_file(token))];
    let server = start(options);
    let Address::UcxTcp(address) = &server.addresses()[0] else {
        panic!("{:?}", server.addresses());
    };
    assert_ne!(address.port(), 0);
    assert!(
        server.addresses()[0]
            .to_string()
            .starts_with("ucx:127.0.0.1:")
    );
    // What speaks memcached's protocol to the control socket gets no session.
    let mut stream = std::net::TcpStream::connect(address).expect("it accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
    stream.write_all(b"get k\r\n").expect("it is sent");
    assert!(rest(&mut stream).starts_with(b"FRNUCX\0\x01\x01\0"));
    drop::<Context>(context);
}

#[test]
fn the_connection_limit_holds() {
    let Some(both) = both(|options| options.connection_limit(3)) else {
        return;
    };
    let mut clients: Vec<_> = (0..3).map(|_| both.clients.connect(&both.path)).collect();
    ask(&mut clients[2], "mn\r\n", "MN\r\n");
    let error = both
        .clients
        .try_connect(&both.path, None)
        .err()
        .expect("over the limit");
    assert!(
        error.to_string().contains("Too many open connections"),
        "{error}"
    );
    clients.pop();
    let deadline = Instant::now() + TIMEOUT;
    let mut again = loop {
        match both.clients.try_connect(&both.path, None) {
            Ok(client) => break client,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    ask(&mut again, "mn\r\n", "MN\r\n");
}

#[test]
fn an_idle_client_is_closed_and_a_draining_server_answers_first() {
    let Some(both) = both(|options| options.idle_timeout(Duration::from_secs(1))) else {
        return;
    };
    let mut silent = both.clients.connect(&both.path);
    let mut half = UnixStream::connect(&both.path).expect("it accepts");
    half.set_read_timeout(Some(TIMEOUT)).expect("a time");
    assert_eq!(silent.read(&mut [0; 10]).expect("a proper end"), 0);
    assert_eq!(half.read(&mut [0; 10]).expect("closed"), 0);
    let mut busy = both.clients.connect(&both.path);
    ask(&mut busy, "set k 0 0 3\r\nabc\r\n", "STORED\r\n");
    busy.write_all(&b"get k\r\n".repeat(1000))
        .expect("they are sent");
    both.server.drain();
    let mut answers = Vec::new();
    let ended = busy.read_to_end(&mut answers);
    assert!(ended.is_ok(), "{ended:?}");
    let one = b"VALUE k 0 3\r\nabc\r\nEND\r\n";
    assert_eq!(answers.len() % one.len(), 0, "whole answers only");
    both.server.wait().expect("it ends well");
    let error = both
        .clients
        .try_connect(&both.path, None)
        .err()
        .expect("closed");
    assert!(
        [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&error.kind()),
        "{error}"
    );
    let _ = io::stderr().flush();
}
