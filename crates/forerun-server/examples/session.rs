//! Measures what a session costs without a socket: request bytes in, answer bytes out, in
//! nanoseconds per key.
//!
//! ```sh
//! # Measure all forms; then run one form for ten seconds, for a profiler.
//! cargo run --release -p forerun-server --example session
//! cargo run --release -p forerun-server --example session -- get 100
//! ```
//!
//! The program measures each form with uniformly random keys out of `ITEMS`, in five alternating
//! rounds. It prints the median next to the median of the same lookups through
//! [`CacheGuard::multi_get`](forerun_cache::CacheGuard::multi_get) alone. The difference is the cost of the
//! protocol.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_cache::{Cache, CacheOptions, Item, Store, StoreResult};
use forerun_server::{Context, Input, NoServer, Output, Session, SessionState, Settings, Shared};

/// Values of 64 bytes with keys of 16 bytes.
const ITEMS: usize = 2_000_000;
const VALUE_BYTES: usize = 64;

/// Number of bytes that a socket would deliver at once.
const REQUEST_BYTES: usize = 16 << 10;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(300);

/// The form of a request.
#[derive(Clone, Copy)]
enum Form {
    /// One `get` with all keys.
    Get,
    /// One `mg` per key, pipelined.
    Meta,
    /// One `set` per key.
    Set,
}

fn key(number: usize) -> String {
    format!("key:{number:012}")
}

/// A pseudorandom number generator.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 29)) % ITEMS as u64) as usize
    }
}

struct Bench {
    cache: Arc<Cache>,
    context: Context,
    input: Input,
    output: Output,
    session: Session,
}

impl Bench {
    fn new() -> Self {
        let cache = Arc::new(
            Cache::new(CacheOptions::default().memory_limit_bytes(1 << 30))
                .expect("the options are fine"),
        );
        for number in 0..ITEMS {
            let stored = cache.store(Store::set(key(number).as_bytes(), &[b'v'; VALUE_BYTES]));
            assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
        }
        let shared = Shared::new(Settings::default(), Arc::clone(&cache), Box::new(NoServer));
        Self {
            cache,
            context: Context::new(Arc::new(shared)),
            input: Input::new(),
            output: Output::new(),
            session: Session::new(),
        }
    }

    /// Sends the requests to a session repeatedly. Returns nanoseconds per key.
    fn play(&mut self, requests: &[(Vec<u8>, usize)], time: Duration) -> f64 {
        let start = Instant::now();
        let mut keys = 0;
        let mut answered = 0;
        while start.elapsed() < time {
            for (request, count) in requests {
                self.input.extend(request);
                while self
                    .session
                    .receive(&mut self.input, &mut self.output, &mut self.context)
                    == SessionState::OutputFull
                {
                    answered += self.send();
                }
                answered += self.send();
                keys += count;
            }
        }
        assert!(answered > keys, "every key is answered");
        start.elapsed().as_nanos() as f64 / keys as f64
    }

    /// Consumes all answers, as a socket would.
    fn send(&mut self) -> usize {
        let len = self.output.len();
        let mut slices = [IoSlice::new(&[])];
        self.output.slices(&mut slices);
        self.output.advance(len);
        len
    }

    /// The same lookups without a protocol. Returns nanoseconds per key.
    fn look_up(&self, numbers: &[usize], keys_per_batch: usize, time: Duration) -> f64 {
        let texts: Vec<String> = numbers.iter().map(|&number| key(number)).collect();
        let keys: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
        let start = Instant::now();
        let mut count = 0;
        let mut bytes = 0;
        while start.elapsed() < time {
            for batch in keys.chunks(keys_per_batch.min(128)) {
                let guard = self.cache.pin();
                let mut items: [Option<Item<'_>>; 128] = [None; 128];
                let items = &mut items[..batch.len()];
                guard
                    .multi_get(batch, items)
                    .expect("there are as many items as keys");
                // Read one byte of each value to fetch its cache line.
                bytes += items
                    .iter()
                    .flatten()
                    .map(|item| usize::from(item.value()[0]))
                    .sum::<usize>();
                count += batch.len();
            }
        }
        assert!(bytes > 0);
        start.elapsed().as_nanos() as f64 / count as f64
    }
}

/// Requests of `keys` keys each, cut into pieces as a socket would deliver them, with the number of
/// keys in each piece.
fn requests(form: Form, keys: usize) -> (Vec<(Vec<u8>, usize)>, Vec<usize>) {
    let mut numbers = Numbers(keys as u64);
    let mut all = Vec::new();
    let mut requests = Vec::new();
    for _ in 0..200_000_usize.div_ceil(keys) {
        let mut request = Vec::new();
        let picked: Vec<usize> = (0..keys).map(|_| numbers.next()).collect();
        match form {
            Form::Get => {
                request.extend_from_slice(b"get");
                for &number in &picked {
                    request.extend_from_slice(format!(" {}", key(number)).as_bytes());
                }
                request.extend_from_slice(b"\r\n");
            }
            Form::Meta => {
                for &number in &picked {
                    request.extend_from_slice(format!("mg {} v\r\n", key(number)).as_bytes());
                }
            }
            Form::Set => {
                for &number in &picked {
                    let value = "w".repeat(VALUE_BYTES);
                    request.extend_from_slice(
                        format!("set {} 0 0 {VALUE_BYTES}\r\n{value}\r\n", key(number)).as_bytes(),
                    );
                }
            }
        }
        assert!(request.len() <= REQUEST_BYTES);
        requests.push((request, keys));
        all.extend(picked);
    }
    (requests, all)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let mut bench = Bench::new();
    let mut args = std::env::args().skip(1);
    if let (Some(form), Some(keys)) = (args.next(), args.next()) {
        let form = match form.as_str() {
            "get" => Form::Get,
            "mg" => Form::Meta,
            _ => Form::Set,
        };
        let (requests, _) = requests(form, keys.parse().expect("a number of keys"));
        println!(
            "{:.1} ns per key",
            bench.play(&requests, Duration::from_secs(4))
        );
        return;
    }
    println!("{ITEMS} items of {VALUE_BYTES} B; median of {ROUNDS} rounds, ns per key");
    println!("{:<28} {:>8} {:>14}", "request", "session", "lookup alone");
    for (name, form) in [
        ("get", Form::Get),
        ("mg v, pipelined", Form::Meta),
        ("set, pipelined", Form::Set),
    ] {
        for keys in [1, 10, 100] {
            let (requests, numbers) = requests(form, keys);
            let mut session = Vec::new();
            let mut lookup = Vec::new();
            for _ in 0..ROUNDS {
                session.push(bench.play(&requests, ROUND));
                lookup.push(bench.look_up(&numbers, keys, ROUND));
            }
            println!(
                "{:<28} {:>8.1} {:>14.1}",
                format!("{name}, {keys} keys"),
                median(session),
                median(lookup)
            );
        }
    }
}
