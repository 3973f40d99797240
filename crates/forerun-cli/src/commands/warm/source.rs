//! An old server: the list of its keys, and its items.
//!
//! ```text
//!   lru_crawler metadump all           key=CH%2FBern exp=-1 la=… cas=7 fetch=yes cls=1 size=71      one connection
//!                                      … cas=8 … kind=hash unit=ms size=90
//!   mg CH/Bern v f t c u q O0 …        VA 12 f0 t-1 c7 O0 …                                  another one
//!   mg lock v f p c u q O1             VA 2 f0 p1900 c8 O1 …     for an item that expires at a millisecond
//!   mn                                 MN
//! ```
//!
//! Memcached and `forerun serve` answer both. The flag `u` leaves no trace of the reads.

use anyhow::bail;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forerun_client::{RawConnection, ServerAddress};

use super::connection::{self, number, unexpected};
use crate::login::Login;

/// Maximum size of the values of a batch: the largest value, and a batch of small ones. A server
/// that sends more has not listed its items as they are.
const BATCH_VALUE_BYTES_MAX: u64 = (1 << 30) + (64 << 20);

/// The longest key as it is sent.
const KEY_BYTES_MAX: usize = 250;

/// The most that an item takes on a server: the largest value, its key, and what belongs to it.
const ITEM_BYTES_MAX: u64 = (1 << 30) + (1 << 20);

/// More lines than the statistics of any server have.
const STATS_LINES_MAX: usize = 10_000;

/// A key of an old server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedKey {
    pub key: Vec<u8>,
    /// What the item takes there.
    pub size_bytes: u64,
    /// The version of the item, if the list has it.
    pub cas: Option<u64>,
    /// Whether its value is a hash. The list then has its version.
    pub is_hash: bool,
    /// Whether the item expires at a millisecond.
    pub is_ms: bool,
}

/// The time until an item expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ttl {
    /// Rounded up to a second.
    Seconds(u32),
    Milliseconds(u64),
}

/// An item of an old server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// Whether the value is a hash, and not a string.
    pub is_hash: bool,
    pub flags: u32,
    /// Until it expires there; `None`: never.
    pub ttl: Option<Ttl>,
    pub cas: u64,
}

impl Item {
    /// Bytes of the key and the value.
    pub(super) fn len_bytes(&self) -> u64 {
        (self.key.len() + self.value.len()) as u64
    }
}

/// The list of a server's keys, while it arrives.
pub(super) struct KeyList {
    connection: RawConnection,
    is_first: bool,
}

impl KeyList {
    pub(super) fn open(server: &ServerAddress, login: &Login) -> anyhow::Result<KeyList> {
        let mut connection = connection::open(server, login)?;
        connection.send(b"lru_crawler metadump all\r\n")?;
        Ok(KeyList {
            connection,
            is_first: true,
        })
    }

    /// The next key, or `None` at the end of the list.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<ListedKey>> {
        let is_first = std::mem::take(&mut self.is_first);
        let line = self.connection.line()?;
        match line {
            b"END" => return Ok(None),
            // Memcached since 1.6.31 begins the list with a line of its own.
            b"OK" if is_first => return self.next(),
            _ => {}
        }
        if let Some(listed) = listed(line) {
            return Ok(Some(listed));
        }
        let line = line.to_vec();
        if line.starts_with(b"BUSY") {
            bail!(
                "{}: another program lists its keys; try again later",
                self.connection.server()
            );
        }
        Err(unexpected(&self.connection, &line))
    }
}

/// Reads a line of the list.
fn listed(line: &[u8]) -> Option<ListedKey> {
    let mut words = line.split(|byte| *byte == b' ');
    let key = percent_decoded(words.next()?.strip_prefix(b"key=")?)?;
    let field = |name: &[u8]| words.clone().find_map(|word| word.strip_prefix(name));
    let size_bytes = number(field(b"size=")?)?;
    let cas = field(b"cas=").and_then(number);
    let is_hash = field(b"kind=") == Some(b"hash");
    let is_key = (1..=KEY_BYTES_MAX).contains(&key.len()) && size_bytes <= ITEM_BYTES_MAX;
    (is_key && (cas.is_some() || !is_hash)).then_some(ListedKey {
        key,
        size_bytes,
        cas,
        is_hash,
        is_ms: field(b"unit=") == Some(b"ms"),
    })
}

