//! Deletes that fail while a server is down. The server comes back with its values.

use crate::testing;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forerun_cache::{Cache, CacheOptions};
use forerun_client::{Client, ClientOptions, EjectedKeys, Protocol};
use forerun_server::{Listen, Server, ServerOptions};
use testing::fake_server::FakeServer;
use testing::{PROTOCOLS, address, forerun, options, until};

/// Starts a server whose values survive it.
fn start(at: &str, cache: &Arc<Cache>) -> Server {
    let listen = Listen::parse(at, 0).expect("an address");
    Server::start(ServerOptions::new(listen), Arc::clone(cache)).expect("it starts")
}

fn stop(server: Server) {
    server.drain();
    server.wait().expect("it ends");
}

fn cache() -> Arc<Cache> {
    Arc::new(Cache::new(CacheOptions::default()).expect("a cache"))
}

fn options_of(protocol: Protocol) -> ClientOptions {
    let retry_interval = Duration::from_millis(50);
    options().protocol(protocol).retry_interval(retry_interval)
}

#[test]
fn deletes_that_failed_are_repeated_before_the_next_request() {
    for protocol in PROTOCOLS {
        let cache = cache();
        let server = start("127.0.0.1:0", &cache);
        let at = address(&server);
        let client = |options: ClientOptions| Client::new([at.into()], options).expect("a client");
        let keeping = client(options_of(protocol).failed_deletes_max(100));
        let forgetting = client(options_of(protocol));
        for key in ["a", "b", "c", "other"] {
            keeping.set(key, "old").expect("stored");
        }
        stop(server);
        for client in [&keeping, &forgetting] {
            assert!(client.delete("a").is_err());
            let report = client.delete_many(&["b", "c", "b"]).expect("good keys");
            assert_eq!(report.unwritten.len(), 3);
        }
        assert_eq!(keeping.stats().failed_deletes, 3);
        assert_eq!(forgetting.stats().failed_deletes, 0);
        let server = start(&at.to_string(), &cache);
        let get = |client: &Client, key: &str| {
            let mut found = client.get(key);
            until("the server is tried again", || {
                found = client.get(key);
                found.is_ok()
            });
            found.expect("it answers").map(|value| value.data)
        };
        assert_eq!(get(&forgetting, "a").as_deref(), Some(&b"old"[..]));
        assert_eq!(get(&keeping, "a"), None, "{protocol:?}");
        assert_eq!(get(&keeping, "other").as_deref(), Some(&b"old"[..]));
        assert_eq!(keeping.stats().failed_deletes, 0);
        for key in ["b", "c"] {
            assert_eq!(get(&forgetting, key), None);
        }
        // What is stored later stays.
        keeping.set("a", "new").expect("stored");
        assert_eq!(get(&keeping, "a").as_deref(), Some(&b"new"[..]));
        stop(server);
    }
}

#[test]
fn a_server_that_was_ejected_deletes_what_others_deleted_for_it() {
    let (caches, mut servers) = ([cache(), cache()], Vec::new());
    for cache in &caches {
        servers.push(start("127.0.0.1:0", cache));
    }
    let addresses: Vec<_> = servers.iter().map(address).collect();
    let options = options_of(Protocol::Classic)
        .ejected_keys(EjectedKeys::Move)
        .failures_to_eject(1)
        .failed_deletes_max(100);
    let at = addresses.iter().map(|address| (*address).into());
    let client = Client::new(at, options).expect("a client");
    let keys: Vec<String> = (0..20).map(|number| format!("key:{number}")).collect();
    for key in &keys {
        client.set(key, "old").expect("stored");
    }
    let down = client.server_of(&keys[0]);
    stop(servers.remove(down));
    assert!(client.get(&keys[0]).is_err(), "now it is ejected");
    // The call that tries the ejected server fails.
    until("the other server answers", || {
        client.delete(&keys[0]).is_ok()
    });
    client.delete_many(&keys[1..]).expect("good keys");
    servers.insert(down, start(&addresses[down].to_string(), &caches[down]));
    until("the server is used again", || {
        let report = testing::multi_get(&client, &keys).expect("good keys");
        assert_eq!(
            report.iter().flatten().count(),
            0,
            "a deleted value is back"
        );
        client.stats().ejected_servers == 0 && client.stats().failed_deletes == 0
    });
    servers.into_iter().for_each(stop);
}

#[test]
fn the_refusal_of_a_repeated_delete_is_not_the_answer_to_another_request() {
    for protocol in [Protocol::Classic, Protocol::Meta] {
        let is_first = AtomicBool::new(true);
        // Like a proxy whose server for `k` is down.
        let server = FakeServer::start(move |mut stream: TcpStream| {
            let requests = BufReader::new(stream.try_clone().expect("a descriptor"));
            for line in requests.lines().map_while(Result::ok) {
                let answer: &[u8] = match line.split(' ').next() {
                    Some("delete" | "md") if is_first.swap(false, Ordering::Relaxed) => return,
                    Some("delete" | "md") => b"SERVER_ERROR backend failure\r\n",
                    Some("get") => b"VALUE x 0 1\r\nv\r\nEND\r\n",
                    Some("mn") => b"MN\r\n",
                    _ => b"",
                };
                if stream.write_all(answer).is_err() {
                    return;
                }
            }
        });
        let options = options_of(protocol).failed_deletes_max(100);
        let client = Client::new([server.address().into()], options).expect("a client");
        assert!(client.delete("k").is_err());
        assert_eq!(client.stats().failed_deletes, 1);
        for _ in 0..2 {
            let found = client.get("x").expect("it is answered");
            assert_eq!(found.is_some(), protocol == Protocol::Classic);
        }
        let stats = client.stats();
        assert_eq!((stats.failed_deletes, stats.failed_deletes_dropped), (0, 1));
        // The server has answered this one.
        assert!(client.delete("k").is_err());
        client.delete_many(&["k"]).expect("good keys");
        assert_eq!(client.stats().failed_deletes, 0);
        assert_eq!(server.accepted(), 2);
    }
}

#[test]
fn a_server_that_was_down_for_long_is_used_again() {
    const KEYS: usize = 20_000;
    for protocol in PROTOCOLS {
        let cache = cache();
        let server = start("127.0.0.1:0", &cache);
        let at = address(&server);
        stop(server);
        let options = options_of(protocol).failed_deletes_max(KEYS);
        let client = Client::new([at.into()], options).expect("a client");
        let keys: Vec<String> = (0..KEYS).map(|number| format!("key:{number}")).collect();
        client.delete_many(&keys).expect("good keys");
        assert_eq!(client.stats().failed_deletes, KEYS as u64);
        // It does not have the keys: quiet or not, the meta protocol answers such deletes.
        let server = start(&at.to_string(), &cache);
        until("all deletes are repeated", || {
            let _ = client.get("other");
            client.stats().failed_deletes == 0
        });
        assert_eq!(client.stats().failed_deletes_dropped, 0);
        stop(server);
    }
}

#[test]
fn failed_deletes_beyond_the_limit_are_counted() {
    let server = forerun();
    let at = address(&server);
    stop(server);
    let options = options_of(Protocol::Meta).failed_deletes_max(2);
    let client = Client::new([at.into()], options).expect("a client");
    for key in ["a", "b", "b", "c", "d"] {
        assert!(client.delete(key).is_err());
    }
    let stats = client.stats();
    assert_eq!((stats.failed_deletes, stats.failed_deletes_dropped), (2, 2));
}
