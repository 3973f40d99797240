//! Sessions as a whole: handshakes, transactions, scripts, limits, and requests that are wrong.

use forerun_cache::{CacheOptions, WhenFull};

use crate::settings::Settings;

use super::test_client::{TestClient, converse, request};

#[test]
fn the_handshakes_of_clients() {
    let mut client = TestClient::new();
    let greeting = client.ask("HELLO");
    assert!(
        greeting.starts_with("*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n"),
        "{greeting}"
    );
    assert!(greeting.contains("proto\r\n:2"));
    let greeting = client.ask("HELLO 3 AUTH default any SETNAME worker");
    assert!(greeting.starts_with("%7\r\n"), "{greeting}");
    assert!(greeting.contains("proto\r\n:3"));
    converse(
        &mut client,
        &[
            ("CLIENT GETNAME", "$6|worker"),
            ("GET missing", "_"),
            ("HELLO 4", "-NOPROTO unsupported protocol version"),
            (
                "HELLO x",
                "-ERR Protocol version is not an integer or out of range",
            ),
            ("HELLO 2 FOO", "-ERR Syntax error in HELLO option 'FOO'"),
            ("CLIENT SETINFO LIB-NAME redis-py", "+OK"),
            ("CLIENT SETINFO lib-ver 8.1", "+OK"),
            ("CLIENT SETINFO FOO x", "-ERR Unrecognized option 'FOO'"),
            ("CLIENT ID", ":0"),
            (
                "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip",
                "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.",
            ),
            (
                "CLIENT SETNAME",
                "-ERR wrong number of arguments for 'client|setname' command",
            ),
            ("CLIENT NO-EVICT ON", "+OK"),
            ("SELECT 0", "+OK"),
            ("SELECT 16", "-ERR DB index is out of range"),
            ("SELECT x", "-ERR value is not an integer or out of range"),
            ("READONLY", "+OK"),
            (
                "CLUSTER SLOTS",
                "-ERR This instance has cluster support disabled",
            ),
            ("AUTH default x", "+OK"),
            (
                "AUTH x",
                "-ERR AUTH <password> called without any password configured for the default \
                 user. Are you sure your configuration is correct?",
            ),
            (
                "AUTH bob x",
                "-WRONGPASS invalid username-password pair or user is disabled.",
            ),
            ("ACL WHOAMI", "$7|default"),
            ("PING", "+PONG"),
            ("PING hello", "$5|hello"),
            (
                "PING a b",
                "-ERR wrong number of arguments for 'ping' command",
            ),
            ("ECHO hello", "$5|hello"),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            (
                "LPUSH a b",
                "-ERR unknown command 'LPUSH', with args beginning with: 'a' 'b' ",
            ),
            ("FUNCTION FLUSH", "+OK"),
            ("ROLE", "*3|$6|master|:0|*0"),
            ("SLOWLOG GET 1", "*0"),
            ("SLOWLOG LEN", ":0"),
            ("LATENCY LATEST", "*0"),
            ("CONFIG GET databases", "%1|$9|databases|$1|1"),
            ("CONFIG GET unknown", "%0"),
            (
                "CONFIG SET notify-keyspace-events KEA",
                "-ERR Unknown option or number of arguments for CONFIG SET - \
                 'notify-keyspace-events'",
            ),
            ("CONFIG SET maxmemory 32mb", "+OK"),
            ("CONFIG GET maxmemory", "%1|$9|maxmemory|$8|33554432"),
            ("CONFIG RESETSTAT", "+OK"),
            ("COMMAND GETKEYS MSET a 1 b 2", "*2|$1|a|$1|b"),
            ("COMMAND INFO foo", "*1|_"),
            (
                "SLOWLOG GET -5",
                "-ERR count should be greater than or equal to -1",
            ),
            ("RESET", "+RESET"),
            ("CLIENT GETNAME", "$-1"),
            ("GET missing", "$-1"),
        ],
    );
    let info = client.ask("INFO server");
    assert!(info.contains("\r\nredis_version:7.4.0\r\n"), "{info}");
    let lines = client.ask("CLIENT INFO");
    assert!(
        lines.contains("id=0 ") && lines.contains(" resp=2"),
        "{lines}"
    );
    assert!(client.ask("COMMAND").starts_with("*95\r\n"));
    assert!(client.ask("COMMAND DOCS get").contains("summary"));
    assert_eq!(client.ask("QUIT"), "+OK");
    assert!(client.is_closed);
}

