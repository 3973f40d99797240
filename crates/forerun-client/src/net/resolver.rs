//! The addresses of a server's name. The client resolves a name when it is created. After the
//! server has failed, a separate thread resolves it again, so that no call waits for the resolver.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use forerun_core::sync::{Arc, Mutex, PoisonError, thread};
use rustix::net::SocketAddrUnix;

use super::plain_socket::Place;
use super::socket::Peer;
use super::ucx::UcxClient;
use crate::server_address::{Endpoint, ServerAddress};

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
    peers: Mutex<Vec<Peer>>,
    resolving: AtomicBool,
}

impl Resolver {
    /// Resolves the server's name. This may take as long as the system's resolver takes. A name
    /// without addresses is not an error here; connecting fails later.
    pub(crate) fn new(address: &ServerAddress, ucx: Option<&Arc<UcxClient>>) -> Resolver {
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
            peers: Mutex::new(Vec::new()),
            resolving: AtomicBool::new(false),
        };
        resolver.resolve();
        resolver
    }

    fn resolve(&self) {
        let found: Vec<Place> = match &self.endpoint {
            Endpoint::Unix(path) | Endpoint::UcxUnix(path) => vec![Place::Unix(socket_path(path))],
            Endpoint::Tcp { host, port } | Endpoint::UcxTcp { host, port } => {
                let found = (host.as_str(), *port).to_socket_addrs();
                found.into_iter().flatten().map(Place::Tcp).collect()
            }
        };
        let peer = |place| match &self.ucx {
            Some(ucx) => Peer::Ucx(place, ucx.clone()),
            None => Peer::Socket(place),
        };
        let found: Vec<Peer> = found.into_iter().map(peer).collect();
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        // If the addresses are the same, keep the order that `try_last` gave them.
        let is_same = peers.len() == found.len() && found.iter().all(|peer| peers.contains(peer));
        // If the resolver fails, the addresses that it found before are the best available.
        if !found.is_empty() && !is_same {
            *peers = found;
        }
    }

    /// Moves an address behind the others, because connecting to it takes longer than a call may
    /// take.
    pub(crate) fn try_last(&self, peer: &Peer) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = peers.iter().position(|own| own == peer) {
            peers[at..].rotate_left(1);
        }
    }

    #[cfg(test)]
    pub(crate) fn set_peers(&self, peers: Vec<Peer>) {
        *self.peers.lock().unwrap_or_else(PoisonError::into_inner) = peers;
    }

    /// The addresses, in the order in which to try them.
    ///
    /// # Errors
    /// The name has no address.
    pub(crate) fn peers(&self) -> io::Result<Vec<Peer>> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.is_empty() {
            let what = "the name has no address";
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        Ok(peers.clone())
    }

    /// Resolves the name again in the background, because the server failed.
    pub(crate) fn refresh(resolver: &Arc<Resolver>) {
        // Relaxed, here and below: the flag only keeps a second thread from doing the same. The
        // addresses are behind a lock.
        if !resolver.has_name || resolver.resolving.swap(true, Ordering::Relaxed) {
            return;
        }
        let this = Arc::clone(resolver);
        let resolve = move || {
            this.resolve();
            this.resolving.store(false, Ordering::Relaxed);
        };
        let thread = thread::Builder::new().name("resolver".to_owned());
        if thread.spawn(resolve).is_err() {
            resolver.resolving.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_tried_last_stays_there_while_the_name_has_the_same_addresses() {
        let resolver = Resolver::new(&ServerAddress::tcp("localhost", 1), None);
        let found = resolver.peers().expect("every machine has this name");
        let mut turned = found.clone();
        turned.reverse();
        resolver.set_peers(turned.clone());
        resolver.resolve();
        assert_eq!(resolver.peers().expect("as before"), turned);
        let other = Peer::Socket(Place::Tcp(([192, 0, 2, 1], 1).into()));
        resolver.set_peers(vec![other.clone()]);
        resolver.resolve();
        assert_eq!(resolver.peers().expect("as before"), found);
        resolver.set_peers([std::slice::from_ref(&other), &found[..]].concat());
        for _ in 0..2 {
            resolver.try_last(&other);
            let moved = [&found[..], std::slice::from_ref(&other)].concat();
            assert_eq!(resolver.peers().expect("as set"), moved);
        }
    }
}
