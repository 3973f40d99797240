//! Plays the conversations with servers.

use std::io::{Read, Write};

use crate::testing::{self, FILES, Kept, cases};

/// Plays the conversations and returns what differs. `open` opens a connection to a new server for
/// each case, and returns what the server needs to stay. A session in memory, which gets the same
/// bytes, says how long each answer is.
pub fn play<S: Read + Write, T>(open: impl Fn() -> (T, S)) -> String {
    let mut wrong = String::new();
    for (file, text) in FILES {
        for case in cases(text) {
            let (_server, mut stream) = open();
            let mut memory = testing::Client::new();
            let cas = first_cas(&mut stream, &mut memory);
            memory.cache.advance_cas_past(cas);
            let mut kept = Kept::default();
            for turn in case.turns {
                let sent = kept.fill(&turn.sent);
                let expected = memory.send(&sent);
                // A closed connection takes nothing and answers nothing.
                let _ = stream.write_all(&sent);
                let mut answer = vec![0; expected.len()];
                let mut filled = 0;
                while filled < answer.len() {
                    match stream.read(&mut answer[filled..]) {
                        Ok(count) if count > 0 => filled += count,
                        _ => break,
                    }
                }
                answer.truncate(filled);
                if !kept.matches(&turn.answer, &answer) {
                    wrong += &format!(
                        "{file}.txt:{}, {}: {}: {}\n",
                        turn.line,
                        case.name,
                        turn.sent.escape_ascii(),
                        answer.escape_ascii(),
                    );
                }
            }
        }
    }
    wrong
}

/// The first CAS number that a server gives. It is random; a session in memory counts from 1, so
/// its answers would be shorter.
fn first_cas(stream: &mut (impl Read + Write), memory: &mut testing::Client) -> u64 {
    let requests = b"ms first 1 c\r\nv\r\nmd first\r\n";
    memory.send(requests);
    let _ = stream.write_all(requests);
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\nHD\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        answer.push(byte[0]);
    }
    let answer = String::from_utf8_lossy(&answer);
    let digits = answer
        .strip_prefix("HD c")
        .and_then(|rest| rest.split("\r\n").next());
    let cas = digits.and_then(|digits| digits.parse().ok());
    cas.unwrap_or_else(|| panic!("{answer:?}"))
}

/// Checks that what differs over UCX is what differs over TCP.
pub fn check_alike(over_ucx: &str, over_tcp: &str) {
    let first = |text: &str| text.chars().take(2000).collect::<String>();
    assert!(
        over_ucx == over_tcp,
        "over UCX:\n{}\nover TCP:\n{}",
        first(over_ucx),
        first(over_tcp)
    );
    // A server differs from a session in memory in what it says about itself only.
    assert!(over_tcp.lines().count() < 10, "{}", first(over_tcp));
}
