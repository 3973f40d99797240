//! What a client does over RESP, on a connection of its own, with the same keys and the same
//! expected versions as over memcached's protocol.

use rand::Rng;

use super::client::{Client, Sent};
use super::expected_versions::Floor;
use super::value::Key;
use super::wire::Wire;

/// The answer to a store for which there is no memory.
const REFUSED: &str = "-OOM command not allowed when used memory > 'maxmemory'.";
/// The answer to a transaction that was aborted.
const ABORTED: &str = "*-1";

/// An expiry that no run reaches: 30 days.
const EXPIRY_MS: &str = "2592000000";

/// The beginning of a request of so many words.
fn head(words: usize) -> String {
    format!("*{words}\r\n")
}

/// A word of a request.
fn word(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

impl Client<'_> {
    pub(super) fn resp_step(&mut self) -> Result<(), String> {
        self.counters.resp += 1;
        match self.rng.random_range(0..100) {
            0..40 => self.mget(),
            40..70 => self.resp_set(),
            70..78 => self.resp_delete(),
            78..86 => self.transaction(),
            86..92 => self.watched_set(),
            92..97 => self.expire(),
            _ => {
                self.resp = Wire::connect(&self.resp_server)?;
                Ok(())
            }
        }
    }

    /// Appends a request of words.
    fn push_words(&mut self, words: &[&str]) {
        self.request.extend(head(words.len()).bytes());
        for text in words {
            self.request.extend(word(text).bytes());
        }
    }

    /// Appends a `SET` of the key's next version.
    fn push_set(&mut self, key: Key) -> Sent {
        self.push_value(key, |client, bytes| {
            let front = [head(3), word("SET"), word(&key.to_string())].concat();
            client.request.extend(front.bytes());
            client.request.extend(format!("${bytes}\r\n").bytes());
        })
    }

    fn resp_send(&mut self) -> Result<(), String> {
        let sent = self.resp.send(&self.request);
        self.request.clear();
        sent
    }

    /// Reads the answer to a `SET`.
    fn resp_stored(&mut self, sent: Sent) -> Result<(), String> {
        let mut answers = vec!["+OK"];
        if sent.may_be_refused {
            answers.push(REFUSED);
        }
        match self.resp.expect("SET", &answers)? {
            0 => {
                self.expected.stored(sent.key, sent.version);
                self.counters.stored += 1;
            }
            _ => self.counters.refused += 1,
        }
        Ok(())
    }

    /// Reads the value of a key that was asked for, or nil.
    fn resp_value(&mut self, key: Key, floor: Floor) -> Result<(), String> {
        let is_found = self.resp.bulk(self.expected, key, floor)?;
        self.counters.keys_read += 1;
        self.counters.keys_found += u64::from(is_found);
        Ok(())
    }

    /// Keys of any client, in one request or several.
    fn mget(&mut self) -> Result<(), String> {
        let count = self.rng.random_range(1..=100);
        let asked = self.keys_of_any_client(count);
        let names: Vec<String> = asked.iter().map(|(key, _)| key.to_string()).collect();
        let is_one_request = self.rng.random();
        if is_one_request {
            let words: Vec<&str> = ["MGET"]
                .into_iter()
                .chain(names.iter().map(String::as_str))
                .collect();
            self.push_words(&words);
        } else {
            names
                .iter()
                .for_each(|name| self.push_words(&["GET", name]));
        }
        self.resp_send()?;
        if is_one_request {
            let header = format!("*{count}");
            self.resp.expect("MGET", &[header.as_str()])?;
        }
        asked
            .into_iter()
            .try_for_each(|(key, floor)| self.resp_value(key, floor))
    }

    fn resp_set(&mut self) -> Result<(), String> {
        let key = self.own();
        let sent = self.push_set(key);
        self.resp_send()?;
        self.resp_stored(sent)
    }

    fn resp_delete(&mut self) -> Result<(), String> {
        let key = self.own();
        let version = self.expected.draw(key);
        let command = if self.rng.random() { "DEL" } else { "UNLINK" };
        self.push_words(&[command, &key.to_string()]);
        self.resp_send()?;
        self.resp.expect(command, &[":1", ":0"])?;
        self.expected.deleted(key, version);
        self.counters.deleted += 1;
        Ok(())
    }

    /// A value that is stored and read in one step.
    fn transaction(&mut self) -> Result<(), String> {
        let key = self.own();
        self.push_words(&["MULTI"]);
        let sent = self.push_set(key);
        self.push_words(&["GET", &key.to_string()]);
        self.push_words(&["EXEC"]);
        self.resp_send()?;
        self.resp.expect("MULTI", &["+OK"])?;
        self.resp.expect("SET", &["+QUEUED"])?;
        self.resp.expect("GET", &["+QUEUED"])?;
        self.resp.expect("EXEC", &["*2"])?;
        self.resp_stored(sent)?;
        // Not an older version than the one that has just been stored.
        let floor = self.expected.floor(key);
        self.resp_value(key, floor)
    }

    /// A value that is stored only if the key has not changed since it was read. In half of the
    /// cases it is changed over memcached's protocol.
    fn watched_set(&mut self) -> Result<(), String> {
        let key = self.own();
        let name = key.to_string();
        self.push_words(&["WATCH", &name]);
        self.push_words(&["GET", &name]);
        let floor = self.expected.floor(key);
        self.resp_send()?;
        self.resp.expect("WATCH", &["+OK"])?;
        self.resp_value(key, floor)?;
        let is_set = self.rng.random();
        let before = self.counters.stored;
        if is_set {
            self.set_key(key)?;
        }
        let is_stored = self.counters.stored > before;
        self.push_words(&["MULTI"]);
        let sent = self.push_set(key);
        self.push_words(&["EXEC"]);
        self.resp_send()?;
        self.resp.expect("MULTI", &["+OK"])?;
        self.resp.expect("SET", &["+QUEUED"])?;
        let answers: &[&str] = if is_stored {
            &[ABORTED]
        } else if is_set || self.expected.evicts() {
            // A set that memcached refuses removes the item, if there was one. An eviction is a
            // change, too.
            &["*1", ABORTED]
        } else {
            &["*1"]
        };
        let at = self.resp.expect("EXEC", answers)?;
        if answers[at] == ABORTED {
            return Ok(());
        }
        self.resp_stored(sent)
    }

    fn expire(&mut self) -> Result<(), String> {
        let key = self.own();
        let name = key.to_string();
        let floor = self.expected.floor(key);
        self.push_words(&["PEXPIRE", &name, EXPIRY_MS]);
        self.push_words(&["PERSIST", &name]);
        self.resp_send()?;
        for command in ["PEXPIRE", "PERSIST"] {
            if self.resp.expect(command, &[":1", ":0"])? == 1 {
                self.expected.check_missing(key, floor)?;
            }
        }
        Ok(())
    }
}
