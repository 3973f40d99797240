//! The addresses of a server's name. They change: a restarted container gets another address, and
//! another server may get its old one.
//!
//! ```text
//!   the client is created                 it resolves the name and waits
//!   resolve_interval has passed, the      a call starts a thread; calls that connect wait for it as
//!   server failed, or a connection was    they wait for a socket, and the others go on
//!   found closed
//! ```

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forerun_core::sync::atomic::{AtomicU64, Ordering};
use forerun_core::sync::{Arc, Mutex, MutexGuard, PoisonError, thread, time};
use rustix::net::SocketAddrUnix;

use super::plain_socket::SocketAddress;
use super::resolution::Resolution;
use super::socket::Peer;
use super::ucx::UcxClient;
use crate::server_address::{Endpoint, ServerAddress};

/// Finds the addresses of a host. The tests have their own.
pub(crate) type Lookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// Asks the system's resolver.
pub(crate) fn system_lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// The path of a socket, absolute, so that a client still finds it when the process changes its
/// directory. As it is if the absolute path is too long for a socket's address.
fn socket_path(path: &Path) -> PathBuf {
    match std::path::absolute(path) {
        Ok(absolute) if SocketAddrUnix::new(&absolute).is_ok() => absolute,
        _ => path.to_owned(),
    }
}

/// The addresses of a server.
#[derive(Debug)]
pub(crate) struct Resolver {
    endpoint: Endpoint,
    /// Whether the endpoint has a name, whose addresses may change.
    has_name: bool,
    /// UCX, if the server is reached over it.
    ucx: Option<Arc<UcxClient>>,
    lookup: Lookup,
    interval: Duration,
    created: Instant,
    /// When to resolve the name again, in milliseconds since `created`.
    due_ms: AtomicU64,
    /// Counts the changes of the addresses.
    version: AtomicU64,
    state: Mutex<ResolverState>,
}

#[derive(Debug, Default)]
struct ResolverState {
    peers: Vec<Peer>,
    /// When they were found. `None` if they may be those of other servers since.
    resolved_at: Option<Instant>,
    /// When the server last failed. What a lookup from before says may be out of date.
    failed_at: Option<Instant>,
    running: Option<Arc<Resolution>>,
}

/// The addresses to connect to.
#[derive(Debug)]
pub(crate) enum Addresses {
    Known(KnownAddresses),
    /// They are known when this has ended.
    Unknown(Arc<Resolution>),
}

/// The addresses of a name.
#[derive(Clone, Debug)]
pub(crate) struct KnownAddresses {
    /// In the order in which to try them.
    pub(crate) peers: Vec<Peer>,
    pub(crate) version: u64,
}

impl Resolver {
    /// Resolves the server's name. This may take as long as the system's resolver takes. A name
    /// without addresses is not an error here; connecting fails later.
    pub(crate) fn new(
        address: &ServerAddress,
        ucx: Option<&Arc<UcxClient>>,
        interval: Duration,
        lookup: Lookup,
    ) -> Resolver {
        let has_name = match &address.endpoint {
            Endpoint::Tcp { host, .. } | Endpoint::UcxTcp { host, .. } => {
                host.parse::<IpAddr>().is_err()
            }
            Endpoint::Unix(_) | Endpoint::UcxUnix(_) => false,
        };
        let resolver = Resolver {
            endpoint: address.endpoint.clone(),
            has_name,
            ucx: ucx.filter(|_| address.endpoint.is_ucx()).cloned(),
            lookup,
            interval,
            created: time::now(),
            due_ms: AtomicU64::new(0),
            version: AtomicU64::new(0),
            state: Mutex::default(),
        };
        resolver.resolve();
        resolver.set_due(time::now());
        resolver
    }

    /// The host of the server's address; empty if the address is a path.
    pub(crate) fn host(&self) -> &str {
        match &self.endpoint {
            Endpoint::Tcp { host, .. } | Endpoint::UcxTcp { host, .. } => host,
            Endpoint::Unix(_) | Endpoint::UcxUnix(_) => "",
        }
    }