#[test]
fn replies_can_be_switched_off() {
    let mut client = TestClient::new();
    converse(
        &mut client,
        &[
            ("CLIENT REPLY SKIP", ""),
            ("SET a 1", ""),
            ("GET a", "$1|1"),
            ("CLIENT REPLY SKIP", ""),
            ("GET a", ""),
            ("GET a", "$1|1"),
            ("CLIENT REPLY OFF", ""),
            ("SET a 2", ""),
            ("GET a", ""),
            ("KEYS *", ""),
            ("FOO", ""),
            ("CLIENT REPLY ON", "+OK"),
            ("GET a", "$1|2"),
            ("CLIENT REPLY SKIP", ""),
            ("KEYS *", ""),
            ("GET a", "$1|2"),
        ],
    );
}

#[test]
fn transactions() {
    let mut client = TestClient::new();
    let mut other = client.another();
    converse(
        &mut client,
        &[
            ("EXEC", "-ERR EXEC without MULTI"),
            ("DISCARD", "-ERR DISCARD without MULTI"),
            ("MULTI", "+OK"),
            ("SET a 1", "+QUEUED"),
            ("INCR a", "+QUEUED"),
            ("GET a", "+QUEUED"),
            ("MGET a b", "+QUEUED"),
            ("HSET a f 1", "+QUEUED"),
            ("PING", "+QUEUED"),
            ("MULTI", "-ERR MULTI calls can not be nested"),
            (
                "EXEC",
                "*6|+OK|:2|$1|2|*2|$1|2|$-1|\
                 -WRONGTYPE Operation against a key holding the wrong kind of value|+PONG",
            ),
            ("MULTI", "+OK"),
            ("EXEC", "*0"),
            ("MULTI", "+OK"),
            (
                "EXEC x",
                "-EXECABORT Transaction discarded because of: \
                 wrong number of arguments for 'exec' command",
            ),
            ("EXEC", "-ERR EXEC without MULTI"),
            ("MULTI", "+OK"),
            (
                "CONFIG FOO",
                "-ERR unknown subcommand 'FOO'. Try CONFIG HELP.",
            ),
            (
                "EXEC",
                "-EXECABORT Transaction discarded because of previous errors.",
            ),
            ("MULTI", "+OK"),
            ("SET a 9", "+QUEUED"),
            (
                "FOO",
                "-ERR unknown command 'FOO', with args beginning with: ",
            ),
            (
                "EXEC",
                "-EXECABORT Transaction discarded because of previous errors.",
            ),
            ("MULTI", "+OK"),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            (
                "EXEC",
                "-EXECABORT Transaction discarded because of previous errors.",
            ),
            ("MULTI", "+OK"),
            ("SET a 9", "+QUEUED"),
            ("DISCARD", "+OK"),
            ("GET a", "$1|2"),
            ("WATCH a b", "+OK"),
            ("MULTI", "+OK"),
            ("WATCH a", "-ERR WATCH inside MULTI is not allowed"),
            ("SET a 3", "+QUEUED"),
            ("EXEC", "*1|+OK"),
            ("WATCH b", "+OK"),
        ],
    );
    assert_eq!(other.ask("SET b 1"), "+OK");
    converse(
        &mut client,
        &[("MULTI", "+OK"), ("GET a", "+QUEUED"), ("EXEC", "*-1")],
    );
    converse(&mut client, &[("WATCH b", "+OK"), ("UNWATCH", "+OK")]);
    assert_eq!(other.ask("SET b 2"), "+OK");
    converse(
        &mut client,
        &[("MULTI", "+OK"), ("GET b", "+QUEUED"), ("EXEC", "*1|$1|2")],
    );
    // What the connection itself changes aborts, too.
    converse(
        &mut client,
        &[
            ("HELLO 3", ""),
            ("WATCH b", "+OK"),
            ("DEL b", ":1"),
            ("MULTI", "+OK"),
            ("EXEC", "_"),
        ]
        .map(|(line, expected)| match line {
            "HELLO 3" => ("PING", "+PONG"),
            _ => (line, if expected == "_" { "*-1" } else { expected }),
        }),
    );
}

