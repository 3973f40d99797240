//! Every command interprets an expiration time in the same way, which is memcached's. The test
//! prints a message and skips the comparison if memcached is not on the PATH.

use crate::testing;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use testing::Client;
use testing::memcached::{ask, connect, start};

/// The meaning of an expiration time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Never,
    Past,
    /// Seconds left.
    Left(i64),
    Refused,
}

use Meaning::{Left, Never, Past, Refused};

/// Seconds since 1970.
fn unix_now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("it is after 1970").as_secs() as i64
}

/// Times at the limits of what parsers accept, and their meaning.
fn times() -> Vec<(String, Meaning)> {
    let now_s = unix_now_s();
    let mut times: Vec<(String, Meaning)> = [
        ("0", Never),
        ("-0", Never),
        ("-1", Past),
        ("+500", Left(500)),
        ("00500", Left(500)),
        ("2592000", Left(2_592_000)),
        ("2592001", Past),
        ("2147483647", Left(2_147_483_647 - now_s)),
        ("2147483648", Past),
        ("4294967295", Past),
        ("4294967296", Never),
        ("4294967796", Left(500)),
        ("9223372036854775807", Past),
        ("9223372036854775808", Refused),
        ("18446744073709551615", Refused),
        ("18446744073709551616", Refused),
        ("-2147483648", Past),
        ("-2147483649", Left(2_147_483_647 - now_s)),
        ("-4294967296", Never),
        ("-9223372036854775808", Never),
        ("-9223372036854775809", Refused),
        ("1.5", Refused),
        ("500x", Refused),
        ("0x10", Refused),
        ("x", Refused),
        ("-", Refused),
        ("+", Refused),
        ("--1", Refused),
        ("\t500", Left(500)),
        ("500\tx", Left(500)),
    ]
    .map(|(text, meaning)| (text.to_owned(), meaning))
    .into();
    times.push(((now_s + 500).to_string(), Left(500)));
    times.push(((now_s - 500).to_string(), Past));
    times
}

/// Commands with `TIME` in place of the time. Each leaves an item with that time.
const COMMANDS: [&str; 16] = [
    "set key 0 TIME 1\r\n5\r\n",
    "delete key\r\nadd key 0 TIME 1\r\n5\r\n",
    "replace key 0 TIME 1\r\n5\r\n",
    "cas key 0 TIME 1 CAS\r\n5\r\n",
    "touch key TIME\r\n",
    "gat TIME key\r\n",
    "gats TIME key\r\n",
    "ms key 1 TTIME\r\n5\r\n",
    "ms key 1 MR TTIME\r\n5\r\n",
    "mg key TTIME\r\n",
    "delete key\r\nmg key NTIME\r\n",
    "delete key\r\nmg key N500 TTIME v\r\n",
    "ma key TTIME D0\r\n",
    "delete key\r\nma key NTIME\r\n",
    "delete key\r\nma key N500 TTIME\r\n",
    "md key I TTIME\r\n",
];

/// Commands that check the time or compare with it, but do not set it.
const OTHERS: [&str; 5] = [
    "append key 0 TIME 1\r\n5\r\n",
    "prepend key 0 TIME 1\r\n5\r\n",
    "mg key RTIME\r\n",
    "ms key 1 MA TTIME\r\n5\r\n",
    "md key TTIME\r\n",
];

const SET: &[u8] = b"set key 0 900 1\r\n7\r\n";

/// The command with this time. `cas` gets the version in the answer to a `gets`.
fn fill(command: &str, time: &str, gets: &[u8]) -> Vec<u8> {
    let gets = String::from_utf8_lossy(gets);
    let line = gets.lines().next().unwrap_or_default();
    let cas = line.rsplit(' ').next().unwrap_or_default();
    command.replace("TIME", time).replace("CAS", cas).into()
}

