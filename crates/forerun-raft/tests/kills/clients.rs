//! Clients that write and read while nodes are killed, and their history.
//!
//! A write sets a key and its twin to the same value, which no other write has, or deletes both. A
//! read asks for all keys of the round and their twins in one batch. A twin that differs from its
//! key means that a request was seen in part; the keys are then checked as registers.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cluster_client::{CallError, Client};
use crate::linearizability::{Action, Call, Value, is_linearizable};

/// Keys of a round. Few keys have many calls at the same time, but a short history is checked
/// faster.
const KEYS: u64 = 3;
/// A client that finds no leader for this time tries another operation.
const LEADER_TIMEOUT: Duration = Duration::from_millis(500);
/// The pause between the operations of a client.
const PAUSE: Duration = Duration::from_millis(4);

pub struct History {
    begin: Instant,
    /// The round that new operations belong to.
    pub round: AtomicU64,
    /// Operations that have succeeded.
    pub succeeded: AtomicU64,
    pub has_ended: AtomicBool,
    next_value: AtomicU64,
    calls: Mutex<BTreeMap<String, Vec<Call>>>,
}

/// What a history has in it.
#[derive(Debug, Default)]
pub struct Totals {
    pub keys: usize,
    pub writes: usize,
    pub unknown_writes: usize,
    pub reads: usize,
}

impl History {
    pub fn new() -> History {
        History {
            begin: Instant::now(),
            round: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            next_value: AtomicU64::new(1),
            calls: Mutex::new(BTreeMap::new()),
        }
    }

    /// Runs a client until the history has ended.
    ///
    /// All numbers here are counters that are read for progress, so their orderings may be relaxed;
    /// the history itself is under a lock.
    pub fn run_client(&self, client: &Client, seed: u64) {
        let mut random = SmallRng::seed_from_u64(seed);
        while !self.has_ended.load(Ordering::Relaxed) {
            let round = self.round.load(Ordering::Relaxed);
            if random.random_bool(0.5) {
                let key = format!("{round}/{}", random.random_range(0..KEYS));
                let is_delete = random.random_bool(0.15);
                self.write(client, &key, is_delete);
            } else {
                self.read(client, round);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn write(&self, client: &Client, key: &str, is_delete: bool) {
        let number = self.next_value.fetch_add(1, Ordering::Relaxed);
        let value = (!is_delete).then_some(number);
        let (twin, text) = (twin(key), value.map(|value| value.to_string()));
        let ops = [(key, text.as_deref()), (&twin, text.as_deref())];
        let start_ns = self.now_ns();
        let end_ns = match client.write(&ops, LEADER_TIMEOUT) {
            Ok(()) => Some(self.now_ns()),
            Err(CallError::Unknown(_)) => None,
            Err(CallError::NotDone(_)) => return,
        };
        if end_ns.is_some() {
            self.succeeded.fetch_add(1, Ordering::Relaxed);
        }
        self.add(key, Action::Write(value), start_ns, end_ns);
    }

    fn read(&self, client: &Client, round: u64) {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("{round}/{key}")).collect();
        let asked: Vec<String> = keys
            .iter()
            .cloned()
            .chain(keys.iter().map(|key| twin(key)))
            .collect();
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        let start_ns = self.now_ns();
        let Ok(values) = client.multi_get(&asked, LEADER_TIMEOUT) else {
            return;
        };
        let end_ns = Some(self.now_ns());
        let (values, twins) = values.split_at(keys.len());
        assert_eq!(values, twins, "round {round}: a request was seen in part");
        self.succeeded.fetch_add(1, Ordering::Relaxed);
        for (key, value) in keys.iter().zip(values) {
            let value: Value = value
                .as_deref()
                .map(|value| value.parse().expect("a number"));
            self.add(key, Action::Read(value), start_ns, end_ns);
        }
    }

    fn add(&self, key: &str, action: Action, start_ns: u64, end_ns: Option<u64>) {
        let mut calls = self.calls.lock().expect("no client panics with the lock");
        calls.entry(key.to_owned()).or_default().push(Call {
            action,
            start_ns,
            end_ns,
        });
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).expect("the test ends within 500 years")
    }

    /// Checks the history of every key.
    pub fn check(&self) -> Totals {
        let calls = self.calls.lock().expect("no client panics with the lock");
        let mut totals = Totals::default();
        for (key, calls) in &*calls {
            assert!(is_linearizable(calls), "key {key}: {calls:#?}");
            totals.keys += 1;
            for call in calls {
                match (call.action, call.end_ns) {
                    (Action::Read(_), _) => totals.reads += 1,
                    (Action::Write(_), Some(_)) => totals.writes += 1,
                    (Action::Write(_), None) => totals.unknown_writes += 1,
                }
            }
        }
        totals
    }
}

fn twin(key: &str) -> String {
    format!("{key}/twin")
}
