//! The client places keys as libmemcached, twemproxy and pymemcache do. `placement/generate.py`
//! made the tables with these programs.

use forerun_client::{Placement, Ring, ServerAddress};

const LIBMEMCACHED: &str = include_str!("../placement/libmemcached.txt");
const TWEMPROXY: &str = include_str!("../placement/twemproxy.txt");
const PYMEMCACHE: &str = include_str!("../placement/pymemcache.txt");

/// The rings of the generator.
fn servers(ring: &str) -> Vec<ServerAddress> {
    let server = |host: String, port, weight| ServerAddress::tcp(host, port).weight(weight);
    match ring {
        "equal" => (1..=8)
            .map(|at| server(format!("10.0.1.{at}"), 11211, 1))
            .collect(),
        "ports" => (0..4)
            .map(|at| server("127.0.0.1".into(), 21000 + at, 1))
            .collect(),
        "weights" => vec![
            server("10.0.1.1".into(), 11211, 600),
            server("10.0.1.2".into(), 11211, 300),
            server("10.0.1.3".into(), 11212, 200),
        ],
        "uneven" => (0..7_u16)
            .map(|at| {
                server(
                    format!("cache-{at}.example"),
                    11211 + at % 3,
                    1 + u32::from(at * at),
                )
            })
            .collect(),
        "single" => vec![server("localhost".into(), 11211, 1)],
        other => panic!("no ring {other}"),
    }
}

/// Compares a table's lines for one variant with a placement. Returns the number of keys.
fn check(table: &str, variant: &str, placement: Placement) -> usize {
    let mut ring = (String::new(), Ring::new(placement, &[]));
    let (mut keys, mut expected) = (Vec::new(), Vec::new());
    let mut count = 0;
    let mut end_ring = |ring: &Ring, keys: &mut Vec<String>, expected: &mut Vec<usize>| {
        let mut found = Vec::new();
        ring.servers_of(keys, |at, server| {
            assert_eq!(at, found.len());
            found.push(server);
        });
        assert_eq!(found, *expected, "{variant}, as a batch");
        count += keys.len();
        keys.clear();
        expected.clear();
    };
    for line in table.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (of, name) = words[0].split_once('/').expect("variant/ring");
        if of != variant {
            continue;
        }
        if ring.0 != name {
            end_ring(&ring.1, &mut keys, &mut expected);
            ring = (name.to_owned(), Ring::new(placement, &servers(name)));
        }
        let server: usize = words[2].parse().expect("a number");
        assert_eq!(ring.1.server_of(words[1].as_bytes()), server, "{line}");
        keys.push(words[1].to_owned());
        expected.push(server);
    }
    end_ring(&ring.1, &mut keys, &mut expected);
    count
}

#[test]
fn ketama_places_keys_as_libmemcached_does() {
    assert_eq!(
        check(LIBMEMCACHED, "ketama_weighted", Placement::Ketama),
        1000
    );
    assert_eq!(
        check(LIBMEMCACHED, "ketama", Placement::KetamaUnweighted),
        600
    );
}

#[test]
fn ketama_places_keys_as_twemproxy_does() {
    assert_eq!(check(TWEMPROXY, "md5", Placement::Ketama), 1000);
    assert_eq!(check(TWEMPROXY, "fnv1a_64", Placement::KetamaFnv1a64), 1000);
}

#[test]
fn rendezvous_places_keys_as_pymemcache_does() {
    let equal = ["equal", "ports", "single"];
    let is_equal = |line: &&str| equal.iter().any(|ring| line.contains(&format!("/{ring} ")));
    let table: String = PYMEMCACHE
        .lines()
        .filter(is_equal)
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(check(&table, "rendezvous", Placement::Rendezvous), 600);
}

#[test]
fn shares_follow_the_weights() {
    let servers: Vec<ServerAddress> = (1..=4)
        .map(|at| ServerAddress::tcp(format!("10.0.0.{at}"), 11211).weight(at))
        .collect();
    for placement in [Placement::Ketama, Placement::Rendezvous] {
        let ring = Ring::new(placement, &servers);
        let mut shares = [0_f64; 4];
        for number in 0..100_000 {
            shares[ring.server_of(format!("key:{number}").as_bytes())] += 1.0 / 100_000.0;
        }
        for (at, share) in (1..).zip(shares) {
            let ratio = share / (f64::from(at) / 10.0);
            assert!((0.8..1.25).contains(&ratio), "{placement:?}: {shares:?}");
        }
    }
}

#[test]
fn a_server_that_leaves_moves_its_own_keys_only() {
    let servers: Vec<ServerAddress> = (1..=5)
        .map(|at| ServerAddress::tcp(format!("10.0.0.{at}"), 11211))
        .collect();
    for placement in [
        Placement::Ketama,
        Placement::KetamaUnweighted,
        Placement::KetamaFnv1a64,
        Placement::Rendezvous,
    ] {
        let (all, fewer) = (
            Ring::new(placement, &servers),
            Ring::new(placement, &servers[..4]),
        );
        for number in 0..10_000 {
            let key = format!("key:{number}");
            let before = all.server_of(key.as_bytes());
            let after = fewer.server_of(key.as_bytes());
            assert!(
                before == 4 || before == after,
                "{placement:?} {key}: {before} {after}"
            );
        }
    }
}
