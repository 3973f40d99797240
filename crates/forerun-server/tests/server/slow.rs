//! Clients that read slowly or not at all delay only themselves, and the server uses bounded memory
//! for them.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forerun_cache::{Cache, CacheOptions};
use forerun_server::Server;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::multi_get_frames::{ENABLE, ENABLED, Frame};
use super::test_server::{TIMEOUT, ask, connect, options, rest, start, stat, until};

/// These tests measure the memory of their process, so they run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .expect("a field")
        .parse()
        .expect("a number");
    pages * 4096
}

/// A request whose answer has 100 kB, if `k` has 10 kB.
fn greedy_line() -> String {
    "get".to_owned() + &" k".repeat(10) + "\r\n"
}

/// How a client asks.
#[derive(Clone, Copy, Debug)]
enum Form {
    Text,
    MultiGet,
}

impl Form {
    const ALL: [Form; 2] = [Form::Text, Form::MultiGet];

    /// A connection on which a client may ask in this form.
    fn connect(self, server: &Server) -> TcpStream {
        let mut stream = connect(server);
        if matches!(self, Form::MultiGet) {
            ask(&mut stream, ENABLE, ENABLED);
        }
        stream
    }

    /// A request for `k`. `number` is the number of requests before it, whose answers the client
    /// claims to have received.
    fn request(self, number: u16, keys: usize) -> Vec<u8> {
        match self {
            Form::Text => ("get".to_owned() + &" k".repeat(keys) + "\r\n").into_bytes(),
            Form::MultiGet => Frame::of(7, &vec!["k"; keys]).received(number).bytes(),
        }
    }
}

/// Stores 10 kB under `k`.
fn store_10_kb(stream: &mut TcpStream) {
    let value = "x".repeat(10_000);
    ask(
        stream,
        &format!("set k 0 0 10000\r\n{value}\r\n"),
        "STORED\r\n",
    );
}

