//! Sessions of the binary protocol: answers byte by byte, limits, hostile requests.

use crate::testing;

use forerun_cache::CacheOptions;
use forerun_server::Settings;

use testing::Client;
use testing::packets::*;

/// Sends requests at once and returns the answers.
fn ask(client: &mut Client, requests: &[Packet]) -> Vec<Packet> {
    Packet::read_all(&client.send(&pipeline(requests)))
}

/// The opcode, the status and the value of each answer.
fn outline(answers: &[Packet]) -> Vec<(u8, u16, &[u8])> {
    let parts = |answer: &'_ Packet| (answer.opcode, answer.status);
    let outlines = answers.iter().map(|answer| (parts(answer), &answer.value));
    outlines
        .map(|((opcode, status), value)| (opcode, status, &value[..]))
        .collect()
}

#[test]
fn a_lookup_is_answered_byte_by_byte_as_memcached_answers_it() {
    let mut client = Client::new();
    let stored = ask(
        &mut client,
        &[Packet::store(SET, b"k", 0xdead_beef, 0, b"value").opaque(7)],
    );
    let cas = stored[0].cas;
    assert_ne!(cas, 0);
    assert_eq!(stored, [Packet::new(SET).opaque(7).cas(cas)]);
    let requests = [
        Packet::new(GET).key(b"k").opaque(1),
        Packet::new(GETK).key(b"k").opaque(2),
        Packet::new(GET).key(b"none").opaque(3),
        Packet::new(GETK).key(b"none").opaque(4),
        Packet::new(GETQ).key(b"none").opaque(5),
        Packet::new(GETKQ).key(b"none").opaque(6),
        Packet::new(GETKQ).key(b"k").opaque(7),
        Packet::new(NOOP).opaque(8),
    ];
    let mut expected = Vec::new();
    let cas = cas.to_be_bytes();
    let mut push = |head: &[u8], opaque: u8, cas: &[u8], body: &[&[u8]]| {
        expected.extend_from_slice(head);
        expected.extend_from_slice(&[0, 0, 0, opaque]);
        expected.extend_from_slice(cas);
        body.iter()
            .for_each(|part| expected.extend_from_slice(part));
    };
    let (none, flags) = ([0; 8], &[0xde, 0xad, 0xbe, 0xef][..]);
    push(
        b"\x81\0\0\0\x04\0\0\0\0\0\0\x09",
        1,
        &cas,
        &[flags, b"value"],
    );
    push(
        b"\x81\x0c\0\x01\x04\0\0\0\0\0\0\x0a",
        2,
        &cas,
        &[flags, b"kvalue"],
    );
    push(b"\x81\0\0\0\0\0\0\x01\0\0\0\x09", 3, &none, &[b"Not found"]);
    push(b"\x81\x0c\0\x04\0\0\0\x01\0\0\0\x04", 4, &none, &[b"none"]);
    push(
        b"\x81\x0d\0\x01\x04\0\0\0\0\0\0\x0a",
        7,
        &cas,
        &[flags, b"kvalue"],
    );
    push(b"\x81\x0a\0\0\0\0\0\0\0\0\0\0", 8, &none, &[]);
    let answer = client.send(&pipeline(&requests));
    assert_eq!(
        answer.escape_ascii().to_string(),
        expected.escape_ascii().to_string()
    );
}