/// The meaning of the time that the item got, from the answer to `mg key t`.
fn meaning_of(answer: &[u8]) -> Meaning {
    let answer = String::from_utf8_lossy(answer);
    if answer == "EN\r\n" {
        return Past;
    }
    let left = answer
        .split_whitespace()
        .find_map(|word| word.strip_prefix('t'));
    match left.and_then(|left| left.parse().ok()) {
        Some(-1) => Never,
        Some(left) => Left(left),
        None => panic!("{answer}"),
    }
}

fn agree(a: Meaning, b: Meaning) -> bool {
    match (a, b) {
        // Seconds pass while the test runs.
        (Left(a), Left(b)) => a.abs_diff(b) <= 60,
        _ => a == b,
    }
}

#[test]
fn every_command_gives_a_time_the_same_meaning() {
    let mut client = Client::new();
    for (time, expected) in times() {
        for command in COMMANDS {
            client.cache.tick();
            assert_eq!(client.send(SET), b"STORED\r\n");
            let gets = client.send(b"gets key\r\n");
            let answer = client.send(&fill(command, &time, &gets));
            let last = answer.strip_prefix(b"DELETED\r\n").unwrap_or(&answer);
            let what = format!("{command:?} {time:?} {}", answer.escape_ascii());
            assert_eq!(
                last.starts_with(b"CLIENT_ERROR"),
                expected == Refused,
                "{what}"
            );
            if expected != Refused {
                let found = meaning_of(&client.send(b"mg key t\r\n"));
                assert!(
                    agree(found, expected),
                    "{what}: {found:?}, not {expected:?}"
                );
            }
        }
    }
}

