//! A warm-up as a sequence of steps: clients write to the new server and read from it, and a copier
//! reads from the old one and offers what it has read, possibly much later.
//!
//! The reference knows only the answers that clients got, not how the server decides:
//!
//! ```text
//!   Old      no client has written the key           a read finds the old server's value or nothing
//!   Gone     a client learned that it has none       a read finds nothing
//!   Value    a client has stored this value          a read finds this value or nothing
//! ```

use forerun_cache::{CacheOptions, Store};
use forerun_server::Settings;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use crate::testing::Client;

/// The number of keys.
pub const KEYS: usize = 6;

/// A step.
#[derive(Clone, Debug)]
pub enum Action {
    Write(Write, usize),
    Get(usize),
    /// The copier reads a key from the old server.
    Read(usize),
    /// It offers what it has read, except for the last few.
    Fill {
        keep: usize,
    },
    /// Both servers' clocks advance.
    Advance(u32),
    /// A client stores so much elsewhere that items are evicted.
    Crowd,
    FlushAll,
    /// The copier's program is started again. It begins from the start.
    CopierDies,
    /// The new server is started again, empty.
    Restart,
}

/// A client's command that writes a key.
#[derive(Clone, Copy, Debug)]
pub enum Write {
    Set,
    SetBriefly,
    SetTooLarge,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
    Delete,
    Incr,
    Decr,
    Touch,
    TouchPast,
    GetAndTouch,
    MetaSet,
    MetaDelete,
    MetaInvalidate,
    MetaEmpty,
    MetaArithmetic,
    MetaVivify,
    MetaTouch,
}

pub fn actions() -> impl Strategy<Value = Vec<Action>> {
    use Write::*;
    let writes = vec![
        Set,
        SetBriefly,
        SetTooLarge,
        Add,
        Replace,
        Append,
        Prepend,
        Cas,
        Delete,
        Incr,
        Decr,
        Touch,
        TouchPast,
        GetAndTouch,
        MetaSet,
        MetaDelete,
        MetaInvalidate,
        MetaEmpty,
        MetaArithmetic,
        MetaVivify,
        MetaTouch,
    ];
    let write = (prop::sample::select(writes), 0..KEYS);
    let action = prop_oneof![
        12 => write.prop_map(|(write, key)| Action::Write(write, key)),
        6 => (0..KEYS).prop_map(Action::Get),
        8 => (0..KEYS).prop_map(Action::Read),
        8 => (0..3_usize).prop_map(|keep| Action::Fill { keep }),
        2 => (1..4_u32).prop_map(Action::Advance),
        1 => Just(Action::Crowd),
        1 => Just(Action::FlushAll),
        1 => Just(Action::CopierDies),
        1 => Just(Action::Restart),
    ];
    prop::collection::vec(action, 1..60)
}

/// What clients know of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    Old,
    Gone,
    Value(Vec<u8>),
}

/// A copy that has not been offered.
struct Copy {
    key: usize,
    token: String,
    line: Vec<u8>,
}

struct WarmUp {
    old: Client,
    new: Client,
    token: String,
    known: Vec<Known>,
    copies: Vec<Copy>,
    written: u64,
    /// The second of the old server's clock.
    old_s: u32,
}

fn name(key: usize) -> String {
    format!("key:{key}")
}

/// The old server's value of a key: a number, so that it can be counted up.
fn old_value(key: usize) -> Vec<u8> {
    format!("7000{key}").into_bytes()
}

/// The old server's items expire at different times; half of them never.
fn old_expires_s(key: usize) -> Option<u32> {
    (key % 2 == 1).then_some(3 + key as u32)
}

fn old_server() -> Client {
    let mut old = Client::new();
    for key in 0..KEYS {
        let exptime = old_expires_s(key).map_or(0, |second| second - 1);
        let (name, value) = (name(key), old_value(key));
        let line = format!("set {name} {} {exptime} {}\r\n", key + 40, value.len());
        let stored = old.send(&[line.as_bytes(), &value, b"\r\n"].concat());
        assert_eq!(stored, b"STORED\r\n");
    }
    old
}

