//! `forerun warm`: a new server takes over its share of the keys.

use crate::cache_server;
use crate::testing;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cache_server::{CacheClient, CacheServer};
use forerun_client::{ClientOptions, Placement, RawConnection, Ring, ServerAddress, TlsOptions};
use testing::Workspace;

fn ring(servers: &[&CacheServer]) -> Ring {
    let parse = |server: &&CacheServer| server.address.parse().expect("an address");
    let servers: Vec<ServerAddress> = servers.iter().map(parse).collect();
    Ring::new(Placement::Ketama, &servers)
}

/// Two old servers, of which one is memcached if there is one, and a new one.
struct Group {
    workspace: Workspace,
    old: [CacheServer; 2],
    new: CacheServer,
}

impl Group {
    fn start() -> Group {
        let workspace = Workspace::new();
        let second = CacheServer::memcached();
        Group {
            old: [
                CacheServer::forerun(&workspace, &[]),
                second.unwrap_or_else(|| CacheServer::forerun(&workspace, &[])),
            ],
            new: CacheServer::forerun(&workspace, &["--threads", "2"]),
            workspace,
        }
    }

    fn old_ring(&self) -> Ring {
        ring(&[&self.old[0], &self.old[1]])
    }

    fn new_ring(&self) -> Ring {
        ring(&[&self.old[0], &self.old[1], &self.new])
    }

    fn from(&self) -> String {
        format!("{},{}", self.old[0].address, self.old[1].address)
    }

    fn begin(&self) {
        let to = self.new.address.as_str();
        let said = self.workspace.succeeds(&["warm", "--begin", "--to", to]);
        assert!(said.contains("keeps track"), "{said}");
    }

    /// The arguments of a copy, without further options.
    fn copy_args(&self) -> [String; 5] {
        let words = ["warm", "--from", &self.from(), "--to", &self.new.address];
        words.map(str::to_owned)
    }

    fn copy(&self, more: &[&str]) -> String {
        let args = self.copy_args();
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.extend(more);
        let ran = self.workspace.run(&args);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
        ran.text()
    }

    fn copy_fails(&self, code: i32) -> String {
        let args = self.copy_args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.workspace.fails(code, &args)
    }

    /// Stores `count` items on the old servers. Returns the keys that move.
    fn fill(&self, count: usize) -> Vec<String> {
        let (old, new) = (self.old_ring(), self.new_ring());
        let mut clients = [self.old[0].connect(), self.old[1].connect()];
        let mut moved = Vec::new();
        for at in 0..count {
            let key = format!("key:{at}");
            let client = &mut clients[old.server_of(key.as_bytes())];
            let value = old_value(at);
            let line = format!("set {key} {at} {} {}\r\n", exptime(at), value.len());
            let stored = client.ask(&[line.as_bytes(), value.as_bytes(), b"\r\n"].concat());
            assert_eq!(stored, "STORED");
            if new.server_of(key.as_bytes()) == 2 {
                moved.push(key);
            }
        }
        moved
    }
}

fn old_value(at: usize) -> String {
    format!("old value {at}{}", "x".repeat(at % 700))
}

fn exptime(at: usize) -> u32 {
    if at.is_multiple_of(2) { 0 } else { 1000 }
}

fn number(key: &str) -> usize {
    key["key:".len()..].parse().expect("a number")
}

