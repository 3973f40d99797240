//! TLS: reads the certificate, the key and the client authorities, and reloads them while the
//! server runs. The options follow memcached's `ssl_*`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forerun_core::sync::{PoisonError, RwLock};
use forerun_wire::private_key;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, RootCertStore, ServerConfig};

use crate::error::Error;
use crate::regular_file;

use super::certificate_expiry::not_after_unix_s;

/// Whether clients must show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyClient {
    /// Clients are not asked for a certificate (`ssl_verify_mode=0`).
    #[default]
    No,
    /// Clients are asked for a certificate. If they send one, it must be valid
    /// (`ssl_verify_mode=1`).
    Request,
    /// Clients must send a valid certificate (`ssl_verify_mode=2`; 3 means the same here, because
    /// no connection renegotiates).
    Require,
}

/// The oldest version of TLS that the server accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MinVersion {
    /// TLS 1.2 and 1.3. Older versions are never accepted.
    #[default]
    Tls12,
    /// TLS 1.3 only.
    Tls13,
}

/// The files and settings for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsOptions {
    /// PEM file of the server's certificate and its intermediate certificates (`ssl_chain_cert`).
    pub certificates: PathBuf,
    /// PEM file of the certificate's key (`ssl_key`). It may be the same file as `certificates`.
    pub key: PathBuf,
    /// PEM file of the authorities for clients' certificates (`ssl_ca_cert`). Required if clients
    /// are verified. Default: none.
    pub authorities: Option<PathBuf>,
    /// Whether clients must show a certificate (`ssl_verify_mode`). Default: no.
    pub verify_client: VerifyClient,
    /// The oldest version that the server accepts (`ssl_min_version`). Default: TLS 1.2.
    pub min_version: MinVersion,
}

forerun_core::setters! {
    TlsOptions { verify_client: VerifyClient, min_version: MinVersion } into {
        certificates: PathBuf,
        key: PathBuf,
        authorities: Option<PathBuf>,
    }
}

impl TlsOptions {
    /// A certificate with its key. Clients need no certificate, and TLS 1.2 is accepted.
    pub fn new(certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> TlsOptions {
        TlsOptions {
            certificates: certificates.into(),
            key: key.into(),
            authorities: None,
            verify_client: VerifyClient::default(),
            min_version: MinVersion::default(),
        }
    }

    /// Reads the files and builds rustls's configuration. `now` is the current time.
    ///
    /// # Errors
    /// [`Error::Tls`] with the file that cannot be read, has no usable content, or does not match
    /// the others.
    fn load(&self, now: Instant) -> Result<Loaded, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions: &[&rustls::SupportedProtocolVersion] = match self.min_version {
            MinVersion::Tls12 => &[&rustls::version::TLS12, &rustls::version::TLS13],
            MinVersion::Tls13 => &[&rustls::version::TLS13],
        };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(|error| wrong(&self.certificates, error))?;
        let builder = match self.verify_client {
            VerifyClient::No => builder.with_no_client_auth(),
            verify => {
                let roots = self.roots()?.into();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
                let verifier = if verify == VerifyClient::Request {
                    verifier.allow_unauthenticated()
                } else {
                    verifier
                };
                let path = self.authorities.as_deref().unwrap_or(&self.certificates);
                let verifier = verifier.build().map_err(|error| wrong(path, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let chain = certificates(&self.certificates)?;
        let not_after_unix_s = chain.iter().filter_map(|one| not_after_unix_s(one)).min();
        let key =
            private_key::read(&self.key, &provider).map_err(|reason| wrong(&self.key, reason))?;
        let config = builder
            .with_single_cert(chain, key)
            .map_err(|error| wrong(&self.certificates, error))?;
        Ok(Loaded {
            config: Arc::new(config),
            at: now,
            not_after_unix_s,
        })
    }

    fn roots(&self) -> Result<RootCertStore, Error> {
        let Some(path) = &self.authorities else {
            let reason = "clients must be verified, but no file of authorities is given";
            return Err(wrong(&self.certificates, reason));
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| wrong(path, error))?;
        }
        Ok(roots)
    }
}

/// The TLS configuration that new connections use.
pub(crate) struct TlsFiles {
    options: TlsOptions,
    loaded: RwLock<Loaded>,
}

/// A configuration, and when its files were read.
struct Loaded {
    config: Arc<ServerConfig>,
    at: Instant,
    /// When the first certificate of the chain expires, in seconds since 1970.
    not_after_unix_s: Option<u64>,
}

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Tls`], as [`TlsOptions::load`].
    pub(crate) fn load(options: &TlsOptions, now: Instant) -> Result<TlsFiles, Error> {
        Ok(TlsFiles {
            options: options.clone(),
            loaded: RwLock::new(options.load(now)?),
        })
    }

    /// Reads the files again. Connections that begin later use the new files. If a file cannot be
    /// used, nothing changes.
    ///
    /// # Errors
    /// [`Error::Tls`], as [`TlsOptions::load`], or if one of the files is no longer a regular one.
    pub(crate) fn reload(&self, now: Instant) -> Result<(), Error> {
        let options = &self.options;
        let files = [Some(&options.certificates), Some(&options.key)];
        for path in files
            .into_iter()
            .chain([options.authorities.as_ref()])
            .flatten()
        {
            regular_file::check(path).map_err(|error| wrong(path, error))?;
        }
        let loaded = options.load(now)?;
        // The whole value is replaced at once, so a panic elsewhere cannot leave half of it.
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(())
    }

    /// The configuration for a new connection.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.config.clone()
    }

    /// When the files in use were read.
    pub(crate) fn loaded_at(&self) -> Instant {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.at
    }

    /// When the first certificate of the chain in use expires, in seconds since 1970.
    pub(crate) fn not_after_unix_s(&self) -> Option<u64> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.not_after_unix_s
    }
}

/// Why the server refuses a client, in words.
pub(crate) fn refusal(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(other))
            if matches!(
                other.0.downcast_ref(),
                Some(webpki::Error::UnsupportedCertVersion)
            ) =>
        {
            "the client's certificate has version 1 of X.509; version 3 is required".to_owned()
        }
        error => error.to_string(),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path)
        .and_then(|found| found.collect::<Result<Vec<_>, _>>())
        .map_err(|error| wrong(path, error))?;
    if read.is_empty() {
        return Err(wrong(path, "it contains no certificate"));
    }
    Ok(read)
}

fn wrong(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::Tls {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}
