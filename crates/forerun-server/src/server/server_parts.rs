//! Assembles a server before its threads start: reads files, binds listeners, and connects the
//! parts.

use std::sync::Arc;

use forerun_cache::Cache;
use forerun_core::split_mix64;

use crate::address::{Address, Listen, Protocol, UNIX_MODE};
use crate::auth::UserFile;
use crate::error::Error;
use crate::health::Health;
use crate::net::TlsFiles;
use crate::resp::transaction_locks::TransactionLocks;
use crate::settings::ReportedOptions;
use crate::shared::Shared;
use crate::system::{Listening, Readiness, System};
use crate::watch::WatchKinds;

use super::acceptor::{self, Acceptor, ListenerState, Maintenance};
use super::buffers::Buffers;
use super::connections::Connections;
use super::linger::RefusedSockets;
use super::options::ServerOptions;
use super::running_server::RunningServer;
use super::server_handle::ServerHandle;
use super::snapshot_writer::SnapshotWriter;
use super::worker::{Setup, Worker};

/// By default, the limit on the connections' own buffers is the cache's limit divided by this
/// number.
const BUFFERS_SHARE: usize = 8;
/// The minimum of that default, however small the cache is.
const BUFFER_LIMIT_BYTES_MIN: usize = 16 << 20;

/// The acceptor, its workers, and the handles that the server keeps.
pub(crate) struct ServerParts<S: System> {
    pub(crate) acceptor: Acceptor<S>,
    pub(crate) workers: Vec<Worker<S>>,
    pub(crate) snapshot_writer: Option<SnapshotWriter<S>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) addresses: Vec<Address>,
}

impl<S: System> ServerParts<S> {
    /// # Errors
    /// Any [`Error`]. In that case nothing stays bound, and the snapshot is unchanged.
    pub(crate) fn assemble(
        system: S,
        options: &ServerOptions,
        cache: Arc<Cache>,
        handle: &ServerHandle,
        health: Arc<Health>,
    ) -> Result<ServerParts<S>, Error> {
        // The cache may be older than its server, so set its clock now.
        system.tick(&cache);
        // Clients may hold CAS numbers of an earlier server, or of another one from which a copied
        // item came. Random first numbers make it improbable that an item gets the same number
        // again. They have 31 bits, because there are clients that read 32 (meta-memcache 4.3),
        // and memcached counts from 1.
        let mut random = system.unix_us();
        cache.advance_cas_past(split_mix64(&mut random) >> 33);
        let tls = options
            .tls
            .as_ref()
            .map(|tls| TlsFiles::load(tls, system.now()))
            .transpose()?
            .map(Arc::new);
        let users = options
            .auth_file
            .as_deref()
            .map(UserFile::load)
            .transpose()?
            .map(Arc::new);
        let snapshot = options.snapshot.clone();
        let snapshot_writer =
            snapshot.map(|snapshot| SnapshotWriter::new(system.clone(), snapshot));
        if let Some(snapshot_writer) = &snapshot_writer {
            snapshot_writer.restore(&cache, handle)?;
            // The earlier server may have given numbers after it wrote the snapshot.
            let gap = split_mix64(&mut random) >> 48;
            cache.advance_cas_past(cache.last_cas().saturating_add(gap));
        }
        let listeners = Listen::apart(&options.listen)
            .iter()
            .map(|listen| system.bind(listen, options.listen_backlog))
            .collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<Address> = listeners.iter().map(|one| one.address().clone()).collect();

        let buffer_limit_bytes = options
            .buffer_limit_bytes
            .unwrap_or((cache.memory_limit_bytes() / BUFFERS_SHARE).max(BUFFER_LIMIT_BYTES_MIN));
        let connections = Arc::new(Connections::new(
            options.connection_limit,
            Buffers::new(buffer_limit_bytes),
            health,
            system.now(),
        ));
        let names = addresses.iter().map(|address| address.to_string().into());
        connections.opened(names.collect());
        let reported = reported_options(options, &addresses);
        let settings = options.settings.clone();
        let server = Box::new(RunningServer::new(
            system.clone(),
            connections.clone(),
            tls.clone(),
            users.clone(),
            options.on_verbosity.clone(),
        ));
        let shared = Arc::new(Shared::on(
            &system,
            settings,
            reported,
            cache.clone(),
            server,
        ));
        let watchers = shared.watchers.clone();
        // If two servers share a cache, only the first one sees evictions.
        cache.observe_evictions(move |evicted| {
            if watchers.is_watched(WatchKinds::EVICTIONS) {
                watchers.log_eviction(evicted);
            }
        });
        let start = |source| Error::Start {
            what: "a poll",
            source,
        };
        let (poll, waker) = system.poll(acceptor::EVENTS).map_err(start)?;
        handle.wake_with(waker);
        let setup = Setup {
            system: system.clone(),
            shared: shared.clone(),
            connections: connections.clone(),
            handle: handle.clone(),
            tls: tls.clone(),
            users: users.clone(),
            idle_timeout_s: options.idle_timeout.as_secs(),
            handshake_timeout_s: options.handshake_timeout.as_secs(),
        };
        let mut acceptor = Acceptor {
            refused: RefusedSockets::new(),
            maintenance: Maintenance::new(
                system.now(),
                snapshot_writer
                    .as_ref()
                    .and_then(|one| one.next_live(system.now())),
            ),
            system,
            poll,
            listeners: listener_states(listeners),
            workers: Vec::new(),
            threads: Vec::new(),
            connections,
            handle: handle.clone(),
            cache,
            snapshot_writer: snapshot_writer.clone(),
            tls,
            users,
            drain_delay: options.drain_delay,
            drain_at: None,
            drain_timeout: options.drain_timeout,
            next_worker: 0,
        };
        for (number, state) in acceptor.listeners.iter_mut().enumerate() {
            let registered = acceptor.poll.register_listener(&mut state.listener, number);
            registered.map_err(start)?;
        }
        let mut workers = Vec::new();
        let speaks_resp = |listen: &Listen| listen.protocol == Protocol::Resp;
        // Only RESP has transactions.
        let locks = options.listen.iter().any(speaks_resp);
        let locks = locks.then(|| TransactionLocks::new(options.threads));
        for number in 0..options.threads {
            let lock = locks.as_ref().map(|locks| locks.of_worker(number));
            let (worker, handle) = Worker::new(setup.clone(), lock).map_err(start)?;
            workers.push(worker);
            acceptor.workers.push(handle);
        }
        Ok(ServerParts {
            acceptor,
            workers,
            snapshot_writer,
            shared,
            addresses,
        })
    }
}

