//! One client of a soak test: it performs random operations sequentially and checks the answers.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::counters::Counters;
use super::expected_versions::{ExpectedVersions, Floor, LOOSE_KEYS};
use super::value::{self, Key};
use super::wire::{Target, Wire};

/// Keys that a client stores together at first.
const FILL_KEYS: usize = 16;

/// An expiry that no run reaches: 30 days.
const EXPIRY_S: u32 = 2_592_000;

/// One client in this many has a second connection, which requests the same long value this many
/// times and sleeps, for this many steps of the client on average.
const SLEEPING_CLIENTS: u32 = 9;
const SLEEPING_STEPS: u32 = 25;
const SLEEPING_GETS: usize = 8;

/// This share of the steps, in percent, is in RESP.
const RESP_STEPS: u32 = 30;

/// The answer to a store for which there is no memory.
const REFUSED: &str = "SERVER_ERROR out of memory storing object";

/// The server may refuse a longer value even if it evicts: all that have not arrived in full take
/// at most a quarter of its memory. It waits for a shorter one in the connection's buffer.
const NEVER_REFUSED_BYTES: usize = 15 << 10;

/// What clients store.
#[derive(Clone, Copy, Debug)]
pub struct ValueLimits {
    /// The longest value.
    pub bytes_max: usize,
    /// Whether the server may refuse short values too.
    pub may_be_refused: bool,
}

/// A value that was sent and whose answer is to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) key: Key,
    pub(super) version: u64,
    pub(super) may_be_refused: bool,
}

/// A client: its connection, and its keys.
pub struct Client<'a> {
    server: Target,
    pub(super) resp_server: Target,
    pub(super) expected: &'a ExpectedVersions,
    values: ValueLimits,
    number: u32,
    pub(super) rng: SmallRng,
    wire: Wire,
    /// A connection in RESP.
    pub(super) resp: Wire,
    /// A second connection, whose answers are not being read.
    asleep: Option<(Wire, Key, Floor)>,
    pub(super) request: Vec<u8>,
    pub counters: Counters,
}

