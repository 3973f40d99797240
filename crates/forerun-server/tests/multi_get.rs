//! Multi-get frames over every kind of connection: a session in memory, TCP, a Unix socket, TLS and
//! UCX.

mod server {
    pub mod certificates;
    pub mod multi_get_frames;
    pub mod test_server;
    #[cfg(feature = "ucx")]
    pub mod ucx_client;
    #[cfg(not(feature = "ucx"))]
    #[path = "ucx_client_none.rs"]
    pub mod ucx_client;
}
mod testing;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use forerun_server::{Listen, ServerOptions, VerifyClient};
use proptest::prelude::*;
use server::certificates::Certificates;
use server::multi_get_frames::{
    Answer, CAS, ENABLE, ENABLED, FLAGS, Found, Frame, ask_frame, found, read_answer,
};
use server::test_server::{TIMEOUT, ask, connect, expect, options, rest, start, stat, until};
use server::ucx_client::served_over_ucx;
use testing::Client;

/// A session in memory that is used like a socket.
struct Memory {
    client: Client,
    answers: VecDeque<u8>,
    /// The length of the pieces in which bytes arrive.
    step: usize,
}

impl Memory {
    fn new(step: usize) -> Memory {
        Memory {
            client: Client::new(),
            answers: VecDeque::new(),
            step,
        }
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.answers
            .extend(self.client.send_in_steps(bytes, self.step));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Memory {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let is_waiting = self.answers.is_empty() && !into.is_empty() && !self.client.is_closed;
        if is_waiting {
            Err(io::Error::other("no answer comes"))
        } else {
            self.answers.read(into)
        }
    }
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// Runs a test on a new connection of each kind. Each has an empty cache.
fn on_every_connection(test: impl Fn(&mut Box<dyn Stream>)) {
    for step in [usize::MAX, 1, 7] {
        println!("in memory, in pieces of {step}");
        test(&mut (Box::new(Memory::new(step)) as Box<dyn Stream>));
    }
    println!("TCP");
    let server = start(options());
    test(&mut (Box::new(connect(&server)) as Box<dyn Stream>));
    println!("TLS");
    let certificates = Certificates::new();
    let server = start(options().tls(certificates.options(VerifyClient::No)));
    test(&mut (Box::new(certificates.client(None, &server)) as Box<dyn Stream>));
    println!("a Unix socket");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let listen = Listen::parse(&format!("unix:{}", path.display()), 0).expect("an address");
    let _server = start(ServerOptions::new(listen));
    let stream = UnixStream::connect(&path).expect("it accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
    test(&mut (Box::new(stream) as Box<dyn Stream>));
    if let Some((_server, stream)) = served_over_ucx(&dir.path().join("ucx")) {
        println!("UCX");
        test(&mut (Box::new(stream) as Box<dyn Stream>));
    }
}

fn set(stream: &mut impl Stream, key: &str, flags: u32, value: &str) {
    let request = format!("set {key} {flags} 0 {}\r\n{value}\r\n", value.len());
    ask(stream, &request, "STORED\r\n");
}

fn enable(stream: &mut impl Stream) {
    ask(stream, ENABLE, ENABLED);
}

#[test]
fn keys_are_found_in_their_order_with_what_the_request_asks_for() {
    on_every_connection(|stream| {
        set(stream, "a", 9, "xyz");
        set(stream, "empty", 0, "");
        enable(stream);
        let keys = ["a", "none", "empty", "a"];
        let answer = ask_frame(stream, &Frame::of(7, &keys));
        let expected = vec![found("xyz"), None, found(""), found("xyz")];
        let parts = 1;
        let values = expected;
        assert_eq!(
            answer,
            Answer::Values {
                id: 7,
                values,
                parts
            }
        );

        for (received, options) in (1..).zip([FLAGS, CAS, FLAGS | CAS]) {
            let frame = Frame::of(u32::MAX, &keys)
                .options(options)
                .received(received);
            let values = ask_frame(stream, &frame).values_of(u32::MAX);
            let first = values[0].clone().expect("a is stored");
            assert_eq!(first.flags, (options & FLAGS != 0).then_some(9));
            assert_eq!(first.cas.is_some(), options & CAS != 0);
            assert_eq!(values[3], Some(first));
            let empty = values[2].clone().expect("it is stored");
            assert_eq!(empty.flags, (options & FLAGS != 0).then_some(0));
            assert_eq!(values[1], None);
        }
        // The version is the one of `gets`.
        let frame = Frame::of(1, &["a"]).options(CAS).received(4);
        let cas = ask_frame(stream, &frame).values_of(1)[0].clone();
        let cas = cas.and_then(|found| found.cas).expect("a version");
        ask(
            stream,
            "gets a\r\n",
            &format!("VALUE a 9 3 {cas}\r\nxyz\r\nEND\r\n"),
        );
    });
}

#[test]
fn keys_of_any_bytes_are_those_of_the_meta_commands() {
    on_every_connection(|stream| {
        // "\r\nflush_all\r\n", and 1 as a little-endian u64.
        ask(stream, "ms DQpmbHVzaF9hbGwNCg== 1 b\r\nx\r\n", "HD\r\n");
        ask(stream, "ms AQAAAAAAAAA= 3 b\r\none\r\n", "HD\r\n");
        set(stream, "12345678", 0, "text");
        enable(stream);
        let frame = Frame::of(0, &["\r\nflush_all\r\n"]);
        assert_eq!(ask_frame(stream, &frame).values_of(0), [found("x")]);
        let text = u64::from_le_bytes(*b"12345678");
        let frame = Frame::of_numbers(1, &[1, 2, text, 1]).received(1);
        let values = ask_frame(stream, &frame).values_of(1);
        assert_eq!(values, [found("one"), None, found("text"), found("one")]);
        let frame = Frame::of(2, &[1_u64.to_le_bytes()]).received(2);
        assert_eq!(ask_frame(stream, &frame).values_of(2), [found("one")]);
    });
}

#[test]
fn large_values_and_many_keys_come_in_parts() {
    on_every_connection(|stream| {
        let sizes = [0, 1, 4_000, 16_383, 16_384, 70_000, 300_000, 900_000];
        for (at, bytes) in sizes.into_iter().enumerate() {
            let letter = char::from(b'a' + at as u8).to_string();
            set(stream, &format!("k{at}"), at as u32, &letter.repeat(bytes));
        }
        enable(stream);
        let keys: Vec<String> = (0..40).map(|n| format!("k{}", n * 7 % 10)).collect();
        let frame = Frame::of(3, &keys).options(FLAGS);
        let values = ask_frame(stream, &frame).values_of(3);
        assert_eq!(values.len(), 40);
        for (key, value) in keys.iter().zip(values) {
            let at: usize = key[1..].parse().expect("a number");
            let expected = sizes.get(at).map(|&bytes| Found {
                data: vec![b'a' + at as u8; bytes],
                flags: Some(at as u32),
                cas: None,
            });
            assert!(value == expected, "{key}");
        }
        // As many keys as a request takes.
        let keys = vec![u64::from_le_bytes(*b"12345678"); 2046];
        let frame = Frame::of_numbers(4, &keys).received(1);
        assert_eq!(frame.bytes().len(), 16 << 10);
        match ask_frame(stream, &frame) {
            Answer::Values { values, parts, .. } => {
                assert_eq!((values, parts), (vec![None; 2046], 8));
            }
            error => panic!("{error:?}"),
        }
    });
}

#[test]
fn frames_and_commands_are_answered_in_their_order() {
    on_every_connection(|stream| {
        enable(stream);
        let mut sent = Vec::new();
        for round in 0..20_u32 {
            sent.extend(format!("set k 0 0 2\r\n{round:02}\r\nget k\r\n").bytes());
            sent.extend(Frame::of(round, &["k", "none"]).bytes());
            sent.extend(b"mg k v\r\n");
            sent.extend(Frame::of_numbers(round + 100, &[0]).bytes());
            sent.extend(b"delete k\r\n");
            sent.extend(Frame::of(round + 200, &["k"]).received(0).bytes());
        }
        sent.extend(ENABLE.bytes());
        stream.write_all(&sent).expect("it is sent");
        for round in 0..20 {
            let text = format!("STORED\r\nVALUE k 0 2\r\n{round:02}\r\nEND\r\n");
            expect(stream, &text);
            let values = read_answer(stream).values_of(round);
            assert_eq!(values, [found(format!("{round:02}")), None]);
            expect(stream, &format!("VA 2\r\n{round:02}\r\n"));
            assert_eq!(read_answer(stream).values_of(round + 100), [None]);
            expect(stream, "DELETED\r\n");
            assert_eq!(read_answer(stream).values_of(round + 200), [None]);
        }
        expect(stream, ENABLED);
    });
}

/// The answers to a request that breaks a rule: the good ones before it, then the error, then the
/// end.
fn refused(stream: &mut impl Stream, bad: &Frame) -> u16 {
    set(stream, "a", 0, "1");
    enable(stream);
    let mut sent = Frame::of(1, &["a"]).bytes();
    sent.extend(b"get a\r\n");
    sent.extend(bad.bytes());
    sent.extend(b"set a 0 0 1\r\n2\r\n");
    stream.write_all(&sent).expect("it is sent");
    assert_eq!(read_answer(stream).values_of(1), [found("1")]);
    expect(stream, "VALUE a 0 1\r\n1\r\nEND\r\n");
    let answer = read_answer(stream);
    assert!(matches!(answer, Answer::Error { id: 5, .. }), "{answer:?}");
    assert_eq!(rest(stream), b"", "nothing behind the error is executed");
    answer.code()
}

#[test]
fn a_request_that_breaks_a_rule_gets_a_code_and_the_connection_ends() {
    let good = Frame::of(5, &["a", "b"]).received(1);
    let bad: [(u16, &dyn Fn(Frame) -> Frame); 16] = [
        (1, &|frame| Frame { form: 0, ..frame }),
        (1, &|frame| Frame {
            form: 0xff,
            ..frame
        }),
        (2, &|frame| frame.options(4)),
        (2, &|frame| frame.options(0x80)),
        (2, &|frame| Frame {
            reserved: 1,
            ..frame
        }),
        (3, &|frame| Frame { count: 0, ..frame }),
        (4, &|frame| Frame { count: 3, ..frame }),
        (4, &|frame| Frame { count: 1, ..frame }),
        (4, &|frame| Frame {
            count: u16::MAX,
            ..frame
        }),
        (4, &|frame| Frame { form: 2, ..frame }),
        (4, &|frame| Frame {
            body_bytes: Some(u32::MAX),
            ..frame
        }),
        (4, &|frame| Frame {
            body_bytes: Some(16369),
            ..frame
        }),
        (4, &|frame| Frame {
            body_bytes: Some(3),
            ..frame
        }),
        (5, &|frame| Frame {
            ..Frame::of(frame.id, &["a", ""]).received(1)
        }),
        (5, &|frame| Frame {
            ..Frame::of(frame.id, &[[b'x'; 251]]).received(1)
        }),
        (6, &|frame| frame.received(2)),
    ];
    for (code, break_it) in bad {
        let frame = break_it(good.clone());
        on_every_connection(|stream| assert_eq!(refused(stream, &frame), code, "{frame:?}"));
    }
}

#[test]
fn requests_beyond_the_credits_are_refused_and_answers_return_credits() {
    on_every_connection(|stream| {
        enable(stream);
        // All credits, a thousand times; the count of answers wraps around.
        let mut sent = 0_u32;
        for _ in 0..1030 {
            let frames = (0..64).flat_map(|at| {
                let received = (sent + at).saturating_sub(63);
                Frame::of_numbers(at, &[1])
                    .received(received as u16)
                    .bytes()
            });
            let frames: Vec<u8> = frames.collect();
            stream.write_all(&frames).expect("they are sent");
            for at in 0..64 {
                assert_eq!(read_answer(stream).values_of(at), [None]);
            }
            sent += 64;
        }
        assert!(sent > u32::from(u16::MAX));
        let last = Frame::of(1, &["k"]).received((sent - 64) as u16);
        assert_eq!(ask_frame(stream, &last).code(), 6);
        assert_eq!(rest(stream), b"");
    });
}

#[test]
fn frames_have_to_be_switched_on() {
    on_every_connection(|stream| {
        // Before, the byte has no special meaning, as in memcached.
        stream.write_all(b"\xf6\r\n").expect("it is sent");
        expect(stream, "ERROR\r\n");
        ask(
            stream,
            "multi_get\r\nmulti_get 1 2\r\n",
            "ERROR\r\nERROR\r\n",
        );
        let unsupported = "CLIENT_ERROR unsupported multi_get version\r\n";
        for version in ["0", "2", "11", "x"] {
            ask(stream, &format!("multi_get {version}\r\n"), unsupported);
        }
        stream.write_all(b"\xf6\r\n").expect("it is sent");
        expect(stream, "ERROR\r\n");
        enable(stream);
        // Spaces before a command are ignored.
        stream.write_all(b"  ").expect("it is sent");
        assert_eq!(
            ask_frame(stream, &Frame::of(1, &["a"])).values_of(1),
            [None]
        );
        // Inside a value the byte has no meaning either.
        stream
            .write_all(b"set k 0 0 2\r\n\xf6\xf6\r\nget k\r\n")
            .expect("it is sent");
        expect(stream, "STORED\r\nVALUE k 0 2\r\n");
        let mut value = [0; 9];
        stream.read_exact(&mut value).expect("the value");
        assert_eq!(&value, b"\xf6\xf6\r\nEND\r\n");
    });
}

#[test]
fn a_client_that_leaves_within_a_frame_leaves_nothing_behind() {
    let server = start(options());
    let mut other = connect(&server);
    let frame = Frame::of(1, &vec!["some key"; 1000]).bytes();
    for end in [1, 15, 16, 17, 1000, frame.len() - 1] {
        let mut stream = connect(&server);
        enable(&mut stream);
        stream.write_all(&frame[..end]).expect("it is sent");
        until("the part arrives", || {
            stat(&mut other, "read_buf_count") == "1"
        });
        let bytes: usize = stat(&mut other, "read_buf_bytes")
            .parse()
            .expect("a number");
        assert!(
            bytes < 2 * end.max(512),
            "{bytes} bytes of memory for {end}"
        );
        drop(stream);
        until("its memory is free", || {
            stat(&mut other, "read_buf_bytes") == "0"
        });
    }
    assert_eq!(stat(&mut other, "cmd_multi_get"), "0");
}

#[test]
fn only_users_may_send_frames() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("users");
    std::fs::write(&file, "alice:s3cret\n").expect("a file");
    let server = start(options().auth_file(file));
    let mut stream = connect(&server);
    ask(&mut stream, ENABLE, "CLIENT_ERROR unauthenticated\r\n");
    ask(
        &mut stream,
        "set x 0 0 12\r\nalice s3cret\r\n",
        "STORED\r\n",
    );
    enable(&mut stream);
    let answer = ask_frame(&mut stream, &Frame::of(1, &["a"]));
    assert_eq!(answer.values_of(1), [None]);
}

#[test]
fn statistics_and_watchers_see_a_get_of_each_key() {
    let server = start(options());
    let mut stream = connect(&server);
    let mut watcher = connect(&server);
    set(&mut stream, "a:1", 0, "xyz");
    ask(&mut stream, "stats detail on\r\n", "OK\r\n");
    ask(&mut watcher, "watch fetchers\r\n", "OK\r\n");
    enable(&mut stream);
    let keys = ["a:1", "b:2", "a:3"];
    ask_frame(&mut stream, &Frame::of(1, &keys)).values_of(1);
    for (name, expected) in [
        ("cmd_multi_get", "1"),
        ("multi_get_errors", "0"),
        ("cmd_get", "3"),
        ("get_hits", "1"),
        ("get_misses", "2"),
        ("batches", "1"),
    ] {
        assert_eq!(stat(&mut stream, name), expected, "{name}");
    }
    let detail = "PREFIX a get 2 hit 1 set 0 del 0\r\nPREFIX b get 1 hit 0 set 0 del 0\r\nEND\r\n";
    ask(&mut stream, "stats detail dump\r\n", detail);
    let mut text = String::new();
    while text.lines().count() < 3 || !text.ends_with('\n') {
        let mut piece = [0; 1000];
        let count = watcher.read(&mut piece).expect("lines come");
        text.push_str(std::str::from_utf8(&piece[..count]).expect("text"));
    }
    let lines: Vec<&str> = text.lines().collect();
    for (line, (key, status, bytes)) in lines.iter().zip([
        ("a%3A1", "found", 3),
        ("b%3A2", "not_found", 0),
        ("a%3A3", "not_found", 0),
    ]) {
        let is_it = line.contains(&format!("type=item_get key={key} status={status} "))
            && line.ends_with(&format!(" size={bytes}"));
        assert!(is_it, "{line}");
    }
    let bad = Frame::of(2, &keys).received(7);
    assert_eq!(ask_frame(&mut stream, &bad).code(), 6);
    let mut other = connect(&server);
    assert_eq!(stat(&mut other, "multi_get_errors"), "1");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Frames have the answers of `gets`, however the input is split.
    #[test]
    fn frames_have_the_answers_of_the_text_protocol(
        stored in proptest::collection::vec((0_u8..12, any::<u32>(), 0_usize..40_000), 0..12),
        asked in proptest::collection::vec(
            (0_u8..4, proptest::collection::vec(0_u8..14, 1..400)), 1..8
        ),
        step in prop_oneof![1_usize..50, Just(1000), Just(usize::MAX)],
    ) {
        let mut stream = Memory::new(step);
        for (at, (key, flags, bytes)) in stored.iter().enumerate() {
            let letter = char::from(b'a' + at as u8).to_string();
            set(&mut stream, &format!("key{key:05}"), *flags, &letter.repeat(*bytes));
        }
        enable(&mut stream);
        let mut sent = Vec::new();
        for (id, (options, keys)) in (0..).zip(&asked) {
            let keys: Vec<String> = keys.iter().map(|key| format!("key{key:05}")).collect();
            let mut frame = Frame::of(id, &keys).options(*options);
            if id % 2 == 1 {
                (frame.form, frame.body) = (2, keys.concat().into_bytes());
            }
            sent.extend(frame.bytes());
            sent.extend(format!("gets {}\r\n", keys.join(" ")).bytes());
        }
        stream.write_all(&sent).expect("it is sent");
        for (id, (options, keys)) in (0..).zip(&asked) {
            let values = read_answer(&mut stream).values_of(id);
            prop_assert_eq!(values.len(), keys.len());
            for (key, value) in keys.iter().zip(values) {
                let Some(value) = value else { continue };
                let line = format!("VALUE key{key:05} ");
                expect(&mut stream, &line);
                let mut rest = String::new();
                while !rest.ends_with('\n') {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).expect("the line ends");
                    rest.push(char::from(byte[0]));
                }
                let words: Vec<u64> = rest.split_whitespace()
                    .map(|word| word.parse().expect("a number"))
                    .collect();
                let flags = (options & FLAGS != 0).then_some(words[0] as u32);
                let cas = (options & CAS != 0).then_some(words[2]);
                prop_assert_eq!((value.flags, value.cas), (flags, cas));
                let mut data = vec![0; words[1] as usize + 2];
                stream.read_exact(&mut data).expect("the value");
                data.truncate(words[1] as usize);
                prop_assert!(data == value.data);
            }
            // Every key that `gets` finds was in the answer to the frame.
            expect(&mut stream, "END\r\n");
        }
        prop_assert!(stream.answers.is_empty());
    }
}
