//! Clients over UCX that are killed at the worst moment, vanish, lie about their end, or stay
//! after the server has closed their connection.

mod server {
    #[allow(dead_code, reason = "each test uses its part")]
    pub mod test_server;
    pub mod ucx_client;
}

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_ucx::SharedBytes;
use server::test_server::{ask, connect, stat, until};
use server::ucx_client::{Both, UcxClient, UcxClients, again_with, both, ucx};

const TESTS: [&str; 4] = [
    "clients_that_leave_at_once_harm_nobody",
    "clients_that_vanish_do_not_disturb_the_others",
    "a_client_that_lies_about_its_end_is_closed_at_once",
    "clients_that_stay_after_their_connection_is_closed_cost_a_bounded_number_of_sockets",
];

#[test]
fn the_same_over_ucx_tcp() {
    if ucx().is_some() {
        again_with("tcp,self", &TESTS);
    }
}

#[test]
fn the_same_over_named_shared_memory() {
    if ucx().is_some() {
        // Only in shared memory does a client write where the server reads.
        let killed = "a_client_that_is_killed_while_it_writes_stops_the_others_for_seconds_only";
        again_with("posix,self", &[&TESTS[..], &[killed]].concat());
    }
}

/// Whether the server answers soon.
fn is_answered(client: &mut UcxClient) -> bool {
    let Ok(()) = client.write_all(b"mn\r\n") else {
        return false;
    };
    let start = Instant::now();
    let mut answer = [0; 4];
    while start.elapsed() < Duration::from_secs(10) {
        client.progress();
        match client.stream().read(&mut answer) {
            Ok(count) => return answer[..count] == *b"MN\r\n",
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_micros(200));
            }
            Err(_) => return false,
        }
    }
    false
}

#[test]
fn a_client_that_is_killed_while_it_writes_stops_the_others_for_seconds_only() {
    let Some(both) = both(|options| options.threads(1)) else {
        return;
    };
    let mut tcp = connect(&both.server);
    for _ in 0..2 {
        let mut other = both.clients.connect(&both.path);
        ask(&mut other, "mn\r\n", "MN\r\n");
        let program = std::env::current_exe().expect("this executable");
        let killed = Command::new(program)
            .args(["--exact", "--nocapture", "a_client_in_another_process"])
            .env("FORERUN_UCX_SOCKET", &both.path)
            .output()
            .expect("it starts");
        assert_eq!(
            killed.status.signal(),
            Some(libc::SIGSEGV),
            "{}",
            String::from_utf8_lossy(&killed.stdout)
        );
        // The others are served, or disconnected: then they connect again.
        if !is_answered(&mut other) {
            drop(other);
            other = both.clients.connect(&both.path);
            assert!(is_answered(&mut other), "nobody is served any more");
        }
        drop(other);
        until("all are closed", || {
            stat(&mut tcp, "curr_connections") == "1"
        });
    }
}

/// The client that is killed while UCX copies its message to where the server reads it.
#[test]
fn a_client_in_another_process() {
    let Some(path) = std::env::var_os("FORERUN_UCX_SOCKET") else {
        return;
    };
    struct Unreadable(*const u8);
    // SAFETY: nobody reads it and lives.
    unsafe impl Send for Unreadable {}
    // SAFETY: as above.
    unsafe impl Sync for Unreadable {}
    impl AsRef<[u8]> for Unreadable {
        fn as_ref(&self) -> &[u8] {
            // SAFETY: the mapping has this length. It cannot be read, so the process is killed by
            // the first access, which is what the test wants.
            unsafe { std::slice::from_raw_parts(self.0, 8000) }
        }
    }
    let context = ucx().expect("the parent has it");
    let mut client = UcxClients::new(&context).connect(path.as_ref());
    ask(&mut client, "mn\r\n", "MN\r\n");
    // SAFETY: a new anonymous mapping touches no other memory.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            8192,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    let bytes: SharedBytes = Arc::new(Unreadable(page.cast()));
    let sent = client.stream().write_shared(&bytes, 0..8000);
    while sent.is_ok() {
        client.progress();
    }
}

