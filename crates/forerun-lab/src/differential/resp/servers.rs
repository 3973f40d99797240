//! Plays steps to the two servers.
//!
//! A step ends with a fence, an `ECHO`. Within a transaction a server queues it, so there the fence
//! is the answer `+QUEUED` that follows the answers to all commands of the step.
//!
//! ```text
//!   SCAN 0 ──> cursor 17, keys     on the step's connection
//!   SET churn:1 …                  the step's other commands
//!   SCAN 17 ─> cursor 3, keys      on a new connection: cursors do not belong to one
//!   …          cursor 0            the keys of all pages, sorted
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use forerun_cache::{Cache, CacheOptions};
use forerun_server::{Listen, Protocol, Server, ServerOptions};

use super::compare_values::{Transaction, compare};
use super::generate::CHURN;
use super::programs::{DATABASES, Kind, MEMORY_MIB, RedisProgram};
use super::reply_value::Value;
use crate::differential::command::{Command, Word};
use crate::differential::connection::{Connection, End, Reply, RunningServer};
use crate::differential::history::now_ms;
use crate::differential::protocol::{Agreement, Servers};
use crate::differential::step::{CompareMode, Step};

/// The request that ends a step, and its answer outside of transactions.
const FENCE: &[u8] = b"*2\r\n$4\r\nECHO\r\n$10\r\nfence-5d0f\r\n";
const FENCE_ANSWER: &[u8] = b"fence-5d0f";

/// The maximum number of pages of a scan.
const PAGES_MAX: usize = 100_000;

/// The two servers of a history.
pub(in crate::differential) struct RespServers {
    ours: RunningServer,
    theirs: RunningServer,
    kinds: [Kind; 2],
}

/// A connection to each server, and the transaction that is open on both.
pub(in crate::differential) struct ConnectionPair {
    ours: Connection,
    theirs: Connection,
    transaction: Transaction,
}

impl RespServers {
    /// Starts `peer`, and `server` or else this workspace's server.
    pub(super) fn start(
        server: Option<&RedisProgram>,
        peer: &RedisProgram,
        dir: &Path,
    ) -> Result<Self> {
        let socket = dir.join("server.sock");
        let (kind, ours) = match server {
            Some(server) => (server.kind, server.start(dir, socket)?),
            None => (Kind::Forerun, start_ours(socket)?),
        };
        Ok(Self {
            ours,
            theirs: peer.start(dir, dir.join("peer.sock"))?,
            kinds: [kind, peer.kind],
        })
    }
}

/// Starts this workspace's server.
fn start_ours(socket: PathBuf) -> Result<RunningServer> {
    let options = CacheOptions::default()
        .memory_limit_bytes(MEMORY_MIB << 20)
        .keyspaces(DATABASES);
    let cache = Cache::new(options)?;
    let listen = Listen::unix(&socket, 0o700).with_protocol(Protocol::Resp);
    let mut options = ServerOptions::new(vec![listen]);
    options.threads = 2;
    options.drain_timeout = Duration::ZERO;
    let server = Server::start(options, Arc::new(cache))?;
    Ok(RunningServer::here(server, socket))
}

impl Servers for RespServers {
    type Connections = ConnectionPair;

    fn connect(&self, _: &Step) -> Result<ConnectionPair> {
        Ok(ConnectionPair {
            ours: self.ours.connect()?,
            theirs: self.theirs.connect()?,
            transaction: Transaction::default(),
        })
    }

    fn ask(&mut self, to: &mut ConnectionPair, step: &Step) -> Result<[Reply; 2]> {
        let now_ms = now_ms()?;
        if is_scan(step, &to.transaction) {
            return Ok([
                scan(&self.ours, &mut to.ours, step, now_ms)?,
                scan(&self.theirs, &mut to.theirs, step, now_ms)?,
            ]);
        }
        Ok([
            ask(&mut to.ours, &step.commands, step, now_ms)?,
            ask(&mut to.theirs, &step.commands, step, now_ms)?,
        ])
    }

    fn compare(
        &mut self,
        to: &mut ConnectionPair,
        step: &Step,
        ours: &Reply,
        theirs: &Reply,
    ) -> Result<Agreement, String> {
        if is_scan(step, &to.transaction) {
            return compare_scans(&ours.bytes, &theirs.bytes);
        }
        let agreed = compare(
            &answered(&step.commands),
            [&ours.bytes, &theirs.bytes],
            self.kinds,
            &mut to.transaction,
        )?;
        if ours.end == End::Fence {
            to.transaction.fence();
        }
        Ok(agreed)
    }
}

/// A scan that a transaction queues is compared like any command.
fn is_scan(step: &Step, transaction: &Transaction) -> bool {
    step.compare == CompareMode::Scan && !transaction.is_open()
}

