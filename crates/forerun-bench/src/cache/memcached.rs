//! Runs a private memcached on a unix socket. It gets the same requests as our cache.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const START: Duration = Duration::from_secs(10);

/// A running server, and a connection to it.
pub(super) struct Memcached {
    child: Child,
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    /// The directory of the socket.
    _directory: tempfile::TempDir,
}

impl Memcached {
    /// Starts a server with this memory limit; `None` if there is no memcached.
    pub(super) fn start(binary: &Path, memory_bytes: usize) -> Result<Option<Memcached>> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("socket");
        let mut command = Command::new(binary);
        command
            .args(["-t", "1", "-m", &(memory_bytes >> 20).to_string(), "-s"])
            .arg(&socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .stdin(Stdio::null());
        if rustix::process::getuid().is_root() {
            command.args(["-u", "root"]);
        }
        let mut child = match command.spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            spawned => spawned.with_context(|| format!("cannot start {}", binary.display()))?,
        };
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) if start.elapsed() >= START => {
                    let _ = child.kill();
                    return Err(error)
                        .with_context(|| format!("{} does not answer", binary.display()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        Ok(Some(Memcached {
            child,
            reader: BufReader::with_capacity(1 << 20, stream.try_clone()?),
            writer: stream,
            _directory: directory,
        }))
    }

    /// Requests keys, and returns by position which of them were found.
    pub(super) fn get(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>> {
        let mut request = b"get".to_vec();
        for key in keys {
            request.push(b' ');
            request.extend(key);
        }
        request.extend(b"\r\n");
        self.writer.write_all(&request)?;
        let mut found = vec![false; keys.len()];
        let (mut line, mut value, mut next) = (Vec::new(), Vec::new(), 0);
        loop {
            line.clear();
            self.reader.read_until(b'\n', &mut line)?;
            if line == b"END\r\n" {
                return Ok(found);
            }
            let mut words = line.trim_ascii_end().split(|&byte| byte == b' ');
            let (head, key) = (words.next(), words.next());
            let len = words
                .nth(1)
                .and_then(|len| std::str::from_utf8(len).ok()?.parse::<usize>().ok());
            let (Some(b"VALUE"), Some(key), Some(len)) = (head, key, len) else {
                bail!("memcached answers {}", line.escape_ascii());
            };
            // Hits come in the order of their keys.
            while keys.get(next).is_some_and(|wanted| wanted != key) {
                next += 1;
            }
            ensure!(
                next < keys.len(),
                "memcached returned a key that was not requested"
            );
            found[next] = true;
            next += 1;
            value.resize(len + 2, 0);
            self.reader.read_exact(&mut value)?;
        }
    }

    /// Stores an item without waiting for an answer, so it may fail.
    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut request = b"set ".to_vec();
        request.extend(key);
        request.extend(format!(" 0 0 {} noreply\r\n", value.len()).bytes());
        request.extend(value);
        request.extend(b"\r\n");
        Ok(self.writer.write_all(&request)?)
    }

    /// Bytes of the process's memory that are resident in RAM.
    pub(super) fn resident_bytes(&self) -> Option<u64> {
        crate::process_usage::resident_bytes_of(self.child.id())
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
