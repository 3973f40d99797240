//! What a request may cost: memory, time, and other connections' turns.

use forerun_cache::{CacheOptions, WhenFull};

use crate::settings::Settings;

use super::test_client::{TestClient, converse, request};

#[test]
fn fields_that_repeat_do_not_multiply_a_large_value() {
    let mut client = TestClient::new();
    let value = vec![b'v'; 600_000];
    client.ask_words(&[b"HSET", b"h", b"f", &value, b"g", b"1"]);
    let refused = "-ERR the answer repeats fields and is larger than this server allows";
    let many = [&[&b"HMGET"[..], b"h"][..], &[&b"f"[..]; 2_000]].concat();
    assert_eq!(client.ask_words(&many), refused);
    assert_eq!(client.ask("HMGET h f f"), refused);
    assert_eq!(client.ask("HMGET h f x g").len(), 4 + 600_011 + 5 + 5);
    assert_eq!(client.ask("HMGET h g g"), "*2\r\n$1\r\n1\r\n$1\r\n1");
    // Not even if nobody reads it.
    client.ask("CLIENT REPLY SKIP");
    assert_eq!(client.ask_words(&many), "");
    client.ask("MULTI");
    client.ask_words(&many);
    assert_eq!(client.ask("EXEC"), format!("*1\r\n{refused}"));
}

#[test]
fn names_of_commands_that_repeat_do_not_multiply_their_entries() {
    let mut client = TestClient::new();
    for subcommand in [&b"INFO"[..], b"DOCS"] {
        let mut ask = |names: usize| {
            let words = [
                &[&b"COMMAND"[..], subcommand][..],
                &vec![&b"client"[..]; names],
            ]
            .concat();
            client.ask_words(&words)
        };
        assert!(ask(2).len() > 100);
        assert_eq!(ask(1_000), "-ERR more names than there are commands");
    }
    let unknown = [&[&b"COMMAND"[..], b"INFO"][..], &[&b"foo"[..]; 1_000]].concat();
    assert_eq!(client.ask_words(&unknown).len(), 7 + 1_000 * 5 - 2);
}

