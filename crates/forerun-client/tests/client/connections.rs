//! How many connections a client has, and what it concludes from those that fail.

use crate::testing;

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use forerun_client::{Client, ClientOptions, Credentials, Error, Failure};
use testing::fake_server::{FakeServer, read_request, wait_for_end};
use testing::{PROTOCOLS, options, until};

const CALLS: usize = 8;

fn client(server: &FakeServer, options: ClientOptions) -> Client {
    Client::new([server.address().into()], options).expect("a client")
}

/// Runs calls at the same time. The server must answer each first request only after all have come.
fn together(client: &Client) -> Vec<Result<(), Error>> {
    std::thread::scope(|scope| {
        let call = || scope.spawn(|| client.get("k").map(|_| ()));
        let calls: Vec<_> = (0..CALLS).map(|_| call()).collect();
        calls
            .into_iter()
            .map(|call| call.join().expect("no panic"))
            .collect()
    })
}

#[test]
fn connections_of_a_burst_are_closed_when_no_call_uses_them() {
    let (open, burst) = (Arc::new(AtomicUsize::new(0)), Barrier::new(CALLS));
    let accepted = AtomicUsize::new(0);
    let count = Arc::clone(&open);
    let server = FakeServer::start(move |mut stream: TcpStream| {
        count.fetch_add(1, Ordering::Relaxed);
        if accepted.fetch_add(1, Ordering::Relaxed) < CALLS && read_request(&mut stream) {
            burst.wait();
            let _ = stream.write_all(b"END\r\n");
        }
        while read_request(&mut stream) && stream.write_all(b"END\r\n").is_ok() {}
        count.fetch_sub(1, Ordering::Relaxed);
    });
    let idle_timeout = Duration::from_millis(300);
    let client = client(&server, options().idle_timeout(idle_timeout));
    for result in together(&client) {
        result.expect("it answers");
    }
    assert_eq!(server.accepted(), CALLS);
    // The set that calls use stays.
    for _ in 0..5 {
        std::thread::sleep(idle_timeout / 4);
        client.get("k").expect("it answers");
    }
    assert_eq!(client.stats().idle_connection_sets, 1);
    until("the others are closed", || {
        open.load(Ordering::Relaxed) == 1
    });
}

#[test]
fn calls_that_fail_together_do_not_eject_a_server() {
    let (accepted, incident) = (AtomicUsize::new(0), Barrier::new(CALLS));
    let server = FakeServer::start(move |mut stream: TcpStream| {
        if accepted.fetch_add(1, Ordering::Relaxed) < CALLS {
            read_request(&mut stream);
            incident.wait();
            return;
        }
        while read_request(&mut stream) && stream.write_all(b"END\r\n").is_ok() {}
    });
    let client = client(&server, options());
    for result in together(&client) {
        let error = result.expect_err("the server closed the connection");
        let Error::Server { failure, .. } = error else {
            panic!("{error}")
        };
        assert!(matches!(failure, Failure::Closed), "{failure}");
    }
    client.get("k").expect("it is not ejected");
}

#[test]
fn a_server_with_too_many_connections_is_ejected() {
    let credentials = Credentials::new("user", "password");
    for credentials in [None, Some(credentials)] {
        for protocol in PROTOCOLS {
            let server = FakeServer::start(|mut stream: TcpStream| {
                read_request(&mut stream);
                let _ = stream.write_all(b"ERROR Too many open connections\r\n");
                wait_for_end(&mut stream);
            });
            let options = options()
                .protocol(protocol)
                .retry_interval(Duration::from_secs(600))
                .credentials(credentials.clone());
            let client = client(&server, options);
            let failure = || match client.get("k") {
                Err(Error::Server { failure, .. }) => failure,
                other => panic!("{other:?}"),
            };
            for _ in 0..2 {
                let failure = failure();
                assert!(matches!(failure, Failure::TooManyConnections), "{failure}");
            }
            let failure = failure();
            assert!(matches!(failure, Failure::Ejected { .. }), "{failure}");
            assert_eq!(server.accepted(), 2, "the third call does not connect");
        }
    }
}
