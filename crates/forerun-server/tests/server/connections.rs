//! Listeners, the connection limit, idle connections, half-closed connections, and their
//! statistics.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use forerun_server::{Listen, ServerOptions, Settings};

use super::test_server::{TIMEOUT, ask, connect, expect, options, rest, start, stat, until};

#[test]
fn several_listeners_serve_one_cache() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.sock");
    let mut options = options();
    options.listen.push(Listen::unix(&path, 0o600));
    options
        .listen
        .extend(Listen::parse("127.0.0.1:0", 0).expect("it is an address"));
    let server = start(options);
    assert_eq!(server.addresses().len(), 3);
    ask(&mut connect(&server), "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    let mut unix = UnixStream::connect(&path).expect("it accepts");
    unix.set_read_timeout(Some(TIMEOUT)).expect("a time");
    ask(&mut unix, "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    server.drain();
    server.wait().expect("it ends well");
    assert!(!path.exists(), "the socket goes with the server");
}

#[test]
fn a_connection_over_the_limit_gets_an_error_and_a_freed_slot_is_reused() {
    let server = start(options().connection_limit(2));
    let mut first = connect(&server);
    ask(&mut first, "mn\r\n", "MN\r\n");
    let mut second = connect(&server);
    ask(&mut second, "mn\r\n", "MN\r\n");
    let mut third = connect(&server);
    assert_eq!(rest(&mut third), b"ERROR Too many open connections\r\n");
    assert_eq!(stat(&mut second, "rejected_connections"), "1");
    assert_eq!(stat(&mut second, "curr_connections"), "2");
    drop(first);
    until("a place is free", || {
        stat(&mut second, "curr_connections") == "1"
    });
    ask(&mut connect(&server), "mn\r\n", "MN\r\n");
}

#[test]
fn a_silent_connection_is_closed_and_one_that_speaks_is_not() {
    let server = start(options().idle_timeout(Duration::from_secs(1)));
    let mut silent = connect(&server);
    let mut speaks = connect(&server);
    let mut over = silent.try_clone().expect("a second handle");
    over.set_nonblocking(true).expect("it can be");
    until("it is closed", || {
        ask(&mut speaks, "mn\r\n", "MN\r\n");
        matches!(over.read(&mut [0]), Ok(0))
    });
    assert_eq!(stat(&mut speaks, "idle_kicks"), "1");
    silent.set_nonblocking(false).expect("it can be");
    assert_eq!(rest(&mut silent), b"");
}

#[test]
fn a_client_that_half_closes_gets_its_answers() {
    let server = start(options());
    let mut stream = connect(&server);
    let mut request = Vec::new();
    for number in 0..2_000 {
        write!(request, "set k{number} 0 0 5\r\n{number:05}\r\n").expect("memory is written");
    }
    request.extend_from_slice(b"get k7\r\nget k");
    let mut sender = stream.try_clone().expect("a second handle");
    let sent = std::thread::spawn(move || {
        sender.write_all(&request).expect("it is sent");
        sender.shutdown(Shutdown::Write).expect("it is open");
    });
    let reported = rest(&mut stream);
    sent.join().expect("it was sent");
    let expected = "STORED\r\n".repeat(2_000) + "VALUE k7 0 5\r\n00007\r\nEND\r\n";
    assert_eq!(String::from_utf8_lossy(&reported), expected);
}

#[test]
fn a_vanishing_client_disturbs_no_other() {
    let server = start(options());
    let mut stays = connect(&server);
    for _ in 0..100 {
        let mut gone = connect(&server);
        gone.write_all(b"get a b c\r\nset x 0 0 100\r\nhal")
            .expect("it is sent");
    }
    ask(&mut stays, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    // The server accepted all of them, perhaps after they had disconnected.
    until("they have come", || {
        stat(&mut stays, "total_connections") == "101"
    });
    until("they are gone", || {
        stat(&mut stays, "curr_connections") == "1"
    });
}

#[test]
fn connections_are_described() {
    let server = start(options());
    let mut stream = connect(&server);
    let here = stream.local_addr().expect("an address");
    stream.write_all(b"stats conns\r\n").expect("it is sent");
    let mut text = String::new();
    let mut piece = [0; 1024];
    while !text.ends_with("END\r\n") {
        let count = stream.read(&mut piece).expect("an answer");
        assert!(count > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    assert!(text.contains(&format!(":addr tcp:{here}\r\n")), "{text}");
    let listener = &server.addresses()[0];
    let number = text.lines().find_map(|line| {
        let line = line.strip_prefix("STAT ")?;
        line.strip_suffix(&format!(":addr tcp:{here}"))
    });
    let number = number.expect("this connection");
    for line in [
        format!("STAT 0:addr tcp:{listener}\r\n"),
        "STAT 0:state conn_listening\r\n".to_owned(),
        "STAT 0:secs_since_last_cmd ".to_owned(),
        format!("STAT {number}:listen_addr tcp:{listener}\r\n"),
        format!("STAT {number}:state conn_parse_cmd\r\n"),
        format!("STAT {number}:secs_since_last_cmd "),
    ] {
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn a_command_that_arrives_in_part_shows_in_the_list_of_connections() {
    let server = start(options());
    let mut sends = connect(&server);
    let header = format!("set large 0 0 {}\r\n", 512 << 10);
    sends.write_all(header.as_bytes()).expect("it is sent");
    sends.write_all(&[b'x'; 1000]).expect("it is sent");
    let mut asks = connect(&server);
    until("its state is known", || {
        asks.write_all(b"stats conns\r\n").expect("it is sent");
        let mut text = String::new();
        let mut piece = [0; 1024];
        while !text.ends_with("END\r\n") {
            let count = asks.read(&mut piece).expect("an answer");
            text.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        text.contains(":state conn_nread\r\n")
    });
}

#[test]
fn metrics_are_served_over_http() {
    let server = start(options().metrics(Some(([127, 0, 0, 1], 0).into())));
    ask(&mut connect(&server), "get k\r\n", "END\r\n");
    let address = server.metrics_address().expect("it was asked for");
    let get = |request: &str| {
        let mut stream = TcpStream::connect(address).expect("it accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
        stream.write_all(request.as_bytes()).expect("it is sent");
        String::from_utf8(rest(&mut stream)).expect("it is text")
    };
    let answer = get("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains("forerun_outcomes_total{command=\"get\",outcome=\"miss\"} 1\n"),
        "{answer}"
    );
    let version = format!(
        "forerun_build_info{{version=\"{}\"}} 1\n",
        env!("CARGO_PKG_VERSION")
    );
    assert!(answer.contains(&version), "{answer}");
    let health = get("GET /health HTTP/1.1\r\n\r\n");
    assert!(
        health.starts_with("HTTP/1.1 200 ") && health.ends_with("\r\nserving\n"),
        "{health}"
    );
    assert!(get("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(get("PUT /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    server.drain();
    until("it is still said to serve", || {
        get("GET /health HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503 ")
    });
}

#[test]
fn clients_that_never_finish_do_not_delay_scrapes() {
    let server = start(options().metrics(Some(([127, 0, 0, 1], 0).into())));
    let address = server.metrics_address().expect("it was asked for");
    let mut stalled: Vec<TcpStream> = Vec::new();
    for number in 0..200 {
        // Half of them send a part of a request, and the others request much and read nothing.
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).expect("it accepts");
        let request = match number % 2 {
            0 => "GET /metr".to_owned(),
            _ => "GET /metrics HTTP/1.1\r\n\r\n".repeat(50),
        };
        let _ = stream.write_all(request.as_bytes());
        stalled.push(stream);
    }
    let began = Instant::now();
    for _ in 0..10 {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).expect("it accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
        // In two pieces.
        stream.write_all(b"GET /health HT").expect("it is sent");
        stream.write_all(b"TP/1.1\r\n\r\n").expect("it is sent");
        let answer = rest(&mut stream);
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{answer:?}");
    }
    // One stalled client alone may take two seconds.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(stalled);
}

#[test]
fn the_time_that_requests_take_is_counted_by_their_kind() {
    let server = start(options().metrics(Some(([127, 0, 0, 1], 0).into())));
    let begun = Instant::now();
    let mut client = connect(&server);
    for _ in 0..3 {
        ask(&mut client, "get k\r\n", "END\r\n");
    }
    ask(&mut client, "set k 0 0 1\r\nx\r\n", "STORED\r\n");
    ask(&mut client, "delete k\r\n", "DELETED\r\n");
    ask(
        &mut client,
        "set k 0 0 1\r\nx\r\nget k\r\n",
        "STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n",
    );
    ask(&mut client, "verbosity 0\r\n", "OK\r\n");
    // Part of a command is not a request.
    client.write_all(b"get unfinished").expect("it is sent");

    let address = server.metrics_address().expect("it was asked for");
    let scrape = || {
        let mut stream = TcpStream::connect(address).expect("it accepts");
        let request = b"GET /metrics HTTP/1.1\r\n\r\n";
        stream.write_all(request).expect("it is sent");
        String::from_utf8(rest(&mut stream)).expect("it is text")
    };
    let value = |text: &str, sample: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(sample));
        let value = line.unwrap_or_else(|| panic!("no {sample} in {text}"));
        value.trim().parse().expect("a number")
    };
    let counts = [
        ("reads", 3.0),
        ("writes", 2.0),
        ("mixed", 1.0),
        ("other", 1.0),
    ];
    // A worker counts a turn after it has sent the answer.
    until("all turns are counted", || {
        let text = scrape();
        counts.iter().all(|(kind, count)| {
            let sample = format!("forerun_request_seconds_count{{requests=\"{kind}\"}}");
            value(&text, &sample) == *count
        })
    });
    let text = scrape();
    let elapsed_s = begun.elapsed().as_secs_f64();
    for (kind, count) in counts {
        let bucket = "forerun_request_seconds_bucket{le=\"";
        let buckets: Vec<f64> = text
            .lines()
            .filter(|line| line.starts_with(bucket) && line.contains(&format!("\"{kind}\"")))
            .map(|line| line.rsplit(' ').next().unwrap_or_default().parse())
            .collect::<Result<_, _>>()
            .expect("numbers");
        assert_eq!(buckets.len(), 30, "{text}");
        assert!(buckets.is_sorted(), "{buckets:?}");
        assert_eq!(buckets.last(), Some(&count));
        let sum = value(
            &text,
            &format!("forerun_request_seconds_sum{{requests=\"{kind}\"}}"),
        );
        assert!(sum > 0.0 && sum < elapsed_s, "{sum}");
    }
}

#[test]
fn an_address_that_cannot_be_bound_is_named() {
    let server = start(options());
    let taken = server.addresses()[0].to_string();
    let again = ServerOptions::new(Listen::parse(&taken, 0).expect("it is an address"));
    let error =
        forerun_server::Server::start(again, super::test_server::cache()).expect_err("taken");
    assert!(error.to_string().contains(&taken), "{error}");
    let none = ServerOptions::new(Vec::new());
    assert!(forerun_server::Server::start(none, super::test_server::cache()).is_err());
    let mut stream = connect(&server);
    stream.write_all(b"version\r\n").expect("it is sent");
    expect(&mut stream, "VERSION ");
}

#[test]
fn a_binary_client_is_answered_and_closed_if_the_protocol_is_off() {
    let dir = tempfile::tempdir().expect("a directory");
    let users = dir.path().join("users");
    std::fs::write(&users, "alice:s3cret\n").expect("a file");
    for auth_file in [None, Some(users)] {
        let settings = Settings::default().binary_protocol(false);
        let server = start(options().auth_file(auth_file).settings(settings));
        let mut stream = connect(&server);
        let mut request = [0; 24];
        request[..2].copy_from_slice(&[0x80, 0x0b]);
        // Byte by byte, because a request may be split anywhere.
        stream.set_nodelay(true).expect("a socket of TCP");
        for byte in request {
            stream.write_all(&[byte]).expect("it is sent");
        }
        assert_eq!(rest(&mut stream)[..2], [0x81, 0x0b]);
        // A client that closes in the middle of its first request gets the answer too.
        let mut stream = connect(&server);
        stream.write_all(&request[..2]).expect("it is sent");
        stream
            .shutdown(std::net::Shutdown::Write)
            .expect("half closed");
        assert_eq!(rest(&mut stream)[..2], [0x81, 0x0b]);
        // So does a client that sends only the first byte.
        let mut stream = connect(&server);
        stream.write_all(&request[..1]).expect("it is sent");
        stream
            .shutdown(std::net::Shutdown::Write)
            .expect("half closed");
        assert_eq!(rest(&mut stream)[..2], [0x81, 0]);
    }
}

#[test]
fn the_user_file_is_reread_on_request() {
    let dir = tempfile::tempdir().expect("a directory");
    let users = dir.path().join("users");
    std::fs::write(&users, "alice:old\n").expect("a file");
    let server = start(options().auth_file(users.clone()));
    let mut stays = connect(&server);
    ask(&mut stays, "set x 0 0 9\r\nalice old\r\n", "STORED\r\n");
    std::fs::write(&users, "alice:new\n").expect("a file");
    server.reload_files();
    until("the new password counts", || {
        let mut stream = connect(&server);
        stream
            .write_all(b"set x 0 0 9\r\nalice new\r\n")
            .expect("it is sent");
        let mut answer = [0; 6];
        stream.read_exact(&mut answer).expect("an answer");
        answer == *b"STORED"
    });
    ask(&mut stays, "mn\r\n", "MN\r\n");
}