#[test]
fn a_page_of_scan_ends_after_keys_of_many_bytes() {
    let options = CacheOptions::default().memory_limit_bytes(256 << 20);
    let mut client = TestClient::with(options, Settings::default());
    let keys = 300_u32;
    for number in 0..keys {
        let key = [number.to_string().as_bytes(), &[b'k'; 60_000]].concat();
        client.ask_words(&[b"SET", &key, b"1"]);
    }
    let (mut cursor, mut pages, mut found) = ("0".to_owned(), 0, 0);
    loop {
        let page = client.ask(&format!("SCAN {cursor} COUNT 1000000"));
        assert!(page.len() < 9 << 20);
        found += page.matches("$6000").count();
        pages += 1;
        cursor = page.split("\r\n").nth(2).expect("a cursor").to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert!(found >= keys as usize && pages > 1, "{found} {pages}");
}

#[test]
fn patterns_that_are_too_long_are_refused() {
    let mut client = TestClient::new();
    client.ask("HSET h f 1");
    let long = [b"*", &[b'a'; 2_000][..], b"*"].concat();
    let refused = "-ERR the pattern is longer than this server allows";
    for front in [vec![&b"KEYS"[..]], vec![&b"SCAN"[..], b"0", b"MATCH"]] {
        assert_eq!(
            client.ask_words(&[front, vec![&long[..]]].concat()),
            refused
        );
    }
    assert_eq!(
        client.ask_words(&[b"HSCAN", b"h", b"0", b"MATCH", &long]),
        refused
    );
    assert_eq!(client.ask_words(&[b"CONFIG", b"GET", &long]), "*0");
}

#[test]
fn searches_and_hidden_replies_are_refused_in_a_transaction() {
    for refused in [
        "KEYS *",
        "SCAN 0",
        "HSCAN h 0",
        "RANDOMKEY",
        "CLIENT REPLY OFF",
        "client reply skip",
        "CLIENT REPLY ON",
    ] {
        let mut client = TestClient::new();
        converse(
            &mut client,
            &[
                ("MULTI", "+OK"),
                ("SET a 1", "+QUEUED"),
                (refused, "-ERR Command not allowed inside a transaction"),
                (
                    "EXEC",
                    "-EXECABORT Transaction discarded because of previous errors.",
                ),
                ("EXISTS a", ":0"),
            ],
        );
    }
}

#[test]
fn a_transaction_whose_answers_are_too_large_is_executed_as_a_whole() {
    let mut client = TestClient::new();
    let mut other = client.another();
    let value = vec![b'v'; 1_000_000];
    client.ask_words(&[b"HSET", b"h", b"f", &value]);
    client.ask("MULTI");
    client.ask("SET a 1");
    for _ in 0..80 {
        client.ask("HGETALL h");
    }
    client.ask("SET b 1");
    client.ask("GET b");
    client.ask("HSET h g 1");
    let answer = client.send(&request(&[b"EXEC"]));
    assert!(client.is_closed && answer.len() < 70 << 20);
    assert_eq!(other.ask("MGET a b"), "*2\r\n$1\r\n1\r\n$1\r\n1");
    assert_eq!(other.ask("HLEN h"), ":2");
}

#[test]
fn an_mget_is_answered_from_one_moment() {
    let mut client = TestClient::new();
    client.ask_words(&[b"SET", b"a", &[b'a'; 100_000]]);
    client.ask("SET b 2");
    // The value of `a` fills the output, and between two turns others may write.
    let answer = client.first_answers(&request(&[b"MGET", b"a", b"b"]));
    assert_eq!(answer.len(), 4 + 100_011 + 7);
    assert!(answer.ends_with(b"\r\n$1\r\n2\r\n"));
}

#[test]
fn large_hashes_leave_others_their_turns() {
    let mut client = TestClient::new();
    client.ask_words(&[b"HSET", b"h", b"f", &[b'v'; 900_000]]);
    let bytes = request(&[b"HLEN", b"h"]).repeat(20);
    let first = client.first_answers(&bytes);
    assert_eq!(first, b":1\r\n".repeat(5));
    assert_eq!(client.send(b""), b"");
    assert_eq!(client.send(b"\r\n"), b":1\r\n".repeat(15));
}

#[test]
fn changes_of_and_searches_in_large_hashes_leave_others_their_turns() {
    let mut client = TestClient::new();
    client.ask_words(&[b"HSET", b"h", b"f", &[b'v'; 900_000]]);
    let change = request(&[b"HSET", b"h", b"g", b"1"]);
    let first = client.first_answers(&[change.repeat(20), request(&[b"PING"])].concat());
    assert_eq!(first, [&b":1\r\n"[..], &b":0\r\n".repeat(4)].concat());
    assert_eq!(client.send(b""), b"");
    assert_eq!(
        client.send(b"\r\n"),
        [b":0\r\n".repeat(15), b"+PONG\r\n".to_vec()].concat()
    );
    let search = request(&[b"HSCAN", b"h", b"0", b"MATCH", b"x"]);
    let answer = b"*2\r\n$1\r\n0\r\n*0\r\n";
    let first = client.first_answers(&search.repeat(7));
    assert_eq!(first, answer.repeat(5));
}

#[test]
fn pairs_are_all_set_or_none() {
    let mut client = TestClient::new();
    let (long, large) = ([b'k'; 70_000], vec![b'v'; (1 << 20) - 30]);
    for command in [&b"MSET"[..], b"MSETNX"] {
        for (key, value) in [(&long[..], &b"2"[..]), (&b"b"[..], &large[..])] {
            let answer = client.ask_words(&[command, b"a", b"1", key, value]);
            assert!(answer.starts_with("-ERR "), "{answer}");
            assert_eq!(client.ask("EXISTS a b"), ":0");
        }
    }
    let options = CacheOptions::default()
        .memory_limit_bytes(2 << 20)
        .when_full(WhenFull::Refuse);
    let mut client = TestClient::with(options, Settings::default());
    let value = [b'v'; 10_000];
    let mut words = vec![&b"MSETNX"[..]];
    let keys: Vec<String> = (0..500).map(|number| format!("key:{number}")).collect();
    keys.iter()
        .for_each(|key| words.extend([key.as_bytes(), &value]));
    assert_eq!(
        client.ask_words(&words),
        "-OOM command not allowed when used memory > 'maxmemory'."
    );
    assert_eq!(client.ask("DBSIZE"), ":0");
}

#[test]
fn many_small_arguments_leave_no_memory_behind() {
    let mut client = TestClient::new();
    let mut words = vec![&b"HSET"[..], b"h"];
    words.resize(1_200_000, b"");
    assert_eq!(
        client.ask_words(&words),
        "-ERR string exceeds maximum allowed size (proto-max-bulk-len)"
    );
    words[0] = b"DEL";
    assert_eq!(client.ask_words(&words), ":0");
    let scratch = &client.context.resp_scratch;
    let kept = [&scratch.arguments, &scratch.keys, &scratch.fields].map(|kept| kept.capacity());
    assert!(kept.iter().all(|&kept| kept <= 16 << 10), "{kept:?}");
    assert!(scratch.items.capacity() <= 16 << 10);
}

#[test]
fn a_hash_has_at_most_4_mib() {
    let options = CacheOptions::default().max_item_bytes(16 << 20);
    let mut client = TestClient::with(options, Settings::default());
    let mebibyte = vec![b'v'; (1 << 20) - 100];
    for field in ["a", "b", "c", "d"] {
        let answer = client.ask_words(&[b"HSET", b"h", field.as_bytes(), &mebibyte]);
        assert_eq!(answer, ":1");
    }
    let refused = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)";
    assert_eq!(client.ask_words(&[b"HSET", b"h", b"e", &mebibyte]), refused);
    assert_eq!(
        client.ask_words(&[b"HSETNX", b"h", b"e", &mebibyte]),
        refused
    );
    assert_eq!(client.ask("HLEN h"), ":4");
    assert_eq!(client.ask("HDEL h a"), ":1");
    assert_eq!(client.ask_words(&[b"HSET", b"h", b"e", &mebibyte]), ":1");
    // A string may be longer.
    let long = vec![b'v'; 5 << 20];
    assert_eq!(client.ask_words(&[b"SET", b"s", &long]), "+OK");
}

