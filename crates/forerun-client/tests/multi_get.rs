//! Lookups in multi-get frames: the answers are those of the text protocols, credits are kept, and
//! servers that lie cause no wrong value.

mod testing;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forerun_client::{
    Client, ClientOptions, Failure, Lookup, Lookups, NewValue, Protocol, Report, Unanswered, Value,
};
use testing::fake_server::{FakeServer, read_request, wait_for_end};
use testing::{PROTOCOLS, client_of, forerun, memcached, options};

const SHORT: Duration = Duration::from_millis(400);

fn short() -> ClientOptions {
    ClientOptions::default()
        .timeout(SHORT)
        .failures_to_eject(u32::MAX)
        .protocol(Protocol::MultiGet)
}

fn client(server: &FakeServer, options: ClientOptions) -> Client {
    Client::new([server.address().into()], options).expect("a client")
}

fn look_up(client: &Client) -> (Lookups, Report) {
    let mut values = Lookups::new();
    let report = client.multi_get(&["a", "b"], &mut values);
    (values, report.expect("good keys"))
}

#[test]
fn a_batch_has_the_same_answers_in_every_protocol() {
    let servers = [forerun(), forerun(), forerun()];
    let clients = PROTOCOLS.map(|protocol| client_of(&servers, options().protocol(protocol)));
    let keys: Vec<String> = (0..20_000)
        .map(|number| match number % 3 {
            0 => format!("{number:08}"),
            1 => format!("key:{number}"),
            _ => format!("{number}{}", "x".repeat(number % 200)),
        })
        .collect();
    let values: Vec<Vec<u8>> = (0..20_000_usize)
        .map(|number| vec![number as u8; number * 7919 % 300 + number % 500 / 499 * 100_000])
        .collect();
    let entry = |(key, value), number| (key, NewValue::new(value).flags(number));
    let stored = keys.iter().zip(&values).zip(0..).step_by(2);
    let entries: Vec<_> = stored.map(|(pair, number)| entry(pair, number)).collect();
    let report = clients[0].set_many(&entries).expect("good keys");
    assert_eq!(report.done, 10_000);
    for count in [1, 2, 100, 20_000] {
        let mut all = Vec::new();
        for client in &clients {
            let mut found = Lookups::new();
            let report = client
                .multi_get(&keys[..count], &mut found)
                .expect("good keys");
            assert!(report.failures.is_empty(), "{:?}", report.failures);
            assert_eq!((report.hits, report.misses), (count.div_ceil(2), count / 2));
            all.push(found);
        }
        for (at, stored) in values.iter().enumerate().take(count) {
            let answer = all[2].lookup(at);
            assert!(
                answer == all[0].lookup(at) && answer == all[1].lookup(at),
                "{at}"
            );
            if at % 2 == 0 {
                let value = all[2].get(at).expect("it is stored");
                assert_eq!(value.flags, at as u32);
                assert!(value.data == stored);
            }
        }
    }
    let version = |client: &Client| client.gets("00000000").expect("it answers");
    assert_eq!(version(&clients[2]), version(&clients[0]));
    assert!(version(&clients[2]).and_then(|value| value.cas).is_some());
}

#[test]
fn a_batch_of_more_frames_than_credits_is_answered_into_the_callers_rows() {
    let servers = [forerun()];
    let client = client_of(&servers, options().protocol(Protocol::MultiGet));
    let keys: Vec<[u8; 8]> = (0..400_000_u64).map(u64::to_le_bytes).collect();
    let value = |number: u64| (number * 3).to_le_bytes();
    for part in keys.chunks(50_000) {
        let values: Vec<[u8; 8]> = part
            .iter()
            .map(|key| value(u64::from_le_bytes(*key)))
            .collect();
        let entries: Vec<_> = part.iter().zip(values.iter().map(NewValue::new)).collect();
        assert_eq!(client.set_many(&entries).expect("good keys").done, 50_000);
    }
    // 196 frames.
    let mut rows = vec![[0; 8]; keys.len()];
    let mut sink = |index: usize, value: Value<'_>| {
        rows[index] = value.data.try_into().expect("8 bytes");
    };
    let report = client.multi_get_with(&keys, &mut sink).expect("good keys");
    assert_eq!(
        (report.hits, report.failures.len()),
        (400_000, 0),
        "{report:?}"
    );
    assert!((0..).zip(&rows).all(|(number, row)| *row == value(number)));
    // The connection stays usable.
    assert_eq!(client.stats().server_failures, 0);
    assert!(
        client
            .get(1_u64.to_le_bytes())
            .expect("it answers")
            .is_some()
    );
}

