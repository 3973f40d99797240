//! TLS over TCP. The options name files, as the server's options do.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_wire::private_key;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::error::Error;

/// The files and settings for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsOptions {
    /// PEM file of the authorities that may sign the servers' certificates.
    pub authorities: PathBuf,
    /// The name in the servers' certificates. Default: none; each server's certificate must be for
    /// the host of its address.
    pub server_name: Option<String>,
    /// PEM files of the client's certificate and of its key, if the servers ask for one. Default:
    /// none.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

forerun_core::setters! {
    TlsOptions {} into {
        authorities: PathBuf,
        server_name: Option<String>,
        certificate: Option<(PathBuf, PathBuf)>,
    }
}

impl TlsOptions {
    /// Options for TLS with servers whose certificates these authorities have signed.
    pub fn new(authorities: impl Into<PathBuf>) -> TlsOptions {
        TlsOptions {
            authorities: authorities.into(),
            server_name: None,
            certificate: None,
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::TlsFile`] with the file that cannot be used.
    pub(crate) fn load(&self) -> Result<TlsConfig, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.authorities)? {
            let added = roots.add(certificate);
            added.map_err(|error| wrong(&self.authorities, error))?;
        }
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&self.authorities, error))?
            .with_root_certificates(roots);
        let config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((chain, key_file)) => {
                let key = private_key::read(key_file, &provider);
                let key = key.map_err(|reason| wrong(key_file, reason))?;
                builder
                    .with_client_auth_cert(certificates(chain)?, key)
                    .map_err(|error| wrong(chain, error))?
            }
        };
        Ok(TlsConfig {
            config: Arc::new(config),
            server_name: self.server_name.clone(),
        })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_file_iter(path).map_err(|error| wrong(path, error))?;
    let found: Result<Vec<_>, _> = found.collect();
    let found = found.map_err(|error| wrong(path, error))?;
    if found.is_empty() {
        Err(wrong(path, "it has no certificate"))
    } else {
        Ok(found)
    }
}

fn wrong(path: &Path, reason: impl ToString) -> Error {
    Error::TlsFile {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// Maximum number of socket reads per read. A server may send an endless stream of records without
/// application data, such as tickets, and the caller has a deadline.
const SOCKET_READS_MAX: usize = 16;

/// State shared by all connections of a client.
#[derive(Debug)]
pub(crate) struct TlsConfig {
    config: Arc<ClientConfig>,
    server_name: Option<String>,
}

/// A TLS connection over a socket that never blocks.
#[derive(Debug)]
pub(crate) struct TlsStream {
    connection: ClientConnection,
    socket: TcpStream,
}

impl TlsStream {
    /// Prepares the handshake with a server at `host`.
    pub(crate) fn new(tls: &TlsConfig, host: &str, socket: TcpStream) -> io::Result<TlsStream> {
        let name = tls.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(&tls.config), name);
        Ok(TlsStream {
            connection: connection.map_err(io::Error::other)?,
            socket,
        })
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Continues the handshake. `WouldBlock`: it has not ended.
    pub(crate) fn handshake(&mut self) -> io::Result<()> {
        loop {
            self.flush()?;
            if !self.connection.is_handshaking() {
                return Ok(());
            }
            if self.connection.read_tls(&mut self.socket)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.process()?;
        }
    }

    /// Processes the records that were read.
    fn process(&mut self) -> io::Result<()> {
        let processed = self.connection.process_new_packets();
        processed.map(drop).map_err(|error| {
            // The alert tells the server why.
            let _ = self.connection.write_tls(&mut self.socket);
            io::Error::other(error)
        })
    }
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for TlsStream {
    /// Reads records until one has application data, or until the socket is empty. Stops early, as
    /// if interrupted, if many records have no application data.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        for _ in 0..SOCKET_READS_MAX {
            match self.connection.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if self.connection.read_tls(&mut self.socket)? == 0 {
                // The reader distinguishes an end after close_notify from one without it.
                return self.connection.reader().read(bytes);
            }
            self.process()?;
            while self.connection.wants_write() && self.connection.is_handshaking() {
                self.connection.write_tls(&mut self.socket)?;
            }
        }
        match self.connection.reader().read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::ErrorKind::Interrupted.into())
            }
            result => result,
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.connection.writer().write(bytes)?;
        if taken == 0 {
            // The buffer is full: send from it, and report when the socket is full too.
            self.flush()?;
            return match self.connection.writer().write(bytes)? {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                taken => Ok(taken),
            };
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection};

    use super::*;

    #[test]
    fn a_clients_key_is_read_whatever_kind_its_label_names() {
        let names = vec!["client.example".to_owned()];
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(names).expect("a certificate");
        let dir = tempfile::tempdir().expect("a directory");
        let (chain, key) = (dir.path().join("chain.pem"), dir.path().join("key.pem"));
        std::fs::write(&chain, cert.pem()).expect("it is written");
        let load = |pem: &str| {
            std::fs::write(&key, pem).expect("it is written");
            let options = TlsOptions::new(&chain).certificate(Some((chain.clone(), key.clone())));
            options.load()
        };
        let pem = signing_key.serialize_pem();
        for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"] {
            load(&pem.replace("PRIVATE KEY", label)).expect(label);
        }
        // The error names the file of the key, not the one of the certificate.
        let error = load("no key").expect_err("no key").to_string();
        assert!(error.contains("key.pem"), "{error}");
    }

    #[test]
    fn a_read_ends_although_a_server_sends_records_without_end() {
        let names = vec!["cache.example".to_owned()];
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(names).expect("a certificate");
        let authorities = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&authorities, cert.pem()).expect("it is written");
        let tls = TlsOptions::new(authorities.path()).load().expect("good");
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("as the client")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("good");
        // Tickets follow the handshake and have no application data.
        config.send_tls13_tickets = 12_000;
        config.max_fragment_size = Some(512);

        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let socket = TcpStream::connect(address).expect("a connection");
        let (mut peer, _) = listener.accept().expect("a connection");
        let server = std::thread::spawn(move || {
            let mut server = ServerConnection::new(Arc::new(config)).expect("good");
            server.complete_io(&mut peer).expect("a handshake");
            while server.wants_write() {
                server.write_tls(&mut peer).expect("the client is there");
            }
            peer
        });
        let mut client = TlsStream::new(&tls, "cache.example", socket).expect("a name");
        client
            .connection
            .complete_io(&mut client.socket)
            .expect("a handshake");
        let peer = server.join().expect("all is sent");
        client.socket.set_nonblocking(true).expect("a socket");
        let error = client.read(&mut [0; 100]).expect_err("nothing to read");
        assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
        assert!(client.socket.peek(&mut [0; 1]).is_ok(), "more waits");
        // The client continues where it stopped, up to the end.
        let kinds = std::iter::from_fn(|| client.read(&mut [0; 100]).err());
        let kinds = kinds.map(|error| error.kind());
        let interrupted = kinds.take_while(|kind| *kind == io::ErrorKind::Interrupted);
        assert!(interrupted.count() < 100);
        drop(peer);
    }
}
