//! Streams between two hubs: every byte arrives once and in order, credits hold, ends are seen.
//! Each test runs over shared memory, and again over `UCX_TLS=tcp,self` and `UCX_TLS=posix,self`.

mod testing;

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_ucx::{MESSAGE_BYTES_MAX, SharedBytes};
use testing::{PATIENCE, Side, again_with, hub, pair, pair_of, ucx};

const TESTS: [&str; 12] = [
    "bytes_arrive_in_order_in_both_directions",
    "shared_bytes_are_sent_from_where_they_are",
    "a_writer_waits_for_the_reader",
    "a_stream_that_is_dropped_delivers_what_was_written",
    "a_peer_that_vanishes_is_noticed",
    "what_a_peer_claims_to_have_sent_must_arrive",
    "an_end_counts_more_than_a_lost_endpoint",
    "a_lost_endpoint_without_an_end_is_an_error",
    "a_message_that_has_arrived_keeps_a_side_from_sleeping",
    "a_sleeping_side_is_woken",
    "hundreds_of_streams_share_two_hubs",
    "a_stalled_stream_delays_no_other",
];

/// Tests that wait until a hub gives up, whatever the transport. They run over others every night.
const PATIENT: [&str; 2] = [
    "what_a_peer_claims_to_have_sent_must_arrive",
    "an_end_counts_more_than_a_lost_endpoint",
];

fn again_over(transports: &str) {
    if ucx().is_some() {
        let all = std::env::var_os("FORERUN_ALL_CASES").is_some();
        let tests = TESTS.into_iter();
        let tests: Vec<&str> = tests
            .filter(|name| all || !PATIENT.contains(name))
            .collect();
        again_with(transports, &tests);
    }
}

#[test]
fn the_same_over_tcp() {
    again_over("tcp,self");
}

#[test]
fn the_same_over_named_shared_memory() {
    again_over("posix,self");
}

/// Bytes that differ from each other wherever they are cut.
fn pattern(from: usize, count: usize) -> Vec<u8> {
    (from..from + count)
        .map(|at| (at * 31 + at / 251) as u8)
        .collect()
}

