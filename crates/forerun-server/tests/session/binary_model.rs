//! Random pipelines of the binary protocol, split at random places, compared with a plain model.
//!
//! ```text
//!   round    a pipeline of requests, sent in pieces      model    a map, which answers one by one
//!   versions of the server and of the model are paired when they first appear in the same answer
//! ```

use crate::testing;

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use testing::packets::*;
use testing::{Client, strtoull};

/// Number of keys: few, so that requests often meet.
const KEYS: u8 = 4;

/// A version that no item has.
const NO_VERSION: u64 = 1 << 60;

/// A time of day that has passed.
const PAST: u32 = 30 * 24 * 3600 + 1;

/// A request before the server's versions are known.
#[derive(Clone, Debug)]
struct Planned {
    /// Its `cas` is 0.
    request: Packet,
    key: u8,
    version: Version,
}

/// The version that a request names.
#[derive(Clone, Copy, Debug)]
enum Version {
    None,
    /// The one that the item had before the round.
    Known,
    Wrong,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Vec<u8>,
    flags: [u8; 4],
    /// 0: never.
    expiry: u32,
    cas: u64,
}

#[derive(Default)]
struct Model {
    now: u32,
    entries: BTreeMap<Vec<u8>, Entry>,
    cas: u64,
}

impl Model {
    fn live(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now = self.now;
        self.entries
            .get_mut(key)
            .filter(|entry| entry.expiry == 0 || entry.expiry > now)
    }

    fn next_cas(&mut self) -> u64 {
        self.cas += 1;
        self.cas
    }

    fn expiry(&self, time: u32) -> u32 {
        match time {
            0 => 0,
            PAST => 1,
            seconds => self.now.saturating_add(seconds),
        }
    }

    /// The answer, if there is one.
    fn play(&mut self, request: &Packet) -> Option<Packet> {
        let opcode = request.opcode;
        let loud = (0..0x30).find(|&loud| quiet(loud) == Some(opcode));
        let is_quiet = loud.is_some();
        let command = loud.unwrap_or(opcode);
        let answer = Packet {
            opcode,
            opaque: request.opaque,
            ..Packet::default()
        };
        match self.execute(command, request) {
            Ok(good) => {
                let is_read = matches!(command, GET | GETK | GAT | GATK);
                (!is_quiet || is_read).then_some(Packet { opcode, ..good })
            }
            Err((1, _)) if is_quiet && matches!(command, GET | GETK | GAT | GATK) => None,
            Err((status, _)) if matches!(command, GETK | GATK) => Some(Packet {
                status,
                key: request.key.clone(),
                ..answer
            }),
            Err((status, text)) => Some(Packet {
                status,
                value: text.to_vec(),
                ..answer
            }),
        }
    }

