//! Batches of writes, statistics, and calls that are interrupted.

use crate::testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forerun_client::{Client, ClientOptions, Error, Expiration, Failure, NewValue, Unwritten};
use testing::fake_server::{FakeServer, wait_for_end};
use testing::{client_of, forerun, on_every_server, options};

#[test]
fn a_batch_is_written_and_deleted_on_all_servers() {
    on_every_server(|client, _| {
        let keys: Vec<String> = (0..2500).map(|n| format!("key:{n}")).collect();
        let values: Vec<Vec<u8>> = (0..2500).map(|n| vec![b'0' + (n % 10) as u8; n]).collect();
        let entry = |(key, value)| (key, NewValue::new(value).flags(7));
        let entries: Vec<(&String, NewValue<'_>)> = keys.iter().zip(&values).map(entry).collect();
        let report = client.set_many(&entries).expect("good keys");
        assert_eq!(
            (report.done, report.unwritten.len()),
            (2500, 0),
            "{report:?}"
        );
        let found = testing::multi_get(client, &keys).expect("good keys");
        for (at, value) in found.iter().enumerate() {
            let value = value.expect("it is stored");
            assert_eq!((value.data, value.flags), (&values[at][..], 7), "{at}");
        }

        let report = client.delete_many(&keys[..1000]).expect("good keys");
        assert_eq!((report.done, report.not_found), (1000, 0));
        let report = client.delete_many(&keys).expect("good keys");
        assert_eq!((report.done, report.not_found), (1500, 1000));
        assert_eq!(
            testing::multi_get(client, &keys)
                .expect("good keys")
                .iter()
                .flatten()
                .count(),
            0
        );

        // A repeated key keeps its last value, and values expire.
        let gone = NewValue::new("1").expiry(Expiration::In(Duration::ZERO));
        let entries = [
            ("a", NewValue::new("1")),
            ("a", NewValue::new("2")),
            ("b", gone),
        ];
        assert_eq!(client.set_many(&entries).expect("good keys").done, 3);
        assert_eq!(
            client
                .get("a")
                .expect("it answers")
                .expect("it is there")
                .data,
            b"2"
        );
        assert_eq!(client.get("b").expect("it answers"), None);
        let none: [(&str, NewValue<'_>); 0] = [];
        assert_eq!(client.set_many(&none).expect("no keys").done, 0);
    });
}

#[test]
fn values_that_a_server_refuses_are_reported_by_position_and_the_others_are_stored() {
    on_every_server(|client, _| {
        let long = vec![b'x'; 2 << 20];
        let entries: Vec<(String, NewValue<'_>)> = (0..20)
            .map(|n| {
                (
                    format!("k{n}"),
                    NewValue::new(if n % 7 == 3 { &long[..] } else { b"1" }),
                )
            })
            .collect();
        let report = client.set_many(&entries).expect("good keys");
        assert_eq!(report.done, 17, "{report:?}");
        let positions: Vec<usize> = report.unwritten.iter().map(|(at, _)| *at).collect();
        assert_eq!(positions, [3, 10, 17]);
        for (_, why) in &report.unwritten {
            assert!(
                matches!(why, Unwritten::Refused(line) if line.contains("too large")),
                "{why:?}"
            );
        }
        // The connections stay usable.
        assert_eq!(
            client
                .get("k19")
                .expect("it answers")
                .expect("it is there")
                .data,
            b"1"
        );
        assert_eq!(client.stats().server_failures, 0);
    });
}

#[test]
fn a_key_that_cannot_be_sent_stops_the_whole_batch() {
    on_every_server(|client, _| {
        let entries = [("good", NewValue::new("1")), ("", NewValue::new("1"))];
        let error = client.set_many(&entries).expect_err("an empty key");
        assert!(matches!(error, Error::Key { index: 1, .. }), "{error}");
        assert_eq!(client.get("good").expect("it answers"), None);
    });
}

#[test]
fn a_batch_reports_the_writes_of_a_server_that_fails() {
    // The server answers the first two of its commands and then ends.
    let bad = FakeServer::answering(b"STORED\r\nSTORED\r\n", true);
    let good = forerun();
    let servers = [bad.address().into(), testing::address(&good).into()];
    let client = Client::new(servers, options()).expect("a client");
    let keys: Vec<String> = (0..100).map(|n| format!("key:{n}")).collect();
    let on_bad: Vec<usize> = (0..100)
        .filter(|at| client.server_of(&keys[*at]) == 0)
        .collect();
    assert!(on_bad.len() > 10 && on_bad.len() < 90);
    let entries: Vec<_> = keys.iter().map(|key| (key, NewValue::new("1"))).collect();
    let report = client.set_many(&entries).expect("good keys");
    let unwritten: Vec<usize> = report.unwritten.iter().map(|(at, _)| *at).collect();
    assert_eq!(unwritten, on_bad[2..]);
    assert!(
        report
            .unwritten
            .iter()
            .all(|(_, why)| *why == Unwritten::Failed)
    );
    assert_eq!(report.done, 100 - unwritten.len());
    let [failure] = &report.failures[..] else {
        panic!("{report:?}");
    };
    assert_eq!(failure.keys, unwritten.len());
    assert!(matches!(failure.failure, Failure::Closed), "{failure}");
}

#[test]
fn statistics_count_what_was_done() {
    let servers = [forerun(), forerun()];
    let client = client_of(&servers, options());
    client.set("a", "1").expect("stored");
    client
        .set_many(&[("b", NewValue::new("1")), ("c", NewValue::new("1"))])
        .expect("stored");
    testing::multi_get(&client, &["a", "b", "x"]).expect("good keys");
    let stats = client.stats();
    assert_eq!(
        (stats.get_hits, stats.get_misses, stats.commands),
        (2, 1, 3)
    );
    assert_eq!(
        (
            stats.servers,
            stats.ejected_servers,
            stats.idle_connection_sets
        ),
        (2, 0, 1)
    );

    let dead: [forerun_client::ServerAddress; 1] = ["127.0.0.1:1".parse().expect("an address")];
    let client = Client::new(dead, ClientOptions::default()).expect("a client");
    for _ in 0..3 {
        let _ = testing::multi_get(&client, &["a", "b"]).expect("good keys");
    }
    let stats = client.stats();
    assert_eq!((stats.get_failed, stats.server_failures), (6, 2));
    assert_eq!((stats.ejections, stats.ejected_servers), (1, 1));
}

#[test]
fn a_waiting_call_stops_when_it_is_interrupted_and_blames_no_server() {
    let silent = FakeServer::start(|mut stream| wait_for_end(&mut stream));
    let options = ClientOptions::default()
        .timeout(testing::PATIENCE)
        .failures_to_eject(1);
    let mut client = Client::new([silent.address().into()], options).expect("a client");
    let raised = Arc::new(AtomicBool::new(false));
    let asked = raised.clone();
    client.interrupt_if(move || asked.load(Ordering::Relaxed));
    let calls: [fn(&Client) -> Option<Error>; 5] = [
        |client| client.get("a").err(),
        |client| testing::multi_get(client, &["a"]).err(),
        |client| client.set("a", "1").err(),
        |client| client.set_many(&[("a", NewValue::new("1"))]).err(),
        |client| client.flush_all().err(),
    ];
    for call in calls {
        raised.store(false, Ordering::Relaxed);
        let start = Instant::now();
        let error = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| call(&client));
            std::thread::sleep(Duration::from_millis(100));
            raised.store(true, Ordering::Relaxed);
            waiting.join().expect("no panic")
        });
        assert!(matches!(error, Some(Error::Interrupted)), "{error:?}");
        assert!(start.elapsed() >= Duration::from_millis(100));
        assert!(
            start.elapsed() < testing::PATIENCE / 2,
            "{:?}",
            start.elapsed()
        );
    }
    let stats = client.stats();
    assert_eq!((stats.ejected_servers, stats.ejections), (0, 0));
}
