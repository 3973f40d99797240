//! A client whose servers change their addresses.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;

/// Longer than a call waits on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// After this time, the client checks whether a connection was closed.
const IDLE: Duration = Duration::from_millis(150);

/// The names that [`lookup`] knows, each with how long it takes. A change ends a lookup early.
static NAMES: Mutex<BTreeMap<String, (SocketAddr, Duration)>> = Mutex::new(BTreeMap::new());

fn lookup(host: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
    let start = Instant::now();
    loop {
        let known = NAMES
            .lock()
            .expect("no test panics with it")
            .get(host)
            .copied();
        let (address, delay) = known.ok_or(io::ErrorKind::NotFound)?;
        if start.elapsed() >= delay {
            return Ok(vec![address]);
        }
        std::thread::sleep(delay.min(Duration::from_millis(5)));
    }
}

fn name(host: &str, member: &Member, delay: Duration) {
    let entry = (member.address, delay);
    NAMES
        .lock()
        .expect("no test panics with it")
        .insert(host.to_owned(), entry);
}

/// A server whose every key has the server's name as its value.
struct Member {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    open: Arc<AtomicUsize>,
}

impl Member {
    fn start(value: char) -> Member {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let member = Member {
            address: listener.local_addr().expect("an address"),
            streams: Arc::default(),
            open: Arc::default(),
        };
        let (streams, open) = (member.streams.clone(), member.open.clone());
        let serve = move |mut stream: TcpStream, open: &AtomicUsize| {
            open.fetch_add(1, Ordering::Relaxed);
            while matches!(stream.read(&mut [0; 100]), Ok(count) if count > 0) {
                let answer = format!("VALUE k 0 1\r\n{value}\r\nEND\r\n");
                if stream.write_all(answer.as_bytes()).is_err() {
                    break;
                }
            }
            open.fetch_sub(1, Ordering::Relaxed);
        };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                let own = stream.try_clone().expect("a descriptor");
                streams.lock().expect("no test panics with it").push(own);
                let open = open.clone();
                std::thread::spawn(move || serve(stream, &open));
            }
        });
        member
    }

    fn close_connections(&self) {
        for stream in self
            .streams
            .lock()
            .expect("no test panics with it")
            .drain(..)
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn client(host: &str, options: ClientOptions) -> Arc<Client> {
    let server = ServerAddress::tcp(host, 1);
    Arc::new(Client::with_lookup([server], options, lookup).expect("a client"))
}

fn options() -> ClientOptions {
    ClientOptions::default().timeout(PATIENCE)
}

/// The value of `k`, from a blocking call or from one in an event loop.
fn get(client: &Arc<Client>, in_event_loop: bool) -> Result<char, Error> {
    let found = if in_event_loop {
        let call = client.start(|calls| async move { calls.get("k").await });
        let mut call = call.expect("an epoll instance");
        loop {
            match call.advance() {
                Some(found) => break found,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    } else {
        client.get("k")
    };
    found.map(|value| value.expect("every key has a value").data[0].into())
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_closed_connection_is_replaced_by_one_to_the_address_that_the_name_has_now() {
    let idle_timeouts = [PATIENCE, Duration::from_millis(1)];
    let each_of = |in_event_loop| idle_timeouts.map(|timeout| (in_event_loop, timeout));
    for (in_event_loop, idle_timeout) in [false, true].map(each_of).as_flattened() {
        let (in_event_loop, idle_timeout) = (*in_event_loop, *idle_timeout);
        let (old, new) = (Member::start('o'), Member::start('n'));
        let host = format!("moved-{in_event_loop}-{idle_timeout:?}");
        name(&host, &old, Duration::ZERO);
        let client = client(&host, options().idle_timeout(idle_timeout));
        assert_eq!(get(&client, in_event_loop).expect("it answers"), 'o');
        // The server restarts elsewhere. Another server has the old address and answers there.
        name(&host, &new, Duration::from_millis(100));
        old.close_connections();
        std::thread::sleep(IDLE);
        assert_eq!(get(&client, in_event_loop).expect("it answers"), 'n');
    }
}

#[test]
fn after_a_failed_call_the_next_one_asks_the_address_that_the_name_has_now() {
    let (old, new) = (Member::start('o'), Member::start('n'));
    name("failed", &old, Duration::ZERO);
    let client = client("failed", options());
    assert_eq!(get(&client, false).expect("it answers"), 'o');
    name("failed", &new, Duration::from_millis(100));
    old.close_connections();
    // The client does not check a connection that it has just used.
    if let Ok(value) = get(&client, false) {
        assert_eq!(value, 'n');
    }
    assert_eq!(get(&client, false).expect("it answers"), 'n');
}

#[test]
fn a_call_that_connects_does_not_use_addresses_older_than_the_interval() {
    let (old, new) = (Member::start('o'), Member::start('n'));
    name("unused", &old, Duration::ZERO);
    let interval = Duration::from_millis(50);
    let client = client("unused", options().resolve_interval(interval));
    name("unused", &new, Duration::from_millis(100));
    std::thread::sleep(interval);
    assert_eq!(get(&client, false).expect("it answers"), 'n');
}

#[test]
fn names_are_resolved_again_and_connections_to_former_addresses_are_closed() {
    let (old, new) = (Member::start('o'), Member::start('n'));
    name("interval", &old, Duration::ZERO);
    let interval = Duration::from_millis(50);
    let client = client("interval", options().resolve_interval(interval));
    assert_eq!(get(&client, false).expect("it answers"), 'o');
    name("interval", &new, Duration::ZERO);
    until("the new address is used", || {
        get(&client, false).expect("it answers") == 'n'
    });
    until("the old connection is closed", || {
        old.open.load(Ordering::Relaxed) == 0
    });
    assert_eq!(new.open.load(Ordering::Relaxed), 1);
}

#[test]
fn a_name_that_keeps_its_address_keeps_its_connections_and_a_slow_resolver_delays_no_call() {
    let member = Member::start('o');
    name("same", &member, Duration::ZERO);
    let interval = Duration::from_millis(20);
    let client = client("same", options().resolve_interval(interval));
    assert_eq!(get(&client, false).expect("it answers"), 'o');
    name("same", &member, Duration::from_secs(600));
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(25));
        assert_eq!(get(&client, false).expect("it answers"), 'o');
    }
    assert_eq!(
        member.streams.lock().expect("no test panics with it").len(),
        1
    );
}

#[test]
fn a_call_waits_for_the_resolver_no_longer_than_its_time() {
    for in_event_loop in [false, true] {
        let member = Member::start('o');
        let host = format!("slow-{in_event_loop}");
        name(&host, &member, Duration::ZERO);
        let options = options()
            .timeout(Duration::from_millis(200))
            .failures_to_eject(100);
        let client = client(&host, options);
        until("it answers", || get(&client, in_event_loop).is_ok());
        name(&host, &member, Duration::from_secs(600));
        member.close_connections();
        std::thread::sleep(IDLE);
        let error = get(&client, in_event_loop).expect_err("the resolver is slow");
        assert!(
            error.to_string().contains("not resolved in time"),
            "{error}"
        );
        name(&host, &member, Duration::ZERO);
        until("it is resolved", || get(&client, in_event_loop).is_ok());
    }
}

#[test]
fn an_address_that_does_not_answer_does_not_hide_the_others() {
    let listener = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let (silent, good) = (listener(), listener());
    let address = |listener: &TcpListener| listener.local_addr().expect("an address");
    // A listener whose queue is full does not answer.
    rustix::net::listen(&silent, 0).expect("a shorter queue");
    let patience = Duration::from_millis(100);
    let connect = || TcpStream::connect_timeout(&address(&silent), patience).ok();
    let waiting: Vec<TcpStream> = std::iter::from_fn(connect).collect();
    let peer = |server| Peer::Socket(crate::net::SocketAddress::Tcp(address(server)));
    let peers = vec![peer(&silent), peer(&good)];
    std::thread::spawn(move || {
        let (mut stream, _) = good.accept().expect("a connection");
        while matches!(stream.read(&mut [0; 100]), Ok(count) if count > 0) {
            stream.write_all(b"END\r\n").expect("it is read");
        }
    });
    let options = ClientOptions::default().timeout(Duration::from_secs(1));
    let server = ServerAddress::tcp("127.0.0.1", 1);
    let client = Client::new([server], options).expect("a client");
    client.resolvers[0].set_peers(peers);
    let error = client.get("k").expect_err("the first address is silent");
    assert!(error.to_string().contains("no answer"), "{error}");
    assert_eq!(client.get("k").expect("the second one answers"), None);
    drop(waiting);
}
