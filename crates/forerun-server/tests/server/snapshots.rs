//! A server restores exactly what its snapshot contains.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::num::NonZeroU64;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forerun_cache::Store;
use forerun_server::{
    Error, Listen, Server, ServerOptions, SnapshotError, SnapshotOptions, write_snapshot,
};

use super::test_server::{ask, cache, connect, expect, options, rest, start, stat, until};

fn with_snapshot(path: &Path, ignore_bad: bool) -> ServerOptions {
    options().snapshot(
        SnapshotOptions::new(path.to_owned())
            .ignore_bad(ignore_bad)
            .live_bytes_per_s(None),
    )
}

#[test]
fn a_server_starts_with_its_predecessors_items() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    let server = start(with_snapshot(&path, false));
    let mut stream = connect(&server);
    for number in 0..500 {
        let set = format!("set key{number} {number} 0 3\r\nabc\r\n");
        ask(&mut stream, &set, "STORED\r\n");
    }
    ask(&mut stream, "set soon 0 1 1\r\nx\r\n", "STORED\r\n");
    ask(&mut stream, "set later 0 1000 1\r\nx\r\n", "STORED\r\n");
    stream.write_all(b"gets key7\r\n").expect("it is sent");
    expect(&mut stream, "VALUE key7 7 3 ");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(&stream), &mut line).expect("text");
    let cas: u64 = line.trim().parse().expect("a number");
    server.drain();
    server.wait().expect("it ends well");

    std::thread::sleep(Duration::from_millis(1100));
    let server = start(with_snapshot(&path, false));
    let mut stream = connect(&server);
    for number in 0..500 {
        let answer = format!("VALUE key{number} {number} 3\r\nabc\r\nEND\r\n");
        ask(&mut stream, &format!("get key{number}\r\n"), &answer);
    }
    ask(&mut stream, "get soon\r\n", "END\r\n");
    ask(
        &mut stream,
        "get later\r\n",
        "VALUE later 0 1\r\nx\r\nEND\r\n",
    );
    // A version that a client held before must not be assigned to a new value.
    ask(&mut stream, "set new 0 0 1\r\nx\r\n", "STORED\r\n");
    ask(
        &mut stream,
        &format!("cas new 0 0 1 {cas}\r\ny\r\n"),
        "EXISTS\r\n",
    );
}

#[test]
fn numbers_begin_at_a_random_one_that_clients_with_32_bits_can_read() {
    let numbers = [(); 3].map(|()| version_of_new_item(&start(options())));
    assert!(
        numbers.iter().all(|number| *number < 1 << 32),
        "{numbers:?}"
    );
    assert!(
        numbers[0] != numbers[1] && numbers[1] != numbers[2],
        "{numbers:?}"
    );
}

/// The version of a new item.
fn version_of_new_item(server: &Server) -> u64 {
    let mut stream = connect(server);
    ask(&mut stream, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    stream.write_all(b"gets k\r\nquit\r\n").expect("it is sent");
    expect(&mut stream, "VALUE k 0 1 ");
    let rest = String::from_utf8(rest(&mut stream)).expect("text");
    let version = rest.lines().next().expect("a line");
    version.parse().expect("a number")
}

#[test]
fn a_killed_server_after_many_restarts_had_no_version_that_its_successor_assigns() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    let (mut last, mut assigned) = (0, Vec::new());
    for _ in 0..3 {
        let server = start(with_snapshot(&path, false));
        let version = version_of_new_item(&server);
        assert!(version > last, "{version} after {last}");
        last = version;
        assigned.push(version);
        server.drain();
        server.wait().expect("it ends well");
    }
    // A killed server leaves no snapshot.
    fs::remove_file(&path).expect("the snapshot");
    let version = version_of_new_item(&start(with_snapshot(&path, false)));
    assert!(!assigned.contains(&version), "{version} of {assigned:?}");
}