#[test]
fn a_server_without_frames_is_reported_and_not_ejected() {
    let Some(memcached) = memcached(&[]) else {
        return;
    };
    let options = options().protocol(Protocol::MultiGet).failures_to_eject(1);
    let client = Client::new([memcached.address.clone()], options).expect("a client");
    client.set("a", "1").expect("stored");
    for _ in 0..3 {
        let (_, report) = look_up(&client);
        assert_eq!(report.failed, 2);
        let failure = &report.failures[0].failure;
        assert!(
            matches!(failure, Failure::NoMultiGet(line) if line == "ERROR"),
            "{failure}"
        );
    }
    // Nothing else than the question was sent, and writes go on.
    client.set("a", "2").expect("stored");
    assert_eq!(client.stats().ejections, 0);
}

/// The header of a part or of an error.
fn header(start: [u8; 3], body_bytes: u32, id: u32, first: u16, count: u16) -> Vec<u8> {
    let mut bytes = vec![0xf7];
    bytes.extend(start);
    bytes.extend(body_bytes.to_le_bytes());
    bytes.extend(id.to_le_bytes());
    bytes.extend(first.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes
}

/// A part of an answer with flags; `None` is a miss.
fn part(last: u8, id: u32, first: u16, values: &[Option<&[u8]>]) -> Vec<u8> {
    let mut body = Vec::new();
    for value in values {
        let bytes = value.map_or(u32::MAX, |value| value.len() as u32);
        body.extend(bytes.to_le_bytes());
    }
    body.resize(8 * values.len(), 0);
    values
        .iter()
        .flatten()
        .for_each(|value| body.extend(*value));
    let mut bytes = header(
        [1, 1, last],
        body.len() as u32,
        id,
        first,
        values.len() as u16,
    );
    bytes.extend(body);
    bytes
}

/// A server that accepts frames, and answers the first one with these bytes.
fn answering(answer: &[u8], closes: bool) -> FakeServer {
    FakeServer::answering(&[b"MULTI_GET 1 64\r\n", answer].concat(), closes)
}

#[test]
fn an_answer_to_something_else_is_refused() {
    let hit = Some(&b"x"[..]);
    let with_cas = [header([1, 3, 1], 33, 0, 0, 2), vec![0; 33]].concat();
    for answer in [
        part(1, 1, 0, &[hit, None]),
        part(1, 0, 1, &[hit, None]),
        part(1, 0, 0, &[hit, None, None]),
        part(1, 0, 0, &[hit]),
        part(0, 0, 0, &[hit, None]),
        part(0, 0, 1, &[hit]),
        with_cas,
        b"VALUE a 0 1\r\nx\r\nEND\r\n".to_vec(),
        b"VA 1 O0\r\nx\r\nMN\r\n".to_vec(),
        b"MULTI_GET 1 64\r\n".to_vec(),
        b"MN\r\n".to_vec(),
        header([1, 1, 1], 0, 0, 0, 2),
        header([1, 1, 1], 8, 0, 0, 0),
        header([3, 1, 1], 8, 0, 0, 2),
    ] {
        let answer = [answer, vec![0; 100]].concat();
        let server = answering(&answer, false);
        let (values, report) = look_up(&client(&server, short()));
        let shown = answer.escape_ascii();
        assert_eq!((report.hits, report.failed), (0, 2), "{shown}");
        let failure = &report.failures[0].failure;
        assert!(
            matches!(failure, Failure::Malformed(_)),
            "{failure}, to {shown}"
        );
        let failed = Some(Lookup::Unanswered(Unanswered::Failed));
        assert_eq!(values.lookup(0), failed);
    }
    for line in [
        "MULTI_GET 2 64\r\n",
        "MULTI_GET 1 0\r\n",
        "MULTI_GET 1 65536\r\n",
        "END\r\n",
    ] {
        let server = FakeServer::answering(line.as_bytes(), false);
        let (_, report) = look_up(&client(&server, short()));
        let failure = &report.failures[0].failure;
        assert!(
            matches!(failure, Failure::Malformed(_)),
            "{failure}, to {line}"
        );
    }
}

#[test]
fn an_answer_may_arrive_in_any_pieces() {
    let long = vec![b'l'; 70];
    let first = part(0, 0, 0, &[Some(&long)]);
    let second = part(1, 0, 1, &[Some(b"")]);
    let answer = [b"MULTI_GET 1 64\r\n", &first[..], &second[..]].concat();
    for (step, max_value_bytes) in [(1, 1000), (1, 60), (7, 1000), (16, 60), (17, 1000)] {
        let answer = answer.clone();
        let server = FakeServer::start(move |mut stream| {
            stream.set_nodelay(true).expect("a socket");
            read_request(&mut stream);
            for piece in answer.chunks(step) {
                if stream.write_all(piece).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_micros(300));
            }
            wait_for_end(&mut stream);
        });
        let options = short().timeout(Duration::from_secs(20));
        let client = client(&server, options.max_value_bytes(max_value_bytes));
        let (values, report) = look_up(&client);
        assert!(report.failures.is_empty(), "{report:?}");
        let bytes = 70;
        let is_right = match values.lookup(0) {
            Some(Lookup::Hit(value)) => value.data == long && max_value_bytes > 70,
            Some(answer) => answer == Lookup::Unanswered(Unanswered::Oversized { bytes }),
            None => false,
        };
        assert!(is_right, "in pieces of {step}: {values:?}");
        assert_eq!(values.get(1).map(|value| value.data), Some(&b""[..]));
    }
}