/// Sends requests with large answers until the server stops reading or closes the connection.
/// Returns whether the server stopped reading. Afterwards the stream is nonblocking.
fn send_until_refused(stream: &mut TcpStream, form: Form) -> bool {
    stream.set_nonblocking(true).expect("it can be");
    let start = Instant::now();
    let mut refused = 0;
    let mut numbers = (0..=u16::MAX).cycle();
    let mut unsent = Vec::new();
    while refused < 3 && start.elapsed() < TIMEOUT {
        while unsent.len() < 20_000 {
            unsent.extend(form.request(numbers.next().unwrap_or(0), 10));
        }
        match stream.write(&unsent) {
            Ok(count) => {
                unsent.drain(..count);
                refused = 0;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(_) => return false,
        }
    }
    assert_eq!(refused, 3, "it is still read from");
    true
}

#[test]
fn a_client_that_never_reads_costs_bounded_memory() {
    let _alone = alone();
    Form::ALL.into_iter().for_each(never_read);
}

fn never_read(form: Form) {
    const READERS: usize = 16;
    let server = start(options());
    let mut other = connect(&server);
    store_10_kb(&mut other);
    let before = resident_bytes();
    let mut greedy: Vec<_> = (0..READERS).map(|_| form.connect(&server)).collect();
    for stream in &mut greedy {
        assert!(send_until_refused(stream, form), "it was closed");
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(
        grown < READERS as u64 * (300 << 10),
        "{form:?}: {grown} bytes for {READERS} readers that do not read"
    );
    // Other clients do not wait for these clients, which still do not read.
    ask(&mut other, "mn\r\n", "MN\r\n");
}

#[test]
fn all_slow_readers_together_cost_bounded_memory_and_do_not_stop_the_server() {
    let _alone = alone();
    // Both forms have the same buffers.
    let all = std::env::var_os("FORERUN_ALL_CASES").is_some();
    Form::ALL[usize::from(!all)..]
        .iter()
        .for_each(|form| all_read_slowly(*form));
}

fn all_read_slowly(form: Form) {
    const LIMIT: u64 = 1 << 20;
    let server = start(options().buffer_limit_bytes(Some(LIMIT as usize)));
    let mut other = connect(&server);
    store_10_kb(&mut other);
    let number = |other: &mut _, name: &str| stat(other, name).parse::<u64>().expect("a number");
    let held =
        |other: &mut _| number(other, "response_obj_bytes") + number(other, "read_buf_bytes");
    // Each worker may briefly exceed the limit by one connection.
    let held_bytes_max = LIMIT + 2 * (400 << 10);
    // There are far more clients than the limit allows. The server keeps serving this one.
    let mut greedy: Vec<_> = (0..40).map(|_| form.connect(&server)).collect();
    for stream in &mut greedy {
        send_until_refused(stream, form);
        assert!(held(&mut other) < held_bytes_max);
    }
    // The last answers may still be on their way into the sockets.
    let start = Instant::now();
    while number(&mut other, "response_obj_oom") == 0 {
        assert!(start.elapsed() < TIMEOUT, "none was closed");
        assert!(held(&mut other) < held_bytes_max);
        std::thread::sleep(Duration::from_millis(20));
    }
    // The server closes the remaining ones because they never read.
    let start = Instant::now();
    while held(&mut other) > LIMIT / 5 * 4 {
        assert!(start.elapsed() < TIMEOUT, "stalled readers keep the memory");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(greedy);
    let start = Instant::now();
    while number(&mut other, "response_obj_bytes") > 0 {
        assert!(start.elapsed() < TIMEOUT, "the memory never comes back");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(number(&mut other, "response_obj_count"), 0);
    ask(&mut other, "mn\r\n", "MN\r\n");
}

#[test]
fn readers_that_read_a_little_now_and_then_do_not_stop_others() {
    let _alone = alone();
    let server = start(options().buffer_limit_bytes(Some(1 << 20)));
    let mut other = connect(&server);
    store_10_kb(&mut other);
    let mut greedy: Vec<_> = (0..40).map(|_| connect(&server)).collect();
    greedy.retain_mut(|stream| send_until_refused(stream, Form::Text));
    assert!(!greedy.is_empty());
    // This is enough to count as progress, but far too little to empty the server's buffers.
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    let reader = std::thread::spawn(move || {
        let mut piece = vec![0; 200 << 10];
        // Relaxed: the flag publishes nothing else.
        while !is_over.load(Ordering::Relaxed) {
            for stream in &mut greedy {
                let _ = stream.read(&mut piece);
                let _ = stream.write(greedy_line().as_bytes());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let start = Instant::now();
    let mut slowest = Duration::ZERO;
    // This is longer than the server tolerates a stalled reader.
    while start.elapsed() < Duration::from_secs(8) {
        let asked = Instant::now();
        ask(&mut other, "mn\r\n", "MN\r\n");
        // New clients are served too.
        ask(&mut connect(&server), "get none\r\n", "END\r\n");
        slowest = slowest.max(asked.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    over.store(true, Ordering::Relaxed);
    reader.join().expect("it reads");
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
}

#[test]
fn an_upload_without_progress_does_not_keep_the_memory_of_uploads() {
    let _alone = alone();
    let options_of_cache = CacheOptions::default()
        .memory_limit_bytes(64 << 20)
        .max_item_bytes(16 << 20);
    let cache = Arc::new(Cache::new(options_of_cache).expect("a cache"));
    let server = Server::start(options(), cache.clone()).expect("it starts");
    // All uploads together may use 16 MiB. One upload uses 12 MiB of that, and then sends a byte
    // now and then.
    let mut slow = connect(&server);
    let length = 15 << 20;
    slow.write_all(format!("set slow 0 0 {length}\r\n").as_bytes())
        .expect("it is sent");
    slow.write_all(&vec![b's'; 12 << 20]).expect("it is sent");
    until("the upload arrives", || {
        cache.stats().buffer_bytes >= 12 << 20
    });
    let sender = std::thread::spawn(move || {
        while slow.write_all(b"s").is_ok() {
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let value = "v".repeat(8 << 20);
    let mut other = connect(&server);
    let request = format!("set k 0 0 {}\r\n{value}\r\n", value.len());
    until("others can never upload", || {
        other.write_all(request.as_bytes()).expect("it is sent");
        let mut answer = String::new();
        let mut byte = [0];
        while !answer.ends_with("\r\n") {
            other.read_exact(&mut byte).expect("it answers");
            answer.push(char::from(byte[0]));
        }
        let refused = "SERVER_ERROR out of memory storing object\r\n";
        assert!(answer == "STORED\r\n" || answer == refused, "{answer}");
        answer == "STORED\r\n"
    });
    sender.join().expect("it sends");
    assert_eq!(stat(&mut other, "read_buf_oom"), "1");
}

/// Stores small items and then large ones. If `sleepers`, a client asks for each large one and does
/// not read it. Returns how many small items are left, the server, and the clients.
fn store_beside_sleepers(sleepers: bool) -> (usize, Server, Vec<TcpStream>) {
    const SMALL: usize = 20_000;
    let server = start(options());
    let mut stream = connect(&server);
    let value = "x".repeat(1000);
    for first in (0..SMALL).step_by(100) {
        let stores: String = (first..first + 100)
            .map(|n| format!("set s{n} 0 0 1000\r\n{value}\r\n"))
            .collect();
        ask(&mut stream, &stores, &"STORED\r\n".repeat(100));
    }
    let large = "b".repeat(1_000_000);
    let mut asleep = Vec::new();
    for n in 0..60 {
        let store = format!("set big{n} 0 0 1000000\r\n{large}\r\n");
        ask(&mut stream, &store, "STORED\r\n");
        if sleepers {
            let mut sleeper = connect(&server);
            // More than the sockets take.
            let request = format!("get big{n}\r\n").repeat(8);
            sleeper.write_all(request.as_bytes()).expect("it is sent");
            asleep.push(sleeper);
        }
    }
    let left = (0..SMALL).filter(|n| is_found(&mut stream, &format!("s{n}")));
    (left.count(), server, asleep)
}

fn is_found(stream: &mut TcpStream, key: &str) -> bool {
    stream
        .write_all(format!("mg {key}\r\n").as_bytes())
        .expect("it is sent");
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).expect("it answers");
    assert!(answer == *b"HD\r\n" || answer == *b"EN\r\n");
    answer == *b"HD\r\n"
}

#[test]
fn sleeping_readers_of_large_values_take_no_more_memory_than_uploads() {
    let _alone = alone();
    const LIMIT: u64 = (64 << 20) / 4;
    let (without, ..) = store_beside_sleepers(false);
    let (left, server, asleep) = store_beside_sleepers(true);
    let mut stream = connect(&server);
    let number = |stream: &mut _, name: &str| stat(stream, name).parse::<u64>().expect("a number");
    let waits = |stream: &mut _| number(stream, "response_value_bytes");
    assert!((1..=LIMIT).contains(&waits(&mut stream)));
    assert!(2 * left > without, "{left} of {without} are left");
    // What is stored can be read, as soon as the cache has found which memory it gets back.
    let value = "y".repeat(10_000);
    until("what is stored is lost", || {
        for n in 0..100 {
            let store = format!("set n{n} 0 0 10000\r\n{value}\r\n");
            ask(&mut stream, &store, "STORED\r\n");
        }
        (0..100).all(|n| is_found(&mut stream, &format!("n{n}")))
    });
    // A reader that pauses gets its answer: one of those that sleep is closed in its place.
    std::thread::sleep(Duration::from_millis(2100));
    let mut pauses = connect(&server);
    let large = "p".repeat(1_000_000);
    let store = format!("set pauses 0 0 1000000\r\n{large}\r\n");
    until("what is stored is lost", || {
        ask(&mut pauses, &store, "STORED\r\n");
        is_found(&mut pauses, "pauses")
    });
    let request = "get pauses\r\n".repeat(8) + "quit\r\n";
    pauses.write_all(request.as_bytes()).expect("it is sent");
    std::thread::sleep(Duration::from_millis(300));
    let answer = format!("VALUE pauses 0 1000000\r\n{large}\r\nEND\r\n");
    assert_eq!(rest(&mut pauses).len(), 8 * answer.len());
    // Above four fifths of the limit, those that never read are closed, and counted.
    until("they keep the memory", || {
        waits(&mut stream) <= LIMIT / 5 * 4
    });
    assert!(number(&mut stream, "response_obj_oom") > 0);
    assert_eq!(number(&mut stream, "read_buf_oom"), 0);
    drop(asleep);
    until("the memory never comes back", || waits(&mut stream) == 0);
}

#[test]
fn one_request_for_100_000_keys_streams_out() {
    let _alone = alone();
    let server = start(options());
    let mut stream = connect(&server);
    let value = "x".repeat(1000);
    ask(
        &mut stream,
        &format!("set k 0 0 1000\r\n{value}\r\n"),
        "STORED\r\n",
    );
    let mut sender = stream.try_clone().expect("a second handle");
    let sent = std::thread::spawn(move || {
        let mut line = "get".to_owned();
        line.push_str(&" k".repeat(100_000));
        line.push_str("\r\nquit\r\n");
        sender.write_all(line.as_bytes()).expect("it is sent");
    });
    let before = resident_bytes();
    let one = format!("VALUE k 0 1000\r\n{value}\r\n");
    let mut left = one.len() * 100_000 + 5;
    let mut piece = vec![0; 64 << 10];
    let mut max = 0;
    while left > 0 {
        let count = stream.read(&mut piece).expect("more comes");
        assert!(count > 0 && count <= left, "{left} bytes are to come");
        left -= count;
        max = max.max(resident_bytes().saturating_sub(before));
    }
    sent.join().expect("it was sent");
    assert_eq!(rest(&mut stream), b"");
    assert!(max < 16 << 20, "{max} bytes for an answer of 100 MB");
}

#[test]
fn a_large_value_goes_to_many_slow_readers_without_copies() {
    let _alone = alone();
    Form::ALL.into_iter().for_each(read_a_large_value);
}

fn read_a_large_value(form: Form) {
    let cache = Cache::new(
        CacheOptions::default()
            .memory_limit_bytes(64 << 20)
            .max_item_bytes(16 << 20),
    );
    let cache = Arc::new(cache.expect("a cache"));
    let server = Server::start(options(), cache).expect("it starts");
    let mut stream = connect(&server);
    let value = "y".repeat(10 << 20);
    let length = value.len();
    ask(
        &mut stream,
        &format!("set k 0 0 {length}\r\n{value}\r\n"),
        "STORED\r\n",
    );
    let before = resident_bytes();
    let mut readers: Vec<_> = (0..20).map(|_| form.connect(&server)).collect();
    for reader in &mut readers {
        let request = [form.request(0, 1), b"quit\r\n".to_vec()].concat();
        reader.write_all(&request).expect("it is sent");
    }
    // The first bytes of the answer show that the server executed the request before the value is
    // replaced.
    let length_32 = (length as u32).to_le_bytes();
    let (head, end) = match form {
        Form::Text => (
            format!("VALUE k 0 {length}\r\n").into_bytes(),
            "\r\nEND\r\n",
        ),
        Form::MultiGet => {
            let body_bytes = (length as u32 + 4).to_le_bytes();
            let parts: [&[u8]; 4] = [
                &[0xf7, 1, 0, 1],
                &body_bytes,
                &[7, 0, 0, 0, 0, 0, 1, 0],
                &length_32,
            ];
            (parts.concat(), "")
        }
    };
    for reader in &mut readers {
        let mut begun = vec![0; head.len()];
        reader.read_exact(&mut begun).expect("the answer begins");
        assert_eq!(begun, head);
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(
        grown < 40 << 20,
        "{grown} bytes while 200 MB wait to be read"
    );
    // The value may be replaced in the meantime. The client still gets the old value.
    ask(&mut stream, "set k 0 0 1\r\nz\r\n", "STORED\r\n");
    for mut reader in readers {
        let answer = rest(&mut reader);
        assert_eq!(answer.len(), value.len() + end.len());
        assert!(answer[..length].iter().all(|byte| *byte == b'y'));
    }
}
