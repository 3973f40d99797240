//! TLS over TCP. The options name files, as those of the server do.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::error::Error;

/// The files and settings for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsOptions {
    /// PEM file of the authorities that may sign the servers' certificates.
    pub authorities: PathBuf,
    /// The name that the servers' certificates are for. Default: none, and each server's
    /// certificate must be for the host of its address.
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
    /// TLS with servers whose certificates these authorities have signed.
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
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&self.authorities, error))?
            .with_root_certificates(roots);
        let config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((chain, key_file)) => {
                let key = PrivateKeyDer::from_pem_file(key_file);
                let key = key.map_err(|error| wrong(key_file, error))?;
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
    match found.is_empty() {
        true => Err(wrong(path, "it has no certificate")),
        false => Ok(found),
    }
}

fn wrong(path: &Path, reason: impl ToString) -> Error {
    Error::TlsFile {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// What all connections of a client share.
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
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for TlsStream {
    /// Reads records until one has bytes of the session, or the socket is empty.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if self.connection.read_tls(&mut self.socket)? == 0 {
                // The reader tells an end after close_notify from one without it.
                return self.connection.reader().read(bytes);
            }
            let processed = self.connection.process_new_packets();
            if let Err(error) = processed {
                // The alert tells the server why.
                let _ = self.connection.write_tls(&mut self.socket);
                return Err(io::Error::other(error));
            }
            while self.connection.wants_write() && self.connection.is_handshaking() {
                self.connection.write_tls(&mut self.socket)?;
            }
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
