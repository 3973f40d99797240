//! Calls to servers over UCX, in every protocol, blocking and in event loops. The tests print a
//! message and are skipped if UCX is not installed.

#[path = "../../forerun-ucx/tests/testing/installed.rs"]
mod installed;
mod testing;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forerun_client::{Client, ClientOptions, Error, Failure, Lookups, Protocol, ServerAddress};
use forerun_server::{Address, Listen, Server, ServerOptions, UcxOptions};
use installed::has_ucx;
use testing::{PATIENCE, forerun, options, start};

const TESTS: [&str; 5] = [
    "every_protocol_works_over_ucx",
    "threads_share_a_client",
    "a_server_that_ends_fails_and_comes_back",
    "an_event_loop_drives_calls",
    "a_stopped_server_delays_a_call_no_longer_than_its_time_out",
];

const PROTOCOLS: [Protocol; 3] = [Protocol::Classic, Protocol::Meta, Protocol::MultiGet];

#[test]
fn the_same_over_ucx_tcp() {
    if !has_ucx() {
        return;
    }
    // UCX reads its variables once per process.
    let program = std::env::current_exe().expect("this executable");
    let ran = Command::new(program)
        .args(["--exact", "--test-threads", "1"])
        .args(TESTS)
        .env("UCX_TLS", "tcp,self")
        .output()
        .expect("it runs");
    let output = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{output}");
    assert!(
        output.contains(&format!("{} passed", TESTS.len())),
        "{output}"
    );
}

fn server_at(path: &Path) -> Server {
    let listen = Listen::unix(path, 0o600).over_ucx(UcxOptions::default());
    start(ServerOptions::new(vec![listen]).threads(2))
}

fn server_of(path: &Path) -> ServerAddress {
    let address = format!("ucx://{}", path.display());
    address.parse().expect("an address")
}

fn client_of(path: &Path, options: ClientOptions) -> Client {
    Client::new([server_of(path)], options).expect("a client")
}

fn directory() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ucx");
    (dir, path)
}

#[test]
fn every_protocol_works_over_ucx() {
    if !has_ucx() {
        return;
    }
    let (_dir, path) = directory();
    let _server = server_at(&path);
    for protocol in PROTOCOLS {
        let client = client_of(&path, options().protocol(protocol));
        for bytes in [0, 1, 1000, 8192, 100_000, 900_000] {
            let value: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 255) as u8).collect();
            client.set("k", &value[..]).expect("stored");
            let found = client.get("k").expect("it answers").expect("it is there");
            assert!(found.data == value, "{protocol:?}: {bytes} bytes");
        }
        let keys: Vec<String> = (0..3000).map(|at| format!("k{at}")).collect();
        for (at, key) in keys.iter().enumerate().step_by(3) {
            client.set(key, &*format!("value {at}")).expect("stored");
        }
        let mut values = Lookups::new();
        let report = client.multi_get(&keys, &mut values).expect("it answers");
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        for at in 0..keys.len() {
            let found = values.get(at).map(|value| value.data.to_vec());
            let expected = (at % 3 == 0).then(|| format!("value {at}").into_bytes());
            assert_eq!(found, expected, "{protocol:?}: {at}");
        }
        client.flush_all().expect("it answers");
    }
}

#[test]
fn servers_over_tcp_and_ucx_share_a_batch() {
    if !has_ucx() {
        return;
    }
    let (_dir, path) = directory();
    let over_ucx = server_at(&path);
    let over_tcp = forerun();
    let servers = [server_of(&path), testing::address(&over_tcp).into()];
    let client = Client::new(servers, options()).expect("a client");
    let keys: Vec<String> = (0..500).map(|at| format!("k{at}")).collect();
    for key in &keys {
        client.set(key, key.as_str()).expect("stored");
    }
    let used = |server| {
        keys.iter()
            .filter(|key| client.server_of(key) == server)
            .count()
    };
    assert!(used(0) > 0 && used(1) > 0);
    let found = testing::multi_get(&client, &keys).expect("it answers");
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(found.get(at).expect("it is there").data, key.as_bytes());
    }
    drop(over_ucx);
}

#[test]
fn a_token_opens_an_ip_address() {
    if !has_ucx() {
        return;
    }
    let (dir, _) = directory();
    let token = dir.path().join("token");
    std::fs::write(&token, "a token of enough bytes\n").expect("a file");
    let place = Listen::parse("ucx:127.0.0.1:0", 0)
        .expect("an address")
        .remove(0);
    let place = place.over_ucx(UcxOptions::default().token_file(token.clone()));
    let server = start(ServerOptions::new(vec![place]));
    let Address::UcxTcp(address) = &server.addresses()[0] else {
        panic!("it listens over UCX");
    };
    let servers: [ServerAddress; 1] = [format!("ucx://{address}").parse().expect("an address")];
    let with = Client::new(servers.clone(), options().ucx_token_file(token)).expect("a client");
    with.set("k", "v").expect("stored");
    let without = Client::new(servers.clone(), options()).expect("a client");
    let error = without.get("k").expect_err("it has no token");
    assert!(
        error.to_string().contains("token is wrong or missing"),
        "{error}"
    );
    let absent = options().ucx_token_file(dir.path().join("absent"));
    let error = Client::new(servers, absent).expect_err("no such file");
    assert!(matches!(error, Error::UcxToken { .. }), "{error}");
}

#[test]
fn threads_share_a_client() {
    if !has_ucx() {
        return;
    }
    let (_dir, path) = directory();
    let _server = server_at(&path);
    let client = client_of(&path, options().protocol(Protocol::MultiGet));
    thread::scope(|scope| {
        for number in 0..6 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..100 {
                    let key = format!("{number}/{}", round % 10);
                    client.set(&key, &*format!("{round}")).expect("stored");
                    let found = client.get(&key).expect("it answers").expect("it is there");
                    assert_eq!(found.data, round.to_string().as_bytes());
                }
            });
        }
    });
}