fn percent_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        decoded.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    Some(decoded)
}

/// Appends a key as commands send it. Returns the flag that marks a key in base64, or `None` if the
/// key cannot be sent.
pub(super) fn push_key(key: &[u8], out: &mut Vec<u8>) -> Option<&'static [u8]> {
    if key.iter().all(|byte| *byte > b' ' && *byte != 0x7f) {
        out.extend_from_slice(key);
        return Some(b"");
    }
    let text = STANDARD.encode(key);
    if text.len() > KEY_BYTES_MAX {
        return None;
    }
    out.extend_from_slice(text.as_bytes());
    Some(b" b")
}

/// What an old server says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    /// The number of items, for the progress bar; 0 if it does not say.
    pub items: u64,
    /// Whether a value may be a hash, because the server also speaks RESP.
    pub has_hashes: bool,
}

impl Statistics {
    pub(super) fn of(server: &ServerAddress, login: &Login) -> anyhow::Result<Statistics> {
        Statistics::read(&mut connection::open(server, login)?)
    }

    fn read(connection: &mut RawConnection) -> anyhow::Result<Statistics> {
        connection.send(b"stats\r\n")?;
        read_statistics(connection)
    }
}

fn read_statistics(connection: &mut RawConnection) -> anyhow::Result<Statistics> {
    let mut statistics = Statistics::default();
    for _ in 0..STATS_LINES_MAX {
        let line = connection.line()?;
        if line == b"END" {
            return Ok(statistics);
        }
        if let Some(count) = line.strip_prefix(b"STAT curr_items ") {
            statistics.items = number(count).unwrap_or(0);
        } else if line.starts_with(b"STAT cmd_resp ") {
            statistics.has_hashes = true;
        } else if !line.starts_with(b"STAT ") {
            let line = line.to_vec();
            return Err(unexpected(connection, &line));
        }
    }
    bail!("{}: its statistics do not end", connection.server())
}

/// Reads items of a server.
pub(super) struct ItemReader {
    connection: RawConnection,
    /// Whether a value may be a hash.
    has_hashes: bool,
    request: Vec<u8>,
}

/// The outcome of reading a batch of keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReadItems {
    pub items: Vec<Item>,
    /// Keys that are not there any more or expire within a second.
    pub gone: u64,
    /// Keys whose item has changed since it was listed, on a server with hashes.
    pub changed: u64,
    /// Items that wait for a new value from a client.
    pub stale: u64,
    /// Keys that no command can carry.
    pub unreadable: u64,
}

impl ItemReader {
    pub(super) fn open(server: &ServerAddress, login: &Login) -> anyhow::Result<ItemReader> {
        let mut connection = connection::open(server, login)?;
        let has_hashes = Statistics::read(&mut connection)?.has_hashes;
        Ok(ItemReader {
            connection,
            has_hashes,
            request: Vec::new(),
        })
    }

    /// Reads the items of `keys`.
    pub(super) fn read(&mut self, keys: &[ListedKey]) -> anyhow::Result<ReadItems> {
        self.request.clear();
        let mut asked = Vec::with_capacity(keys.len());
        for listed in keys {
            let start = self.request.len();
            self.request.extend_from_slice(b"mg ");
            let Some(flag) = push_key(&listed.key, &mut self.request) else {
                self.request.truncate(start);
                continue;
            };
            self.request.extend_from_slice(flag);
            let ttl = if listed.is_ms { 'p' } else { 't' };
            let flags = format!(" v f {ttl} c u q O{}\r\n", asked.len());
            self.request.extend_from_slice(flags.as_bytes());
            asked.push(listed);
        }
        self.request.extend_from_slice(b"mn\r\n");
        self.connection.send(&self.request)?;
        let mut read = self.read_answers(&asked)?;
        read.unreadable = (keys.len() - asked.len()) as u64;
        Ok(read)
    }

