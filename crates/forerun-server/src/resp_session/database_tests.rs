//! Several databases: each has keys of its own, and the cache's other clients see the first one.

use forerun_cache::CacheOptions;

use crate::input::Input;
use crate::output::Output;
use crate::session::Session;
use crate::settings::Settings;

use super::test_client::{TestClient, converse};

fn client() -> TestClient {
    TestClient::with(CacheOptions::default().keyspaces(16), Settings::default())
}

#[test]
fn each_database_has_keys_of_its_own() {
    let mut client = client();
    let mut other = client.another();
    converse(
        &mut client,
        &[
            ("CONFIG GET databases", "*2|$9|databases|$2|16"),
            ("SET a 0", "+OK"),
            ("SELECT 1", "+OK"),
            ("GET a", "$-1"),
            ("MSET a 1 b 1", "+OK"),
            ("MGET a b c", "*3|$1|1|$1|1|$-1"),
            ("EXISTS a b", ":2"),
            ("HSET h f 1", ":1"),
            ("HGET h f", "$1|1"),
            ("HSCAN h 0", "*2|$1|0|*2|$1|f|$1|1"),
            ("INCR n", ":1"),
            ("APPEND n 0", ":2"),
            ("GETEX n PX 90000", "$2|10"),
            ("TYPE h", "+hash"),
            ("OBJECT ENCODING n", "$3|int"),
            ("MSETNX n 5 m 5", ":0"),
            ("SET a 2 XX GET", "$1|1"),
            ("RENAME b c", "+OK"),
            ("DEL b c", ":1"),
            ("DBSIZE", ":3"),
            ("SELECT 16", "-ERR DB index is out of range"),
            ("SELECT -1", "-ERR DB index is out of range"),
            ("SELECT 0", "+OK"),
            ("DBSIZE", ":1"),
            ("GET a", "$1|0"),
            ("SELECT 15", "+OK"),
            ("DBSIZE", ":0"),
            ("RANDOMKEY", "$-1"),
            ("RESET", "+RESET"),
            ("GET a", "$1|0"),
        ],
    );
    converse(
        &mut other,
        &[("GET a", "$1|0"), ("SELECT 1", "+OK"), ("GET a", "$1|2")],
    );
    let info = other.ask("INFO keyspace");
    for line in [
        "db0:keys=1,expires=0,avg_ttl=0",
        "db1:keys=3,expires=0,avg_ttl=0",
    ] {
        assert!(info.contains(&format!("\r\n{line}\r\n")), "{info}");
    }
    assert!(other.ask("CLIENT INFO").contains(" db=1 "));
}

#[test]
fn keys_that_begin_like_those_of_other_databases_are_keys_of_their_own() {
    let mut client = client();
    let keys = [&b"a"[..], b"\n\x01a", b"\n\0a", b"\n", b""];
    for (number, key) in keys.into_iter().enumerate() {
        client.ask_words(&[b"SET", key, number.to_string().as_bytes()]);
    }
    client.ask("SELECT 1");
    client.ask("SET a other");
    client.ask("SELECT 0");
    let words = [&[&b"MGET"[..]][..], &keys].concat();
    assert_eq!(
        client.ask_words(&words),
        "*5\r\n$1\r\n0\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4"
    );
    assert_eq!(client.ask("DBSIZE"), ":5");
    let listed = client.ask("KEYS *");
    assert!(listed.starts_with("*5\r\n"), "{listed:?}");
    // The order is random, and `ask` leaves out the end of the last line.
    assert!(listed.contains("$3\r\n\n\u{1}a"), "{listed:?}");
}

#[test]
fn keys_are_listed_drawn_and_flushed_by_database() {
    let mut client = client();
    for database in 0..3 {
        client.ask(&format!("SELECT {database}"));
        for number in 0..200 {
            client.ask(&format!("SET {database}:{number} 1"));
        }
    }
    client.ask("SELECT 1");
    assert!(client.ask("KEYS *").starts_with("*200\r\n"));
    assert_eq!(client.ask("KEYS 2:*"), "*0");
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let page = client.ask(&format!("SCAN {cursor} MATCH * COUNT 7"));
        let lines: Vec<&str> = page.split("\r\n").collect();
        cursor = lines[2].to_owned();
        found.extend(
            lines[4..]
                .iter()
                .filter(|line| line.contains(':'))
                .map(|key| key.to_string()),
        );
        if cursor == "0" {
            break;
        }
    }
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 200);
    assert!(found.iter().all(|key| key.starts_with("1:")));
    for _ in 0..20 {
        assert!(client.ask("RANDOMKEY").contains("1:"));
    }
    assert_eq!(client.ask("FLUSHDB"), "+OK");
    assert_eq!(client.ask("DBSIZE"), ":0");
    client.ask("SELECT 2");
    assert_eq!(client.ask("DBSIZE"), ":200");
    assert_eq!(client.ask("FLUSHALL"), "+OK");
    for database in 0..3 {
        client.ask(&format!("SELECT {database}"));
        assert_eq!(client.ask("DBSIZE"), ":0");
    }
}