#[test]
fn a_server_that_ends_fails_and_comes_back() {
    if !has_ucx() {
        return;
    }
    let (_dir, path) = directory();
    let server = server_at(&path);
    let short = options()
        .timeout(Duration::from_secs(2))
        .retry_interval(Duration::from_millis(50));
    let client = client_of(&path, short);
    client.set("k", "v").expect("stored");
    server.drain();
    server.wait().expect("it ends well");
    let begin = Instant::now();
    let error = client.get("k").expect_err("nobody answers");
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
    assert!(
        matches!(
            &error,
            Error::Server {
                failure: Failure::Closed | Failure::Connect(_),
                ..
            }
        ),
        "{error}"
    );
    let _server = server_at(&path);
    let begin = Instant::now();
    while client.get("k").is_err() {
        assert!(begin.elapsed() < PATIENCE, "it does not come back");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(
        client.get("k").expect("it answers").is_none(),
        "a new server is empty"
    );
}

#[test]
fn a_server_that_is_absent_is_reported_as_such() {
    if !has_ucx() {
        return;
    }
    let (_dir, path) = directory();
    let client = client_of(&path, options());
    let error = client.get("k").expect_err("nobody listens");
    assert!(
        matches!(
            &error,
            Error::Server {
                failure: Failure::Connect(_),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn an_event_loop_drives_calls() {
    if !has_ucx() {
        return;
    }
    let (_dir, path) = directory();
    let _server = server_at(&path);
    let client = Arc::new(client_of(&path, options()));
    client.set("k", "v").expect("stored");
    for _ in 0..100 {
        let call = client.start(|calls| async move { calls.get("k").await });
        let mut pending = call.expect("an epoll instance");
        let begin = Instant::now();
        let found = loop {
            if let Some(found) = pending.advance() {
                break found;
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            let mut polled = [rustix::event::PollFd::new(
                &pending,
                rustix::event::PollFlags::IN,
            )];
            let timeout = rustix::event::Timespec::try_from(pending.timeout()).expect("a time");
            rustix::event::poll(&mut polled, Some(&timeout)).expect("it polls");
        };
        assert_eq!(found.expect("it answers").expect("it is there").data, b"v");
    }
}

/// Listens as another user. The system remembers the user of the thread that calls `listen`.
fn listen_as_another_user(path: &Path) -> Option<std::os::unix::net::UnixListener> {
    let path = path.to_owned();
    let listener = thread::spawn(move || {
        const NOBODY: libc::uid_t = 65534;
        // SAFETY: without the C library, the call changes the user of this thread alone.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1_i64, NOBODY, -1_i64) };
        (changed == 0).then(|| std::os::unix::net::UnixListener::bind(path).expect("it listens"))
    });
    listener.join().expect("it ends well")
}

#[test]
fn a_server_of_another_user_receives_nothing() {
    if !has_ucx() {
        return;
    }
    let (dir, path) = directory();
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), everyone).expect("a directory");
    let Some(listener) = listen_as_another_user(&path) else {
        let _ = writeln!(io::stderr(), "skipped: only root can act as another user");
        return;
    };
    let accepted = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        let mut received = Vec::new();
        // The client may reset the connection.
        let _ = io::Read::read_to_end(&mut socket, &mut received);
        received
    });
    let error = client_of(&path, options())
        .get("k")
        .expect_err("another user");
    assert!(error.to_string().contains("another user"), "{error}");
    assert_eq!(
        accepted.join().expect("it ends well"),
        b"",
        "nothing is sent"
    );
}

/// A server that accepts a connection and is stopped then.
fn stopped_server(path: &Path) -> thread::JoinHandle<()> {
    let listener = std::os::unix::net::UnixListener::bind(path).expect("it listens");
    thread::spawn(move || {
        let context = forerun_ucx::Context::open(&Default::default()).expect("UCX");
        let mut hub = forerun_ucx::Hub::new(&context).expect("a hub");
        let (mut socket, _) = listener.accept().expect("a client");
        let mut received = Vec::new();
        let hello = loop {
            let mut piece = [0; 1024];
            let count = io::Read::read(&mut socket, &mut piece).expect("a hello");
            received.extend_from_slice(&piece[..count]);
            if let Some(hello) = forerun_ucx::Hello::parse(&received, None).expect("valid") {
                break hello;
            }
        };
        let (channel, key) = hub.open(0, 16);
        let connected = hub.connect(channel, &hello.address, hello.key, hello.window);
        connected.expect("reachable");
        let answer = forerun_ucx::Hello {
            address: hub.address().to_vec(),
            key,
            window: 16,
        };
        let answer = forerun_ucx::HelloAnswer(Ok(answer)).to_bytes();
        socket.write_all(&answer).expect("it is sent");
        // Until the client is gone.
        while io::Read::read(&mut socket, &mut [0]).is_ok_and(|count| count > 0) {}
    })
}

#[test]
fn a_stopped_server_delays_a_call_no_longer_than_its_time_out() {
    if !has_ucx() {
        return;
    }
    let (_dir, path) = directory();
    let stopped = stopped_server(&path);
    let client = client_of(&path, options().timeout(Duration::from_millis(300)));
    let begin = Instant::now();
    let error = client
        .set("k", &[7_u8; 100_000][..])
        .expect_err("it answers nothing");
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(900), "{took:?}: {error}");
    drop(client);
    assert!(
        begin.elapsed() < Duration::from_millis(900),
        "{:?}",
        begin.elapsed()
    );
    stopped.join().expect("it ends well");
}
