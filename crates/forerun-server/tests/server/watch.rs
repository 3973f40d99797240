//! `watch`: the lines that a watcher gets, compared with memcached's if memcached is on the PATH.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use forerun_cache::{Cache, CacheOptions};
use forerun_server::{Listen, Server, ServerOptions, Settings};

use super::test_server::{ask, connect, options, rest, start, stat, until};
use crate::testing::memcached;

/// A watcher and a client of one server.
struct Pair<S> {
    watcher: S,
    client: S,
    text: String,
}

impl<S: Read + Write> Pair<S> {
    fn new(mut watcher: S, client: S, kinds: &str) -> Pair<S> {
        let line = format!("watch{kinds}\r\n");
        watcher.write_all(line.as_bytes()).expect("it is sent");
        let mut ok = [0; 4];
        watcher.read_exact(&mut ok).expect("an answer");
        assert_eq!(&ok, b"OK\r\n");
        Pair {
            watcher,
            client,
            text: String::new(),
        }
    }

    /// Sends commands, waits for the answer to a final command, and reads lines until there are
    /// `count`.
    fn lines(&mut self, commands: &str, count: usize) -> Vec<String> {
        let sent = format!("{commands}verbosity x\r\n");
        self.client.write_all(sent.as_bytes()).expect("it is sent");
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        while !answer.ends_with(b"CLIENT_ERROR bad command line format\r\n") {
            let read = self.client.read(&mut piece).expect("an answer");
            assert!(read > 0, "closed");
            answer.extend_from_slice(&piece[..read]);
        }
        self.next(count)
    }

    /// Reads lines until there are `count`.
    fn next(&mut self, count: usize) -> Vec<String> {
        self.read_until(|text| text.lines().count() >= count)
    }

    /// Reads lines until one says that a connection was closed.
    fn until_closed(&mut self) -> Vec<String> {
        self.read_until(|text| text.contains("type=conn_close "))
    }

    /// Reads whole lines until there are enough.
    fn read_until(&mut self, is_enough: impl Fn(&str) -> bool) -> Vec<String> {
        let mut piece = [0; 4096];
        while !is_enough(&self.text) || !(self.text.is_empty() || self.text.ends_with('\n')) {
            let read = self.watcher.read(&mut piece);
            let read = read.unwrap_or_else(|error| panic!("{error}: {}", self.text));
            assert!(read > 0, "closed: {}", self.text);
            self.text += &String::from_utf8_lossy(&piece[..read]);
        }
        let lines = self.text.lines().map(str::to_owned).collect();
        self.text.clear();
        lines
    }
}

/// The fields of a line, without the values that differ from server to server.
fn comparable(line: &str) -> String {
    let fields = line.split(' ').map(|field| match field.split_once('=') {
        Some((name @ ("ts" | "gid" | "cfd" | "rport"), value)) => {
            let is_number = value
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.');
            assert!(is_number && !value.is_empty(), "{line}");
            name.to_owned()
        }
        _ => field.to_owned(),
    });
    fields.collect::<Vec<_>>().join(" ")
}

fn comparable_all(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| comparable(line)).collect()
}

fn pair(server: &Server, kinds: &str) -> Pair<TcpStream> {
    Pair::new(connect(server), connect(server), kinds)
}

/// Memcached's lines for the same commands, if memcached is on the PATH.
fn of_memcached(kinds: &str, before: &str, commands: &str, count: usize) -> Option<Vec<String>> {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("memcached.sock");
    let _memcached = memcached::start(&socket)?;
    let connect = || {
        let stream = memcached::connect(&socket);
        let timeout = Some(Duration::from_secs(20));
        stream.set_read_timeout(timeout).expect("a timeout");
        stream
    };
    let mut first = connect();
    memcached::ask(&mut first, before.as_bytes());
    let mut pair: Pair<UnixStream> = Pair::new(connect(), first, kinds);
    Some(pair.lines(commands, count))
}

#[test]
fn reads_are_lines_as_in_memcached() {
    let before = "set a 0 0 5\r\nhello\r\nset t 0 0 1\r\nx\r\n";
    let commands = "get a none\r\ngets a\r\nmg a v\r\nmg none v\r\nmg a s T30\r\ngat 30 t none\r\n\
                    touch t 0\r\ntouch none 0\r\nget 1%\u{1}x\r\n";
    let server = start(options());
    let mut pair = pair(&server, "");
    pair.client
        .write_all(before.as_bytes())
        .expect("it is sent");
    let ours = pair.lines(commands, 11);
    let get = |key: &str, status: &str, class: u8, size: usize| {
        format!("ts gid type=item_get key={key} status={status} clsid={class} cfd size={size}")
    };
    let (found, none) = (get("a", "found", 1, 5), get("none", "not_found", 0, 0));
    let touched = get("t", "found", 1, 1);
    let odd = get("1%25%01x", "not_found", 0, 0);
    let expected = [
        &found, &none, &found, &found, &none, &found, &touched, &none, &touched, &none, &odd,
    ];
    assert_eq!(comparable_all(&ours).iter().collect::<Vec<_>>(), expected);
    if let Some(theirs) = of_memcached(" fetchers", before, commands, 11) {
        assert_eq!(comparable_all(&ours), comparable_all(&theirs));
    }
}

