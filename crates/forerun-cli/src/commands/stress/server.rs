//! A server under clients of every kind: each knows what its own keys hold, and the server's memory is watched.
//!
//! ```text
//!   each thread is a client, again and again with a new connection, each time of a kind drawn at random:
//!     busy         sets, gets, batches, deletions, increments; every answer is checked
//!     slow         asks for much and reads it in small pieces, with pauses
//!     half closed  asks, closes its sending half, and reads all answers
//!     killed       goes away in the middle of a command
//!     wrong        says what is no command, and must be told so
//! ```
//!
//! A value carries its key and its version. The cache may forget; it may not give another value.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::exit::CheckFailed;
use crate::output::{self, Out};

/// Keys of each client.
const KEYS: usize = 64;
/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a client's thread needs of stack.
const STACK_BYTES: usize = 256 << 10;

/// How the run is to be.
pub struct Plan {
    pub seconds: u64,
    pub seed: u64,
    pub connections: u32,
    pub memory_mib: u64,
}

/// Runs it.
pub fn run(plan: &Plan) -> anyhow::Result<()> {
    let mut server = Server::start(plan)?;
    let shared = Shared::default();
    let until = Instant::now() + Duration::from_secs(plan.seconds);
    let address = server.address;
    let most_bytes = thread::scope(|scope| -> anyhow::Result<u64> {
        for number in 0..plan.connections {
            let shared = &shared;
            let seed = plan.seed ^ (u64::from(number) << 32);
            let live = move || Client::new(number, address, seed, shared).live(until);
            thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, live)
                .inspect_err(|_| shared.stop())
                .context("cannot start a client's thread")?;
        }
        let mut most_bytes = 0;
        while Instant::now() < until && !shared.is_over() {
            thread::sleep(Duration::from_millis(200));
            most_bytes = most_bytes.max(server.resident_bytes());
            if let Some(status) = server.child.try_wait()? {
                shared.fail(format!("the server ended: {status}"));
            }
        }
        shared.stop();
        Ok(most_bytes)
    })?;
    if let Some(fault) = shared.fault() {
        let seed = plan.seed;
        return Err(CheckFailed(format!("{fault} (seed {seed})")).into());
    }
    let limit_bytes = plan.memory_mib << 20;
    let share = most_bytes as f64 / limit_bytes as f64;
    let mut out = Out::new();
    out.line(format_args!(
        "server: seed {}, {} clients, {} s: {} answers checked, {} connections, {} of them slow, {} half closed, {} killed, {} wrong",
        plan.seed,
        plan.connections,
        plan.seconds,
        output::count(shared.answers.load(RELAXED)),
        output::count(shared.connections.load(RELAXED)),
        output::count(shared.kinds[1].load(RELAXED)),
        output::count(shared.kinds[2].load(RELAXED)),
        output::count(shared.kinds[3].load(RELAXED)),
        output::count(shared.kinds[4].load(RELAXED)),
    ))?;
    out.line(format_args!(
        "memory: at most {} MiB in RAM, {:.1}% of the limit of {} MiB",
        most_bytes >> 20,
        share * 100.0,
        plan.memory_mib
    ))?;
    out.finish()?;
    server.end()?;
    if share > 1.05 {
        let told = format!("the server used {:.1}% of its memory limit", share * 100.0);
        return Err(CheckFailed(told).into());
    }
    Ok(())
}

/// The server's process, killed with its owner.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(plan: &Plan) -> anyhow::Result<Server> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(["--memory-limit", &plan.memory_mib.to_string()])
            .args(["--conn-limit", &(plan.connections * 2 + 64).to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start the server")?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let address = line.trim().strip_prefix("listening on ");
        match address.and_then(|address| address.parse().ok()) {
            Some(address) => Ok(Server { child, address }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                bail!("the server said {line:?}")
            }
        }
    }

    fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.child.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let pages: u64 = text
            .split(' ')
            .nth(1)
            .and_then(|field| field.parse().ok())
            .unwrap_or(0);
        pages * rustix::param::page_size() as u64
    }

    /// Ends it as an operator does.
    fn end(&mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("the server has no process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(
            status.success(),
            "the server ended with {status} after SIGTERM"
        );
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// Counts and a flag: they order nothing.
const RELAXED: Ordering = Ordering::Relaxed;

/// What all clients share.
#[derive(Default)]
struct Shared {
    over: AtomicBool,
    answers: AtomicU64,
    connections: AtomicU64,
    kinds: [AtomicU64; 5],
    fault: Mutex<Option<String>>,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(RELAXED)
    }

    fn stop(&self) {
        self.over.store(true, RELAXED);
    }

    /// Ends the run with its first fault.
    fn fail(&self, fault: String) {
        if let Ok(mut first) = self.fault.lock() {
            first.get_or_insert(fault);
        }
        self.stop();
    }

    fn fault(&self) -> Option<String> {
        self.fault.lock().ok()?.clone()
    }
}

/// What a key may hold.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The version that was acknowledged last; 0 is none.
    version: u32,
    /// A version whose acknowledgement was never read.
    maybe: u32,
}

