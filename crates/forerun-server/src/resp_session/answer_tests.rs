//! Commands and the bytes of their answers, which are those of Redis and Valkey.

use super::test_client::{TestClient, converse, request};

#[test]
fn strings() {
    converse(
        &mut TestClient::new(),
        &[
            ("GET a", "$-1"),
            ("SET a 1", "+OK"),
            ("get a", "$1|1"),
            ("SET a 2 NX", "$-1"),
            ("SET b 2 xx", "$-1"),
            ("SET a 3 XX GET", "$1|1"),
            ("SET c 3 GET", "$-1"),
            ("SET c 4 NX GET", "$1|3"),
            ("GET c", "$1|3"),
            ("SET c 5 IFEQ 4", "$-1"),
            ("SET c 5 IFEQ 3", "+OK"),
            ("SET a 1 NX XX", "-ERR syntax error"),
            ("SET a 1 EX", "-ERR syntax error"),
            ("SET a 1 EX 5 PX 5", "-ERR syntax error"),
            ("SET a 1 EX 5 KEEPTTL", "-ERR syntax error"),
            ("SET a 1 FOO", "-ERR syntax error"),
            ("SET x 1 EX 100 NX NX EX 200", "+OK"),
            ("TTL x", ":200"),
            ("GETEX x PERSIST PERSIST", "$1|1"),
            ("GETEX x EX 100 EX 300", "$1|1"),
            ("GETEX x EX 100 PERSIST", "-ERR syntax error"),
            ("TTL x", ":300"),
            ("SET a 1 EX 0", "-ERR invalid expire time in 'set' command"),
            (
                "SET a 1 EX 9223372036854775807",
                "-ERR invalid expire time in 'set' command",
            ),
            (
                "SET a 1 EX x",
                "-ERR value is not an integer or out of range",
            ),
            ("SETEX a 0 1", "-ERR invalid expire time in 'setex' command"),
            (
                "PSETEX a -1 1",
                "-ERR invalid expire time in 'psetex' command",
            ),
            ("SETEX a 10 1", "+OK"),
            ("TTL a", ":10"),
            ("SETNX a 2", ":0"),
            ("SETNX d 2", ":1"),
            ("GETSET a 5", "$1|1"),
            ("TTL a", ":-1"),
            ("GETDEL a", "$1|5"),
            ("GETDEL a", "$-1"),
            ("MSET a 1 b 2 a 3", "+OK"),
            ("MGET a b missing a", "*4|$1|3|$1|2|$-1|$1|3"),
            (
                "MSET a 1 b",
                "-ERR wrong number of arguments for 'mset' command",
            ),
            ("MSETNX e 1 a 2", ":0"),
            ("EXISTS e", ":0"),
            ("MSETNX e 1 f 2", ":1"),
            ("APPEND s hello", ":5"),
            ("APPEND s -world", ":11"),
            ("STRLEN s", ":11"),
            ("STRLEN missing", ":0"),
            ("GETRANGE s 0 4", "$5|hello"),
            ("SUBSTR s -5 -1", "$5|world"),
            ("GETRANGE missing 0 -1", "$0|"),
            (
                "GETRANGE s 0 x",
                "-ERR value is not an integer or out of range",
            ),
            ("SETRANGE s 6 WORLD!", ":12"),
            ("GET s", "$12|hello-WORLD!"),
            ("SETRANGE t 2 x", ":3"),
            ("GET t", "$3|\0\0x"),
            ("SETRANGE missing 5 ", ":0"),
            ("EXISTS missing", ":0"),
            ("SETRANGE s -1 x", "-ERR offset is out of range"),
            (
                "SETRANGE s 536870912 x",
                "-ERR string exceeds maximum allowed size (proto-max-bulk-len)",
            ),
            ("DELIFEQ s x", ":0"),
            ("DELIFEQ s hello-WORLD!", ":1"),
        ],
    );
}