/// Appends a command's bytes.
fn render(command: &Command, now_ms: i64, out: &mut Vec<u8>) {
    // No server of RESP returns versions of items.
    let version = |_| 0;
    if !command.is_array {
        return command.render_line(out, now_ms, &version);
    }
    out.extend_from_slice(format!("*{}\r\n", command.words.len()).as_bytes());
    let mut bytes = Vec::new();
    for word in &command.words {
        bytes.clear();
        word.render(&mut bytes, now_ms, &version);
        out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
        out.extend_from_slice(&bytes);
        out.extend_from_slice(b"\r\n");
    }
}

/// The commands that are answered: `CLIENT REPLY` can turn answers off, and empty requests have
/// none.
fn answered(commands: &[Command]) -> Vec<&Command> {
    let (mut is_on, mut skips) = (true, false);
    let mut answered = Vec::new();
    for command in commands {
        let mut is_answered = !is_empty(command);
        if is_answered {
            is_answered = is_on && !skips;
            skips = false;
        }
        if let Some(mode) = reply_mode(command) {
            match &mode[..] {
                b"ON" => (is_on, is_answered) = (true, true),
                b"OFF" => (is_on, is_answered) = (false, false),
                b"SKIP" if is_on => (skips, is_answered) = (true, false),
                _ => {}
            }
        }
        if is_answered {
            answered.push(command);
        }
    }
    answered
}

/// The argument of `CLIENT REPLY`, in capitals.
fn reply_mode(command: &Command) -> Option<Vec<u8>> {
    match &command.words[..] {
        [Word::Text(name), Word::Text(sub), Word::Text(mode)]
            if name.eq_ignore_ascii_case(b"CLIENT") && sub.eq_ignore_ascii_case(b"REPLY") =>
        {
            Some(mode.to_ascii_uppercase())
        }
        _ => None,
    }
}

/// Whether a request has no command: an empty line, or an array of no or fewer elements.
fn is_empty(command: &Command) -> bool {
    if command.is_array {
        return command.words.is_empty();
    }
    let mut bytes = Vec::new();
    render(command, 0, &mut bytes);
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'\x0b';
    let line = bytes.trim_ascii_end();
    line.iter().all(is_space) || line == b"*0" || (line.starts_with(b"*-") && line.len() > 2)
}

/// Sends commands and a fence, and returns the answers before that of the fence.
fn ask(
    connection: &mut Connection,
    commands: &[Command],
    step: &Step,
    now_ms: i64,
) -> Result<Reply> {
    let mut bytes = Vec::new();
    for command in commands {
        render(command, now_ms, &mut bytes);
    }
    let cuts = step.cuts_of(bytes.len());
    bytes.extend_from_slice(FENCE);
    let expected = answered(commands).len();
    let (mut at, mut found) = (0, 0);
    connection.ask(&bytes, &cuts, &mut |received| {
        while let Some((value, len)) = match Value::parse(&received[at..]) {
            Ok(value) => value,
            // The comparison reports it.
            Err(_) => return Some(received.len()),
        } {
            let is_queued = found == expected && value.is_simple(b"QUEUED");
            if value.bulk() == Some(FENCE_ANSWER) || is_queued {
                return Some(at);
            }
            found += 1;
            at += len;
        }
        None
    })
}

/// Lets a new connection select the database that another one has.
fn select_as(first: &mut Connection, new: &mut Connection, step: &Step, now_ms: i64) -> Result<()> {
    let command = |line: &str| Command::array(line.split(' ').map(Word::text).collect());
    let info = ask(first, &[command("CLIENT INFO")], step, now_ms)?;
    let text = String::from_utf8_lossy(&info.bytes);
    // A connection that the server has closed has no answer.
    let database = text.split(' ').find_map(|field| field.strip_prefix("db="));
    let database = database.unwrap_or("0");
    ask(new, &[command(&format!("SELECT {database}"))], step, now_ms)?;
    Ok(())
}

/// Scans to the end and returns what was found, one element in a line, sorted.
fn scan(
    server: &RunningServer,
    connection: &mut Connection,
    step: &Step,
    now_ms: i64,
) -> Result<Reply> {
    let (command, others) = step.commands.split_first().context("a step has commands")?;
    let mut command = command.clone();
    // HSCAN has a key before its cursor, and returns fields with their values.
    let (cursor_at, element_words) = match &command.words[..] {
        [Word::Text(name), ..] if name.eq_ignore_ascii_case(b"SCAN") => (1, 1),
        _ => (2, 2),
    };
    let mut second = server.connect()?;
    select_as(connection, &mut second, step, now_ms)?;
    let mut found = BTreeSet::new();
    let mut after_first_page = Vec::new();
    for page in 0..PAGES_MAX {
        let to = match page % 2 {
            0 => &mut *connection,
            _ => &mut second,
        };
        let reply = ask(to, std::slice::from_ref(&command), step, now_ms)?;
        let values = Value::parse_all(&reply.bytes);
        let cursor = match values.as_deref() {
            Ok([value]) => page_of(value, element_words).map(|(cursor, elements)| {
                found.extend(elements);
                cursor.to_vec()
            }),
            _ => None,
        };
        let Some(cursor) = cursor else {
            return Ok(reply);
        };
        if page == 0 && !others.is_empty() {
            let reply = ask(connection, others, step, now_ms)?;
            if reply.end != End::Fence {
                return Ok(reply);
            }
            after_first_page = reply.bytes;
        }
        if cursor == b"0" {
            let mut bytes = after_first_page;
            for element in found {
                bytes.extend_from_slice(&element);
                bytes.push(b'\n');
            }
            return Ok(Reply {
                bytes,
                end: End::Fence,
            });
        }
        command.words[cursor_at] = Word::Text(cursor);
    }
    bail!("a scan of more than {PAGES_MAX} pages")
}