#[test]
fn repeated_fields_of_a_transaction_count_as_work_and_are_not_drawn_for_nobody() {
    let mut client = TestClient::new();
    let mut other = client.another();
    client.ask("HSET h a 1");
    let mut exec = |times: usize, command: &str| {
        client.ask("MULTI");
        for _ in 0..times {
            client.ask(command);
        }
        client.send(&request(&[b"EXEC"]))
    };
    let refused = exec(200, "HRANDFIELD h -61680");
    assert!(refused.starts_with(b"-EXECABORT"));
    // After these, the answers are so long that the client gets none.
    other.ask("DEL h");
    other.ask_words(&[b"HSET", b"h", &vec![b'f'; 1000], b"1"]);
    assert!(exec(500, "HRANDFIELD h -1000").len() < 70 << 20);
    let calls = other.ask("INFO commandstats");
    let calls = calls.split("cmdstat_hrandfield:calls=").nth(1);
    let calls = calls.and_then(|text| text.split(',').next()?.parse::<u32>().ok());
    assert!((60..80).contains(&calls.unwrap_or(0)), "{calls:?}");
}

#[test]
fn a_transaction_that_would_take_long_is_refused_as_a_whole() {
    let mut client = TestClient::new();
    client.ask_words(&[b"HSET", b"h", b"f", &vec![b'v'; 1_000_000]]);
    let refused = "-EXECABORT Transaction discarded because it goes over too many bytes of items.";
    let mut exec = |commands: &[&str], times: usize| {
        client.ask("MULTI");
        client.ask("SET a 1");
        for command in commands.iter().cycle().take(times) {
            assert_eq!(client.ask(command), "+QUEUED");
        }
        let answer = client.ask("EXEC");
        let is_refused = answer == refused;
        assert_eq!(client.ask("DEL a"), format!(":{}", u8::from(!is_refused)));
        is_refused
    };
    for commands in [
        &["HSET h g 1"][..],
        &["HGET h g"],
        &["APPEND h x"],
        &["HINCRBY h n 1", "HLEN h"],
        &["RENAME h i", "HLEN i", "RENAME i h"],
        &["COPY h i REPLACE", "HVALS i"],
    ] {
        assert!(!exec(commands, 30), "{commands:?}");
        assert!(exec(commands, 200), "{commands:?}");
    }
    // What is small may be used often, also while it grows.
    assert!(!exec(&["HSET small f 1", "INCR n", "GET h"], 3_000));
}