#[test]
fn a_snapshot_is_written_while_the_server_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    let server = start(with_snapshot(&path, false));
    let mut stream = connect(&server);
    ask(&mut stream, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    server.snapshot();
    let live = dir.path().join("cache.snapshot.live");
    until("it is written", || live.exists());
    ask(&mut stream, "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    let copy = cache();
    let read = forerun_server::read_snapshot(&copy, &live).expect("it is whole");
    assert_eq!(read.expect("it is there").items, 1);
}

/// Starts a server with about 4 MB of items and a copy that is being written at this rate.
fn copying(path: &Path, bytes_per_s: u64) -> Server {
    let mut options = with_snapshot(path, false);
    if let Some(snapshot) = &mut options.snapshot {
        snapshot.live_bytes_per_s = NonZeroU64::new(bytes_per_s);
    }
    let server = start(options);
    let mut stream = connect(&server);
    let value = "x".repeat(10_000);
    for number in 0..400 {
        let set = format!("set key{number} 0 0 10000\r\n{value}\r\n");
        ask(&mut stream, &set, "STORED\r\n");
    }
    server.snapshot();
    server
}

#[test]
fn a_copy_of_a_running_server_is_written_no_faster_than_its_rate() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    let live = dir.path().join("cache.snapshot.live");
    let begun = Instant::now();
    let server = copying(&path, 8_000_000);
    let mut stream = connect(&server);
    let mut sets = 0;
    while !live.exists() {
        ask(&mut stream, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
        sets += 1;
    }
    // The writer does not pause after the last piece (128 KiB and one item), and it omits some
    // items.
    assert!(
        begun.elapsed() >= Duration::from_millis(480),
        "{:?}",
        begun.elapsed()
    );
    assert!(sets > 100, "{sets} sets during the snapshot");
    let copy = cache();
    let read = forerun_server::read_snapshot(&copy, &live).expect("it is whole");
    assert!(read.expect("it is there").items >= 400);
}

#[test]
fn a_copy_replaces_the_previous_one_and_a_killed_writers_leftovers() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    let live = dir.path().join("cache.snapshot.live");
    let new = dir.path().join("cache.snapshot.live.new");
    // Leftovers of several MiB, as a killed writer may leave them.
    fs::write(&new, vec![1; 9 << 20]).expect("a file");
    fs::write(&live, vec![2; 9 << 20]).expect("a file");
    let server = copying(&path, 1 << 30);
    until("it is replaced", || {
        fs::metadata(&live).is_ok_and(|there| there.len() < 9 << 20) && !new.exists()
    });
    let copy = cache();
    let read = forerun_server::read_snapshot(&copy, &live).expect("it is whole");
    assert!(read.expect("it is there").items >= 400);
    drop(server);
}

#[test]
fn the_end_of_a_server_does_not_wait_for_the_rate_of_a_copy() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    // At this rate the copy would take years.
    let server = copying(&path, 1);
    let new = dir.path().join("cache.snapshot.live.new");
    until("it has begun", || new.exists());
    let draining = Instant::now();
    server.drain();
    server.wait().expect("it ends well");
    assert!(
        draining.elapsed() < Duration::from_secs(60),
        "{:?}",
        draining.elapsed()
    );
    assert!(path.exists());
    assert!(
        dir.path().join("cache.snapshot.live").exists(),
        "the copy is whole, too"
    );
}

#[test]
fn a_bad_snapshot_keeps_a_server_from_starting_unless_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    fs::write(&path, "something else").expect("a file");
    let error = Server::start(with_snapshot(&path, false), cache()).expect_err("it is bad");
    assert!(
        matches!(error, Error::Snapshot(SnapshotError::NotASnapshot { .. })),
        "{error}"
    );
    assert_eq!(fs::read(&path).expect("it is left"), b"something else");
    let server = start(with_snapshot(&path, true));
    ask(&mut connect(&server), "get k\r\n", "END\r\n");
    let bad = dir.path().join("cache.snapshot.bad");
    assert_eq!(fs::read(bad).expect("it is kept"), b"something else");
}

/// Writes a snapshot that contains `k`, as an earlier server would.
fn left_behind(path: &Path) {
    let cache = cache();
    let _ = cache.store(Store::set(b"k", b"old"));
    write_snapshot(&cache, path).expect("it is written");
}

#[test]
fn no_snapshot_is_left_while_a_server_runs_on_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    left_behind(&path);
    let server = start(with_snapshot(&path, false));
    // If the server is killed from here on, it leaves the files as they are now.
    let left = fs::read_dir(dir.path()).expect("it is there");
    let left: Vec<_> = left
        .map(|entry| entry.expect("a name").file_name())
        .collect();
    assert_eq!(left, ["cache.snapshot.lock"]);
    let mut stream = connect(&server);
    ask(&mut stream, "get k\r\n", "VALUE k 0 3\r\nold\r\nEND\r\n");
    ask(&mut stream, "delete k\r\n", "DELETED\r\n");
    server.snapshot();
    let live = dir.path().join("cache.snapshot.live");
    until("it is written", || live.exists());
    assert!(
        !path.exists(),
        "a copy is not what the next server starts with"
    );
    server.drain();
    server.wait().expect("it ends well");
    assert!(path.exists());
    ask(
        &mut connect(&start(with_snapshot(&path, false))),
        "get k\r\n",
        "END\r\n",
    );
}

