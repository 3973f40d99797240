//! Calls that an event loop drives. The loop here watches them with poll(2).

use crate::testing;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_client::{Client, ClientOptions, Error, Failure, Lookups, NewValue, Pending, Protocol};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testing::fake_server::{FakeServer, read_request, wait_for_end};
use testing::{PROTOCOLS, address, forerun, options};

/// Drives some calls to their results. Also returns how often the loop woke up.
fn drive<T>(mut calls: Vec<Pending<T>>) -> (Vec<T>, usize) {
    let mut results: Vec<Option<T>> = calls.iter_mut().map(Pending::advance).collect();
    let mut turns = 0;
    while results.iter().any(Option::is_none) {
        turns += 1;
        let waiting: Vec<usize> = (0..calls.len())
            .filter(|at| results[*at].is_none())
            .collect();
        let left = waiting
            .iter()
            .map(|at| calls[*at].timeout())
            .min()
            .unwrap_or_default();
        let mut descriptors: Vec<PollFd<'_>> = waiting
            .iter()
            .map(|at| PollFd::from_borrowed_fd(calls[*at].as_fd(), PollFlags::IN))
            .collect();
        let left = Timespec::try_from(left + Duration::from_millis(1)).expect("a short time");
        poll(&mut descriptors, Some(&left)).expect("it polls");
        let ready: Vec<bool> = descriptors
            .iter()
            .map(|one| !one.revents().is_empty())
            .collect();
        for (at, is_ready) in waiting.into_iter().zip(ready) {
            if is_ready || calls[at].timeout().is_zero() {
                results[at] = calls[at].advance();
            }
        }
    }
    (results.into_iter().flatten().collect(), turns)
}

fn one<T>(call: Pending<T>) -> T {
    drive(vec![call]).0.pop().expect("a result")
}

#[test]
fn many_calls_are_driven_by_one_thread() {
    let servers = [forerun(), forerun(), forerun()];
    for protocol in PROTOCOLS {
        let addresses = servers.iter().map(|server| address(server).into());
        let client = Client::new(addresses, options().protocol(protocol)).expect("a client");
        let client = Arc::new(client);
        let stores = (0..50).map(|n| {
            let call = client.start(move |calls| async move {
                let keys: Vec<String> = (0..20).map(|k| format!("{n}:{k}")).collect();
                let values: Vec<Vec<u8>> = (0..20).map(|k| vec![b'a' + k; n * 300]).collect();
                let entries = keys.iter().zip(&values);
                let entries: Vec<_> = entries.map(|(k, v)| (k, NewValue::new(v))).collect();
                calls.set_many(&entries).await
            });
            call.expect("an epoll instance")
        });
        for report in drive(stores.collect()).0 {
            assert_eq!(report.expect("good keys").done, 20);
        }
        let lookups = (0..50).map(|n| {
            let call = client.start(move |calls| async move {
                let keys: Vec<String> = (0..21).map(|k| format!("{n}:{k}")).collect();
                let mut values = Lookups::new();
                let report = calls.multi_get(&keys, &mut values).await;
                (n, report, values)
            });
            call.expect("an epoll instance")
        });
        for (n, report, values) in drive(lookups.collect()).0 {
            let report = report.expect("good keys");
            assert_eq!((report.hits, report.misses, report.failed), (20, 1, 0));
            for k in 0..20_u8 {
                let value = values.get(usize::from(k)).expect("it is stored");
                assert_eq!(value.data, vec![b'a' + k; n * 300]);
            }
        }
        let call = client.start(|calls| async move {
            calls.set("n", "41").await?;
            let sum = calls.incr("n", 1).await?;
            Ok::<_, Error>((sum, calls.delete("n").await?, calls.get("n").await?))
        });
        let (sum, deleted, found) = one(call.expect("an epoll instance")).expect("it answers");
        assert_eq!((sum, deleted, found), (Some(42), true, None));
        let call = client.start(|calls| async move { calls.flush_all().await });
        assert!(
            one(call.expect("an epoll instance"))
                .expect("this process")
                .is_empty()
        );
        assert!(client.stats().idle_connection_sets <= 50);
    }
}

