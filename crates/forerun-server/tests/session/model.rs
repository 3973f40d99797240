//! Compares the answers to pipelines of random commands, split at random places, with a plain model
//! of memcached's semantics.

use crate::testing;

use std::collections::HashMap;

use proptest::prelude::*;
use testing::{Client, strtoull};

/// Few keys, so that commands use the same key again.
const KEYS: u8 = 6;

#[derive(Clone, Debug)]
enum Command {
    /// A classic storage command other than `cas`.
    Store {
        name: &'static str,
        key: u8,
        flags: u32,
        ttl: i32,
        value: String,
        quiet: bool,
    },
    Cas {
        key: u8,
        value: String,
        cas: u64,
    },
    Get {
        keys: Vec<u8>,
    },
    GetAndTouch {
        ttl: i32,
        keys: Vec<u8>,
    },
    Delete {
        key: u8,
        quiet: bool,
    },
    Count {
        name: &'static str,
        key: u8,
        delta: u64,
    },
    Touch {
        key: u8,
        ttl: i32,
    },
    FlushAll,
    MetaGet {
        key: u8,
        vivify: Option<u32>,
        recache: Option<u32>,
        quiet: bool,
    },
    /// `E` sets the version, so that the model knows it.
    MetaSet {
        key: u8,
        mode: Option<char>,
        compare: Option<u64>,
        cas: u64,
        stale: bool,
        value: String,
    },
    MetaDelete {
        key: u8,
        compare: Option<u64>,
        stale: bool,
        drop: bool,
        cas: u64,
    },
    MetaCount {
        key: u8,
        vivify: Option<u64>,
        down: bool,
        delta: u64,
    },
    Noop,
    /// The clock advances, and nothing is sent.
    Wait(u32),
}

#[derive(Clone, Default)]
struct Entry {
    value: String,
    flags: u32,
    /// 0 means never.
    expiry: u32,
    /// 0 means a version that the model does not know. No command compares with it.
    cas: u64,
    stale: bool,
    claimed: bool,
}

#[derive(Default)]
struct Model {
    now: u32,
    entries: HashMap<u8, Entry>,
}

impl Model {
    fn live(&mut self, key: u8) -> Option<&mut Entry> {
        let now = self.now;
        self.entries
            .retain(|_, entry| entry.expiry == 0 || entry.expiry > now);
        self.entries.get_mut(&key)
    }

    fn expiry(&self, ttl: i32) -> u32 {
        match ttl {
            0 => 0,
            ..0 => 1,
            _ => self.now + ttl.unsigned_abs(),
        }
    }

