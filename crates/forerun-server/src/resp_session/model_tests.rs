//! Sequences of commands, compared with a plain model of Redis: a map, a list of fields for each
//! hash, and a clock.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::test_client::{TestClient, request};

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
const NOT_INTEGER: &str = "-ERR value is not an integer or out of range\r\n";

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Hash(Vec<(String, String)>),
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    expires_ms: Option<u64>,
}

/// The items, by key.
#[derive(Default)]
struct Model {
    items: BTreeMap<String, Entry>,
    now_ms: u64,
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn number(number: impl TryInto<i64>) -> String {
    format!(":{}\r\n", number.try_into().unwrap_or(i64::MAX))
}

fn nil() -> String {
    "$-1\r\n".to_owned()
}

fn ok() -> String {
    "+OK\r\n".to_owned()
}

fn list(elements: Vec<String>) -> String {
    format!("*{}\r\n{}", elements.len(), elements.concat())
}

impl Model {
    fn get(&self, key: &str) -> Option<&Entry> {
        let live = |entry: &&Entry| entry.expires_ms.is_none_or(|at| at >= self.now_ms);
        self.items.get(key).filter(live)
    }

    /// The text of a key, or the error for another type.
    fn text(&self, key: &str) -> Result<Option<String>, String> {
        match self.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text.clone())),
            Some(Value::Hash(_)) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn hash(&self, key: &str) -> Result<Vec<(String, String)>, String> {
        match self.get(key).map(|entry| &entry.value) {
            None => Ok(Vec::new()),
            Some(Value::Hash(fields)) => Ok(fields.clone()),
            Some(Value::Text(_)) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn put(&mut self, key: &str, value: Value, expires_ms: Option<u64>) {
        self.items
            .insert(key.to_owned(), Entry { value, expires_ms });
    }

    /// Replaces the value and keeps the time. An empty hash goes.
    fn change(&mut self, key: &str, value: Value) {
        let expires_ms = self.get(key).and_then(|entry| entry.expires_ms);
        if value == Value::Hash(Vec::new()) {
            self.items.remove(key);
        } else {
            self.put(key, value, expires_ms);
        }
    }

    fn answer(&mut self, words: &[&str]) -> String {
        self.try_answer(words).unwrap_or_else(|error| error)
    }

    fn try_answer(&mut self, words: &[&str]) -> Result<String, String> {
        let key = words.get(1).copied().unwrap_or_default();
        Ok(match words {
            ["GET", _] => self.text(key)?.map_or(nil(), |text| bulk(&text)),
            ["MGET", keys @ ..] => {
                let one = |key: &&str| {
                    self.text(key)
                        .ok()
                        .flatten()
                        .map_or(nil(), |text| bulk(&text))
                };
                list(keys.iter().map(one).collect())
            }
            ["EXISTS", keys @ ..] => {
                number(keys.iter().filter(|key| self.get(key).is_some()).count())
            }
            ["STRLEN", _] => number(self.text(key)?.map_or(0, |text| text.len())),
            ["TYPE", _] => match self.get(key).map(|entry| &entry.value) {
                None => "+none\r\n".to_owned(),
                Some(Value::Text(_)) => "+string\r\n".to_owned(),
                Some(Value::Hash(_)) => "+hash\r\n".to_owned(),
            },
            ["PTTL", _] => match self.get(key) {
                None => number(-2),
                Some(Entry {
                    expires_ms: None, ..
                }) => number(-1),
                Some(Entry {
                    expires_ms: Some(at),
                    ..
                }) => number(at - self.now_ms),
            },
            ["SET", _, value, options @ ..] => self.set(key, value, options)?,
            ["GETDEL", _] => {
                let text = self.text(key)?;
                self.items.remove(key);
                text.map_or(nil(), |text| bulk(&text))
            }
            ["DEL", keys @ ..] => {
                let there = |key: &&&str| self.get(key).is_some();
                let mut live: Vec<&&str> = keys.iter().filter(there).collect();
                live.sort();
                live.dedup();
                let count = live.len();
                keys.iter().for_each(|key| _ = self.items.remove(*key));
                number(count)
            }
            ["APPEND", _, value] => {
                let text = self.text(key)?.unwrap_or_default() + value;
                let len = text.len();
                self.change(key, Value::Text(text));
                number(len)
            }
            ["SETRANGE", _, offset, value] => {
                let offset: usize = offset.parse().expect("a number");
                let mut bytes = self.text(key)?.unwrap_or_default().into_bytes();
                if !value.is_empty() {
                    bytes.resize(bytes.len().max(offset + value.len()), 0);
                    bytes[offset..offset + value.len()].copy_from_slice(value.as_bytes());
                    let text = String::from_utf8(bytes.clone()).expect("ASCII");
                    self.change(key, Value::Text(text));
                }
                number(bytes.len())
            }
            ["INCRBY", _, delta] => {
                let delta: i64 = delta.parse().expect("a number");
                let old = self.text(key)?;
                let old = old.map_or(Some(0), |text| {
                    let read = text.parse::<i64>().ok();
                    read.filter(|number| number.to_string() == text)
                });
                let sum = old.ok_or(NOT_INTEGER)?.checked_add(delta);
                let sum = sum.ok_or("-ERR increment or decrement would overflow\r\n")?;
                self.change(key, Value::Text(sum.to_string()));
                number(sum)
            }
            ["PEXPIRE", _, ms, condition @ ..] => {
                let ms: i64 = ms.parse().expect("a number");
                let at = self.now_ms.saturating_add_signed(ms);
                let Some(entry) = self.get(key) else {
                    return Ok(number(0));
                };
                let old = entry.expires_ms;
                let holds = match condition {
                    ["NX"] => old.is_none(),
                    ["XX"] => old.is_some(),
                    ["GT"] => old.is_some_and(|old| at > old),
                    ["LT"] => old.is_none_or(|old| at < old),
                    _ => true,
                };
                let value = entry.value.clone();
                match (holds, ms) {
                    (true, 1..) => self.put(key, value, Some(at)),
                    (true, _) => _ = self.items.remove(key),
                    (false, _) => {}
                }
                number(i64::from(holds))
            }
            ["PERSIST", _] => {
                let had_time = self
                    .get(key)
                    .is_some_and(|entry| entry.expires_ms.is_some());
                if let Some(entry) = self.items.get_mut(key).filter(|_| had_time) {
                    entry.expires_ms = None;
                }
                number(i64::from(had_time))
            }
            ["RENAME", _, to] => {
                let entry = self.get(key).cloned().ok_or("-ERR no such key\r\n")?;
                self.items.remove(key);
                self.items.insert((*to).to_owned(), entry);
                ok()
            }
            ["HSET", _, pairs @ ..] => {
                let mut fields = self.hash(key)?;
                let before = fields.len();
                for pair in pairs.chunks(2) {
                    match fields.iter_mut().find(|(field, _)| field == pair[0]) {
                        Some((_, value)) => *value = pair[1].to_owned(),
                        None => fields.push((pair[0].to_owned(), pair[1].to_owned())),
                    }
                }
                let new = fields.len() - before;
                self.change(key, Value::Hash(fields));
                number(new)
            }
            ["HDEL", _, removed @ ..] => {
                let mut fields = self.hash(key)?;
                let before = fields.len();
                fields.retain(|(field, _)| !removed.contains(&field.as_str()));
                let count = before - fields.len();
                if count > 0 {
                    self.change(key, Value::Hash(fields));
                }
                number(count)
            }
            ["HGETDEL", _, "FIELDS", _, removed @ ..] => {
                let mut fields = self.hash(key)?;
                let mut take = |wanted: &&str| {
                    let at = fields.iter().position(|(field, _)| field == wanted);
                    at.map_or(nil(), |at| bulk(&fields.remove(at).1))
                };
                let values = list(removed.iter().map(&mut take).collect());
                if self.get(key).is_some() {
                    self.change(key, Value::Hash(fields));
                }
                values
            }
            ["HGETALL", _] => {
                let fields = self.hash(key)?;
                let pair = |(field, value): &(String, String)| [bulk(field), bulk(value)];
                list(fields.iter().flat_map(pair).collect())
            }
            ["HMGET", _, wanted @ ..] => {
                let fields = self.hash(key)?;
                let value = |wanted: &&str| {
                    let found = fields.iter().find(|(field, _)| field == wanted);
                    found.map_or(nil(), |(_, value)| bulk(value))
                };
                list(wanted.iter().map(value).collect())
            }
            ["HLEN", _] => number(self.hash(key)?.len()),
            ["FLUSHALL"] => {
                self.items.clear();
                ok()
            }
            other => panic!("{other:?}"),
        })
    }

    fn set(&mut self, key: &str, value: &str, options: &[&str]) -> Result<String, String> {
        let has = |word: &str| options.contains(&word);
        let old = if has("GET") {
            Some(self.text(key)?)
        } else {
            None
        };
        let exists = self.get(key).is_some();
        let holds = !(has("NX") && exists || has("XX") && !exists);
        if holds {
            let kept = self.get(key).and_then(|entry| entry.expires_ms);
            let time = options.iter().position(|word| *word == "PX");
            let time = time.map(|at| self.now_ms + options[at + 1].parse::<u64>().expect("ms"));
            let expires_ms = if has("KEEPTTL") { kept } else { time };
            self.put(key, Value::Text(value.to_owned()), expires_ms);
        }
        Ok(match (old, holds) {
            (Some(old), _) => old.map_or(nil(), |old| bulk(&old)),
            (None, true) => ok(),
            (None, false) => nil(),
        })
    }
}

/// A command of the model, or a time to let pass.
#[derive(Clone, Debug)]
enum Action {
    Command(Vec<String>),
    Advance(u64),
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]", "hash[12]"]
}

fn value() -> impl Strategy<Value = String> {
    let largest = Just(i64::MAX.to_string());
    prop_oneof!["-?[0-9]{1,3}", "[a-z]{0,5}", largest, "v{200}"]
}

/// One of these words.
fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(words)
}

