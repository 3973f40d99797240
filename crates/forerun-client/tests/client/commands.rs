//! Every call, in every protocol, against Forerun's server and memcached.

use crate::testing;

use std::time::{Duration, SystemTime};

use forerun_client::{
    CasResult, Client, ClientOptions, Credentials, Endpoint, Error, Expiration, Failure, KeyError,
    Lookup, Lookups, NewValue, Placement, Protocol, ServerAddress, Unanswered, Value,
};
use testing::{PROTOCOLS, TEXT_PROTOCOLS, client_of, forerun, memcached, on_every_server, options};

#[test]
fn values_are_stored_and_read() {
    on_every_server(|client, _| {
        assert_eq!(client.get("a").expect("it answers"), None);
        client.set("a", "1").expect("stored");
        client
            .set("b", NewValue::new(b"\r\nEND\r\n").flags(u32::MAX))
            .expect("stored");
        client.set("c", "").expect("stored");
        let b = client.get("b").expect("it answers").expect("it is there");
        assert_eq!(
            (&b.data[..], b.flags, b.cas),
            (&b"\r\nEND\r\n"[..], u32::MAX, None)
        );
        assert_eq!(
            client
                .get("c")
                .expect("it answers")
                .expect("it is there")
                .data,
            b""
        );
        let large = vec![b'x'; 900_000];
        client.set("large", &large).expect("stored");
        assert_eq!(
            client
                .get("large")
                .expect("it answers")
                .expect("it is there")
                .data,
            large
        );
        assert!(client.delete("a").expect("it answers"));
        assert!(!client.delete("a").expect("it answers"));
        assert_eq!(client.get("a").expect("it answers"), None);
    });
}

#[test]
fn conditions_are_kept() {
    on_every_server(|client, _| {
        assert!(!client.replace("k", "0").expect("it answers"));
        assert!(!client.append("k", "0").expect("it answers"));
        assert!(!client.prepend("k", "0").expect("it answers"));
        assert!(
            client
                .add("k", NewValue::new("1").flags(3))
                .expect("it answers")
        );
        assert!(!client.add("k", "2").expect("it answers"));
        assert!(client.append("k", "2").expect("it answers"));
        assert!(client.prepend("k", "0").expect("it answers"));
        let first = client.gets("k").expect("it answers").expect("it is there");
        assert_eq!((&first.data[..], first.flags), (&b"012"[..], 3));
        let version = first.cas.expect("it was asked for");
        assert!(client.replace("k", "new").expect("it answers"));
        assert_eq!(
            client.cas("k", "x", version).expect("it answers"),
            CasResult::Exists
        );
        assert_eq!(
            client.cas("none", "x", version).expect("it answers"),
            CasResult::NotFound
        );
        let version = client
            .gets("k")
            .expect("it answers")
            .expect("it is there")
            .cas;
        let version = version.expect("it was asked for");
        assert_eq!(
            client.cas("k", "x", version).expect("it answers"),
            CasResult::Stored
        );
        assert_eq!(
            client
                .get("k")
                .expect("it answers")
                .expect("it is there")
                .data,
            b"x"
        );
    });
}

#[test]
fn numbers_are_counted() {
    on_every_server(|client, _| {
        assert_eq!(client.incr("n", 1).expect("it answers"), None);
        client.set("n", "18446744073709551614").expect("stored");
        assert_eq!(client.incr("n", 1).expect("it answers"), Some(u64::MAX));
        assert_eq!(client.incr("n", 2).expect("it answers"), Some(1));
        assert_eq!(client.incr("n", 9).expect("it answers"), Some(10));
        assert_eq!(client.decr("n", 1).expect("it answers"), Some(9));
        assert_eq!(client.decr("n", 10).expect("it answers"), Some(0));
        client.set("n", "text").expect("stored");
        let error = client.incr("n", 1).expect_err("it is no number");
        let refused = |error: &Error| {
            matches!(
                error,
                Error::Server {
                    failure: Failure::Refused(_),
                    ..
                }
            )
        };
        assert!(refused(&error), "{error}");
        // A server that refuses a request is alive.
        for _ in 0..5 {
            assert!(client.incr("n", 1).is_err_and(|error| refused(&error)));
        }
        assert!(client.get("n").expect("it answers").is_some());
    });
}

