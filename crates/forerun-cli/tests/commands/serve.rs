//! `forerun serve` as a process: addresses, signals, snapshots, errors.

use crate::testing;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testing::Workspace;

/// A server that is killed when the test ends.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(workspace: &Workspace, args: &[&str]) -> Server {
        Server::start_with_log(workspace, args, Stdio::null())
    }

    fn start_with_log(workspace: &Workspace, args: &[&str], log: Stdio) -> Server {
        let mut all = vec!["--threads", "1"];
        all.extend(args);
        let (child, address) = workspace.serve("127.0.0.1:0", &all, log);
        Server { child, address }
    }

    fn ask(&self, request: &str, answer: &str) {
        let mut stream = TcpStream::connect(&self.address).expect("it accepts");
        let patience = Some(Duration::from_secs(10));
        stream.set_read_timeout(patience).expect("a time");
        stream.write_all(request.as_bytes()).expect("it is sent");
        let mut got = vec![0; answer.len()];
        stream.read_exact(&mut got).expect("it answers");
        assert_eq!(String::from_utf8_lossy(&got), answer);
    }

    /// Sends a signal and expects a clean exit.
    fn end(mut self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("there is kill").success());
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_signal_writes_a_snapshot_that_the_next_start_loads() {
    let workspace = Workspace::new();
    let args = ["--snapshot", "cache.snapshot"];
    let server = Server::start(&workspace, &args);
    server.ask("set k 7 0 5\r\nvalue\r\n", "STORED\r\n");
    server.end("-TERM");
    let server = Server::start(&workspace, &args);
    server.ask("get k\r\n", "VALUE k 7 5\r\nvalue\r\nEND\r\n");
    server.ask("set other 0 0 1\r\nx\r\n", "STORED\r\n");
    server.end("-USR1");
    let server = Server::start(&workspace, &args);
    server.ask(
        "get k other\r\n",
        "VALUE k 7 5\r\nvalue\r\nVALUE other 0 1\r\nx\r\nEND\r\n",
    );
    server.end("-INT");
}

#[test]
fn a_server_that_cannot_say_that_it_has_started_keeps_the_snapshot() {
    let workspace = Workspace::new();
    let args = ["--snapshot", "cache.snapshot"];
    let server = Server::start(&workspace, &args);
    server.ask("set k 7 0 5\r\nvalue\r\n", "STORED\r\n");
    server.end("-TERM");
    let listen = ["serve", "--listen", "127.0.0.1:0"];
    let without_directory = ["--pid-file", "missing/pid"];
    for more in [&without_directory[..], &[]] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let failed = workspace
            .command(&[&listen[..], &args, more].concat())
            .stdout(full.expect("the system has it"))
            .stderr(Stdio::null())
            .status();
        assert!(!failed.expect("forerun can be started").success());
        assert!(workspace.path("cache.snapshot").exists(), "{more:?}");
    }
    let server = Server::start(&workspace, &args);
    server.ask("get k\r\n", "VALUE k 7 5\r\nvalue\r\nEND\r\n");
}

/// Starts a server whose snapshot arrives through a pipe, sends it a signal in the middle, and lets
/// the rest arrive.
fn signalled_while_it_loads(workspace: &Workspace, signal: &str) -> Child {
    let server = Server::start(workspace, &["--snapshot", "whole"]);
    server.ask("set k 0 0 5\r\nvalue\r\n", "STORED\r\n");
    server.end("-TERM");
    let bytes = std::fs::read(workspace.path("whole")).expect("it was written");
    let pipe = workspace.path("cache.snapshot");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("there is mkfifo").success());
    let args = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--snapshot",
        "cache.snapshot",
    ];
    let child = workspace
        .command(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("forerun can be started");
    // Opening waits until the server reads.
    let opened = std::fs::File::options().write(true).open(&pipe);
    let mut opened = opened.expect("the server reads");
    opened.write_all(&bytes[..30]).expect("it is read");
    let sent = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(sent.expect("there is kill").success());
    // The signal has its own thread.
    std::thread::sleep(Duration::from_millis(300));
    // This fails if the signal has ended the process.
    let _ = opened.write_all(&bytes[30..]);
    child
}

#[test]
fn a_signal_that_ends_a_server_while_it_loads_keeps_the_snapshot() {
    for signal in ["-TERM", "-INT", "-USR1"] {
        let workspace = Workspace::new();
        let mut child = signalled_while_it_loads(&workspace, signal);
        let ended = child.wait().expect("it ends");
        assert_eq!(ended.code(), Some(0), "{signal}");
        assert!(workspace.path("cache.snapshot").exists(), "{signal}");
    }
}

