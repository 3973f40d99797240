//! A server without free descriptors. Its open connections continue, new ones wait, and the pause
//! is counted once.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_cache::{Cache, CacheOptions};
use forerun_server::{Address, Listen, Server, ServerOptions};

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(server: &Server) -> Client {
        let Address::Tcp(address) = server.addresses()[0] else {
            panic!("the server listens on TCP");
        };
        let stream = TcpStream::connect(address).unwrap();
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).unwrap();
        Client(BufReader::new(stream))
    }

    fn send(&mut self, command: &str) {
        let stream = self.0.get_mut();
        stream.write_all(command.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn stat(&mut self, name: &str) -> u64 {
        self.send("stats\r\n");
        let mut found = None;
        loop {
            let line = self.line();
            if line.starts_with("END") {
                return found.unwrap();
            }
            if let Some(value) = line.strip_prefix(&format!("STAT {name} ")) {
                found = Some(value.trim().parse().unwrap());
            }
        }
    }
}

/// Sets the limit of open descriptors and returns the old one.
fn limit_descriptors(max: libc::rlim_t) -> libc::rlim_t {
    // SAFETY: `limit` is a plain struct of numbers, and both calls only read or fill it.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        let before = limit.rlim_cur;
        limit.rlim_cur = max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        before
    }
}

#[test]
fn a_lack_of_descriptors_is_one_pause_and_ends_with_it() {
    let cache = Arc::new(Cache::new(CacheOptions::default()).unwrap());
    let listen = Listen::parse("127.0.0.1:0", 11211).unwrap();
    let server = Server::start(ServerOptions::new(listen).threads(1), cache).unwrap();
    let mut served = Client::connect(&server);
    assert_eq!(served.stat("listen_disabled_num"), 0);
    // The next client gets the lowest free number, and none is left for the server.
    let lowest_free = File::open("/dev/null").unwrap().as_raw_fd();
    let before = limit_descriptors(lowest_free as libc::rlim_t + 1);
    let mut waiting = Client::connect(&server);
    waiting.send("version\r\n");
    let begun = Instant::now();
    while served.stat("listen_disabled_num") == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing pauses");
    }
    // There were many attempts to accept, but only one pause.
    std::thread::sleep(Duration::from_millis(400));
    let pauses = served.stat("listen_disabled_num");
    let connections = served.stat("curr_connections");
    limit_descriptors(before);
    assert_eq!((pauses, connections), (1, 1));
    assert!(waiting.line().starts_with("VERSION "));
    server.drain();
    drop((served, waiting));
    server.wait().unwrap();
}