    fn state(&self) -> MutexGuard<'_, ResolverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks the addresses up. Returns false if the server has failed meanwhile.
    fn resolve(&self) -> bool {
        let start = time::now();
        let found: Vec<SocketAddress> = match &self.endpoint {
            Endpoint::Unix(path) | Endpoint::UcxUnix(path) => {
                vec![SocketAddress::Unix(socket_path(path))]
            }
            Endpoint::Tcp { host, port } | Endpoint::UcxTcp { host, port } => {
                let found = (self.lookup)(host, *port);
                found
                    .into_iter()
                    .flatten()
                    .map(SocketAddress::Tcp)
                    .collect()
            }
        };
        let peer = |address| match &self.ucx {
            Some(ucx) => Peer::Ucx(address, ucx.clone()),
            None => Peer::Socket(address),
        };
        let found: Vec<Peer> = found.into_iter().map(peer).collect();
        let mut state = self.state();
        let peers = &mut state.peers;
        // If the addresses are the same, keep the order that `try_last` gave them.
        let is_same = peers.len() == found.len() && found.iter().all(|peer| peers.contains(peer));
        // If the resolver fails, the addresses that it found before are the best available.
        if !found.is_empty() && !is_same {
            *peers = found;
            // Relaxed, here and below: a call that reads the number before keeps a connection once
            // more. The addresses are behind the lock.
            self.version.fetch_add(1, Ordering::Relaxed);
        }
        if state.failed_at.is_some_and(|failed_at| failed_at > start) {
            return false;
        }
        // Not when the lookup began: the addresses must be usable even if it took very long.
        state.resolved_at = Some(time::now());
        state.running = None;
        true
    }

    /// Moves an address behind the others, because connecting to it takes longer than a call may
    /// take.
    pub(crate) fn try_last(&self, peer: &Peer) {
        let peers = &mut self.state().peers;
        if let Some(at) = peers.iter().position(|own| own == peer) {
            peers[at..].rotate_left(1);
        }
    }

    #[cfg(test)]
    pub(crate) fn set_peers(&self, peers: Vec<Peer>) {
        self.state().peers = peers;
    }

    /// The addresses to connect to now.
    ///
    /// # Errors
    /// The name has no address.
    pub(crate) fn addresses(resolver: &Arc<Resolver>, now: Instant) -> io::Result<Addresses> {
        let mut state = resolver.state();
        let age = state
            .resolved_at
            .map(|at| now.saturating_duration_since(at));
        if resolver.has_name
            && age.is_none_or(|age| age >= resolver.interval)
            && let Ok(running) = Resolver::start(resolver, &mut state)
        {
            return Ok(Addresses::Unknown(running));
        }
        resolver.known_of(&state).map(Addresses::Known)
    }

    /// The addresses that were found last.
    ///
    /// # Errors
    /// The name has no address.
    pub(crate) fn known(&self) -> io::Result<KnownAddresses> {
        self.known_of(&self.state())
    }

