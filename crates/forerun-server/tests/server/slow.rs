//! Clients that read slowly or not at all delay only themselves, and cost the server bounded
//! memory.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use forerun_cache::{Cache, CacheOptions};
use forerun_server::Server;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::test_server::{TIMEOUT, ask, connect, options, rest, start, stat};

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

#[test]
fn a_client_that_never_reads_costs_bounded_memory() {
    let _alone = alone();
    let server = start(options());
    let mut other = connect(&server);
    let value = "x".repeat(10_000);
    ask(
        &mut other,
        &format!("set k 0 0 10000\r\n{value}\r\n"),
        "STORED\r\n",
    );
    let before = resident_bytes();
    // 40 clients send requests for 100 kB per line until the server stops reading.
    let line = "get".to_owned() + &" k".repeat(10) + "\r\n";
    let mut greedy: Vec<_> = (0..40).map(|_| connect(&server)).collect();
    for stream in &mut greedy {
        stream.set_nonblocking(true).expect("it can be");
        let start = Instant::now();
        let mut refused = 0;
        while refused < 3 && start.elapsed() < TIMEOUT {
            match stream.write(line.repeat(100).as_bytes()) {
                Ok(_) => refused = 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    refused += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(refused, 3, "it is still read from");
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(
        grown < 40 * (300 << 10),
        "{grown} bytes for 40 readers that do not read"
    );
    // Other clients do not wait for these, which still do not read.
    ask(&mut other, "mn\r\n", "MN\r\n");
}

#[test]
fn all_slow_readers_together_cost_bounded_memory_and_do_not_stop_the_server() {
    const LIMIT: u64 = 1 << 20;
    let _alone = alone();
    let server = start(options().buffer_limit_bytes(Some(LIMIT as usize)));
    let mut other = connect(&server);
    let value = "x".repeat(10_000);
    ask(
        &mut other,
        &format!("set k 0 0 10000\r\n{value}\r\n"),
        "STORED\r\n",
    );
    // Far more clients than the limit allows send until the server stops reading.
    let line = "get".to_owned() + &" k".repeat(10) + "\r\n";
    let mut greedy: Vec<_> = (0..60).map(|_| connect(&server)).collect();
    for stream in &mut greedy {
        stream.set_nonblocking(true).expect("it can be");
        let start = Instant::now();
        let mut refused = 0;
        while refused < 3 && start.elapsed() < TIMEOUT {
            match stream.write(line.repeat(100).as_bytes()) {
                Ok(_) => refused = 0,
                // The server may close it in the meantime.
                Err(error) if error.kind() != ErrorKind::WouldBlock => break,
                Err(_) => {
                    refused += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }
    // The others are served as soon as readers that do not read have been closed.
    let number = |other: &mut _, name: &str| stat(other, name).parse::<u64>().expect("a number");
    let held =
        |other: &mut _| number(other, "response_obj_bytes") + number(other, "read_buf_bytes");
    // Each worker may exceed the limit by one connection.
    let held_bytes_max = LIMIT + 2 * (400 << 10);
    let start = Instant::now();
    while number(&mut other, "response_obj_oom") == 0 {
        assert!(start.elapsed() < TIMEOUT, "no stalled reader was closed");
        assert!(held(&mut other) < held_bytes_max);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(held(&mut other) < held_bytes_max);
    assert!(number(&mut other, "read_buf_pauses") > 0);
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
    let mut readers: Vec<_> = (0..20).map(|_| connect(&server)).collect();
    for reader in &mut readers {
        reader.write_all(b"get k\r\nquit\r\n").expect("it is sent");
    }
    // Once the first bytes of an answer have arrived, the request was executed before the value is
    // replaced.
    let head = format!("VALUE k 0 {length}\r\n");
    for reader in &mut readers {
        let mut begun = vec![0; head.len()];
        reader.read_exact(&mut begun).expect("the answer begins");
        assert_eq!(begun, head.as_bytes());
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(
        grown < 40 << 20,
        "{grown} bytes while 200 MB wait to be read"
    );
    // The value may be replaced in the meantime: the client still gets the old value.
    ask(&mut stream, "set k 0 0 1\r\nz\r\n", "STORED\r\n");
    for mut reader in readers {
        let answer = rest(&mut reader);
        assert_eq!(answer.len(), value.len() + "\r\nEND\r\n".len());
        assert!(answer[..length].iter().all(|byte| *byte == b'y'));
    }
}