    /// The answer without its opcode, or its status and text.
    fn execute(&mut self, command: u8, request: &Packet) -> Result<Packet, (u16, &'static [u8])> {
        const NOT_FOUND: (u16, &[u8]) = (1, b"Not found");
        const NOT_A_NUMBER: (u16, &[u8]) = (6, b"Non-numeric server-side value for incr or decr");
        const EXISTS: (u16, &[u8]) = (2, b"Data exists for key.");
        let number = |at: usize| {
            let bytes = request.extras[at..].first_chunk().expect("a time");
            u32::from_be_bytes(*bytes)
        };
        let long = |at: usize| {
            let bytes = request.extras[at..].first_chunk().expect("a number");
            u64::from_be_bytes(*bytes)
        };
        let good = |cas| Packet {
            opaque: request.opaque,
            cas,
            ..Packet::default()
        };
        let key = &request.key;
        let wrong = |entry: &Entry| request.cas != 0 && request.cas != entry.cas;
        match command {
            NOOP => Ok(good(0)),
            FLUSH => {
                self.entries.clear();
                Ok(good(0))
            }
            GET | GETK | GAT | GATK | TOUCH => {
                let is_touch = !matches!(command, GET | GETK);
                let expiry = is_touch.then(|| self.expiry(number(0)));
                let entry = self.live(key).ok_or(NOT_FOUND)?;
                let answer = Packet {
                    extras: entry.flags.to_vec(),
                    key: match command {
                        GETK | GATK => key.clone(),
                        _ => Vec::new(),
                    },
                    value: match command {
                        TOUCH => Vec::new(),
                        _ => entry.value.clone(),
                    },
                    ..good(entry.cas)
                };
                entry.expiry = expiry.unwrap_or(entry.expiry);
                Ok(answer)
            }
            DELETE => match self.live(key) {
                None => Err(NOT_FOUND),
                Some(entry) if wrong(entry) => Err(EXISTS),
                Some(_) => {
                    self.entries.remove(key);
                    Ok(good(0))
                }
            },
            INCREMENT | DECREMENT => {
                let expiry = self.expiry(number(16));
                let cas = self.next_cas();
                let (value, is_new) = match self.live(key) {
                    None if number(16) == u32::MAX => return Err(NOT_FOUND),
                    None => (long(8), true),
                    Some(entry) if entry.value.is_empty() => return Err(NOT_A_NUMBER),
                    Some(entry) if wrong(entry) => return Err(EXISTS),
                    Some(entry) => {
                        let text = String::from_utf8_lossy(&entry.value);
                        let number = strtoull(&text).ok_or(NOT_A_NUMBER)?;
                        let number = match command {
                            INCREMENT => number.wrapping_add(long(0)),
                            _ => number.saturating_sub(long(0)),
                        };
                        // A shorter number is padded.
                        let width = entry.value.len();
                        entry.value = format!("{number:<width$}").into_bytes();
                        entry.cas = cas;
                        (number, false)
                    }
                };
                if is_new {
                    let entry = Entry {
                        value: value.to_string().into_bytes(),
                        flags: [0; 4],
                        expiry,
                        cas,
                    };
                    self.entries.insert(key.clone(), entry);
                }
                Ok(Packet {
                    value: value.to_be_bytes().to_vec(),
                    ..good(cas)
                })
            }
            APPEND | PREPEND => {
                let cas = self.next_cas();
                let entry = self.live(key).ok_or((5, &b"Not stored."[..]))?;
                if wrong(entry) {
                    return Err(EXISTS);
                }
                entry.value = match command {
                    APPEND => [&entry.value[..], &request.value].concat(),
                    _ => [&request.value[..], &entry.value].concat(),
                };
                entry.cas = cas;
                Ok(good(cas))
            }
            SET | ADD | REPLACE => {
                match self.live(key) {
                    None if request.cas != 0 || command == REPLACE => return Err(NOT_FOUND),
                    Some(entry) if wrong(entry) => return Err(EXISTS),
                    Some(_) if request.cas == 0 && command == ADD => return Err(EXISTS),
                    _ => {}
                }
                let entry = Entry {
                    value: request.value.clone(),
                    flags: *request.extras.first_chunk().expect("flags"),
                    expiry: self.expiry(number(4)),
                    cas: self.next_cas(),
                };
                let cas = entry.cas;
                self.entries.insert(key.clone(), entry);
                Ok(good(cas))
            }
            _ => Err((0x81, b"Unknown command")),
        }
    }
}

/// The server's version of each of the model's, and the other way round.
#[derive(Default)]
struct Versions {
    real: HashMap<u64, u64>,
    model: HashMap<u64, u64>,
}

impl Versions {
    /// Whether the two may be the version in the same answer.
    fn agree(&mut self, real: u64, model: u64) -> bool {
        if real == 0 || model == 0 {
            return real == model;
        }
        *self.real.entry(model).or_insert(real) == real
            && *self.model.entry(real).or_insert(model) == model
    }
}

