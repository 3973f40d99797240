//! The client: chooses the servers that a call asks, and handles their answers.
//!
//! ```text
//!   keys ── Ring ──> Positions            which server has which key
//!   servers ── Health ──> ask, or fail at once
//!   IdleSets ──> ConnectionSet ──> round::run ──> Sink, Report
//! ```

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use forerun_core::Owner;
use forerun_core::sync::{Arc, Mutex, MutexGuard, PoisonError, time};

use crate::connection_set::{ConnectionSet, Connector, IdleSets, Positions};
use crate::conversation::{Answer, CommandConversation};
use crate::error::{Error, Failure};
use crate::failed_deletes::{FailedDeletes, RepeatedDeletes};
use crate::health::Health;
use crate::interrupt::Interrupt;
use crate::net::ucx::UcxClient;
use crate::net::{Connection, Lookup, Peer, Resolver, Tls, system_lookup};
use crate::options::{ClientOptions, EjectedKeys, Protocol};
use crate::protocol::compose::{self, Command};
use crate::protocol::key_text::KeyText;
use crate::ring::Ring;
use crate::round::{self, RoundOptions, Turn};
use crate::server_address::{Endpoint, ServerAddress};
use crate::stats::{ClientStats, Counters};
use crate::values::ServerFailure;
use crate::wait::Wait;

/// A client of a group of memcached servers. Any number of threads may share it.
///
/// A client connects when it is first used. Each call uses its own connections, at most one to each
/// server, and keeps them for the next call.
///
/// ```no_run
/// use forerun_client::{Client, ClientOptions, Expiration, Lookups, NewValue};
/// use std::time::Duration;
///
/// let servers = ["10.0.1.1:11211".parse()?, "10.0.1.2:11211".parse()?];
/// let client = Client::new(servers, ClientOptions::default())?;
///
/// client.set("CH/Bern", "46.948,7.447")?;
/// let hour = Expiration::In(Duration::from_secs(3600));
/// client.set("CH/Biel", NewValue::new("47.137,7.246").expiry(hour))?;
/// assert_eq!(client.get("CH/Bern")?.expect("it is set").data, b"46.948,7.447");
///
/// let mut values = Lookups::new(); // Reused from batch to batch.
/// let report = client.multi_get(&["CH/Biel", "FR/Lyon"], &mut values)?;
/// assert_eq!(values.get(0).expect("it is set").data, b"47.137,7.246");
/// for failure in &report.failures {
///     eprintln!("{failure}");
/// }
/// # Ok::<(), forerun_client::Error>(())
/// ```
#[derive(Debug)]
pub struct Client {
    servers: Vec<ServerAddress>,
    resolvers: Vec<Arc<Resolver>>,
    options: ClientOptions,
    tls: Option<Tls>,
    ring: Arc<Ring>,
    /// The ring without ejected servers, and the servers that it has.
    moved: Mutex<Option<(Vec<bool>, Arc<Ring>)>>,
    health: Mutex<Health>,
    idle: IdleSets,
    failed_deletes: FailedDeletes,
    interrupt: Interrupt,
    counters: Counters,
    owner: Owner,
}

impl Client {
    /// Creates a client of these servers. Resolves their names, but does not connect.
    ///
    /// # Errors
    /// [`Error::NoServers`], [`Error::Option`], [`Error::TlsFile`], [`Error::NoUcx`], `Error::Ucx`,
    /// [`Error::UcxToken`].
    pub fn new(
        servers: impl IntoIterator<Item = ServerAddress>,
        options: ClientOptions,
    ) -> Result<Client, Error> {
        Client::with_lookup(servers, options, system_lookup)
    }

    fn with_lookup(
        servers: impl IntoIterator<Item = ServerAddress>,
        options: ClientOptions,
        lookup: Lookup,
    ) -> Result<Client, Error> {
        let servers: Vec<ServerAddress> = servers.into_iter().collect();
        if servers.is_empty() {
            return Err(Error::NoServers);
        }
        options.check()?;
        #[cfg(feature = "tls")]
        let tls = options
            .tls
            .as_ref()
            .map(crate::tls::TlsOptions::load)
            .transpose()?;
        #[cfg(not(feature = "tls"))]
        let tls = None;
        let ucx = UcxClient::open(&servers, &options)?;
        let (failures, retry) = (options.failures_to_eject, options.retry_interval);
        let interval = options.resolve_interval;
        let resolver = |server| Arc::new(Resolver::new(server, ucx.as_ref(), interval, lookup));
        Ok(Client {
            resolvers: servers.iter().map(resolver).collect(),
            tls,
            ring: Arc::new(Ring::new(options.placement, &servers)),
            moved: Mutex::default(),
            health: Mutex::new(Health::new(servers.len(), failures, retry)),
            idle: IdleSets::new(options.idle_timeout),
            failed_deletes: FailedDeletes::new(servers.len(), options.failed_deletes_max),
            interrupt: Interrupt::default(),
            counters: Counters::default(),
            owner: Owner::this_process(),
            servers,
            options,
        })
    }

