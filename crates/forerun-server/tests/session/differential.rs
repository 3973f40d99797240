//! The server answers generated commands as memcached does. The test prints a message and is
//! skipped if memcached is not on the PATH.
//!
//! Each case is a few commands on its own key, followed by commands that read the result. Numbers
//! come from pools of values that parsers often get wrong: signs, white space, limits of 31, 32, 63
//! and 64 bits. Differences that docs/operate/protocol.md lists are not generated, or are compared
//! only as far as the answers agree.

use crate::testing;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use testing::Client;
use testing::memcached::{ask, connect, start};

/// Number of cases. They take a few seconds in a debug build.
const CASES: u64 = 20_000;

/// Xorshift, so that every run has the same cases.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

const NUMBERS: [&str; 22] = [
    "0",
    "1",
    "5",
    "-0",
    "+5",
    "007",
    "-1",
    "1.5",
    "5x",
    "0x10",
    "x",
    "-",
    "+",
    "--1",
    "+-1",
    "\t5",
    "5\t",
    "5\tx",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
];

/// Client flags of at most 32 bits. Memcached truncates longer ones.
const CLIENT_FLAGS: [&str; 14] = [
    "0",
    "7",
    "+7",
    "007",
    "-1",
    "-0",
    "x",
    "1.5",
    "7x",
    "0x10",
    "\t7",
    "7\t",
    "2147483648",
    "4294967295",
];

const TIMES: [&str; 25] = [
    "0",
    "0",
    "0",
    "500",
    "500",
    "+500",
    "00500",
    "-1",
    "-0",
    "1.5",
    "500x",
    "0x10",
    "x",
    "\t500",
    "500\t",
    "500\tx",
    "2592000",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "4294967796",
    "9223372036854775807",
    "9223372036854775808",
    "-2147483649",
];

const VALUES: [&str; 9] = [
    "",
    "5",
    "10",
    "0",
    "x",
    "5 ",
    " 5",
    "18446744073709551615",
    "99999999999999999999",
];

/// A flag of a meta command, with its token if it takes one.
fn flag(random: &mut Random, letters: &[u8], now_s: u64) -> String {
    let letter = letters[random.below(letters.len())];
    let token = match letter {
        b'T' | b'N' => time(random, now_s),
        // Flags that report times are omitted, because they may differ by a second.
        b'R' => random
            .pick(&["0", "-1", "100", "1000", "x", "4294967295", "4294968296"])
            .to_owned(),
        b'C' | b'J' | b'D' => random.pick(&NUMBERS).to_owned(),
        b'F' => random.pick(&CLIENT_FLAGS).to_owned(),
        b'O' => random
            .pick(&["", "opaque", "1234567890123456789012345678901"])
            .to_owned(),
        b'M' => random
            .pick(&["", "S", "E", "A", "P", "R", "I", "D", "+", "-", "Z", "SS"])
            .to_owned(),
        _ => String::new(),
    };
    format!(" {}{token}", letter as char)
}

fn flags(random: &mut Random, letters: &[u8], now_s: u64) -> String {
    (0..random.below(6))
        .map(|_| flag(random, letters, now_s))
        .collect()
}

fn time(random: &mut Random, now_s: u64) -> String {
    match random.below(12) {
        0 => (now_s + 500).to_string(),
        1 => (now_s - 500).to_string(),
        _ => random.pick(&TIMES).to_owned(),
    }
}

/// A command with or without a data block.
fn command(random: &mut Random, key: &str, now_s: u64) -> (String, bool) {
    let quiet = random.pick(&["", "", "", " noreply"]);
    let value = random.pick(&VALUES);
    let length = value.len();
    match random.below(16) {
        0..=3 => {
            let name = random.pick(&["set", "set", "add", "replace", "append", "prepend"]);
            let (flags, time) = (random.pick(&CLIENT_FLAGS), time(random, now_s));
            (
                format!("{name} {key} {flags} {time} {length}{quiet}\r\n{value}\r\n"),
                true,
            )
        }
        4 => {
            let (cas, time) = (random.pick(&NUMBERS), time(random, now_s));
            (
                format!("cas {key} 0 {time} {length} {cas}{quiet}\r\n{value}\r\n"),
                true,
            )
        }
        5 => (
            format!("{} {key} nobody\r\n", random.pick(&["get", "gets"])),
            false,
        ),
        6 => (
            format!(
                "{} {} {key}\r\n",
                random.pick(&["gat", "gats"]),
                time(random, now_s)
            ),
            false,
        ),
        7 => (
            format!("touch {key} {}{quiet}\r\n", time(random, now_s)),
            false,
        ),
        8 => {
            let name = random.pick(&["incr", "decr"]);
            (
                format!("{name} {key} {}{quiet}\r\n", random.pick(&NUMBERS)),
                false,
            )
        }
        9 => {
            let held = random.pick(&["", "", " 0", " 1", " 00"]);
            (format!("delete {key}{held}{quiet}\r\n"), false)
        }
        10 | 11 => (
            format!("mg {key}{}\r\n", flags(random, b"vvtfsshkqulOTNRLP", now_s)),
            false,
        ),
        12 => {
            let flags = flags(random, b"cTFCIqOkSMMLP", now_s);
            (format!("ms {key} {length}{flags}\r\n{value}\r\n"), true)
        }
        13 => (
            format!("md {key}{}\r\n", flags(random, b"CITqOkLP", now_s)),
            false,
        ),
        _ => {
            // Never both: if the number gets longer, memcached sets the time of the replaced item.
            let letters: &[u8] = match random.below(2) {
                0 => b"NNJDCMtvckOLP",
                _ => b"NNTTCMtvckOLP",
            };
            let flags = flags(random, letters, now_s);
            (format!("ma {key}{flags}\r\n"), false)
        }
    }
}