#[test]
fn numbers() {
    converse(
        &mut TestClient::new(),
        &[
            ("INCR n", ":1"),
            ("INCRBY n 41", ":42"),
            ("DECR n", ":41"),
            ("DECRBY n 50", ":-9"),
            ("SET n 9223372036854775807", "+OK"),
            ("INCR n", "-ERR increment or decrement would overflow"),
            (
                "DECRBY n -9223372036854775808",
                "-ERR decrement would overflow",
            ),
            ("INCRBY n x", "-ERR value is not an integer or out of range"),
            ("SET n 01", "+OK"),
            ("INCR n", "-ERR value is not an integer or out of range"),
            ("SET n 10.50", "+OK"),
            ("INCRBYFLOAT n 0.1", "$4|10.6"),
            ("INCRBYFLOAT n -5", "$3|5.6"),
            ("INCRBYFLOAT n x", "-ERR value is not a valid float"),
            (
                "INCRBYFLOAT n inf",
                "-ERR increment would produce NaN or Infinity",
            ),
            ("SET n 5.0e3", "+OK"),
            ("INCRBYFLOAT n 2.0e2", "$4|5200"),
            ("SET n 7", "+OK"),
            ("EXPIRE n 100", ":1"),
            ("INCR n", ":8"),
            ("TTL n", ":100"),
        ],
    );
}

#[test]
fn times_to_live() {
    let mut client = TestClient::new();
    converse(
        &mut client,
        &[
            ("TTL a", ":-2"),
            ("EXPIRE a 10", ":0"),
            ("SET a 1", "+OK"),
            ("PTTL a", ":-1"),
            ("EXPIRETIME a", ":-1"),
            ("EXPIRE a 100 XX", ":0"),
            ("EXPIRE a 100 GT", ":0"),
            ("EXPIRE a 100 LT", ":1"),
            ("EXPIRE a 50 GT", ":0"),
            ("EXPIRE a 200 NX", ":0"),
            ("EXPIRE a 200 GT", ":1"),
            ("TTL a", ":200"),
            ("PTTL a", ":200000"),
            ("SET a 2 KEEPTTL", "+OK"),
            ("TTL a", ":200"),
            ("SET a 3", "+OK"),
            ("TTL a", ":-1"),
            ("PEXPIREAT a 4000000000123", ":1"),
            ("PEXPIRETIME a", ":4000000000123"),
            ("EXPIRETIME a", ":4000000000"),
            ("PERSIST a", ":1"),
            ("PERSIST a", ":0"),
            (
                "EXPIRE a 1 NX GT",
                "-ERR NX and XX, GT or LT options at the same time are not compatible",
            ),
            (
                "EXPIRE a 1 GT LT",
                "-ERR GT and LT options at the same time are not compatible",
            ),
            ("EXPIRE a 1 FOO", "-ERR Unsupported option FOO"),
            ("EXPIRE a x", "-ERR value is not an integer or out of range"),
            (
                "EXPIRE a 9223372036854775807",
                "-ERR invalid expire time in 'expire' command",
            ),
            ("EXPIRE a -1", ":1"),
            ("EXISTS a", ":0"),
            ("SET a 1 EXAT 1", "+OK"),
            ("EXISTS a", ":0"),
            ("SET a 1 PX 100", "+OK"),
            ("GETEX a", "$1|1"),
            ("PTTL a", ":100"),
            ("GETEX a EX 100", "$1|1"),
            ("TTL a", ":100"),
            ("GETEX a PERSIST", "$1|1"),
            ("TTL a", ":-1"),
            (
                "GETEX a EX 0",
                "-ERR invalid expire time in 'getex' command",
            ),
            ("GETEX a EXAT 1", "$1|1"),
            ("GETEX a", "$-1"),
            ("SET a 1 PX 1400", "+OK"),
            ("TTL a", ":1"),
            ("SET a 1 PX 400", "+OK"),
            ("TTL a", ":0"),
        ],
    );
    client.cache.advance_ms(client.cache.now_ms() + 399);
    converse(&mut client, &[("GET a", "$1|1"), ("PTTL a", ":1")]);
    client.cache.advance_ms(client.cache.now_ms() + 1);
    converse(&mut client, &[("GET a", "$1|1"), ("PTTL a", ":0")]);
    client.cache.advance_ms(client.cache.now_ms() + 1);
    converse(&mut client, &[("GET a", "$-1"), ("TTL a", ":-2")]);
}