impl<'a> Client<'a> {
    pub fn connect(
        (server, resp_server): (Target, Target),
        expected: &'a ExpectedVersions,
        values: ValueLimits,
        number: u32,
        seed: u64,
    ) -> Result<Client<'a>, String> {
        let wire = Wire::connect(&server)?;
        let resp = Wire::connect(&resp_server)?;
        Ok(Client {
            server,
            resp_server,
            expected,
            values,
            number,
            rng: SmallRng::seed_from_u64(seed ^ u64::from(number) << 32),
            wire,
            resp,
            asleep: None,
            request: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// Stores each of its own keys once, several at a time: all clients' keys together take more
    /// memory than the server may use.
    pub fn fill(&mut self, stop: &AtomicBool) -> Result<(), String> {
        let numbers: Vec<u32> = (LOOSE_KEYS..self.expected.keys()).collect();
        for numbers in numbers.chunks(FILL_KEYS) {
            // Relaxed: the flag publishes nothing else.
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let mut sent = Vec::with_capacity(numbers.len());
            for &number in numbers {
                let key = Key {
                    client: self.number,
                    number,
                };
                sent.push(self.push_value(key, |client, bytes| {
                    client.write(format_args!("set {key} 0 0 {bytes}\r\n"));
                }));
            }
            self.send()?;
            for sent in sent {
                self.read_stored("set", &["STORED"], sent)?;
            }
        }
        Ok(())
    }

    /// Continues until it is asked to stop or the server is at fault.
    pub fn work(&mut self, stop: &AtomicBool) -> Result<(), String> {
        // Relaxed: the flag publishes nothing else.
        while !stop.load(Ordering::Relaxed) {
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let may_sleep = self.number % SLEEPING_CLIENTS == 1 && self.wire.half_closes();
        if may_sleep && self.rng.random_ratio(1, SLEEPING_STEPS) {
            return self.sleep();
        }
        if self.rng.random_ratio(RESP_STEPS, 100) {
            return self.resp_step();
        }
        match self.rng.random_range(0..1000) {
            0..400 => self.get(),
            400..600 => self.meta_get(),
            600..800 => self.set(),
            800..880 => self.meta_set(),
            880..910 => self.add(),
            910..940 => self.compare_and_swap(),
            940..960 => self.delete(),
            960..970 => self.touch(),
            970..980 => self.malformed(),
            980..988 => self.reconnect(),
            988..993 => self.half_close(),
            993..998 => self.kill(),
            _ => self.read_slowly(),
        }
    }

    /// One of the client's own keys that it writes to in order.
    pub(super) fn own(&mut self) -> Key {
        Key {
            client: self.number,
            number: self.rng.random_range(LOOSE_KEYS..self.expected.keys()),
        }
    }

    fn loosely_checked_key(&mut self) -> Key {
        Key {
            client: self.number,
            number: self.rng.random_range(0..LOOSE_KEYS),
        }
    }

    /// Keys of any client, with the floors of their versions.
    pub(super) fn keys_of_any_client(&mut self, count: usize) -> Vec<(Key, Floor)> {
        let mut asked: Vec<(Key, Floor)> = Vec::with_capacity(count);
        for _ in 0..count {
            let key = Key {
                client: self.rng.random_range(0..self.expected.clients()),
                number: self.rng.random_range(0..self.expected.keys()),
            };
            asked.push((key, self.expected.floor(key)));
        }
        asked
    }

    /// Bytes of a value: mostly small, some large, few larger than a server keeps with the others.
    fn bytes(&mut self) -> usize {
        match self.rng.random_range(0..1000) {
            0..900 => self.rng.random_range(value::BYTES_MIN..500),
            900..996 => self.rng.random_range(500..8_000),
            996..999 => self.rng.random_range(8_000..600_000),
            _ => self.long_bytes(),
        }
    }

    /// Bytes of a long value.
    fn long_bytes(&mut self) -> usize {
        self.rng.random_range(500_000..=self.values.bytes_max)
    }

    fn write(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a Vec cannot fail.
        let _ = self.request.write_fmt(arguments);
    }

    fn send(&mut self) -> Result<(), String> {
        let sent = self.wire.send(&self.request);
        self.request.clear();
        sent
    }

    fn push_get(&mut self, command: &str, asked: &[(Key, Floor)]) {
        self.write(format_args!("{command}"));
        for (key, _) in asked {
            self.write(format_args!(" {key}"));
        }
        self.write(format_args!("\r\n"));
    }

    /// Appends a value of the next version, in a request whose form `head` writes for its length.
    pub(super) fn push_value(&mut self, key: Key, head: impl FnOnce(&mut Self, usize)) -> Sent {
        let bytes = self.bytes();
        self.push_value_of(key, bytes, head)
    }

    /// The same with a value of this length, unless its header is longer.
    fn push_value_of(
        &mut self,
        key: Key,
        bytes: usize,
        head: impl FnOnce(&mut Self, usize),
    ) -> Sent {
        let version = self.expected.draw(key);
        let mut value = Vec::new();
        value::push(key, version, bytes, &mut value);
        head(self, value.len());
        self.request.extend_from_slice(&value);
        self.request.extend_from_slice(b"\r\n");
        Sent {
            key,
            version,
            may_be_refused: self.values.may_be_refused || value.len() >= NEVER_REFUSED_BYTES,
        }
    }

    fn read(&mut self, asked: &[(Key, Floor)]) -> Result<Option<u64>, String> {
        let (found, cas) = self.wire.values(self.expected, asked)?;
        self.counters.keys_read += asked.len() as u64;
        self.counters.keys_found += found;
        Ok(cas)
    }

    /// Reads the answer to a store, which is one of `answers`, or that there is no memory. The
    /// first one acknowledges the version.
    fn read_stored(&mut self, request: &str, answers: &[&str], sent: Sent) -> Result<(), String> {
        let mut all = answers.to_vec();
        if sent.may_be_refused {
            all.push(REFUSED);
        }
        match self.wire.expect(request, &all)? {
            0 => {
                self.expected.stored(sent.key, sent.version);
                self.counters.stored += 1;
            }
            at if at == answers.len() => self.counters.refused += 1,
            _ => {}
        }
        Ok(())
    }

    fn get(&mut self) -> Result<(), String> {
        let count = self.rng.random_range(1..=100);
        let asked = self.keys_of_any_client(count);
        self.push_get("get", &asked);
        self.send()?;
        self.read(&asked).map(drop)
    }

    fn meta_get(&mut self) -> Result<(), String> {
        let count = self.rng.random_range(1..=30);
        let asked = self.keys_of_any_client(count);
        for (key, _) in &asked {
            self.write(format_args!("mg {key} k v q\r\n"));
        }
        self.write(format_args!("mn\r\n"));
        self.send()?;
        self.read(&asked).map(drop)
    }

    fn set(&mut self) -> Result<(), String> {
        let key = self.own();
        self.set_key(key)
    }

    pub(super) fn set_key(&mut self, key: Key) -> Result<(), String> {
        let sent = self.push_value(key, |client, bytes| {
            client.write(format_args!("set {key} 0 0 {bytes}\r\n"));
        });
        self.send()?;
        self.read_stored("set", &["STORED"], sent)
    }

    /// A few meta sets in a row, of different keys.
    fn meta_set(&mut self) -> Result<(), String> {
        let first = self.own();
        let mut sent = Vec::new();
        for step in 0..self.rng.random_range(1..=5) {
            let range = self.expected.keys() - LOOSE_KEYS;
            let key = Key {
                number: LOOSE_KEYS + (first.number - LOOSE_KEYS + step) % range,
                ..first
            };
            sent.push(self.push_value(key, |client, bytes| {
                client.write(format_args!("ms {key} {bytes} T{EXPIRY_S}\r\n"));
            }));
        }
        self.send()?;
        for sent in sent {
            self.read_stored("ms", &["HD"], sent)?;
        }
        Ok(())
    }

    fn add(&mut self) -> Result<(), String> {
        let key = self.own();
        let sent = self.push_value(key, |client, bytes| {
            client.write(format_args!("add {key} 0 {EXPIRY_S} {bytes}\r\n"));
        });
        self.send()?;
        self.read_stored("add", &["STORED", "NOT_STORED"], sent)
    }

    fn compare_and_swap(&mut self) -> Result<(), String> {
        let key = self.own();
        let asked = [(key, self.expected.floor(key))];
        self.push_get("gets", &asked);
        self.send()?;
        let Some(cas) = self.read(&asked)? else {
            return Ok(());
        };
        let sent = self.push_value(key, |client, bytes| {
            client.write(format_args!("cas {key} 0 0 {bytes} {cas}\r\n"));
        });
        self.send()?;
        // Only this client writes the key, so only an eviction can have removed it.
        self.read_stored("cas", &["STORED", "NOT_FOUND"], sent)
    }

    fn delete(&mut self) -> Result<(), String> {
        let key = self.own();
        let version = self.expected.draw(key);
        self.write(format_args!("delete {key}\r\n"));
        self.send()?;
        self.wire.expect("delete", &["DELETED", "NOT_FOUND"])?;
        self.expected.deleted(key, version);
        self.counters.deleted += 1;
        Ok(())
    }

    fn touch(&mut self) -> Result<(), String> {
        let key = self.own();
        let floor = self.expected.floor(key);
        self.write(format_args!("touch {key} {EXPIRY_S}\r\n"));
        self.send()?;
        match self.wire.expect("touch", &["TOUCHED", "NOT_FOUND"])? {
            0 => Ok(()),
            _ => self.expected.check_missing(key, floor),
        }
    }

    /// The server must answer malformed requests with an error and keep the connection.
    fn malformed(&mut self) -> Result<(), String> {
        let requests = [
            ("nonsense\r\n".to_owned(), "ERROR"),
            ("get\r\n".to_owned(), "ERROR"),
            (
                format!("get {}\r\n", "k".repeat(251)),
                "CLIENT_ERROR bad command line format",
            ),
            (
                "set k 0 0 many\r\n".to_owned(),
                "CLIENT_ERROR bad command line format",
            ),
            (
                "incr k x\r\n".to_owned(),
                "CLIENT_ERROR invalid numeric delta argument",
            ),
        ];
        let (request, answer) = &requests[self.rng.random_range(0..requests.len())];
        self.wire.send(request.as_bytes())?;
        self.wire.expect(request.trim_end(), &[answer])?;
        self.wire.send(b"mn\r\n")?;
        self.wire.expect("mn", &["MN"])?;
        self.counters.malformed += 1;
        Ok(())
    }

    fn reconnect(&mut self) -> Result<(), String> {
        self.wire = Wire::connect(&self.server)?;
        self.counters.reconnected += 1;
        Ok(())
    }

    /// A client that has sent its last request still gets its answers.
    fn half_close(&mut self) -> Result<(), String> {
        if !self.wire.half_closes() {
            return self.get();
        }
        let (first, second) = (self.keys_of_any_client(50), self.keys_of_any_client(20));
        self.push_get("get", &first);
        self.push_get("get", &second);
        self.send()?;
        self.wire.half_close()?;
        self.read(&first)?;
        self.read(&second)?;
        if self.wire.discard(1)? != 0 {
            return Err("there are bytes after the last answer".to_owned());
        }
        self.counters.half_closed += 1;
        self.reconnect()
    }

    /// A client that disconnects in the middle of a value or of its answers.
    fn kill(&mut self) -> Result<(), String> {
        let key = self.loosely_checked_key();
        self.push_value(key, |client, bytes| {
            client.write(format_args!("set {key} 0 0 {bytes}\r\n"));
        });
        if self.rng.random() {
            let cut = self.rng.random_range(1..self.request.len());
            self.request.truncate(cut);
        } else {
            let asked = self.keys_of_any_client(100);
            self.push_get("get", &asked);
        }
        self.send()?;
        // Unread answers make the system reset the connection.
        if self.rng.random() {
            self.wire.vanish()?;
        }
        self.counters.killed += 1;
        self.reconnect()
    }

    /// A client that requests a long value several times and sleeps until its next turn. Then it
    /// reads the answers, or closes the connection.
    fn sleep(&mut self) -> Result<(), String> {
        if let Some((mut wire, key, floor)) = self.asleep.take()
            && self.rng.random()
        {
            for _ in 0..SLEEPING_GETS {
                match wire.values(self.expected, &[(key, floor)]) {
                    Ok(_) => {}
                    // The server may close a connection that holds memory and makes no progress.
                    Err(_) if wire.has_ended() => break,
                    Err(fault) => return Err(fault),
                }
            }
        }
        // Always the same key, so that these values do not fill the memory.
        let key = Key {
            client: self.number,
            number: LOOSE_KEYS,
        };
        let bytes = self.long_bytes();
        let sent = self.push_value_of(key, bytes, |client, bytes| {
            client.write(format_args!("set {key} 0 0 {bytes}\r\n"));
        });
        self.send()?;
        self.read_stored("set", &["STORED"], sent)?;
        let floor = self.expected.floor(key);
        let mut wire = Wire::connect(&self.server)?;
        wire.send(format!("get {key}\r\n").repeat(SLEEPING_GETS).as_bytes())?;
        self.asleep = Some((wire, key, floor));
        self.counters.slept += 1;
        Ok(())
    }

    /// A client that requests many keys and reads the answer slowly, in half of the cases not to
    /// the end.
    fn read_slowly(&mut self) -> Result<(), String> {
        let mut asked = Vec::new();
        for _ in 0..20 {
            let keys = self.keys_of_any_client(100);
            self.push_get("get", &keys);
            asked.push(keys);
        }
        self.send()?;
        self.counters.read_slowly += 1;
        let gives_up = self.rng.random();
        for keys in &asked {
            std::thread::sleep(Duration::from_millis(50));
            if gives_up {
                // The answer has at least this many bytes even if no key was found. A reader this
                // slow makes no progress, so the server may close the connection.
                if self.wire.discard("END\r\n".len()).is_err() {
                    break;
                }
            } else {
                self.read(keys)?;
            }
        }
        if gives_up {
            return self.reconnect();
        }
        Ok(())
    }
}
