//! TLS and users.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use forerun_server::{Error, Listen, Server, TlsOptions, VerifyClient};

use super::certificates::Certificates;
use super::test_server::{TIMEOUT, ask, cache, connect, options, rest, start, stat, until};

#[test]
fn commands_go_through_tls_whatever_their_size() {
    let certificates = Certificates::new();
    let server = start(options().tls(certificates.options(VerifyClient::No)));
    let mut stream = certificates.client(None, &server);
    ask(&mut stream, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    ask(&mut stream, "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    let value = "0123456789".repeat(90_000);
    ask(
        &mut stream,
        &format!("set large 0 0 900000\r\n{value}\r\n"),
        "STORED\r\n",
    );
    let answer = format!("VALUE large 0 900000\r\n{value}\r\nEND\r\n").repeat(3);
    ask(
        &mut stream,
        "get large\r\nget large\r\nget large\r\n",
        &answer,
    );
    stream.write_all(b"quit\r\n").expect("it is sent");
    assert_eq!(
        stream
            .read(&mut [0])
            .expect("a goodbye, not a torn connection"),
        0
    );
}

/// A server with a listener for TLS and one without, and the address of the latter.
fn start_with_plain_listener(certificates: &Certificates) -> (Server, String) {
    let mut options = options();
    options
        .listen
        .extend(Listen::parse("notls:127.0.0.1:0", 0).expect("it is an address"));
    options.tls = Some(certificates.options(VerifyClient::No));
    let server = start(options);
    let plain = server.addresses()[1].to_string();
    (server, plain)
}

#[test]
fn plain_and_tls_listeners_coexist_and_noise_is_refused() {
    let certificates = Certificates::new();
    let (server, plain) = start_with_plain_listener(&certificates);
    let mut stream = TcpStream::connect(&plain).expect("it accepts");
    ask(&mut stream, "mn\r\n", "MN\r\n");
    let mut noise = connect(&server);
    noise.write_all(b"get key\r\n").expect("it is sent");
    assert!(
        !rest(&mut noise).starts_with(b"END"),
        "TLS's alert, or nothing"
    );
    ask(&mut certificates.client(None, &server), "mn\r\n", "MN\r\n");
}

#[test]
fn clients_are_verified_as_configured() {
    let certificates = Certificates::new();
    // The result in each mode for a client without a certificate, with a valid one, and with one of
    // an unknown authority.
    for (mode, none, stranger) in [
        (VerifyClient::No, true, true),
        (VerifyClient::Request, true, false),
        (VerifyClient::Require, false, false),
    ] {
        let server = start(options().tls(certificates.options(mode)));
        for (shows, let_in) in [
            (None, none),
            (Some("client"), true),
            (Some("stranger"), stranger),
        ] {
            let mut stream = certificates.client(shows, &server);
            let mut answer = [0; 4];
            let said = stream
                .write_all(b"mn\r\n")
                .and_then(|()| stream.read_exact(&mut answer));
            assert_eq!(said.is_ok(), let_in, "{mode:?} {shows:?}");
        }
    }
}

/// Whether a new client that trusts the authority in the files is served.
fn is_trusted(certificates: &Certificates, server: &Server) -> bool {
    let mut stream = certificates.client(None, server);
    let mut answer = [0; 4];
    let said = stream
        .write_all(b"mn\r\n")
        .and_then(|()| stream.read_exact(&mut answer));
    said.is_ok() && answer == *b"MN\r\n"
}

#[test]
fn certificates_are_replaced_while_sessions_are_open() {
    let certificates = Certificates::new();
    let (server, plain) = start_with_plain_listener(&certificates);
    let mut first = certificates.client(None, &server);
    ask(&mut first, "mn\r\n", "MN\r\n");

    certificates.replace();
    assert!(
        !is_trusted(&certificates, &server),
        "no reload was requested yet"
    );
    let mut operator = TcpStream::connect(&plain).expect("it accepts");
    ask(&mut operator, "refresh_certs\r\n", "OK\r\n");
    assert!(is_trusted(&certificates, &server));
    let age = stat(&mut operator, "time_since_server_cert_refresh");
    assert!(age.parse::<u64>().expect("seconds") < 60, "{age}");

    certificates.replace();
    server.reload_files();
    until("the server has the newest certificate", || {
        is_trusted(&certificates, &server)
    });

    // Files that cannot be used change nothing.
    let key = fs::read(certificates.path("server.key")).expect("a file");
    fs::write(certificates.path("server.key"), "no key").expect("a file");
    ask(
        &mut operator,
        "refresh_certs\r\n",
        "Error loading the certificates: the server's log has the reason\r\n",
    );
    assert!(is_trusted(&certificates, &server));
    fs::write(certificates.path("server.key"), key).expect("a file");
    ask(&mut operator, "refresh_certs\r\n", "OK\r\n");
    // The first session keeps the certificate that it began with.
    ask(&mut first, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    ask(&mut first, "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
}

#[test]
fn bad_files_are_named() {
    let certificates = Certificates::new();
    let fails = |tls: TlsOptions, name: &str| {
        let options = options().tls(tls);
        let error = Server::start(options, cache()).expect_err("it is bad");
        assert!(matches!(error, Error::Tls { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    };
    let good = certificates.options(VerifyClient::Require);
    fails(
        good.clone().certificates(certificates.path("none.pem")),
        "none.pem",
    );
    fails(good.clone().key(certificates.path("ca.pem")), "ca.pem");
    fails(
        good.clone().key(certificates.path("client.key")),
        "server.pem",
    );
    fs::write(certificates.path("weak.key"), WEAK_KEY).expect("a file");
    fails(
        good.clone().key(certificates.path("weak.key")),
        "weak.key: an RSA key has 2048 to 4096 bits, and this one has 1024",
    );
    fails(
        good.clone().authorities(certificates.path("client.key")),
        "client.key",
    );
    fails(good.authorities(None), "no file of authorities");
}

/// An RSA key of 1024 bits.
const WEAK_KEY: &str = "\
-----BEGIN RSA PRIVATE KEY-----
MIICXgIBAAKBgQDo0Talt3x0aGTiXOh8mLrvcbEVwz7+n85IUe0DQDxW8pHcEGir
ayVnGD/BySpKwxZeqM+m7x5JjrWAZwu29rthcR+FqJtFwyQ70uBVxyZu/7JBP9v+
rTeihPH/VG6yTUWmSN7QgrAHQJMGBLLo8JCs+JkelQ1evsBBfTdox55EawIDAQAB
AoGBALMCGbh1SjXfBqKduQwECseMbRJEmy0ABoXIqCn1u+9GdyvzWedjbNDF7k+7
ss7lDVAfD/pUpL7+AUQG9xToxM0BkIZt0zR5S2PbE2Yi7xM+44kFtHH8tCeq85ZT
ms3985NRA6k3+UeQNRGH1G2CBcrMegm8RxiTrr8/blMO+rVBAkEA/ay40uZJLBW5
DjNLTgTJL4OhGAAclrDB6F4/UhLOTVDH6VLaTGZezvKeMAhRSsNTbCLNo7qFDfpe
s3NwhtIG2wJBAOrzjAccQkznfNozP4AbEAipaJSNFo/6QDLEVQ0X1gPKEK0UEu2d
k/PFujMHiTzIw1x/y4pmtdRMY52HHVKzxbECQBuULJ/ZI3lkfzL5BqXbxVeiEuB+
Gp2TZ/FwVagBnWYwcxt9w3fs5T/QhrwoG1Zqd+ZYvkyfmZmUb7lIwqIVsWMCQQCP
QPX08+b86vv2Mt8Z5eZN0bUhNjE2kjgIfCr7c7ga0V5/mUi9NqIaNUoFiSfFNwfe
41CgT2W4TudCCjr3zQLRAkEAytyfG9ex1GQXv4AQcpmcxLBLUJUyUUDl7SAdwz4I
Gb3L+llg9WNyds86LJxfvyTteF9iAF42B/AWEjZSo2fSwQ==
-----END RSA PRIVATE KEY-----
";

#[test]
fn a_key_may_have_the_label_of_another_format() {
    let certificates = Certificates::new();
    let path = certificates.path("server.key");
    let key = fs::read_to_string(&path).expect("a file");
    assert!(key.contains("BEGIN PRIVATE KEY"));
    let labelled = key.replace(" PRIVATE KEY", " RSA PRIVATE KEY");
    fs::write(&path, labelled).expect("a file");
    let server = start(options().tls(certificates.options(VerifyClient::No)));
    ask(&mut certificates.client(None, &server), "mn\r\n", "MN\r\n");
}

#[test]
fn refused_handshakes_are_counted() {
    let certificates = Certificates::new();
    let mut options = options();
    let plain = Listen::parse("notls:127.0.0.1:0", 0).expect("it is an address");
    options.listen.extend(plain);
    let server = start(options.tls(certificates.options(VerifyClient::Require)));
    let plain = server.addresses()[1].to_string();
    let mut operator = TcpStream::connect(&plain).expect("it accepts");
    ask(
        &mut certificates.client(Some("client"), &server),
        "mn\r\n",
        "MN\r\n",
    );
    assert_eq!(stat(&mut operator, "ssl_handshake_errors"), "0");
    let mut noise = connect(&server);
    noise.write_all(b"get key\r\n").expect("it is sent");
    rest(&mut noise);
    assert_eq!(stat(&mut operator, "ssl_handshake_errors"), "1");
    for shows in [None, Some("stranger")] {
        let mut stream = certificates.client(shows, &server);
        let said = stream
            .write_all(b"mn\r\n")
            .and_then(|()| stream.read_exact(&mut [0; 4]));
        said.expect_err("it is refused");
    }
    assert_eq!(stat(&mut operator, "ssl_handshake_errors"), "3");
}

#[test]
fn connections_that_do_not_complete_tls_or_authentication_are_closed() {
    let certificates = Certificates::new();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("users");
    fs::write(&file, "alice:s3cret\n").expect("a file");
    let limit = Duration::from_secs(2);
    let mut options = options().auth_file(file).handshake_timeout(limit);
    let plain = Listen::parse("notls:127.0.0.1:0", 0).expect("it is an address");
    options.listen.extend(plain);
    let server = start(options.tls(certificates.options(VerifyClient::No)));
    let plain = || TcpStream::connect(server.addresses()[1].to_string()).expect("it accepts");
    let log_in = "set x 0 0 12\r\nalice s3cret\r\n";
    let mut served = certificates.client(None, &server);
    ask(&mut served, log_in, "STORED\r\n");
    let mut operator = plain();
    ask(&mut operator, log_in, "STORED\r\n");

    let begun = Instant::now();
    let silent_tls = connect(&server);
    let silent = plain();
    let mut wrong = plain();
    let refused = "CLIENT_ERROR authentication failure\r\n";
    ask(&mut wrong, "set x 0 0 9\r\nalice bob\r\n", refused);
    let mut unknown = certificates.client(None, &server);
    ask(&mut unknown, "mn\r\n", "CLIENT_ERROR unauthenticated\r\n");
    for mut stream in [silent_tls, silent, wrong, unknown.sock] {
        stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
        rest(&mut stream);
        assert!(
            begun.elapsed() + Duration::from_secs(1) >= limit,
            "{:?}",
            begun.elapsed()
        );
    }
    assert_eq!(stat(&mut operator, "handshake_timeouts"), "4");
    ask(&mut served, "mn\r\n", "MN\r\n");
}

#[test]
fn only_users_get_in() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("users");
    fs::write(&file, "alice:s3cret\nbob:hunter2\n").expect("a file");
    let server = start(options().auth_file(file.clone()));
    let mut stream = connect(&server);
    ask(&mut stream, "get k\r\n", "CLIENT_ERROR unauthenticated\r\n");
    ask(
        &mut stream,
        "set x 0 0 11\r\nalice wrong\r\n",
        "CLIENT_ERROR authentication failure\r\n",
    );
    ask(
        &mut stream,
        "set x 0 0 5000\r\n",
        "CLIENT_ERROR auth token too long\r\n",
    );
    ask(
        &mut stream,
        "set x 0 0 12\r\nalice s3cret\r\nget x\r\n",
        "STORED\r\nEND\r\n",
    );
    assert_eq!(stat(&mut stream, "auth_cmds"), "2");
    assert_eq!(stat(&mut stream, "auth_errors"), "1");
    ask(
        &mut connect(&server),
        "set x 0 0 11\r\nbob hunter2\r\n",
        "STORED\r\n",
    );
    fs::write(&file, "alice\n").expect("a file");
    let bad = options().auth_file(file);
    let error = Server::start(bad, cache()).expect_err("it is not a file of users");
    assert!(error.to_string().contains("line 1"), "{error}");
}