fn planned() -> impl Strategy<Value = Planned> {
    let time = prop_oneof![3 => Just(0), 3 => 1..20_u32, 1 => Just(PAST)];
    let value = prop_oneof![
        "[0-9]{1,3}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..40),
        Just(b"18446744073709551615".to_vec()),
        (15_000..40_000_usize).prop_map(|len| vec![b'x'; len]),
    ];
    let delta = prop_oneof![0..100_u64, Just(u64::MAX)];
    let version = prop_oneof![
        6 => Just(Version::None), 2 => Just(Version::Known), 1 => Just(Version::Wrong)];
    let request = prop_oneof![
        4 => (proptest::sample::select(vec![SET, SET, ADD, REPLACE]), any::<u32>(), time.clone(),
            value.clone())
            .prop_map(|(opcode, flags, time, value)| {
                Packet::store(opcode, b"", flags, time, &value)
            }),
        2 => (APPEND..=PREPEND, value)
            .prop_map(|(opcode, value)| Packet::new(opcode).value(&value)),
        6 => proptest::sample::select(vec![GET, GETK]).prop_map(Packet::new),
        2 => (proptest::sample::select(vec![TOUCH, GAT, GATK]), time.clone())
            .prop_map(|(opcode, time)| Packet::touch(opcode, b"", time)),
        3 => (INCREMENT..=DECREMENT, delta, 0..1000_u64,
            prop_oneof![3 => time, 1 => Just(u32::MAX)])
            .prop_map(|(opcode, delta, initial, time)| {
                Packet::count(opcode, b"", delta, initial, time)
            }),
        1 => Just(Packet::new(DELETE)),
        1 => Just(Packet::new(NOOP)),
        1 => Just(Packet::new(0x99).extras(b"any").value(b"value")),
        1 => Just(Packet::new(FLUSH)),
    ];
    (request, 0..KEYS, version, any::<bool>(), any::<u32>()).prop_map(
        |(mut request, key, version, is_quiet, opaque)| {
            request.opaque = opaque;
            if is_quiet {
                request.opcode = quiet(request.opcode).unwrap_or(request.opcode);
            }
            if !matches!(request.opcode, NOOP | FLUSH | FLUSHQ) {
                request.key = vec![b'k', key, 0, b'\n'];
            }
            Planned {
                request,
                key,
                version,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn pipelines_are_answered_as_the_model_answers_them(
        rounds in proptest::collection::vec(
            (proptest::collection::vec(planned(), 1..30), 0..10_u32), 1..5),
        step in prop_oneof![1..50_usize, 50..20_000_usize, Just(usize::MAX)],
    ) {
        let mut client = Client::new();
        let mut model = Model { now: client.cache.now(), ..Model::default() };
        let mut versions = Versions::default();
        for (planned, wait) in rounds {
            let known: Vec<Option<(u64, u64)>> = (0..KEYS)
                .map(|key| {
                    let entry = model.entries.get(&[b'k', key, 0, b'\n'][..])?;
                    Some((*versions.real.get(&entry.cas)?, entry.cas))
                })
                .collect();
            let (mut sent, mut expected) = (Vec::new(), Vec::new());
            for Planned { mut request, key, version } in planned {
                let (real, of_model) = match version {
                    Version::None => (0, 0),
                    Version::Known => known[usize::from(key)].unwrap_or((NO_VERSION, NO_VERSION)),
                    Version::Wrong => (NO_VERSION, NO_VERSION),
                };
                request.cas = real;
                sent.extend(request.bytes());
                request.cas = of_model;
                expected.extend(model.play(&request));
            }
            let answers = Packet::read_all(&client.send_in_steps(&sent, step));
            for (answer, expected) in answers.iter().zip(&mut expected) {
                prop_assert!(versions.agree(answer.cas, expected.cas), "{answer:?} {expected:?}");
                expected.cas = answer.cas;
            }
            prop_assert_eq!(answers, expected);
            model.now += wait;
            client.cache.advance(model.now);
        }
    }
}