#[test]
fn bytes_arrive_in_order_in_both_directions() {
    let Some(context) = ucx() else { return };
    let mut sides = pair(&context, 16);
    let mut sent = [0, 0];
    let mut read = [0, 0];
    for round in 0..4_000_usize {
        for from in [0, 1] {
            let count = match round % 7 {
                0 => 1,
                1 => MESSAGE_BYTES_MAX * 3 + 5,
                _ => round * 7919 % 700 + 1,
            };
            let bytes = pattern(sent[from], count);
            match sides[from].stream.write(&bytes) {
                Ok(count) => sent[from] += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            let to = 1 - from;
            if let Some(bytes) = sides[to].read(round * 977 % 20_000 + 1).expect("open") {
                assert_eq!(bytes, pattern(read[from], bytes.len()), "from {from}");
                read[from] += bytes.len();
            }
        }
    }
    for from in [0, 1] {
        let start = Instant::now();
        while read[from] < sent[from] {
            assert!(start.elapsed() < PATIENCE);
            sides[from].progress();
            if let Some(bytes) = sides[1 - from].read(1 << 20).expect("open") {
                assert_eq!(bytes, pattern(read[from], bytes.len()), "from {from}");
                read[from] += bytes.len();
            }
        }
    }
    assert!(read[0] > 4 << 20 && read[1] > 4 << 20, "{read:?}");
}

#[test]
fn shared_bytes_are_sent_from_where_they_are() {
    let Some(context) = ucx() else { return };
    let [mut left, mut right] = pair(&context, 8);
    let value: SharedBytes = Arc::new(pattern(0, 3_000_001));
    let mut read = Vec::new();
    let mut at = 0;
    let start = Instant::now();
    while read.len() < 3_000_001 - 17 {
        assert!(start.elapsed() < PATIENCE);
        left.progress();
        if at < 3_000_001 - 17 {
            match left.stream.write_shared(&value, at + 17..3_000_001) {
                Ok(count) => at += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
        read.extend(right.read(1 << 20).expect("open").unwrap_or_default());
    }
    assert!(read == pattern(17, 3_000_001 - 17));
    // Nobody but the test has the value once it is sent.
    let start = Instant::now();
    while Arc::strong_count(&value) > 1 {
        assert!(start.elapsed() < PATIENCE, "the value is kept");
        left.progress();
        right.progress();
    }
}

#[test]
fn a_writer_waits_for_the_reader() {
    let Some(context) = ucx() else { return };
    let [mut left, mut right] = pair(&context, 4);
    let mut written = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        left.progress();
        right.progress();
        match left.stream.write(&[1; 3000]) {
            Ok(count) => written += count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
    }
    assert!(
        written <= 4 * MESSAGE_BYTES_MAX,
        "{written} bytes without a reader"
    );
    let (input_bytes, _) = right.stream.buffered_bytes();
    assert!(input_bytes <= 8 * MESSAGE_BYTES_MAX, "{input_bytes}");
    let mut read = 0;
    let start = Instant::now();
    while read < written || !left.stream.can_write() {
        assert!(start.elapsed() < PATIENCE);
        left.progress();
        read += right
            .read(1 << 20)
            .expect("open")
            .map_or(0, |bytes| bytes.len());
    }
    assert_eq!(
        right.stream.buffered_bytes().0,
        0,
        "an idle stream keeps no buffer"
    );
}

#[test]
fn a_stream_that_is_dropped_delivers_what_was_written() {
    let Some(context) = ucx() else { return };
    for round in 0..50 {
        let hubs = [hub(&context), hub(&context)];
        let [mut left, mut right] = pair_of(&hubs, 16);
        let bytes = pattern(round, 60_000);
        left.send(&bytes, || right.progress());
        drop(left);
        let mut read = Vec::new();
        loop {
            hubs[0].lock().expect("not poisoned").progress();
            match right.read(1000).expect("a proper end") {
                Some(piece) if piece.is_empty() => break,
                Some(piece) => read.extend(piece),
                None => {}
            }
        }
        assert!(read == bytes, "round {round}: {} bytes", read.len());
        // Nobody is there to read an answer.
        let error = right
            .stream
            .write(b"late")
            .expect_err("the other side is closed");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn a_peer_that_vanishes_is_noticed() {
    let Some(context) = ucx() else { return };
    let [mut left, mut right] = pair(&context, 16);
    left.send(b"before", || right.progress());
    assert_eq!(right.wait().expect("open"), b"before");
    // The system closes the sockets of a process that dies.
    let control = left.stream.control();
    control
        .shutdown(std::net::Shutdown::Both)
        .expect("a socket");
    let error = right.wait().expect_err("it has not ended its messages");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let error = right.stream.write(b"late").expect_err("nobody reads it");
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn what_a_peer_claims_to_have_sent_must_arrive() {
    let Some(context) = ucx() else { return };
    let [mut left, mut right] = pair(&context, 16);
    left.send(b"one message", || right.progress());
    left.stream
        .control()
        .write_all(&3_u32.to_le_bytes())
        .expect("a socket");
    assert_eq!(right.wait().expect("open"), b"one message");
    let start = Instant::now();
    let error = right.wait().expect_err("two messages are missing");
    assert!(error.to_string().contains("2 of its messages"), "{error}");
    assert!(
        start.elapsed() > Duration::from_secs(3),
        "they may be on the way"
    );
    // More bytes than the number has are an error at once.
    let [mut left, mut right] = pair(&context, 16);
    left.stream.control().write_all(&[0; 5]).expect("a socket");
    let error = right.wait().expect_err("too many bytes");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

/// Two streams of which the left one is gone with its hub, so UCX has reported to the right side
/// that its peer is lost. The right side has not looked at its control socket.
fn lost_peer(context: &forerun_ucx::Context, says_end: bool) -> Side {
    let hubs = [hub(context), hub(context)];
    let [mut left, mut right] = pair_of(&hubs, 16);
    left.send(b"the last words", || right.progress());
    assert_eq!(right.wait().expect("open"), b"the last words");
    right.forget_peer();
    hubs[0]
        .lock()
        .expect("not poisoned")
        .set_drop_time(Duration::ZERO);
    if !says_end {
        let control = left.stream.control();
        // From here on, the left side can say nothing.
        control
            .shutdown(std::net::Shutdown::Write)
            .expect("a socket");
    }
    drop((left, hubs));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        right.stream.hub().lock().expect("not poisoned").progress();
    }
    right
}

#[test]
fn an_end_counts_more_than_a_lost_endpoint() {
    let Some(context) = ucx() else { return };
    for stays in [1300, 0, 0] {
        let mut right = lost_peer(&context, true);
        assert_eq!(right.wait().expect("a proper end"), b"");
        // It stays the end.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(stays) {
            assert_eq!(right.wait().expect("a proper end"), b"");
        }
    }
}

#[test]
fn a_lost_endpoint_without_an_end_is_an_error() {
    let Some(context) = ucx() else { return };
    let mut right = lost_peer(&context, false);
    let error = right.wait().expect_err("it has not ended its messages");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_message_that_has_arrived_keeps_a_side_from_sleeping() {
    let Some(context) = ucx() else { return };
    let [mut left, mut right] = pair(&context, 16);
    for round in 0..10_u8 {
        left.send(&[round], || right.progress());
        assert_eq!(right.wait().expect("open"), [round]);
    }
    left.send(b"while it does not look", || true);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        left.progress();
    }
    // An edge-triggered poll may have seen the edge before, so it must not wait.
    let is_armed = right.stream.hub().lock().expect("not poisoned").arm();
    assert_eq!(is_armed, Ok(false));
    assert_eq!(right.wait().expect("open"), b"while it does not look");
}

#[test]
fn a_sleeping_side_is_woken() {
    let Some(context) = ucx() else { return };
    let [left, mut right] = pair(&context, 16);
    let echo = std::thread::spawn(move || {
        let mut left = left;
        loop {
            sleep(&left);
            match left.read(100).expect("open") {
                Some(bytes) if bytes == b"end" => return,
                Some(bytes) => left.send(&bytes, || true),
                None => {}
            }
        }
    });
    let start = Instant::now();
    for round in 0..2_000_u32 {
        let number = round.to_le_bytes();
        right.send(&number, || true);
        let mut answer = Vec::new();
        while answer.len() < 4 {
            assert!(start.elapsed() < PATIENCE, "round {round}");
            sleep(&right);
            answer.extend(right.read(100).expect("open").unwrap_or_default());
        }
        assert_eq!(answer, number);
    }
    right.send(b"end", || true);
    let start = Instant::now();
    while !echo.is_finished() {
        assert!(start.elapsed() < PATIENCE);
        right.progress();
    }
    echo.join().expect("it ends well");
}

/// Waits for the hub's descriptor as an event loop does.
fn sleep(side: &Side) {
    use std::os::fd::AsFd;

    let mut hub = side.stream.hub().lock().expect("not poisoned");
    while hub.progress() {}
    if !hub.has_ready() && hub.arm().expect("it can be armed") {
        let descriptor = hub.as_fd().try_clone_to_owned().expect("a descriptor");
        drop(hub);
        let mut polled = [rustix::event::PollFd::new(
            &descriptor,
            rustix::event::PollFlags::IN,
        )];
        let patience = rustix::event::Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        let ready = rustix::event::poll(&mut polled, Some(&patience)).expect("it polls");
        assert_eq!(ready, 1, "nothing wakes it");
        hub = side.stream.hub().lock().expect("not poisoned");
        hub.progress();
    }
    hub.take_ready(|_| {});
}

#[test]
fn hundreds_of_streams_share_two_hubs() {
    let Some(context) = ucx() else { return };
    let hubs = [hub(&context), hub(&context)];
    let mut pairs: Vec<[Side; 2]> = (0..300).map(|_| pair_of(&hubs, 4)).collect();
    for round in 0..3 {
        for (at, [left, right]) in pairs.iter_mut().enumerate() {
            left.send(&pattern(at + round, 5_000), || right.progress());
        }
        for (at, [_, right]) in pairs.iter_mut().enumerate() {
            let mut read = Vec::new();
            while read.len() < 5_000 {
                read.extend(right.wait().expect("open"));
            }
            assert!(read == pattern(at + round, 5_000), "stream {at}");
        }
    }
    // Every second stream ends; the others go on.
    let mut number = 0;
    pairs.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    for [left, right] in &mut pairs {
        left.send(b"still here", || right.progress());
        assert_eq!(right.wait().expect("open"), b"still here");
    }
}

#[test]
fn a_stalled_stream_delays_no_other() {
    let Some(context) = ucx() else { return };
    let hubs = [hub(&context), hub(&context)];
    let mut stalled: Vec<[Side; 2]> = (0..20).map(|_| pair_of(&hubs, 8)).collect();
    for [left, _] in &mut stalled {
        // Nobody reads these.
        while left.stream.write(&[7; MESSAGE_BYTES_MAX]).is_ok() {}
    }
    let [mut left, mut right] = pair_of(&hubs, 8);
    for round in 0..200 {
        let bytes = pattern(round, 9_000);
        left.send(&bytes, || right.progress());
        let mut read = Vec::new();
        let start = Instant::now();
        while read.len() < bytes.len() {
            assert!(start.elapsed() < PATIENCE, "round {round}");
            left.progress();
            read.extend(right.read(1 << 16).expect("open").unwrap_or_default());
        }
        assert!(read == bytes);
    }
    let mut one = [0];
    assert_eq!(
        stalled[0][1].stream.read(&mut one).expect("it waits there"),
        1
    );
}