/// One client: its keys, and one connection after the other.
struct Client<'a> {
    number: u32,
    address: SocketAddr,
    random: SmallRng,
    known: [Known; KEYS],
    next_version: u32,
    shared: &'a Shared,
}

impl<'a> Client<'a> {
    fn new(number: u32, address: SocketAddr, seed: u64, shared: &'a Shared) -> Client<'a> {
        Client {
            number,
            address,
            random: SmallRng::seed_from_u64(seed),
            known: [Known::default(); KEYS],
            next_version: 0,
            shared,
        }
    }

    fn live(mut self, until: Instant) {
        while Instant::now() < until && !self.shared.is_over() {
            if let Err(error) = self.one_connection(until) {
                let number = self.number;
                self.shared.fail(format!("client {number}: {error:#}"));
            }
        }
    }

    fn one_connection(&mut self, until: Instant) -> anyhow::Result<()> {
        let stream = TcpStream::connect(self.address).context("connecting")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = Line {
            reader: BufReader::new(stream),
        };
        self.shared.connections.fetch_add(1, RELAXED);
        let kind = match self.random.random_range(0..100) {
            0..70 => 0,
            70..80 => 1,
            80..88 => 2,
            88..95 => 3,
            _ => 4,
        };
        self.shared.kinds[kind].fetch_add(1, RELAXED);
        match kind {
            0 => {
                for _ in 0..self.random.random_range(1..400) {
                    if Instant::now() >= until || self.shared.is_over() {
                        break;
                    }
                    self.command(&mut line)?;
                }
                Ok(())
            }
            1 => self.slow(&mut line, until),
            2 => self.half_closed(&mut line),
            3 => self.killed(&mut line),
            _ => self.wrong(&mut line),
        }
    }

    fn key(&self, slot: usize) -> String {
        format!("client{}:{slot}", self.number)
    }

    /// The value of a version: it begins with its key and version, and its length follows from them.
    fn value(&self, slot: usize, version: u32) -> String {
        let mut value = format!("{}@{version}:", self.key(slot));
        // Mostly small; one version in 97 is large enough to be kept apart.
        let length = match version % 97 {
            0 => 200_000,
            _ => (version as usize).wrapping_mul(2_654_435_761) % 2_000,
        };
        let letter = char::from(b'a' + (version % 26) as u8);
        value.extend(std::iter::repeat_n(letter, length));
        value
    }

    fn command(&mut self, line: &mut Line) -> anyhow::Result<()> {
        let slot = self.random.random_range(0..KEYS);
        let key = self.key(slot);
        match self.random.random_range(0..10) {
            0..3 => {
                let (version, request) = self.set(slot);
                self.known[slot].maybe = version;
                let answer = line.ask(&request)?;
                match answer.as_str() {
                    "STORED" => {
                        self.known[slot] = Known { version, maybe: 0 };
                    }
                    other => bail!("set {key}: {other}"),
                }
            }
            3 => {
                let answer = line.ask(&format!("delete {key}\r\n"))?;
                ensure!(
                    matches!(answer.as_str(), "DELETED" | "NOT_FOUND"),
                    "delete {key}: {answer}"
                );
                self.known[slot] = Known::default();
            }
            4 => {
                let answer = line.ask(&format!("mg {key} v k\r\n"))?;
                if !answer.starts_with("EN") {
                    let length = answer
                        .strip_prefix("VA ")
                        .and_then(|rest| rest.split(' ').next());
                    let length: usize = length.and_then(|n| n.parse().ok()).context(answer)?;
                    let value = line.block(length)?;
                    self.check(slot, &value)?;
                }
            }
            5 => {
                let counter = format!("counter{}", self.number);
                match line.ask(&format!("incr {counter} 1\r\n"))?.as_str() {
                    "NOT_FOUND" => {
                        let answer = line.ask(&format!("add {counter} 0 0 1\r\n0\r\n"))?;
                        ensure!(answer == "STORED", "add {counter}: {answer}");
                    }
                    answer => {
                        ensure!(answer.parse::<u64>().is_ok(), "incr {counter}: {answer}");
                    }
                }
            }
            _ => {
                let slots: Vec<usize> = match self.random.random_range(0..4) {
                    0 => vec![slot],
                    _ => (slot..KEYS.min(slot + 30)).collect(),
                };
                line.say(self.get(&slots).as_bytes())?;
                self.read_values(line)?;
            }
        }
        self.shared.answers.fetch_add(1, RELAXED);
        Ok(())
    }

    fn set(&mut self, slot: usize) -> (u32, String) {
        self.next_version += 1;
        let version = self.next_version;
        let value = self.value(slot, version);
        let key = self.key(slot);
        let life_s = [0, 0, 0, 2, 60][self.random.random_range(0..5)];
        let length = value.len();
        (
            version,
            format!("set {key} {slot} {life_s} {length}\r\n{value}\r\n"),
        )
    }

    fn get(&self, slots: &[usize]) -> String {
        let mut request = "get".to_owned();
        for slot in slots {
            // Memory takes what it is given.
            let _ = write!(request, " {}", self.key(*slot));
        }
        request.push_str("\r\n");
        request
    }

    /// Reads and checks the answer to a `get`.
    fn read_values(&self, line: &mut Line) -> anyhow::Result<()> {
        loop {
            let head = line.line()?;
            if head == "END" {
                return Ok(());
            }
            let words: Vec<&str> = head.split(' ').collect();
            let ["VALUE", key, flags, length] = words[..] else {
                bail!("get: {head}");
            };
            let slot: usize = flags.parse().context(head.clone())?;
            ensure!(
                slot < KEYS && key == self.key(slot),
                "another key's value: {head}"
            );
            let value = line.block(length.parse().context(head.clone())?)?;
            self.check(slot, &value)?;
        }
    }

    /// Whether this may be the value.
    fn check(&self, slot: usize, value: &[u8]) -> anyhow::Result<()> {
        let Known { version, maybe } = self.known[slot];
        for version in [version, maybe] {
            if version != 0 && value == self.value(slot, version).as_bytes() {
                return Ok(());
            }
        }
        let start = String::from_utf8_lossy(&value[..value.len().min(60)]).into_owned();
        let key = self.key(slot);
        bail!("{key} must hold version {version} (or {maybe}), and holds {start:?}")
    }

    fn slow(&mut self, line: &mut Line, until: Instant) -> anyhow::Result<()> {
        let all: Vec<usize> = (0..KEYS).collect();
        let request = self.get(&all);
        let times = 4;
        line.say(request.repeat(times).as_bytes())?;
        let mut small = Line {
            reader: BufReader::with_capacity(2048, line.reader.get_ref().try_clone()?),
        };
        for _ in 0..times {
            if Instant::now() >= until || self.shared.is_over() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(self.random.random_range(20..400)));
            self.read_values(&mut small)?;
            self.shared.answers.fetch_add(1, RELAXED);
        }
        Ok(())
    }