#[test]
fn clients_that_vanish_do_not_disturb_the_others() {
    let Some(both) = both(|options| options.threads(1)) else {
        return;
    };
    let mut steady = both.clients.connect(&both.path);
    for round in 0..40 {
        let mut vanishing = both.clients.connect(&both.path);
        vanishing
            .write_all(b"set k 0 0 20000\r\nonly a part")
            .expect("it is sent");
        // The system closes the sockets of a process that is killed.
        let control = vanishing.control();
        control.shutdown(Shutdown::Both).expect("a socket");
        let value = "v".repeat(round * 300 + 1);
        let request = format!("set own 0 0 {}\r\n{value}\r\n", value.len());
        ask(&mut steady, &request, "STORED\r\n");
        if round % 10 == 9 {
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    // Longer than the server takes to find out whether it still receives.
    std::thread::sleep(Duration::from_secs(3));
    ask(&mut steady, "mn\r\n", "MN\r\n");
    let mut tcp = connect(&both.server);
    until("they are closed", || {
        stat(&mut tcp, "curr_connections") == "2"
    });
    assert_eq!(stat(&mut tcp, "upload_bytes"), "0");
}

#[test]
fn clients_that_leave_at_once_harm_nobody() {
    let Some(both) = both(|options| options.threads(1)) else {
        return;
    };
    let context = ucx().expect("as before");
    let mut steady = both.clients.connect(&both.path);
    for round in 0..60 {
        let clients = UcxClients::new(&context);
        let mut client = clients.connect(&both.path);
        match round % 3 {
            0 => {}
            1 => client.write_all(b"get k\r\n").expect("it is sent"),
            _ => {
                let control = client.control();
                control.shutdown(Shutdown::Both).expect("a socket");
            }
        }
        drop((client, clients));
        ask(&mut steady, "mn\r\n", "MN\r\n");
    }
    let mut tcp = connect(&both.server);
    until("they are closed", || {
        stat(&mut tcp, "curr_connections") == "2"
    });
    ask(&mut steady, "mn\r\n", "MN\r\n");
}

#[test]
fn a_client_that_lies_about_its_end_is_closed_at_once() {
    let Some(both) = both(|options| options) else {
        return;
    };
    let mut tcp = connect(&both.server);
    // After two messages with data.
    for end in [0_u32, 1, 2 + 65, u32::MAX] {
        let mut client = both.clients.connect(&both.path);
        ask(&mut client, "mn\r\n", "MN\r\n");
        ask(&mut client, "mn\r\n", "MN\r\n");
        assert_eq!(stat(&mut tcp, "curr_connections"), "2");
        let begin = Instant::now();
        let control = client.control();
        control.write_all(&end.to_le_bytes()).expect("a socket");
        until("it is closed", || stat(&mut tcp, "curr_connections") == "1");
        assert!(
            begin.elapsed() < Duration::from_secs(4),
            "{end}: {:?}",
            begin.elapsed()
        );
    }
    drop::<Both>(both);
}

#[test]
fn clients_that_stay_after_their_connection_is_closed_cost_a_bounded_number_of_sockets() {
    const CLIENTS: usize = 300;
    let Some(both) = both(|options| options.threads(1)) else {
        return;
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("a list").count();
    let before = descriptors();
    let mut stay = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = both.clients.connect(&both.path);
        client.write_all(b"quit\r\n").expect("it is sent");
        stay.push(client);
    }
    let mut tcp = connect(&both.server);
    until("they are closed", || {
        // All of them share a UCX worker.
        stay[0].progress();
        stat(&mut tcp, "curr_connections") == "1"
    });
    let more = descriptors().saturating_sub(before);
    // Each client has its own socket. UCX over TCP has up to three more.
    let expected = match std::env::var("UCX_TLS") {
        Ok(transports) if transports.contains("tcp") => CLIENTS * 4 + 200,
        _ => CLIENTS + 80,
    };
    assert!(more < expected, "{more} descriptors more");
    for client in &mut stay {
        assert_eq!(client.read(&mut [0]).expect("a proper end"), 0);
    }
    drop(stay);
    until("the sockets are closed", || {
        both.clients.progress();
        descriptors() < before + 50
    });
}
