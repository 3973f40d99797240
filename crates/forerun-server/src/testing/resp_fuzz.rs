//! The body of the fuzz target for sessions of RESP. The answers must not depend on how the input
//! is split, and memory must stay bounded.

use crate::address::Protocol;
use crate::server::client_session::ClientSession;

use super::play::play_on;
use super::session_fuzz::{Clients, server};

/// Maximum size of an output: the limit at which it is full, plus the largest answer that is
/// composed at once, such as that of a transaction.
const OUTPUT_BYTES_MAX: usize = 80 << 20;

/// Words of requests that the bytes of a fuzzer choose from.
#[rustfmt::skip]
const WORDS: [&[u8]; 101] = [
    b"GET", b"SET", b"MGET", b"MSET", b"DEL", b"EXISTS", b"INCR", b"INCRBYFLOAT", b"APPEND",
    b"STRLEN", b"GETRANGE", b"SETRANGE", b"EXPIRE", b"PEXPIREAT", b"TTL", b"PTTL", b"PERSIST",
    b"TYPE", b"SCAN", b"KEYS", b"SUBSTR", b"DBSIZE", b"FLUSHALL", b"RENAME", b"RENAMENX",
    b"COPY", b"HSET", b"HGET", b"HMGET", b"HGETALL", b"HDEL", b"HINCRBY", b"HINCRBYFLOAT", b"HLEN",
    b"HKEYS", b"HSCAN", b"MULTI", b"EXEC", b"DISCARD", b"WATCH", b"UNWATCH", b"PING", b"ECHO",
    b"HELLO", b"CLIENT", b"REPLY", b"OFF", b"ON", b"SKIP", b"RESET", b"QUIT", b"EVAL", b"EVALSHA",
    b"SCRIPT", b"LOAD", b"COMMAND", b"CONFIG", b"OBJECT", b"ENCODING", b"GETEX", b"GETDEL",
    b"GETSET", b"SETEX", b"SETNX", b"MSETNX", b"a", b"b", b"big", b"huge", b"hash", b"missing",
    b"0", b"1", b"-1", b"3", b"10.5", b"9223372036854775807", b"1700000000000", b"EX", b"PX",
    b"NX", b"XX", b"GET", b"KEEPTTL", b"MATCH", b"*", b"COUNT", b"TYPE", b"string", b"", b"IFEQ",
    b"SETNAME", b"SELECT", b"NOVALUES", b"FOO", b"MSETEX", b"MOVE", b"FLUSHDB",
    b"if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) \
      else return 0 end",
    b"HGETDEL", b"FIELDS",
];

/// Sends requests to a session, once as a whole and once in pieces, with a fast and a slow reader,
/// and compares the answers. `cuts` determines the lengths of the pieces. In `bytes`, 0xff begins a
/// request: its next byte is the number of words, and each following byte chooses one. 0xfe and a
/// count repeat the byte after them a thousand times the count. Other bytes are sent as they are.
///
/// # Panics
/// If the answers differ, or if a buffer takes too much memory.
pub fn fuzz_resp(cuts: &[u8], bytes: &[u8]) {
    let stream = compose(bytes);
    let whole = play(&stream, &[], usize::MAX);
    for step in [usize::MAX, 997] {
        let cut = play(&stream, cuts, step);
        assert!(
            whole == cut,
            "in pieces of {step}: {}\nwhole: {}",
            cut.escape_ascii(),
            whole.escape_ascii()
        );
    }
}

fn compose(bytes: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut rest = bytes.iter().copied();
    while let Some(byte) = rest.next()
        && stream.len() < 400_000
    {
        match byte {
            0xff => {
                let count = rest.next().unwrap_or(0) % 8 + 1;
                stream.extend(format!("*{count}\r\n").bytes());
                for _ in 0..count {
                    let word = match rest.next().unwrap_or(0) {
                        // A value too large to wait for in the input.
                        0xfd => vec![b'v'; 40_000],
                        choice => WORDS[usize::from(choice) % WORDS.len()].to_vec(),
                    };
                    stream.extend(format!("${}\r\n", word.len()).bytes());
                    stream.extend(word);
                    stream.extend(b"\r\n");
                }
            }
            0xfe => {
                let thousands = usize::from(rest.next().unwrap_or(0));
                let repeated = rest.next().unwrap_or(b' ');
                stream.resize(stream.len() + thousands * 1000, repeated);
            }
            byte => stream.push(byte),
        }
    }
    stream
}

/// Returns the answers to `stream`. See [`play_on`].
fn play(stream: &[u8], cuts: &[u8], step: usize) -> Vec<u8> {
    let session = ClientSession::new(Protocol::Resp, false);
    let server = server(Clients::All, 16);
    play_on(session, &server, (stream, cuts, step), OUTPUT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A request of these words.
    fn request() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![9 => any::<u8>(), 1 => Just(0xfd)], 8).prop_flat_map(
            |words| {
                (0_u8..6)
                    .prop_map(move |count| [&[0xff, count], &words[..=usize::from(count)]].concat())
            },
        )
    }

    proptest! {
        #[test]
        fn requests_have_the_same_answers_however_they_arrive(
            cuts in proptest::collection::vec(any::<u8>(), 1..8),
            requests in proptest::collection::vec(request(), 0..60),
        ) {
            fuzz_resp(&cuts, &requests.concat());
        }

        #[test]
        fn any_bytes_have_the_same_answers_however_they_arrive(
            cuts in proptest::collection::vec(any::<u8>(), 1..8),
            bytes in proptest::collection::vec(
                prop_oneof![
                    any::<u8>(),
                    proptest::sample::select(&b"*$\r\n0123456789 GETSPINGa\"'\\"[..]),
                ],
                0..400,
            ),
        ) {
            fuzz_resp(&cuts, &bytes);
        }
    }

    #[test]
    fn long_headers_lines_and_values_have_the_same_answers_however_they_arrive() {
        for bytes in [
            &b"*\xfe\x461"[..],
            b"*1\r\n$\xfe\x461",
            b"\xfe\x46x",
            b"GET a\r\n\"\xfe\x05x\"\r\nPING\r\n",
            b"*2147483647\r\n$4\r\nMGET\r\n\xfe\x01$",
            b"*3\r\n$3\r\nSET\r\n$1\r\nc\r\n$70000\r\n\xfe\x46v\r\n*2\r\n$3\r\nGET\r\n$1\r\nc\r\n",
            b"*3\r\n$3\r\nSET\r\n$1\r\nc\r\n$405000\r\n\xfe\xc8v\xfe\xcdv\r\n*1\r\n$4\r\nPING\r\n",
            b"*3\r\n$6\r\nAPPEND\r\n$1\r\nc\r\n$9000\r\n\xfe\x09v\r\nGET c\r\n",
        ] {
            fuzz_resp(&[3, 200, 255], bytes);
        }
    }
}