#[test]
fn the_parts_before_the_end_count() {
    let first = part(0, 0, 0, &[None]);
    let second = part(1, 0, 1, &[Some(b"value")]);
    for (answer, closes) in [
        (first.clone(), true),
        (first.clone(), false),
        ([&first[..], &second[..second.len() - 1]].concat(), true),
    ] {
        let server = answering(&answer, closes);
        let (values, report) = look_up(&client(&server, short()));
        assert_eq!((report.misses, report.failed), (1, 1));
        assert_eq!(values.lookup(0), Some(Lookup::Miss));
        let failure = &report.failures[0].failure;
        if closes {
            assert!(matches!(failure, Failure::Closed), "{failure}");
        } else {
            assert!(matches!(failure, Failure::TimedOut(SHORT)), "{failure}");
        }
    }
    let mut error = header([2, 0, 1], 4, 0, 6, 0);
    error.extend(b"many");
    let server = answering(&[first, error].concat(), true);
    let (_, report) = look_up(&client(&server, short()));
    assert_eq!((report.misses, report.failed), (1, 1));
    let failure = report.failures[0].failure.to_string();
    assert_eq!(failure, "it answered \"multi_get error 6: many\"");
}

#[test]
fn a_long_value_at_the_end_is_skipped_and_an_announced_one_takes_no_memory() {
    let long = vec![b'x'; 100_000];
    let answer = part(1, 0, 0, &[Some(b"a"), Some(&long)]);
    let server = answering(&answer, false);
    let (values, report) = look_up(&client(&server, short().max_value_bytes(1000)));
    assert_eq!((report.hits, report.oversized), (1, 1), "{report:?}");
    let bytes = 100_000;
    let oversized = Lookup::Unanswered(Unanswered::Oversized { bytes });
    assert_eq!(values.lookup(1), Some(oversized));

    let mut answer = header([1, 1, 1], 16 + (1 << 30), 0, 0, 2);
    answer.extend((1_u32 << 30).to_le_bytes());
    answer.extend([0; 12]);
    let server = answering(&answer, false);
    let client = client(&server, short().max_value_bytes(2 << 30));
    let before = resident_bytes();
    for _ in 0..3 {
        let (_, report) = look_up(&client);
        assert_eq!(report.failed, 2, "{report:?}");
    }
    assert!(resident_bytes() < before + (64 << 20));
}

