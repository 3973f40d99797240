//! What clients over UCX cost a server: bytes that wait, and a client's share of a worker.

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    pub mod test_server;
    pub mod ucx_client;
}

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use server::test_server::{TIMEOUT, ask, connect, expect, stat, until};
use server::ucx_client::{Both, UcxClient, again_with, both, ucx};

/// The limit of all buffers, and the bytes from which on slow readers are not read.
const LIMIT_BYTES: usize = 1 << 20;
const CROWDED_BYTES: usize = LIMIT_BYTES / 5 * 4;

/// The bytes of an incomplete line, which the server keeps.
const LINE_BYTES: usize = 15_000;

/// After this time, the server closes clients whose lines are incomplete.
const STALL: Duration = Duration::from_secs(5);

const TESTS: [&str; 1] = ["what_paused_clients_send_counts_as_soon_as_it_arrives"];

#[test]
fn the_same_over_ucx_tcp() {
    if ucx().is_some() {
        again_with("tcp,self", &TESTS);
    }
}

fn number(tcp: &mut TcpStream, name: &str) -> usize {
    stat(tcp, name).parse().expect("a number")
}

/// The memory of all connections' buffers.
fn held_bytes(tcp: &mut TcpStream) -> usize {
    number(tcp, "read_buf_bytes") + number(tcp, "response_obj_bytes")
}

/// A client whose answers have had to wait for it once.
fn slow_reader(both: &Both, tcp: &mut TcpStream) -> UcxClient {
    let value = "v".repeat(10_000);
    let mut client = both.clients.connect(&both.path);
    let request = format!("set k 0 0 10000\r\n{value}\r\n");
    ask(&mut client, &request, "STORED\r\n");
    let requests = b"get k\r\n".repeat(100);
    client.write_all(&requests).expect("they are sent");
    until("its answers wait", || number(tcp, "response_obj_bytes") > 0);
    for _ in 0..100 {
        expect(
            &mut client,
            &format!("VALUE k 0 10000\r\n{value}\r\nEND\r\n"),
        );
    }
    until("all is sent", || number(tcp, "response_obj_bytes") == 0);
    client
}

#[test]
fn what_paused_clients_send_counts_as_soon_as_it_arrives() {
    if ucx().is_none() {
        return;
    }
    // On a busy machine, the server may close the other clients before the test is over.
    let is_done = (0..10).any(|_| paused_clients_count());
    assert!(is_done, "ten attempts have taken too long");
}

/// Returns false if it took too long.
fn paused_clients_count() -> bool {
    let limit = |options: forerun_server::ServerOptions| {
        let options = options.threads(1).connection_limit(200);
        options.buffer_limit_bytes(Some(LIMIT_BYTES))
    };
    let Some(both) = both(limit) else {
        return false;
    };
    let mut tcp = connect(&both.server);
    let mut slow = [(); 2].map(|()| slow_reader(&both, &mut tcp));
    let begin = Instant::now();
    let is_late = || begin.elapsed() + Duration::from_secs(1) > STALL;
    let count = CROWDED_BYTES.div_ceil(LINE_BYTES);
    let lines: Vec<TcpStream> = (0..count)
        .map(|_| {
            let mut stream = connect(&both.server);
            let line = format!("get {}", "k ".repeat(LINE_BYTES / 2 - 2));
            stream.write_all(line.as_bytes()).expect("it is sent");
            stream
        })
        .collect();
    while held_bytes(&mut tcp) < CROWDED_BYTES {
        if is_late() {
            return false;
        }
    }
    let crowd_bytes = held_bytes(&mut tcp);
    let paused = number(&mut tcp, "read_buf_pauses");
    // The first message pauses the client. The others arrive while it is not read.
    for client in &mut slow {
        client
            .write_all(b"set k 0 0 500000\r\n")
            .expect("it is sent");
    }
    while number(&mut tcp, "read_buf_pauses") < paused + slow.len() {
        if is_late() {
            return false;
        }
        slow.iter().for_each(|client| _ = client.progress());
    }
    for client in &mut slow {
        client.write_all(&[b'x'; 48_000]).expect("it is sent");
    }
    let expected_bytes = crowd_bytes + slow.len() * 48_000;
    loop {
        let held_bytes = held_bytes(&mut tcp);
        if held_bytes >= expected_bytes {
            assert!(held_bytes < LIMIT_BYTES, "{held_bytes}");
            break;
        }
        if is_late() {
            let is_over = number(&mut tcp, "curr_connections") < 1 + count + slow.len();
            assert!(is_over, "{held_bytes} bytes count, not {expected_bytes}");
            return false;
        }
        slow.iter().for_each(|client| _ = client.progress());
    }
    // At the limit, a client that sends more is closed.
    let closed = number(&mut tcp, "read_buf_oom");
    for client in &mut slow {
        while sends_on(client) {}
    }
    while number(&mut tcp, "read_buf_oom") == closed {
        if is_late() {
            return false;
        }
        slow.iter().for_each(|client| _ = client.progress());
    }
    assert!(held_bytes(&mut tcp) <= LIMIT_BYTES);
    drop((lines, slow));
    until("all memory is given back", || held_bytes(&mut tcp) == 0);
    assert!(begin.elapsed() < TIMEOUT);
    true
}

/// Sends a message if the client has a credit for it.
fn sends_on(client: &mut UcxClient) -> bool {
    client.progress();
    match client.stream().write(&[b'x'; 8192]) {
        Ok(count) => count > 0,
        Err(error) => {
            let is_closed = matches!(
                error.kind(),
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
            );
            assert!(
                is_closed || error.kind() == ErrorKind::WouldBlock,
                "{error}"
            );
            false
        }
    }
}