#[test]
fn memcached_gives_the_same_answers_and_times() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("memcached.sock");
    let Some(_memcached) = start(&socket) else {
        return;
    };
    let mut stream = connect(&socket);
    let timeout = Some(Duration::from_secs(10));
    stream.set_read_timeout(timeout).expect("a timeout");
    let mut client = Client::new();
    let mut wrong = String::new();
    for (time, _) in times() {
        for command in COMMANDS.into_iter().chain(OTHERS) {
            client.cache.tick();
            let ours = client.send(&[SET, b"gets key\r\n"].concat());
            let theirs = ask(&mut stream, &[SET, b"gets key\r\n"].concat());
            let gets = |answer: &[u8]| answer["STORED\r\n".len()..].to_vec();
            let (ours, theirs) = (gets(&ours), gets(&theirs));
            let ours = client.send(&fill(command, &time, &ours));
            let theirs = ask(&mut stream, &fill(command, &time, &theirs));
            let is_refused = ours.windows(12).any(|window| window == b"CLIENT_ERROR");
            let same = if command.starts_with("gats") && !is_refused {
                // The versions differ.
                ours.len().abs_diff(theirs.len()) < 4
            } else {
                // After its error, memcached reads the data block as a command.
                ours == theirs || is_refused && theirs.starts_with(&ours)
            };
            let found = [
                client.send(b"mg key t\r\n"),
                ask(&mut stream, b"mg key t\r\n"),
            ];
            let meanings = found.each_ref().map(|answer| meaning_of(answer));
            if !same || !agree(meanings[0], meanings[1]) {
                wrong += &format!(
                    "{command:?} {time:?}: {} {:?}, not {} {:?}\n",
                    ours.escape_ascii(),
                    meanings[0],
                    theirs.escape_ascii(),
                    meanings[1],
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The effect of `flush_all` with a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    Now,
    /// Nothing yet, and nothing within the next two seconds.
    Later,
    Refused,
}

/// `flush_all` with times at the limits, and its effect.
fn flush_times() -> Vec<(String, Flush)> {
    let flush = |meaning| match meaning {
        Never | Past => Flush::Now,
        Left(_) => Flush::Later,
        Refused => Flush::Refused,
    };
    let mut times: Vec<(String, Flush)> = times()
        .into_iter()
        .map(|(text, meaning)| (text, flush(meaning)))
        .collect();
    let now_s = unix_now_s();
    for (text, flush) in &mut times {
        // A time of day before the start flushes nothing.
        if text == "2592001" || *text == (now_s - 500).to_string() {
            *flush = Flush::Later;
        }
    }
    times.push(("1".to_owned(), Flush::Now));
    times.push((now_s.to_string(), Flush::Now));
    times.push((String::new(), Flush::Now));
    times
}

#[test]
fn a_flush_with_a_time_does_what_memcached_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("memcached.sock");
    let mut client = Client::new();
    // In memcached, a later flush brings back what an earlier one removed, so each flush gets a
    // separate memcached.
    for (time, expected) in flush_times() {
        let line = format!("flush_all {time}\r\n");
        client.cache.tick();
        let sent = [SET, line.as_bytes(), b"get key\r\n"].concat();
        let ours = client.send(&sent);
        let answer: &[u8] = match expected {
            Flush::Now => b"STORED\r\nOK\r\nEND\r\n",
            Flush::Later => b"STORED\r\nOK\r\nVALUE key 0 1\r\n7\r\nEND\r\n",
            Flush::Refused => {
                b"STORED\r\nCLIENT_ERROR invalid exptime argument\r\nVALUE key 0 1\r\n7\r\nEND\r\n"
            }
        };
        assert_eq!(
            ours.escape_ascii().to_string(),
            answer.escape_ascii().to_string(),
            "{line:?}"
        );
        let Some(_memcached) = start(&socket) else {
            continue;
        };
        let theirs = ask(&mut connect(&socket), &sent);
        std::fs::remove_file(&socket).expect("memcached's socket");
        assert_eq!(
            ours.escape_ascii().to_string(),
            theirs.escape_ascii().to_string(),
            "{line:?}"
        );
    }
}

#[test]
fn a_flush_with_a_delay_comes_a_second_early_as_in_memcached() {
    let client = &mut Client::new();
    let now = client.cache.now();
    let found = |client: &mut Client, second| {
        client.cache.advance(second);
        client.send(b"mg key\r\n") == b"HD\r\n"
    };
    assert_eq!(
        client.send(&[SET, b"flush_all 5\r\n"].concat()),
        b"STORED\r\nOK\r\n"
    );
    assert!(found(client, now + 3));
    assert!(!found(client, now + 4));
    // Items stored afterwards stay.
    assert_eq!(client.send(SET), b"STORED\r\n");
    assert!(found(client, now + 6));

    // A time before the start cancels a flush that is not yet due.
    assert_eq!(
        client.send(b"flush_all 5\r\nflush_all 1000000000\r\n"),
        b"OK\r\nOK\r\n"
    );
    assert!(found(client, now + 20));

    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("memcached.sock");
    let Some(_memcached) = start(&socket) else {
        return;
    };
    let mut stream = connect(&socket);
    // memcached's own clock shows when it flushes, however slowly this test runs.
    let mut between = |request: &[u8]| {
        let sent = [&b"stats\r\n"[..], request, b"stats\r\n"].concat();
        let answer = String::from_utf8(ask(&mut stream, &sent)).expect("a text");
        let uptimes = answer.lines().filter_map(|line| {
            let seconds = line.strip_prefix("STAT uptime ")?;
            seconds.parse::<u32>().ok()
        });
        match uptimes.collect::<Vec<_>>()[..] {
            [before, after] => (before, answer.contains("\r\nHD\r\n"), after),
            _ => panic!("{answer}"),
        }
    };
    let (earliest, _, latest) = between(&[SET, b"flush_all 4\r\n"].concat());
    loop {
        let (before, is_found, after) = between(b"mg key\r\n");
        if !is_found {
            assert!(after >= earliest + 3, "{after}, {earliest}");
            break;
        }
        assert!(before < latest + 3, "{before}, {latest}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
