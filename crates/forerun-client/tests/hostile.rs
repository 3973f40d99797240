//! Servers that lie, stall, send garbage or close in the middle of an answer. They cause misses and
//! cost at most the time-out. They never cause a panic, a wrong value, or memory use beyond the
//! limit.

mod testing;

use std::io::Write;
use std::time::{Duration, Instant};

use forerun_client::{
    Client, ClientOptions, Error, Failure, Lookup, Lookups, Protocol, Report, ServerAddress,
    Unanswered,
};
use testing::fake_server::{FakeServer, read_request, wait_for_end};
use testing::{PATIENCE, PROTOCOLS, address, forerun};

const SHORT: Duration = Duration::from_millis(400);

fn client(server: &FakeServer, options: ClientOptions) -> Client {
    Client::new([server.address().into()], options).expect("a client")
}

fn short() -> ClientOptions {
    ClientOptions::default()
        .timeout(SHORT)
        .failures_to_eject(u32::MAX)
}

/// Looks up keys `a` and `b`.
fn look_up(client: &Client) -> (Lookups, Report) {
    let mut values = Lookups::new();
    let start = Instant::now();
    let report = client
        .multi_get(&["a", "b"], &mut values)
        .expect("good keys");
    assert!(start.elapsed() < SHORT + PATIENCE / 2, "it hung");
    (values, report)
}

#[test]
fn garbage_is_a_failure_and_never_a_value() {
    for answer in [
        &b"\x00\x01\x02\xff\r\n"[..],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"VALUE c 0 1\r\nx\r\nEND\r\n",
        b"VALUE a 0 1\r\nxy\r\nEND\r\n",
        b"VALUE a 0 -1\r\nx\r\nEND\r\n",
        b"VALUE a 0 99999999999999999999\r\nx\r\nEND\r\n",
        b"VALUE a 0 18446744073709551615\r\nx\r\nEND\r\n",
        b"VALUE\r\nEND\r\n",
        b"STORED\r\n",
        b"17\r\n",
        b"MN\r\n",
        b"VA 1 O0\r\nx\r\n",
        &[b'x'; 5000],
        &[b'\n'; 10],
    ] {
        let server = FakeServer::answering(answer, false);
        let (values, report) = look_up(&client(&server, short()));
        assert_eq!(
            (report.hits, report.failed),
            (0, 2),
            "{}",
            answer.escape_ascii()
        );
        let failure = &report.failures[0];
        assert!(
            matches!(failure.failure, Failure::Malformed(_)),
            "{failure}, to {}",
            answer.escape_ascii()
        );
        assert_eq!(
            values.lookup(0),
            Some(Lookup::Unanswered(Unanswered::Failed))
        );
    }
}

#[test]
fn a_meta_answer_to_another_request_is_refused() {
    for answer in [
        &b"VA 1 f0 O2\r\nx\r\nMN\r\n"[..],
        b"VA 1 f0 O4294967295\r\nx\r\nMN\r\n",
        b"VA 1 f0 O99999999999\r\nx\r\nMN\r\n",
        b"VA 1 f0\r\nx\r\nMN\r\n",
        b"VA 1 f0 Oa\r\nx\r\nMN\r\n",
        b"VALUE a 0 1\r\nx\r\nEND\r\n",
        b"HD O0\r\nMN\r\n",
        b"END\r\n",
    ] {
        let server = FakeServer::answering(answer, false);
        let (_, report) = look_up(&client(&server, short().protocol(Protocol::Meta)));
        assert_eq!(
            (report.hits, report.failed),
            (0, 2),
            "{}",
            answer.escape_ascii()
        );
        assert!(matches!(report.failures[0].failure, Failure::Malformed(_)));
    }
    // The same key twice.
    let twice = b"VA 1 f0 O0\r\nx\r\nVA 1 f0 O0\r\ny\r\nMN\r\n";
    let server = FakeServer::answering(twice, false);
    let (values, report) = look_up(&client(&server, short().protocol(Protocol::Meta)));
    assert_eq!((report.hits, report.failed), (1, 1));
    assert_eq!(values.get(0).expect("the first answer").data, b"x");
}

#[test]
fn what_came_before_the_end_counts() {
    for closes in [true, false] {
        let answer = b"VALUE b 7 2\r\nhi\r\nVALUE a 0 10\r\nhal";
        let server = FakeServer::answering(answer, closes);
        let (values, report) = look_up(&client(&server, short()));
        assert_eq!((report.hits, report.failed), (1, 1));
        assert_eq!(values.get(1).expect("it came").data, b"hi");
        let failure = &report.failures[0].failure;
        if closes {
            assert!(matches!(failure, Failure::Closed), "{failure}");
        } else {
            assert!(matches!(failure, Failure::TimedOut(SHORT)), "{failure}");
        }
    }
}

