//! A server runs in the process that started it. A fork of that process cannot make requests
//! through the server's handle, and dropping the server there does no harm.

#[path = "../../forerun-core/tests/testing/fork.rs"]
mod fork;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use forerun_cache::{Cache, CacheOptions};
use forerun_server::{Address, Listen, Server, ServerError, ServerOptions};
use fork::Ending::{AtOnce, Exit};

/// The server's answer to a line.
fn ask(server: &Server, line: &str) -> String {
    let Address::Tcp(address) = &server.addresses()[0] else {
        panic!("a TCP listener was asked for");
    };
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(line.as_bytes()).unwrap();
    stream.write_all(b"quit\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn a_server_survives_a_forked_child_that_uses_its_handles() {
    for ending in [AtOnce, Exit] {
        let cache = Arc::new(Cache::new(CacheOptions::default()).unwrap());
        let listen = Listen::parse("127.0.0.1:0", 0).unwrap();
        let options =
            ServerOptions::new(listen).metrics(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
        let server = Server::start(options, cache).unwrap();
        assert_eq!(ask(&server, "set key 0 0 5\r\nvalue\r\n"), "STORED\r\n");
        let mut handle = Some(server);
        for waits in [true, false] {
            fork::in_child(ending, || {
                let server = handle.take().unwrap();
                server.handle().drain();
                server.drain();
                server.snapshot();
                server.reload_files();
                assert!(server.metrics_address().is_some());
                if waits {
                    assert!(matches!(server.wait(), Err(ServerError::Forked(_))));
                } else {
                    drop(server);
                }
            });
        }
        let server = handle.unwrap();
        let value = "VALUE key 0 5\r\nvalue\r\nEND\r\n";
        assert_eq!(ask(&server, "get key\r\n"), value);
        server.drain();
        server.wait().unwrap();
    }
}