#[test]
fn items_expire_and_are_touched() {
    on_every_server(|client, _| {
        let hour = Expiration::In(Duration::from_secs(3600));
        client
            .set("k", NewValue::new("v").expiry(hour))
            .expect("stored");
        client
            .set(
                "gone",
                NewValue::new("v").expiry(Expiration::In(Duration::ZERO)),
            )
            .expect("stored");
        let past = Expiration::At(SystemTime::UNIX_EPOCH);
        client
            .set("past", NewValue::new("v").expiry(past))
            .expect("stored");
        assert_eq!(client.get("gone").expect("it answers"), None);
        assert_eq!(client.get("past").expect("it answers"), None);
        let value = client
            .gat("k", hour)
            .expect("it answers")
            .expect("it is there");
        assert!(value.data == b"v" && value.cas.is_some());
        assert_eq!(client.gat("none", hour).expect("it answers"), None);
        assert!(client.touch("k", Expiration::Never).expect("it answers"));
        assert!(!client.touch("none", hour).expect("it answers"));
        let later = Expiration::At(SystemTime::now() + Duration::from_secs(40 * 24 * 3600));
        assert!(client.touch("k", later).expect("it answers"));
        assert!(client.get("k").expect("it answers").is_some());
        assert!(
            client
                .touch("k", Expiration::In(Duration::ZERO))
                .expect("it answers")
        );
        assert_eq!(client.get("k").expect("it answers"), None);
    });
}

#[test]
fn items_that_expire_after_2038_are_found_until_then() {
    const YEARS: [u32; 4] = [10, 12, 20, 100];
    on_every_server(|client, protocol| {
        let in_years = |years: u32| Duration::from_secs(365 * 24 * 60 * 60) * years;
        let ends = YEARS.map(|years| Expiration::In(in_years(years)));
        let at = YEARS.map(|years| Expiration::At(SystemTime::now() + in_years(years)));
        let is_found = |key: &str| client.get(key).expect("it answers").is_some();
        for expiry in ends.into_iter().chain(at) {
            let value = NewValue::new("v").expiry(expiry);
            assert!(client.add("new", value).expect("it answers"));
            client.set("k", value).expect("stored");
            assert!(client.replace("k", value).expect("it answers"));
            let version = client
                .gets("k")
                .expect("it answers")
                .and_then(|found| found.cas);
            let stored = client.cas("k", value, version.expect("it is there"));
            assert_eq!(stored.expect("it answers"), CasResult::Stored);
            assert!(client.touch("new", expiry).expect("it answers"));
            assert!(client.gat("new", expiry).expect("it answers").is_some());
            client.set_many(&[("of-batch", value)]).expect("it answers");
            for key in ["k", "new", "of-batch"] {
                assert!(is_found(key), "{key}, {expiry:?}, {protocol:?}");
                assert!(client.delete(key).expect("it answers"));
            }
        }
        let past = Expiration::At(SystemTime::now() - in_years(1));
        client
            .set("k", NewValue::new("v").expiry(past))
            .expect("stored");
        assert!(!is_found("k"));
    });
}

#[test]
fn a_batch_is_answered_in_the_callers_order() {
    on_every_server(|client, _| {
        let key = |number: usize| format!("key:{number}");
        for number in (0..3000).step_by(2) {
            let value = vec![b'a' + (number % 26) as u8; number % 200];
            let value = NewValue::new(&value).flags(number as u32);
            client.set(key(number), value).expect("stored");
        }
        let mut values = Lookups::new();
        for count in [0, 1, 7, 100, 3000] {
            // Each key twice, in reverse order.
            let numbers: Vec<usize> = (0..count).rev().chain((0..count).rev()).collect();
            let keys: Vec<String> = numbers.iter().map(|number| key(*number)).collect();
            let report = client.multi_get(&keys, &mut values).expect("good keys");
            assert!(report.failures.is_empty() && report.failed == 0 && report.oversized == 0);
            assert_eq!(
                (values.len(), report.hits + report.misses),
                (keys.len(), keys.len())
            );
            let mut hits = 0;
            for (value, number) in values.iter().zip(&numbers) {
                assert_eq!(value.is_some(), number % 2 == 0, "key {number} of {count}");
                if let Some(value) = value {
                    hits += 1;
                    let byte = b'a' + (number % 26) as u8;
                    assert!(value.data.len() == number % 200 && value.flags == *number as u32);
                    assert!(value.data.iter().all(|found| *found == byte));
                }
            }
            assert_eq!(report.hits, hits);
        }
    });
}