/// The clock cuts off a part of a millisecond: what is set at 0.9 ms has lived for 99.1 ms when the
/// clock has advanced by 100.
#[test]
fn a_time_to_live_passes_in_full() {
    let ending = [
        "SET a 1 PX 100",
        "PSETEX a 100 1",
        "SET a 1|PEXPIRE a 100",
        "SET a 1|GETEX a PX 100",
        "HSET a b 1|PEXPIRE a 100",
        "SET a 1 PX 50|PEXPIRE a 100 GT",
    ];
    for lines in ending {
        let mut client = TestClient::new();
        for line in lines.split('|') {
            client.ask(line);
        }
        assert_eq!(client.ask("PTTL a"), ":100", "{lines}");
        client.cache.advance_ms(client.cache.now_ms() + 100);
        assert_eq!(client.ask("EXISTS a"), ":1", "{lines}");
        client.cache.advance_ms(client.cache.now_ms() + 1);
        assert_eq!(client.ask("EXISTS a"), ":0", "{lines}");
    }
}

#[test]
fn hashes() {
    converse(
        &mut TestClient::new(),
        &[
            ("HSET h a 1 b 2", ":2"),
            ("HSET h b 3 c 4", ":1"),
            ("HMSET h d 5", "+OK"),
            (
                "HSET h a",
                "-ERR wrong number of arguments for 'hset' command",
            ),
            ("HGET h b", "$1|3"),
            ("HGET h x", "$-1"),
            ("HMGET h a x c", "*3|$1|1|$-1|$1|4"),
            ("HMGET missing a b", "*2|$-1|$-1"),
            ("HGETALL h", "*8|$1|a|$1|1|$1|b|$1|3|$1|c|$1|4|$1|d|$1|5"),
            ("HGETALL missing", "*0"),
            ("HKEYS h", "*4|$1|a|$1|b|$1|c|$1|d"),
            ("HVALS h", "*4|$1|1|$1|3|$1|4|$1|5"),
            ("HLEN h", ":4"),
            ("HEXISTS h a", ":1"),
            ("HSTRLEN h a", ":1"),
            ("HSETNX h a 9", ":0"),
            ("HSETNX h e 9", ":1"),
            ("HINCRBY h a 41", ":42"),
            ("HINCRBYFLOAT h a 0.5", "$4|42.5"),
            ("HINCRBY h a 1", "-ERR hash value is not an integer"),
            ("HSCAN h 0 MATCH [ab]", "*2|$1|0|*4|$1|a|$4|42.5|$1|b|$1|3"),
            ("HSCAN h 0 MATCH a NOVALUES", "*2|$1|0|*1|$1|a"),
            ("EXPIRE h 100", ":1"),
            ("HDEL h a b x", ":2"),
            ("TTL h", ":100"),
            ("HDEL h c d e", ":3"),
            ("EXISTS h", ":0"),
            ("HSET h a 1", ":1"),
            ("TYPE h", "+hash"),
            ("TYPE missing", "+none"),
            (
                "GET h",
                "-WRONGTYPE Operation against a key holding the wrong kind of value",
            ),
            (
                "APPEND h x",
                "-WRONGTYPE Operation against a key holding the wrong kind of value",
            ),
            (
                "SET h x GET",
                "-WRONGTYPE Operation against a key holding the wrong kind of value",
            ),
            ("MGET h", "*1|$-1"),
            ("SET s 1", "+OK"),
            (
                "HGET s a",
                "-WRONGTYPE Operation against a key holding the wrong kind of value",
            ),
            ("TYPE s", "+string"),
            ("SET h 1", "+OK"),
            ("TYPE h", "+string"),
        ],
    );
}

