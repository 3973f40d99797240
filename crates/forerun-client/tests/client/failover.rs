//! Four servers under load. One is killed and restarted. Clients see misses but never a wrong
//! value, and never wait longer than the time-out.

use crate::testing;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forerun_client::{Client, ClientOptions, EjectedKeys, Failure, Lookup, Lookups, Protocol};
use forerun_server::Server;
use testing::{address, forerun, forerun_at, until};

const TIMEOUT: Duration = Duration::from_secs(2);
/// How much longer than the time-out a call may take on a busy machine.
const GRACE: Duration = Duration::from_secs(5);

fn key(number: usize) -> String {
    format!("key:{number}")
}

/// The only value that a key ever has.
fn value(number: usize) -> Vec<u8> {
    format!("value of {number},")
        .into_bytes()
        .repeat(1 + number % 9)
}

fn stop(server: Server) {
    server.drain();
    server.wait().expect("it ends");
}

/// Starts a server at the address of one that has ended.
fn start_again(at: SocketAddr) -> Server {
    forerun_at(&at.to_string())
}

fn options() -> ClientOptions {
    ClientOptions::default()
        .timeout(TIMEOUT)
        .retry_interval(Duration::from_millis(200))
}

#[test]
fn a_killed_server_costs_misses_and_returns() {
    for (protocol, ejected_keys) in [
        (Protocol::Classic, EjectedKeys::Fail),
        (Protocol::Meta, EjectedKeys::Move),
        (Protocol::MultiGet, EjectedKeys::Move),
    ] {
        let mut servers: Vec<Server> = (0..4).map(|_| forerun()).collect();
        let addresses: Vec<SocketAddr> = servers.iter().map(address).collect();
        let options = options().protocol(protocol).ejected_keys(ejected_keys);
        let servers_of = addresses.iter().map(|address| (*address).into());
        let client = Client::new(servers_of, options).expect("a client");
        let (ends, batches) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (client, ends, batches) = (&client, &ends, &batches);
                scope.spawn(move || {
                    let (mut values, mut round) = (Lookups::new(), thread);
                    while !ends.load(Ordering::Relaxed) {
                        round += 7;
                        let numbers: Vec<usize> =
                            (0..100).map(|at| (round * 31 + at * 17) % 1000).collect();
                        let keys: Vec<String> = numbers.iter().map(|n| key(*n)).collect();
                        let start = Instant::now();
                        let report = client.multi_get(&keys, &mut values);
                        let report = report.expect("good keys");
                        assert!(start.elapsed() < TIMEOUT + GRACE, "{:?}", start.elapsed());
                        let counts = report.hits + report.misses + report.failed;
                        assert_eq!(counts, keys.len());
                        for (number, found) in numbers.iter().zip(values.iter()) {
                            if let Some(found) = found {
                                assert_eq!(found.data, value(*number), "a wrong value");
                            } else {
                                // Set the missing keys, as clients of a cache do. The server may be
                                // dead.
                                let _ = client.set(key(*number), &value(*number));
                            }
                        }
                        batches.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            // If one thread panics, the others must stop.
            let check = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let more = |count: usize| {
                    let seen = batches.load(Ordering::Relaxed);
                    until("batches", || {
                        batches.load(Ordering::Relaxed) >= seen + count
                    });
                };
                let keys: Vec<String> = (0..1000).map(key).collect();
                let hits = || {
                    testing::multi_get(&client, &keys)
                        .expect("good keys")
                        .iter()
                        .flatten()
                        .count()
                };
                more(20);
                until("all keys are there", || hits() == 1000);
                for _ in 0..2 {
                    stop(servers.remove(1));
                    more(20);
                    match ejected_keys {
                        EjectedKeys::Move => until("the keys moved", || hits() == 1000),
                        _ => assert!(hits() < 1000, "a dead server has no keys"),
                    }
                    servers.insert(1, start_again(addresses[1]));
                    until("all keys are there again", || hits() == 1000);
                }
            }));
            ends.store(true, Ordering::Relaxed);
            check.expect("see above");
        });
        servers.into_iter().for_each(stop);
    }
}

#[test]
fn keys_of_an_ejected_server_fail_at_once_or_move() {
    for ejected_keys in [EjectedKeys::Fail, EjectedKeys::Move] {
        let mut servers: Vec<Server> = (0..4).map(|_| forerun()).collect();
        let options = options()
            .ejected_keys(ejected_keys)
            .retry_interval(Duration::from_secs(600));
        let client = testing::client_of(&servers, options);
        let keys: Vec<String> = (0..200).map(key).collect();
        for (number, key) in keys.iter().enumerate() {
            client.set(key, &value(number)).expect("stored");
        }
        let dead = client.server_of(&keys[0]);
        let of_dead = keys
            .iter()
            .filter(|key| client.server_of(key) == dead)
            .count();
        stop(servers.remove(dead));
        let mut values = Lookups::new();
        for _ in 0..2 {
            let report = client.multi_get(&keys, &mut values).expect("good keys");
            assert_eq!((report.hits, report.failed), (200 - of_dead, of_dead));
        }
        let report = client.multi_get(&keys, &mut values).expect("good keys");
        assert_eq!(
            report.hits,
            200 - of_dead,
            "the other keys stay where they are"
        );
        match ejected_keys {
            EjectedKeys::Move => {
                assert_eq!((report.failed, report.misses), (0, of_dead));
                client
                    .set(&keys[0], "moved")
                    .expect("another server has it");
                let found = client
                    .get(&keys[0])
                    .expect("it answers")
                    .expect("it is there");
                assert_eq!(found.data, b"moved");
            }
            _ => {
                assert_eq!((report.failed, report.misses), (of_dead, 0));
                assert!(matches!(
                    report.failures[0].failure,
                    Failure::Ejected { .. }
                ));
                assert!(matches!(values.lookup(0), Some(Lookup::Unanswered(_))));
                assert!(client.set(&keys[0], "x").is_err());
            }
        }
        servers.into_iter().for_each(stop);
    }
}

#[test]
fn a_connection_that_the_server_has_closed_is_replaced() {
    let server = forerun();
    let at = address(&server);
    let client = Client::new([at.into()], options().failures_to_eject(1)).expect("a client");
    client.set("k", "v").expect("stored");
    stop(server);
    let server = start_again(at);
    // The client notices this before it sends anything.
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(client.get("k").expect("a new connection"), None);
    stop(server);
}