#[test]
fn a_sink_gets_each_value_once() {
    on_every_server(|client, _| {
        for number in 0..50_u32 {
            client
                .set(format!("row:{number}"), &number.to_le_bytes())
                .expect("stored");
        }
        let keys: Vec<String> = (0..60).map(|number| format!("row:{number}")).collect();
        let mut rows = [[0xff_u8; 4]; 60];
        let mut sink = |index: usize, value: Value<'_>| {
            assert_eq!(rows[index], [0xff; 4]);
            rows[index] = value.data.try_into().expect("four bytes");
        };
        let report = client.multi_get_with(&keys, &mut sink).expect("good keys");
        assert_eq!((report.hits, report.misses), (50, 10));
        for (number, row) in (0..50_u32).zip(&rows) {
            assert_eq!(*row, number.to_le_bytes());
        }
    });
}

#[test]
fn values_beyond_the_limit_are_skipped_and_the_connection_goes_on() {
    let servers = [forerun()];
    for protocol in PROTOCOLS {
        let stores = client_of(&servers, options().protocol(protocol));
        stores.set("long", &vec![b'x'; 500_000]).expect("stored");
        stores.set("short", "s").expect("stored");
        let client = client_of(
            &servers,
            options().protocol(protocol).max_value_bytes(100_000),
        );
        let (bytes, limit) = (500_000, 100_000);
        let error = client.get("long").expect_err("it is too long");
        assert!(
            matches!(error, Error::Oversized { bytes: b, limit: l } if (b, l) == (bytes, limit)),
            "{error}"
        );
        let keys = ["short", "long", "none", "short"];
        let mut values = Lookups::new();
        let report = client.multi_get(&keys, &mut values).expect("good keys");
        assert_eq!((report.hits, report.misses, report.oversized), (2, 1, 1));
        assert_eq!(
            values.lookup(1),
            Some(Lookup::Unanswered(Unanswered::Oversized { bytes }))
        );
        assert_eq!(values.get(3).expect("it is there").data, b"s");
    }
}

#[test]
fn keys_that_cannot_be_sent_are_refused_by_position() {
    let servers = [forerun()];
    let client = client_of(&servers, options());
    let long = "x".repeat(251);
    let error = testing::multi_get(&client, &["a", &long]).expect_err("it is too long");
    assert_eq!(
        error.to_string(),
        "key 1: it has 251 bytes, where 250 are allowed"
    );
    let error = client.set("a b", "").expect_err("it has a space");
    let (byte, at) = (b' ', 1);
    assert!(matches!(
        error,
        Error::Key { index: 0, reason } if reason == KeyError::Byte { byte, at }
    ));
    assert!(client.delete("").is_err());
}

#[test]
fn keys_of_any_bytes_are_sent_by_the_meta_protocol() {
    on_every_server(|client, protocol| {
        if protocol == Protocol::Classic {
            return;
        }
        let keys: Vec<Vec<u8>> = (0..=255_u8).map(|byte| vec![byte, b'k', byte]).collect();
        for key in &keys {
            client.set(key, &key[..1]).expect("stored");
        }
        let values = testing::multi_get(client, &keys).expect("good keys");
        for (value, key) in values.iter().zip(&keys) {
            assert_eq!(value.expect("it is there").data, &key[..1]);
        }
        client.set([0, 1], "5").expect("stored");
        assert_eq!(client.incr([0, 1], 2).expect("it answers"), Some(7));
        assert!(client.touch([0, 1], Expiration::Never).expect("it answers"));
        assert!(client.delete([0, 1]).expect("it answers"));
    });
}