#[test]
fn a_call_that_waits_wakes_its_loop_only_for_answers() {
    // One server answers at once and closes; the other is silent until the time-out.
    let quick = FakeServer::answering(b"END\r\n", true);
    let silent = FakeServer::start(|mut stream| wait_for_end(&mut stream));
    let options = ClientOptions::default().timeout(Duration::from_millis(500));
    let servers = [quick.address().into(), silent.address().into()];
    let client = Arc::new(Client::new(servers, options).expect("a client"));
    let keys: Vec<String> = (0..20).map(|n| format!("key:{n}")).collect();
    let silent_keys = keys.iter().filter(|key| client.server_of(key) == 1).count();
    assert!(silent_keys > 0 && silent_keys < 20);
    let start = Instant::now();
    let call = client.start(move |calls| async move {
        let mut values = Lookups::new();
        calls.multi_get(&keys, &mut values).await
    });
    let (mut reports, turns) = drive(vec![call.expect("an epoll instance")]);
    let report = reports.pop().expect("a result").expect("good keys");
    assert_eq!(
        (report.failed, report.misses),
        (silent_keys, 20 - silent_keys)
    );
    assert!(
        matches!(report.failures[0].failure, Failure::TimedOut(_)),
        "{report:?}"
    );
    assert!(start.elapsed() >= Duration::from_millis(500));
    assert!(turns < 20, "the loop woke up {turns} times");
}

#[test]
fn a_cancelled_call_never_leaves_its_answer_to_another() {
    // The server answers each request with the requested key, and the first one late.
    let server = FakeServer::start(|mut stream| {
        let mut bytes = [0; 256];
        while let Ok(count) = stream.read(&mut bytes)
            && count > 0
        {
            let line = String::from_utf8_lossy(&bytes[..count]).into_owned();
            let key = line
                .trim_end()
                .rsplit(' ')
                .next()
                .unwrap_or_default()
                .to_owned();
            if key == "slow" {
                std::thread::sleep(Duration::from_millis(100));
            }
            let answer = format!("VALUE {key} 0 {}\r\n{key}\r\nEND\r\n", key.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    let options = options().protocol(Protocol::Classic);
    let client = Client::new([server.address().into()], options).expect("a client");
    let client = Arc::new(client);
    for _ in 0..5 {
        let mut slow = client
            .start(|calls| async move { calls.get("slow").await })
            .expect("an epoll instance");
        // The request is sent, and the call is dropped before the answer.
        for _ in 0..3 {
            assert!(slow.advance().is_none());
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(slow);
        let quick = client.start(|calls| async move { calls.get("quick").await });
        let found = one(quick.expect("an epoll instance")).expect("it answers");
        assert_eq!(found.expect("it is there").data, b"quick");
    }
    assert_eq!(client.stats().server_failures, 0);
}

#[test]
fn a_call_is_refused_in_its_result_and_one_that_ended_has_none() {
    let silent = FakeServer::start(|mut stream| {
        let _ = read_request(&mut stream);
    });
    let client = Client::new([silent.address().into()], options()).expect("a client");
    let client = Arc::new(client);
    let mut call = client
        .start(|calls| async move { calls.get("").await })
        .expect("an epoll instance");
    assert!(matches!(
        call.advance(),
        Some(Err(Error::Key { index: 0, .. }))
    ));
    assert!(call.advance().is_none());
    let call = client.start(|calls| async move { calls.set("a", "1").await });
    let error = one(call.expect("an epoll instance")).expect_err("it is closed");
    assert!(
        matches!(
            error,
            Error::Server {
                failure: Failure::Closed,
                ..
            }
        ),
        "{error}"
    );
}
