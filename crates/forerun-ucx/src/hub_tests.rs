use super::*;

use std::io::Write as _;
use std::process::Command;

use crate::context::ContextOptions;

/// Longer than any test waits.
const PATIENCE: Duration = Duration::from_secs(30);

/// A hub with one channel.
struct Side {
    hub: Hub,
    channel: ChannelId,
}

impl Side {
    /// How many messages UCX keeps because the peer has no room for them.
    fn unsent(&mut self) -> usize {
        let channel = self.hub.worker.receiver().get(self.channel.0);
        let endpoint = channel.and_then(|channel| channel.endpoint).expect("open");
        self.hub.worker.unsent_count(endpoint)
    }

    /// Reads all that has arrived.
    fn read(&mut self) -> usize {
        let mut into = vec![0; 1 << 20];
        self.hub.read(self.channel, &mut into).unwrap_or(0)
    }
}

/// Two hubs with a channel each, which are connected, or `None` if UCX is not installed.
fn connected(window: u16) -> Option<[Side; 2]> {
    let context = match Context::open(&ContextOptions::default()) {
        Ok(context) => context,
        Err(error @ UcxError::NoLibrary { .. }) => {
            // The test harness hides the output of `eprintln!` in a passing test.
            let _ = writeln!(io::stderr(), "skipped: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut hubs = [0, 1].map(|_| Hub::new(&context).expect("a hub"));
    let opened = [0, 1].map(|side| hubs[side].open(0, window));
    for side in 0..2 {
        let address = hubs[1 - side].address().to_vec();
        let ((channel, _), (_, peer_key)) = (opened[side], opened[1 - side]);
        let connected = hubs[side].connect(channel, &address, peer_key, window);
        connected.expect("a transport");
    }
    let [left, right] = hubs;
    let mut sides =
        [(left, opened[0].0), (right, opened[1].0)].map(|(hub, channel)| Side { hub, channel });
    // Transports of a network connect with the first messages.
    for side in 0..2 {
        let channel = sides[side].channel;
        let sent = sides[side].hub.write(channel, &[IoSlice::new(b"x")]);
        assert_eq!(sent.expect("credits"), 1);
        let start = time::now();
        while sides[1 - side].read() == 0 {
            assert!(start.elapsed() < PATIENCE);
            sides.iter_mut().for_each(|side| _ = side.hub.progress());
        }
    }
    Some(sides)
}

#[test]
fn a_peer_that_needs_no_credits_and_takes_nothing_costs_a_bounded_number_of_messages() {
    const WINDOW: u16 = 16;
    let Some([mut liar, mut honest]) = connected(WINDOW) else {
        return;
    };
    for _ in 0..20_000 {
        // As if all of its messages were reported to be consumed. It never looks.
        let channel = liar.hub.worker.receiver().get_mut(liar.channel.0);
        channel.expect("open").pretend_credits();
        let sent = liar.hub.write(liar.channel, &[IoSlice::new(b"x")]);
        assert_eq!(sent.expect("credits"), 1);
        honest.hub.progress();
        honest.read();
        assert!(honest.unsent() <= 1, "{} reports", honest.unsent());
        let channel = honest.hub.worker.receiver().get(honest.channel.0);
        match &channel.expect("open").failure {
            None => {}
            Some(ChannelFailure::Credits { window: WINDOW }) => return,
            Some(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_report_that_waits_for_other_messages_is_sent_after_them() {
    const WINDOW: u16 = 64;
    let Some([mut left, mut right]) = connected(WINDOW) else {
        return;
    };
    // The left side takes nothing at first.
    let data = vec![7; MESSAGE_BYTES_MAX];
    while right
        .hub
        .write(right.channel, &[IoSlice::new(&data)])
        .is_ok()
    {}
    let mut sent = 0;
    while let Ok(count) = left.hub.write(left.channel, &[IoSlice::new(&data)]) {
        sent += count;
        right.hub.progress();
    }
    let mut read = 0;
    let start = time::now();
    while read < sent {
        assert!(start.elapsed() < PATIENCE);
        right.hub.progress();
        read += right.read();
        // A network may not have taken all of it.
        if start.elapsed() > Duration::from_secs(1) {
            left.hub.progress();
        }
    }
    let start = time::now();
    while !left.hub.can_write(left.channel) {
        assert!(start.elapsed() < PATIENCE, "no report");
        left.hub.progress();
        right.hub.progress();
        right.read();
        // It does not read either, so it sends nothing that could carry the report back.
    }
    assert_eq!(right.unsent(), 0);
}

/// Closes many channels at once while their peer takes almost nothing, in a process of its own: a
/// failure would end it.
fn close_many_over(transports: &str) {
    let program = std::env::current_exe().expect("this executable");
    let ran = Command::new(program)
        .args(["--exact", "--nocapture", "hub::tests::many_are_closed"])
        .env("UCX_TLS", transports)
        .env("FORERUN_UCX_CLOSES_MANY", transports)
        .output()
        .expect("it runs");
    let output = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success(),
        "{transports}: {}: {output}",
        ran.status
    );
    assert!(output.contains("1 passed"), "{output}");
}

#[test]
fn channels_whose_peer_takes_nothing_are_closed_over_tcp() {
    close_many_over("tcp,self");
}

#[test]
fn channels_whose_peer_takes_nothing_are_closed_over_shared_memory() {
    close_many_over("posix,self");
}

#[test]
fn many_are_closed() {
    const CHANNELS: usize = 600;
    const WINDOW: u16 = 32;
    /// The peer works once for this many channels.
    const INTERVAL: usize = 50;
    let Ok(over) = std::env::var("FORERUN_UCX_CLOSES_MANY") else {
        return;
    };
    let context = match Context::open(&ContextOptions::default()) {
        Ok(context) => context,
        Err(UcxError::NoLibrary { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    let [mut left, mut right] = [0, 1].map(|_| Hub::new(&context).expect("a hub"));
    let addresses = [&left, &right].map(|hub| hub.address().to_vec());
    let data = vec![7; MESSAGE_BYTES_MAX];
    let mut opened = Vec::new();
    for number in 0..CHANNELS {
        let (at_left, left_key) = left.open(number, WINDOW);
        let (at_right, right_key) = right.open(number, WINDOW);
        let connected = right.connect(at_right, &addresses[0], left_key, WINDOW);
        connected.expect("a transport");
        let connected = left.connect(at_left, &addresses[1], right_key, WINDOW);
        connected.expect("a transport");
        // What does not fit into the peer's queue waits in UCX, and so do its own messages.
        for (hub, channel, count) in [
            (&mut right, at_right, number % (usize::from(WINDOW) + 1)),
            (&mut left, at_left, number % 5),
        ] {
            for _ in 0..count {
                let sent = hub.write(channel, &[IoSlice::new(&data)]);
                assert_eq!(sent.expect("credits"), data.len());
            }
        }
        // Some are closed before UCX has connected them.
        if number % 2 == 0 {
            right.progress();
        }
        right.close_now(at_right);
        opened.push(at_left);
        if number % INTERVAL == INTERVAL - 1 {
            left.progress();
            opened.drain(..).for_each(|channel| left.close(channel));
        }
    }
    // The buffers of sockets take more than a queue in shared memory.
    if over == "posix,self" {
        let keeps_unsent = !crate::library::can_drop_unsent(context.functions());
        assert_eq!(right.is_full(), keeps_unsent);
    }
    assert!(!left.is_full());
    for mut hub in [right, left] {
        hub.set_drop_time(Duration::from_millis(100));
        let begin = time::now();
        drop(hub);
        assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    }
}
