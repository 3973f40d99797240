//! The client in front of twemproxy, and next to it. The proxy and the client find each other's
//! values on the same servers. The test prints a message and is skipped if nutcracker is not
//! installed.

use crate::testing;

use std::fmt::Write as _;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use forerun_client::{Client, Lookups, Placement, ServerAddress};
use testing::{PATIENCE, address, forerun, free_port, options};

/// A proxy that is killed when the test ends.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a proxy at `port`. Returns `None` if it is not installed.
fn start(config: &str, dir: &std::path::Path, port: u16) -> Option<Proxy> {
    let file = dir.join("nutcracker.yml");
    std::fs::write(&file, config).expect("a file");
    let stats = free_port().to_string();
    // Debian installs it in a directory that is on root's PATH only.
    let start = |program: &str| {
        Command::new(program)
            .arg("-c")
            .arg(&file)
            .args(["-s", &stats])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    };
    let Ok(child) = start("nutcracker").or_else(|_| start("/usr/sbin/nutcracker")) else {
        let _ = writeln!(std::io::stderr(), "skipped: nutcracker is not installed");
        return None;
    };
    let proxy = Proxy(child);
    let begin = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begin.elapsed() < PATIENCE, "nutcracker does not listen");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Some(proxy)
}

#[test]
fn the_proxy_and_the_client_find_each_others_values() {
    let servers = [forerun(), forerun(), forerun()];
    for (hash, placement) in [
        ("md5", Placement::Ketama),
        ("fnv1a_64", Placement::KetamaFnv1a64),
    ] {
        let port = free_port();
        let mut config = format!(
            "pool:\n  listen: 127.0.0.1:{port}\n  hash: {hash}\n  distribution: ketama\n  \
             servers:\n"
        );
        let mut members: Vec<ServerAddress> = Vec::new();
        for (weight, server) in (1..).zip(&servers) {
            let (at, name) = (address(server), format!("server-{weight}"));
            writeln!(config, "    - {at}:{weight} {name}").expect("a string grows");
            members.push(ServerAddress::from(at).weight(weight).ring_name(name));
        }
        let dir = tempfile::tempdir().expect("a directory");
        let Some(_proxy) = start(&config, dir.path(), port) else {
            return;
        };
        let proxied = Client::new([ServerAddress::tcp("127.0.0.1", port)], options());
        let proxied = proxied.expect("a client");
        let direct = Client::new(members, options().placement(placement)).expect("a client");
        assert!(direct.flush_all().expect("this process").is_empty());
        let keys: Vec<String> = (0..300).map(|number| format!("{hash}:{number}")).collect();
        for (number, key) in keys.iter().enumerate() {
            let client = if number % 2 == 0 { &proxied } else { &direct };
            client.set(key, key).expect("stored");
        }
        // The proxy answers in the order of its servers, not in the order of the keys.
        for client in [&proxied, &direct] {
            let mut values = Lookups::new();
            let report = client.multi_get(&keys, &mut values).expect("good keys");
            assert_eq!(report.hits, keys.len(), "{hash}: {report:?}");
            for (key, value) in keys.iter().zip(values.iter()) {
                assert_eq!(value.expect("it is there").data, key.as_bytes());
            }
        }
    }
}
