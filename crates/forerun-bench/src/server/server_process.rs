//! A server in its own process, on a free port and its own cores. It ends when its handle is
//! dropped, or when a signal ends this process.

use super::form::Protocol;
use super::link::{LinkKind, Place, Transport};
use super::program::{Addresses, Program, Share};
use anyhow::{Context, Result, anyhow, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A running server. Dropping it kills the process and waits for it.
pub struct Process {
    child: Child,
    addresses: Addresses,
    /// The Unix socket for UCX, if it listens there, in a directory of its own.
    ucx: Option<(PathBuf, TempDir)>,
    name: String,
    /// Its standard error.
    said: File,
}

impl Process {
    /// Starts a server on a free port of the loopback interface and waits until it accepts
    /// connections.
    ///
    /// # Errors
    /// A program that cannot be started, that ends at once (with its output), or that does not
    /// listen.
    pub fn start(program: &Program, share: &Share) -> Result<Process> {
        Process::start_for(program, share, &[LinkKind::default()])
    }

    /// Like [`start`](Process::start). Forerun's server also listens over UCX and for RESP if some
    /// of these links need it.
    ///
    /// # Errors
    /// As [`start`](Process::start).
    pub fn start_for(program: &Program, share: &Share, links: &[LinkKind]) -> Result<Process> {
        let over_ucx = links.iter().any(|link| link.transport == Transport::Ucx);
        let ucx = if over_ucx {
            let directory = tempfile::tempdir().context("cannot make a directory")?;
            Some((directory.path().join("ucx"), directory))
        } else {
            None
        };
        let free = || Ok::<_, anyhow::Error>(SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)));
        let with_resp = links.iter().any(|link| link.protocol == Protocol::Resp);
        let addresses = Addresses {
            memcached: free()?,
            resp: if with_resp { Some(free()?) } else { None },
        };
        // A file and not a pipe: no thread reads it during the run, and a full pipe would block the
        // server.
        let said = tempfile::tempfile().context("cannot make a temporary file")?;
        let mut command = program.command(share, &addresses);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said.try_clone()?);
        if let Some((path, _)) = &ucx {
            let listen = format!("unix:{}", path.display());
            command.args(["--transport", "tcp,ucx", "--ucx-listen", &listen]);
        }
        let child = spawn_on(command, &share.cores)
            .with_context(|| format!("cannot start {}", program.path.display()))?;
        running()?.push(child.id());
        let mut process = Process {
            child,
            addresses,
            ucx,
            name: program.name.clone(),
            said,
        };
        process.await_listening()?;
        Ok(process)
    }

    /// The address where it listens for memcached's protocol.
    pub fn address(&self) -> SocketAddr {
        self.addresses.memcached
    }

    /// Where it accepts connections of this kind.
    ///
    /// # Errors
    /// It was not started for it.
    pub fn place(&self, link: LinkKind) -> Result<Place> {
        match (link.protocol, link.transport, &self.ucx) {
            (Protocol::Memcached, Transport::Tcp, _) => Ok(Place::Tcp(self.address())),
            (Protocol::Memcached, Transport::Ucx, Some((path, _))) => Ok(Place::Ucx(path.clone())),
            (Protocol::Resp, Transport::Tcp, _) => {
                let address = self.addresses.resp;
                let address = address.with_context(|| format!("{} has no RESP", self.name))?;
                Ok(Place::Tcp(address))
            }
            (_, Transport::Ucx, _) => bail!("{} does not listen over UCX", self.name),
        }
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// How it ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let mut said = Vec::new();
                // Its output only adds to the exit status.
                let _ = self.said.rewind();
                let _ = (&self.said).take(4096).read_to_end(&mut said);
                let said = String::from_utf8_lossy(&said);
                Err(anyhow!("{} ended: {status}: {}", self.name, said.trim()))
            }
        }
    }

    /// How long its threads have run on cores, if the system reports it.
    pub fn busy(&self) -> Option<Duration> {
        self.schedstat(0, |_| true)
    }

    /// How long the threads that serve connections were ready to run but had no core, if the system
    /// reports it. Both servers call these threads workers.
    pub fn workers_wait(&self) -> Option<Duration> {
        self.schedstat(1, |name| name.contains("worker"))
    }

    /// A field of the threads' `schedstat`, in nanoseconds, summed over threads with certain names.
    fn schedstat(&self, field: usize, counts: impl Fn(&str) -> bool) -> Option<Duration> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).ok()?;
        let mut sum_ns = 0;
        for thread in threads.flatten() {
            let read = |file| std::fs::read_to_string(thread.path().join(file));
            // A thread that has just ended has no files any more.
            if let (Ok(name), Ok(text)) = (read("comm"), read("schedstat"))
                && counts(&name)
            {
                let number: Option<u64> = text
                    .split_whitespace()
                    .nth(field)
                    .and_then(|ns| ns.parse().ok());
                sum_ns += number.unwrap_or(0);
            }
        }
        Some(Duration::from_nanos(sum_ns))
    }

    /// Asks it to copy its cache to disk; `serve --snapshot` does that on SIGUSR2.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn ask_for_snapshot(&self) -> Result<()> {
        let id = i32::try_from(self.id()).ok();
        let id = id.and_then(rustix::process::Pid::from_raw);
        let id = id.context("it has no process number")?;
        rustix::process::kill_process(id, rustix::process::Signal::USR2)
            .context("cannot send SIGUSR2")
    }

    /// Bytes of its memory that are resident in RAM, if the system reports them.
    pub fn resident_bytes(&self) -> Option<u64> {
        crate::process_usage::resident_bytes_of(self.id())
    }

    /// The part of them in segments of shared memory, which it may share with its clients.
    pub fn shared_bytes(&self) -> Option<u64> {
        crate::process_usage::shared_bytes_of(self.id())
    }

    fn await_listening(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            self.check()?;
            // The socket's file is there before connections are accepted.
            let accepts = |path: &PathBuf| UnixStream::connect(path).is_ok();
            let has_ucx = self.ucx.as_ref().is_none_or(|(path, _)| accepts(path));
            // The last address that a server opens, if it has two.
            let address = self.addresses.resp.unwrap_or(self.addresses.memcached);
            if has_ucx && TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return Ok(());
            }
            if start.elapsed() > START_TIMEOUT {
                bail!("{} does not listen on {address}", self.name);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that has already ended cannot be killed, but is still waited for.
        let _ = self.child.kill();
        if let Ok(mut running) = running() {
            running.retain(|id| *id != self.child.id());
        }
        let _ = self.child.wait();
    }
}