#[test]
fn keys() {
    let mut client = TestClient::new();
    converse(
        &mut client,
        &[
            ("RANDOMKEY", "$-1"),
            ("DBSIZE", ":0"),
            ("SET a 1 EX 100", "+OK"),
            ("RANDOMKEY", "$1|a"),
            ("RENAME a b", "+OK"),
            ("TTL b", ":100"),
            ("RENAME a b", "-ERR no such key"),
            ("SET c 1", "+OK"),
            ("RENAMENX b c", ":0"),
            ("RENAMENX b d", ":1"),
            ("RENAME d d", "+OK"),
            ("COPY d c", ":0"),
            ("COPY d c REPLACE", ":1"),
            (
                "COPY d d",
                "-ERR source and destination objects are the same",
            ),
            ("COPY d e DB 1", "-ERR DB index is out of range"),
            ("COPY missing e", ":0"),
            ("EXISTS c d c missing", ":3"),
            ("TOUCH c c", ":2"),
            ("KEYS ?", "*2|$1|c|$1|d"),
            ("KEYS x*", "*0"),
            ("SCAN 0 MATCH c", "*2|$1|0|*1|$1|c"),
            ("SCAN 0 TYPE hash", "*2|$1|0|*0"),
            ("SCAN 0 TYPE list", "*2|$1|0|*0"),
            ("SCAN x", "-ERR invalid cursor"),
            ("SCAN 18446744073709551616", "-ERR invalid cursor"),
            ("SCAN 0 COUNT 0", "-ERR syntax error"),
            (
                "SCAN 0 COUNT x",
                "-ERR value is not an integer or out of range",
            ),
            ("OBJECT ENCODING c", "$3|int"),
            ("OBJECT ENCODING missing", "$-1"),
            ("OBJECT REFCOUNT c", ":1"),
            ("DEL c d d", ":2"),
            ("DBSIZE", ":0"),
            ("SET a 1", "+OK"),
            ("FLUSHALL FOO", "-ERR syntax error"),
            ("FLUSHALL ASYNC", "+OK"),
            ("EXISTS a", ":0"),
            ("SET  1", "+OK"),
            ("GET ", "$1|1"),
        ]
        .map(|(line, expected)| match line {
            // The order of the two keys depends on the seed of the hash.
            "KEYS ?" => ("EXISTS c", ":1"),
            _ => (line, expected),
        }),
    );
    let mut sorted: Vec<String> = Vec::new();
    for key in ["x", "y", "z"] {
        client.ask(&format!("SET {key} 1"));
    }
    let answer = client.ask("KEYS [xyz]");
    sorted.extend(answer.split("\r\n").skip(2).step_by(2).map(str::to_owned));
    sorted.sort();
    assert_eq!((sorted.join(" "), &answer[..2]), ("x y z".to_owned(), "*3"));
    let usage = client.ask("MEMORY USAGE x");
    assert!(usage.starts_with(':') && usage != ":0", "{usage}");
}

#[test]
fn a_scan_finds_every_key_on_any_connection() {
    let mut client = TestClient::new();
    let mut other = client.another();
    for number in 0..5_000 {
        client.ask(&format!("SET key:{number} 1"));
    }
    let (mut cursor, mut found) = ("0".to_owned(), std::collections::BTreeSet::new());
    for round in 0.. {
        let from = if round % 2 == 0 {
            &mut client
        } else {
            &mut other
        };
        let answer = from.ask(&format!("SCAN {cursor} COUNT 100 MATCH key:*"));
        let lines: Vec<&str> = answer.split("\r\n").collect();
        cursor = lines[2].to_owned();
        found.extend(
            lines[4..]
                .iter()
                .skip(1)
                .step_by(2)
                .map(|&key| key.to_owned()),
        );
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found.len(), 5_000);
    for made_up in ["1", "123456789", "18446744073709551615"] {
        assert!(client.ask(&format!("SCAN {made_up}")).starts_with("*2\r\n"));
    }
    let all = client.ask("KEYS *");
    assert!(all.starts_with("*5000\r\n"), "{}", &all[..9]);
}