#[test]
fn the_new_server_gets_its_share_with_flags_times_and_versions() {
    let group = Group::start();
    let moved = group.fill(3000);
    let (old, new) = (group.old_ring(), group.new_ring());
    // A large value, and a key of any bytes.
    let names = (0..).map(|at| format!("big:{at}"));
    let big = names
        .into_iter()
        .find(|key| new.server_of(key.as_bytes()) == 2)
        .expect("a third moves");
    let mut client = group.old[old.server_of(big.as_bytes())].connect();
    let value = vec![b'b'; 700_000];
    let line = format!("set {big} 5 0 {}\r\n", value.len());
    assert_eq!(
        client.ask(&[line.as_bytes(), &value, b"\r\n"].concat()),
        "STORED"
    );
    let binary = (0..=255_u8)
        .map(|byte| [0, byte, b' '])
        .find(|key| new.server_of(key) == 2 && old.server_of(key) == 0)
        .expect("a third moves");
    let base64 = {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(binary)
    };
    let stored = group.old[0]
        .connect()
        .ask(format!("ms {base64} 1 b F9\r\nz\r\n").as_bytes());
    assert_eq!(stored, "HD");
    // A value from an earlier ring, on a server to which the key does not belong.
    let stray = &moved[0];
    let elsewhere = 1 - old.server_of(stray.as_bytes());
    let line = format!("set {stray} 0 0 5\r\nstray\r\n");
    assert_eq!(
        group.old[elsewhere].connect().ask(line.as_bytes()),
        "STORED"
    );
    // A stale item, and one that a client is about to fill.
    for (key, command) in [
        (&moved[1], "md KEY I\r\n"),
        (&moved[2], "md KEY\r\nmg KEY N60 v\r\n"),
    ] {
        let mut client = group.old[old.server_of(key.as_bytes())].connect();
        assert_eq!(client.ask(command.replace("KEY", key).as_bytes()), "HD");
    }

    let counted = group.copy(&["--dry-run"]);
    let all: usize = counted
        .lines()
        .map(|line| {
            let (_, rest) = line.split_once("keys, ").expect("a count");
            let (count, _) = rest.split_once(' ').expect("a count");
            count.replace(',', "").parse::<usize>().expect("a count")
        })
        .sum();
    assert_eq!(all, moved.len() + 2, "{counted}");

    group.begin();
    let mut client = group.new.connect();
    // What clients change on the new server before the copy.
    assert_eq!(
        client.ask(format!("delete {}\r\n", moved[3]).as_bytes()),
        "NOT_FOUND"
    );
    let set = format!("set {} 1 0 3\r\nnew\r\n", moved[4]);
    assert_eq!(client.ask(set.as_bytes()), "STORED");
    let touch = format!("touch {} -1\r\n", moved[5]);
    assert_eq!(client.ask(touch.as_bytes()), "NOT_FOUND");
    let said = group.copy(&[]);
    assert!(
        said.contains("changed by clients") && said.contains("marked as stale"),
        "{said}"
    );

    for (at, key) in moved.iter().enumerate() {
        let item = client.item(key, "v f t c");
        match at {
            1 | 2 | 3 | 5 => assert_eq!(item, None, "{key}"),
            4 => assert_eq!(item.map(|(_, value)| value), Some(b"new".to_vec())),
            _ => {
                let (flags, value) = item.unwrap_or_else(|| panic!("{key} is missing: {said}"));
                let number = number(key);
                assert_eq!(value, old_value(number).as_bytes(), "{key}");
                let server = old.server_of(key.as_bytes());
                let cas = group.old[server]
                    .connect()
                    .ask(format!("mg {key} c u\r\n").as_bytes());
                let words: Vec<&str> = flags.split(' ').collect();
                assert_eq!(words[0], format!("f{number}"));
                assert_eq!(format!("HD {}", words[2]), cas);
                let seconds: i64 = words[1][1..].parse().expect("seconds");
                match exptime(number) {
                    0 => assert_eq!(seconds, -1),
                    _ => assert!((900..1000).contains(&seconds), "{key}: {flags}"),
                }
            }
        }
    }
    let (flags, copied) = client.item(&big, "v f").expect("the large value");
    assert_eq!((flags.as_str(), copied == value), ("f5", true));
    assert_eq!(
        client.item(&base64, "b v f"),
        Some(("f9".to_owned(), b"z".to_vec()))
    );
    // Nothing else was copied, and the warm-up is over.
    let items = moved.len() + 2 - 4;
    client.send(b"stats\r\n");
    let mut stats = HashMap::new();
    loop {
        let line = client.line();
        let Some((name, value)) = line
            .strip_prefix("STAT ")
            .and_then(|line| line.split_once(' '))
        else {
            break;
        };
        stats.insert(name.to_owned(), value.to_owned());
    }
    assert_eq!(stats["curr_items"], items.to_string());
    assert_eq!(client.ask(b"warm_up status\r\n"), "NOT_WARMING ended");
    // The reads left no trace on the old servers.
    let key = &moved[6];
    let mut client = group.old[old.server_of(key.as_bytes())].connect();
    assert_eq!(client.ask(format!("mg {key} h u\r\n").as_bytes()), "HD h0");
    assert!(group.copy_fails(3).contains("its warm-up was ended"));
}

