//! The client's side of a connection, plain or with TLS, a few bytes at a time.

use std::io::{self, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use anyhow::Context;
use forerun_server::{MinVersion, TlsOptions, VerifyClient};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

/// Maximum bytes of a TLS record that a client makes.
const RECORD_BYTES: usize = 16 << 10;

/// A certificate for this process's servers, and the roots that its clients trust.
pub struct Certificates {
    /// Removed with its files when the process ends normally.
    _directory: tempfile::TempDir,
    pub server: TlsOptions,
    /// A client that uses TLS 1.3, and one that uses only 1.2.
    pub client: Arc<ClientConfig>,
    pub client_tls12: Arc<ClientConfig>,
}

/// The process's certificate, made once. It uses Ed25519, whose signatures all have the same
/// length, so the length of a seed's handshakes never changes.
///
/// # Errors
/// A description, if the files cannot be written.
pub fn certificates() -> anyhow::Result<&'static Certificates> {
    static CERTIFICATES: LazyLock<Result<Certificates, String>> =
        LazyLock::new(|| make_certificates().map_err(|error| format!("{error:#}")));
    CERTIFICATES
        .as_ref()
        .map_err(|error| anyhow::anyhow!("{error}"))
}

fn make_certificates() -> anyhow::Result<Certificates> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
    let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()])?;
    parameters.serial_number = Some(rcgen::SerialNumber::from(17_u64));
    let certificate = parameters.self_signed(&key)?;
    let directory = tempfile::tempdir().context("no directory for certificates")?;
    let write = |name: &str, text: String| -> io::Result<PathBuf> {
        let path = directory.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    };
    let server = TlsOptions::new(
        write("cert.pem", certificate.pem())?,
        write("key.pem", key.serialize_pem())?,
    )
    .authorities(None)
    .verify_client(VerifyClient::No)
    .min_version(MinVersion::Tls12);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(certificate.der().to_vec()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = |version: &'static SupportedProtocolVersion| -> anyhow::Result<_> {
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])?
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        client.resumption = Resumption::disabled();
        Ok(Arc::new(client))
    };
    Ok(Certificates {
        client: client(&TLS13)?,
        client_tls12: client(&TLS12)?,
        _directory: directory,
        server,
    })
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Bytes,
    Nothing,
    End,
}

/// A client's connection.
pub struct Wire<T> {
    pub socket: T,
    tls: Option<Box<ClientConnection>>,
    queue: Vec<u8>,
    /// How much of the queue the socket or TLS has taken.
    taken: usize,
    /// Bytes of plain text that TLS has taken and that have reached the socket completely.
    encrypted: u64,
    delivered: u64,
    closes: bool,
    /// Bytes that are not TLS, which are sent after everything else.
    raw: Option<Vec<u8>>,
    /// The buffer for reads.
    piece: Vec<u8>,
}

impl<T: Read + Write> Wire<T> {
    /// # Errors
    /// Errors of TLS.
    pub fn new(socket: T, tls: Option<Arc<ClientConfig>>) -> anyhow::Result<Wire<T>> {
        let name = ServerName::try_from("localhost")?;
        let tls = tls.map(|config| ClientConnection::new(config, name).map(Box::new));
        Ok(Wire {
            socket,
            tls: tls.transpose()?,
            queue: Vec::new(),
            taken: 0,
            encrypted: 0,
            delivered: 0,
            closes: false,
            raw: None,
            piece: vec![0; RECORD_BYTES],
        })
    }

    pub fn queue(&mut self, bytes: &[u8]) {
        self.queue.extend_from_slice(bytes);
    }

    /// Bytes of plain text that wait to be sent.
    pub fn queued(&self) -> usize {
        self.queue.len() - self.taken
    }