fn new_server() -> Client {
    let options = CacheOptions::default()
        .clock(forerun_cache::Clock::Manual)
        .memory_limit_bytes(forerun_cache::MEMORY_BYTES_MIN);
    let new = Client::with(options, Settings::default());
    // The servers' clocks need not agree.
    new.cache.advance(500);
    new
}

fn text(answer: &[u8]) -> String {
    String::from_utf8_lossy(answer).into_owned()
}

/// Runs the actions. The error says which answer was wrong.
pub fn check(actions: &[Action]) -> Result<(), String> {
    let mut warm_up = WarmUp {
        old: old_server(),
        new: new_server(),
        token: String::new(),
        known: vec![Known::Old; KEYS],
        copies: Vec::new(),
        written: 0,
        old_s: 1,
    };
    let begun = text(&warm_up.new.send(b"warm_up begin 100000\r\n"));
    warm_up.token = token_of(&begun).ok_or(begun)?.0;
    for (at, action) in actions.iter().enumerate() {
        warm_up
            .act(action)
            .map_err(|wrong| format!("{at}: {action:?}: {wrong}"))?;
        for key in 0..KEYS {
            warm_up
                .get(key)
                .map_err(|wrong| format!("after {at}: {action:?}: {wrong}"))?;
        }
    }
    Ok(())
}