/// Whether two answers are equivalent. Each server counts versions independently, and the seconds
/// left may differ by the time between the two requests.
fn agree(ours: &[u8], theirs: &[u8]) -> bool {
    let number = |token: &[u8]| -> Option<i64> { std::str::from_utf8(token).ok()?.parse().ok() };
    let tokens = |answer: &[u8]| -> Vec<Vec<u8>> {
        let is_end = |byte: &u8| matches!(byte, b' ' | b'\n');
        answer.split(is_end).map(<[u8]>::to_vec).collect()
    };
    let (ours, theirs) = (tokens(ours), tokens(theirs));
    let is_version = |tokens: &[Vec<u8>], at: usize| {
        // The fifth word of a line of `gets` is the version.
        at >= 4 && tokens[at - 4] == b"VALUE"
    };
    ours.len() == theirs.len()
        && ours.iter().zip(&theirs).enumerate().all(|(at, (a, b))| {
            let close = |letter: u8, by: i64| match (a.split_first(), b.split_first()) {
                (Some((x, a)), Some((y, b))) if *x == letter && *y == letter => {
                    let numbers = number(a.trim_ascii_end()).zip(number(b.trim_ascii_end()));
                    numbers.is_some_and(|(a, b)| a.abs_diff(b) <= by as u64)
                }
                _ => false,
            };
            // For an expired item, memcached reports the seconds since its expiry as seconds left,
            // minus 2^32.
            let is_past = a.trim_ascii_end() == b"t0"
                && matches!(b.split_first(),
                    Some((b't', left)) if number(left.trim_ascii_end()) > Some(1 << 31));
            a == b
                || is_past
                || close(b't', 3)
                || close(b'l', 3)
                || close(b'c', i64::MAX)
                || is_version(&ours, at)
        })
}

#[test]
fn generated_commands_are_answered_as_memcached_answers_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("memcached.sock");
    let Some(_memcached) = start(&socket) else {
        return;
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = since.expect("it is after 1970").as_secs();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut client = Client::new();
    let mut stream = connect(&socket);
    let (mut wrong, mut count) = (String::new(), 0);
    for case in 0..CASES {
        let key = format!("key{case}");
        client.cache.tick();
        let mut said = String::new();
        let commands = 1 + random.below(4);
        for at in 0..=commands {
            let (sent, has_block) = if at == commands {
                (format!("mg {key} h s v t f\r\n"), false)
            } else {
                command(&mut random, &key, now_s)
            };
            said += &format!(" | {}", sent.escape_debug());
            let timeout = Some(Duration::from_secs(10));
            stream.set_read_timeout(timeout).expect("a time");
            let ours = client.send(sent.as_bytes());
            let theirs = ask(&mut stream, sent.as_bytes());
            // If memcached refuses a command, it reads the command's block as commands and answers
            // those.
            let refused = has_block && ours.starts_with(b"CLIENT_ERROR");
            let same = if refused {
                theirs.starts_with(&ours)
            } else {
                agree(&ours, &theirs)
            };
            // If a refused command has `noreply`, memcached answers only its block.
            let silent = has_block && ours.is_empty() && theirs.starts_with(b"ERROR");
            if !same && !silent {
                count += 1;
                if count <= 40 {
                    wrong += &format!(
                        "{said}\n  ours:   {}\n  theirs: {}\n",
                        ours.escape_ascii(),
                        theirs.escape_ascii()
                    );
                }
                break;
            }
        }
    }
    assert!(count == 0, "{count} of {CASES} cases differ\n{wrong}");
}
