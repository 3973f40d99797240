//! Where a server listens, and its weight.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::Error;

/// memcached's port.
pub const DEFAULT_PORT: u16 = 11211;

/// A server: its address, its weight, and the name that determines the placement of keys.
///
/// As text: `host`, `host:port`, `host:port:weight` as in twemproxy's configuration, `[::1]:port`,
/// or the path of a Unix socket, which begins with `/` or `unix:`. For a connection over UCX,
/// `ucx://` and then any of these: `ucx://host:port`, `ucx:///path`. It needs the feature `ucx`.
///
/// ```
/// use forerun_client::ServerAddress;
///
/// let server: ServerAddress = "cache-1.example:11212:3".parse()?;
/// assert_eq!(server.weight, 3);
/// assert_eq!(server.to_string(), "cache-1.example:11212");
/// # Ok::<(), forerun_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ServerAddress {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Its share of the keys, relative to the other servers' weights. 0 counts as 1.
    pub weight: u32,
    /// The name that is hashed to place keys, for example the server's name in twemproxy's
    /// configuration. Default: a name made from the address. With a name, a server can move to
    /// another address and keep its keys.
    pub ring_name: Option<String>,
}

/// A place where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Endpoint {
    /// A host name or an IP address, and a port.
    Tcp {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// A server over UCX, with control sockets at this host and port.
    UcxTcp {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
    /// A server over UCX, with control sockets at this path.
    UcxUnix(PathBuf),
}

impl Endpoint {
    /// Whether connections use UCX.
    pub fn is_ucx(&self) -> bool {
        matches!(self, Endpoint::UcxTcp { .. } | Endpoint::UcxUnix(_))
    }

    /// The same place, for connections over UCX.
    fn over_ucx(self) -> Endpoint {
        match self {
            Endpoint::Tcp { host, port } => Endpoint::UcxTcp { host, port },
            Endpoint::Unix(path) => Endpoint::UcxUnix(path),
            ucx => ucx,
        }
    }
}

forerun_core::setters! {
    ServerAddress { weight: u32 } into { endpoint: Endpoint, ring_name: Option<String> }
}

impl ServerAddress {
    /// A server of weight 1.
    pub fn new(endpoint: Endpoint) -> ServerAddress {
        ServerAddress {
            endpoint,
            weight: 1,
            ring_name: None,
        }
    }

    /// A server of weight 1 at a TCP port.
    pub fn tcp(host: impl Into<String>, port: u16) -> ServerAddress {
        let host = host.into();
        ServerAddress::new(Endpoint::Tcp { host, port })
    }

    /// The name that ketama hashes. Libmemcached and twemproxy omit the default port.
    pub(crate) fn ketama_name(&self) -> String {
        match (&self.ring_name, &self.endpoint) {
            (Some(name), _) => name.clone(),
            (None, Endpoint::Tcp { host, port } | Endpoint::UcxTcp { host, port }) => match *port {
                DEFAULT_PORT => host.clone(),
                port => format!("{host}:{port}"),
            },
            (None, Endpoint::Unix(path) | Endpoint::UcxUnix(path)) => {
                format!("{}:0", path.display())
            }
        }
    }

    /// The name that rendezvous hashing uses.
    pub(crate) fn name(&self) -> String {
        match (&self.ring_name, &self.endpoint) {
            (Some(name), _) => name.clone(),
            (None, Endpoint::Tcp { host, port } | Endpoint::UcxTcp { host, port }) => {
                format!("{host}:{port}")
            }
            (None, Endpoint::Unix(path) | Endpoint::UcxUnix(path)) => path.display().to_string(),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.endpoint.is_ucx() {
            f.write_str("ucx://")?;
        }
        match &self.endpoint {
            Endpoint::Tcp { host, port } | Endpoint::UcxTcp { host, port } => {
                if host.contains(':') {
                    write!(f, "[{host}]:{port}")
                } else {
                    write!(f, "{host}:{port}")
                }
            }
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::UcxUnix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl From<std::net::SocketAddr> for ServerAddress {
    fn from(address: std::net::SocketAddr) -> ServerAddress {
        let host = match address {
            // A link-local address is ambiguous without its link.
            std::net::SocketAddr::V6(v6) if v6.scope_id() != 0 => {
                format!("{}%{}", v6.ip(), v6.scope_id())
            }
            _ => address.ip().to_string(),
        };
        ServerAddress::tcp(host, address.port())
    }
}

impl FromStr for ServerAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<ServerAddress, Error> {
        let wrong = |reason: &str| Error::Address {
            text: text.to_owned(),
            reason: reason.to_owned(),
        };
        if let Some(place) = text.strip_prefix("ucx://") {
            if place.starts_with("ucx://") {
                return Err(wrong("ucx:// comes before a host or a path"));
            }
            let server: ServerAddress = place.parse()?;
            let endpoint = server.endpoint.clone().over_ucx();
            return Ok(server.endpoint(endpoint));
        }
        let path = text.strip_prefix("unix:");
        if let Some(path) = path.or(text.starts_with('/').then_some(text)) {
            if path.is_empty() {
                return Err(wrong("the path is empty"));
            }
            return Ok(ServerAddress::new(Endpoint::Unix(path.into())));
        }
        let (host, rest) = match text.strip_prefix('[') {
            Some(text) => {
                let (host, rest) = text.split_once(']').ok_or_else(|| wrong("no ]"))?;
                let rest = match rest {
                    "" => None,
                    rest => Some(
                        rest.strip_prefix(':')
                            .ok_or_else(|| wrong("no : after ]"))?,
                    ),
                };
                (host, rest)
            }
            None => match text.split_once(':') {
                Some((host, rest)) => (host, Some(rest)),
                None => (text, None),
            },
        };
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(wrong("no host"));
        }
        let (port, weight) = match rest {
            None => (None, None),
            Some(rest) => match rest.split_once(':') {
                Some((port, weight)) => (Some(port), Some(weight)),
                None => (Some(rest), None),
            },
        };
        let port = match port.map(str::parse) {
            None => DEFAULT_PORT,
            Some(Ok(port)) if port != 0 => port,
            Some(_) => return Err(wrong("the port is not a number from 1 to 65535")),
        };
        let weight = match weight.map(str::parse) {
            None => 1,
            Some(Ok(weight)) if weight != 0 => weight,
            Some(_) => return Err(wrong("the weight is not a positive number")),
        };
        Ok(ServerAddress::tcp(host, port).weight(weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ServerAddress {
        text.parse().expect(text)
    }

    #[test]
    fn every_form_of_an_address_is_read() {
        assert_eq!(parse("a"), ServerAddress::tcp("a", 11211));
        assert_eq!(parse("a:1"), ServerAddress::tcp("a", 1));
        assert_eq!(parse("a:1:7"), ServerAddress::tcp("a", 1).weight(7));
        assert_eq!(parse("[::1]:5"), ServerAddress::tcp("::1", 5));
        assert_eq!(parse("[::1]"), ServerAddress::tcp("::1", 11211));
        let unix = ServerAddress::new(Endpoint::Unix("/run/m".into()));
        assert_eq!(
            (parse("/run/m"), parse("unix:/run/m")),
            (unix.clone(), unix)
        );
        let ucx = Endpoint::UcxTcp {
            host: "a".to_owned(),
            port: 1,
        };
        assert_eq!(parse("ucx://a:1:7"), ServerAddress::new(ucx).weight(7));
        let ucx = ServerAddress::new(Endpoint::UcxUnix("/run/m".into()));
        assert_eq!(parse("ucx:///run/m"), ucx);
        for text in ["ucx:///run/m", "ucx://a:1", "ucx://[::1]:5"] {
            assert_eq!(parse(text).to_string(), text);
        }
        // A server keeps its keys when it is reached another way.
        assert_eq!(parse("ucx://a:1").ketama_name(), parse("a:1").ketama_name());
        assert_eq!(parse("[::1]:5").to_string(), "[::1]:5");
        assert_eq!(parse("/run/m").to_string(), "unix:/run/m");
    }

    #[test]
    fn an_address_of_one_link_keeps_the_link() {
        let address = "[fe80::1%7]:5".parse::<std::net::SocketAddr>();
        let server = ServerAddress::from(address.expect("an address"));
        assert_eq!(server, parse("[fe80::1%7]:5"));
        assert_eq!(server.to_string(), "[fe80::1%7]:5");
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "no host"),
            (":1", "no host"),
            ("a b:1", "no host"),
            ("unix:", "the path is empty"),
            ("[::1", "no ]"),
            ("[::1]x", "no : after ]"),
            ("a:0", "the port"),
            ("ucx://", "no host"),
            ("ucx://ucx://a", "ucx:// comes before"),
            ("a:65536", "the port"),
            ("a:1:0", "the weight"),
            ("a:1:x", "the weight"),
        ] {
            let error = text.parse::<ServerAddress>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
