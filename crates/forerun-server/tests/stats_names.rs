//! The statistics have memcached's names, all but those that docs/operate/protocol.md lists. The
//! test prints a message and is skipped if memcached is not on the PATH.

mod testing;

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    pub mod test_server;
}

use std::collections::BTreeMap;
use std::io::{Read, Write};

use server::test_server;

/// What `protocol.md` says about the names that this server does not have.
const PAGE: &str = include_str!("../../../docs/operate/protocol.md");

/// Memcached's names that this server does not have.
const LEFT_OUT: [&str; 8] = [
    "libevent",
    "reserved_fds",
    "oldest",
    "growth_factor",
    "chunk_size",
    "slab_chunk_max",
    "reqs_per_event",
    "age",
];

/// Statistics with the class or the connection left out of their names, and whether each is a
/// number.
fn names(stream: &mut (impl Read + Write), command: &str) -> BTreeMap<String, bool> {
    write!(stream, "{command}\r\n").expect("it is sent");
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    while !text.ends_with(b"END\r\n") {
        let count = stream.read(&mut piece).expect("an answer");
        assert!(count > 0, "the connection was closed");
        text.extend_from_slice(&piece[..count]);
    }
    let text = String::from_utf8(text).expect("statistics are text");
    let lines = text.lines().filter_map(|line| line.strip_prefix("STAT "));
    let pairs = lines.map(|line| line.split_once(' ').expect("a name and a value"));
    pairs
        .map(|(name, value)| {
            let name = name.rsplit(':').next().unwrap_or(name);
            (name.to_owned(), value.parse::<f64>().is_ok())
        })
        .collect()
}

#[test]
fn statistics_have_memcacheds_names_and_kinds_of_values() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("memcached.sock");
    let Some(_memcached) = testing::memcached::start(&socket) else {
        return;
    };
    let server = test_server::start(test_server::options());
    let mut ours = test_server::connect(&server);
    let mut theirs = testing::memcached::connect(&socket);
    let stored = "set a 0 0 1\r\nx\r\n";
    test_server::ask(&mut ours, stored, "STORED\r\n");
    test_server::ask(&mut theirs, stored, "STORED\r\n");
    let mut wrong = String::new();
    for kind in ["", " settings", " items", " slabs", " conns"] {
        let command = format!("stats{kind}");
        let (ours, theirs) = (names(&mut ours, &command), names(&mut theirs, &command));
        assert!(theirs.len() > 3, "{theirs:?}");
        for (name, is_number) in theirs {
            // External storage is an option of memcached's build.
            let is_left_out = name.starts_with("ext_")
                || (command != "stats slabs" && LEFT_OUT.contains(&name.as_str()));
            match (ours.get(&name), is_left_out) {
                (Some(ours), false) if *ours == is_number => {}
                // A number where memcached has a name, or the reverse, would confuse its readers.
                (None, true) => {}
                (ours, _) => wrong += &format!("{command}: {name}: {ours:?}\n"),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_page_lists_the_names_that_are_left_out() {
    for name in LEFT_OUT {
        assert!(PAGE.contains(&format!("`{name}`")), "{name}");
    }
}
