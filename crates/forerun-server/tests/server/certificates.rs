//! Certificates for the servers and clients of tests.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_server::{MinVersion, Server, TlsOptions, VerifyClient};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::test_server::connect;

/// An authority, a server's certificate, a client's certificate, and a certificate of an unknown
/// authority.
pub struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    pub fn new() -> Certificates {
        let certificates = Certificates {
            dir: tempfile::tempdir().expect("a directory"),
        };
        certificates.replace();
        certificates
    }

    /// Replaces every file. The new files do not match the old ones.
    pub fn replace(&self) {
        let authority = issuer();
        let stranger = issuer();
        let write = |name: &str, text: String| fs::write(self.path(name), text).expect("a file");
        write("ca.pem", authority.pem());
        for (name, issuer) in [
            ("server", &authority),
            ("client", &authority),
            ("stranger", &stranger),
        ] {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
            let certificate = params.signed_by(&key, issuer).expect("it is signed");
            write(&format!("{name}.pem"), certificate.pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn options(&self, verify_client: VerifyClient) -> TlsOptions {
        TlsOptions::new(self.path("server.pem"), self.path("server.key"))
            .authorities(self.path("ca.pem"))
            .verify_client(verify_client)
            .min_version(MinVersion::Tls12)
    }

    /// A TLS client with or without a certificate.
    pub fn client(
        &self,
        shows: Option<&str>,
        server: &Server,
    ) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots
            .add(certificate(&self.path("ca.pem")))
            .expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let config = match shows {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let chain = vec![certificate(&self.path(&format!("{name}.pem")))];
                let key = self.path(&format!("{name}.key"));
                let key = PrivateKeyDer::from_pem_file(key).expect("a key");
                builder.with_client_auth_cert(chain, key).expect("they fit")
            }
        };
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
        StreamOwned::new(connection, connect(server))
    }
}

fn issuer() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("it signs itself")
}

fn certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).expect("a certificate")
}
