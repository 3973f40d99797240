use super::*;

/// Two channels that are connected to each other: what one would send, the other receives.
struct Pair {
    sides: [Channels; 2],
    at: [usize; 2],
}

impl Pair {
    fn new(window: u16) -> Pair {
        let mut sides = [Channels::default(), Channels::default()];
        let (left, left_key) = sides[0].open(0, window);
        let (right, right_key) = sides[1].open(1, window);
        let at = [left, right];
        sides[0]
            .get_mut(left)
            .expect("open")
            .connect(0, right_key, window);
        sides[1]
            .get_mut(right)
            .expect("open")
            .connect(0, left_key, window);
        Pair { sides, at }
    }

    fn channel(&mut self, side: usize) -> &mut Channel {
        self.sides[side].get_mut(self.at[side]).expect("open")
    }

    fn header(&mut self, from: usize, has_data: bool) -> Header {
        self.channel(from).next_header(has_data)
    }

    fn send(&mut self, from: usize, data: &[u8]) {
        let header = self.header(from, !data.is_empty()).to_bytes();
        self.sides[1 - from].message(&header, Some(data));
    }

    fn read(&mut self, side: usize, bytes: usize) -> Vec<u8> {
        let mut into = vec![0; bytes];
        let count = self.sides[side].read(self.at[side], &mut into);
        into.truncate(count);
        into
    }

    fn failure(&mut self, side: usize) -> Option<ChannelFailure> {
        self.channel(side).failure.clone()
    }
}

#[test]
fn bytes_arrive_in_order_and_credits_return_when_messages_are_read_in_full() {
    let mut pair = Pair::new(4);
    for piece in [&b"abc"[..], b"defg", b"h", b"ij"] {
        assert!(pair.channel(0).credits() > 0);
        pair.send(0, piece);
    }
    assert_eq!(pair.channel(0).credits(), 0);
    assert_eq!(pair.read(1, 4), b"abcd");
    assert!(
        !pair.channel(1).owes_report(),
        "one message of four is read in full"
    );
    assert_eq!(pair.read(1, 4), b"efgh");
    assert!(pair.channel(1).owes_report());
    pair.send(1, b"");
    assert!(!pair.channel(1).owes_report());
    assert_eq!(pair.channel(0).credits(), 3);
    assert_eq!(pair.read(1, 100), b"ij");
    assert_eq!(pair.read(1, 100), b"");
    assert_eq!((pair.failure(0), pair.failure(1)), (None, None));
}

#[test]
fn a_long_exchange_wraps_no_count_and_keeps_every_byte() {
    let mut pair = Pair::new(64);
    // Just below the point where the counts of messages wrap around.
    let start = u32::MAX - 1000;
    (pair.channel(0).sent, pair.channel(0).peer_consumed) = (start, start);
    (pair.channel(1).received, pair.channel(1).reported) = (start, start);
    let (mut sent, mut read) = (0_u32, 0_u32);
    for round in 0..5_000_usize {
        let piece: Vec<u8> = (0..round * 7919 % 300 + 1)
            .map(|at| (sent as usize + at) as u8)
            .collect();
        if pair.channel(0).credits() > 0 {
            pair.send(0, &piece);
            sent += piece.len() as u32;
        }
        for byte in pair.read(1, round * 31 % 400) {
            assert_eq!(byte, read as u8);
            read += 1;
        }
        if pair.channel(1).owes_report() {
            pair.send(1, b"");
        }
    }
    assert_eq!((pair.failure(0), pair.failure(1)), (None, None));
    assert!(read > 100_000 && pair.channel(0).sent < start, "{read}");
}

#[test]
fn a_message_beyond_the_window_ends_the_channel() {
    let mut pair = Pair::new(2);
    for _ in 0..2 {
        pair.send(0, b"x");
    }
    assert_eq!(pair.failure(1), None);
    pair.send(0, b"x");
    assert_eq!(pair.failure(1), Some(ChannelFailure::Credits { window: 2 }));
    assert_eq!(pair.read(1, 10), b"xx", "what came before stays readable");
}

