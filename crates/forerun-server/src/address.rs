//! Listen addresses (TCP and Unix sockets) and their text form, and the addresses of clients.
//!
//! ```text
//!   127.0.0.1            an interface, with the default port
//!   localhost:11212      all addresses of a host name
//!   [::1]:11211          an IPv6 address needs brackets before a port
//!   0.0.0.0:0            any free port
//!   notls:127.0.0.1:11213        no TLS, even if the server has a certificate
//!   unix:/run/forerun.sock       a unix socket
//!   ucx:127.0.0.1:11215          connections over UCX; the address is that of their control sockets
//!   ucx:unix:/run/forerun.ucx    the same with a unix socket
//! ```

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use crate::error::Error;

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub address: Address,
    /// Whether connections use TLS, if the server has a certificate.
    pub tls: bool,
    /// Whether `::` accepts connections over IPv6 only, and not over IPv4 too. A server sets this
    /// if it also listens at an IPv4 address with the same port.
    pub ipv6_only: bool,
    /// How connections over UCX are made, for the addresses of UCX.
    pub ucx: UcxOptions,
    /// The protocol of its connections.
    pub protocol: Protocol,
}

/// What the clients of a listener speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// Memcached's protocol.
    #[default]
    Memcached,
    /// RESP, the protocol of Redis and Valkey.
    Resp,
}

/// A listener's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP address; port 0 means any free port.
    Tcp(SocketAddr),
    /// A Unix socket. The server replaces a stale socket file of an earlier server.
    Unix {
        /// Its path.
        path: PathBuf,
        /// The file's permission bits, which decide who may connect.
        mode: u32,
    },
    /// UCX, with control sockets at this TCP address; port 0 means any free port.
    UcxTcp(SocketAddr),
    /// UCX, with control sockets at this path.
    UcxUnix {
        /// Its path.
        path: PathBuf,
        /// The file's permission bits, which decide who may connect.
        mode: u32,
    },
}

/// How connections over UCX are made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct UcxOptions {
    /// A file with a token of 16 to 256 bytes, which clients must know. Without it, clients must
    /// connect through a Unix socket as the server's user. Default: none.
    pub token_file: Option<PathBuf>,
    /// The network devices that UCX may use, as in its variable `UCX_NET_DEVICES`; UCX listens on
    /// each of them. An address that is not a loopback address requires them. Default: the loopback
    /// device.
    pub net_devices: Option<String>,
}

forerun_core::setters! {
    UcxOptions {} into { token_file: Option<PathBuf>, net_devices: Option<String> }
}

/// The default permission bits of a Unix socket: only its owner may connect.
pub const UNIX_MODE: u32 = 0o700;

impl Listen {
    /// A TCP listener, with TLS if the server has a certificate.
    pub fn tcp(address: SocketAddr) -> Listen {
        Listen {
            address: Address::Tcp(address),
            tls: true,
            ipv6_only: false,
            ucx: UcxOptions::default(),
            protocol: Protocol::default(),
        }
    }

    /// A Unix socket, which never uses TLS.
    pub fn unix(path: impl Into<PathBuf>, mode: u32) -> Listen {
        Listen {
            address: Address::Unix {
                path: path.into(),
                mode,
            },
            tls: false,
            ipv6_only: false,
            ucx: UcxOptions::default(),
            protocol: Protocol::default(),
        }
    }

    /// The same place for clients of another protocol.
    pub fn with_protocol(self, protocol: Protocol) -> Listen {
        Listen { protocol, ..self }
    }

    /// The same addresses, so that no two of them accept the same connections.
    pub(crate) fn apart(listens: &[Listen]) -> Vec<Listen> {
        let tcp = |listen: &Listen| match listen.address {
            Address::Tcp(at) | Address::UcxTcp(at) => Some(at).filter(|at| at.port() != 0),
            _ => None,
        };
        let ipv4 = listens.iter().filter_map(tcp).filter(SocketAddr::is_ipv4);
        let ipv4_ports: Vec<u16> = ipv4.map(|at| at.port()).collect();
        let mut apart = listens.to_vec();
        for listen in &mut apart {
            let ipv6 = tcp(listen).filter(SocketAddr::is_ipv6);
            listen.ipv6_only |= ipv6.is_some_and(|at| ipv4_ports.contains(&at.port()));
        }
        apart
    }

    /// The same place for connections over UCX, which never use TLS and need the feature `ucx`.
    pub fn over_ucx(self, ucx: UcxOptions) -> Listen {
        let address = match self.address {
            Address::Tcp(address) => Address::UcxTcp(address),
            Address::Unix { path, mode } => Address::UcxUnix { path, mode },
            ucx => ucx,
        };
        Listen {
            address,
            tls: false,
            ucx,
            ..self
        }
    }