/// The token and the second in the answer to `warm_up status`.
fn token_of(answer: &str) -> Option<(String, u32)> {
    let mut words = answer.strip_prefix("WARM_UP ")?.split(' ');
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

impl WarmUp {
    fn act(&mut self, action: &Action) -> Result<(), String> {
        match *action {
            Action::Write(write, key) => return self.write(write, key),
            Action::Get(key) => return self.get(key),
            Action::Read(key) => self.read(key),
            Action::Fill { keep } => {
                let count = self.copies.len().saturating_sub(keep);
                for copy in self.copies.drain(..count).collect::<Vec<_>>() {
                    self.fill(&copy)?;
                }
            }
            Action::Advance(seconds) => {
                self.old_s += seconds;
                self.old.cache.advance(self.old_s);
                self.new.cache.advance(self.new.cache.now() + seconds);
            }
            Action::Crowd => {
                for at in 0..40 {
                    let crowd = vec![b'x'; 200 << 10];
                    // What is stored here besides the keys is not looked at.
                    let _ = self
                        .new
                        .cache
                        .store(Store::set(&format!("crowd:{at}"), &crowd));
                }
            }
            Action::FlushAll => {
                self.expect(b"flush_all\r\n", "OK\r\n")?;
                self.known.fill(Known::Gone);
            }
            Action::CopierDies => self.copies.clear(),
            Action::Restart => {
                self.new = new_server();
                self.new.cache.advance(self.old_s + 600);
                self.known.fill(Known::Gone);
            }
        }
        Ok(())
    }

    fn expect(&mut self, sent: &[u8], answer: &str) -> Result<(), String> {
        let got = text(&self.new.send(sent));
        if got == answer {
            Ok(())
        } else {
            Err(format!("{got:?} instead of {answer:?}"))
        }
    }

    /// Reads a key from the old server as `forerun warm` does.
    fn read(&mut self, key: usize) {
        let status = text(&self.new.send(b"warm_up status\r\n"));
        let Some((token, second)) = token_of(&status) else {
            return;
        };
        let name = name(key);
        let answer = self.old.send(format!("mg {name} v f t c u\r\n").as_bytes());
        let answer = text(&answer);
        let Some((head, value)) = answer.split_once("\r\n") else {
            return;
        };
        let mut words = head.split(' ').skip(2).map(|word| &word[1..]);
        let (Some(flags), Some(ttl), Some(cas)) = (words.next(), words.next(), words.next()) else {
            return;
        };
        let expires = match ttl.parse::<i64>().expect("seconds") {
            ..0 => 0,
            0 | 1 => return,
            ttl => i64::from(second) + ttl - 1,
        };
        let value = value.strip_suffix("\r\n").expect("a value").as_bytes();
        let line = format!(
            "warm_fill {token} {name} {flags} {expires} {cas} {}\r\n",
            value.len()
        );
        let line = [line.as_bytes(), value, b"\r\n"].concat();
        self.copies.push(Copy { key, token, line });
    }

    fn fill(&mut self, copy: &Copy) -> Result<(), String> {
        let answer = text(&self.new.send(&copy.line));
        let is_refusal = answer == "NOT_FILLED\r\n"
            || answer == "EXISTS\r\n"
            || answer.starts_with("CLIENT_ERROR the server is not being warmed up")
            || answer == "SERVER_ERROR out of memory storing object\r\n";
        match (&self.known[copy.key], answer.as_str()) {
            (Known::Old, "FILLED\r\n") => Ok(()),
            (known, "FILLED\r\n") => Err(format!("the copy is stored over {known:?}")),
            _ if is_refusal => Ok(()),
            _ => Err(format!("the copy for {}: {answer:?}", copy.token)),
        }
    }

    /// Reads a key as a client does and compares it with what clients know.
    fn get(&mut self, key: usize) -> Result<(), String> {
        let answer = text(&self.new.send(format!("get {}\r\n", name(key)).as_bytes()));
        if answer == "END\r\n" {
            return Ok(());
        }
        let (head, rest) = answer.split_once("\r\n").ok_or(answer.clone())?;
        let value = rest.strip_suffix("\r\nEND\r\n").ok_or(answer.clone())?;
        let flags = head.split(' ').nth(2).map(str::to_owned);
        let is_right = match &self.known[key] {
            Known::Gone => false,
            Known::Value(known) => value.as_bytes() == known,
            Known::Old => {
                let is_alive = old_expires_s(key).is_none_or(|second| self.old_s < second);
                is_alive
                    && value.as_bytes() == old_value(key)
                    && flags == Some((key + 40).to_string())
            }
        };
        if is_right {
            Ok(())
        } else {
            Err(format!(
                "key {key} has {answer:?}, but is {:?}",
                self.known[key]
            ))
        }
    }

    /// The value that clients would see if there is one.
    fn visible(&self, key: usize) -> Vec<u8> {
        match &self.known[key] {
            Known::Value(value) => value.clone(),
            Known::Old | Known::Gone => old_value(key),
        }
    }

    fn write(&mut self, write: Write, key: usize) -> Result<(), String> {
        self.written += 1;
        let name = name(key);
        // A number, and a different one each time.
        let value = format!("3{:05}", self.written);
        let len = value.len();
        let store =
            |word: &str, exptime: i32| format!("{word} {name} 1 {exptime} {len}\r\n{value}\r\n");
        let request = match write {
            Write::Set => store("set", 0),
            Write::SetBriefly => store("set", 1),
            Write::SetTooLarge => {
                let bytes = 2 << 20;
                format!("set {name} 0 0 {bytes}\r\n{}\r\n", "x".repeat(bytes))
            }
            Write::Add => store("add", 0),
            Write::Replace => store("replace", 0),
            Write::Append => store("append", 0),
            Write::Prepend => store("prepend", 0),
            Write::Cas => format!("cas {name} 1 0 {len} 99\r\n{value}\r\n"),
            Write::Delete => format!("delete {name}\r\n"),
            Write::Incr => format!("incr {name} 1\r\n"),
            Write::Decr => format!("decr {name} 1\r\n"),
            Write::Touch => format!("touch {name} 0\r\n"),
            Write::TouchPast => format!("touch {name} -1\r\n"),
            Write::GetAndTouch => format!("gat 0 {name}\r\n"),
            Write::MetaSet => format!("ms {name} {len} F1\r\n{value}\r\n"),
            Write::MetaDelete => format!("md {name}\r\n"),
            Write::MetaInvalidate => format!("md {name} I\r\n"),
            Write::MetaEmpty => format!("md {name} x\r\n"),
            Write::MetaArithmetic => format!("ma {name} v\r\n"),
            Write::MetaVivify => format!("mg {name} v N0\r\n"),
            Write::MetaTouch => format!("mg {name} v T0\r\n"),
        };
        let answer = text(&self.new.send(request.as_bytes()));
        let before = self.visible(key);
        let joined = |first: &[u8], second: &[u8]| Known::Value([first, second].concat());
        let number = |text: &str| Known::Value(text.as_bytes().to_vec());
        let stored = Known::Value(value.clone().into_bytes());
        let word = answer.split(['\r', ' ']).next().unwrap_or_default();
        let counted = answer.lines().next().unwrap_or_default();
        let needs_item = matches!(
            (write, word),
            (Write::Replace | Write::Append | Write::Prepend, "STORED")
                | (Write::Add, "NOT_STORED")
                | (Write::Cas, "EXISTS")
                | (Write::Touch | Write::TouchPast, "TOUCHED")
                | (Write::Delete, "DELETED")
                | (
                    Write::MetaDelete | Write::MetaInvalidate | Write::MetaEmpty,
                    "HD"
                )
                | (Write::GetAndTouch, "VALUE")
                | (Write::MetaTouch | Write::MetaArithmetic, "VA")
                | (Write::Incr | Write::Decr, "CLIENT_ERROR")
        );
        if self.known[key] == Known::Gone && (needs_item || counted.parse::<u64>().is_ok()) {
            return Err(format!("{answer:?}, but the key has no item"));
        }
        // A value that a client has read is known to it.
        let read = |answer: &str| answer.lines().nth(1).map(number);
        let known = match (write, word) {
            (Write::SetTooLarge, "SERVER_ERROR") => Known::Gone,
            (Write::Delete, "DELETED" | "NOT_FOUND") | (Write::MetaDelete, "HD" | "NF") => {
                Known::Gone
            }
            (Write::TouchPast, "TOUCHED" | "NOT_FOUND") => Known::Gone,
            (Write::Set | Write::SetBriefly | Write::Add | Write::Replace, "STORED")
            | (Write::MetaSet, "HD") => stored,
            (Write::Append, "STORED") => joined(&before, value.as_bytes()),
            (Write::Prepend, "STORED") => joined(value.as_bytes(), &before),
            // The client knows no more than before.
            (Write::Add, "NOT_STORED")
            | (Write::Cas, "EXISTS")
            | (Write::Incr | Write::Decr | Write::MetaArithmetic, "CLIENT_ERROR") => return Ok(()),
            // The item stays, and lives longer than the old server's.
            (Write::Touch, "TOUCHED") | (Write::MetaInvalidate, "HD") => Known::Value(before),
            (Write::Replace | Write::Append | Write::Prepend, "NOT_STORED")
            | (Write::Cas | Write::Incr | Write::Decr | Write::Touch, "NOT_FOUND")
            | (Write::MetaInvalidate | Write::MetaEmpty | Write::MetaArithmetic, "NF")
            | (Write::GetAndTouch, "END")
            | (Write::MetaTouch, "EN") => Known::Gone,
            (Write::MetaEmpty, "HD") => Known::Value(Vec::new()),
            (Write::Incr | Write::Decr, _) if counted.parse::<u64>().is_ok() => number(counted),
            (Write::MetaArithmetic, "VA")
            | (Write::GetAndTouch, "VALUE")
            | (Write::MetaVivify | Write::MetaTouch, "VA") => {
                let read = read(&answer).ok_or(answer.clone())?;
                if !matches!(write, Write::MetaArithmetic) {
                    self.check_read(write, key, &read)?;
                }
                read
            }
            _ => return Err(format!("{answer:?}")),
        };
        self.known[key] = known;
        Ok(())
    }

    /// Checks a value that a write has returned.
    fn check_read(&self, write: Write, key: usize, read: &Known) -> Result<(), String> {
        let is_new = matches!(write, Write::MetaVivify) && *read == Known::Value(Vec::new());
        let is_right = match &self.known[key] {
            Known::Gone => is_new,
            Known::Old => is_new || *read == Known::Value(old_value(key)),
            known => is_new || read == known,
        };
        if is_right {
            Ok(())
        } else {
            Err(format!("{read:?}, but it is {:?}", self.known[key]))
        }
    }
}

/// Searches this many cases, always the same ones, for a wrong answer. Returns the number of the
/// case that has one, and what is wrong.
pub fn search(cases: u32) -> Option<(u32, String)> {
    let config = ProptestConfig::default();
    let rng = prop::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = prop::test_runner::TestRunner::new_with_rng(config, rng);
    (0..cases).find_map(|case| {
        let actions = actions().new_tree(&mut runner).expect("actions").current();
        let wrong = check(&actions).err()?;
        Some((case, wrong))
    })
}