#[test]
fn each_command_has_memcacheds_status_and_text() {
    let mut client = Client::new();
    let set = |key: &[u8], value: &[u8]| Packet::store(SET, key, 0, 0, value);
    let requests = [
        Packet::store(ADD, b"a", 0, 0, b"5"),
        Packet::store(ADD, b"a", 0, 0, b"6"),
        Packet::store(REPLACE, b"none", 0, 0, b"6"),
        Packet::new(APPEND).key(b"none").value(b"x"),
        Packet::new(PREPEND).key(b"none").value(b"x"),
        Packet::new(APPEND).key(b"a").value(b"0"),
        Packet::new(PREPEND).key(b"a").value(b"1"),
        Packet::count(INCREMENT, b"a", 5, 0, 0),
        Packet::count(DECREMENT, b"a", 1000, 0, 0),
        Packet::count(INCREMENT, b"new", 5, 77, 0),
        Packet::count(DECREMENT, b"none", 5, 77, u32::MAX),
        set(b"text", b"text"),
        Packet::count(INCREMENT, b"text", 5, 0, 0),
        set(b"text", b"text").cas(1 << 40),
        set(b"none", b"text").cas(1 << 40),
        Packet::store(ADD, b"none", 0, 0, b"x").cas(1 << 40),
        Packet::count(INCREMENT, b"a", 5, 0, 0).cas(1 << 40),
        Packet::new(DELETE).key(b"text").cas(1 << 40),
        Packet::new(DELETE).key(b"text"),
        Packet::new(DELETE).key(b"text"),
        Packet::touch(TOUCH, b"none", 0),
        Packet::touch(GAT, b"none", 0),
        Packet::new(FLUSH),
        Packet::new(GET).key(b"a"),
        Packet::new(VERBOSITY).extras(&[0, 0, 0, 1]),
        Packet::new(0x99).extras(b"any").key(b"key").value(b"value"),
        Packet::new(SASL_MECHANISMS),
        Packet::new(SASL_AUTH)
            .key(b"PLAIN")
            .value(b"\0alice\0secret"),
    ];
    let number = u64::to_be_bytes;
    let bad = b"Non-numeric server-side value for incr or decr";
    let expected: [(u8, u16, &[u8]); 28] = [
        (ADD, 0, b""),
        (ADD, 2, b"Data exists for key."),
        (REPLACE, 1, b"Not found"),
        (APPEND, 5, b"Not stored."),
        (PREPEND, 5, b"Not stored."),
        (APPEND, 0, b""),
        (PREPEND, 0, b""),
        (INCREMENT, 0, &number(155)),
        (DECREMENT, 0, &number(0)),
        (INCREMENT, 0, &number(77)),
        (DECREMENT, 1, b"Not found"),
        (SET, 0, b""),
        (INCREMENT, 6, bad),
        (SET, 2, b"Data exists for key."),
        (SET, 1, b"Not found"),
        (ADD, 1, b"Not found"),
        (INCREMENT, 2, b"Data exists for key."),
        (DELETE, 2, b"Data exists for key."),
        (DELETE, 0, b""),
        (DELETE, 1, b"Not found"),
        (TOUCH, 1, b"Not found"),
        (GAT, 1, b"Not found"),
        (FLUSH, 0, b""),
        (GET, 1, b"Not found"),
        (VERBOSITY, 0, b""),
        (0x99, 0x81, b"Unknown command"),
        (SASL_MECHANISMS, 0x81, b"Unknown command"),
        (SASL_AUTH, 0x81, b"Unknown command"),
    ];
    let bytes = pipeline(&requests);
    let answers = Packet::read_all(&client.send(&bytes));
    assert_eq!(outline(&answers), expected);
    for step in [1, 7, 24, 25, 100] {
        let answers = Packet::read_all(&Client::new().send_in_steps(&bytes, step));
        assert_eq!(outline(&answers), expected, "in steps of {step}");
    }
}