/// The resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).expect("a field");
    pages.parse::<usize>().expect("a number") * 4096
}

/// Answers every frame with misses, grants 3 credits, and checks that the client keeps them.
/// `unanswered_max` gets the highest number of unanswered requests.
fn grant_three(stream: TcpStream, unanswered_max: &AtomicUsize) -> Option<()> {
    let mut input = BufReader::new(stream.try_clone().ok()?);
    let mut output = stream;
    let mut line = String::new();
    input.read_line(&mut line).ok()?;
    assert_eq!(line, "multi_get 1\r\n");
    // Nothing follows before the server has answered.
    assert!(input.buffer().is_empty());
    std::thread::sleep(Duration::from_millis(20));
    output.write_all(b"MULTI_GET 1 3\r\n").ok()?;
    let mut waiting = std::collections::VecDeque::new();
    let (mut requests, mut answers) = (0_u16, 0_u16);
    loop {
        // Collect all requests that the client sends without an answer.
        let wait = Duration::from_millis(30);
        input.get_ref().set_read_timeout(Some(wait)).ok()?;
        let mut start = [0; 16];
        match input.read_exact(&mut start) {
            Ok(()) => {
                let body_bytes = u32::from_le_bytes(start[4..8].try_into().ok()?);
                let patience = Some(Duration::from_secs(10));
                input.get_ref().set_read_timeout(patience).ok()?;
                input.read_exact(&mut vec![0; body_bytes as usize]).ok()?;
                let received = u16::from_le_bytes([start[12], start[13]]);
                assert!(received <= answers && requests - received < 3);
                requests += 1;
                waiting.push_back(start);
                unanswered_max.fetch_max(waiting.len(), Ordering::Relaxed);
                continue;
            }
            Err(_) if waiting.is_empty() => return None,
            Err(_) => {}
        }
        let start = waiting.pop_front()?;
        let id = u32::from_le_bytes(start[8..12].try_into().ok()?);
        let count = u16::from_le_bytes([start[14], start[15]]);
        for first in (0..count).step_by(256) {
            let keys = (count - first).min(256);
            let last = u8::from(first + keys == count);
            let misses = vec![None; usize::from(keys)];
            output.write_all(&part(last, id, first, &misses)).ok()?;
        }
        answers += 1;
    }
}

#[test]
fn no_more_requests_are_sent_than_the_server_grants() {
    let unanswered_max = Arc::new(AtomicUsize::new(0));
    let count = unanswered_max.clone();
    let server = FakeServer::start(move |stream| {
        grant_three(stream.try_clone().expect("a handle"), &count);
        let mut stream = stream;
        wait_for_end(&mut stream);
    });
    let options = options().protocol(Protocol::MultiGet);
    let client = client(&server, options);
    // 10 frames.
    let keys: Vec<[u8; 8]> = (0..20_000_u64).map(u64::to_le_bytes).collect();
    let mut values = Lookups::new();
    let report = client.multi_get(&keys, &mut values).expect("good keys");
    assert_eq!(
        (report.misses, report.failures.len()),
        (20_000, 0),
        "{report:?}"
    );
    assert_eq!(unanswered_max.load(Ordering::Relaxed), 3);
}