    fn half_closed(&mut self, line: &mut Line) -> anyhow::Result<()> {
        let slot = self.random.random_range(0..KEYS);
        let (version, set) = self.set(slot);
        self.known[slot].maybe = version;
        let get = self.get(&[slot]);
        line.say(format!("{set}{get}get half").as_bytes())?;
        line.reader.get_ref().shutdown(Shutdown::Write)?;
        let answer = line.line()?;
        ensure!(answer == "STORED", "set before the end: {answer}");
        self.known[slot] = Known { version, maybe: 0 };
        self.read_values(line)?;
        let mut rest = Vec::new();
        line.reader.read_to_end(&mut rest)?;
        ensure!(rest.is_empty(), "half a command was answered");
        self.shared.answers.fetch_add(2, RELAXED);
        Ok(())
    }

    fn killed(&mut self, line: &mut Line) -> anyhow::Result<()> {
        let slot = self.random.random_range(0..KEYS);
        let whole = self.random.random_bool(0.5);
        let (version, set) = self.set(slot);
        // A whole command may or may not be done; a part of one must not.
        if whole {
            self.known[slot].maybe = version;
        }
        let end = if whole {
            set.len()
        } else {
            self.random.random_range(1..set.len() - 2)
        };
        line.say(&set.as_bytes()[..end])?;
        if whole {
            // What is asked for behind it is never read: closing then resets the connection.
            line.say(self.get(&[slot]).as_bytes())?;
            // It is settled before the next connection writes this key.
            let answer = line.line()?;
            ensure!(answer == "STORED", "set: {answer}");
            self.known[slot] = Known { version, maybe: 0 };
        }
        Ok(())
    }

    fn wrong(&mut self, line: &mut Line) -> anyhow::Result<()> {
        let (request, told) = match self.random.random_range(0..4) {
            0 => ("nonsense\r\n".to_owned(), "ERROR"),
            1 => (format!("get {}\r\n", "k".repeat(251)), "CLIENT_ERROR"),
            2 => ("set k 0 0 -1\r\n".to_owned(), "CLIENT_ERROR"),
            _ => ("incr k many\r\n".to_owned(), "CLIENT_ERROR"),
        };
        let answer = line.ask(&request)?;
        ensure!(answer.starts_with(told), "{request:?}: {answer}");
        self.shared.answers.fetch_add(1, RELAXED);
        Ok(())
    }
}

/// A connection.
struct Line {
    reader: BufReader<TcpStream>,
}

impl Line {
    fn say(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.reader.get_mut().write_all(bytes).context("sending")
    }

    fn ask(&mut self, request: &str) -> anyhow::Result<String> {
        self.say(request.as_bytes())?;
        self.line()
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line).context("reading")?;
        let text = line.strip_suffix("\r\n");
        Ok(text
            .with_context(|| format!("the answer ended early: {line:?}"))?
            .to_owned())
    }

    /// A value and its line end.
    fn block(&mut self, length: usize) -> anyhow::Result<Vec<u8>> {
        let mut block = vec![0; length + 2];
        self.reader
            .read_exact(&mut block)
            .context("reading a value")?;
        ensure!(
            block.ends_with(b"\r\n"),
            "a value of {length} bytes does not end there"
        );
        block.truncate(length);
        Ok(block)
    }
}