/// A command as a line.
fn command() -> impl Strategy<Value = String> {
    let options = (one_of(&["", " GET"]), one_of(&["", " NX", " XX"]));
    let set = (key(), value(), options, one_of(&["", " PX 50", " KEEPTTL"]));
    let set = set.prop_map(|(key, value, (get, condition), time)| {
        format!("SET {key} {value}{get}{condition}{time}")
    });
    let names = &[
        "GET", "STRLEN", "TYPE", "PTTL", "GETDEL", "PERSIST", "HGETALL", "HLEN",
    ];
    let of_key = (one_of(names), key()).prop_map(|(name, key)| format!("{name} {key}"));
    let of_keys = (
        one_of(&["MGET", "EXISTS", "DEL"]),
        prop::collection::vec(key(), 1..4),
    );
    let of_keys = of_keys.prop_map(|(name, keys)| format!("{name} {}", keys.join(" ")));
    let append = (key(), value()).prop_map(|(key, value)| format!("APPEND {key} {value}"));
    let setrange = (key(), 0..9, value());
    let setrange = setrange.prop_map(|(key, at, value)| format!("SETRANGE {key} {at} {value}"));
    let incrby = (key(), -99..99).prop_map(|(key, delta)| format!("INCRBY {key} {delta}"));
    let expire = (key(), -50..200, one_of(&["", " NX", " XX", " GT", " LT"]));
    let expire = expire.prop_map(|(key, ms, condition)| format!("PEXPIRE {key} {ms}{condition}"));
    let rename = (key(), key()).prop_map(|(from, to)| format!("RENAME {from} {to}"));
    let pair = ("[xyz]", value()).prop_map(|(field, value)| format!("{field} {value}"));
    let hset = (key(), prop::collection::vec(pair, 1..4));
    let hset = hset.prop_map(|(key, pairs)| format!("HSET {key} {}", pairs.join(" ")));
    let fields = prop::collection::vec("[xyz]", 1..12);
    let of_fields = (one_of(&["HDEL", "HMGET", "HGETDEL"]), key(), fields);
    let of_fields = of_fields.prop_map(|(name, key, fields)| {
        let count = match name {
            "HGETDEL" => format!("FIELDS {} ", fields.len()),
            _ => String::new(),
        };
        format!("{name} {key} {count}{}", fields.join(" "))
    });
    prop_oneof![
        3 => set,
        2 => of_key,
        1 => of_keys,
        1 => append,
        1 => setrange,
        1 => incrby,
        2 => expire,
        1 => rename,
        2 => hset,
        1 => of_fields,
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let words = |line: String| Action::Command(line.split(' ').map(str::to_owned).collect());
    let action = prop_oneof![
        12 => command().prop_map(words),
        2 => (1_u64..80).prop_map(Action::Advance),
        1 => Just(words("FLUSHALL".to_owned())),
    ];
    prop::collection::vec(action, 1..80)
}

proptest! {
    #[test]
    fn commands_have_the_answers_of_the_model(
        actions in actions(),
        in_transactions in any::<bool>(),
    ) {
        let mut client = TestClient::new();
        let mut model = Model { now_ms: client.cache.now_ms(), ..Model::default() };
        // Commands go out together, up to the next passage of time.
        let (mut sent, mut expected, mut count) = (Vec::new(), String::new(), 0);
        for action in actions.iter().chain([&Action::Advance(1)]) {
            match action {
                Action::Command(words) => {
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
                    sent.extend(request(&bytes));
                    expected += &model.answer(&words);
                    count += 1;
                }
                Action::Advance(ms) => {
                    if in_transactions {
                        let body = std::mem::take(&mut sent);
                        sent = [request(&[b"MULTI"]), body, request(&[b"EXEC"])].concat();
                        let queued = "+QUEUED\r\n".repeat(count);
                        expected = format!("+OK\r\n{queued}*{count}\r\n{expected}");
                    }
                    let answer = client.send(&sent);
                    let answer = String::from_utf8_lossy(&answer);
                    prop_assert_eq!(answer, expected.as_str(), "{:?}", actions);
                    sent.clear();
                    expected.clear();
                    count = 0;
                    model.now_ms += ms;
                    client.cache.advance_ms(model.now_ms);
                }
            }
        }
        let live = model.items.keys().filter(|key| model.get(key).is_some()).count();
        let answer = client.ask("KEYS *");
        prop_assert!(answer.starts_with(&format!("*{live}")), "{} {}", answer, live);
    }
}
