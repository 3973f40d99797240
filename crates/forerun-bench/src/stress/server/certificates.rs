//! The server's certificates: files that are replaced while the server runs, and clients that trust
//! their authority.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

/// An authority, and the files of a certificate that it signed.
pub struct Certificates {
    dir: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
    current: CertificateDer<'static>,
}

impl Certificates {
    /// Creates an authority and the first certificate in a directory.
    pub fn new(dir: &Path) -> Result<Certificates> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let mut certificates = Certificates {
            dir: dir.to_owned(),
            current: authority.der().clone(),
            authority,
        };
        certificates.replace()?;
        Ok(certificates)
    }

    /// Replaces the certificate and its key with new ones.
    pub fn replace(&mut self) -> Result<()> {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new(vec!["localhost".to_owned()])?;
        let certificate = params.signed_by(&key, &self.authority)?;
        // The server reads the files only when it is asked to.
        std::fs::write(self.key(), key.serialize_pem()).context("cannot write a key")?;
        std::fs::write(self.certificate(), certificate.pem())
            .context("cannot write a certificate")?;
        self.current = certificate.der().clone();
        Ok(())
    }

    pub fn certificate(&self) -> PathBuf {
        self.dir.join("server.pem")
    }

    pub fn key(&self) -> PathBuf {
        self.dir.join("server.key")
    }

    /// The certificate that the server must present from the last reload on.
    pub fn current(&self) -> &CertificateDer<'static> {
        &self.current
    }

    /// Clients that trust the authority, whichever certificate the server presents.
    pub fn client(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }
}
