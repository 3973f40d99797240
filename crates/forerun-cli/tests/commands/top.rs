//! `forerun top` against a server, and against none.

use crate::testing;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use testing::Workspace;

#[test]
fn a_server_is_shown_with_its_rates() {
    let workspace = Workspace::new();
    let (mut server, address) = workspace.serve("127.0.0.1:0", &["--threads", "1"], Stdio::null());
    // A client that reads until it is stopped.
    let mut client = TcpStream::connect(&address).expect("it accepts");
    client
        .write_all(b"set k 0 0 1\r\nv\r\n")
        .expect("it is sent");
    let mut stored = [0; 8];
    client.read_exact(&mut stored).expect("it answers");
    let load = std::thread::spawn(move || {
        let mut answer = [0; 13 + 3 + 5];
        while client.write_all(b"get k none\r\n").is_ok() && client.read_exact(&mut answer).is_ok()
        {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    let ran = workspace.run(&["top", &address, "--count", "2"]);
    // A server that does not answer is shown beside one that does.
    let with_another = workspace.run(&["top", &address, "127.0.0.1:1", "--count", "1"]);
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    load.join().expect("it loads");
    let text = String::from_utf8(ran.stdout).expect("it is text");
    assert_eq!(ran.code, 0, "{text}{}", ran.stderr);
    assert!(
        text.starts_with(&format!("{address}  1.6.18-forerun-")),
        "{text}"
    );
    assert_eq!(text.matches("\n  memory  ").count(), 2, "{text}");
    assert!(text.contains("/s, 50.0% found\n"), "{text}");
    assert!(text.contains("; most from 127.0.0.1 2\n"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    let text = String::from_utf8(with_another.stdout).expect("it is text");
    assert_eq!(with_another.code, 1, "{text}");
    assert!(
        text.contains("\n\n127.0.0.1:1  does not answer: "),
        "{text}"
    );
}

#[test]
fn a_server_with_users_is_watched_by_one_of_them() {
    let workspace = Workspace::new();
    workspace.file("users", "alice:s3cret\n");
    workspace.file("password", "s3cret\n").file("wrong", "x\n");
    let args = ["--threads", "1", "--auth-file", "users"];
    let (mut server, address) = workspace.serve("127.0.0.1:0", &args, Stdio::null());
    let top = |more: &[&str]| {
        let ran = workspace.run(&[&["top", &address, "--count", "1"], more].concat());
        (ran.code, String::from_utf8(ran.stdout).expect("it is text"))
    };
    let (code, text) = top(&["--user", "alice", "--password-file", "password"]);
    let (no_user, without) = top(&[]);
    let (no_password, wrong) = top(&["--user", "alice", "--password-file", "wrong"]);
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    assert!(code == 0 && text.contains("\n  memory  "), "{text}");
    assert!(no_user == 1 && without.contains("use --user"), "{without}");
    assert!(
        no_password == 1 && wrong.contains("authentication failure"),
        "{wrong}"
    );
    let ran = workspace.run(&["top", &address, "--user", "alice"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
}

#[test]
fn a_server_with_tls_is_watched_over_tls() {
    let workspace = Workspace::new();
    let args = [&["--threads", "1"][..], &workspace.make_certificate()].concat();
    let (mut server, address) = workspace.serve("127.0.0.1:0", &args, Stdio::null());
    let top = |more: &[&str]| {
        let ran = workspace.run(&[&["top", &address, "--count", "1"], more].concat());
        (ran.code, String::from_utf8(ran.stdout).expect("it is text"))
    };
    let (code, text) = top(&["--tls", "--ssl-ca-cert", "cert"]);
    let certificate = [
        "--tls",
        "--ssl-ca-cert",
        "cert",
        "--ssl-server-name",
        "other",
    ];
    let (other_name, other) = top(&certificate);
    let (plain, without) = top(&[]);
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    assert!(code == 0 && text.contains("\n  memory  "), "{text}");
    assert!(other_name == 1 && other.contains("certificate"), "{other}");
    assert!(plain == 1 && !without.contains("memory"), "{without}");
    for args in [
        &["--tls"][..],
        &["--ssl-ca-cert", "cert"],
        &["--tls", "--ssl-ca-cert", "cert", "--ssl-key", "key"],
    ] {
        let ran = workspace.run(&[&["top", &address], args].concat());
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn a_server_needs_a_port() {
    let ran = Workspace::new().run(&["top", "localhost"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("HOST:PORT"), "{}", ran.stderr);
}
