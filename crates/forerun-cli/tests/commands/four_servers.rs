//! Four `forerun serve` under load. One is killed, with and without having hung before, and brought
//! back. Clients see misses but never a wrong value, and never wait longer than the time-out.

use crate::cache_server;
use crate::testing;

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cache_server::CacheServer;
use forerun_client::{Client, ClientOptions, Lookups, Protocol};
use testing::Workspace;

const SERVERS: usize = 4;
const THREADS: usize = 4;
/// The keys of a thread. Only this thread writes them.
const KEYS: usize = 300;
const BATCH: usize = 100;
const TIMEOUT: Duration = Duration::from_millis(1000);
/// How much longer than the time-out a call may take because the machine is busy.
const GRACE: Duration = Duration::from_millis(2000);
const PATIENCE: Duration = Duration::from_secs(60);

/// What a thread knows of one of its keys. A read may always miss.
#[derive(Default)]
struct Known {
    /// The value of the last write that was answered; `None`: it has none.
    value: Option<Vec<u8>>,
    /// Values of writes that were not answered: each may have happened, or may still happen.
    unanswered: HashSet<Vec<u8>>,
}

/// What the threads have seen.
#[derive(Debug, Default)]
struct Seen {
    batches: AtomicUsize,
    hits: AtomicUsize,
    misses: AtomicUsize,
    failed: AtomicUsize,
    writes_failed: AtomicUsize,
    longest: Mutex<Duration>,
}

impl Seen {
    fn add(count: &AtomicUsize, more: usize) {
        count.fetch_add(more, Ordering::Relaxed);
    }

    fn took(&self, start: Instant) {
        let took = start.elapsed();
        let mut longest = self.longest.lock().expect("no panic while it is held");
        *longest = took.max(*longest);
    }

    fn count(count: &AtomicUsize) -> usize {
        count.load(Ordering::Relaxed)
    }
}

/// A client's thread: looks up batches of its keys, and stores and deletes some.
struct Worker<'a> {
    client: &'a Client,
    seen: &'a Seen,
    number: usize,
    known: Vec<Known>,
    values: Lookups,
    writes: u64,
}

impl Worker<'_> {
    fn key(&self, at: usize) -> String {
        format!("thread {}, key {at}", self.number).replace(' ', "_")
    }

    fn look_up(&mut self, round: usize) {
        let of = |at: usize| (round * 37 + at * 7) % KEYS;
        let keys: Vec<String> = (0..BATCH).map(|at| self.key(of(at))).collect();
        let start = Instant::now();
        let report = self.client.multi_get(&keys, &mut self.values);
        self.seen.took(start);
        let report = report.expect("good keys");
        assert_eq!(report.hits + report.misses + report.failed, BATCH);
        Seen::add(&self.seen.hits, report.hits);
        Seen::add(&self.seen.misses, report.misses);
        Seen::add(&self.seen.failed, report.failed);
        for (at, found) in self.values.iter().enumerate() {
            let Some(found) = found else { continue };
            let known = &self.known[of(at)];
            let is_right =
                known.value.as_deref() == Some(found.data) || known.unanswered.contains(found.data);
            let text = String::from_utf8_lossy(found.data);
            assert!(is_right, "{}: {text:.60}", keys[at]);
        }
    }

    /// Stores a new value, of another size each time.
    fn store(&mut self, at: usize) {
        self.writes += 1;
        let key = self.key(at);
        let text = format!("value {} of {key}. ", self.writes);
        let value = text.repeat(1 + self.writes as usize % 40).into_bytes();
        let start = Instant::now();
        let stored = self.client.set(&key, &value);
        self.seen.took(start);
        let known = &mut self.known[at];
        match stored {
            Ok(()) => known.value = Some(value),
            Err(_) => {
                Seen::add(&self.seen.writes_failed, 1);
                known.unanswered.insert(value);
            }
        }
    }

    fn delete(&mut self, at: usize) {
        let start = Instant::now();
        let deleted = self.client.delete(self.key(at));
        self.seen.took(start);
        // If there is no answer, the value may be there or not.
        if deleted.is_ok() {
            self.known[at].value = None;
        }
    }

    fn run(&mut self, is_over: &AtomicBool) {
        let mut round = self.number;
        while !is_over.load(Ordering::Relaxed) {
            round += 1;
            self.look_up(round);
            for at in 0..8 {
                self.store((round * 13 + at * 41) % KEYS);
            }
            self.delete((round * 17) % KEYS);
            Seen::add(&self.seen.batches, 1);
        }
    }
}

/// Waits until a condition is true.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills and restarts one server after another while the threads run.
fn kill_and_restart(
    workspace: &Workspace,
    servers: &mut Vec<CacheServer>,
    client: &Client,
    seen: &Seen,
) {
    let more = |count: &AtomicUsize, by: usize, what: &str| {
        let before = Seen::count(count);
        until(what, || Seen::count(count) >= before + by);
    };
    more(&seen.hits, 500, "the servers have values");
    for round in 0..4 {
        let mut server = servers.remove(round);
        let address = server.address.clone();
        if round % 2 == 1 {
            // It hangs first: its calls end by the time-out.
            server.pause();
            more(&seen.failed, 20, "calls to a server that hangs fail");
        }
        server.kill();
        more(&seen.failed, 20, "calls to a dead server fail");
        let others = Seen::count(&seen.hits);
        more(&seen.batches, 10, "the threads go on");
        assert!(Seen::count(&seen.hits) > others, "the others answer");
        drop(server);
        servers.insert(round, CacheServer::forerun_at(workspace, &address, &[]));
        until("it is used again", || client.stats().ejected_servers == 0);
        more(&seen.hits, 500, "the servers have values");
        // After that, nothing fails.
        let is_calm = || {
            let failed = Seen::count(&seen.failed);
            more(&seen.batches, 2 * THREADS, "the threads go on");
            Seen::count(&seen.failed) == failed
        };
        until("every call is answered", is_calm);
    }
}

fn one_is_killed(protocol: Protocol) {
    let workspace = Workspace::new();
    let start = |_| CacheServer::forerun(&workspace, &["--threads", "1"]);
    let mut servers: Vec<CacheServer> = (0..SERVERS).map(start).collect();
    let addresses = servers.iter().map(|server| {
        let address = server.address.parse();
        address.expect("an address")
    });
    let options = ClientOptions::default()
        .protocol(protocol)
        .timeout(TIMEOUT)
        .retry_interval(Duration::from_millis(100));
    let client = Client::new(addresses, options).expect("a client");
    let (seen, is_over) = (Seen::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (client, seen, is_over) = (&client, &seen, &is_over);
            scope.spawn(move || {
                let mut worker = Worker {
                    client,
                    seen,
                    number,
                    known: (0..KEYS).map(|_| Known::default()).collect(),
                    values: Lookups::new(),
                    writes: 0,
                };
                worker.run(is_over);
            });
        }
        // The threads must stop in any case.
        let ran = std::panic::catch_unwind(AssertUnwindSafe(|| {
            kill_and_restart(&workspace, &mut servers, &client, &seen);
        }));
        is_over.store(true, Ordering::Relaxed);
        ran.expect("see above");
    });
    let longest = *seen.longest.lock().expect("no panic");
    println!("{protocol:?}: {seen:?}");
    assert!(longest < TIMEOUT + GRACE, "a call took {longest:?}");
    assert!(Seen::count(&seen.writes_failed) > 0);
}

#[test]
fn a_killed_server_costs_misses_but_no_wrong_value_and_no_stall() {
    one_is_killed(Protocol::Classic);
    one_is_killed(Protocol::MultiGet);
}
