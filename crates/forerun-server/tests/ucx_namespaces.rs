//! Sessions over UCX between two network namespaces, as between two hosts: neither side sees the
//! other's loopback device, and UCX must use the devices that it is given.
//!
//! ```text
//!   namespace of the server               namespace of the client
//!   frs… 10.213.77.1/24  ──── veth ────  frc… 10.213.77.2/24
//! ```
//!
//! Needs root and `ip`. Where a namespace cannot be had, the test says so and ends.

mod server {
    pub mod conversations;
    #[allow(dead_code, reason = "each test uses its part")]
    pub mod test_server;
    pub mod ucx_client;
}
mod testing;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use forerun_server::{Address, Listen, Server, ServerOptions, UcxOptions};
use forerun_ucx::{Context, ContextOptions, Devices, Hub, Token, Transports};
use server::conversations::{check_alike, play};
use server::test_server::{ask, cache, connect, expect, options, start};
use server::ucx_client::{UcxClients, ucx};

const SERVER_ADDRESS: &str = "10.213.77.1";
const CLIENT_ADDRESS: &str = "10.213.77.2";

/// Two namespaces that are joined. They are removed when it is dropped.
struct Namespaces {
    server: String,
    client: String,
}

impl Namespaces {
    /// Creates them, or returns why that is not possible.
    fn new() -> Result<Namespaces, String> {
        let id = std::process::id();
        let both = Namespaces {
            server: format!("frs{id}"),
            client: format!("frc{id}"),
        };
        let (server, client) = (&both.server, &both.client);
        ip(&["netns", "add", server])?;
        ip(&["netns", "add", client])?;
        ip(&[
            "link", "add", server, "netns", server, "type", "veth", "peer", "name", client,
            "netns", client,
        ])?;
        for (name, address) in [(server, SERVER_ADDRESS), (client, CLIENT_ADDRESS)] {
            let address = format!("{address}/24");
            ip(&["-n", name, "address", "add", &address, "dev", name])?;
            ip(&["-n", name, "link", "set", name, "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        // UCX uses devices that have a carrier. It comes a moment after both ends are up.
        let start = Instant::now();
        while [server, client].iter().any(|name| !has_carrier(name)) {
            if start.elapsed() > Duration::from_secs(10) {
                return Err("the devices have no carrier".to_owned());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(both)
    }

    /// A test of this executable, in a namespace.
    fn run(&self, namespace: &str, test: &str, token: &Path) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", namespace])
            .arg(std::env::current_exe().expect("this executable"))
            .args(["--exact", "--nocapture", test])
            .env("UCX_TLS", "tcp,self")
            .env("FORERUN_DEVICE", namespace)
            .env("FORERUN_TOKEN", token);
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in [&self.server, &self.client] {
            // It may not exist.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// Whether a namespace's device of the same name has a carrier.
fn has_carrier(name: &str) -> bool {
    let shown = ip(&["-n", name, "link", "show", "dev", name]);
    shown.is_ok_and(|shown| shown.contains("LOWER_UP") && shown.contains("state UP"))
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    let ran = Command::new("ip").args(arguments).output();
    let ran = ran.map_err(|error| format!("ip: {error}"))?;
    if ran.status.success() {
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    } else {
        Err(format!(
            "ip {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&ran.stderr).trim()
        ))
    }
}

/// A child that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn sessions_between_namespaces_are_those_over_tcp() {
    if ucx().is_none() {
        return;
    }
    let namespaces = match Namespaces::new() {
        Ok(namespaces) => namespaces,
        Err(reason) => {
            // The test harness hides the output of `eprintln!` in a passing test.
            let _ = writeln!(io::stderr(), "skipped: no network namespaces: {reason}");
            return;
        }
    };
    let dir = tempfile::tempdir().expect("a directory");
    let token = dir.path().join("token");
    std::fs::write(&token, "a token of enough bytes\n").expect("a file");
    let server = namespaces
        .run(&namespaces.server, "servers_in_a_namespace", &token)
        .stdout(Stdio::piped())
        .spawn();
    let mut server = Killed(server.expect("it starts"));
    let mut said = BufReader::new(server.0.stdout.take().expect("a pipe")).lines();
    let place = loop {
        let line = said.next().expect("it listens").expect("text");
        if let Some((_, place)) = line.split_once("servers at ") {
            break place.to_owned();
        }
    };
    let client = namespaces
        .run(&namespaces.client, "a_client_in_a_namespace", &token)
        .env("FORERUN_SERVERS", place)
        .output()
        .expect("it runs");
    let output = format!(
        "{}{}",
        String::from_utf8_lossy(&client.stdout),
        String::from_utf8_lossy(&client.stderr)
    );
    assert!(client.status.success(), "{output}");
    assert!(output.contains("1 passed"), "{output}");
}

/// Starts a server for each connection to a port, and tells the server's port.
#[test]
fn servers_in_a_namespace() {
    let Ok(device) = std::env::var("FORERUN_DEVICE") else {
        return;
    };
    let token = std::env::var_os("FORERUN_TOKEN").expect("a path");
    let listener = TcpListener::bind((SERVER_ADDRESS, 0)).expect("it listens");
    println!("servers at {}", listener.local_addr().expect("bound"));
    loop {
        let (socket, _) = listener.accept().expect("a client");
        let ucx = UcxOptions::default()
            .token_file(PathBuf::from(token.clone()))
            .net_devices(device.clone());
        thread::spawn(move || serve(socket, ucx));
    }
}

/// Runs a server until the client is gone.
fn serve(mut socket: TcpStream, ucx: UcxOptions) {
    let listen = Listen::parse(&format!("ucx:{SERVER_ADDRESS}:0"), 0);
    let listen = listen.expect("an address").remove(0).over_ucx(ucx);
    let options = ServerOptions::new(vec![listen]).threads(1);
    let server = Server::start(options, cache()).expect("it starts");
    let Address::UcxTcp(address) = &server.addresses()[0] else {
        panic!("{:?}", server.addresses());
    };
    let port = address.port().to_le_bytes();
    socket.write_all(&port).expect("a client");
    while socket.read(&mut [0]).is_ok_and(|count| count > 0) {}
}

#[test]
fn a_client_in_a_namespace() {
    let Ok(servers) = std::env::var("FORERUN_SERVERS") else {
        return;
    };
    let device = std::env::var("FORERUN_DEVICE").expect("a device");
    let token = std::env::var_os("FORERUN_TOKEN").expect("a path");
    let token = Token::read(token.as_ref()).expect("a token");
    let options_of = |device: &str| ContextOptions {
        transports: Transports::Network,
        devices: Devices::Named(device.to_owned()),
    };
    let context = Context::open(&options_of(&device)).expect("UCX");
    let open = || {
        let mut control = TcpStream::connect(&servers).expect("it accepts");
        let mut port = [0; 2];
        control.read_exact(&mut port).expect("a port");
        let address = (SERVER_ADDRESS, u16::from_le_bytes(port));
        let socket = TcpStream::connect(address).expect("it accepts");
        (socket, control)
    };
    let over_ucx = play(|| {
        let (socket, control) = open();
        let client = UcxClients::new(&context).connect_over(socket, Some(&token));
        (control, client.expect("connected"))
    });
    let over_tcp = play(|| {
        let server = start(options().threads(1));
        let stream = connect(&server);
        (server, stream)
    });
    check_alike(&over_ucx, &over_tcp);

    // Large values, and many answers at once.
    let (socket, _control) = open();
    let clients = UcxClients::new(&context);
    let mut client = clients
        .connect_over(socket, Some(&token))
        .expect("connected");
    let value = "v".repeat(900_000);
    ask(
        &mut client,
        &format!("set k 0 0 900000\r\n{value}\r\n"),
        "STORED\r\n",
    );
    client
        .write_all(&b"get k\r\n".repeat(20))
        .expect("they are sent");
    for _ in 0..20 {
        expect(
            &mut client,
            &format!("VALUE k 0 900000\r\n{value}\r\nEND\r\n"),
        );
    }
    // A client whose UCX uses another device is refused, or gets no answer; the server stays.
    let (socket, _control) = open();
    let other = Context::open(&options_of("lo")).expect("UCX");
    Hub::new(&other).expect("a hub");
    if let Ok(mut client) = UcxClients::new(&other).connect_over(socket, Some(&token)) {
        client.write_all(b"mn\r\n").expect("UCX keeps it");
    }
    ask(&mut client, "mn\r\n", "MN\r\n");
}
