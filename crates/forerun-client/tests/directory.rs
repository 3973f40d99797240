//! A process with a server and a client changes its directory, or has no standard streams.

#[path = "../../forerun-core/tests/testing/fork.rs"]
mod fork;
mod testing;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forerun_cache::{Cache, CacheOptions};
use forerun_client::{Client, Credentials, Endpoint, ServerAddress};
use forerun_server::{Listen, Server, ServerOptions, SnapshotOptions};
use fork::Ending::AtOnce;
use testing::{address, client_of, forerun, options, start, until};

#[test]
fn a_server_and_a_client_keep_their_files_when_the_process_changes_its_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let [here, there] = ["here", "there"].map(|name| directory.path().join(name));
    for path in [&here, &there] {
        fs::create_dir(path).expect("a directory");
        fs::write(path.join("cache.snapshot"), "another server's").expect("a file");
    }
    fs::remove_file(here.join("cache.snapshot")).expect("it is there");
    fs::write(here.join("users"), "alice:old").expect("a file");
    std::env::set_current_dir(&here).expect("it is there");

    let listen = Listen::parse("unix:socket", 0).expect("an address");
    let snapshot = SnapshotOptions::new("cache.snapshot");
    let options = ServerOptions::new(listen).snapshot(snapshot);
    let server = start(options.auth_file(std::path::PathBuf::from("users")));
    let client = |password| {
        let address = ServerAddress::new(Endpoint::Unix("socket".into()));
        let alice = Credentials::new("alice", password);
        Client::new([address], testing::options().credentials(alice)).expect("a client")
    };
    let clients = ["old", "new"].map(client);
    std::env::set_current_dir(&there).expect("it is there");
    clients[0].set("k", "v").expect("it finds the server");
    fs::write(here.join("users"), "alice:new").expect("a file");
    until("the server has read the users again", || {
        server.reload_files();
        clients[1].get("k").is_ok()
    });
    server.drain();
    server.wait().expect("it ends");

    assert!(!here.join("socket").exists());
    assert!(here.join("cache.snapshot").exists());
    let kept = fs::read(there.join("cache.snapshot")).expect("a file");
    assert_eq!(kept, b"another server's");
    assert_eq!(fs::read_dir(&there).expect("a directory").count(), 1);
}

#[test]
fn a_second_server_with_the_same_snapshot_is_refused_until_the_first_has_written_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("cache.snapshot");
    let snapshot = || {
        let listen = Listen::parse("127.0.0.1:0", 0).expect("an address");
        ServerOptions::new(listen).snapshot(SnapshotOptions::new(&path))
    };
    let first = start(snapshot());
    let stored = client_of(std::slice::from_ref(&first), options()).set("k", "v");
    stored.expect("it is well");
    let cache = Cache::new(CacheOptions::default()).expect("a cache");
    let second = Server::start(snapshot(), Arc::new(cache)).expect_err("the file is in use");
    let words = second.to_string();
    assert!(words.contains("another server uses"), "{words}");
    first.drain();
    first.wait().expect("it ends");
    assert!(
        path.exists(),
        "the second server has not removed what the first wrote"
    );
    let third = [start(snapshot())];
    let kept = client_of(&third, options()).get("k").expect("it is well");
    assert_eq!(kept.expect("it was kept").data, b"v");
}

#[test]
fn no_socket_has_the_descriptor_of_a_standard_stream() {
    fork::in_child(AtOnce, || {
        for descriptor in 0..3 {
            // SAFETY: nothing in this child uses the standard streams.
            unsafe { libc::close(descriptor) };
        }
        let servers = [forerun(), forerun()];
        let client = client_of(&servers, options());
        for key in ["a", "b", "c", "d", "e", "f"] {
            client.set(key, "v").expect("both servers are well");
        }
        for descriptor in 0..3 {
            // SAFETY: the call only asks about the descriptor.
            assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_GETFD) }, -1);
        }
    });
}

#[test]
fn a_name_is_resolved_without_the_descriptor_of_a_standard_stream() {
    fork::in_child(AtOnce, || {
        for descriptor in 0..3 {
            // SAFETY: nothing in this child uses the standard streams.
            unsafe { libc::close(descriptor) };
        }
        let server = forerun();
        let named = ServerAddress::tcp("localhost", address(&server).port());
        // Each call resolves the name and connects.
        let options = options()
            .resolve_interval(Duration::from_nanos(1))
            .idle_timeout(Duration::ZERO);
        let client = Client::new([named], options).expect("a client");
        let is_over = AtomicBool::new(false);
        // The resolver's own files may have these descriptors. What the client opens may not.
        let watch = || {
            while !is_over.load(Ordering::Relaxed) {
                for descriptor in 0..3 {
                    let file = fs::read_link(format!("/proc/self/fd/{descriptor}"));
                    let file = file.unwrap_or_default();
                    assert!(!file.to_string_lossy().contains("eventfd"), "{file:?}");
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(watch);
            for _ in 0..100 {
                client.get("k").expect("the server is well");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}