    /// The servers, in the order in which they were given.
    pub fn servers(&self) -> &[ServerAddress] {
        &self.servers
    }

    /// Makes calls that wait for servers stop soon after `ask` returns true: they return
    /// [`Error::Interrupted`]. A waiting call asks every 50 ms, in the caller's thread.
    pub fn interrupt_if(&mut self, ask: impl Fn() -> bool + Send + Sync + 'static) {
        self.interrupt = Interrupt::new(ask);
    }

    /// The counts since the client was created, and its present state.
    pub fn stats(&self) -> ClientStats {
        let now = time::now();
        let health = self.health();
        let ejected = (0..self.servers.len()).filter(|server| health.is_ejected(*server, now));
        ClientStats {
            servers: self.servers.len() as u64,
            ejected_servers: ejected.count() as u64,
            idle_connection_sets: self.idle.count() as u64,
            failed_deletes: self.failed_deletes.count() as u64,
            failed_deletes_dropped: self.failed_deletes.dropped(),
            ..self.counters.read()
        }
    }

    /// Checks that this process created the client. In a fork, all calls fail.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn check_process(&self) -> Result<(), Error> {
        Ok(self.owner.check()?)
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn take_set(&self, now: Instant) -> ConnectionSet {
        self.idle.take(self.servers.len(), now)
    }

    pub(crate) fn put_set(&self, set: ConnectionSet) {
        self.idle.put(set);
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.options.timeout
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.options.protocol
    }

    pub(crate) fn max_value_bytes(&self) -> usize {
        self.options.max_value_bytes
    }

    /// The position of a key's server while no server is ejected.
    pub fn server_of(&self, key: impl AsRef<[u8]>) -> usize {
        self.ring.server_of(key.as_ref())
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The distribution of keys over the servers that are not ejected.
    fn live_ring(&self, health: &Health, now: Instant) -> Arc<Ring> {
        let is_live = |server| !health.is_ejected(server, now);
        let all = 0..self.servers.len();
        if self.options.ejected_keys == EjectedKeys::Fail || all.clone().all(is_live) {
            return Arc::clone(&self.ring);
        }
        let live: Vec<bool> = all.map(is_live).collect();
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((servers, ring)) = &*moved
            && *servers == live
        {
            return Arc::clone(ring);
        }
        let numbered = (0..).zip(&self.servers);
        let servers: Vec<(u32, &ServerAddress)> =
            numbered.filter(|(at, _)| live[*at as usize]).collect();
        if servers.is_empty() {
            return Arc::clone(&self.ring);
        }
        let ring = Arc::new(Ring::of(self.options.placement, &servers));
        *moved = Some((live, Arc::clone(&ring)));
        ring
    }

    fn connector(&self, server: usize) -> Connector<'_> {
        let is_tcp = matches!(self.servers[server].endpoint, Endpoint::Tcp { .. });
        Connector {
            resolver: &self.resolvers[server],
            tls: self.tls.as_ref().filter(|_| is_tcp),
            credentials: self.options.credentials.as_ref(),
            idle_timeout: self.options.idle_timeout,
        }
    }

    fn check_key(&self, index: usize, key: &[u8]) -> Result<(), Error> {
        match KeyText::of(key, self.options.protocol) {
            Ok(_) => Ok(()),
            Err(reason) => Err(Error::Key { index, reason }),
        }
    }