#[test]
fn stores_are_lines_as_in_memcached() {
    let commands = "set a 0 0 1\r\nx\r\nadd a 0 0 1\r\ny\r\nadd b 0 60 1\r\ny\r\n\
                    replace a 0 0 2\r\nyy\r\nreplace none 0 0 1\r\ny\r\nappend a 0 0 1\r\nz\r\n\
                    prepend a 0 0 1\r\nz\r\nappend none 0 0 1\r\nz\r\ncas a 0 0 1 99999\r\nz\r\n\
                    cas none 0 0 1 99999\r\nz\r\nms a 1\r\nx\r\n\
                    ms a 1 MA\r\nx\r\nms a 1 ME\r\nx\r\n\
                    ms a 1 C99999\r\nx\r\nma n N0 J5\r\nincr n 1\r\ndelete a\r\nget a\r\n\
                    set k%\u{2} 0 100 1 noreply\r\nx\r\n";
    let server = start(options());
    let ours = comparable_all(&pair(&server, " mutations").lines(commands, 16));
    let store = |key: &str, status: &str, command: &str, ttl: u32, size: usize| {
        format!(
            "ts gid type=item_store key={key} status={status} cmd={command} ttl={ttl} clsid=1 cfd \
             size={size}"
        )
    };
    let expected = [
        store("a", "stored", "set", 0, 1),
        store("a", "not_stored", "add", 0, 1),
        store("b", "stored", "add", 60, 1),
        store("a", "stored", "replace", 0, 2),
        store("none", "not_stored", "replace", 0, 1),
        store("a", "stored", "append", 0, 3),
        store("a", "stored", "prepend", 0, 4),
        store("none", "not_stored", "append", 0, 1),
        store("a", "exists", "cas", 0, 1),
        store("none", "not_found", "cas", 0, 1),
        store("a", "stored", "set", 0, 1),
        store("a", "stored", "append", 0, 2),
        store("a", "not_stored", "add", 0, 1),
        store("a", "exists", "cas", 0, 1),
        store("n", "stored", "add", 0, 1),
        store("k%25%02", "stored", "set", 100, 1),
    ];
    assert_eq!(ours, expected);
    if let Some(theirs) = of_memcached(" mutations", "", commands, 16) {
        assert_eq!(ours, comparable_all(&theirs));
    }
}

#[test]
fn connections_are_lines_as_in_memcached() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("forerun.sock");
    let listen = vec![Listen::unix(&path, 0o700)];
    let _server = Server::start(ServerOptions::new(listen), super::test_server::cache());
    let lines = |connect: &dyn Fn() -> UnixStream| {
        let mut pair = Pair::new(connect(), connect(), " connevents");
        pair.lines("", 0);
        let mut other = connect();
        other.write_all(b"quit\r\n").expect("it is sent");
        let mut lines = pair.until_closed();
        drop(connect());
        lines.extend(pair.until_closed());
        // The client may have connected before or after the watcher began.
        lines.split_off(lines.len() - 4)
    };
    let ours = comparable_all(&lines(&|| {
        let stream = UnixStream::connect(&path).expect("it accepts");
        let timeout = Some(Duration::from_secs(20));
        stream.set_read_timeout(timeout).expect("a timeout");
        stream
    }));
    let new = "ts gid type=conn_new rip=unix rport transport=local cfd";
    let close = "ts gid type=conn_close rip=unix rport transport=local reason=normal cfd";
    assert_eq!(ours, [new, close, new, close]);
    let socket = dir.path().join("memcached.sock");
    if let Some(_memcached) = memcached::start(&socket) {
        drop(memcached::connect(&socket));
        let theirs = lines(&|| {
            let stream = memcached::connect(&socket);
            let timeout = Some(Duration::from_secs(20));
            stream.set_read_timeout(timeout).expect("a timeout");
            stream
        });
        assert_eq!(ours, comparable_all(&theirs));
    }
}