#[test]
fn a_request_for_a_copy_while_a_server_loads_is_served_afterwards() {
    let workspace = Workspace::new();
    let mut child = signalled_while_it_loads(&workspace, "-USR2");
    let live = workspace.path("cache.snapshot.live");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !live.exists() {
        let ended = child.try_wait().expect("it can be asked");
        assert!(ended.is_none() && Instant::now() < deadline, "{ended:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn a_server_that_was_killed_does_not_bring_back_what_was_deleted_or_replaced() {
    let workspace = Workspace::new();
    let args = ["--snapshot", "cache.snapshot"];
    let server = Server::start(&workspace, &args);
    server.ask(
        "set gone 0 0 3\r\nold\r\nset new 0 0 3\r\nold\r\n",
        "STORED\r\nSTORED\r\n",
    );
    server.end("-TERM");
    let server = Server::start(&workspace, &args);
    server.ask(
        "delete gone\r\nset new 0 0 3\r\nnew\r\n",
        "DELETED\r\nSTORED\r\n",
    );
    // Dropping the server kills it.
    drop(server);
    let server = Server::start(&workspace, &args);
    server.ask("get gone new\r\n", "END\r\n");
}

#[test]
fn resp_has_a_listener_of_its_own() {
    let workspace = Workspace::new();
    let path = workspace.path("resp.sock");
    let place = format!("unix:{}", path.display());
    let server = Server::start(&workspace, &["--resp", &place]);
    server.ask("set town 0 0 4\r\nBern\r\n", "STORED\r\n");
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut stream = loop {
        match UnixStream::connect(&path) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    stream
        .write_all(b"GET town\r\nQUIT\r\n")
        .expect("it is sent");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("it answers and closes");
    assert_eq!(answer, "$4\r\nBern\r\n+OK\r\n");
    server.end("-TERM");
}

#[test]
fn sighup_rereads_the_user_file_and_stops_nothing() {
    let workspace = Workspace::new();
    workspace.file("users", "alice:old");
    let server = Server::start(&workspace, &["--auth-file", "users"]);
    let enters = |password: &str| {
        let mut stream = TcpStream::connect(&server.address).expect("it accepts");
        let request = format!("set x 0 0 9\r\nalice {password}\r\n");
        stream.write_all(request.as_bytes()).expect("it is sent");
        let mut got = [0; 6];
        stream.read_exact(&mut got).expect("it answers");
        got == *b"STORED"
    };
    assert!(enters("old"));
    workspace.file("users", "alice:new");
    let pid = server.child.id().to_string();
    let sent = Command::new("kill").args(["-HUP", &pid]).status();
    assert!(sent.expect("there is kill").success());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !enters("new") {
        assert!(Instant::now() < deadline, "the new password never counts");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.end("-TERM");
}

#[test]
fn a_startup_error_is_one_line() {
    let workspace = Workspace::new();
    workspace.file(
        "bad.snapshot",
        "no snapshot at all, but long enough to be one",
    );
    let listen = ["serve", "--listen", "127.0.0.1:0"];
    let with = |more: &[&'static str]| [&listen[..], more].concat();
    let reported = |code, args: &[&str]| {
        let ran = workspace.run(args);
        assert_eq!(ran.code, code, "{ran:?}");
        ran.stderr
    };
    assert!(reported(3, &with(&["--snapshot", "bad.snapshot"])).contains("bad.snapshot"));
    assert!(reported(3, &with(&["--auth-file", "none"])).contains("none"));
    assert!(reported(2, &with(&["--max-item-size", "1g"])).contains("too large"));
    assert!(reported(2, &with(&["--memory-limit", "1KiB"])).contains("too small"));
    assert!(reported(2, &["serve", "--listen", "nowhere:x"]).contains("nowhere"));
    assert!(reported(2, &["serve", "--unix-socket", "s", "--unix-mask", "9"]).contains("octal"));
    assert!(reported(2, &with(&["--memory-limit", "lots"])).contains("lots"));
    assert!(reported(2, &with(&["--resp", "ucx:unix:s"])).contains("not for UCX"));
    assert!(reported(2, &with(&["--resp", "nowhere:x"])).contains("nowhere"));
    assert!(reported(2, &with(&["--enable-ssl"])).contains("ssl-chain-cert"));
    let with_ucx = ["--transport", "tcp,ucx"];
    assert!(reported(2, &with(&with_ucx)).contains("--ucx-listen"));
    let listen = ["--ucx-listen", "unix:s"];
    assert!(reported(2, &with(&listen)).contains("--transport ucx"));
    assert!(reported(2, &["serve", "--listen", "ucx:unix:s"]).contains("--transport ucx"));
    assert!(reported(2, &with(&["--ucx-token-file", "t"])).contains("--ucx-listen"));
}

#[test]
#[cfg(not(feature = "ucx"))]
fn a_build_without_ucx_refuses_it_and_names_the_feature() {
    let listen = ["--transport", "ucx", "--ucx-listen", "unix:s"];
    let ran = Workspace::new().run(&[&["serve"][..], &listen].concat());
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("feature `ucx`"), "{ran:?}");
}

#[test]
fn a_refused_binary_client_is_logged_and_verbosity_changes_what_is_logged() {
    let workspace = Workspace::new();
    let log = workspace.path("log");
    let file = std::fs::File::create(&log).expect("a file");
    let server = Server::start_with_log(&workspace, &["--no-binary"], file.into());
    let logged = |text: &str| {
        let log = std::fs::read_to_string(&log).expect("the log");
        log.matches(text).count()
    };
    let until = |text: &str, count: usize| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while logged(text) < count {
            assert!(Instant::now() < deadline, "{text}: {}", logged(text));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let send_binary = || {
        let mut stream = TcpStream::connect(&server.address).expect("it accepts");
        stream.write_all(&[0x80; 24]).expect("it is sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it is closed");
    };
    send_binary();
    until("speaks the binary protocol", 1);
    for _ in 0..50 {
        send_binary();
    }
    assert_eq!(logged("speaks the binary protocol"), 10, "lines per minute");

    server.ask("version\r\nmn\r\n", "VERSION ");
    assert_eq!(logged("opened a connection"), 0);
    server.ask("verbosity 1\r\n", "OK\r\n");
    server.ask("stats settings\r\n", "STAT maxbytes ");
    until("opened a connection", 1);
    server.ask("verbosity 0\r\n", "OK\r\n");
    let before = logged("opened a connection");
    server.ask("mn\r\n", "MN\r\n");
    assert_eq!(logged("opened a connection"), before);
}

#[test]
fn the_memory_in_stats_adds_up_to_that_of_the_process() {
    const CONNECTIONS: usize = 300;
    const VALUE_BYTES: usize = 900;
    let workspace = Workspace::new();
    let server = Server::start(&workspace, &["--memory-limit", "64"]);
    let connect = || {
        let stream = TcpStream::connect(&server.address).expect("it accepts");
        let timeout = Some(Duration::from_secs(60));
        stream.set_read_timeout(timeout).expect("a time");
        stream
    };
    // A full cache, which evicts.
    let mut client = connect();
    let value = "v".repeat(VALUE_BYTES);
    for batch in 0..100 {
        let stores = (0..1000)
            .map(|at| format!("set {batch}:{at} 0 0 {VALUE_BYTES} noreply\r\n{value}\r\n"))
            .collect::<String>();
        client.write_all(stores.as_bytes()).expect("it is sent");
    }
    client.write_all(b"mn\r\n").expect("it is sent");
    let mut done = [0; 4];
    client.read_exact(&mut done).expect("it answers");
    assert_eq!(&done, b"MN\r\n");
    // Connections with commands that have not arrived in full, and answers that nobody reads.
    let keys: String = (0..1000).map(|at| format!(" 99:{at}")).collect();
    let mut open = Vec::new();
    for at in 0..CONNECTIONS {
        let mut stream = connect();
        let request = match at % 3 {
            0 => "version\r\n".to_owned(),
            1 => format!("get{}", &keys[..5000]),
            _ => format!("get{keys}\r\n").repeat(40),
        };
        stream.write_all(request.as_bytes()).expect("it is sent");
        open.push(stream);
    }
    let status = format!("/proc/{}/status", server.child.id());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        client.write_all(b"stats\r\n").expect("it is sent");
        let mut text = Vec::new();
        let mut piece = [0; 4096];
        while !text.ends_with(b"END\r\n") {
            let count = client.read(&mut piece).expect("it answers");
            text.extend_from_slice(&piece[..count]);
        }
        let text = String::from_utf8(text).expect("it is text");
        let stat = |name: &str| -> u64 {
            let prefix = format!("STAT {name} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
            line.expect(name).parse().expect("a number")
        };
        let said = std::fs::read_to_string(&status).expect("the system says");
        let line = said.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let resident: u64 = kibibytes.expect("a size").parse::<u64>().expect("a number") << 10;
        let buffers = stat("read_buf_bytes") + stat("response_obj_bytes");
        let known = stat("memory_bytes") + buffers + stat("connection_bytes");
        let program = stat("program_bytes");
        let differs = |a: u64, b: u64| a.abs_diff(b) as f64 / b as f64;
        let is_settled = stat("curr_connections") > CONNECTIONS as u64
            && stat("read_buf_count") >= CONNECTIONS as u64 / 3
            && stat("response_obj_count") >= CONNECTIONS as u64 / 3
            && differs(stat("resident_bytes"), resident) < 0.01;
        if is_settled || Instant::now() > deadline {
            assert!(is_settled, "{resident}: {text}");
            assert!(stat("evictions") > 0 && buffers > 4 << 20, "{text}");
            assert!(
                differs(known + program, resident) < 0.05,
                "{resident}: {text}"
            );
            let sum = known + program + stat("other_bytes");
            assert!(differs(sum, stat("resident_bytes")) < 0.05, "{text}");
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
