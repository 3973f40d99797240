//! The client through the crate `forerun`: its example, with servers and without.

#[path = "../examples/servers.rs"]
#[allow(dead_code, reason = "the example's `main` is not run here")]
mod example;

use std::sync::Arc;

use forerun::prelude::*;
use forerun_cache::{Cache, CacheOptions};
use forerun_server::{Address, Listen, Server, ServerOptions};

fn server() -> (Server, ServerAddress) {
    let cache = Arc::new(Cache::new(CacheOptions::default()).unwrap());
    let listen = Listen::parse("127.0.0.1:0", 0).unwrap();
    let server = Server::start(ServerOptions::new(listen), cache).unwrap();
    let address = match &server.addresses()[0] {
        Address::Tcp(address) => (*address).into(),
        _ => unreachable!("it listens on TCP"),
    };
    (server, address)
}

#[test]
fn the_example_computes_each_value_once() {
    let (servers, addresses): (Vec<Server>, Vec<ServerAddress>) =
        [server(), server()].into_iter().unzip();
    let answers = example::run(addresses.clone()).unwrap();
    assert_eq!(answers.found + answers.computed, 5000, "{answers:?}");
    assert_eq!(answers.failed, 0, "{answers:?}");
    assert!(answers.computed < 1100, "{answers:?}");

    let again = example::run(addresses.clone()).unwrap();
    assert_eq!((again.found, again.computed), (5000, 0), "{again:?}");
    let client = Client::new(addresses, ClientOptions::default()).unwrap();
    assert_eq!(
        client.get("value:0").unwrap().unwrap().data,
        b"the value of 0"
    );
    drop(servers);
}

#[test]
fn the_example_computes_all_values_without_a_server() {
    let (_server, address) = server();
    // A port where nothing listens.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed: ServerAddress = socket.local_addr().unwrap().into();
    drop(socket);
    let answers = example::run(vec![address, closed]).unwrap();
    assert_eq!(answers.found + answers.computed, 5000, "{answers:?}");
    assert!(answers.failed > 1000 && answers.found > 1000, "{answers:?}");
}
