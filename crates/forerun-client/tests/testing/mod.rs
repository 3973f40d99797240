//! Servers for the tests: Forerun's in this process, and memcached if it is installed.

#![allow(dead_code, reason = "each test uses a part")]

pub mod fake_server;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_cache::{Cache, CacheOptions};
use forerun_client::{Client, ClientOptions, Error, Lookups, Protocol, ServerAddress};
use forerun_server::{Address, Listen, Server, ServerOptions};

/// Longer than any test waits for a server that answers.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn options() -> ClientOptions {
    ClientOptions::default().timeout(PATIENCE)
}

/// Starts a Forerun server at this address.
pub fn forerun_at(address: &str) -> Server {
    let listen = Listen::parse(address, 0).expect("an address");
    start(ServerOptions::new(listen))
}

pub fn forerun() -> Server {
    forerun_at("127.0.0.1:0")
}

pub fn start(options: ServerOptions) -> Server {
    let cache = Arc::new(Cache::new(CacheOptions::default()).expect("a cache"));
    Server::start(options, cache).expect("it starts")
}

/// A server's TCP address.
pub fn address(server: &Server) -> SocketAddr {
    match &server.addresses()[0] {
        Address::Tcp(address) => *address,
        _ => panic!("it listens on TCP"),
    }
}

/// One batch of lookups, without its report.
pub fn multi_get<K: AsRef<[u8]>>(client: &Client, keys: &[K]) -> Result<Lookups, Error> {
    let mut values = Lookups::new();
    client.multi_get(keys, &mut values)?;
    Ok(values)
}

pub fn client_of(servers: &[Server], options: ClientOptions) -> Client {
    let addresses = servers.iter().map(|server| address(server).into());
    Client::new(addresses, options).expect("a client")
}

/// A memcached that is killed when the test ends.
pub struct Memcached {
    child: Child,
    pub address: ServerAddress,
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts memcached with these arguments. Returns `None` if it is not installed: it then prints
/// that the test is skipped.
pub fn memcached(args: &[&str]) -> Option<Memcached> {
    let port = free_port();
    let child = Command::new("memcached")
        .args([
            "-u",
            "root",
            "-l",
            "127.0.0.1",
            "-p",
            &port.to_string(),
            "-U",
            "0",
        ])
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = child else {
        // The test harness hides the output of `eprintln!` in a passing test.
        let _ = writeln!(std::io::stderr(), "skipped: memcached is not on the PATH");
        return None;
    };
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let memcached = Memcached {
        child,
        address: address.into(),
    };
    let start = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(start.elapsed() < PATIENCE, "memcached does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(memcached)
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Waits until a condition is true.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub const PROTOCOLS: [Protocol; 3] = [Protocol::Classic, Protocol::Meta, Protocol::MultiGet];

/// The protocols of memcached.
pub const TEXT_PROTOCOLS: [Protocol; 2] = [Protocol::Classic, Protocol::Meta];

/// Runs a test with clients of three servers, in every protocol that they have.
pub fn on_every_server(test: impl Fn(&Client, Protocol)) {
    let servers = [forerun(), forerun(), forerun()];
    let ours = servers
        .iter()
        .map(|server| address(server).into())
        .collect();
    let mut groups: Vec<(Vec<ServerAddress>, &[Protocol])> = vec![(ours, &PROTOCOLS)];
    let theirs: Vec<_> = (0..3).map_while(|_| memcached(&[])).collect();
    if theirs.len() == 3 {
        let addresses = theirs.iter().map(|memcached| memcached.address.clone());
        groups.push((addresses.collect(), &TEXT_PROTOCOLS));
    }
    for (group, protocols) in groups {
        for &protocol in protocols {
            let client =
                Client::new(group.clone(), options().protocol(protocol)).expect("a client");
            assert!(client.flush_all().expect("this process").is_empty());
            test(&client, protocol);
        }
    }
}