/// The running servers. From the first call on, a signal that ends this process ends them first.
///
/// # Errors
/// Signals cannot be handled.
fn running() -> Result<MutexGuard<'static, Vec<u32>>> {
    static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    static TAKEN: OnceLock<io::Result<()>> = OnceLock::new();
    let taken = TAKEN.get_or_init(|| {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    // The lock is held to the end, so that no more servers start.
                    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
                    for id in &*running {
                        kill(*id);
                    }
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            })?;
        Ok(())
    });
    match taken {
        Ok(()) => Ok(RUNNING.lock().unwrap_or_else(PoisonError::into_inner)),
        Err(error) => Err(anyhow!("cannot take signals: {error}")),
    }
}

/// Ends a process that has not been waited for yet, so that its number is still its own.
fn kill(id: u32) {
    let id = i32::try_from(id)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let Some(id) = id {
        let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
    }
}

/// A port of the loopback interface that is free now.
///
/// # Errors
/// None is free.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

/// Starts a process on `cores`. It inherits the cores of the thread that starts it, so this uses a
/// separate thread.
pub(super) fn spawn_on(mut command: Command, cores: &[usize]) -> Result<Child> {
    std::thread::scope(|scope| {
        let spawned = scope.spawn(move || {
            pin(cores);
            command.spawn()
        });
        let child = spawned
            .join()
            .map_err(|_| anyhow!("the starting thread panicked"))?;
        Ok(child?)
    })
}

/// Restricts the current thread to `cores`, if any are given and the system allows it.
pub fn pin(cores: &[usize]) {
    #[cfg(target_os = "linux")]
    if !cores.is_empty() {
        let mut set = rustix::thread::CpuSet::new();
        for core in cores {
            set.set(*core);
        }
        // If this is refused, the thread runs anywhere.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cores;
}

/// The machine's cores, divided so that server and client do not share any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The servers' cores.
    pub server: Vec<usize>,
    /// The clients' cores, one each.
    pub client: Vec<usize>,
}

impl Split {
    /// The first cores for the server's threads and the rest for clients; nothing is pinned if
    /// there are too few. Call this on a thread that is not pinned.
    pub fn of(threads: usize) -> Split {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        Split::among(cores.into_iter().map(|core| core.id).collect(), threads)
    }

    fn among(mut cores: Vec<usize>, threads: usize) -> Split {
        if cores.len() <= threads {
            return Split {
                server: Vec::new(),
                client: Vec::new(),
            };
        }
        let client = cores.split_off(threads);
        Split {
            server: cores,
            client,
        }
    }

    /// Whether server and client have separate cores.
    pub fn is_apart(&self) -> bool {
        !self.client.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::program::OptionStyle;
    use super::*;

    fn share() -> Share {
        Share {
            threads: 1,
            memory_mib: 64,
            connections: 16,
            cores: Vec::new(),
        }
    }

    fn shell(script: &str) -> Program {
        Program {
            name: "shell".to_owned(),
            path: "/bin/sh".into(),
            args: ["-c", script, "sh"].map(Into::into).to_vec(),
            options: OptionStyle::Memcached,
        }
    }

    #[test]
    fn server_and_client_have_cores_of_their_own_or_none() {
        let split = Split::among(vec![0, 1, 2, 3], 3);
        assert_eq!((split.server, split.client), (vec![0, 1, 2], vec![3]));
        assert!(!Split::among(vec![0], 1).is_apart());
        assert!(!Split::among(vec![], 1).is_apart());
    }

    #[test]
    fn a_server_that_exits_at_once_is_reported_with_its_output() {
        let program = shell("echo no such option >&2; exit 7");
        let error = Process::start(&program, &share()).err().unwrap();
        let text = format!("{error:#}");
        assert!(
            text.contains("no such option") && text.contains('7'),
            "{text}"
        );
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let program = Program {
            path: "/no/such/program".into(),
            ..shell("")
        };
        let error = Process::start(&program, &share()).err().unwrap();
        assert!(
            format!("{error:#}").contains("/no/such/program"),
            "{error:#}"
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_dropped_server_is_gone() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec sleep 600"]);
        let child = spawn_on(command, &[]).unwrap();
        let process = Process {
            child,
            addresses: Addresses {
                memcached: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
                resp: None,
            },
            ucx: None,
            name: "sleep".to_owned(),
            said: tempfile::tempfile().unwrap(),
        };
        let path = format!("/proc/{}", process.id());
        assert!(std::fs::exists(&path).unwrap());
        assert!(process.busy().is_some() && process.workers_wait() == Some(Duration::ZERO));
        drop(process);
        assert!(!std::fs::exists(&path).unwrap());
    }
}