#[test]
fn a_quiet_request_is_answered_only_if_it_fails() {
    let mut client = Client::new();
    let requests = [
        Packet::store(SETQ, b"a", 0, 0, b"5"),
        Packet::store(0x12, b"b", 0, 0, b"5"),
        Packet::store(0x12, b"b", 0, 0, b"5"),
        Packet::store(0x13, b"a", 0, 0, b"6"),
        Packet::store(0x13, b"none", 0, 0, b"6"),
        Packet::new(0x19).key(b"a").value(b"7"),
        Packet::new(0x1a).key(b"none").value(b"7"),
        Packet::count(0x15, b"a", 1, 0, 0),
        Packet::count(0x16, b"none", 1, 0, u32::MAX),
        Packet::new(0x14).key(b"b"),
        Packet::new(0x14).key(b"b"),
        Packet::touch(GATQ, b"none", 0),
        Packet::touch(GATQ, b"a", 0),
        Packet::touch(GATKQ, b"none", 0),
        Packet::touch(GATKQ, b"a", 0),
        Packet::new(FLUSHQ),
        Packet::new(GETQ).key(b"a"),
        Packet::new(QUITQ),
        Packet::new(NOOP),
    ];
    let answers = ask(&mut client, &requests);
    let expected: [(u8, u16, &[u8]); 8] = [
        (0x12, 2, b"Data exists for key."),
        (0x13, 1, b"Not found"),
        (0x1a, 5, b"Not stored."),
        (0x16, 1, b"Not found"),
        (0x14, 1, b"Not found"),
        (GATQ, 0, b"68"),
        (GATKQ, 0, b"68"),
        (0, 0, b""),
    ];
    assert_eq!(outline(&answers), expected[..7]);
    assert_eq!(
        (&answers[5].key[..], &answers[6].key[..]),
        (&b""[..], &b"a"[..])
    );
    assert!(client.is_closed, "after quitq, without an answer");
    let mut client = Client::new();
    assert_eq!(
        ask(&mut client, &[Packet::new(QUIT).opaque(9)]),
        [Packet::new(QUIT).opaque(9)]
    );
    assert!(client.is_closed);
}

#[test]
fn an_items_version_allows_one_change() {
    let mut client = Client::new();
    let cas = ask(&mut client, &[Packet::store(SET, b"a", 0, 0, b"1")])[0].cas;
    let count = Packet::count(INCREMENT, b"a", 1, 0, 0).cas(cas);
    let answers = ask(&mut client, &[count.clone(), count]);
    assert_eq!((answers[0].status, answers[1].status), (0, 2));
    let cas = answers[0].cas;
    let append = Packet::new(APPEND).key(b"a").value(b"0").cas(cas);
    let answers = ask(&mut client, &[append.clone(), append]);
    assert_eq!((answers[0].status, answers[1].status), (0, 2));
    // With a version, `add` and `replace` are a compare-and-swap.
    let cas = answers[0].cas;
    let add = Packet::store(ADD, b"a", 0, 0, b"x").cas(cas);
    let cas = ask(&mut client, &[add])[0].cas;
    let answers = ask(
        &mut client,
        &[Packet::new(GET).key(b"a"), Packet::touch(TOUCH, b"a", 0)],
    );
    assert_eq!((answers[0].cas, answers[1].cas), (cas, cas));
    assert_eq!(
        (&answers[0].value[..], &answers[1].extras[..]),
        (&b"x"[..], &[0; 4][..])
    );
    let delete = Packet::new(DELETE).key(b"a").cas(cas);
    assert_eq!(ask(&mut client, &[delete])[0].status, 0);
}

#[test]
fn times_are_32_bits_without_a_sign() {
    let mut client = Client::new();
    let requests = [
        Packet::store(SET, b"short", 0, 10, b"x"),
        Packet::store(SET, b"never", 0, 0, b"x"),
        Packet::store(SET, b"past", 0, 30 * 24 * 3600 + 1, b"x"),
        Packet::store(SET, b"far", 0, u32::MAX, b"x"),
        Packet::count(INCREMENT, b"counter", 0, 1, 10),
        Packet::touch(TOUCH, b"never", 10),
        Packet::touch(GAT, b"short", 0),
    ];
    ask(&mut client, &requests);
    let keys = [&b"short"[..], b"never", b"past", b"far", b"counter"];
    let gets: Vec<Packet> = keys.map(|key| Packet::new(GET).key(key)).to_vec();
    let statuses = |client: &mut Client| -> Vec<u16> {
        ask(client, &gets).iter().map(|one| one.status).collect()
    };
    assert_eq!(statuses(&mut client), [0, 0, 1, 0, 0]);
    client.cache.advance(client.cache.now() + 11);
    assert_eq!(statuses(&mut client), [0, 1, 1, 0, 1]);
    ask(&mut client, &[Packet::new(FLUSH).extras(&[0, 0, 0, 5])]);
    assert_eq!(statuses(&mut client), [0, 1, 1, 0, 1], "not yet");
    client.cache.advance(client.cache.now() + 5);
    assert_eq!(statuses(&mut client), [1; 5]);
}