    pub(crate) fn round_options(&self, start: Instant) -> RoundOptions<'_> {
        RoundOptions {
            deadline: start + self.options.timeout,
            timeout: self.options.timeout,
            max_value_bytes: self.options.max_value_bytes,
            interrupt: &self.interrupt,
            tls: self.tls.as_ref(),
            resolvers: &self.resolvers,
        }
    }

    /// Records the result of a server's turn in a call that began at `start`.
    pub(crate) fn record(&self, server: usize, failure: Option<&Failure>, start: Instant) {
        if let Some(Failure::Ejected { .. }) = failure {
            self.counters.was_ejected();
        }
        let Some(is_alive) = failure.map_or(Some(true), Failure::is_alive) else {
            return;
        };
        if failure.is_some() {
            self.counters.server_failed();
        }
        self.health().record(server, is_alive, start, time::now());
    }

    /// Ends a turn of a call that began at `start`. The connection returns to the set if it can be
    /// used again.
    pub(crate) fn end<C>(
        &self,
        turn: Turn<C>,
        set: &mut ConnectionSet,
        start: Instant,
    ) -> (C, Option<Failure>) {
        let mut connection = turn.connection;
        let failure = match turn.result {
            Some(Ok(())) => None,
            Some(Err(failure)) => Some(failure),
            // After a round, every turn has a result.
            None => Some(Failure::TimedOut(self.options.timeout)),
        };
        let is_resolving =
            connection.is_resolving() && matches!(failure, Some(Failure::TimedOut(_)));
        if !is_resolving {
            self.refresh_after(turn.server, failure.as_ref());
        }
        let failure = match (failure, connection.peer()) {
            (Some(Failure::TimedOut(_)), None) => {
                let what = "the name was not resolved in time";
                let error = io::Error::new(io::ErrorKind::TimedOut, what);
                Some(Failure::Connect(error))
            }
            (Some(Failure::TimedOut(timeout)), Some(peer)) if connection.is_connecting() => {
                self.resolvers[turn.server].try_last(peer);
                Some(Failure::TimedOut(timeout))
            }
            (failure, _) => failure,
        };
        if failure.is_none() {
            let repeated = std::mem::take(&mut connection.repeated);
            self.failed_deletes.done(turn.server, repeated);
            set.last_used = time::now();
            if connection.end_request(set.last_used) {
                set.connections[turn.server] = Some(connection);
            }
        }
        self.record(turn.server, failure.as_ref(), start);
        (turn.conversation, failure)
    }

    /// Checks the keys of a batch before anything is sent.
    pub(crate) fn check_batch<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<(), Error> {
        self.owner.check()?;
        if u32::try_from(keys.len()).is_err() {
            return Err(Error::TooManyKeys(keys.len()));
        }
        for (index, key) in keys.iter().enumerate() {
            self.check_key(index, key.as_ref())?;
        }
        Ok(())
    }

    /// Groups the keys of a batch by server.
    pub(crate) fn group<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        positions: &mut Positions,
        now: Instant,
    ) {
        let ring = self.live_ring(&self.health(), now);
        positions.group(keys.len(), self.servers.len(), |visit| {
            ring.servers_of(keys, |_, server| visit(server));
        });
    }

    /// Returns a connection to the server, if a call may ask it. The request is for these keys.
    pub(crate) fn begin<'k>(
        &self,
        server: usize,
        keys: impl IntoIterator<Item = &'k [u8]>,
        set: &mut ConnectionSet,
        now: Instant,
    ) -> Result<(Connection, Vec<Peer>), Failure> {
        let admitted = self.health().admit(server, now);
        admitted.map_err(|retry_in| Failure::Ejected { retry_in })?;
        let taken = set.take(server, &self.connector(server), now);
        let (mut connection, peers) =
            taken.inspect_err(|failure| self.refresh_after(server, Some(failure)))?;
        let repeated = self.failed_deletes.next(server, keys);
        for delete in &repeated {
            self.compose_command(&mut connection, &Command::Delete, &delete.key);
        }
        connection.repeated = RepeatedDeletes::new(repeated);
        Ok((connection, peers))
    }

    /// Resolves the name of a server that has failed again.
    fn refresh_after(&self, server: usize, failure: Option<&Failure>) {
        if failure.and_then(Failure::is_alive) == Some(false) {
            Resolver::refresh(&self.resolvers[server]);
        }
    }

    /// Whether [`Client::deleted`] is to be called after a delete.
    pub(crate) fn keeps_failed_deletes(&self) -> bool {
        self.failed_deletes.is_on()
    }

    /// Keeps the key of a delete that its server has not answered. If the key has moved, its own
    /// server, which is ejected, has not deleted it either.
    pub(crate) fn deleted(&self, key: &[u8], server: usize, is_answered: bool) {
        if !is_answered {
            self.failed_deletes.add(server, key);
        }
        let own = self.server_of(key);
        if own != server {
            self.failed_deletes.add(own, key);
        }
    }

    /// Sends a command to the server of its key.
    pub(crate) async fn command<W: Wait>(
        &self,
        command: &Command<'_>,
        key: &[u8],
        wait: &W,
    ) -> Result<Answer, Error> {
        self.owner.check()?;
        self.check_key(0, key)?;
        self.counters.commands(1);
        let now = time::now();
        let server = self.live_ring(&self.health(), now).server_of(key);
        let compose = |connection: &mut Connection| {
            let opaque = self.compose_command(connection, command, key);
            CommandConversation::new(command, opaque)
        };
        let mut answer = Err(Failure::Closed);
        let servers = server..server + 1;
        let report = |_, result| answer = result;
        let own = Some(key);
        self.ask_all(servers, own, now, compose, report, wait).await;
        if self.keeps_failed_deletes() && matches!(command, Command::Delete) {
            let is_answered = matches!(answer, Ok(_) | Err(Failure::Refused(_)));
            self.deleted(key, server, is_answered);
        }
        answer.map_err(|failure| match failure {
            Failure::Interrupted => Error::Interrupted,
            failure => Error::Server {
                server: self.servers[server].to_string(),
                failure,
            },
        })
    }

    /// Whether commands are numbered, as in the meta protocol.
    pub(crate) fn has_opaques(&self) -> bool {
        self.options.protocol != Protocol::Classic
    }

    /// Composes a command. Returns its number in the meta protocol.
    pub(crate) fn compose_command(
        &self,
        connection: &mut Connection,
        command: &Command<'_>,
        key: &[u8],
    ) -> Option<u32> {
        if !self.has_opaques() {
            compose::classic_command(command, key, connection.output());
            return None;
        }
        let opaque = connection.next_opaque;
        connection.next_opaque = opaque.wrapping_add(1);
        compose::meta_command(command, key, opaque, connection.output());
        Some(opaque)
    }

    /// Deletes all items of all servers.
    pub(crate) async fn flush<W: Wait>(&self, wait: &W) -> Result<Vec<ServerFailure>, Error> {
        self.owner.check()?;
        let compose = |connection: &mut Connection| {
            connection.output().extend_from_slice(compose::FLUSH_ALL);
            CommandConversation::flush_all()
        };
        self.counters.commands(1);
        let mut failures = Vec::new();
        let mut is_interrupted = false;
        let report = |server: usize, result: Result<Answer, Failure>| {
            if let Err(failure) = result {
                is_interrupted |= matches!(failure, Failure::Interrupted);
                let server = self.servers[server].to_string();
                failures.push(ServerFailure::new(server, 0, failure));
            }
        };
        let servers = 0..self.servers.len();
        self.ask_all(servers, None, time::now(), compose, report, wait)
            .await;
        if is_interrupted {
            Err(Error::Interrupted)
        } else {
            Ok(failures)
        }
    }

    /// Sends a request, for this key or for all, to some servers at once and reports the answer of
    /// each.
    async fn ask_all<W: Wait>(
        &self,
        servers: Range<usize>,
        key: Option<&[u8]>,
        now: Instant,
        compose: impl Fn(&mut Connection) -> CommandConversation,
        mut report: impl FnMut(usize, Result<Answer, Failure>),
        wait: &W,
    ) {
        let mut set = self.take_set(now);
        let mut turns = Vec::with_capacity(servers.len());
        for server in servers {
            match self.begin(server, key, &mut set, now) {
                Ok((mut connection, peers)) => {
                    let conversation = compose(&mut connection);
                    let mut turn = Turn::new(server, connection, conversation, peers);
                    turn.send();
                    turns.push(turn);
                }
                Err(failure) => {
                    self.record(server, Some(&failure), now);
                    report(server, Err(failure));
                }
            }
        }
        round::run(&mut turns, &mut (), &self.round_options(now), wait).await;
        for turn in turns {
            let server = turn.server;
            let (conversation, failure) = self.end(turn, &mut set, now);
            report(
                server,
                match (conversation.answer, failure) {
                    (_, Some(failure)) => Err(failure),
                    (Some(Answer::Refused(line)), None) => Err(Failure::Refused(line)),
                    (Some(answer), None) => Ok(answer),
                    (None, None) => Err(Failure::Closed),
                },
            );
        }
        self.put_set(set);
    }
}

#[cfg(test)]
mod tests;
