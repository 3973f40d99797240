//! A scrub finds damage in runs that nobody reads, and gets in nobody's way.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Db, DbEvent, Error, Options, RunOptions, ScrubStats};

use crate::testing::{open, small_options};

const DEADLINE: Duration = Duration::from_secs(60);

const NO_LIMIT: u64 = 1 << 40;

fn options() -> Options {
    small_options()
        .memtable_bytes(64 << 10)
        .wal_segment_bytes(64 << 10)
        .cache_bytes(256 << 10)
        .background(Background::Threads)
        .run(RunOptions::default().page_bytes(4 << 10))
}

fn value(n: u64) -> Vec<u8> {
    let word = |at: u64| (n << 8 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..64).flat_map(|at| word(at).to_le_bytes()).collect()
}

/// A closed store with runs of two keyspaces, one with range deletions, and the bytes of its runs.
fn stored() -> (FaultIo, u64) {
    let io = FaultIo::new();
    let db = open(&io, &options()).unwrap();
    let other = db.keyspace("other").unwrap();
    for n in 0..600_u64 {
        db.put(n.to_be_bytes(), value(n)).unwrap();
        other.put(n.to_be_bytes(), value(!n)).unwrap();
    }
    other
        .delete_range(5_u64.to_be_bytes(), 50_u64.to_be_bytes())
        .unwrap();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    db.close().unwrap();
    let bytes = runs(&io).into_iter().map(|run| io.read(run).unwrap().len());
    let bytes = bytes.sum::<usize>() as u64;
    assert!(bytes > 400_000, "{bytes}");
    (io, bytes)
}

fn runs(io: &FaultIo) -> Vec<PathBuf> {
    let files = io.files().into_iter();
    files
        .filter(|path| path.extension().is_some_and(|of| of == "run"))
        .collect()
}

/// Opens the store with a scrub, and what its listener receives.
fn scrubbed(io: &FaultIo, rate_bytes: u64) -> (Db, Receiver<DbEvent>) {
    let (events, received) = channel();
    let send = move |event: &DbEvent| drop(events.send(event.clone()));
    let options = options()
        .scrub_rate_bytes(rate_bytes)
        .event_listener(Arc::new(send));
    (open(io, &options).unwrap(), received)
}

/// The damage that a round finds, with how many pages it says there are.
fn round(received: &Receiver<DbEvent>) -> (Vec<Error>, u64) {
    let mut damage = Vec::new();
    loop {
        match received.recv_timeout(DEADLINE).unwrap() {
            DbEvent::DamageFound { error, .. } => damage.push(error),
            DbEvent::ScrubEnded { damaged_pages, .. } => return (damage, damaged_pages),
            _ => {}
        }
    }
}

#[test]
fn a_scrub_reads_all_of_all_runs_in_each_round() {
    let (io, bytes) = stored();
    let (db, received) = scrubbed(&io, NO_LIMIT);
    let before = db.stats().cache;
    assert_eq!(round(&received).1, 0);
    let stats = db.stats();
    let ScrubStats {
        read_bytes,
        damaged_pages,
        rounds,
        last_round_unix_s,
        ..
    } = stats.scrub;
    assert_eq!((read_bytes, damaged_pages, rounds), (bytes, 0, 1));
    assert!(last_round_unix_s > 1_700_000_000);
    let lookups = |of: forerun_db::PageCacheStats| (of.hits, of.misses);
    assert_eq!(lookups(stats.cache), lookups(before), "it fills no cache");
    assert!(
        stats.to_string().contains("1 round, 0 pages damaged"),
        "{stats}"
    );
}

#[test]
fn damage_is_found_in_runs_that_nobody_reads() {
    let (io, _) = stored();
    let mut runs = runs(&io);
    // Those of range deletions are read when the store is opened.
    runs.retain(|run| io.read(run).unwrap().len() > 16 << 10);
    for run in &runs {
        // In the first leaf.
        io.overwrite(run, 100, &[0xa5; 3]);
    }
    let (db, received) = scrubbed(&io, NO_LIMIT);
    let (damage, damaged_pages) = round(&received);
    let mut damaged: Vec<PathBuf> = damage
        .into_iter()
        .map(|error| match error {
            Error::CorruptFile { path, .. } => path,
            error => panic!("{error}"),
        })
        .collect();
    damaged.sort();
    assert_eq!(damaged, runs);
    assert_eq!(damaged_pages, runs.len() as u64);
    assert_eq!(db.stats().scrub.damaged_pages, runs.len() as u64);
    assert_eq!(db.stats().poisoned, None);
}

#[test]
fn a_scrub_keeps_to_its_rate_and_ends_at_once_when_the_store_is_closed() {
    let (io, bytes) = stored();
    let begun = Instant::now();
    let (db, received) = scrubbed(&io, 2 * bytes);
    round(&received);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(400), "{took:?}");
    db.close().unwrap();
    let (db, received) = scrubbed(&io, 1);
    let begun = Instant::now();
    db.close().unwrap();
    assert!(begun.elapsed() < DEADLINE / 2);
    assert!(
        received
            .iter()
            .all(|event| !matches!(event, DbEvent::ScrubEnded { .. }))
    );
}

#[test]
fn runs_that_go_during_a_scrub_are_left_out_and_removed() {
    let (io, bytes) = stored();
    // A round would take ten seconds.
    let (db, received) = scrubbed(&io, bytes / 10);
    for n in 0..3_u64 {
        db.put(n.to_be_bytes(), value(n)).unwrap();
        db.keyspace("other")
            .unwrap()
            .put(n.to_be_bytes(), value(n))
            .unwrap();
        db.compact().unwrap();
    }
    db.wait_idle().unwrap();
    let stats = db.stats();
    assert_eq!(stats.obsolete_files, 0);
    let live: usize = stats.levels.iter().map(|level| level.runs).sum();
    let found = runs(&io).len();
    assert!(
        found <= live + 1,
        "{found} files of {live} runs and one of range deletions"
    );
    let (damage, damaged_pages) = round(&received);
    assert_eq!((damage.len(), damaged_pages), (0, 0));
    assert_eq!(db.stats().scrub.rounds, 1);
}

#[test]
fn without_a_rate_there_is_no_scrub() {
    let (io, _) = stored();
    let (db, received) = scrubbed(&io, 0);
    db.put("a", "b").unwrap();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(db.stats().scrub, ScrubStats::default());
    db.close().unwrap();
    let is_of_scrub = |event: &DbEvent| {
        matches!(
            event,
            DbEvent::ScrubEnded { .. } | DbEvent::DamageFound { .. }
        )
    };
    assert!(!received.iter().any(|event| is_of_scrub(&event)));
}
