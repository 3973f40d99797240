//! Dumps of all keys are complete for any number of keys, and use bounded memory.

use crate::testing;

use std::collections::BTreeSet;

use forerun_cache::{CacheOptions, Expiry, ItemKind, Store, StoreResult};
use forerun_server::{SessionState, Settings};
use testing::{Client, Kept};

const ITEMS: usize = 30_000;

fn filled() -> Client {
    let client = Client::new();
    for n in 0..ITEMS {
        let _ = client
            .cache
            .store(Store::set(format!("key {n}").as_bytes(), b"v"));
    }
    client
}

#[test]
fn a_dump_has_every_key_and_waits_for_its_reader() {
    let mut client = filled();
    client
        .input()
        .extend(b"mg a v\r\nlru_crawler metadump all\r\nmn\r\n");
    let (mut answer, mut max) = (Vec::new(), 0);
    while client.receive() == SessionState::OutputFull {
        max = max.max(client.output.len());
        client.read(&mut answer, 50_000);
    }
    client.read(&mut answer, usize::MAX);
    let text = String::from_utf8(answer).unwrap();
    let lines = text
        .strip_prefix("EN\r\n")
        .and_then(|text| text.strip_suffix("END\r\nMN\r\n"));
    let keys: BTreeSet<&str> = lines
        .expect("commands before and behind it are answered in their order")
        .lines()
        .map(|line| {
            let (key, rest) = line.split_once(' ').unwrap();
            assert!(rest.starts_with("exp=-1 la=") && rest.contains(" fetch=no cls=1 size="));
            key.strip_prefix("key=key%20").unwrap()
        })
        .collect();
    let all: BTreeSet<String> = (0..ITEMS).map(|n| n.to_string()).collect();
    assert!(all.iter().map(String::as_str).eq(keys));
    // A part contains the items of one segment: at most 2048 slots, with less than a hundred bytes
    // each here.
    assert!(max < (64 << 10) + 2048 * 100, "{max} bytes waited");
    assert!(text.len() > 2 * max);
}

#[test]
fn a_line_has_the_key_uri_encoded_and_times_in_unix_seconds() {
    let mut client = Client::new();
    client.send(b"ms Zm9vIGJhcg== 1 b T100\r\nv\r\nmg Zm9vIGJhcg== b v\r\n");
    let answer = client.send(b"lru_crawler metadump 1\r\n");
    let mut kept = Kept::default();
    let line = b"key=foo%20bar exp={exp} la={la} cas={cas} fetch=yes cls=1 size={size}\nEND\r\n";
    assert!(kept.matches(line, &answer), "{}", answer.escape_ascii());
    let text = String::from_utf8(answer).unwrap();
    let number = |name: &str| {
        let (_, behind) = text.split_once(&format!(" {name}=")).unwrap();
        behind.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(number("exp") - number("la"), 100);
    assert!(number("la") > 1_700_000_000);
    assert_eq!(
        client.send(b"lru_crawler mgdump all\r\n"),
        b"mg Zm9vIGJhcg== b\r\nEN\r\n"
    );
    let other_class = client.send(b"lru_crawler metadump 2\r\n");
    assert_eq!(other_class, b"NOTSTARTED no items to crawl\r\n");
}

#[test]
fn a_dump_says_which_items_expire_at_a_millisecond() {
    let mut client = Client::new();
    for (key, expiry) in [
        ("a", Expiry::AtMs(client.cache.now_ms() + 1900)),
        ("b", Expiry::At(client.cache.now() + 2)),
    ] {
        let stored = client.cache.store(Store {
            expiry,
            ..Store::set(key, b"v")
        });
        assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
    }
    let listed = client.send(b"lru_crawler metadump all\r\n");
    let listed = String::from_utf8(listed).unwrap();
    for line in listed.lines().filter(|line| line.starts_with("key=")) {
        assert_eq!(
            line.contains(" cls=1 unit=ms size="),
            line.starts_with("key=a "),
            "{line}"
        );
    }
}

/// Another protocol may store such keys and hashes.
#[test]
fn keys_that_memcached_cannot_have_are_not_listed_and_hashes_say_so() {
    let mut client = Client::new();
    for (key, kind) in [
        (vec![], ItemKind::String),
        (vec![b'k'; 250], ItemKind::Hash),
        (vec![b'l'; 251], ItemKind::String),
    ] {
        let stored = client.cache.store(Store {
            kind,
            ..Store::set(&key, b"v")
        });
        assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
    }
    let listed = client.send(b"lru_crawler metadump all\r\n");
    let listed = String::from_utf8(listed).unwrap();
    assert!(listed.starts_with("key=kkk") && listed.contains(" cls=1 kind=hash size="));
    assert_eq!(listed.lines().count(), 2, "{listed}");
    let keys = client.send(b"lru_crawler mgdump all\r\nstats cachedump 1 0\r\n");
    let keys = String::from_utf8(keys).unwrap();
    let lines: Vec<&str> = keys.lines().map(|line| &line[..2]).collect();
    assert_eq!(lines, ["mg", "EN", "IT", "EN"], "{keys}");
}

#[test]
fn mgdump_lines_are_valid_commands() {
    let mut client = filled();
    let _ = client.cache.store(Store::set(b"plain", b"v"));
    let dump = client.send(b"lru_crawler mgdump hash\r\n");
    let commands = dump.strip_suffix(b"EN\r\n").unwrap();
    let answer = client.send(commands);
    assert_eq!(answer, b"HD\r\n".repeat(ITEMS + 1));
}

#[test]
fn keys_are_not_listed_if_the_operator_disabled_it() {
    let settings = Settings::default()
        .dump_enabled(false)
        .crawler_enabled(false);
    let mut client = Client::with(CacheOptions::default(), settings);
    let mut said = |command: &str| String::from_utf8(client.send(command.as_bytes())).unwrap();
    let disabled = "CLIENT_ERROR lru crawler disabled\r\n";
    assert_eq!(said("lru_crawler metadump all\r\n"), disabled);
    assert!(said("stats settings\r\n").contains("STAT lru_crawler no\r\n"));
    assert_eq!(said("lru_crawler enable\r\n"), "OK\r\n");
    assert!(said("stats settings\r\n").contains("STAT lru_crawler yes\r\n"));
    assert_eq!(
        said("lru_crawler metadump all\r\n"),
        "ERROR metadump not allowed\r\n"
    );
    assert_eq!(
        said("stats cachedump 1 1\r\n"),
        "CLIENT_ERROR stats cachedump not allowed\r\n"
    );
    assert!(said("stats settings\r\n").contains("STAT dump_enabled no\r\n"));
    assert_eq!(said("debugtime 3\r\n"), "ERROR\r\n");
}

#[test]
fn the_crawler_removes_expired_items_and_debugtime_moves_the_clock() {
    let settings = Settings::default().debug_commands(true);
    let mut client = Client::with(CacheOptions::default(), settings);
    let sent = client.send(b"set a 0 2 1\r\n1\r\nset b 0 200 1\r\n1\r\ndebugtime 3\r\nget a b\r\n");
    assert_eq!(
        sent,
        b"STORED\r\nSTORED\r\nOK\r\nVALUE b 0 1\r\n1\r\nEND\r\n"
    );
    assert_eq!(client.send(b"lru_crawler crawl all\r\n"), b"OK\r\n");
    let stats = client.cache.stats();
    assert_eq!((stats.items, stats.expired), (1, 1));
    assert_eq!(client.send(b"debugtime x\r\n"), b"ERROR\r\n");
}