    /// Stores in this mode. Returns the meta protocol's code.
    fn store(
        &mut self,
        key: u8,
        mode: char,
        entry: Entry,
        compare: Option<u64>,
        stale: bool,
    ) -> &'static str {
        let compare = compare.filter(|_| mode != 'E');
        let old = self.live(key).cloned();
        let Some(old) = old else {
            return match mode {
                'A' | 'P' | 'R' if compare.is_none() || mode != 'R' => "NS",
                _ if compare.is_some() => "NF",
                _ => {
                    self.entries.insert(key, entry);
                    "HD"
                }
            };
        };
        let mut new = entry;
        if mode == 'E' {
            return "NS";
        }
        if let Some(compare) = compare.filter(|&compare| compare != old.cas) {
            if !(stale && "SR".contains(mode) && compare < old.cas) {
                return "EX";
            }
            (new.stale, new.claimed, new.expiry) = (true, old.claimed, old.expiry);
        }
        if "AP".contains(mode) {
            let (front, back) = if mode == 'A' {
                (&old.value, &new.value)
            } else {
                (&new.value, &old.value)
            };
            new.value = format!("{front}{back}");
            (new.flags, new.expiry) = (old.flags, old.expiry);
        }
        self.entries.insert(key, new);
        "HD"
    }

    /// Adds or subtracts. Returns the number or the meta protocol's code, or `None` if the value is
    /// not a number.
    fn count(&mut self, key: u8, down: bool, delta: u64) -> Option<Result<u64, &'static str>> {
        let Some(entry) = self.live(key) else {
            return Some(Err("NF"));
        };
        let number = strtoull(&entry.value)?;
        let number = if down {
            number.saturating_sub(delta)
        } else {
            number.wrapping_add(delta)
        };
        entry.value = format!("{number:<width$}", width = entry.value.len());
        entry.cas = 0;
        Some(Ok(number))
    }

    /// The bytes of the command and the expected answer.
    fn play(&mut self, command: &Command) -> (String, String) {
        match command {
            Command::Store {
                name,
                key,
                flags,
                ttl,
                value,
                quiet,
            } => {
                let entry = Entry {
                    value: value.clone(),
                    flags: *flags,
                    expiry: self.expiry(*ttl),
                    ..Entry::default()
                };
                let mode = match *name {
                    "set" => 'S',
                    "add" => 'E',
                    "replace" => 'R',
                    "append" => 'A',
                    _ => 'P',
                };
                let answer = match self.store(*key, mode, entry, None, false) {
                    "HD" => "STORED\r\n",
                    _ => "NOT_STORED\r\n",
                };
                let noreply = if *quiet { " noreply" } else { "" };
                let sent = format!(
                    "{name} k{key} {flags} {ttl} {}{noreply}\r\n{value}\r\n",
                    value.len()
                );
                (
                    sent,
                    if *quiet {
                        String::new()
                    } else {
                        answer.to_owned()
                    },
                )
            }
            Command::Cas { key, value, cas } => {
                let entry = Entry {
                    value: value.clone(),
                    ..Entry::default()
                };
                let answer = match self.store(*key, 'S', entry, Some(*cas), false) {
                    "HD" => "STORED\r\n",
                    "EX" => "EXISTS\r\n",
                    _ => "NOT_FOUND\r\n",
                };
                (
                    format!("cas k{key} 0 0 {} {cas}\r\n{value}\r\n", value.len()),
                    answer.to_owned(),
                )
            }
            Command::Get { keys } => {
                let answer = keys.iter().map(|&key| self.item(key)).collect::<String>() + "END\r\n";
                (format!("get {}\r\n", list(keys)), answer)
            }
            Command::GetAndTouch { ttl, keys } => {
                let mut answer = String::new();
                for &key in keys {
                    answer += &self.item(key);
                    let expiry = self.expiry(*ttl);
                    if let Some(entry) = self.live(key) {
                        entry.expiry = expiry;
                    }
                }
                (format!("gat {ttl} {}\r\n", list(keys)), answer + "END\r\n")
            }
            Command::Delete { key, quiet } => {
                let found = self.live(*key).is_some();
                self.entries.remove(key);
                let answer = if found {
                    "DELETED\r\n"
                } else {
                    "NOT_FOUND\r\n"
                };
                let noreply = if *quiet { " noreply" } else { "" };
                let answer = if *quiet { "" } else { answer };
                (format!("delete k{key}{noreply}\r\n"), answer.to_owned())
            }
            Command::Count { name, key, delta } => {
                let answer = match self.count(*key, *name == "decr", *delta) {
                    None => {
                        "CLIENT_ERROR cannot increment or decrement non-numeric value".to_owned()
                    }
                    Some(Err(_)) => "NOT_FOUND".to_owned(),
                    Some(Ok(number)) => number.to_string(),
                };
                (format!("{name} k{key} {delta}\r\n"), answer + "\r\n")
            }
            Command::Touch { key, ttl } => {
                let expiry = self.expiry(*ttl);
                let answer = match self.live(*key) {
                    Some(entry) => {
                        entry.expiry = expiry;
                        "TOUCHED\r\n"
                    }
                    None => "NOT_FOUND\r\n",
                };
                (format!("touch k{key} {ttl}\r\n"), answer.to_owned())
            }
            Command::FlushAll => {
                self.entries.clear();
                ("flush_all\r\n".to_owned(), "OK\r\n".to_owned())
            }
            Command::MetaGet {
                key,
                vivify,
                recache,
                quiet,
            } => self.meta_get(*key, *vivify, *recache, *quiet),
            Command::MetaSet {
                key,
                mode,
                compare,
                cas,
                stale,
                value,
            } => {
                let entry = Entry {
                    value: value.clone(),
                    cas: *cas,
                    ..Entry::default()
                };
                let code = self.store(*key, mode.unwrap_or('S'), entry, *compare, *stale);
                let mut flags = format!(" E{cas}");
                flags += &mode.map(|mode| format!(" M{mode}")).unwrap_or_default();
                flags += &compare
                    .map(|compare| format!(" C{compare}"))
                    .unwrap_or_default();
                flags += if *stale { " I" } else { "" };
                (
                    format!("ms k{key} {}{flags} k\r\n{value}\r\n", value.len()),
                    format!("{code} kk{key}\r\n"),
                )
            }
            Command::MetaDelete {
                key,
                compare,
                stale,
                drop,
                cas,
            } => {
                let code = match self.live(*key) {
                    None => "NF",
                    Some(entry) if compare.is_some_and(|compare| compare != entry.cas) => "EX",
                    Some(entry) => {
                        entry.cas = *cas;
                        if *drop {
                            entry.value.clear();
                            entry.flags = 0;
                        }
                        if *stale {
                            (entry.stale, entry.claimed) = (true, false);
                        }
                        if !*drop && !*stale {
                            self.entries.remove(key);
                        }
                        "HD"
                    }
                };
                let mut flags = format!(" E{cas}");
                flags += &compare
                    .map(|compare| format!(" C{compare}"))
                    .unwrap_or_default();
                flags += if *stale { " I" } else { "" };
                flags += if *drop { " x" } else { "" };
                (format!("md k{key}{flags}\r\n"), format!("{code}\r\n"))
            }
            Command::MetaCount {
                key,
                vivify,
                down,
                delta,
            } => {
                let answer = match self.count(*key, *down, *delta) {
                    None => "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
                        .to_owned(),
                    Some(Ok(number)) => format!("VA {}\r\n{number}\r\n", number.to_string().len()),
                    Some(Err(code)) => match vivify {
                        None => format!("{code}\r\n"),
                        Some(initial) => {
                            let value = initial.to_string();
                            let answer = format!("VA {}\r\n{value}\r\n", value.len());
                            let expiry = self.expiry(9);
                            self.entries.insert(
                                *key,
                                Entry {
                                    value,
                                    expiry,
                                    ..Entry::default()
                                },
                            );
                            answer
                        }
                    },
                };
                let mut flags = format!(" v D{delta}");
                flags += &vivify
                    .map(|initial| format!(" N9 J{initial}"))
                    .unwrap_or_default();
                flags += if *down { " MD" } else { "" };
                (format!("ma k{key}{flags}\r\n"), answer)
            }
            Command::Noop => ("mn\r\n".to_owned(), "MN\r\n".to_owned()),
            Command::Wait(seconds) => {
                self.now += seconds;
                (String::new(), String::new())
            }
        }
    }

    fn item(&mut self, key: u8) -> String {
        match self.live(key) {
            Some(entry) => format!(
                "VALUE k{key} {} {}\r\n{}\r\n",
                entry.flags,
                entry.value.len(),
                entry.value
            ),
            None => String::new(),
        }
    }

    fn meta_get(
        &mut self,
        key: u8,
        vivify: Option<u32>,
        recache: Option<u32>,
        quiet: bool,
    ) -> (String, String) {
        // `t` after `N`: before `N`, a new item never expires.
        let mut flags = " v f".to_owned();
        flags += &vivify.map(|ttl| format!(" N{ttl}")).unwrap_or_default();
        flags += " t";
        flags += &recache.map(|ttl| format!(" R{ttl}")).unwrap_or_default();
        flags += if quiet { " q" } else { "" };
        let now = self.now;
        let mut claim = "";
        if self.live(key).is_none() {
            let Some(ttl) = vivify else {
                return (
                    format!("mg k{key}{flags}\r\n"),
                    if quiet { "" } else { "EN\r\n" }.to_owned(),
                );
            };
            let expiry = now + ttl;
            self.entries.insert(
                key,
                Entry {
                    expiry,
                    claimed: true,
                    ..Entry::default()
                },
            );
            claim = " W";
        }
        let entry = self.entries.get_mut(&key).expect("it is there now");
        if claim.is_empty() {
            let low = recache.is_some_and(|ttl| entry.expiry != 0 && entry.expiry < now + ttl);
            claim = match (entry.claimed, entry.stale, low) {
                (true, true, _) => " Z X",
                (true, false, _) => " Z",
                (false, true, _) => " X W",
                (false, false, true) => " W",
                (false, false, false) => "",
            };
            entry.claimed |= claim.ends_with('W');
        }
        let left = if entry.expiry == 0 {
            -1
        } else {
            i64::from(entry.expiry - now)
        };
        let answer = format!(
            "VA {} f{} t{left}{claim}\r\n{}\r\n",
            entry.value.len(),
            entry.flags,
            entry.value
        );
        (format!("mg k{key}{flags}\r\n"), answer)
    }
}

