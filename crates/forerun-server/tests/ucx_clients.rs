//! Many clients over UCX at once, each with a UCX worker of its own, as processes have: all are
//! served, and what they cost is given back when they leave or are killed.
//!
//! ```text
//!   the test ──> a server           its memory by kind, descriptors and mappings, from /proc
//!           ├──> 50 clients         they leave
//!           ├──> 50 clients         they are killed
//!           └──> …
//! ```
//!
//! `FORERUN_UCX_CLIENTS` sets the number of clients.

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    pub mod test_server;
    pub mod ucx_client;
    pub mod ucx_process;
}

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;

use server::test_server::{ask, stat, until};
use server::ucx_client::{UcxClients, again_with, ucx};
use server::ucx_process::{Process, Usage, serve_if_asked, wait_for_end};

/// Clients, unless the environment says how many.
const CLIENTS: usize = 60;
/// The memory of the server's cache. The test fills it first, so that it grows no more.
const CACHE_BYTES: usize = 16 << 20;
/// Answers that take more messages than a segment has places, of almost the longest length.
const ANSWERS: usize = 80;
const VALUE_BYTES: usize = 8_000;
/// Clients of one process.
const CLIENTS_PER_PROCESS: usize = 50;

/// The memory that the server may keep of all clients after they are gone, besides what its
/// allocator keeps of each.
const KEPT_BYTES: u64 = 4 << 20;
/// What the server may create once when clients are killed: a UCX worker that finds out whether the
/// server's own still receives.
const DESCRIPTORS_KEPT: usize = 12;
const SEGMENTS_KEPT: usize = 4;
const SHARED_BYTES_KEPT: u64 = 3 << 20;
/// What the server may take for a client, besides what it maps of the client's memory.
const OWN_BYTES_PER_CLIENT: u64 = 48 << 10;

const TESTS: [&str; 2] = [
    "many_clients_are_served_and_leave_nothing_behind",
    "clients_that_come_and_go_leak_nothing",
];

#[test]
fn the_same_over_ucx_tcp() {
    if ucx().is_some() {
        again_with("tcp,self", &TESTS);
    }
}

fn client_count() -> usize {
    let count = std::env::var("FORERUN_UCX_CLIENTS");
    count.map_or(CLIENTS, |count| count.parse().expect("a number"))
}

/// Files of UCX that stay until someone removes them.
fn files() -> usize {
    let Ok(files) = std::fs::read_dir("/dev/shm") else {
        return 0;
    };
    let is_ucx = |name: &str| name.starts_with("ucx_");
    let names = files.flatten().map(|file| file.file_name());
    names
        .filter(|name| name.to_str().is_some_and(is_ucx))
        .count()
}

#[test]
fn many_clients_are_served_and_leave_nothing_behind() {
    if ucx().is_none() {
        return;
    }
    let clients = client_count();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ucx");
    let socket = path.to_str().expect("text");
    let (server, mut tcp) = Process::start_server(socket, clients + 16);
    let start = |first: usize, count: usize| {
        let (first, count) = (first.to_string(), count.to_string());
        let environment = [
            ("FORERUN_UCX_SOCKET", socket),
            ("FORERUN_FIRST", &first),
            ("FORERUN_COUNT", &count),
        ];
        Process::start("clients_in_another_process", &environment)
    };
    let value = "f".repeat(VALUE_BYTES);
    for number in 0..3 * CACHE_BYTES / VALUE_BYTES {
        let set = format!("set f{number} 0 0 {VALUE_BYTES}\r\n{value}\r\n");
        ask(&mut tcp, &set, "STORED\r\n");
    }
    let are_gone = |tcp: &mut TcpStream| stat(tcp, "curr_connections") == "1";
    let mut after: Vec<Usage> = Vec::new();
    let kept_files = files();
    // The first round has few clients, for what the server creates once.
    for (round, count) in [4, clients, clients].into_iter().enumerate() {
        let each = CLIENTS_PER_PROCESS.min(count / 2);
        let mut processes: Vec<Process> = (0..count)
            .step_by(each)
            .map(|first| start(first, each.min(count - first)))
            .collect();
        for process in &mut processes {
            process.says("clients are connected");
        }
        assert_eq!(stat(&mut tcp, "curr_connections"), (count + 1).to_string());
        let during = Usage::of(server.child.id());
        let of_clients = Usage::of(processes[0].child.id());
        for (at, process) in processes.into_iter().enumerate() {
            match at % 2 {
                0 => process.leave(),
                _ => drop(process),
            }
        }
        until("all are closed", || are_gone(&mut tcp));
        let before = after.last().copied();
        until(
            "their sockets are closed and their memory is unmapped",
            || {
                let now = Usage::of(server.child.id());
                before.is_none_or(|before| {
                    now.descriptors <= before.descriptors + DESCRIPTORS_KEPT
                        && now.segments <= before.segments + SEGMENTS_KEPT
                })
            },
        );
        let now = Usage::of(server.child.id());
        println!(
            "{count} clients: {during:?}\n  after them: {now:?}\n  {each} clients: {of_clients:?}"
        );
        after.push(now);
        let Some(before) = before else { continue };
        let own_bytes = during.own_bytes.saturating_sub(before.own_bytes);
        let allowed_bytes = KEPT_BYTES + count as u64 * OWN_BYTES_PER_CLIENT;
        assert!(
            own_bytes <= allowed_bytes,
            "{count} clients take {own_bytes} bytes"
        );
        let shared_bytes = before.shared_bytes + SHARED_BYTES_KEPT;
        assert!(now.shared_bytes <= shared_bytes, "{now:?}");
        let kept_bytes = now.own_bytes.saturating_sub(before.own_bytes);
        // What the allocator keeps of the first many clients serves the next ones.
        let allowed_bytes = match round {
            1 => allowed_bytes,
            _ => KEPT_BYTES,
        };
        assert!(kept_bytes <= allowed_bytes, "{kept_bytes} bytes are kept");
        // Other tests have clients at the same time.
        until("their files in /dev/shm are removed", || {
            files() <= kept_files
        });
    }
    assert_eq!(stat(&mut tcp, "upload_bytes"), "0");
    let mut one = start(0, 1);
    one.says("clients are connected");
    one.leave();
    server.leave();
}

