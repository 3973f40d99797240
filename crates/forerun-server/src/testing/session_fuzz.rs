//! The body of the fuzz target for sessions. The answers must not depend on how the input is split,
//! and memory must stay bounded.

use std::sync::Arc;

use forerun_cache::{Cache, CacheOptions, Store};

use crate::address::Protocol;
use crate::os_system::OsSystem;
use crate::server::client_session::ClientSession;
use crate::settings::{ReportedOptions, Settings};
use crate::shared::{NoServer, ServerControl, Shared};

use super::play;

/// Maximum size of an output: the limit at which it is full, plus the largest item that is copied.
/// The preloaded items have up to 300,000 bytes, and items that a client stores have at most the
/// size limit.
const OUTPUT_BYTES_MAX: usize = 512 << 10;

/// Maximum length of the expanded commands.
pub(super) const STREAM_BYTES_MAX: usize = 1 << 20;

/// The message of SASL with which the only user logs in.
pub(super) const LOGIN: &[u8] = b"\0alice\0s3cret";

/// A server with one user.
struct OneUser;

impl ServerControl for OneUser {
    fn knows_user(&self, user: &[u8], password: &[u8]) -> bool {
        [b"\0", user, b"\0", password].concat() == LOGIN
    }
}

/// Who may use a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clients {
    All,
    /// Those that authenticate with [`LOGIN`].
    OneUser,
}

/// Sends `bytes` to a session, once as a whole and once in pieces, with a fast and a slow reader,
/// and compares the answers. `cuts` determines the lengths of the pieces. A byte 0xfe in `bytes`
/// takes two operands, a count and a byte: it repeats that byte a hundred times the count.
///
/// # Panics
/// If the answers differ, or if a buffer takes too much memory.
pub fn fuzz_session(cuts: &[u8], bytes: &[u8]) {
    compare(Clients::All, cuts, &expand(bytes));
}

/// Sends `stream` to a session in these ways, and compares the answers.
pub(super) fn compare(clients: Clients, cuts: &[u8], stream: &[u8]) {
    // Statistics depend on time and on the number of batches. The second is a binary `stat`.
    let statistics = [&b"stats"[..], b"\x80\x10"];
    if statistics
        .iter()
        .any(|one| memchr::memmem::find(stream, one).is_some())
    {
        return;
    }
    let play = |cuts, step| play_on(&server(clients, 1), stream, cuts, step);
    let whole = play(&[], usize::MAX);
    let cut = play(cuts, usize::MAX);
    assert!(
        whole == cut,
        "cut: {}\nwhole: {}",
        cut.escape_ascii(),
        whole.escape_ascii()
    );
    let slow = play(cuts, 997);
    assert!(
        whole == slow,
        "slow: {}\nwhole: {}",
        slow.escape_ascii(),
        whole.escape_ascii()
    );
}

fn expand(bytes: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut rest = bytes.iter();
    while let Some(&byte) = rest.next()
        && stream.len() < STREAM_BYTES_MAX
    {
        match byte {
            0xfe => {
                let hundreds = rest.next().copied().unwrap_or(0);
                let repeated = rest.next().copied().unwrap_or(b' ');
                stream.resize(stream.len() + usize::from(hundreds) * 100, repeated);
            }
            byte => stream.push(byte),
        }
    }
    stream
}

/// A server whose cache has a few items.
pub(super) fn server(clients: Clients, keyspaces: u16) -> Arc<Shared> {
    let options = CacheOptions::default()
        .clock(forerun_cache::Clock::Manual)
        .memory_limit_bytes(8 << 20)
        .max_item_bytes(400_000)
        .keyspaces(keyspaces)
        .seed(1);
    let cache = Arc::new(Cache::new(options).expect("the options are valid"));
    for (key, len) in [
        (&b"a"[..], 1),
        (b"b", 100),
        (b"big", 30_000),
        (b"huge", 300_000),
    ] {
        let _ = cache.store(Store::set(key, vec![b'1'; len].as_slice()));
    }
    let control: Box<dyn ServerControl> = match clients {
        Clients::All => Box::new(NoServer),
        Clients::OneUser => Box::new(OneUser),
    };
    let reported = ReportedOptions {
        auth_enabled: clients == Clients::OneUser,
        ..ReportedOptions::default()
    };
    let settings = Settings::default();
    Arc::new(Shared::on(&OsSystem, settings, reported, cache, control))
}

/// Returns the answers to `stream` of a server that all clients may use, as [`play_on`].
pub(super) fn play(stream: &[u8], cuts: &[u8], step: usize) -> Vec<u8> {
    play_on(&server(Clients::All, 1), stream, cuts, step)
}

/// Returns the answers of a server to `stream`. See [`play::play_on`].
pub(super) fn play_on(shared: &Arc<Shared>, stream: &[u8], cuts: &[u8], step: usize) -> Vec<u8> {
    let session = ClientSession::new(Protocol::Memcached, false);
    play::play_on(session, shared, (stream, cuts, step), OUTPUT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            proptest::sample::select(vec![
                &b"get "[..],
                b"gets ",
                b"gat 0 ",
                b"mg ",
                b"ms ",
                b"ma ",
                b"md ",
                b"me ",
                b"mn\r\n",
                b"set ",
                b"add ",
                b"cas ",
                b"append ",
                b"incr ",
                b"delete ",
                b"touch ",
                b"flush_all",
                b"\r\n",
                b"\r\n",
                b"\n",
                b" ",
                b" ",
                b"a ",
                b"b ",
                b"big ",
                b"huge ",
                b"0 ",
                b"1 ",
                b"5 ",
                b"v ",
                b"k ",
                b"s ",
                b"h ",
                b"t ",
                b"T5 ",
                b"N5 ",
                b"Oq ",
                b"noreply",
                b"hello\r\n",
                b"x\r\n",
                b"0 0 1\r\n1\r\n",
                b"0 0 5\r\nhello\r\n",
                b"get huge big a huge big\r\n",
                b"mg big v\r\nmg huge v\r\n",
                b"0 0 25500\r\n",
                b"25500 c\r\n",
                b"\xfe\xffx\r\n",
                b"\xfe\xff ",
                b"\xfe\x03k ",
                b"get \xfe\xff ",
                b"quit\r\n",
                b"multi_get 1\r\n",
                b"\xf6\x01\x03\0\x0c\0\0\0abcd\0\0\x04\0\x01\x04\x01\x02ahugebno",
                b"\xf6\x02\0\0\x08\0\0\0abcd\0\0\x01\08 bytes.",
                b"\xf6\x01",
                b"\x80\x0b\0\0\0\0\0\0\0\0\0\0abcd\0\0\0\0\0\0\0\0",
                b"\x80\x0b",
            ])
            .prop_map(<[u8]>::to_vec),
            proptest::collection::vec(any::<u8>(), 0..4),
        ];
        proptest::collection::vec(word, 0..40).prop_map(|words| words.concat())
    }

    #[test]
    fn a_long_line_without_a_key_is_answered_the_same_however_it_is_split() {
        fuzz_session(&[5, 9, 1, 32], b"get \xfe\xff \n");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn answers_do_not_depend_on_how_the_input_is_cut_or_the_output_read(
            cuts in proptest::collection::vec(any::<u8>(), 1..10),
            bytes in words(),
        ) {
            fuzz_session(&cuts, &bytes);
        }
    }
}
