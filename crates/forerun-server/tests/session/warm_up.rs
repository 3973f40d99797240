//! The warm-up of a new server: no copy of another server's value brings back what a client has
//! deleted or replaced.

use crate::testing;

use crate::warm_up_model;

use crate::warm_up_race;

use forerun_cache::{CacheOptions, Expiry, ItemKind, Store};
use forerun_server::Settings;
use proptest::prelude::*;
use testing::{Client, Kept};
use warm_up_race::Thread;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_order_of_writes_and_copies_brings_a_value_back(actions in warm_up_model::actions()) {
        if let Err(wrong) = warm_up_model::check(&actions) {
            return Err(TestCaseError::fail(wrong));
        }
    }
}

#[test]
fn none_of_the_same_300_sequences_brings_a_value_back() {
    assert_eq!(warm_up_model::search(300), None);
}

#[test]
fn threads_that_delete_and_copy_the_same_keys_leave_nothing_behind() {
    assert_eq!(warm_up_race::resurrected(20_000), 0);
}

#[test]
fn a_key_that_is_deleted_while_its_copy_arrives_stays_deleted() {
    let shared = warm_up_race::server();
    let token = warm_up_race::begin(&shared);
    let (mut copier, mut client) = (Thread::new(&shared), Thread::new(&shared));
    let value = vec![b'v'; 300_000];
    let line = format!("warm_fill {token} big 0 0 9 {}\r\n", value.len());
    let fill = [line.as_bytes(), &value, b"\r\n"].concat();
    assert_eq!(copier.ask(&fill[..200_000]), "");
    assert_eq!(client.ask(b"delete big\r\n"), "NOT_FOUND\r\n");
    assert_eq!(copier.ask(&fill[200_000..]), "NOT_FILLED\r\n");
    assert_eq!(client.ask(b"get big\r\n"), "END\r\n");
    // A flush in the meantime ends the warm-up.
    let fill = String::from_utf8(fill)
        .expect("text")
        .replace(" big ", " other ");
    let fill = fill.as_bytes();
    assert_eq!(copier.ask(&fill[..200_000]), "");
    assert_eq!(client.ask(b"flush_all\r\n"), "OK\r\n");
    let over = "CLIENT_ERROR the server is not being warmed up with this token\r\n";
    assert_eq!(copier.ask(&fill[200_000..]), over);
    assert_eq!(client.ask(b"get other\r\n"), "END\r\n");
}

/// A client of a server whose warm-up has begun, and its token.
fn warming() -> (Client, String) {
    let mut client = Client::new();
    let answer = client.send(b"warm_up begin 60\r\n");
    let text = String::from_utf8(answer).expect("text");
    let token = text.split(' ').nth(1).expect("a token").to_owned();
    (client, token)
}

fn expect(client: &mut Client, sent: &str, answer: &str) {
    let got = client.send(sent.as_bytes());
    let mut kept = Kept::default();
    let is_it = kept.matches(answer.as_bytes(), &got);
    assert!(is_it, "{sent:?}: {}", got.escape_ascii());
}

#[test]
fn a_copy_has_flags_expiry_and_version() {
    let (mut client, token) = warming();
    let now = client.cache.now();
    let fill = format!("warm_fill {token} a 7 {} 12 2\r\nab\r\n", now + 50);
    expect(&mut client, &fill, "FILLED\r\n");
    expect(
        &mut client,
        "mg a v f t c h\r\n",
        "VA 2 f7 t50 c12 h0\r\nab\r\n",
    );
    // A key of any bytes, and an item that never expires.
    let fill = format!("warm_fill {token} AAEC 0 0 3 1 b\r\nx\r\n");
    expect(&mut client, &fill, "FILLED\r\n");
    expect(&mut client, "mg AAEC b v t c\r\n", "VA 1 t-1 c3\r\nx\r\n");
    // A copy that has expired on the way is stored, but nobody finds it.
    let fill = format!("warm_fill {token} late 0 {now} 3 1\r\nx\r\n");
    expect(&mut client, &fill, "FILLED\r\n");
    expect(&mut client, "get late\r\n", "END\r\n");
    let stats = String::from_utf8(client.send(b"stats\r\n")).expect("text");
    for line in ["warm_fill_stored 3", "warm_fill_refused 0", "cmd_set 0"] {
        assert!(
            stats.contains(&format!("STAT {line}\r\n")),
            "{line}: {stats}"
        );
    }
}

