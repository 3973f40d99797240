//! One client of a soak test: it performs random operations sequentially and checks the answers.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::expected_versions::{ExpectedVersions, LOOSE_KEYS};
use super::value::{self, Key};
use super::wire::{Target, Wire};

/// Keys that a client stores together at first.
const FILL_KEYS: usize = 16;

/// A client's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub keys_read: u64,
    pub keys_found: u64,
    pub stored: u64,
    pub deleted: u64,
    pub reconnected: u64,
    pub killed: u64,
    pub half_closed: u64,
    pub read_slowly: u64,
    pub malformed: u64,
}

impl Counters {
    pub fn add(&mut self, other: &Counters) {
        self.keys_read += other.keys_read;
        self.keys_found += other.keys_found;
        self.stored += other.stored;
        self.deleted += other.deleted;
        self.reconnected += other.reconnected;
        self.killed += other.killed;
        self.half_closed += other.half_closed;
        self.read_slowly += other.read_slowly;
        self.malformed += other.malformed;
    }
}

/// A client: its connection, and its keys.
pub struct Client<'a> {
    server: Target,
    expected: &'a ExpectedVersions,
    number: u32,
    rng: SmallRng,
    wire: Wire,
    request: Vec<u8>,
    pub counters: Counters,
}

impl<'a> Client<'a> {
    pub fn connect(
        server: Target,
        expected: &'a ExpectedVersions,
        number: u32,
        seed: u64,
    ) -> Result<Client<'a>, String> {
        let wire = Wire::connect(&server)?;
        Ok(Client {
            server,
            expected,
            number,
            rng: SmallRng::seed_from_u64(seed ^ u64::from(number) << 32),
            wire,
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
                let version = self.push_value(key, |client, bytes| {
                    client.write(format_args!("set {key} 0 0 {bytes}\r\n"));
                });
                sent.push((key, version));
            }
            self.send()?;
            for (key, version) in sent {
                self.wire.expect("set", &["STORED"])?;
                self.stored(key, version);
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
    fn own(&mut self) -> Key {
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
    fn keys_of_any_client(&mut self, count: usize) -> Vec<(Key, u64)> {
        let mut asked: Vec<(Key, u64)> = Vec::with_capacity(count);
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
            0..900 => self.rng.random_range(50..500),
            900..996 => self.rng.random_range(500..8_000),
            _ => self.rng.random_range(8_000..600_000),
        }
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

    fn push_get(&mut self, command: &str, asked: &[(Key, u64)]) {
        self.write(format_args!("{command}"));
        for (key, _) in asked {
            self.write(format_args!(" {key}"));
        }
        self.write(format_args!("\r\n"));
    }

    /// Appends a value of the next version, in a request whose form `head` writes for its length.
    fn push_value(&mut self, key: Key, head: impl FnOnce(&mut Self, usize)) -> u64 {
        let (version, bytes) = (self.expected.draw(key), self.bytes());
        let mut value = Vec::new();
        value::push(key, version, bytes, &mut value);
        head(self, value.len());
        self.request.extend_from_slice(&value);
        self.request.extend_from_slice(b"\r\n");
        version
    }

    fn read(&mut self, asked: &[(Key, u64)]) -> Result<Option<u64>, String> {
        let (found, cas) = self.wire.values(self.expected, asked)?;
        self.counters.keys_read += asked.len() as u64;
        self.counters.keys_found += found;
        Ok(cas)
    }

    fn stored(&mut self, key: Key, version: u64) {
        self.expected.acknowledge(key, version);
        self.counters.stored += 1;
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
        let version = self.push_value(key, |client, bytes| {
            client.write(format_args!("set {key} 0 0 {bytes}\r\n"));
        });
        self.send()?;
        self.wire.expect("set", &["STORED"])?;
        self.stored(key, version);
        Ok(())
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
            let version = self.push_value(key, |client, bytes| {
                client.write(format_args!("ms {key} {bytes} T86400\r\n"));
            });
            sent.push((key, version));
        }
        self.send()?;
        for (key, version) in sent {
            self.wire.expect("ms", &["HD"])?;
            self.stored(key, version);
        }
        Ok(())
    }

    fn add(&mut self) -> Result<(), String> {
        let key = self.own();
        let version = self.push_value(key, |client, bytes| {
            client.write(format_args!("add {key} 0 86400 {bytes}\r\n"));
        });
        self.send()?;
        if self.wire.expect("add", &["STORED", "NOT_STORED"])? == 0 {
            self.stored(key, version);
        }
        Ok(())
    }

    fn compare_and_swap(&mut self) -> Result<(), String> {
        let key = self.own();
        let asked = [(key, self.expected.floor(key))];
        self.push_get("gets", &asked);
        self.send()?;
        let Some(cas) = self.read(&asked)? else {
            return Ok(());
        };
        let version = self.push_value(key, |client, bytes| {
            client.write(format_args!("cas {key} 0 0 {bytes} {cas}\r\n"));
        });
        self.send()?;
        // Only this client writes the key, so only an eviction can have removed it.
        if self.wire.expect("cas", &["STORED", "NOT_FOUND"])? == 0 {
            self.stored(key, version);
        }
        Ok(())
    }

    fn delete(&mut self) -> Result<(), String> {
        let key = self.own();
        let version = self.expected.draw(key);
        self.write(format_args!("delete {key}\r\n"));
        self.send()?;
        self.wire.expect("delete", &["DELETED", "NOT_FOUND"])?;
        self.expected.acknowledge(key, version);
        self.counters.deleted += 1;
        Ok(())
    }

    fn touch(&mut self) -> Result<(), String> {
        let key = self.own();
        self.write(format_args!("touch {key} 3600\r\n"));
        self.send()?;
        self.wire.expect("touch", &["TOUCHED", "NOT_FOUND"])?;
        Ok(())
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
                // The answer has at least this many bytes even if no key was found.
                self.wire.discard("END\r\n".len())?;
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
