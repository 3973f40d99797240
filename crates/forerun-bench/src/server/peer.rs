//! A server as a process of its own, pinned, filled, and ended with its owner.

use super::requests::{Protocol, put_set};
use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to start.
const START: Duration = Duration::from_secs(10);
/// Items that are stored by one write.
const FILL_BATCH: usize = 128;

/// A server that runs.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
    child: Child,
}

/// What both servers get.
pub(super) struct Setting {
    pub(super) memory_bytes: usize,
    pub(super) threads: usize,
    pub(super) connections: usize,
    /// Cores of the server; empty for any.
    pub(super) cores: Vec<usize>,
}

impl Peer {
    /// Starts `forerun serve`, which is `binary`.
    pub(super) fn forerun(binary: &Path, setting: &Setting) -> Result<Peer> {
        let mut command = Command::new(binary);
        command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(["--threads", &setting.threads.to_string()])
            .args(["--memory-limit", &format!("{}B", setting.memory_bytes)])
            .args(["--conn-limit", &setting.connections.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .stdin(Stdio::null());
        let mut child = spawn_on(command, &setting.cores)
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let address = line.trim().strip_prefix("listening on ");
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            end(&mut child);
            bail!("{} did not serve: it said {line:?}", binary.display());
        };
        Ok(Peer {
            name: "forerun",
            address,
            child,
        })
    }

    /// Starts memcached; `None` where there is none.
    pub(super) fn memcached(binary: &Path, setting: &Setting) -> Result<Option<Peer>> {
        // memcached takes a port, and says none: one that was free a moment ago.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = Command::new(binary);
        command
            .args([
                "-l",
                "127.0.0.1",
                "-U",
                "0",
                "-p",
                &address.port().to_string(),
            ])
            .args(["-t", &setting.threads.to_string()])
            .args(["-m", &(setting.memory_bytes >> 20).to_string()])
            .args(["-c", &(setting.connections + 64).to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .stdin(Stdio::null());
        if rustix::process::getuid().is_root() {
            command.args(["-u", "root"]);
        }
        let child = match spawn_on(command, &setting.cores) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            spawned => spawned.with_context(|| format!("cannot start {}", binary.display()))?,
        };
        let mut peer = Peer {
            name: "memcached",
            address,
            child,
        };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = peer.child.try_wait()? {
                bail!("{} ended at once: {status}", binary.display());
            }
            ensure!(
                start.elapsed() < START,
                "memcached does not answer at {address}"
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(peer))
    }

    /// What it calls itself.
    pub(super) fn version(&self) -> Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.write_all(b"version\r\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line.trim().replace("VERSION", self.name))
    }

    /// Empties it and stores items `0..items`.
    pub(super) fn fill(
        &self,
        items: usize,
        value_bytes: usize,
        mut each: impl FnMut(u64),
    ) -> Result<()> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(START))?;
        let mut reply = [0; 8 * FILL_BATCH];
        stream.write_all(b"flush_all\r\n")?;
        stream.read_exact(&mut reply[..4])?;
        // What was flushed is gone by the second.
        thread::sleep(Duration::from_millis(1100));
        let mut bytes = Vec::new();
        for first in (0..items).step_by(FILL_BATCH) {
            let batch = first..items.min(first + FILL_BATCH);
            bytes.clear();
            for item in batch.clone() {
                put_set(&mut bytes, Protocol::Classic, item as u32, value_bytes);
            }
            stream.write_all(&bytes)?;
            let reply = &mut reply[..8 * batch.len()];
            stream.read_exact(reply)?;
            let stored = reply.chunks(8).all(|reply| reply == b"STORED\r\n");
            ensure!(
                stored,
                "{} does not store: {}",
                self.name,
                reply.escape_ascii()
            );
            each(batch.len() as u64);
        }
        Ok(())
    }

    /// Seconds of processor time that it has used.
    pub(super) fn cpu_s(&self) -> f64 {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // Fields 14 and 15 are user and system time; the second, a name in brackets, may hold blanks.
        let rest = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let mut fields = rest
            .split(' ')
            .skip(11)
            .map_while(|field| field.parse::<u64>().ok());
        let ticks = fields.next().unwrap_or(0) + fields.next().unwrap_or(0);
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    // It may have ended by itself; then there is nothing to do.
    let _ = child.kill();
    let _ = child.wait();
}

/// Starts a process that may run on these cores only: it inherits them from the thread that starts it.
fn spawn_on(mut command: Command, cores: &[usize]) -> std::io::Result<Child> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    let pinned = !cores.is_empty();
    let spawn = move || {
        if pinned {
            sched_setaffinity(None, &set)?;
        }
        command.spawn()
    };
    let program = OsString::from("the thread that starts a server");
    thread::spawn(spawn).join().unwrap_or_else(|_| {
        Err(std::io::Error::other(
            program.to_string_lossy().into_owned(),
        ))
    })
}