fn list(keys: &[u8]) -> String {
    keys.iter()
        .map(|key| format!("k{key}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Few versions, so that some match. They are far from those that a cache assigns.
fn cas() -> impl Strategy<Value = u64> + Clone {
    1_u64 << 60..(1_u64 << 60) + 4
}

fn ttl() -> impl Strategy<Value = i32> {
    prop_oneof![3 => Just(0), 1 => -1..1, 3 => 1..20]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[0-9]{1,3}",
        "[a-z \r\n]{1,40}",
        Just("18446744073709551615".to_owned())
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let key = 0..KEYS;
    let keys = proptest::collection::vec(0..KEYS, 1..8);
    let name = proptest::sample::select(vec!["set", "set", "add", "replace", "append", "prepend"]);
    let mode = proptest::sample::select(vec![
        None,
        Some('S'),
        Some('E'),
        Some('A'),
        Some('P'),
        Some('R'),
    ]);
    let delta = prop_oneof![0..100_u64, Just(u64::MAX)];
    let compare = proptest::option::of(cas());
    prop_oneof![
        4 => (name, key.clone(), any::<u32>(), ttl(), value(), any::<bool>())
            .prop_map(
                |(name, key, flags, ttl, value, quiet)| Command::Store { name, key, flags, ttl,
                    value, quiet }),
        1 => (key.clone(), value(), cas())
            .prop_map(|(key, value, cas)| Command::Cas { key, value, cas }),
        4 => keys.clone().prop_map(|keys| Command::Get { keys }),
        1 => (ttl(), keys).prop_map(|(ttl, keys)| Command::GetAndTouch { ttl, keys }),
        1 => (key.clone(), any::<bool>()).prop_map(|(key, quiet)| Command::Delete { key, quiet }),
        2 => (proptest::sample::select(vec!["incr", "decr"]), key.clone(), delta.clone())
            .prop_map(|(name, key, delta)| Command::Count { name, key, delta }),
        1 => (key.clone(), ttl()).prop_map(|(key, ttl)| Command::Touch { key, ttl }),
        1 => Just(Command::FlushAll),
        4 => (key.clone(), proptest::option::of(1..20_u32), proptest::option::of(1..30_u32),
            any::<bool>())
            .prop_map(
                |(key, vivify, recache, quiet)| Command::MetaGet { key, vivify, recache, quiet }),
        4 => (key.clone(), mode, compare.clone(), cas(), any::<bool>(), value()).prop_map(
            |(key, mode, compare, cas, stale, value)| Command::MetaSet { key, mode, compare, cas,
                stale, value }),
        2 => (key.clone(), compare, any::<bool>(), any::<bool>(), cas())
            .prop_map(
                |(key, compare, stale, drop, cas)| Command::MetaDelete { key, compare, stale, drop,
                    cas }),
        2 => (key, proptest::option::of(0..1000_u64), any::<bool>(), delta)
            .prop_map(|(key, vivify, down, delta)| Command::MetaCount { key, vivify, down, delta }),
        1 => Just(Command::Noop),
        1 => (1..10_u32).prop_map(Command::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn pipelines_are_answered_as_the_model_answers_them(
        commands in proptest::collection::vec(command(), 1..60),
        step in prop_oneof![1..50_usize, Just(usize::MAX)],
    ) {
        let mut client = Client::new();
        let mut model = Model { now: client.cache.now(), ..Model::default() };
        let (mut sent, mut expected) = (String::new(), String::new());
        for command in &commands {
            if let Command::Wait(_) = command {
                // Send everything so far before the clock advances.
                let answer = client.send_in_steps(sent.as_bytes(), step);
                prop_assert_eq!(String::from_utf8_lossy(&answer), expected.as_str(), "{}", sent);
                sent.clear();
                expected.clear();
            }
            let (request, answer) = model.play(command);
            sent += &request;
            expected += &answer;
            client.cache.advance(model.now);
        }
        let answer = client.send_in_steps(sent.as_bytes(), step);
        prop_assert_eq!(String::from_utf8_lossy(&answer), expected.as_str(), "{}", sent);
    }
}
