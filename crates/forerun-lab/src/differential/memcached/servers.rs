//! memcached and this workspace's server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use forerun_cache::{Cache, CacheOptions, Clock};
use forerun_server::{Listen, Server, ServerOptions};

use super::compare_answers::{Versions, compare};
use super::compare_packets;
use super::counters::{CounterCommands, key_of_counter, number};
use super::known_differences::Version;
use crate::differential::connection::{Connection, Reply, RunningServer};
use crate::differential::history::now_ms;
use crate::differential::protocol::{Agreement, Servers};
use crate::differential::step::{CompareMode, Step};

/// The memory of each server. It is large enough that neither evicts.
const MEMORY_MIB: usize = 512;

/// The bytes that end a request: two commands whose answers follow each other nowhere else.
const FENCE: &[u8] = b"mn\r\nversion\r\n";

/// The bytes that end requests of the binary protocol: a `noop` whose opaque no other request has.
const BINARY_FENCE: &[u8; 24] = b"\x80\x0a\0\0\0\0\0\0\0\0\0\0\xfe\xed\xfe\xed\0\0\0\0\0\0\0\0";

/// The end of a list, which has no fence.
const LIST_END: &[u8] = b"END\r\n";

/// A server, and its answer to the fence of the text protocol.
struct FencedServer {
    server: RunningServer,
    text_answer: Vec<u8>,
}

impl FencedServer {
    fn new(server: RunningServer, version: &str) -> Self {
        Self {
            server,
            text_answer: format!("MN\r\nVERSION {version}\r\n").into_bytes(),
        }
    }

    /// A connection that will speak the binary or the text protocol.
    fn connect(&self, is_binary: bool) -> Result<FencedConnection> {
        let (fence, answer) = if is_binary {
            let mut answer = BINARY_FENCE.to_vec();
            answer[0] = 0x81;
            (&BINARY_FENCE[..], answer)
        } else {
            (FENCE, self.text_answer.clone())
        };
        Ok(FencedConnection {
            connection: self.server.connect()?,
            fence,
            answer,
        })
    }
}

/// A connection, its fence, and the answer to that.
struct FencedConnection {
    connection: Connection,
    fence: &'static [u8],
    answer: Vec<u8>,
}

/// The two servers of a history.
pub(in crate::differential) struct MemcachedServers {
    memcached: Version,
    ours: FencedServer,
    theirs: FencedServer,
    /// The cache of this workspace's server.
    cache: Arc<Cache>,
    versions: Versions,
    /// The number that the next step's only command changes.
    before: Option<u64>,
}

/// A connection to each server.
pub(in crate::differential) struct ConnectionPair {
    ours: FencedConnection,
    theirs: FencedConnection,
}

impl MemcachedServers {
    /// Starts `program`, whose version is given, and this workspace's server.
    pub(super) fn start(program: &Path, memcached: Version, dir: &Path) -> Result<Self> {
        let theirs = FencedServer::new(
            start_memcached(program, dir.join("memcached.sock"))?,
            &memcached.to_string(),
        );
        let socket = dir.join("forerun.sock");
        let cache = Arc::new(Cache::new(
            CacheOptions::default()
                .clock(Clock::Manual)
                .memory_limit_bytes(MEMORY_MIB << 20)
                .max_item_bytes(4 << 20),
        )?);
        let mut options = ServerOptions::new(vec![Listen::unix(&socket, 0o700)]);
        options.drain_timeout = Duration::ZERO;
        options.settings.watch_enabled = false;
        let version = options.settings.version.clone();
        let server = Server::start(options, cache.clone())?;
        let ours = FencedServer::new(RunningServer::here(server, socket), &version);
        Ok(Self {
            memcached,
            ours,
            theirs,
            cache,
            versions: Versions::default(),
            before: None,
        })
    }

    /// The number that this workspace's server holds under `key`, if any. The read leaves no trace.
    fn number(&self, key: &[u8]) -> Option<u64> {
        let guard = self.cache.pin();
        number(guard.peek(key)?.value())
    }
}

fn start_memcached(program: &Path, socket: PathBuf) -> Result<RunningServer> {
    let mut command = Command::new(program);
    command
        // Configured like this server: with fixed slabs, and without watchers, because memcached
        // refuses a `watch` that arrives together with other commands. The thread that maintains
        // the LRU holds recently read items for a while, and whether a number is changed in place
        // depends on that.
        .args(["-W", "-o", "no_slab_reassign,no_lru_maintainer"])
        .args(["-u", "root", "-t", "1", "-I", "4m", "-m"])
        .arg(MEMORY_MIB.to_string())
        .arg("-s")
        .arg(&socket)
        // It reports each malformed binary request there.
        .stderr(Stdio::null());
    RunningServer::process(command, socket)
}

impl Servers for MemcachedServers {
    type Connections = ConnectionPair;

    fn connect(&self, step: &Step) -> Result<ConnectionPair> {
        Ok(ConnectionPair {
            ours: self.ours.connect(step.is_binary())?,
            theirs: self.theirs.connect(step.is_binary())?,
        })
    }

    fn ask(&mut self, to: &mut ConnectionPair, step: &Step) -> Result<[Reply; 2]> {
        let now_ms = now_ms()?;
        let bytes_of = |mine: fn((u64, u64)) -> u64| {
            let mut bytes = Vec::new();
            let version = |back| mine(self.versions.back(back));
            for command in &step.commands {
                command.render_line(&mut bytes, now_ms, &version);
            }
            for (packet, opaque) in step.packets.iter().zip(0..) {
                packet.render(&mut bytes, opaque, version);
            }
            bytes.extend(b"\r\n".repeat(step.padding));
            bytes
        };
        let (to_us, to_them) = (bytes_of(|pair| pair.0), bytes_of(|pair| pair.1));
        self.before = match &step.commands[..] {
            [command] => key_of_counter(command).and_then(|key| self.number(&key)),
            _ => None,
        };
        Ok([
            ask(&mut to.ours, to_us, step)?,
            ask(&mut to.theirs, to_them, step)?,
        ])
    }

    fn compare(
        &mut self,
        _: &mut ConnectionPair,
        step: &Step,
        ours: &Reply,
        theirs: &Reply,
    ) -> Result<Agreement, String> {
        if step.is_binary() {
            return compare_packets::compare(
                &ours.bytes,
                &theirs.bytes,
                step.compare,
                &step.packets,
                self.memcached,
                &mut self.versions,
            );
        }
        compare(
            &ours.bytes,
            &theirs.bytes,
            step.compare,
            &CounterCommands::new(&step.commands, self.before),
            self.memcached,
            &mut self.versions,
        )
    }
}

/// Sends a step's bytes and returns the answer. A command whose answer ends with `END` is sent
/// alone: while memcached lists its keys, it accepts no commands from the connection.
fn ask(to: &mut FencedConnection, mut bytes: Vec<u8>, step: &Step) -> Result<Reply> {
    if step.compare == CompareMode::Unordered && !step.is_binary() {
        let len = |received: &[u8]| received.ends_with(LIST_END).then_some(received.len());
        return to.connection.ask(&bytes, &[], &mut { len });
    }
    let cuts = step.cuts_of(bytes.len());
    bytes.extend_from_slice(to.fence);
    let len = |received: &[u8]| Some(received.strip_suffix(&to.answer[..])?.len());
    to.connection.ask(&bytes, &cuts, &mut { len })
}