    /// Reads the answers to a request for these keys. Each key has at most one.
    fn read_answers(&mut self, asked: &[&ListedKey]) -> anyhow::Result<ReadItems> {
        let mut read = ReadItems::default();
        let (mut next, mut answers, mut bytes) = (0, 0, 0);
        loop {
            let line = self.connection.line()?.to_vec();
            if line == b"MN" {
                read.gone += asked.len() as u64 - answers;
                return Ok(read);
            }
            let Some(head) = Head::read(&line).filter(|head| head.at >= next) else {
                return Err(unexpected(&self.connection, &line));
            };
            let Some(listed) = asked.get(head.at) else {
                return Err(unexpected(&self.connection, &line));
            };
            answers += 1;
            next = head.at + 1;
            bytes += head.value_bytes.min(BATCH_VALUE_BYTES_MAX);
            if bytes > BATCH_VALUE_BYTES_MAX {
                bail!(
                    "{}: its items are larger than it says",
                    self.connection.server()
                );
            }
            let value = self.connection.value(head.value_bytes)?;
            if head.is_stale {
                read.stale += 1;
                continue;
            }
            // The answer does not tell whether it is a hash, so it must be the item that was
            // listed.
            if (listed.is_hash || self.has_hashes) && listed.cas != Some(head.cas) {
                read.changed += 1;
                continue;
            }
            let ttl = match head.ttl {
                ..0 => None,
                left if listed.is_ms => Some(Ttl::Milliseconds(left.unsigned_abs())),
                0 | 1 => {
                    read.gone += 1;
                    continue;
                }
                seconds => Some(Ttl::Seconds(u32::try_from(seconds).unwrap_or(u32::MAX))),
            };
            read.items.push(Item {
                key: listed.key.clone(),
                value,
                is_hash: listed.is_hash,
                flags: head.flags,
                ttl,
                cas: head.cas,
            });
        }
    }
}

/// The line before a value.
struct Head {
    at: usize,
    value_bytes: u64,
    flags: u32,
    /// In the unit that was asked for; negative: it never expires.
    ttl: i64,
    cas: u64,
    /// A client is to store a new value. As a plain copy, the old one would count as fresh.
    is_stale: bool,
}