fn listener_states<L: Listening>(listeners: Vec<L>) -> Vec<ListenerState<L>> {
    let name = |listener: &L| listener.address().to_string().into();
    listeners
        .into_iter()
        .map(|listener| ListenerState {
            name: name(&listener),
            listener,
            ready: false,
        })
        .collect()
}

fn reported_options(options: &ServerOptions, addresses: &[Address]) -> ReportedOptions {
    let tcp_port = |protocol| {
        let mut listeners = addresses.iter().zip(&options.listen);
        let port = listeners.find_map(|(address, listen)| match address {
            Address::Tcp(address) if listen.protocol == protocol => Some(address.port()),
            _ => None,
        });
        port.unwrap_or(0)
    };
    let unix = addresses.iter().find_map(|address| match address {
        Address::Unix { path, mode } => Some((path.display().to_string(), *mode)),
        _ => None,
    });
    let snapshot = options.snapshot.as_ref();
    let interfaces: Vec<String> = addresses
        .iter()
        .filter_map(|address| match address {
            Address::Tcp(address) => Some(address.ip().to_string()),
            _ => None,
        })
        .collect();
    ReportedOptions {
        auth_enabled: options.auth_file.is_some(),
        max_connections: u32::try_from(options.connection_limit).unwrap_or(u32::MAX),
        listen_backlog: options.listen_backlog,
        tcp_port: tcp_port(Protocol::Memcached),
        resp_port: tcp_port(Protocol::Resp),
        unix_mode: unix.as_ref().map_or(UNIX_MODE, |(_, mode)| *mode),
        unix_socket: unix.map(|(path, _)| path),
        interfaces: interfaces.join(","),
        threads: options.threads as u32,
        idle_timeout_s: u32::try_from(options.idle_timeout.as_secs()).unwrap_or(u32::MAX),
        tls: options.tls.clone(),
        snapshot: snapshot.map(|snapshot| snapshot.path.display().to_string()),
    }
}