#[test]
fn users_authenticate_on_every_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("users");
    std::fs::write(&file, "alice:s3cret\n").expect("a file");
    let listen = forerun_server::Listen::parse("127.0.0.1:0", 0).expect("an address");
    let ours = testing::start(forerun_server::ServerOptions::new(listen).auth_file(file.clone()));
    let ours: ServerAddress = testing::address(&ours).into();
    let mut servers = vec![(ours, &PROTOCOLS[..])];
    let theirs = memcached(&["-Y", file.to_str().expect("text")]);
    let theirs = theirs.as_ref().map(|memcached| memcached.address.clone());
    servers.extend(theirs.map(|address| (address, &TEXT_PROTOCOLS[..])));
    for (server, protocols) in servers {
        for &protocol in protocols {
            let client = |credentials: Option<Credentials>| {
                let options = options().protocol(protocol).credentials(credentials);
                Client::new([server.clone()], options).expect("a client")
            };
            let alice = client(Some(Credentials::new("alice", "s3cret")));
            alice.set("k", "v").expect("stored");
            let values = testing::multi_get(&alice, &["k", "none"]).expect("good keys");
            assert_eq!(values.get(0).expect("it is there").data, b"v");

            let wrong = client(Some(Credentials::new("alice", "wrong")));
            let error = wrong.get("k").expect_err("the password is wrong");
            let failure = match &error {
                Error::Server { failure, .. } => failure,
                other => panic!("{other}"),
            };
            assert!(matches!(failure, Failure::Authentication(_)), "{error}");
            let none = client(None);
            assert!(none.get("k").is_err());
        }
    }
}

#[test]
fn unix_sockets_are_servers_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let _server = testing::forerun_at(&format!("unix:{}", path.display()));
    let address = ServerAddress::new(Endpoint::Unix(path));
    let client = Client::new([address], options()).expect("a client");
    client.set("k", "v").expect("stored");
    assert_eq!(
        client
            .get("k")
            .expect("it answers")
            .expect("it is there")
            .data,
        b"v"
    );
}

#[test]
fn names_are_resolved_and_each_address_is_tried() {
    let server = forerun();
    let port = testing::address(&server).port();
    // Nothing listens on ::1, which may be the first address of localhost.
    let client = Client::new([ServerAddress::tcp("localhost", port)], options()).expect("a client");
    client.set("k", "v").expect("stored");
    let unknown = ServerAddress::tcp("no-such-host.invalid", port);
    let client = Client::new([unknown], options()).expect("a client");
    let error = client.get("k").expect_err("there is no address");
    assert!(
        error.to_string().contains("the name has no address"),
        "{error}"
    );
}

#[test]
fn threads_share_a_client() {
    let servers = [forerun(), forerun()];
    for placement in [Placement::Ketama, Placement::Rendezvous] {
        let client = client_of(&servers, options().placement(placement));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let client = &client;
                scope.spawn(move || {
                    for number in 0..200 {
                        let key = format!("{thread}:{number}");
                        client.set(&key, &key).expect("stored");
                        let keys = [&key, "none", &key];
                        let values = testing::multi_get(client, &keys).expect("good keys");
                        assert_eq!(values.get(2).expect("it is there").data, key.as_bytes());
                        assert_eq!(values.get(1), None);
                    }
                });
            }
        });
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let server = || [ServerAddress::tcp("127.0.0.1", 1)];
    let refused = |options: ClientOptions| Client::new(server(), options).expect_err("refused");
    assert!(matches!(Client::new([], options()), Err(Error::NoServers)));
    for (options, name) in [
        (options().timeout(Duration::ZERO), "timeout"),
        (options().timeout(Duration::MAX), "timeout"),
        (options().retry_interval(Duration::MAX), "retry_interval"),
        (options().failures_to_eject(0), "failures_to_eject"),
        (options().max_value_bytes(1 << 32), "max_value_bytes"),
        (
            options().credentials(Credentials::new("a b", "c")),
            "credentials",
        ),
    ] {
        assert!(refused(options).to_string().starts_with(name));
    }
    assert!(!format!("{:?}", Credentials::new("a", "hidden")).contains("hidden"));
}