#[test]
fn many_keys_are_deleted_and_counted_in_parts() {
    let mut client = TestClient::new();
    let mut other = client.another();
    let keys: Vec<String> = (0..10_000).map(|number| format!("key:{number}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    let with_name = |name: &'static [u8]| [&[name][..], &keys].concat();
    let pairs: Vec<&[u8]> = keys.iter().flat_map(|key| [*key, b"1"]).collect();
    let mset = [&[&b"MSET"[..]][..], &pairs].concat();
    // One too few.
    let answer = client.ask_words(&mset[..mset.len() - 1]);
    assert_eq!(answer, "-ERR wrong number of arguments for 'mset' command");
    assert_eq!(client.ask("DBSIZE"), ":0");
    let stats = client.ask("INFO commandstats");
    assert!(stats.contains(",failed_calls=1"), "{stats}");
    assert_eq!(client.ask_words(&mset), "+OK");
    assert_eq!(client.ask_words(&with_name(b"EXISTS")), ":10000");
    assert_eq!(client.ask_words(&with_name(b"TOUCH")), ":10000");
    let request = [request(&with_name(b"DEL")), request(&[b"PING"])].concat();
    // The session gets its turn again, and others have theirs in between.
    let mut answer = Vec::new();
    for piece in request.chunks(16 << 10) {
        answer.extend(client.first_answers(piece));
    }
    assert_eq!(answer, b"");
    let left: usize = other.ask("DBSIZE")[1..].parse().expect("a number");
    assert!((1..10_000).contains(&left), "{left}");
    assert_eq!(client.send(b""), b"");
    assert_eq!(client.send(b"\r\n"), b":10000\r\n+PONG\r\n");
    assert_eq!(other.ask("DBSIZE"), ":0");
    // A transaction is not divided.
    client.ask("MULTI");
    assert_eq!(client.ask_words(&mset), "+QUEUED");
    assert_eq!(client.ask_words(&with_name(b"UNLINK")), "+QUEUED");
    assert_eq!(client.ask("EXEC"), "*2\r\n+OK\r\n:10000");
}

#[test]
fn a_command_that_runs_alone_has_at_most_a_million_arguments() {
    let mut client = TestClient::new();
    let mut words = vec![&b"MSETNX"[..]];
    words.resize(1_048_577, b"a");
    assert_eq!(
        client.ask_words(&words),
        "-ERR too many arguments for a command during which others wait"
    );
    assert_eq!(client.ask("EXISTS a"), ":0");
    words.truncate(1_001);
    assert_eq!(client.ask_words(&words), ":1");
}