#[test]
fn moved_keys_are_deleted_on_the_old_servers_on_request() {
    let group = Group::start();
    let moved = group.fill(600);
    let (old, new) = (group.old_ring(), group.new_ring());
    group.begin();
    let mut client = group.new.connect();
    // A key that was not copied goes, too: its old value is out of date.
    assert_eq!(
        client.ask(format!("delete {}\r\n", moved[0]).as_bytes()),
        "NOT_FOUND"
    );
    let said = group.copy(&["--delete-moved"]);
    assert!(said.contains("deleted here"), "{said}");
    let mut clients = [group.old[0].connect(), group.old[1].connect()];
    for at in 0..600 {
        let key = format!("key:{at}");
        let stays = new.server_of(key.as_bytes()) != 2;
        let client = &mut clients[old.server_of(key.as_bytes())];
        assert_eq!(client.item(&key, "v").is_some(), stays, "{key}");
    }
}

#[test]
fn a_server_takes_the_place_of_another_one_under_its_name() {
    let group = Group::start();
    let workspace = &group.workspace;
    let from = format!("one={},two={}", group.old[0].address, group.old[1].address);
    let to = format!("one={}", group.new.address);
    let mut client = group.old[0].connect();
    let name = |name: &str, server: &CacheServer| {
        let address: ServerAddress = server.address.parse().expect("an address");
        address.ring_name(Some(name.to_owned()))
    };
    let servers = [name("one", &group.old[0]), name("two", &group.old[1])];
    let ring = Ring::new(Placement::Rendezvous, &servers);
    let keys: Vec<String> = (0..200).map(|at| format!("key:{at}")).collect();
    let mine: Vec<&String> = keys
        .iter()
        .filter(|key| ring.server_of(key.as_bytes()) == 0)
        .collect();
    for key in &mine {
        assert_eq!(
            client.ask(format!("set {key} 0 0 1\r\nx\r\n").as_bytes()),
            "STORED"
        );
    }
    group.begin();
    let said = workspace.succeeds(&[
        "warm",
        "--from",
        &from,
        "--to",
        &to,
        "--leaving",
        &group.old[0].address,
        "--ring",
        "rendezvous",
    ]);
    assert!(said.contains(&format!("{} copied", mine.len())), "{said}");
    let mut client = group.new.connect();
    for key in mine {
        assert!(client.item(key, "v").is_some(), "{key}");
    }
}