#[test]
fn msetex_sets_all_pairs_or_none() {
    let mut client = TestClient::new();
    converse(
        &mut client,
        &[
            ("MSETEX 2 a 1 b 2 PX 50000", ":1"),
            ("PTTL b", ":50000"),
            ("MSETEX 2 b 3 c 3 NX EX 10", ":0"),
            ("MSETEX 2 b 3 c 3 XX EX 10", ":0"),
            ("MGET a b c", "*3|$1|1|$1|2|$-1"),
            ("MSETEX 2 a 4 b 4 keepttl XX", ":1"),
            ("PTTL b", ":50000"),
            ("GET b", "$1|4"),
            ("MSETEX 1 a 5", ":1"),
            ("PTTL a", ":-1"),
            ("MSETEX 2 c 1 c 2 nx", ":1"),
            ("GET c", "$1|2"),
            (
                "MSETEX 1 a 1 PX 0",
                "-ERR invalid expire time in 'msetex' command",
            ),
            (
                "MSETEX 1 a 1 PX x",
                "-ERR value is not an integer or out of range",
            ),
            ("MSETEX 0 a 1", "-ERR invalid numkeys value"),
            ("MSETEX x a 1", "-ERR invalid numkeys value"),
            ("MSETEX 2147483648 a 1", "-ERR invalid numkeys value"),
            (
                "MSETEX 2147483647 a 1 EX 1",
                "-ERR wrong number of key-value pairs",
            ),
            ("MSETEX 2 a 1 b", "-ERR wrong number of key-value pairs"),
            ("MSETEX 1 a 1 NX XX", "-ERR syntax error"),
            ("MSETEX 1 a 1 GET", "-ERR syntax error"),
            ("MSETEX 1 a 1 IFEQ 5", "-ERR syntax error"),
            ("MSETEX 1 a 1 EX 5 PX 5", "-ERR syntax error"),
            (
                "MSETEX 1 a",
                "-ERR wrong number of arguments for 'msetex' command",
            ),
            ("GET a", "$1|5"),
        ],
    );
}

#[test]
fn info_counts_the_calls_of_each_command() {
    let mut client = TestClient::new();
    client.send(&request(&[b"GET", b"a"]).repeat(50));
    for line in [
        "SET a x", "INCR a", "INCR a b", "HGET a f", "HGETALL", "FOO", "MULTI", "GET a",
    ] {
        client.ask(line);
    }
    client.ask("INCR a");
    client.ask("EXEC");
    let info = client.ask("INFO commandstats");
    let counts = |name: &str| {
        let front = format!("\r\ncmdstat_{name}:calls=");
        let line = info.split(&front).nth(1)?.split("\r\n").next()?;
        let (calls, rest) = line.split_once(",usec=")?;
        let (_, rest) = rest.split_once(",usec_per_call=")?;
        let (_, rest) = rest.split_once(",rejected_calls=")?;
        Some(format!("{calls} {}", rest.replace(",failed_calls=", " ")))
    };
    for (name, expected) in [
        ("get", Some("51 0 0")),
        ("set", Some("1 0 0")),
        ("incr", Some("2 1 2")),
        ("hget", Some("1 0 1")),
        ("hgetall", Some("0 1 0")),
        ("multi", Some("1 0 0")),
        ("exec", Some("1 0 0")),
        ("del", None),
    ] {
        assert_eq!(counts(name).as_deref(), expected, "{name}: {info}");
    }
    assert!(client.ask("INFO all").contains("cmdstat_get:"));
    assert!(!client.ask("INFO").contains("cmdstat_"));
    client.ask("CONFIG RESETSTAT");
    let info = client.ask("INFO commandstats");
    assert!(
        info.contains("cmdstat_config:calls=1,") && !info.contains("cmdstat_get:"),
        "{info}"
    );
    let memory = client.ask("INFO memory");
    assert!(memory.contains("\r\nused_memory_peak:") && memory.contains("peak_human:"));
}