#[test]
fn a_key_of_a_nearly_empty_database_is_found_among_many_of_another() {
    let mut client = client();
    for number in 0..20_000 {
        client.ask(&format!("SET {number} 1"));
    }
    client.ask("SELECT 3");
    client.ask("SET rare 1");
    assert_eq!(client.ask("RANDOMKEY"), "$4\r\nrare");
    assert_eq!(client.ask("KEYS *"), "*1\r\n$4\r\nrare");
    // It takes several turns, but no item of another database.
    assert_eq!(client.ask("FLUSHDB"), "+OK");
    assert_eq!(client.ask("RANDOMKEY"), "$-1");
    client.ask("SELECT 0");
    assert_eq!(client.ask("DBSIZE"), ":20000");
}

#[test]
fn items_move_between_databases() {
    let mut client = client();
    converse(
        &mut client,
        &[
            ("SET a 1 PX 50000", "+OK"),
            (
                "MOVE a 0",
                "-ERR source and destination objects are the same",
            ),
            ("MOVE a 16", "-ERR DB index is out of range"),
            ("MOVE a x", "-ERR value is not an integer or out of range"),
            ("MOVE missing 1", ":0"),
            (
                "COPY a a",
                "-ERR source and destination objects are the same",
            ),
            ("COPY a a DB 1", ":1"),
            ("COPY a a DB 1", ":0"),
            ("MOVE a 1", ":0"),
            ("COPY a a DB 1 REPLACE", ":1"),
            ("COPY a b REPLACE DB 2", ":1"),
            ("COPY a b DB 16", "-ERR DB index is out of range"),
            ("COPY a b DB", "-ERR syntax error"),
            ("MOVE a 3", ":1"),
            ("EXISTS a", ":0"),
            ("SELECT 3", "+OK"),
            ("PTTL a", ":50000"),
            ("SELECT 2", "+OK"),
            ("GET b", "$1|1"),
        ],
    );
}

#[test]
fn transactions_and_scripts_keep_to_their_databases() {
    let mut client = client();
    let mut other = client.another();
    other.ask("SELECT 1");
    converse(
        &mut client,
        &[
            ("WATCH a", "+OK"),
            ("MULTI", "+OK"),
            ("FLUSHDB", "-ERR Command not allowed inside a transaction"),
            ("DISCARD", "+OK"),
            ("WATCH a", "+OK"),
            ("MULTI", "+OK"),
            ("SET a 0", "+QUEUED"),
            ("SELECT 1", "+QUEUED"),
            ("SET a 1", "+QUEUED"),
            ("GET a", "+QUEUED"),
        ],
    );
    // Another database's key is not the one that is watched.
    assert_eq!(other.ask("SET a 5"), "+OK");
    converse(
        &mut client,
        &[
            ("EXEC", "*4|+OK|+OK|+OK|$1|1"),
            ("GET a", "$1|1"),
            ("WATCH a", "+OK"),
            ("MULTI", "+OK"),
            ("GET a", "+QUEUED"),
        ],
    );
    assert_eq!(other.ask("SET a 5"), "+OK");
    assert_eq!(client.ask("EXEC"), "*-1");
    let script = b"if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) \
                   else return 0 end";
    assert_eq!(client.ask_words(&[b"EVAL", script, b"1", b"a", b"0"]), ":0");
    assert_eq!(client.ask_words(&[b"EVAL", script, b"1", b"a", b"5"]), ":1");
    client.ask("SELECT 0");
    assert_eq!(client.ask("GET a"), "$1\r\n0");
}

/// The answers of memcached's protocol on the same cache.
fn memcached(client: &mut TestClient, bytes: &[u8]) -> Vec<u8> {
    let (mut session, mut input, mut output) = (Session::new(), Input::new(), Output::new());
    input.extend(bytes);
    let _ = session.receive(&mut input, &mut output, &mut client.context);
    output.bytes_mut().clone()
}

#[test]
fn clients_of_memcached_see_the_first_database_only() {
    let mut client = client();
    client.ask("SET a 0");
    client.ask("SELECT 1");
    client.ask("SET b 1");
    let mut ask = |request: &[u8]| {
        let answer = memcached(&mut client, request);
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert_eq!(ask(b"get a b\r\n"), "VALUE a 0 1\r\n0\r\nEND\r\n");
    // LF 1 b, in base64.
    assert_eq!(
        ask(b"mg CgFi b v\r\n"),
        "CLIENT_ERROR error decoding key\r\n"
    );
    assert!(ask(b"ms CgFi 1 b\r\n2\r\n").starts_with("CLIENT_ERROR"));
    assert!(ask(b"md CgFi b\r\n").starts_with("CLIENT_ERROR"));
    let dump = ask(b"lru_crawler metadump all\r\n");
    assert!(
        dump.starts_with("key=a ") && dump.ends_with("\nEND\r\n"),
        "{dump}"
    );
    assert_eq!(dump.matches("key=").count(), 1);
    // A binary get, and a set, of LF 1 b.
    let head = |opcode: u8, extras: u8, body: u8| {
        let mut head = vec![0x80, opcode, 0, 3, extras, 0, 0, 0, 0, 0, 0, body];
        head.resize(24, 0);
        head
    };
    let get = [head(0, 0, 3), b"\n\x01b".to_vec()].concat();
    assert!(ask(&get).contains("Not found"));
    let set = [head(1, 8, 12), vec![0; 8], b"\n\x01b2".to_vec()].concat();
    assert!(ask(&set).contains("Invalid arguments"));
    assert_eq!(client.ask("GET b"), "$1\r\n1");
}
