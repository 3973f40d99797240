//! Processes that a test starts, and what they use.

#![allow(dead_code, reason = "each test uses a part")]

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use forerun_cache::{Cache, CacheOptions};
use forerun_server::Server;

use super::test_server::{TIMEOUT, options, tcp};
use super::ucx_client::ucx_options;

/// The test of each executable that calls [`serve_if_asked`].
const SERVER: &str = "a_server_in_another_process";

/// A child of this test, killed when it is dropped.
pub struct Process {
    pub child: Child,
    pub said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Runs a test of this executable.
    pub fn start(test: &str, environment: &[(&str, &str)]) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this executable"));
        command
            .args(["--exact", "--nocapture", test])
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Process { child, said }
    }

    /// Runs a server that listens over UCX at this socket, and connects to it over TCP.
    pub fn start_server(socket: &str, connection_limit: usize) -> (Process, TcpStream) {
        let limit = connection_limit.to_string();
        let mut server = Process::start(
            SERVER,
            &[("FORERUN_UCX_SERVER", socket), ("FORERUN_LIMIT", &limit)],
        );
        let tcp = TcpStream::connect(server.says("server at")).expect("it accepts");
        tcp.set_read_timeout(Some(TIMEOUT)).expect("a time");
        (server, tcp)
    }

    /// What it says after this word.
    pub fn says(&mut self, word: &str) -> String {
        loop {
            let line = self.said.next().expect("it runs").expect("text");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Lets it end, and waits for that.
    pub fn leave(mut self) {
        drop(self.child.stdin.take());
        let ended = self.child.wait().expect("it ends");
        assert!(ended.success(), "{ended}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a process of [`Process::start_server`]: the server, with a cache of this size. It ends when
/// nobody holds the other end of its input.
pub fn serve_if_asked(cache_bytes: usize) {
    let Some(path) = std::env::var_os("FORERUN_UCX_SERVER") else {
        return;
    };
    let limit = std::env::var("FORERUN_LIMIT").expect("a number");
    let limit = limit.parse().expect("a number");
    let mut options = options().threads(1).connection_limit(limit);
    options.listen.extend(ucx_options(Path::new(&path)).listen);
    let cache = CacheOptions::default().memory_limit_bytes(cache_bytes);
    let cache = Cache::new(cache).expect("a cache");
    let server = Server::start(options, Arc::new(cache)).expect("it starts");
    println!("server at {}", tcp(&server));
    wait_for_end();
}

/// Waits until nobody holds the other end of this process's input.
pub fn wait_for_end() {
    // At the end of a killed parent, too.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let _ = std::io::stdout().flush();
}

/// What a process uses.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Memory of its own.
    pub own_bytes: u64,
    /// Memory that it shares with others: the segments of UCX.
    pub shared_bytes: u64,
    pub descriptors: usize,
    /// Segments of UCX that it maps.
    pub segments: usize,
}

impl Usage {
    pub fn of(process: u32) -> Usage {
        let text = |name: &str| {
            let path = format!("/proc/{process}/{name}");
            std::fs::read_to_string(path).expect("Linux tells")
        };
        let status = text("status");
        let bytes_of = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.expect("a line").trim().trim_end_matches(" kB");
            kib.parse::<u64>().expect("a number") << 10
        };
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd"));
        let maps = text("maps");
        Usage {
            own_bytes: bytes_of("RssAnon:"),
            shared_bytes: bytes_of("RssShmem:"),
            descriptors: descriptors.expect("Linux tells").count(),
            segments: maps.lines().filter(|line| line.contains("ucx_shm")).count(),
        }
    }
}
