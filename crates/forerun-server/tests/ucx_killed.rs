//! Clients over UCX that are killed one after the other while answers wait for them: the server
//! gives back what they cost, as it does for clients over TCP.

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    pub mod test_server;
    pub mod ucx_client;
    pub mod ucx_process;
}

use std::io::Write;
use std::path::Path;

use server::test_server::{ask, stat, until};
use server::ucx_client::{UcxClients, again_with, ucx};
use server::ucx_process::{Process, Usage, serve_if_asked, wait_for_end};

const CLIENTS: usize = 50;
const VALUE_BYTES: usize = 8_000;

/// What the server may keep after all of them: memory, and a UCX worker that finds out whether its
/// own still receives.
const KEPT_BYTES: u64 = 6 << 20;
const DESCRIPTORS_KEPT: usize = 12;
const SEGMENTS_KEPT: usize = 4;

const TESTS: [&str; 1] = ["clients_that_are_killed_with_full_windows_cost_what_tcp_clients_do"];

#[test]
fn the_same_over_ucx_tcp() {
    if ucx().is_some() {
        again_with("tcp,self", &TESTS);
    }
}

#[test]
fn clients_that_are_killed_with_full_windows_cost_what_tcp_clients_do() {
    if ucx().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ucx");
    let socket = path.to_str().expect("text");
    let (server, mut tcp) = Process::start_server(socket, 10);
    let value = "v".repeat(VALUE_BYTES);
    ask(
        &mut tcp,
        &format!("set k 0 0 {VALUE_BYTES}\r\n{value}\r\n"),
        "STORED\r\n",
    );
    let mut first: Option<Usage> = None;
    let mut last = Usage::of(server.child.id());
    for _ in 0..CLIENTS {
        let environment = [("FORERUN_UCX_SOCKET", socket)];
        let mut client = Process::start("a_client_that_takes_nothing", &environment);
        client.says("its answers wait");
        // Killed.
        drop(client);
        until("it is closed", || stat(&mut tcp, "curr_connections") == "1");
        // After the first has gone, the server may create what it keeps.
        first.get_or_insert_with(|| Usage::of(server.child.id()));
    }
    let first = first.expect("there were clients");
    until("what they cost is given back", || {
        last = Usage::of(server.child.id());
        last.descriptors <= first.descriptors + DESCRIPTORS_KEPT
            && last.segments <= first.segments + SEGMENTS_KEPT
    });
    println!("{first:?}\n{last:?}");
    assert!(last.own_bytes <= first.own_bytes + KEPT_BYTES, "{last:?}");
    assert!(
        last.shared_bytes <= first.shared_bytes + KEPT_BYTES,
        "{last:?}"
    );
    ask(&mut tcp, "mn\r\n", "MN\r\n");
    server.leave();
}

/// The server. It ends when nobody holds the other end of its input.
#[test]
fn a_server_in_another_process() {
    serve_if_asked(16 << 20);
}

/// A client that asks for as much as it may, takes nothing, and waits to be killed.
#[test]
fn a_client_that_takes_nothing() {
    let Some(path) = std::env::var_os("FORERUN_UCX_SOCKET") else {
        return;
    };
    let context = ucx().expect("the parent has it");
    let mut client = UcxClients::new(&context).connect(Path::new(&path));
    let asked = client.stream().write(&b"get k\r\n".repeat(200));
    assert!(asked.expect("it is new") > 0);
    let mut waits = false;
    while !waits {
        client.progress();
        waits = client.stream().buffered_bytes().0 > 0;
    }
    println!("its answers wait");
    wait_for_end();
}
