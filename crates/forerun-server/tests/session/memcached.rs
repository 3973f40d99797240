//! Memcached itself gives the answers in the conversations. The test prints a message and is
//! skipped if memcached is not on the PATH.

use crate::testing;

use std::time::{Duration, Instant};

use testing::memcached::{ask, connect, start};
use testing::{FILES, Kept, cases};

#[test]
fn memcached_matches_the_conversations() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("memcached.sock");
    let Some(_memcached) = start(&socket) else {
        return;
    };
    let mut wrong = String::new();
    for (file, text) in FILES {
        for case in cases(text) {
            let mut stream = connect(&socket);
            stream
                .set_read_timeout(Some(Duration::from_secs(5)))
                .expect("a timeout");
            assert_eq!(ask(&mut stream, b"flush_all\r\n"), b"OK\r\n");
            let mut kept = Kept::default();
            for turn in case.turns {
                let expected = turn.memcached.as_ref().unwrap_or(&turn.answer);
                let sent = kept.fill(&turn.sent);
                let mut answer = ask(&mut stream, &sent);
                // After `lru_crawler disable`, memcached answers this until its crawler has
                // stopped.
                let deadline = Instant::now() + Duration::from_secs(60);
                while answer == b"ERROR an unknown error happened\r\n" && Instant::now() < deadline
                {
                    answer = ask(&mut stream, &sent);
                }
                // What it lists depends on which items its maintainer thread has moved to the COLD
                // list by now. Flushed items are among them.
                if sent == b"stats cachedump 1 10\r\n" && answer.ends_with(b"END\r\n") {
                    continue;
                }
                if !kept.matches(expected, &answer) {
                    wrong += &format!(
                        "{file}.txt:{}, {}: {}\n  answer:   {}\n  expected: {}\n",
                        turn.line,
                        case.name,
                        turn.sent.escape_ascii(),
                        answer.escape_ascii(),
                        expected.escape_ascii(),
                    );
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