    /// Bytes of plain text that the server can read.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    pub fn is_handshaking(&self) -> bool {
        let tls = self.tls.as_ref().filter(|_| !self.has_sent_raw());
        tls.is_some_and(|tls| tls.is_handshaking())
    }

    /// Sends these bytes from now on and nothing else. Bytes that are still queued are never sent.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.raw.get_or_insert_with(|| bytes.to_vec());
    }

    pub fn has_sent_raw(&self) -> bool {
        self.raw.is_some()
    }

    pub fn wants_send(&self) -> bool {
        if let Some(raw) = &self.raw {
            return !raw.is_empty();
        }
        match &self.tls {
            Some(tls) => tls.wants_write() || (!tls.is_handshaking() && self.queued() > 0),
            None => self.queued() > 0,
        }
    }

    /// Sends TLS's close_notify after the queued bytes.
    pub fn close_notify(&mut self) {
        if let Some(tls) = &mut self.tls
            && !std::mem::replace(&mut self.closes, true)
        {
            tls.send_close_notify();
        }
    }

    /// Sends at most `max_bytes` bytes.
    ///
    /// # Errors
    /// Errors of the socket; `WouldBlock` if it takes no bytes.
    pub fn send(&mut self, max_bytes: usize) -> io::Result<()> {
        if let Some(raw) = &mut self.raw {
            let count = self.socket.write(&raw[..raw.len().min(max_bytes)])?;
            raw.drain(..count);
            return Ok(());
        }
        let Some(tls) = &mut self.tls else {
            let end = self.queue.len().min(self.taken + max_bytes);
            let count = self.socket.write(&self.queue[self.taken..end])?;
            self.taken += count;
            self.delivered += count as u64;
            self.shorten();
            return Ok(());
        };
        if !tls.wants_write() && !tls.is_handshaking() {
            let end = self.queue.len().min(self.taken + RECORD_BYTES);
            let count = tls.writer().write(&self.queue[self.taken..end])?;
            self.taken += count;
            self.encrypted += count as u64;
        }
        let mut limited = Limited {
            socket: &mut self.socket,
            left: max_bytes,
        };
        let mut sent = Ok(());
        while tls.wants_write() && limited.left > 0 {
            if let Err(error) = tls.write_tls(&mut limited) {
                sent = Err(error);
                break;
            }
        }
        if !tls.wants_write() {
            self.delivered = self.encrypted;
        }
        self.shorten();
        sent
    }

    fn shorten(&mut self) {
        if self.taken == self.queue.len() || self.taken > 1 << 20 {
            self.queue.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// Reads at most `max_bytes` bytes from the socket and appends their plain text to `into`.
    ///
    /// # Errors
    /// Errors of the socket or of TLS.
    pub fn receive(&mut self, max_bytes: usize, into: &mut Vec<u8>) -> io::Result<Received> {
        let before = into.len();
        let Some(tls) = &mut self.tls else {
            let mut left = max_bytes;
            while left > 0 {
                let free_bytes = left.min(self.piece.len());
                match self.socket.read(&mut self.piece[..free_bytes]) {
                    Ok(0) if into.len() == before => return Ok(Received::End),
                    Ok(0) => break,
                    Ok(count) => {
                        into.extend_from_slice(&self.piece[..count]);
                        left -= count;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            return Ok(if into.len() > before {
                Received::Bytes
            } else {
                Received::Nothing
            });
        };
        let mut limited = Limited {
            socket: &mut self.socket,
            left: max_bytes,
        };
        let mut ended = false;
        while limited.left > 0 && !ended {
            match tls.read_tls(&mut limited) {
                Ok(0) => ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            tls.process_new_packets()
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            loop {
                match tls.reader().read(&mut self.piece) {
                    Ok(0) => {
                        ended = true;
                        break;
                    }
                    Ok(count) => into.extend_from_slice(&self.piece[..count]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                        ended = true;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(match (into.len() > before, ended) {
            (true, _) => Received::Bytes,
            (false, true) => Received::End,
            (false, false) => Received::Nothing,
        })
    }
}

/// A socket that limits how many bytes are read or written.
struct Limited<'s, T> {
    socket: &'s mut T,
    left: usize,
}

impl<T: Read> Read for Limited<'_, T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let max_bytes = into.len().min(self.left);
        if max_bytes == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = self.socket.read(&mut into[..max_bytes])?;
        self.left -= count;
        Ok(count)
    }
}

impl<T: Write> Write for Limited<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let max_bytes = bytes.len().min(self.left);
        if max_bytes == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = self.socket.write(&bytes[..max_bytes])?;
        self.left -= count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