#[test]
fn a_copy_that_is_killed_can_be_run_again() {
    let group = Group::start();
    let moved = group.fill(2000);
    group.begin();
    let args = group.copy_args();
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.extend(["--rate", "100Ki"]);
    let mut child = group.workspace.command(&args).spawn().expect("it starts");
    let mut client = group.new.connect();
    let deadline = Instant::now() + Duration::from_secs(20);
    // Wait until a part is copied.
    while moved.iter().all(|key| client.item(key, "v u").is_none()) {
        assert!(Instant::now() < deadline, "nothing is copied");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let copied: Vec<&String> = moved
        .iter()
        .filter(|key| client.item(key, "v u").is_some())
        .collect();
    assert!(copied.len() < moved.len(), "the rate is limited");
    let last = (*copied.last().expect("one")).clone();
    assert_eq!(
        client.ask(format!("delete {last}\r\n").as_bytes()),
        "DELETED"
    );
    let said = group.copy(&[]);
    assert!(said.contains("copied before"), "{said}");
    for key in &moved {
        assert_eq!(client.item(key, "v").is_some(), *key != last, "{key}");
    }
}

#[test]
fn servers_that_cannot_be_warmed_up_are_errors_that_say_why() {
    let group = Group::start();
    group.fill(100);
    assert!(group.copy_fails(3).contains("its warm-up has not begun"));
    // A restarted server does not know what clients have deleted.
    group.begin();
    let Group {
        workspace,
        old,
        new,
    } = group;
    let address = new.address.clone();
    drop(new);
    let new = CacheServer::forerun_at(&workspace, &address, &[]);
    let group = Group {
        workspace,
        old,
        new,
    };
    assert!(group.copy_fails(3).contains("or the server was restarted"));
    assert_eq!(group.new.connect().ask(b"delete a\r\n"), "NOT_FOUND");
    let to = group.new.address.as_str();
    let said = group.workspace.fails(3, &["warm", "--begin", "--to", to]);
    assert!(said.contains("a client has written to it"), "{said}");
    assert!(group.copy_fails(3).contains("a client has written to it"));
    if let Some(memcached) = CacheServer::memcached() {
        let said = group
            .workspace
            .fails(3, &["warm", "--begin", "--to", &memcached.address]);
        assert!(said.contains("`forerun serve` does"), "{said}");
    }
    let said = group
        .workspace
        .fails(3, &["warm", "--begin", "--to", "127.0.0.1:1"]);
    assert!(said.contains("127.0.0.1:1: cannot connect"), "{said}");
}

#[test]
fn a_warm_up_can_be_ended_without_a_copy() {
    let group = Group::start();
    group.begin();
    let to = group.new.address.as_str();
    group.workspace.succeeds(&["warm", "--end", "--to", to]);
    assert!(group.copy_fails(3).contains("its warm-up was ended"));
}

#[test]
fn wrong_command_lines_are_usage_errors() {
    let workspace = Workspace::new();
    for args in [
        &["warm", "--to", "127.0.0.1:1"][..],
        &["warm", "--from", "a,b", "--to", "b"],
        &["warm", "--from", "a,a", "--to", "b"],
        &["warm", "--from", "a", "--leaving", "c", "--to", "b"],
    ] {
        workspace.fails(2, args);
    }
    for args in [
        &["warm"][..],
        &["warm", "--begin", "--from", "a", "--to", "b"],
        &["warm", "--from", "a", "--to", "b", "--rate", "0"],
        &["warm", "--from", "a", "--to", "b", "--ring", "none"],
        &["warm", "--from", "=a", "--to", "b"],
        &["warm", "--from", "a:0", "--to", "b"],
        &[
            "warm",
            "--from",
            "a",
            "--to",
            "b",
            "--dry-run",
            "--delete-moved",
        ],
    ] {
        assert_eq!(workspace.run(args).code, 2, "{args:?}");
    }
}

#[test]
fn the_new_server_is_no_old_server_under_another_name() {
    let group = Group::start();
    group.begin();
    let mut client = group.new.connect();
    assert_eq!(client.ask(b"set a 0 0 1\r\nx\r\n"), "STORED");
    let to = group.new.address.as_str();
    let port = to.rsplit_once(':').expect("a port").1;
    let from = format!("{},localhost:{port}", group.old[0].address);
    let args = ["warm", "--from", &from, "--to", to, "--delete-moved"];
    let said = group.workspace.fails(2, &args);
    assert!(said.contains("leads to the new server"), "{said}");
    // Nothing was deleted, and the warm-up goes on.
    assert!(client.item("a", "v").is_some());
    assert!(client.ask(b"warm_up status\r\n").starts_with("WARM_UP "));
}

/// A client that changes its own keys on the new server all the time, and checks what it reads.
fn change(mut client: CacheClient, keys: &[&String], seed: u64, is_over: &AtomicBool) -> usize {
    // `None`: the key has been changed, and has no value.
    let mut known: HashMap<&str, Option<String>> = HashMap::new();
    let (mut state, mut changes) = (seed, 0);
    while !is_over.load(Ordering::Relaxed) {
        // Knuth's multiplier for 64 bits.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let key = keys[(state >> 33) as usize % keys.len()].as_str();
        match (state >> 20) % 4 {
            0 => {
                let answer = client.ask(format!("delete {key}\r\n").as_bytes());
                assert!(matches!(answer.as_str(), "DELETED" | "NOT_FOUND"));
                known.insert(key, None);
                changes += 1;
            }
            1 => {
                let value = format!("new {state}");
                let line = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
                assert_eq!(client.ask(line.as_bytes()), "STORED");
                known.insert(key, Some(value));
                changes += 1;
            }
            _ => {
                let value = client.item(key, "v").map(|(_, value)| value);
                let value = value.map(|value| String::from_utf8(value).expect("text"));
                match known.get(key) {
                    Some(known) => assert_eq!(value, *known, "{key}"),
                    None => {
                        let old = old_value(number(key));
                        assert!(value.is_none_or(|value| value == old), "{key}");
                    }
                }
            }
        }
    }
    changes
}

#[test]
fn clients_that_change_keys_during_the_copy_never_see_an_old_value_again() {
    let group = Group::start();
    let moved = group.fill(6000);
    group.begin();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3_usize)
            .map(|client| {
                let keys: Vec<&String> = moved.iter().skip(client).step_by(3).collect();
                let (connection, is_over) = (group.new.connect(), &is_over);
                scope.spawn(move || change(connection, &keys, client as u64 + 7, is_over))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(50));
        let said = group.copy(&["--rate", "2Mi"]);
        assert!(said.contains("changed by clients"), "{said}");
        std::thread::sleep(Duration::from_millis(50));
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            let changes = client.join().expect("every value was right");
            assert!(changes > 100, "{changes}");
        }
    });
}