#[test]
fn clients_that_come_and_go_leak_nothing() {
    /// Connections of a round.
    const CONNECTIONS: u64 = 1000;
    /// What the server may keep of each.
    const KEPT_BYTES: u64 = 512;
    if ucx().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ucx");
    let socket = path.to_str().expect("text");
    let (server, mut tcp) = Process::start_server(socket, 200);
    let count = CONNECTIONS.to_string();
    let environment = [("FORERUN_UCX_SOCKET", socket), ("FORERUN_COUNT", &count)];
    let mut clients = Process::start("clients_that_come_and_go", &environment);
    let mut rounds = [(); 4].map(|()| {
        let input = clients.child.stdin.as_mut().expect("a pipe");
        input.write_all(b"go\n").expect("it reads");
        clients.says("all have gone");
        until("all are closed", || {
            stat(&mut tcp, "curr_connections") == "1"
        });
        Usage::of(server.child.id())
    });
    clients.leave();
    println!("{rounds:?}");
    let first = rounds[1];
    let last = rounds.last_mut().expect("four rounds");
    until("their sockets are closed", || {
        *last = Usage::of(server.child.id());
        last.descriptors <= first.descriptors + DESCRIPTORS_KEPT
            && last.segments <= first.segments + SEGMENTS_KEPT
    });
    let kept_bytes = last.own_bytes.saturating_sub(first.own_bytes);
    assert!(
        kept_bytes <= 2 * CONNECTIONS * KEPT_BYTES,
        "{kept_bytes} bytes are kept"
    );
    server.leave();
}

/// The server. It ends when nobody holds the other end of its input.
#[test]
fn a_server_in_another_process() {
    serve_if_asked(CACHE_BYTES);
}

/// Clients that set a value each and get it back. They leave when nobody holds the other end of
/// their input.
#[test]
fn clients_in_another_process() {
    let Some(path) = std::env::var_os("FORERUN_UCX_SOCKET") else {
        return;
    };
    let number_of = |name: &str| -> usize {
        let text = std::env::var(name).expect("a variable");
        text.parse().expect("a number")
    };
    let (first, count) = (number_of("FORERUN_FIRST"), number_of("FORERUN_COUNT"));
    let context = ucx().expect("the parent has it");
    let mut clients: Vec<_> = (0..count)
        .map(|_| UcxClients::new(&context).connect(Path::new(&path)))
        .collect();
    // Each place of a client's segment is used once.
    let value = "v".repeat(VALUE_BYTES);
    for (number, client) in (first..).zip(&mut clients) {
        let set = format!("set k{number} 0 0 {VALUE_BYTES}\r\n{value}\r\n");
        ask(client, &set, "STORED\r\n");
        let answer = format!("VALUE k{number} 0 {VALUE_BYTES}\r\n{value}\r\nEND\r\n");
        for _ in 0..ANSWERS {
            ask(client, &format!("get k{number}\r\n"), &answer);
        }
    }
    for _ in 0..3 {
        for (number, client) in (first..).zip(&mut clients) {
            let value = "v".repeat(number * 37 % 20_000);
            let len = value.len();
            let set = format!("set k{number} 0 0 {len}\r\n{value}\r\n");
            ask(client, &set, "STORED\r\n");
            let answer = format!("VALUE k{number} 0 {len}\r\n{value}\r\nEND\r\n");
            ask(client, &format!("get k{number}\r\n"), &answer);
        }
    }
    println!("clients are connected");
    wait_for_end();
}

/// A round of clients for each line of its input: some leave, some vanish, some within a command.
/// One in ten has a UCX worker of its own.
#[test]
fn clients_that_come_and_go() {
    let Some(path) = std::env::var_os("FORERUN_UCX_SOCKET") else {
        return;
    };
    let Ok(count) = std::env::var("FORERUN_COUNT") else {
        return;
    };
    let count: usize = count.parse().expect("a number");
    let context = ucx().expect("the parent has it");
    let shared = UcxClients::new(&context);
    for line in std::io::stdin().lines() {
        assert_eq!(line.expect("text"), "go");
        for number in 0..count {
            let own = (number % 10 == 0).then(|| UcxClients::new(&context));
            let clients = own.as_ref().unwrap_or(&shared);
            let mut client = clients.connect(Path::new(&path));
            ask(&mut client, "set k 0 0 3\r\nabc\r\n", "STORED\r\n");
            match number % 4 {
                0 => client
                    .write_all(b"set k 0 0 9000\r\na part")
                    .expect("it is sent"),
                1 => client.write_all(b"get k\r\n").expect("it is sent"),
                _ => {}
            }
            if number % 3 == 0 {
                let both = std::net::Shutdown::Both;
                client.control().shutdown(both).expect("a socket");
            }
        }
        println!("all have gone");
    }
}
