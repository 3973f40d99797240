//! Starts memcached for comparisons, if it is on the PATH.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The version that the answers are compared with.
pub const VERSION: &str = "1.6.18";

/// A memcached that is killed when the test ends.
pub struct Memcached(Child);

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts memcached. Returns `None` if there is none of the right version: it then prints that the
/// test is skipped.
pub fn start(socket: &Path) -> Option<Memcached> {
    let found = Command::new("memcached").arg("-V").output();
    let found = found.map_or_else(
        |_| "there is none".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    if !found.ends_with(&format!(" {VERSION}")) {
        // The test harness hides the output of `eprintln!` in a passing test.
        let mut stderr = std::io::stderr();
        let _ = writeln!(
            stderr,
            "skipped: needs memcached {VERSION} on the PATH: {found}"
        );
        return None;
    }
    let child = Command::new("memcached")
        .args(["-u", "root", "-t", "1", "-s"])
        .arg(socket)
        .stdin(Stdio::null())
        .spawn()
        .ok()?;
    Some(Memcached(child))
}

pub fn connect(socket: &Path) -> UnixStream {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(error) => assert!(
                Instant::now() < deadline,
                "memcached does not listen: {error}"
            ),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends `bytes`, and reads up to the answer to a `version` command after it or to the end of the
/// connection.
pub fn ask(stream: &mut UnixStream, bytes: &[u8]) -> Vec<u8> {
    let end = format!("VERSION {VERSION}\r\n");
    // If memcached has closed the connection, there is no answer.
    let _ = stream.write_all(&[bytes, b"version\r\n"].concat());
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !answer.ends_with(end.as_bytes()) {
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => answer.extend_from_slice(&buffer[..count]),
            _ => return answer,
        }
    }
    answer.truncate(answer.len() - end.len());
    answer
}