#[test]
fn keys_may_have_any_bytes_and_values_any_length() {
    let mut client = Client::with(CacheOptions::default(), Settings::default());
    let key: Vec<u8> = (0..250).map(|byte| (byte * 7 + 3) as u8).collect();
    for len in [0, 1, 1000, 16_300, 16_384, 70_000, 1_000_000] {
        let value: Vec<u8> = (0..len).map(|at| (at * 31 / 7) as u8).collect();
        let set = Packet::store(SET, &key, 0, 0, &value).bytes();
        let get = Packet::new(GETK).key(&key).bytes();
        let bytes = [set, get.clone(), get].concat();
        for step in [997, 16 << 10, usize::MAX] {
            let answers = Packet::read_all(&client.send_in_steps(&bytes, step));
            assert_eq!(answers.len(), 3);
            for answer in &answers[1..] {
                assert!(
                    answer.key == key && answer.value == value,
                    "{len} in {step}"
                );
            }
        }
    }
}

#[test]
fn a_value_that_is_too_large_is_skipped_and_deletes_only_what_set_would_replace() {
    let options = CacheOptions::default().max_item_bytes(100_000);
    for step in [1000, usize::MAX] {
        let mut client = Client::with(options.clone(), Settings::default());
        let large = vec![b'x'; 100_000];
        let small = |key: &[u8]| Packet::store(SET, key, 0, 0, b"old");
        let requests = [
            small(b"a"),
            small(b"b"),
            small(b"c"),
            Packet::store(SETQ, b"a", 0, 0, &large),
            Packet::store(ADD, b"b", 0, 0, &large),
            Packet::new(APPEND).key(b"c").value(&large),
            Packet::new(GETQ).key(b"a"),
            Packet::new(GETQ).key(b"b"),
            Packet::new(GETQ).key(b"c"),
            Packet::new(NOOP),
        ];
        let answers = Packet::read_all(&client.send_in_steps(&pipeline(&requests), step));
        let expected: [(u8, u16, &[u8]); 6] = [
            (SETQ, 3, b"Too large."),
            (ADD, 3, b"Too large."),
            (APPEND, 3, b"Too large."),
            (GETQ, 0, b"old"),
            (GETQ, 0, b"old"),
            (NOOP, 0, b""),
        ];
        assert_eq!(outline(&answers)[3..], expected, "in steps of {step}");
    }
}

#[test]
fn a_request_whose_lengths_contradict_each_other_ends_the_session() {
    let header = |opcode: u8, key_len: u16, extras_len: u8, body_len: u32| {
        let mut bytes = Packet::new(opcode).bytes();
        bytes[2..4].copy_from_slice(&key_len.to_be_bytes());
        bytes[4] = extras_len;
        bytes[8..12].copy_from_slice(&body_len.to_be_bytes());
        bytes
    };
    let unknown = Some((0x81, &b"Unknown command"[..]));
    let invalid = Some((0x04, &b"Invalid arguments"[..]));
    let mut other_magic = Packet::new(NOOP).bytes();
    other_magic[0] = 0x81;
    for (bytes, expected) in [
        (header(GET, 2, 0, 1), unknown),
        (header(SET, 1, 8, 8), unknown),
        (header(SET, u16::MAX, 255, 0), unknown),
        (header(SET, 1, 8, u32::MAX), invalid),
        (header(0x99, 0, 0, u32::MAX), invalid),
        (header(GET, 251, 0, 251), invalid),
        (header(GET, 0, 0, 0), invalid),
        (header(GET, 1, 4, 5), invalid),
        (header(SET, 1, 4, 5), invalid),
        (header(SET, 0, 8, 9), invalid),
        (header(INCREMENT, 1, 8, 9), invalid),
        (header(NOOP, 0, 0, 1), invalid),
        (header(STAT, 0, 4, 4), invalid),
        (header(FLUSH, 0, 8, 8), invalid),
        (header(TOUCH, 1, 4, 6), invalid),
        (other_magic, None),
        (b"get key and more text\r\n\r\n".to_vec(), None),
    ] {
        for step in [1, usize::MAX] {
            let mut client = Client::new();
            let sent = [Packet::new(NOOP).bytes(), bytes.clone(), vec![0; 300]].concat();
            let answers = Packet::read_all(&client.send_in_steps(&sent, step));
            assert!(client.is_closed, "{}", bytes.escape_ascii());
            assert_eq!(answers[0].opcode, NOOP, "what came before is answered");
            let refusal = answers.get(1).map(|one| (one.status, &one.value[..]));
            assert_eq!(refusal, expected, "{}", bytes.escape_ascii());
            assert!(answers.len() <= 2);
        }
    }
}

