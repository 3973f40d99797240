//! Background work of a server: returning memory and removing expired items.

use std::sync::Arc;

use forerun_cache::{Cache, CacheOptions};
use forerun_server::{Server, Settings};

use super::test_server::{ask, connect, options, stat, until};

#[test]
fn a_lower_memory_limit_holds_after_a_while_and_nothing_else_is_lost() {
    let cache = Cache::new(
        CacheOptions::default()
            .memory_limit_bytes(16 << 20)
            .memory_limit_max_bytes(128 << 20),
    );
    let cache = Arc::new(cache.expect("a cache"));
    let server = Server::start(options(), cache.clone()).expect("it starts");
    let mut stream = connect(&server);
    ask(&mut stream, "cache_memlimit 64\r\n", "OK\r\n");
    let value = "x".repeat(100_000);
    for n in 0..400 {
        let request = format!("set k{n} 0 0 100000\r\n{value}\r\n");
        ask(&mut stream, &request, "STORED\r\n");
    }
    let held = cache.stats();
    assert!(
        held.evictions == 0 && held.memory_bytes > 40_000_000,
        "{held:?}"
    );
    ask(&mut stream, "cache_memlimit 8\r\n", "OK\r\n");
    until("memory is given back", || {
        cache.stats().memory_bytes <= 8 << 20
    });
    assert_eq!(stat(&mut stream, "limit_maxbytes"), "8388608");
    let left = cache.stats().items;
    assert!(left > 30, "{left} items in 8 MiB");
}

#[test]
fn expired_items_are_removed_on_request() {
    let server = Server::start(
        options().settings(Settings::default().debug_commands(true)),
        super::test_server::cache(),
    )
    .expect("it starts");
    let mut stream = connect(&server);
    for n in 0..10 {
        // Neighbouring items have different expiry times, so that no block expires as a whole.
        ask(
            &mut stream,
            &format!("set a{n} 0 0 1\r\n1\r\n"),
            "STORED\r\n",
        );
        ask(
            &mut stream,
            &format!("set b{n} 0 20 1\r\n1\r\n"),
            "STORED\r\n",
        );
        ask(
            &mut stream,
            &format!("set c{n} 0 30 1\r\n1\r\n"),
            "STORED\r\n",
        );
    }
    ask(&mut stream, "debugtime 25\r\n", "OK\r\n");
    ask(&mut stream, "lru_crawler crawl all\r\n", "OK\r\n");
    until("it has been done", || {
        stat(&mut stream, "lru_crawler_running") == "0"
    });
    assert_eq!(stat(&mut stream, "curr_items"), "20");
    assert_eq!(stat(&mut stream, "reclaimed"), "10");
}