#[test]
fn locks_as_redis_py_takes_them() {
    let mut client = TestClient::new();
    let mut other = client.another();
    let release = b"\n        local token = redis.call('get', KEYS[1])\n        \
        if not token or token ~= ARGV[1] then\n            return 0\n        end\n        \
        redis.call('del', KEYS[1])\n        return 1\n    ";
    assert_eq!(client.ask("SET lock one NX PX 10000"), "+OK");
    assert_eq!(other.ask("SET lock two NX PX 10000"), "$-1");
    let sha1 = "0000000000000000000000000000000000000000";
    assert_eq!(
        other.ask(&format!("EVALSHA {sha1} 1 lock two")),
        "-NOSCRIPT No matching script. Please use EVAL."
    );
    let loaded = other.ask_words(&[b"SCRIPT", b"LOAD", release]);
    let sha1 = loaded.split("\r\n").nth(1).expect("a SHA-1").to_owned();
    assert_eq!(
        other.ask(&format!("SCRIPT EXISTS {sha1} {}", "0".repeat(40))),
        "*2\r\n:1\r\n:0"
    );
    assert_eq!(other.ask(&format!("EVALSHA {sha1} 1 lock two")), ":0");
    assert_eq!(client.ask(&format!("EVALSHA {sha1} 1 lock one")), ":1");
    assert_eq!(other.ask("SET lock two NX PX 10000"), "+OK");
    assert_eq!(client.ask(&format!("EVALSHA {sha1} 1 lock one")), ":0");
    let extend = b"if redis.call('get', KEYS[1]) == ARGV[1] then \
        return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
    let mut extended =
        |token: &[u8]| other.ask_words(&[b"EVAL", extend, b"1", b"lock", token, b"60000"]);
    assert_eq!(extended(b"one"), ":0");
    assert_eq!(extended(b"two"), ":1");
    assert_eq!(client.ask("PTTL lock"), ":60000");
    assert_eq!(
        client.ask_words(&[b"EVAL", b"return 1", b"0"]),
        format!("-{}", super::super::resp::error_texts::SCRIPT_UNKNOWN)
    );
    assert_eq!(client.ask("SCRIPT FLUSH"), "+OK");
    assert!(
        client
            .ask(&format!("EVALSHA {sha1} 1 lock one"))
            .starts_with("-NOSCRIPT")
    );
}