#[test]
fn statistics_are_one_answer_each() {
    let mut client = Client::with(CacheOptions::default(), Settings::default());
    ask(
        &mut client,
        &[
            Packet::store(SET, b"a", 0, 0, b"x"),
            Packet::new(GET).key(b"a"),
        ],
    );
    let stat = |client: &mut Client, key: &[u8]| -> Vec<(String, String)> {
        let answers = ask(client, &[Packet::new(STAT).key(key).opaque(5)]);
        let (last, all) = answers.split_last().expect("an end");
        assert_eq!(*last, Packet::new(STAT).opaque(5));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("a text");
        let pairs = all
            .iter()
            .inspect(|one| assert_eq!((one.status, one.opaque), (0, 5)));
        pairs
            .map(|one| (text(&one.key), text(&one.value)))
            .collect()
    };
    let has = |pairs: &[(String, String)], name: &str, value: &str| {
        pairs.contains(&(name.to_owned(), value.to_owned()))
    };
    let general = stat(&mut client, b"");
    assert!(
        has(&general, "get_hits", "1") && has(&general, "cmd_set", "1"),
        "{general:?}"
    );
    assert!(has(
        &stat(&mut client, b"settings"),
        "binding_protocol",
        "auto-negotiate"
    ));
    assert!(has(&stat(&mut client, b"items"), "items:1:number", "1"));
    assert!(has(&stat(&mut client, b"slabs"), "active_slabs", "1"));
    assert_eq!(stat(&mut client, b"detail on"), []);
    ask(
        &mut client,
        &[
            Packet::store(SETQ, b"p:1", 0, 0, b"x"),
            Packet::new(GETQ).key(b"p:2"),
        ],
    );
    let dump = "PREFIX p get 1 hit 0 set 1 del 0\r\nEND\r\n".to_owned();
    assert_eq!(
        stat(&mut client, b"detail dump"),
        [("detailed".to_owned(), dump)]
    );
    assert_eq!(stat(&mut client, b"reset"), []);
    assert!(has(&stat(&mut client, b""), "cmd_set", "0"));
    for unknown in [&b"nothing"[..], b"detail", b"conns"] {
        let answers = ask(&mut client, &[Packet::new(STAT).key(unknown)]);
        assert_eq!(outline(&answers), [(STAT, 1, &b"Not found"[..])]);
    }
    // The text protocol's statistics are the same.
    let mut text = Client::new();
    let lines = String::from_utf8(text.send(b"stats\r\n")).expect("a text");
    let names = lines.lines().filter_map(|line| line.split(' ').nth(1));
    assert!(names.eq(general.iter().map(|(name, _)| name.as_str())));
}