/// A program asks for the milliseconds that are left, and sends a millisecond of this clock.
#[test]
fn a_copy_expires_at_its_millisecond() {
    let (mut client, token) = warming();
    let at_ms = client.cache.now_ms() + 1900;
    for (key, flag) in [("a", "m"), ("b", "hm"), ("Yw==", "bm"), ("ZA==", "bhm")] {
        let fill = format!("warm_fill {token} {key} 0 {at_ms} 3 1 {flag}\r\nx\r\n");
        expect(&mut client, &fill, "FILLED\r\n");
    }
    for key in ["a", "b", "c", "d"] {
        let expiry = client.cache.pin().peek(key).map(|item| item.expiry());
        assert_eq!(expiry, Some(Expiry::AtMs(at_ms)), "{key}");
    }
    expect(&mut client, "mg a t p u\r\n", "HD t2 p1900\r\n");
    client.cache.advance_ms(at_ms - 1);
    expect(&mut client, "mg a p u\r\n", "HD p1\r\n");
    client.cache.advance_ms(at_ms);
    expect(&mut client, "mg a p u\r\n", "EN\r\n");
    let fill = format!("warm_fill {token} never 0 0 3 1 m\r\nx\r\n");
    expect(&mut client, &fill, "FILLED\r\n");
    expect(&mut client, "mg never p u\r\n", "HD p-1\r\n");
    for flag in ["mh", "mb", "mm", "bhmx"] {
        let fill = format!("warm_fill {token} a 0 0 3 1 {flag}\r\nx\r\n");
        let refused = "CLIENT_ERROR bad command line format\r\n";
        expect(&mut client, &fill, refused);
    }
}

#[test]
fn a_copy_of_a_hash_is_a_hash() {
    let (mut client, token) = warming();
    for (key, sent, flag, kind) in [
        ("plain", "plain", "h", ItemKind::Hash),
        ("\0\x01\x02", "AAEC", "bh", ItemKind::Hash),
        ("text", "text", "", ItemKind::String),
    ] {
        let fill = format!("warm_fill {token} {sent} 0 0 3 1 {flag}\r\nx\r\n");
        expect(&mut client, &fill, "FILLED\r\n");
        let guard = client.cache.pin();
        assert_eq!(guard.peek(key).expect("the copy").kind(), kind, "{key}");
    }
    let fill = format!("warm_fill {token} other 0 0 3 1 hb\r\nx\r\n");
    let refused = "CLIENT_ERROR bad command line format\r\n";
    expect(&mut client, &fill, refused);
}

#[test]
fn large_values_are_copied_in_pieces() {
    let (mut client, token) = warming();
    let value = vec![b'v'; 300_000];
    let line = format!("warm_fill {token} big 0 0 9 {}\r\n", value.len());
    let fill = [line.as_bytes(), &value, b"\r\n"].concat();
    for (step, answer) in [(1000, "FILLED\r\n"), (70_000, "EXISTS\r\n")] {
        assert_eq!(client.send_in_steps(&fill, step), answer.as_bytes());
    }
    expect(&mut client, "mg big s c\r\n", "HD s300000 c9\r\n");
}