    fn known_of(&self, state: &ResolverState) -> io::Result<KnownAddresses> {
        if state.peers.is_empty() {
            let what = "the name has no address";
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        Ok(KnownAddresses {
            peers: state.peers.clone(),
            version: self.version.load(Ordering::Relaxed),
        })
    }

    /// Whether the name has an address that it had in this version, which becomes the present one.
    /// Resolves the name in the background if that is due.
    pub(crate) fn has_address(
        resolver: &Arc<Resolver>,
        peer: &Peer,
        version: &mut u64,
        now: Instant,
    ) -> bool {
        if !resolver.has_name {
            return true;
        }
        // Relaxed: the lock of `start` decides which call resolves.
        if resolver.since_created_ms(now) >= resolver.due_ms.load(Ordering::Relaxed) {
            // Without a thread, here and below, the addresses stay as they are until the next time.
            let _ = Resolver::start(resolver, &mut resolver.state());
        }
        if *version == resolver.version.load(Ordering::Relaxed) {
            return true;
        }
        let state = resolver.state();
        *version = resolver.version.load(Ordering::Relaxed);
        state.peers.contains(peer)
    }

    /// Resolves the name again, because the server failed or closed a connection: it may have
    /// moved. Calls that connect wait for the result, which is newer than this call.
    pub(crate) fn refresh(resolver: &Arc<Resolver>) {
        if resolver.has_name {
            let mut state = resolver.state();
            (state.resolved_at, state.failed_at) = (None, Some(time::now()));
            let _ = Resolver::start(resolver, &mut state);
        }
    }

    /// Resolves the name in a thread, unless one does.
    fn start(resolver: &Arc<Resolver>, state: &mut ResolverState) -> io::Result<Arc<Resolution>> {
        resolver.set_due(time::now());
        if let Some(running) = &state.running {
            return Ok(Arc::clone(running));
        }
        let resolution = Arc::new(Resolution::new()?);
        let (this, running) = (Arc::clone(resolver), Arc::clone(&resolution));
        let resolve = move || {
            while !this.resolve() {}
            running.end();
        };
        let thread = thread::Builder::new().name("resolver".to_owned());
        thread.spawn(resolve)?;
        state.running = Some(Arc::clone(&resolution));
        Ok(resolution)
    }

    fn since_created_ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.created).as_millis() as u64
    }

    fn set_due(&self, now: Instant) {
        let due_ms = self.since_created_ms(now + self.interval);
        // Relaxed: see above.
        self.due_ms.store(due_ms, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lookups of [`moving`] that have begun, and how many of them may end.
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    static MAY_END: AtomicU64 = AtomicU64::new(1);

    /// The port is the number of the lookup.
    fn moving(_: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        let number = BEGUN.fetch_add(1, Ordering::Relaxed) + 1;
        until(|| MAY_END.load(Ordering::Relaxed) >= number);
        Ok(vec![([127, 0, 0, 1], number as u16).into()])
    }

    fn until(mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_lookup_from_before_a_failure_does_not_say_where_the_server_is_now() {
        let server = ServerAddress::tcp("moving", 1);
        let resolver = Resolver::new(&server, None, Duration::from_secs(60), moving);
        let resolver = Arc::new(resolver);
        Resolver::refresh(&resolver);
        until(|| BEGUN.load(Ordering::Relaxed) == 2);
        Resolver::refresh(&resolver);
        MAY_END.store(100, Ordering::Relaxed);
        let mut found = None;
        until(|| {
            match Resolver::addresses(&resolver, time::now()).expect("it has an address") {
                Addresses::Known(known) => found = Some(known.peers),
                Addresses::Unknown(_) => {}
            }
            found.is_some()
        });
        let third = Peer::Socket(SocketAddress::Tcp(([127, 0, 0, 1], 3).into()));
        assert_eq!(found, Some(vec![third]));
    }

    #[test]
    fn a_lookup_that_takes_longer_than_the_interval_finds_usable_addresses() {
        const DELAY: Duration = Duration::from_millis(30);
        let slow = |_: &str, _: u16| {
            std::thread::sleep(DELAY);
            Ok(vec![([127, 0, 0, 1], 1).into()])
        };
        let server = ServerAddress::tcp("slow", 1);
        let resolver = Resolver::new(&server, None, DELAY, slow);
        let resolved_at = resolver.state().resolved_at.expect("it has an address");
        assert!(resolved_at >= resolver.created + DELAY);
    }

    #[test]
    fn an_address_that_is_tried_last_stays_there_while_the_name_has_the_same_addresses() {
        let server = ServerAddress::tcp("localhost", 1);
        let resolver = Resolver::new(&server, None, Duration::from_secs(60), system_lookup);
        let peers = || resolver.known().expect("every machine has this name").peers;
        let found = peers();
        let mut turned = found.clone();
        turned.reverse();
        resolver.set_peers(turned.clone());
        resolver.resolve();
        assert_eq!(peers(), turned);
        let other = Peer::Socket(SocketAddress::Tcp(([192, 0, 2, 1], 1).into()));
        resolver.set_peers(vec![other.clone()]);
        resolver.resolve();
        assert_eq!(peers(), found);
        resolver.set_peers([std::slice::from_ref(&other), &found[..]].concat());
        for _ in 0..2 {
            resolver.try_last(&other);
            let moved = [&found[..], std::slice::from_ref(&other)].concat();
            assert_eq!(peers(), moved);
        }
    }
}