#[test]
fn the_scripts_of_frameworks() {
    let mut client = TestClient::new();
    let add =
        b"return redis.call('exists',KEYS[1])<1 and redis.call('setex',KEYS[1],ARGV[2],ARGV[1])";
    let mut eval =
        |script: &[u8], rest: &[&[u8]]| client.ask_words(&[&[b"EVAL", script], rest].concat());
    assert_eq!(eval(add, &[b"1", b"a", b"5", b"10"]), "+OK");
    assert_eq!(eval(add, &[b"1", b"a", b"6", b"10"]), "$-1");
    let increment = b"local exists = redis.call('EXISTS', KEYS[1]) if (exists == 1) then \
        return redis.call('INCRBY', KEYS[1], ARGV[1]) else return false end";
    assert_eq!(eval(increment, &[b"1", b"a", b"3"]), ":8");
    assert_eq!(eval(increment, &[b"1", b"missing", b"3"]), "$-1");
    assert_eq!(
        eval(increment, &[b"2", b"a", b"3"]),
        "-ERR the script needs more keys or arguments"
    );
    assert_eq!(
        eval(increment, &[b"-1", b"a"]),
        "-ERR Number of keys can't be negative"
    );
    assert_eq!(
        eval(increment, &[b"9", b"a"]),
        "-ERR Number of keys can't be greater than number of args"
    );
    let acquire =
        b"for i, key in ipairs(KEYS) do if redis.call(\"exists\", key) == 1 then return 0 end \
        end \
        for i, key in ipairs(KEYS) do redis.call(\"set\", key, ARGV[1], \"PX\", ARGV[2]) end \
        return #KEYS";
    let release = b"local count = 0 for i, key in ipairs(KEYS) do \
        if redis.call(\"get\", key) == ARGV[1] then \
        redis.pcall(\"del\", key) count = count + 1 end end return count";
    assert_eq!(eval(acquire, &[b"2", b"r1", b"a", b"t", b"500"]), ":0");
    assert_eq!(eval(acquire, &[b"2", b"r1", b"r2", b"t", b"500"]), ":2");
    assert_eq!(eval(acquire, &[b"1", b"r2", b"u", b"500"]), ":0");
    assert_eq!(eval(release, &[b"3", b"r1", b"r2", b"a", b"t"]), ":2");
    let hash =
        b"redis.call('HSET', KEYS[1], 'absexp', ARGV[1], 'sldexp', ARGV[2], 'data', ARGV[4]) \
        if ARGV[3] ~= '-1' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end return 1";
    assert_eq!(
        eval(hash, &[b"1", b"h", b"-1", b"600", b"60", b"data"]),
        ":1"
    );
    assert_eq!(
        client.ask("HMGET h absexp sldexp data"),
        "*3\r\n$2\r\n-1\r\n$3\r\n600\r\n$4\r\ndata"
    );
    assert_eq!(client.ask("TTL h"), ":60");
    let wrong = client.ask_words(&[b"EVAL", hash, b"1", b"h", b"-1", b"600", b"x", b"new"]);
    assert_eq!(wrong, "-ERR value is not an integer or out of range");
    // The fields are set before the time turns out to be wrong.
    assert_eq!(client.ask("HGET h data"), "$3\r\nnew");
    assert_eq!(client.ask("TTL h"), ":60");
    let past = client.ask_words(&[b"EVAL", hash, b"1", b"h", b"-1", b"600", b"0", b"data"]);
    assert_eq!(
        (past.as_str(), client.ask("EXISTS h")),
        (":1", ":0".to_owned())
    );
}

#[test]
fn a_full_cache_that_evicts_nothing_refuses_writes_and_keeps_values() {
    let options = CacheOptions::default()
        .memory_limit_bytes(2 << 20)
        .when_full(WhenFull::Refuse);
    let mut client = TestClient::with(options, Settings::default());
    let value = [b'v'; 10_000];
    let oom = "-OOM command not allowed when used memory > 'maxmemory'.";
    assert_eq!(client.ask("SET kept 1"), "+OK");
    let mut number = 0;
    let answer = loop {
        let key = format!("key:{number}");
        let answer = client.ask_words(&[b"SET", key.as_bytes(), &value]);
        number += 1;
        if answer != "+OK" {
            break answer;
        }
        assert!(number < 1_000);
    };
    assert_eq!(answer, oom);
    assert_eq!(client.ask_words(&[b"APPEND", b"kept", &value]), oom);
    assert_eq!(client.ask_words(&[b"SET", b"kept", &value]), oom);
    assert_eq!(client.ask("GET kept"), "$1\r\n1");
}

#[test]
fn values_and_keys_that_are_too_large_are_refused_and_change_nothing() {
    let mut client = TestClient::new();
    let refused = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)";
    client.ask("SET a 1");
    let large = vec![b'x'; 3 << 20];
    for words in [
        vec![&b"SET"[..], b"a", &large],
        vec![b"SET", b"a", &large, b"NX"],
        vec![b"GETSET", b"a", &large],
        vec![b"APPEND", b"a", &large],
        vec![b"HSET", b"h", b"f", &large],
        vec![b"GET", &large],
    ] {
        assert_eq!(
            client.ask_words(&words),
            refused,
            "{}",
            words[0].escape_ascii()
        );
        assert!(client.memory_bytes() < 100_000);
    }
    assert_eq!(client.ask("GET a"), "$1\r\n1");
    let key = vec![b'k'; 70_000];
    assert!(
        client
            .ask_words(&[b"SET", &key, b"1"])
            .starts_with("-ERR key is longer")
    );
    assert_eq!(client.ask_words(&[b"GET", &key]), "$-1");
    let value = vec![b'y'; 600_000];
    assert_eq!(
        client.ask_words(&[b"SET", b"b", &value, b"EX", b"100"]),
        "+OK"
    );
    assert_eq!(client.ask("TTL b"), ":100");
    assert_eq!(
        client.ask_words(&[b"SET", b"b", &value[..500_000], b"KEEPTTL"]),
        "+OK"
    );
    assert_eq!(client.ask("TTL b"), ":100");
    assert_eq!(client.ask("STRLEN b"), ":500000");
    let old = client.ask_words(&[b"GETSET", b"b", &value]);
    assert!(old.starts_with("$500000\r\nyyy") && old.len() == 500_009);
}