/// The last line about a client that sends `bytes`, shuts down its sending half and reads
/// everything.
fn close_line(bytes: &[u8], watching: &mut Pair<UnixStream>, mut client: UnixStream) -> String {
    // The server may close the connection before it has read everything.
    let _ = client.write_all(bytes);
    let _ = client.shutdown(std::net::Shutdown::Write);
    let _ = client.read_to_end(&mut Vec::new());
    let lines = watching.until_closed();
    let last = lines.last().expect("a line");
    comparable(last)
}

#[test]
fn a_connection_that_is_refused_ends_with_an_error_as_in_memcached() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("server.sock");
    let _server = start(ServerOptions::new(vec![Listen::unix(&path, 0o700)]));
    let connect_to = |path: &std::path::Path| {
        let stream = memcached::connect(path);
        let timeout = Some(Duration::from_secs(20));
        stream.set_read_timeout(timeout).expect("a timeout");
        stream
    };
    let socket = dir.path().join("memcached.sock");
    let memcached = memcached::start(&socket);
    // The same watcher for all clients: the end of another would be a line too.
    let watch = |path| Pair::new(connect_to(path), connect_to(path), " connevents");
    let mut ours = watch(&path);
    let mut theirs = memcached.as_ref().map(|_| watch(&socket));
    let long = "x".repeat(100_000);
    for (sent, reason) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "error"),
        ("POST /x HTTP/1.0\r\n\r\nset a 0 0 1\r\nx\r\n", "error"),
        (long.as_str(), "error"),
        ("quit\r\n", "normal"),
        ("get a\r\n", "normal"),
        ("nothing / HTPP/1.1\r\n", "normal"),
    ] {
        let line = close_line(sent.as_bytes(), &mut ours, connect_to(&path));
        assert!(
            line.contains(&format!(" reason={reason} ")),
            "{sent:.20}: {line}"
        );
        if let Some(theirs) = &mut theirs {
            let theirs = close_line(sent.as_bytes(), theirs, connect_to(&socket));
            assert_eq!(line, theirs, "{sent:.20}");
        }
    }
    // Memcached speaks the binary protocol.
    let line = close_line(&[0x80; 24], &mut ours, connect_to(&path));
    assert!(line.contains(" reason=error "), "{line}");
}

#[test]
fn a_tcp_client_is_shown_with_its_address() {
    let server = start(options());
    let mut pair = pair(&server, " connevents");
    let other = connect(&server);
    let address = other.local_addr().expect("an address");
    drop(other);
    let lines = pair.until_closed();
    let place = format!("rip=127.0.0.1 rport={} transport=tcp", address.port());
    assert!(
        lines
            .iter()
            .any(|line| line.contains(&format!("type=conn_new {place} cfd=")))
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains(&format!("type=conn_close {place} reason=normal"))),
        "{lines:?}"
    );
}

/// A server with a small cache, which is soon full.
fn small_server() -> Server {
    let limit = forerun_cache::MEMORY_BYTES_MIN.max(4 << 20);
    let cache = CacheOptions::default().memory_limit_bytes(limit);
    let cache = Cache::new(cache).expect("the options are valid");
    let listen = Listen::parse("127.0.0.1:0", 11211).expect("an address");
    Server::start(ServerOptions::new(listen), cache.into()).expect("it starts")
}

/// Sends this many sets of 1,000 bytes without a pause, without answers.
fn store_much(client: &mut TcpStream, items: usize) {
    let value = "v".repeat(1000);
    // Long keys make lines of 600 bytes, which soon fill the sockets of a watcher that does not
    // read.
    let key = "%".repeat(200);
    for item in 0..items {
        let set = format!("set {key}{item} 0 1000 1000 noreply\r\n{value}\r\n");
        client.write_all(set.as_bytes()).expect("it is sent");
    }
    ask(client, "mn\r\n", "MN\r\n");
}