/// The cursor and the elements of a page, each as one line of `words` words. Keys that change
/// during the scan are left out.
fn page_of<'a>(value: &Value<'a>, words: usize) -> Option<(&'a [u8], Vec<Vec<u8>>)> {
    let [cursor, elements] = value.items()? else {
        return None;
    };
    let elements = elements.items()?.iter().map(Value::bulk);
    let elements: Vec<&[u8]> = elements.collect::<Option<_>>()?;
    let line = |element: &[&[u8]]| {
        let words = element.iter().map(|word| word.escape_ascii().to_string());
        let words: Vec<String> = words.collect();
        words.join(" ").into_bytes()
    };
    let elements = elements.chunks(words);
    let staying = elements.filter(|element| !element[0].starts_with(CHURN));
    Some((cursor.bulk()?, staying.map(line).collect()))
}

fn compare_scans(ours: &[u8], theirs: &[u8]) -> Result<Agreement, String> {
    let lines = |bytes: &'_ [u8]| -> BTreeSet<String> {
        String::from_utf8_lossy(bytes)
            .lines()
            .map(str::to_owned)
            .collect()
    };
    let (ours, theirs) = (lines(ours), lines(theirs));
    if ours != theirs {
        let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
            let only: Vec<&str> = a.difference(b).take(5).map(String::as_str).collect();
            only.join(", ")
        };
        return Err(format!(
            "the scans differ: only the first server has {:?}, only the second {:?}",
            only(&ours, &theirs),
            only(&theirs, &ours)
        ));
    }
    Ok(Agreement {
        answers: 1,
        ends_history: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(line: &str) -> Command {
        Command::array(line.split(' ').map(Word::text).collect())
    }

    #[test]
    fn arrays_and_lines_are_sent_as_such() {
        let mut bytes = Vec::new();
        render(&array("GET a:b"), 0, &mut bytes);
        let line = ["SET", "k", "v"].map(Word::text).to_vec();
        render(&Command::line(line), 0, &mut bytes);
        let at = Word::MillisOfDay { offset_ms: -5 };
        render(&Command::array(vec![at]), 7, &mut bytes);
        assert_eq!(
            bytes,
            b"*2\r\n$3\r\nGET\r\n$3\r\na:b\r\nSET k v\r\n*1\r\n$1\r\n2\r\n"
        );
    }

    #[test]
    fn commands_without_answers_are_known() {
        let count = |lines: &[&str]| {
            let commands: Vec<Command> = lines.iter().map(|line| array(line)).collect();
            answered(&commands).len()
        };
        assert_eq!(count(&["GET a", "GET b"]), 2);
        assert_eq!(count(&["CLIENT REPLY SKIP", "GET b", "GET c"]), 1);
        assert_eq!(
            count(&["client reply off", "GET b", "CLIENT REPLY ON", "GET c"]),
            2
        );
        assert_eq!(count(&["CLIENT REPLY x"]), 1);
        let raw = |text: &str| Command {
            line_end: Vec::new(),
            ..Command::line(vec![Word::text(text)])
        };
        for empty in ["\r\n", "*0\r\n", "*-5\r\n"] {
            assert!(is_empty(&raw(empty)), "{empty:?}");
        }
        assert!(!is_empty(&raw("*1\r\n$4\r\nPING\r\n")));
    }

    #[test]
    fn a_page_has_a_cursor_and_the_elements_that_stay() {
        let bytes = b"*2\r\n$2\r\n17\r\n*2\r\n$1\r\na\r\n$7\r\nchurn:1\r\n";
        let (value, _) = Value::parse(bytes).expect("valid").expect("whole");
        let (cursor, elements) = page_of(&value, 1).expect("a page");
        assert_eq!((cursor, elements), (&b"17"[..], vec![b"a".to_vec()]));
        let (_, elements) = page_of(&value, 2).expect("a page");
        assert_eq!(elements, [b"a churn:1".to_vec()]);
    }
}