#[test]
fn servers_with_users_are_warmed_up_as_one_of_them() {
    let workspace = Workspace::new();
    workspace.file("users", "alice:s3cret\n");
    workspace.file("password", "s3cret\n");
    let start = || CacheServer::forerun(&workspace, &["--auth-file", "users"]);
    let (old, new) = (start(), start());
    let log_in = |server: &CacheServer| {
        let mut client = server.connect();
        let answer = client.ask(b"set auth 0 0 12\r\nalice s3cret\r\n");
        assert_eq!(answer, "STORED");
        client
    };
    let mut client = log_in(&old);
    for n in 0..100 {
        let request = format!("set key{n} 0 0 1\r\nx\r\n");
        assert_eq!(client.ask(request.as_bytes()), "STORED");
    }
    let (from, to) = (old.address.as_str(), new.address.as_str());
    let said = workspace.fails(3, &["warm", "--begin", "--to", to]);
    assert!(said.contains("use --user and --password-file"), "{said}");
    let user = ["--user", "alice", "--password-file", "password"];
    workspace.succeeds(&[&["warm", "--begin", "--to", to][..], &user].concat());
    let args = ["warm", "--from", from, "--leaving", from, "--to", to];
    let said = workspace.succeeds(&[&args[..], &user].concat());
    assert!(said.contains("100 copied"), "{said}");
    assert!(log_in(&new).item("key7", "v").is_some());
}

#[test]
fn servers_with_tls_are_warmed_up_over_tls() {
    let workspace = Workspace::new();
    let args = workspace.make_certificate();
    let start = || CacheServer::forerun(&workspace, &args);
    let (old, new) = (start(), start());
    let options = ClientOptions::default()
        .timeout(Duration::from_secs(20))
        .tls(Some(TlsOptions::new(workspace.path("cert"))));
    let open = |server: &CacheServer| {
        let server = server.address.parse().expect("an address");
        RawConnection::open(&server, &options).expect("a connection")
    };
    let mut client = open(&old);
    // The last value does not fit into the buffers of a socket.
    let value = |n: usize| "x".repeat(if n == 100 { 1_000_000 } else { n });
    for n in 0..=100 {
        let request = format!("set key{n} 0 0 {}\r\n{}\r\n", value(n).len(), value(n));
        client.send(request.as_bytes()).expect("it is sent");
        assert_eq!(client.line().expect("an answer"), b"STORED");
    }
    let (from, to) = (old.address.as_str(), new.address.as_str());
    let tls = ["--tls", "--ssl-ca-cert", "cert"];
    workspace.succeeds(&[&["warm", "--begin", "--to", to][..], &tls].concat());
    let args = ["warm", "--from", from, "--leaving", from, "--to", to];
    let said = workspace.succeeds(&[&args[..], &tls].concat());
    assert!(said.contains("101 copied"), "{said}");
    let mut client = open(&new);
    client.send(b"mg key100 v\r\n").expect("it is sent");
    assert_eq!(client.line().expect("a line"), b"VA 1000000");
    assert_eq!(
        client.value(1_000_000).expect("a value"),
        value(100).as_bytes()
    );
}