impl Head {
    fn read(line: &[u8]) -> Option<Head> {
        let mut words = line.strip_prefix(b"VA ")?.split(|byte| *byte == b' ');
        let value_bytes = number(words.next()?)?;
        let (mut at, mut flags, mut ttl, mut cas) = (None, None, None, None);
        let mut is_stale = false;
        for word in words {
            match word.split_first()? {
                (b'O', text) => at = Some(number(text)?),
                (b'f', text) => flags = Some(number(text)?),
                (b't' | b'p', text) => ttl = Some(number(text)?),
                (b'c', text) => cas = Some(number(text)?),
                (b'W' | b'X' | b'Z', []) => is_stale = true,
                // The flags are repeated by some versions.
                (b'b' | b'k', _) => {}
                _ => return None,
            }
        }
        Some(Head {
            at: at?,
            value_bytes,
            flags: flags?,
            ttl: ttl?,
            cas: cas?,
            is_stale,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::tests::of;
    use super::*;

    fn listed_key(key: &[u8], size_bytes: u64) -> ListedKey {
        let key = key.to_vec();
        ListedKey {
            key,
            size_bytes,
            cas: None,
            is_hash: false,
            is_ms: false,
        }
    }

    fn reader(answers: &[u8], has_hashes: bool) -> ItemReader {
        ItemReader {
            connection: of(answers),
            has_hashes,
            request: Vec::new(),
        }
    }

    fn list(text: &str) -> anyhow::Result<Vec<ListedKey>> {
        let mut list = KeyList {
            connection: of(text.as_bytes()),
            is_first: true,
        };
        let mut keys = Vec::new();
        while let Some(key) = list.next()? {
            keys.push(key);
        }
        Ok(keys)
    }

    #[test]
    fn the_lists_of_old_and_new_memcached_servers_are_read() {
        let lines = "key=a exp=-1 la=5 cas=2 fetch=yes cls=1 size=71\n\
            key=%00%2Fb%20c exp=9 la=5 cas=2 fetch=no cls=1 flags=3 size=8\nEND\r\n";
        let expected = [listed_key(b"a", 71), listed_key(b"\0/b c", 8)].map(|key| ListedKey {
            cas: Some(2),
            ..key
        });
        assert_eq!(list(lines).expect("a list"), expected);
        assert_eq!(list(&format!("OK\r\n{lines}")).expect("a list"), expected);
        assert_eq!(list("END\r\n").expect("an empty list"), []);
    }

    #[test]
    fn other_lists_are_errors_that_quote_them() {
        for (text, part) in [
            (
                "ERROR metadump not allowed\r\n",
                "ERROR metadump not allowed",
            ),
            (
                "BUSY currently processing crawler request\r\n",
                "try again later",
            ),
            ("key=%zz size=1\n", "%zz"),
            ("key=%4 size=1\n", "%4"),
            ("key= size=1\n", "key= "),
            ("key=a exp=1\n", "key=a"),
            ("key=a size=18446744073709551615\n", "key=a"),
            ("key=a size=1\nOK\n", "OK"),
            ("key=a size=1\n", "closed"),
        ] {
            let error = list(text).expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn items_have_flags_times_and_versions() {
        let keys = [b"a", b"b", b"c", b"d", b"e"].map(|key| listed_key(key, 1));
        let answers = "VA 3 f7 t-1 c9 O0\r\nx\r\n\r\nVA 0 f0 t60 c8 O2\r\n\r\n\
            VA 1 f0 t1 c3 O3\r\nx\r\nVA 1 f0 t9 c3 O4 X W\r\nx\r\nMN\r\n";
        let mut reader = reader(answers.as_bytes(), false);
        let asked: Vec<&ListedKey> = keys.iter().collect();
        let read = reader.read_answers(&asked).expect("answers");
        let item = |key: &[u8], value: &[u8], flags, ttl, cas| Item {
            key: key.to_vec(),
            value: value.to_vec(),
            is_hash: false,
            flags,
            ttl,
            cas,
        };
        let items = [
            item(b"a", b"x\r\n", 7, None, 9),
            item(b"c", b"", 0, Some(Ttl::Seconds(60)), 8),
        ];
        assert_eq!(read.items, items);
        // One is about to expire, and one was not there.
        assert_eq!((read.gone, read.stale), (2, 1));
    }

    #[test]
    fn an_item_that_expires_at_a_millisecond_is_copied_up_to_its_last_one() {
        let lines = "key=a exp=9 la=5 cas=9 fetch=no cls=1 unit=ms size=71\n\
            key=b exp=9 la=5 cas=8 fetch=no cls=1 kind=hash unit=ms size=71\nEND\r\n";
        let keys = list(lines).expect("a list");
        assert!(keys.iter().all(|key| key.is_ms));
        let answers = "VA 1 f0 p900 c9 O0\r\nx\r\nVA 1 f0 p1 c8 O1\r\nx\r\nMN\r\n";
        let mut reader = reader(answers.as_bytes(), false);
        let asked: Vec<&ListedKey> = keys.iter().collect();
        let read = reader.read_answers(&asked).expect("answers");
        let ttls: Vec<_> = read.items.iter().map(|item| item.ttl).collect();
        let expected = [900, 1].map(|left| Some(Ttl::Milliseconds(left)));
        assert_eq!((ttls, read.gone), (expected.to_vec(), 0));
    }

    #[test]
    fn a_hash_is_copied_as_one_if_it_has_not_changed_since_it_was_listed() {
        let lines = "key=a exp=-1 la=5 cas=9 fetch=no cls=1 kind=hash size=71\n\
            key=b exp=-1 la=5 cas=8 fetch=no cls=1 kind=hash size=71\nEND\r\n";
        let keys = list(lines).expect("a list");
        assert_eq!((keys[1].cas, keys[1].is_hash), (Some(8), true));
        let answers = "VA 1 f0 t-1 c9 O0\r\nx\r\nVA 1 f0 t-1 c10 O1\r\nx\r\nMN\r\n";
        let mut reader = reader(answers.as_bytes(), false);
        let asked: Vec<&ListedKey> = keys.iter().collect();
        let read = reader.read_answers(&asked).expect("answers");
        let copied: Vec<_> = read
            .items
            .iter()
            .map(|item| (&item.key[..], item.is_hash))
            .collect();
        assert_eq!((copied, read.changed), (vec![(&b"a"[..], true)], 1));
        assert!(list("key=a kind=hash size=71\nEND\r\n").is_err());
    }

    #[test]
    fn a_string_that_may_have_become_a_hash_since_it_was_listed_is_not_copied() {
        let lines = "key=a exp=-1 la=5 cas=9 fetch=no cls=1 size=71\n\
            key=b exp=-1 la=5 cas=8 fetch=no cls=1 size=71\nEND\r\n";
        let keys = list(lines).expect("a list");
        let asked: Vec<&ListedKey> = keys.iter().collect();
        let answers = b"VA 1 f0 t-1 c9 O0\r\nx\r\nVA 1 f0 t-1 c10 O1\r\nx\r\nMN\r\n";
        for (has_hashes, copied, changed) in [(true, 1, 1), (false, 2, 0)] {
            let read = reader(answers, has_hashes)
                .read_answers(&asked)
                .expect("answers");
            assert_eq!((read.items.len(), read.changed), (copied, changed));
        }
    }

    #[test]
    fn a_key_that_no_command_can_carry_is_not_asked_for_and_has_no_answer() {
        let keys = [listed_key(&[b' '; 240], 1), listed_key(b"b", 1)];
        let read = |answers: &str| {
            let mut reader = reader(answers.as_bytes(), false);
            let read = reader.read(&keys);
            let request = String::from_utf8_lossy(&reader.request).into_owned();
            (read, request)
        };
        let (read_one, request) = read("VA 1 f0 t-1 c1 O0\r\nx\r\nMN\r\n");
        assert_eq!(request, "mg b v f t c u q O0\r\nmn\r\n");
        let read_one = read_one.expect("answers");
        assert_eq!((read_one.items.len(), read_one.unreadable), (1, 1));
        assert_eq!(read_one.items[0].key, b"b");
        // A server that answers for both.
        let (both, _) = read("VA 1 f0 t-1 c1 O0\r\nx\r\nVA 1 f0 t-1 c1 O1\r\nx\r\nMN\r\n");
        assert!(both.expect_err("too many").to_string().contains("O1"));
    }

    #[test]
    fn statistics_that_do_not_end_or_are_wrong_are_errors() {
        let count = |text: &str| read_statistics(&mut of(text.as_bytes()));
        let expected = |items, has_hashes| Statistics { items, has_hashes };
        let text = "STAT pid 1\r\nSTAT curr_items 17\r\nEND\r\n";
        assert_eq!(count(text).expect("a count"), expected(17, false));
        let text = "STAT cmd_resp 0\r\nEND\r\n";
        assert_eq!(count(text).expect("statistics"), expected(0, true));
        assert!(count("ERROR\r\n").is_err());
        let endless = count(&"STAT pid 1\r\n".repeat(STATS_LINES_MAX + 1));
        assert!(
            endless
                .expect_err("no end")
                .to_string()
                .contains("do not end")
        );
    }

    #[test]
    fn answers_to_other_requests_are_errors() {
        let keys = [listed_key(b"a", 1), listed_key(b"b", 1)];
        for answers in [
            "VA 1 f0 t-1 c1 O2\r\nx\r\nMN\r\n",
            "VA 1 f0 t-1 c1 O1\r\nx\r\nVA 1 f0 t-1 c1 O0\r\nx\r\nMN\r\n",
            "VA 1 f0 t-1 O0\r\nx\r\nMN\r\n",
            "VA 1 f0 t-1 c1 O0 Q\r\nx\r\nMN\r\n",
            "HD\r\nMN\r\n",
            "CLIENT_ERROR invalid flag\r\nMN\r\n",
            "VA 1 f0 t-1 c1 O0\r\nx\r\nVA 1152921504606846976 f0 t-1 c1 O1\r\n",
        ] {
            let mut reader = reader(answers.as_bytes(), false);
            let asked: Vec<&ListedKey> = keys.iter().collect();
            assert!(reader.read_answers(&asked).is_err(), "{answers}");
        }
    }
}