#[test]
fn a_server_that_stalls_or_trickles_costs_the_time_out() {
    let silent = FakeServer::start(|mut stream| wait_for_end(&mut stream));
    let trickle = FakeServer::start(|mut stream| {
        let _ = stream.write_all(b"VALUE a 0 100000\r\n");
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let endless = FakeServer::start(|mut stream| {
        let _ = stream.write_all(b"VALUE a 0 1000000000000\r\n");
        while stream.write_all(&[b'x'; 65536]).is_ok() {}
    });
    for server in [silent, trickle, endless] {
        for protocol in PROTOCOLS {
            let client = client(&server, short().protocol(protocol));
            let start = Instant::now();
            let error = client.set("a", "1").expect_err("there is no answer");
            let (_, report) = look_up(&client);
            assert!(start.elapsed() < 2 * SHORT + PATIENCE / 2);
            assert_eq!(report.hits + report.misses, 0);
            assert!(matches!(error, Error::Server { .. }), "{error}");
        }
    }
}

#[test]
fn an_announced_length_takes_no_memory() {
    let announcing = FakeServer::answering(b"VALUE a 0 1073741824\r\nx", false);
    let client = client(&announcing, short().max_value_bytes(2 << 30));
    let before = resident_bytes();
    for _ in 0..3 {
        let (_, report) = look_up(&client);
        assert_eq!(report.failed, 2);
    }
    assert!(resident_bytes() < before + (64 << 20));
}

/// The resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm
        .split(' ')
        .nth(1)
        .expect("a field")
        .parse()
        .expect("a number");
    pages * 4096
}

#[test]
fn an_answer_that_comes_late_is_never_another_requests() {
    // Each connection answers its first request late, with a value that depends on its key.
    let server = FakeServer::start(|mut stream| {
        let mut bytes = [0; 4096];
        let mut first = true;
        while let Ok(count) = std::io::Read::read(&mut stream, &mut bytes) {
            let request = String::from_utf8_lossy(&bytes[..count]).into_owned();
            let Some(key) = request.trim_end().strip_prefix("get ") else {
                return;
            };
            if std::mem::take(&mut first) {
                std::thread::sleep(SHORT * 2);
            }
            let answer = format!("VALUE {key} 0 {}\r\n{key}\r\nEND\r\n", key.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    let client = client(&server, short());
    for number in 0..4 {
        let key = format!("key{}", number % 2);
        let error = client.get(&key).expect_err("it is late");
        let Error::Server { failure, .. } = &error else {
            panic!("{error}");
        };
        assert!(matches!(failure, Failure::TimedOut(_)), "{error}");
    }
    assert_eq!(
        server.accepted(),
        4,
        "a connection whose answer is outstanding is not used again"
    );
}

#[test]
fn bytes_that_nobody_asked_for_close_the_connection() {
    let server = FakeServer::start(|mut stream| {
        // The client would take the second answer for the answer to the next request.
        while read_request(&mut stream) {
            let twice = b"VALUE a 0 1\r\n1\r\nEND\r\nVALUE a 0 1\r\n2\r\nEND\r\n";
            if stream.write_all(twice).is_err() {
                return;
            }
        }
    });
    let client = client(&server, short());
    for _ in 0..3 {
        assert_eq!(
            client.get("a").expect("it answers").expect("a value").data,
            b"1"
        );
    }
    assert_eq!(server.accepted(), 3);
}

#[test]
fn an_error_is_reported_and_the_server_is_not_ejected() {
    for (line, closes) in [
        ("SERVER_ERROR out of memory storing object", false),
        ("CLIENT_ERROR bad data chunk", true),
        ("ERROR", true),
    ] {
        let answer = format!("{line}\r\n");
        let server = FakeServer::start(move |mut stream| {
            while read_request(&mut stream) && stream.write_all(answer.as_bytes()).is_ok() {}
        });
        let client = client(&server, ClientOptions::default().timeout(PATIENCE));
        for _ in 0..4 {
            let error = client.set("a", "1").expect_err("it refuses").to_string();
            assert!(error.ends_with(&format!("it answered {line:?}")), "{error}");
        }
        let connections = if closes { 4 } else { 1 };
        assert_eq!(server.accepted(), connections, "{line}");
        assert_eq!(look_up(&client).1.failed, 2);
    }
}

#[test]
fn a_dead_server_costs_nothing_once_it_is_ejected_and_is_tried_again() {
    let silent = FakeServer::start(|mut stream| wait_for_end(&mut stream));
    let options = ClientOptions::default()
        .timeout(SHORT)
        .retry_interval(PATIENCE);
    let client = client(&silent, options);
    for _ in 0..2 {
        assert!(matches!(
            look_up(&client).1.failures[0].failure,
            Failure::TimedOut(_)
        ));
    }
    let start = Instant::now();
    for _ in 0..100 {
        assert!(matches!(
            look_up(&client).1.failures[0].failure,
            Failure::Ejected { .. }
        ));
        assert!(client.set("a", "1").is_err());
    }
    assert!(start.elapsed() < SHORT * 10, "it was waited for");
    assert_eq!(silent.accepted(), 2);
}

#[test]
fn one_bad_server_does_not_hide_the_values_of_the_others() {
    let good = forerun();
    let garbage = FakeServer::answering(b"garbage\r\n", false);
    let closed = FakeServer::start(drop);
    let silent = FakeServer::start(|mut stream| wait_for_end(&mut stream));
    let fakes = [&garbage, &closed, &silent];
    let mut servers: Vec<ServerAddress> = vec![address(&good).into()];
    servers.extend(fakes.map(|fake| ServerAddress::from(fake.address())));
    // Long enough for the good server on a busy machine.
    let options = short().timeout(Duration::from_secs(3));
    let client = Client::new(servers, options).expect("a client");
    let keys: Vec<String> = (0..400).map(|number| format!("key:{number}")).collect();
    let of_good = |key: &&String| client.server_of(key) == 0;
    for key in keys.iter().filter(of_good) {
        client.set(key, key).expect("stored");
    }
    let mut values = Lookups::new();
    let report = client.multi_get(&keys, &mut values).expect("good keys");
    let good_keys = keys.iter().filter(of_good).count();
    assert!(good_keys > 20);
    assert_eq!((report.hits, report.misses), (good_keys, 0));
    assert_eq!((report.failed, report.failures.len()), (400 - good_keys, 3));
    for (key, value) in keys.iter().zip(values.iter()) {
        assert_eq!(
            value.map(|value| value.data),
            of_good(&key).then_some(key.as_bytes())
        );
    }
}

#[test]
fn a_server_that_reads_nothing_stops_no_one() {
    let good = forerun();
    // The server sends endless answers and never reads the request.
    let flood = FakeServer::start(
        |mut stream| {
            while stream.write_all(b"VALUE a 0 1\r\nx\r\n").is_ok() {}
        },
    );
    let client = Client::new([flood.address().into(), address(&good).into()], short());
    let client = client.expect("a client");
    let keys: Vec<String> = (0..200_000)
        .map(|number| format!("key:{number:0200}"))
        .collect();
    let start = Instant::now();
    let mut values = Lookups::new();
    let report = client.multi_get(&keys, &mut values).expect("good keys");
    assert!(start.elapsed() < PATIENCE);
    assert_eq!(report.hits, 0);
    assert!(
        report
            .failures
            .iter()
            .any(|failure| failure.server.contains(':'))
    );
}

#[test]
fn a_request_that_was_not_sent_to_its_end_is_never_mixed_with_the_next() {
    // Memcached refuses a value that is too large before it has read it, and then skips it.
    let value = vec![b'x'; 12 << 20];
    let value_bytes = value.len();
    let server = FakeServer::start(move |mut stream| {
        let (mut line, mut skip) = (Vec::new(), 0_usize);
        let mut bytes = [0; 4096];
        while let Ok(count) = std::io::Read::read(&mut stream, &mut bytes) {
            if count == 0 {
                return;
            }
            for byte in &bytes[..count] {
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                line.push(*byte);
                if *byte != b'\n' {
                    continue;
                }
                let answer = if line.starts_with(b"set") {
                    &b"SERVER_ERROR object too large for cache\r\n"[..]
                } else {
                    b"VALUE a 0 1\r\n1\r\nEND\r\n"
                };
                if line.starts_with(b"set") {
                    skip = value_bytes + 2;
                }
                line.clear();
                if stream.write_all(answer).is_err() {
                    return;
                }
                // The client reads the answer while it is still sending the value.
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let client = client(&server, ClientOptions::default().timeout(PATIENCE));
    for _ in 0..3 {
        let error = client.set("a", &value).expect_err("it refuses").to_string();
        assert!(error.contains("too large"), "{error}");
        let found = client.get("a").expect("it answers").expect("a value");
        assert_eq!(found.data, b"1");
    }
}

#[test]
fn a_refusal_is_reported_although_the_server_closes_before_it_has_read_the_request() {
    let value = vec![b'x'; 12 << 20];
    let server = FakeServer::start(|mut stream| {
        let mut bytes = [0; 4096];
        let _ = std::io::Read::read(&mut stream, &mut bytes);
        let _ = stream.write_all(b"SERVER_ERROR object too large for cache\r\n");
        // Closing with unread bytes sends a reset.
    });
    let options = ClientOptions::default().timeout(PATIENCE);
    let client = client(&server, options.failures_to_eject(1));
    for _ in 0..5 {
        let error = client.set("a", &value).expect_err("it refuses").to_string();
        assert!(error.contains("too large"), "{error}");
    }
}
