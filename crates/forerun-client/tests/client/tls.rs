//! Connections over TLS.

use crate::testing;

use std::fs;
use std::path::PathBuf;

use forerun_client::{Client, Credentials, Error, ServerAddress, TlsOptions};
use forerun_server::{Listen, Server, ServerOptions, VerifyClient};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use testing::{address, options, start};

/// An authority, and certificates for a server and a client.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        let files = Files(tempfile::tempdir().expect("a directory"));
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("it signs itself");
        fs::write(files.path("ca.pem"), authority.pem()).expect("a file");
        for name in ["server", "client"] {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(vec!["cache.example".to_owned()]).expect("a name");
            let certificate = params.signed_by(&key, &authority).expect("it is signed");
            fs::write(files.path(&format!("{name}.pem")), certificate.pem()).expect("a file");
            fs::write(files.path(&format!("{name}.key")), key.serialize_pem()).expect("a file");
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn server(&self, verify: VerifyClient) -> Server {
        let listen = Listen::parse("127.0.0.1:0", 0).expect("an address");
        let (chain, key) = (self.path("server.pem"), self.path("server.key"));
        let tls = forerun_server::TlsOptions::new(chain, key);
        let tls = tls.authorities(self.path("ca.pem")).verify_client(verify);
        fs::write(self.path("users"), "alice:s3cret\n").expect("a file");
        start(
            ServerOptions::new(listen)
                .tls(tls)
                .auth_file(self.path("users")),
        )
    }

    fn options(&self) -> TlsOptions {
        TlsOptions::new(self.path("ca.pem")).server_name("cache.example".to_owned())
    }
}

fn client(server: &Server, tls: TlsOptions) -> Result<Client, Error> {
    let address: ServerAddress = address(server).into();
    let alice = Credentials::new("alice", "s3cret");
    Client::new([address], options().credentials(alice).tls(tls))
}

#[test]
fn values_of_any_size_and_batches_go_through_tls() {
    let files = Files::new();
    let servers = [
        files.server(VerifyClient::No),
        files.server(VerifyClient::No),
    ];
    for protocol in testing::PROTOCOLS {
        let alice = Credentials::new("alice", "s3cret");
        let options = options().protocol(protocol).credentials(alice);
        let client = testing::client_of(&servers, options.tls(files.options()));
        use_values_and_batches(&client);
    }
}

fn use_values_and_batches(client: &Client) {
    let large = b"0123456789".repeat(90_000);
    client.set("large", &large).expect("stored");
    let keys: Vec<String> = (0..500).map(|number| format!("key:{number}")).collect();
    for key in &keys {
        client.set(key, key).expect("stored");
    }
    for _ in 0..3 {
        assert_eq!(
            client
                .get("large")
                .expect("it answers")
                .expect("it is there")
                .data,
            large
        );
        let values = testing::multi_get(client, &keys).expect("good keys");
        for (key, value) in keys.iter().zip(values.iter()) {
            assert_eq!(value.expect("it is there").data, key.as_bytes());
        }
    }
}

#[test]
fn a_certificate_for_another_name_or_of_another_authority_is_refused() {
    let files = Files::new();
    let server = files.server(VerifyClient::No);
    for (tls, reason) in [
        (
            files.options().server_name("other.example".to_owned()),
            "NotValidForName",
        ),
        (files.options().server_name(None), "NotValidForName"),
        (
            TlsOptions::new(Files::new().into_path("ca.pem"))
                .server_name("cache.example".to_owned()),
            "BadSignature",
        ),
    ] {
        let error = client(&server, tls)
            .expect("a client")
            .get("k")
            .expect_err("refused");
        let error = error.to_string();
        assert!(
            error.contains("ertificate") || error.contains(reason),
            "{error}"
        );
    }
}

impl Files {
    /// The path of a file that outlives this.
    fn into_path(self, name: &str) -> PathBuf {
        self.0.keep().join(name)
    }
}

#[test]
fn a_client_shows_its_certificate() {
    let files = Files::new();
    let server = files.server(VerifyClient::Require);
    let (chain, key) = (files.path("client.pem"), files.path("client.key"));
    let shown = files.options().certificate((chain, key));
    client(&server, shown)
        .expect("a client")
        .set("k", "v")
        .expect("stored");
    let hidden = client(&server, files.options()).expect("a client");
    assert!(hidden.set("k", "v").is_err());
}

#[test]
fn a_server_without_tls_is_a_failure() {
    let files = Files::new();
    let listen = Listen::parse("127.0.0.1:0", 0).expect("an address");
    let server = start(ServerOptions::new(listen));
    let error = client(&server, files.options()).expect("a client").get("k");
    let error = error.expect_err("it speaks no TLS").to_string();
    assert!(error.starts_with("server 127.0.0.1:"), "{error}");
}

#[test]
fn bad_files_are_named() {
    let files = Files::new();
    let server = files.server(VerifyClient::No);
    fs::write(files.path("empty"), "").expect("a file");
    for (tls, name) in [
        (
            files.options().authorities(files.path("none.pem")),
            "none.pem",
        ),
        (files.options().authorities(files.path("empty")), "empty"),
        (
            files
                .options()
                .certificate((files.path("empty"), files.path("client.key"))),
            "empty",
        ),
        (
            files
                .options()
                .certificate((files.path("client.pem"), files.path("client.pem"))),
            "client.pem",
        ),
    ] {
        let error = client(&server, tls).expect_err("it is bad");
        assert!(matches!(error, Error::TlsFile { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}
