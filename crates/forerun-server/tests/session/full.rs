//! Commands that both read and write, on a full cache. A write that needs memory never waits for
//! the guard of its own command.

use crate::testing;

use forerun_cache::CacheOptions;
use forerun_server::Settings;
use testing::Client;

const EXPIRATIONS: [&str; 6] = ["30", "300", "3000", "30000", "300000", "2000000"];

/// A client of an 8 MiB cache that has already evicted items.
fn client(value_bytes: usize) -> Client {
    let options = CacheOptions::default()
        .clock(forerun_cache::Clock::Manual)
        .memory_limit_bytes(8 << 20)
        .seed(7);
    let mut client = Client::with(options, Settings::default());
    let value = "v".repeat(value_bytes);
    for n in 0..(10 << 20) / value_bytes {
        let sent =
            client.send(format!("set {n} 0 0 {value_bytes} noreply\r\n{value}\r\n").as_bytes());
        assert!(sent.is_empty(), "{}", sent.escape_ascii());
    }
    assert!(stat(&mut client, "evictions") > 0);
    client
}

fn stat(client: &mut Client, name: &str) -> u64 {
    let answer = String::from_utf8(client.send(b"stats\r\n")).unwrap();
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.unwrap().parse().unwrap()
}

/// The number of writes that gave up for lack of memory. `stats` does not report it.
fn assert_none_gave_up(client: &Client) {
    let stats = client.cache.stats();
    assert_eq!(stats.out_of_memory, 0, "{stats:?}");
}

#[test]
fn gat_frees_memory_for_the_item_it_moves() {
    for value_bytes in [900, 9_000, 100_000] {
        let mut client = client(value_bytes);
        let keys = (10 << 20) / value_bytes;
        let mut hits = 0;
        for n in 0..keys {
            let expiration = EXPIRATIONS[n % EXPIRATIONS.len()];
            let other = (n * 7 + 1) % keys;
            let answer = client.send(format!("gat {expiration} {n} {other}\r\n").as_bytes());
            hits += usize::from(answer.starts_with(b"VALUE "));
        }
        assert!(hits > keys / 4, "{hits} of {keys}");
        assert_none_gave_up(&client);
    }
}

#[test]
fn meta_get_frees_memory_for_items_it_moves_or_creates() {
    let mut client = client(900);
    for n in 0..12_000 {
        let expiration = EXPIRATIONS[n % EXPIRATIONS.len()];
        let made = client.send(format!("mg new{n} v N{expiration}\r\n").as_bytes());
        assert_eq!(made, b"VA 0 W\r\n\r\n");
        client.send(format!("mg {n} v T{expiration}\r\n").as_bytes());
    }
    assert_none_gave_up(&client);
}