#[test]
fn a_lying_peer_ends_its_channel_only() {
    let mut pair = Pair::new(4);
    let (other, other_key) = pair.sides[1].open(9, 4);
    let key = pair.header(0, false).key;
    let mut cases: Vec<(Header, Option<Vec<u8>>, ChannelFailure)> = Vec::new();
    let header = |number, consumed| Header {
        key,
        number,
        consumed,
    };
    let order = ChannelFailure::Order {
        found: 1,
        expected: 0,
    };
    cases.push((header(1, 0), Some(vec![1]), order.clone()));
    cases.push((header(1, 0), Some(vec![]), order));
    cases.push((header(0, 1), Some(vec![1]), ChannelFailure::Consumed));
    cases.push((header(0, u32::MAX), Some(vec![]), ChannelFailure::Consumed));
    let bytes = MESSAGE_BYTES_MAX + 1;
    cases.push((
        header(0, 0),
        Some(vec![1; bytes]),
        ChannelFailure::Long { bytes },
    ));
    cases.push((header(0, 0), None, ChannelFailure::Rendezvous));
    for (header, data, expected) in cases {
        let mut fresh = Pair::new(4);
        let key = fresh.header(0, false).key;
        let header = Header { key, ..header }.to_bytes();
        fresh.sides[1].message(&header, data.as_deref());
        assert_eq!(fresh.failure(1), Some(expected));
        // Later messages change nothing.
        fresh.send(0, b"late");
        assert_eq!(fresh.read(1, 10), b"");
    }
    // Guessed keys and short headers are dropped.
    for guess in [other_key ^ (1 << 40), key ^ (1 << 63), u64::MAX, 0] {
        let header = Header {
            key: guess,
            number: 0,
            consumed: 0,
        };
        pair.sides[1].message(&header.to_bytes(), Some(b"x"));
    }
    for bytes in [0, 15, 17] {
        pair.sides[1].message(&vec![0xff; bytes], Some(b"x"));
    }
    assert_eq!(pair.failure(1), None);
    assert!(
        pair.sides[1]
            .get(other)
            .is_some_and(|channel| !channel.has_input())
    );
    assert_eq!(pair.read(1, 10), b"");
}

#[test]
fn a_closed_channel_receives_nothing_even_if_its_place_is_used_again() {
    let mut pair = Pair::new(4);
    let header = pair.header(0, true).to_bytes();
    let at = pair.at[1];
    pair.sides[1].remove(at).expect("open");
    let (again, _) = pair.sides[1].open(2, 4);
    assert_eq!(again, at);
    pair.sides[1].message(&header, Some(b"for the channel before"));
    assert_eq!(pair.read(1, 100), b"");
}

#[test]
fn a_channel_is_reported_once_for_what_has_happened() {
    let mut pair = Pair::new(1);
    pair.channel(0).wants_write = true;
    pair.send(0, b"x");
    pair.send(1, b"");
    assert!(
        pair.sides[0].next_report().is_none(),
        "nothing was consumed yet"
    );
    let report = pair.sides[1].next_report().expect("bytes have arrived");
    assert!(report.tag == 1 && !report.is_writable);
    assert!(pair.sides[1].next_report().is_none());
    pair.read(1, 1);
    pair.send(1, b"");
    let report = pair.sides[0].next_report().expect("a credit has come back");
    assert!(report.tag == 0 && report.is_writable);
    assert!(!pair.sides[0].has_listed() && !pair.channel(0).wants_write);
}

#[test]
fn idle_channels_keep_no_buffers() {
    let mut channels = Channels::default();
    let open: Vec<(usize, u64)> = (0..200).map(|tag| channels.open(tag, 8)).collect();
    for (at, key) in &open {
        let header = Header {
            key: *key,
            number: 0,
            consumed: 0,
        };
        channels.message(&header.to_bytes(), Some(&[1; 4096]));
        assert!(channels.get(*at).expect("open").memory_bytes() >= 4096);
        assert_eq!(channels.read(*at, &mut [0; 8192]), 4096);
        assert_eq!(channels.get(*at).expect("open").memory_bytes(), 0);
    }
    assert!(channels.spare.len() <= SPARE_BUFFERS_MAX);
}

#[test]
fn a_buffer_that_is_never_empty_keeps_its_size() {
    let mut pair = Pair::new(16);
    pair.send(0, &[1; MESSAGE_BYTES_MAX]);
    for _ in 0..2_000 {
        pair.send(0, &[1; MESSAGE_BYTES_MAX]);
        // One byte less than what is there, so some always stays.
        let waiting = pair.channel(1).input.len() - pair.channel(1).begin;
        pair.read(1, waiting - 1);
        if pair.channel(1).owes_report() {
            pair.send(1, b"");
        }
    }
    assert_eq!(pair.failure(1), None);
    let memory_bytes = pair.channel(1).memory_bytes();
    assert!(memory_bytes <= 128 << 10, "{memory_bytes}");
}