    /// Parses a listen address in the forms above. A host name may stand for several addresses.
    ///
    /// # Errors
    /// [`Error::Address`] if the text is not an address, or if the name has no address.
    ///
    /// ```
    /// use forerun_server::Listen;
    /// let listens = Listen::parse("notls:[::1]:0", 11211)?;
    /// assert_eq!(listens[0].address.to_string(), "[::1]:0");
    /// assert!(!listens[0].tls);
    /// # Ok::<(), forerun_server::Error>(())
    /// ```
    pub fn parse(text: &str, default_port: u16) -> Result<Vec<Listen>, Error> {
        if let Some(control) = text.strip_prefix("ucx:") {
            if control.starts_with("ucx:") || control.starts_with("notls:") {
                return Err(bad(text, "ucx: comes before an address or unix:"));
            }
            let places = Listen::parse(control, default_port)?;
            let over_ucx = |place: Listen| place.over_ucx(UcxOptions::default());
            return Ok(places.into_iter().map(over_ucx).collect());
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(bad(text, "the path is missing")),
                path => Ok(vec![Listen::unix(path, UNIX_MODE)]),
            };
        }
        let (host_port, tls) = match text.strip_prefix("notls:") {
            Some(host_port) => (host_port, false),
            None => (text, true),
        };
        let addresses = tcp_addresses(text, host_port, default_port)?;
        Ok(addresses
            .into_iter()
            .map(|address| Listen {
                tls,
                ..Listen::tcp(address)
            })
            .collect())
    }
}

fn bad(text: &str, reason: impl fmt::Display) -> Error {
    Error::Address {
        text: text.to_owned(),
        reason: reason.to_string(),
    }
}

fn tcp_addresses(text: &str, host_port: &str, default_port: u16) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(address) = host_port.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    let bare = host_port.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<Ipv6Addr>() {
        return Ok(vec![SocketAddr::new(IpAddr::V6(ip), default_port)]);
    }
    let (host, port) = match host_port.rsplit_once(':') {
        Some((host, port)) => {
            let port = port
                .parse::<u16>()
                .map_err(|_| bad(text, format_args!("{port:?} is not a port")))?;
            (host, port)
        }
        None => (host_port, default_port),
    };
    if host.is_empty() {
        return Err(bad(text, "the interface is missing"));
    }
    let found: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|error| bad(text, error))?
        .collect();
    if found.is_empty() {
        return Err(bad(text, "the name has no address"));
    }
    Ok(found)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix { path, .. } => write!(f, "unix:{}", path.display()),
            Address::UcxTcp(address) => write!(f, "ucx:{address}"),
            Address::UcxUnix { path, .. } => write!(f, "ucx:unix:{}", path.display()),
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Connected over TCP from this address.
    Tcp(SocketAddr),
    /// Connected through a Unix socket.
    Unix,
    /// Connected over UCX, with a control socket from this address.
    UcxTcp(SocketAddr),
    /// Connected over UCX, with a control socket that is a Unix socket.
    UcxUnix,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) if address.is_ipv6() => write!(f, "tcp6:{address}"),
            Peer::Tcp(address) => write!(f, "tcp:{address}"),
            Peer::Unix => f.write_str("unix"),
            Peer::UcxTcp(address) => write!(f, "ucx:{address}"),
            Peer::UcxUnix => f.write_str("ucx:unix"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, bool)> {
        let listens = Listen::parse(text, 11211).expect(text);
        listens
            .iter()
            .map(|listen| (listen.address.to_string(), listen.tls))
            .collect()
    }

    #[test]
    fn every_form_of_listen_address_is_parsed() {
        for (text, address, tls) in [
            ("127.0.0.1", "127.0.0.1:11211", true),
            ("0.0.0.0:0", "0.0.0.0:0", true),
            ("[::1]:7", "[::1]:7", true),
            ("::1", "[::1]:11211", true),
            ("[::1]", "[::1]:11211", true),
            ("notls:127.0.0.1:11213", "127.0.0.1:11213", false),
            ("unix:/run/f.sock", "unix:/run/f.sock", false),
            ("ucx:127.0.0.1:9", "ucx:127.0.0.1:9", false),
            ("ucx:::1", "ucx:[::1]:11211", false),
            ("ucx:unix:/run/f.ucx", "ucx:unix:/run/f.ucx", false),
        ] {
            assert_eq!(read(text), [(address.to_owned(), tls)], "{text}");
        }
        assert!(read("localhost").iter().all(|(_, tls)| *tls));
    }

    #[test]
    fn an_ipv6_address_leaves_ipv4_to_a_listener_of_its_own_at_the_port() {
        let ipv6_only = |texts: &[&str]| -> Vec<bool> {
            let parse = |text: &&str| Listen::parse(text, 11211).expect("an address");
            let listens: Vec<Listen> = texts.iter().flat_map(parse).collect();
            let apart = Listen::apart(&listens);
            apart.iter().map(|listen| listen.ipv6_only).collect()
        };
        assert_eq!(ipv6_only(&["::"]), [false]);
        assert_eq!(ipv6_only(&["::", "0.0.0.0"]), [true, false]);
        assert_eq!(
            ipv6_only(&["127.0.0.1", "::", "[::]:7"]),
            [false, true, false]
        );
        assert_eq!(ipv6_only(&["0.0.0.0:0", "[::]:0"]), [false, false]);
    }

    #[test]
    fn an_invalid_address_is_reported() {
        for text in ["", "unix:", ":80", "127.0.0.1:port", "127.0.0.1:70000"] {
            let error = Listen::parse(text, 11211).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
        for text in [
            "ucx:",
            "ucx:unix:",
            "ucx:ucx:127.0.0.1",
            "ucx:notls:127.0.0.1",
        ] {
            Listen::parse(text, 11211).expect_err(text);
        }
    }
}