#[test]
fn settings_forbid_what_they_forbid_to_text_clients() {
    let settings = Settings::default().flush_enabled(false).dump_enabled(false);
    let mut client = Client::with(CacheOptions::default(), settings);
    let requests = [
        Packet::store(SET, b"a", 0, 0, b"x"),
        Packet::new(FLUSH),
        Packet::new(STAT).key(b"detail on"),
        Packet::new(GET).key(b"a"),
    ];
    let answers = ask(&mut client, &requests);
    let expected: [(u8, u16, &[u8]); 3] = [
        (FLUSH, 0x20, b"Auth failure."),
        (STAT, 1, b"Not found"),
        (GET, 0, b"x"),
    ];
    assert_eq!(outline(&answers)[1..], expected);
}

#[test]
fn lookups_up_to_the_next_write_are_one_batch() {
    let mut client = Client::new();
    let get = |key: &[u8]| Packet::new(GETQ).key(key);
    let batches = |client: &mut Client| -> u64 {
        let stats = ask(client, &[Packet::new(STAT)]);
        let batches = stats.iter().find(|one| one.key == b"batches");
        let digits = String::from_utf8_lossy(&batches.expect("it is there").value).into_owned();
        digits.parse().expect("a number")
    };
    let before = batches(&mut client);
    let mut requests: Vec<Packet> = (0..300_u32).map(|key| get(&key.to_be_bytes())).collect();
    requests.insert(100, Packet::new(NOOP));
    assert_eq!(ask(&mut client, &requests).len(), 1);
    assert_eq!(batches(&mut client), before + 1);
    requests.insert(200, Packet::store(SETQ, b"a", 0, 0, b"x"));
    assert_eq!(ask(&mut client, &requests).len(), 1);
    assert_eq!(batches(&mut client), before + 3);
}

#[test]
fn a_full_output_stops_a_batch_where_it_goes_on_later() {
    let mut client = Client::new();
    let value = vec![b'v'; 30_000];
    ask(&mut client, &[Packet::store(SET, b"big", 0, 0, &value)]);
    let requests: Vec<Packet> = (0..100_u32)
        .map(|at| Packet::new(GETK).key(b"big").opaque(at))
        .collect();
    client.input().extend(&pipeline(&requests));
    let (mut answer, mut stops) = (Vec::new(), 0);
    while client.receive() == forerun_server::SessionState::OutputFull {
        assert!(
            client.output.len() < (64 << 10) + 31_000,
            "{}",
            client.output.len()
        );
        stops += 1;
        client.read(&mut answer, 997);
    }
    client.read(&mut answer, usize::MAX);
    assert!(stops > 30, "{stops}");
    let opaques = Packet::read_all(&answer).into_iter().map(|one| one.opaque);
    assert!(opaques.eq(0..100));
}

#[test]
fn a_server_without_the_protocol_refuses_it_at_the_end_of_the_header() {
    let mut header = [0; 24];
    header[0] = 0x80;
    header[12..16].copy_from_slice(b"abcd");
    for cut in 0..24 {
        let settings = Settings::default().binary_protocol(false);
        let mut client = Client::with(CacheOptions::default(), settings);
        let (first, rest) = header.split_at(cut);
        assert_eq!(client.send(first), b"", "{cut} bytes are no request");
        assert!(!client.is_closed, "{cut}");
        let answer = &Packet::read_all(&client.send(rest))[..];
        assert!(client.is_closed, "{cut}");
        let [answer] = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(
            (answer.status, answer.opaque),
            (0x81, u32::from_be_bytes(*b"abcd"))
        );
    }
}

#[test]
fn the_first_byte_decides_the_protocol() {
    // Later in a connection, the byte 0x80 has no special meaning.
    let mut client = Client::new();
    assert_eq!(
        client.send(b"mn\r\n\x80\r\nmn\r\n"),
        b"MN\r\nERROR\r\nMN\r\n"
    );
    assert!(!client.is_closed);
    let mut client = Client::new();
    assert_eq!(client.send(b"\x80"), b"");
    assert_eq!(client.send(&Packet::new(NOOP).bytes()[1..]).len(), 24);
}