#[test]
fn copies_are_written_at_their_interval() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    let snapshot = SnapshotOptions::new(path).live_interval(Some(Duration::from_secs(1)));
    let server = start(options().snapshot(snapshot.clone()));
    let live = dir.path().join("cache.snapshot.live");
    for _ in 0..2 {
        until("no copy is written", || live.exists());
        fs::remove_file(&live).expect("it is there");
    }
    drop(server);
    let never = options().snapshot(snapshot.live_interval(Some(Duration::ZERO)));
    assert!(matches!(
        Server::start(never, cache()),
        Err(Error::Option { .. })
    ));
}

#[test]
fn a_server_that_does_not_start_leaves_the_snapshot() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    left_behind(&path);
    let before = fs::read(&path).expect("it is there");
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = holder.local_addr().expect("an address");
    for options in [
        with_snapshot(&path, false)
            .listen(Listen::parse(&taken.to_string(), 0).expect("it is an address")),
        with_snapshot(&path, false).metrics(taken),
    ] {
        Server::start(options, cache()).expect_err("the address is taken");
        assert_eq!(fs::read(&path).expect("it is left"), before);
    }
}

#[test]
fn a_snapshot_belongs_to_its_owner_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    let mode = |path: &Path| {
        let there = fs::metadata(path).expect("it is there");
        there.permissions().mode() & 0o777
    };
    // A file left by a killed write must not stop the next write.
    fs::write(dir.path().join("cache.snapshot.new"), "half").expect("a file");
    write_snapshot(&cache(), &path).expect("it is written");
    assert_eq!(mode(&path), 0o600);
    let server = start(with_snapshot(&path, false));
    server.snapshot();
    let live = dir.path().join("cache.snapshot.live");
    until("it is written", || live.exists());
    assert_eq!(mode(&live), 0o600);
    server.drain();
    server.wait().expect("it ends well");
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn an_unwritable_snapshot_path_is_refused_at_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    fs::write(&file, "x").expect("a file");
    for path in [
        dir.path().join("none/cache.snapshot"),
        file.join("cache.snapshot"),
        dir.path().to_owned(),
    ] {
        let error = Server::start(with_snapshot(&path, true), cache()).expect_err("it is refused");
        assert!(
            matches!(error, Error::Snapshot(SnapshotError::Io { .. })),
            "{error}"
        );
        assert!(
            error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
    }
}

#[test]
fn a_slow_load_does_not_shift_expiry() {
    let dir = tempfile::tempdir().expect("a directory");
    let whole = dir.path().join("whole");
    left_behind(&whole);
    let bytes = fs::read(&whole).expect("it is there");
    // A pipe in place of the file delivers its second half 2.5 s after the first.
    let path = dir.path().join("cache.snapshot");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.expect("there is mkfifo").success());
    let from = path.clone();
    let writer = std::thread::spawn(move || {
        let mut pipe = File::options().write(true).open(from).expect("a reader");
        let (first, second) = bytes.split_at(bytes.len() / 2);
        pipe.write_all(first).expect("it is read");
        std::thread::sleep(Duration::from_millis(2500));
        pipe.write_all(second).expect("it is read");
    });
    let server = start(with_snapshot(&path, false));
    writer.join().expect("it was read");
    let unix_s = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.expect("it is after 1970").as_secs()
    };
    let mut stream = connect(&server);
    let mut time_s = || -> u64 { stat(&mut stream, "time").parse().expect("a number") };
    // The clock has been set since the snapshot was loaded.
    let first_s = time_s();
    until("the clock goes on", || time_s() > first_s);
    let before_s = unix_s();
    let reported_s = time_s();
    let after_s = unix_s();
    // Both clocks count whole seconds, so they differ by at most one.
    assert!(
        (before_s - 1..=after_s + 1).contains(&reported_s),
        "{reported_s}, and it is {before_s}"
    );
}