#[test]
fn copies_that_cannot_be_stored_say_why_and_delete_nothing() {
    let (mut client, token) = warming();
    let fill = format!("warm_fill {token} a 0 0 1 1\r\nx\r\n");
    expect(&mut client, &fill, "FILLED\r\n");
    let bytes = 2 << 20;
    let line = format!("warm_fill {token} a 0 0 1 {bytes}\r\n");
    let big = [line.as_bytes(), &vec![b'x'; bytes], b"\r\n"].concat();
    let answer = client.send(&big);
    assert_eq!(answer, b"SERVER_ERROR object too large for cache\r\n");
    expect(&mut client, "get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    for (sent, answer) in [
        (
            format!("warm_fill {token} b 0 0 1 1\r\nxyz"),
            "CLIENT_ERROR bad data chunk\r\n",
        ),
        (
            format!("\r\nwarm_fill {token} b 0 0 1\r\n"),
            "ERROR\r\nCLIENT_ERROR bad command line format\r\n",
        ),
        (
            format!("warm_fill {token} b x 0 1 1\r\nx\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            format!("warm_fill {token} b 0 -1 1 1\r\nx\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            format!("warm_fill {token} b 0 0 1 1 c\r\nx\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            format!("warm_fill {token} !! 0 0 1 1 b\r\nx\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            format!("warm_fill {token} {} 0 0 1 1\r\nx\r\n", "k".repeat(251)),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "warm_fill 1 b 0 0 1 1\r\nx\r\n".to_owned(),
            "CLIENT_ERROR the server is not being warmed up with this token\r\n",
        ),
        (
            "warm_fill\r\n".to_owned(),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("warm_up\r\n".to_owned(), "ERROR\r\n"),
        ("warm_up begin\r\n".to_owned(), "ERROR\r\n"),
        (
            "warm_up begin 0\r\n".to_owned(),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "warm_up begin 60\r\n".to_owned(),
            "CLIENT_ERROR the warm-up has begun\r\n",
        ),
        (
            "warm_up end 1\r\n".to_owned(),
            "CLIENT_ERROR the server is not being warmed up with this token\r\n",
        ),
        ("get b\r\n".to_owned(), "END\r\n"),
    ] {
        expect(&mut client, &sent, answer);
    }
}

#[test]
fn a_warm_up_begins_only_before_the_first_write_and_only_once() {
    let status = |client: &mut Client, why: &str| {
        expect(
            client,
            "warm_up status\r\n",
            &format!("NOT_WARMING {why}\r\n"),
        );
    };
    let mut client = Client::new();
    status(&mut client, "untouched");
    // Reads do not matter.
    expect(
        &mut client,
        "get a\r\nmg a\r\nstats reset\r\n",
        "END\r\nEN\r\nRESET\r\n",
    );
    status(&mut client, "untouched");
    for write in [
        "delete a",
        "touch a 0",
        "incr a 1",
        "flush_all",
        "gat 0 a",
        "md a",
        "ma a",
    ] {
        let mut client = Client::new();
        client.send(format!("{write}\r\n").as_bytes());
        status(&mut client, "written");
        let refused = "CLIENT_ERROR a client has written to the server\r\n";
        expect(&mut client, "warm_up begin 60\r\n", refused);
    }
    // Items of a snapshot may be out of date.
    let mut client = Client::new();
    let _ = client.cache.store(Store::set("a", "x"));
    expect(
        &mut client,
        "warm_up begin 60\r\n",
        "CLIENT_ERROR the server is not empty\r\n",
    );
    let (mut client, token) = warming();
    expect(
        &mut client,
        "warm_up status\r\n",
        "WARM_UP {token} {second} 60 {ms}\r\n",
    );
    let end = format!("warm_up end {token}\r\n");
    expect(&mut client, &end, "OK\r\n");
    status(&mut client, "ended");
    let over = "CLIENT_ERROR the server is not being warmed up with this token\r\n";
    expect(&mut client, &end, over);
    expect(
        &mut client,
        &format!("warm_fill {token} a 0 0 1 1\r\nx\r\n"),
        over,
    );
    let again = "CLIENT_ERROR the warm-up is over\r\n";
    expect(&mut client, "warm_up begin 60\r\n", again);
}

#[test]
fn a_flush_and_the_time_limit_end_the_warm_up() {
    for (command, answer, why) in [
        ("flush_all\r\n", "OK\r\n", "flushed"),
        ("flush_all 1000\r\n", "OK\r\n", "flushed"),
        ("debugtime 60\r\n", "OK\r\n", "timed_out"),
    ] {
        let settings = Settings::default().debug_commands(true);
        let mut client = Client::with(CacheOptions::default(), settings);
        let answered = client.send(b"warm_up begin 60\r\n");
        let text = String::from_utf8(answered).expect("text");
        let token = text.split(' ').nth(1).expect("a token").to_owned();
        expect(&mut client, command, answer);
        let over = "CLIENT_ERROR the server is not being warmed up with this token\r\n";
        expect(
            &mut client,
            &format!("warm_fill {token} a 0 0 1 1\r\nx\r\n"),
            over,
        );
        expect(&mut client, "delete a\r\n", "NOT_FOUND\r\n");
        expect(
            &mut client,
            "warm_up status\r\n",
            &format!("NOT_WARMING {why}\r\n"),
        );
    }
}