#[test]
fn evictions_are_lines_and_a_watcher_that_does_not_read_stops_nobody() {
    let server = small_server();
    let mut pair = pair(&server, " evictions");
    let mut slow = connect(&server);
    ask(
        &mut slow,
        "watch fetchers mutations evictions\r\n",
        "OK\r\n",
    );
    let begin = Instant::now();
    store_much(&mut pair.client, 20_000);
    let mut evictions = stat(&mut pair.client, "evictions");
    assert!(
        evictions.parse::<u64>().expect("a number") > 1000,
        "{evictions}"
    );
    assert!(
        begin.elapsed() < Duration::from_secs(60),
        "the slow watcher delays"
    );
    for line in pair.next(100).iter().take(100) {
        let fields: Vec<(&str, &str)> = line
            .split(' ')
            .filter_map(|field| field.split_once('='))
            .collect();
        let names: Vec<&str> = fields.iter().map(|field| field.0).collect();
        let expected = [
            "ts", "gid", "type", "key", "fetch", "ttl", "la", "clsid", "size",
        ];
        assert_eq!(names, expected, "{line}");
        assert_eq!((fields[2].1, fields[4].1), ("eviction", "no"), "{line}");
        assert_eq!((fields[7].1, fields[8].1), ("1", "1000"), "{line}");
        let ttl: u64 = fields[5].1.parse().expect("a number");
        assert!((900..=1000).contains(&ttl), "{line}");
    }
    // Now the slow watcher reads, and learns how many lines it has missed.
    let mut reader = slow.try_clone().expect("a second handle");
    let reads = std::thread::spawn(move || {
        let mut text = String::new();
        let mut piece = [0; 65536];
        while !text.contains("skipped=") {
            let count = reader.read(&mut piece).expect("lines");
            assert!(count > 0, "closed");
            text += &String::from_utf8_lossy(&piece[..count]);
        }
        text
    });
    while !reads.is_finished() {
        store_much(&mut pair.client, 10);
        evictions = stat(&mut pair.client, "evictions");
        assert!(
            begin.elapsed() < Duration::from_secs(120),
            "{evictions} evictions, no skipped"
        );
    }
    let text = reads.join().expect("it has read");
    let skipped = text
        .lines()
        .find(|line| line.starts_with("skipped="))
        .expect("a line");
    let count = skipped.trim_start_matches("skipped=");
    assert!(count.parse::<u64>().expect("a number") > 0, "{skipped}");
}

#[test]
fn a_watcher_leaves_with_its_connection_and_is_not_idle() {
    let server = start(options().idle_timeout(Duration::from_secs(1)));
    let mut watcher = connect(&server);
    ask(&mut watcher, "watch\r\n", "OK\r\n");
    std::thread::sleep(Duration::from_millis(3500));
    ask(&mut connect(&server), "get early\r\n", "END\r\n");
    let mut piece = [0; 1000];
    let count = watcher.read(&mut piece).expect("a line");
    assert!(String::from_utf8_lossy(&piece[..count]).contains("key=early"));
    // What a watcher sends has no effect.
    watcher
        .write_all(b"set x 0 0 1\r\ny\r\n")
        .expect("it is sent");
    let mut client = connect(&server);
    ask(&mut client, "get x\r\n", "END\r\n");
    drop(watcher);
    until("nobody watches", || {
        stat(&mut client, "curr_connections") == "1"
    });
    // At most twenty clients can watch at a time.
    let mut watchers: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = connect(&server);
            ask(
                &mut stream,
                "watch mutations evictions sysevents\r\n",
                "OK\r\n",
            );
            stream
        })
        .collect();
    let full = "WATCHER_TOO_MANY log watcher limit reached\r\n";
    ask(&mut connect(&server), "watch\r\n", full);
    watchers.pop();
    until("there is room", || {
        let mut stream = connect(&server);
        stream.write_all(b"watch\r\n").expect("it is sent");
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).expect("an answer");
        answer == *b"OK"
    });
    server.drain();
    server.wait().expect("watchers do not keep it from ending");
}

#[test]
fn kinds_without_events_are_accepted_and_bring_no_lines() {
    let server = start(options());
    let mut watcher = connect(&server);
    ask(
        &mut watcher,
        "watch rawcmds proxyreqs proxyevents proxyuser\r\n",
        "OK\r\n",
    );
    let mut both = connect(&server);
    ask(&mut both, "watch rawcmds mutations\r\n", "OK\r\n");
    let request = "get k\r\nset k 0 0 1\r\nx\r\ndelete k\r\n";
    ask(
        &mut connect(&server),
        request,
        "END\r\nSTORED\r\nDELETED\r\n",
    );
    let mut line = String::new();
    let mut bytes = [0];
    while bytes != *b"\n" {
        both.read_exact(&mut bytes).expect("the line of the set");
        line.push(char::from(bytes[0]));
    }
    assert!(line.contains(" gid=1 type=item_store key=k "), "{line}");
    server.drain();
    assert_eq!(rest(&mut watcher), b"");
    assert_eq!(rest(&mut both), b"");
}

#[test]
fn watch_can_be_forbidden_and_checks_its_words() {
    let server = start(options());
    ask(
        &mut connect(&server),
        "watch nonsense\r\nmn\r\n",
        "ERROR\r\nMN\r\n",
    );
    ask(
        &mut connect(&server),
        "watch fetchers deletions\r\nmn\r\n",
        "ERROR\r\nMN\r\n",
    );
    let settings = Settings::default().watch_enabled(false);
    let server = start(options().settings(settings));
    let refused = "CLIENT_ERROR watch commands not allowed\r\nMN\r\n";
    ask(&mut connect(&server), "watch\r\nmn\r\n", refused);
}
