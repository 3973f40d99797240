//! Cache servers as processes: `forerun serve`, and memcached if it is on the PATH.

#![allow(dead_code, reason = "each test uses a part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::testing::Workspace;

/// A server that is killed when the test ends.
pub struct CacheServer {
    child: Child,
    pub address: String,
}

impl Drop for CacheServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl CacheServer {
    /// Starts `forerun serve` at a free port.
    pub fn forerun(workspace: &Workspace, args: &[&str]) -> CacheServer {
        CacheServer::forerun_at(workspace, "127.0.0.1:0", args)
    }

    /// Starts `forerun serve` at this address.
    pub fn forerun_at(workspace: &Workspace, address: &str, args: &[&str]) -> CacheServer {
        let (child, address) = workspace.serve(address, args, Stdio::null());
        CacheServer { child, address }
    }

    /// Starts memcached at a free port. `None` if there is none.
    pub fn memcached() -> Option<CacheServer> {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let child = Command::new("memcached")
            .args(["-u", "root", "-t", "1", "-l", "127.0.0.1", "-p"])
            .arg(port.to_string())
            .stdin(Stdio::null())
            .spawn()
            .ok()?;
        let server = CacheServer {
            child,
            address: format!("127.0.0.1:{port}"),
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(&server.address).is_err() {
            assert!(Instant::now() < deadline, "memcached does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(server)
    }

    /// Kills it at once (SIGKILL).
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Lets it hang (SIGSTOP) until it is killed.
    pub fn pause(&self) {
        let process = Pid::from_child(&self.child);
        kill_process(process, Signal::STOP).expect("it runs");
        // Its threads run on until the signal has reached each of them.
        waitid(WaitId::Pid(process), WaitIdOptions::STOPPED).expect("it stops");
    }

    pub fn connect(&self) -> CacheClient {
        let stream = TcpStream::connect(&self.address).expect("it accepts");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a time");
        CacheClient(BufReader::new(stream))
    }
}

/// A connection to a server.
pub struct CacheClient(BufReader<TcpStream>);

impl CacheClient {
    pub fn send(&mut self, request: &[u8]) {
        self.0.get_mut().write_all(request).expect("it is sent");
    }

    /// The next line, without its end.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).expect("an answer");
        let line = String::from_utf8(line).expect("a line of text");
        line.trim_end().to_owned()
    }

    /// Sends a request and returns the first line of its answer.
    pub fn ask(&mut self, request: &[u8]) -> String {
        self.send(request);
        self.line()
    }

    /// The item of a key by `mg key flags`: the flags of the answer, and the value.
    pub fn item(&mut self, key: &str, flags: &str) -> Option<(String, Vec<u8>)> {
        let line = self.ask(format!("mg {key} {flags}\r\n").as_bytes());
        let Some(rest) = line.strip_prefix("VA ") else {
            assert_eq!(line, "EN");
            return None;
        };
        let (bytes, flags) = rest.split_once(' ').unwrap_or((rest, ""));
        let mut value = vec![0; bytes.parse::<usize>().expect("a length") + 2];
        self.0.read_exact(&mut value).expect("a value");
        value.truncate(value.len() - 2);
        Some((flags.to_owned(), value))
    }
}