#[test]
fn a_slow_reader_of_large_answers_holds_little_memory() {
    let mut client = TestClient::new();
    for number in 0..50 {
        let key = format!("key:{number}");
        client.ask_words(&[b"SET", key.as_bytes(), &vec![b'0' + number; 30_000]]);
    }
    let keys: Vec<String> = (0..2_000)
        .map(|number| format!("key:{}", number % 50))
        .collect();
    let mut words = vec![&b"MGET"[..]];
    words.extend(keys.iter().map(String::as_bytes));
    let bytes = request(&words);
    let mut answers = Vec::new();
    // The reader takes 10,000 bytes at a time.
    for step in [usize::MAX, 10_000] {
        answers.push(client.send_in_pieces(&bytes, 3_000, step));
    }
    assert_eq!(answers[0].len(), 2_000 * (8 + 30_000 + 2) + 7);
    assert!(answers[0] == answers[1]);
    assert_eq!(client.memory_bytes(), 0);
}

#[test]
fn a_pipeline_of_any_depth_is_answered_in_order() {
    let mut client = TestClient::new();
    let (mut bytes, mut expected) = (Vec::new(), Vec::new());
    for number in 0..20_000 {
        let key = format!("key:{}", number % 100);
        let value = number.to_string();
        bytes.extend(request(&[b"SET", key.as_bytes(), value.as_bytes()]));
        bytes.extend(request(&[b"GET", key.as_bytes()]));
        expected.extend(format!("+OK\r\n${}\r\n{value}\r\n", value.len()).bytes());
    }
    assert!(client.send_in_pieces(&bytes, 5_000, usize::MAX) == expected);
}

#[test]
fn requests_that_break_the_protocol_end_the_session_after_its_answers() {
    for (bytes, expected) in [
        (
            &b"PING\r\n*1\r\n:1\r\nPING\r\n"[..],
            "+PONG\r\n-ERR Protocol error: expected '$', got ':'\r\n",
        ),
        (
            b"*2147483648\r\n",
            "-ERR Protocol error: invalid multibulk length\r\n",
        ),
        (
            b"*1\r\n$536870913\r\n",
            "-ERR Protocol error: invalid bulk length\r\n",
        ),
        (
            b"SET \"a\r\n",
            "-ERR Protocol error: unbalanced quotes in request\r\n",
        ),
        (b"POST / HTTP/1.1\r\n", ""),
    ] {
        let mut client = TestClient::new();
        assert_eq!(String::from_utf8_lossy(&client.send(bytes)), expected);
        assert!(client.is_closed);
    }
    let mut client = TestClient::new();
    // It announces two thousand million arguments, which takes no memory.
    assert_eq!(client.send(b"*2147483647\r\n$4\r\nMGET\r\n"), b"");
    assert!(!client.is_closed && client.memory_bytes() < 1_000);
    let mut client = TestClient::new();
    assert_eq!(
        client.send(b"\r\n*0\r\n*-1\r\nSET \"a b\" 'c'\r\nGET \"a b\"\r\n"),
        b"+OK\r\n$1\r\nc\r\n"
    );
}

#[test]
fn commands_that_the_options_forbid_are_refused() {
    let settings = Settings::default().flush_enabled(false).dump_enabled(false);
    let mut client = TestClient::with(CacheOptions::default(), settings);
    for line in ["FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "RANDOMKEY"] {
        assert!(
            client
                .ask(line)
                .starts_with("-ERR this command is disabled"),
            "{line}"
        );
    }
}
