//! A snapshot restores exactly the items that were there, and damaged bytes do no harm.

use super::*;
use forerun_cache::{CacheOptions, Expiry, Store, StoreResult};
use proptest::prelude::*;
use std::fs;

pub(super) const NOW_UNIX_S: u64 = 1_800_000_000;
pub(super) const NOW_UNIX_MS: u64 = 1000 * NOW_UNIX_S;

pub(super) fn cache() -> Cache {
    Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(64 << 20)
            .max_item_bytes(8 << 20),
    )
    .expect("a cache")
}

fn set(cache: &Cache, value: &[u8]) {
    let stored = cache.store(Store::set(b"k", value));
    assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
}

fn written(cache: &Cache) -> Vec<u8> {
    let mut bytes = Vec::new();
    let stats =
        write_to(cache, &mut bytes, || NOW_UNIX_MS, |_, _| Ok(())).expect("memory can be written");
    assert_eq!(stats.bytes, bytes.len() as u64);
    bytes
}

/// An item as it must be restored: value, flags, CAS number, seconds to live.
pub(super) fn item(cache: &Cache, key: &[u8]) -> Option<(Vec<u8>, u32, u64, Option<u32>)> {
    let guard = cache.pin();
    let item = guard.peek(key)?;
    let now = cache.now();
    let left = item.expiry().second(now).map(|second| second - now);
    Some((item.value().to_vec(), item.flags(), item.cas(), left))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn restored_items_equal_the_saved_ones(
        items in proptest::collection::hash_map(
            proptest::collection::vec(any::<u8>(), 1..40),
            (proptest::collection::vec(any::<u8>(), 0..600), any::<u32>(), 0_u32..100),
            0..60,
        ),
        later_s in 0_u64..100,
    ) {
        let before = cache();
        before.advance(50);
        for (key, (value, flags, live_s)) in &items {
            let expiry = match live_s {
                0 => Expiry::Never,
                live_s => Expiry::At(50 + live_s),
            };
            let store = Store { flags: *flags, expiry, ..Store::set(key, value.as_slice()) };
            let _ = before.store(store);
        }
        let bytes = written(&before);
        let after = cache();
        after.advance(7);
        let stats = read_from(&after, bytes.as_slice(), NOW_UNIX_MS + 1000 * later_s)
            .expect("a valid file");
        prop_assert_eq!(stats.items + stats.expired, items.len() as u64);
        for key in items.keys() {
            let expected = item(&before, key).and_then(|(value, flags, cas, left)| match left {
                Some(left) if u64::from(left) <= later_s => None,
                Some(left) => Some((value, flags, cas, Some(left - later_s as u32))),
                None => Some((value, flags, cas, None)),
            });
            prop_assert_eq!(item(&after, key), expected);
        }
    }

    #[test]
    fn a_changed_byte_is_found(at in any::<prop::sample::Index>(), mask in 1_u8..) {
        let before = cache();
        for number in 0..100_u32 {
            let _ = before.store(Store::set(&number.to_le_bytes(), b"a value of some length"));
        }
        let mut bytes = written(&before);
        let at = at.index(bytes.len());
        bytes[at] ^= mask;
        prop_assert!(read_from(&cache(), bytes.as_slice(), NOW_UNIX_MS).is_err(), "byte {}", at);
    }

    #[test]
    fn arbitrary_bytes_yield_a_result_or_a_message(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut snapshot = header(NOW_UNIX_S).to_vec();
        snapshot.extend_from_slice(&bytes);
        prop_assert!(read_from(&cache(), snapshot.as_slice(), NOW_UNIX_MS).is_err());
    }
}

#[test]
fn a_scheduled_flush_happens_at_its_time_or_at_the_load_if_it_was_due_before() {
    let before = cache();
    before.advance(50);
    set(&before, b"v");
    before.flush_all(60);
    let bytes = written(&before);
    for (later_s, is_there) in [(0_u64, true), (9, true), (10, false), (1000, false)] {
        let after = cache();
        after.advance(7);
        read_from(&after, bytes.as_slice(), NOW_UNIX_MS + 1000 * later_s).expect("a valid file");
        let found = || after.pin().peek(b"k").is_some();
        assert_eq!(found(), is_there, "{later_s} s later");
        after.advance(7 + 10);
        assert!(!found(), "{later_s} s later");
        set(&after, b"new");
        after.advance(2000);
        assert!(found(), "the flush happens once");
    }
}

#[test]
fn a_file_above_the_maximum_age_is_not_loaded() {
    let before = cache();
    set(&before, b"v");
    let bytes = written(&before);
    let load = |later_s: u64| {
        let after = cache();
        let limits = LoadLimits {
            max_age_s: Some(60),
            is_interrupted: None,
        };
        let loaded = load_from(
            &after,
            bytes.as_slice(),
            NOW_UNIX_MS + 1000 * later_s,
            &limits,
        );
        assert_eq!(after.pin().peek(b"k").is_some(), loaded.is_ok());
        loaded
    };
    load(60).expect("it is young enough");
    let error = load(61).expect_err("it is too old");
    assert!(
        matches!(
            error,
            Fault::TooOld {
                age_s: 61,
                max_age_s: 60
            }
        ),
        "{error:?}"
    );
}

/// A slow stream: each read or write advances the cache's clock by one second.
struct Slow<'a, T>(&'a Cache, T);

impl<T> Slow<'_, T> {
    fn tick(&self) {
        self.0.advance(self.0.now() + 1);
    }
}

impl<T: Write> Write for Slow<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tick();
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.flush()
    }
}

impl<T: Read> Read for Slow<'_, T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.tick();
        self.1.read(into)
    }
}

#[test]
fn a_flush_that_becomes_due_while_a_file_is_written_is_in_the_file() {
    let before = cache();
    before.advance(50);
    let value = vec![b'x'; 100_000];
    for number in 0..20_u32 {
        let _ = before.set(&number.to_le_bytes(), value.as_slice());
    }
    before.flush_all(53);
    let mut bytes = Vec::new();
    let to = Slow(&before, &mut bytes);
    let stats = write_to(&before, to, || NOW_UNIX_MS, |_, _| Ok(())).expect("a write to memory");
    assert!(before.scheduled_flush().is_none() && stats.items > 0);
    let after = cache();
    read_from(&after, bytes.as_slice(), NOW_UNIX_MS + 3000).expect("a valid file");
    assert_eq!(after.stats().items, 0);
}

#[test]
fn slow_writes_and_reads_do_not_shift_expiry() {
    let before = cache();
    before.advance(50);
    let value = vec![b'x'; 100_000];
    for number in 0..20_u32 {
        let expiry = Expiry::At(1_000 + number);
        let _ = before.store(Store {
            expiry,
            ..Store::set(&number.to_le_bytes(), value.as_slice())
        });
    }
    let mut bytes = Vec::new();
    write_to(
        &before,
        Slow(&before, &mut bytes),
        || NOW_UNIX_MS,
        |_, _| Ok(()),
    )
    .expect("memory can be written");
    assert!(before.now() > 55, "the clock has moved");

    let after = cache();
    after.advance(7);
    let slow = Slow(&after, bytes.as_slice());
    read_from(&after, slow, NOW_UNIX_MS).expect("a valid snapshot");
    assert!(after.now() > 12, "the clock has moved");
    for number in 0..20_u32 {
        let guard = after.pin();
        let item = guard.peek(&number.to_le_bytes()).expect("the item exists");
        assert_eq!(item.expiry(), Expiry::At(7 + 950 + number));
    }
}

#[test]
fn numbers_that_clients_choose_do_not_make_later_runs_reuse_or_skip_numbers() {
    for number in [1 << 40, CAS_MAX - 5, CAS_MAX, CAS_MAX + 1, u64::MAX] {
        let mut last = 0;
        let mut bytes = None;
        for run in 0..4 {
            let cache = cache();
            if let Some(bytes) = &bytes {
                read_from(&cache, Vec::as_slice(bytes), NOW_UNIX_MS).expect("a valid snapshot");
            }
            let chosen = Store {
                new_cas: Some(number),
                ..Store::set("chosen", "v")
            };
            assert_eq!(cache.store(chosen), StoreResult::Stored { cas: number });
            for key in ["a", "b"] {
                let StoreResult::Stored { cas } = cache.set(key, "v") else {
                    panic!("run {run}");
                };
                assert_eq!(cas, last + 1, "run {run}, {number} chosen");
                last = cas;
            }
            bytes = Some(written(&cache));
        }
    }
}

#[test]
fn the_number_of_a_deleted_item_is_not_assigned_again() {
    let before = cache();
    before.advance_cas_past(7000);
    set(&before, b"v");
    let (.., deleted, _) = item(&before, b"k").expect("the item exists");
    let _ = before.delete(forerun_cache::Delete::key(b"k"));
    let after = cache();
    read_from(&after, written(&before).as_slice(), NOW_UNIX_MS).expect("a valid snapshot");
    set(&after, b"v");
    let (.., cas, _) = item(&after, b"k").expect("the item exists");
    assert_eq!((deleted, cas), (7001, 7002));
}

#[test]
fn a_counter_that_no_server_reaches_is_damage() {
    let before = cache();
    before.advance_cas_past(CAS_MAX + 1);
    let read = read_from(&cache(), written(&before).as_slice(), NOW_UNIX_MS);
    assert!(matches!(read, Err(Fault::Damaged { .. })), "{read:?}");
}

#[test]
fn every_cut_is_found() {
    let before = cache();
    for number in 0..20_u32 {
        let _ = before.store(Store::set(&number.to_le_bytes(), b"value"));
    }
    let bytes = written(&before);
    for end in 0..bytes.len() {
        assert!(
            read_from(&cache(), &bytes[..end], NOW_UNIX_MS).is_err(),
            "{end}"
        );
    }
    let mut more = bytes.clone();
    more.push(0);
    assert!(read_from(&cache(), more.as_slice(), NOW_UNIX_MS).is_err());
}

#[test]
fn a_value_of_many_frames_comes_back_and_one_too_large_is_counted() {
    let before = cache();
    let value: Vec<u8> = (0..3_000_000_u32).map(|byte| (byte % 251) as u8).collect();
    let _ = before.store(Store::set(b"large", value.as_slice()));
    let _ = before.store(Store::set(b"small", b"x"));
    let bytes = written(&before);
    let after = cache();
    let stats = read_from(&after, bytes.as_slice(), NOW_UNIX_MS).expect("a valid snapshot");
    assert_eq!(stats.items, 2);
    assert_eq!(item(&after, b"large").expect("the item exists").0, value);

    let small =
        Cache::new(CacheOptions::default().clock(forerun_cache::Clock::Manual)).expect("a cache");
    let stats = read_from(&small, bytes.as_slice(), NOW_UNIX_MS).expect("a valid snapshot");
    assert_eq!((stats.items, stats.refused), (1, 1));
    assert!(item(&small, b"small").is_some());
}

#[test]
fn faults_are_distinguished_and_name_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cache.snapshot");
    assert_eq!(read_snapshot(&cache(), &path).expect("none"), None);
    let reported = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("a file");
        let error = read_snapshot(&cache(), &path).expect_err("the file is invalid");
        assert!(error.to_string().contains("cache.snapshot"), "{error}");
        error
    };
    assert!(matches!(
        reported(b"GIF89a"),
        SnapshotError::NotASnapshot { .. }
    ));
    let mut other = header(NOW_UNIX_S);
    other[8] = 1;
    assert!(matches!(
        reported(&other),
        SnapshotError::Version { version: 1, .. }
    ));
    assert!(matches!(
        reported(&header(NOW_UNIX_S)),
        SnapshotError::Damaged { offset: 24, .. }
    ));

    write_snapshot(&cache(), &path).expect("the write replaces the file");
    assert!(
        read_snapshot(&cache(), &path)
            .expect("a valid snapshot")
            .is_some()
    );
    let missing = dir.path().join("none/cache.snapshot");
    let error = write_snapshot(&cache(), &missing).expect_err("the directory does not exist");
    assert!(
        matches!(
            error,
            SnapshotError::Io {
                doing: "create",
                ..
            }
        ),
        "{error}"
    );
}

/// A disk on which other clients complete many sets during each write.
struct Busy<'c> {
    cache: &'c Cache,
    next: u32,
    refused: u32,
}

impl Write for Busy<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for _ in 0..20 {
            self.next += 1;
            let stored = self
                .cache
                .store(Store::set(&self.next.to_be_bytes(), &[1; 100_000]));
            self.refused += u32::from(!matches!(stored, forerun_cache::StoreResult::Stored { .. }));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn no_set_is_refused_while_a_snapshot_waits_for_its_disk() {
    let cache = Cache::new(
        CacheOptions::default()
            .clock(forerun_cache::Clock::Manual)
            .memory_limit_bytes(16 << 20),
    )
    .expect("a cache");
    for n in 0..1000_u32 {
        let _ = cache.store(Store::set(&(n + 1_000_000).to_be_bytes(), &[2; 100_000]));
    }
    let mut to = Busy {
        cache: &cache,
        next: 0,
        refused: 0,
    };
    write_to(&cache, &mut to, || NOW_UNIX_MS, |_, _| Ok(())).expect("the write succeeds");
    assert!(to.next >= 200, "{} sets", to.next);
    assert_eq!(to.refused, 0);
}

/// The real system, which also counts how often a directory is synced.
#[derive(Clone, Debug, Default)]
struct CountsSyncs(std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl System for CountsSyncs {
    type Socket = <OsSystem as System>::Socket;
    type Listener = <OsSystem as System>::Listener;
    type Poll = <OsSystem as System>::Poll;
    type File = <OsSystem as System>::File;

    fn bind(
        &self,
        place: &crate::Listen,
        backlog: u32,
    ) -> Result<Self::Listener, crate::error::Error> {
        OsSystem.bind(place, backlog)
    }

    fn poll(
        &self,
        events: usize,
    ) -> io::Result<(Self::Poll, std::sync::Arc<dyn crate::system::Wake>)> {
        OsSystem.poll(events)
    }

    fn now(&self) -> std::time::Instant {
        OsSystem.now()
    }

    fn unix_s(&self) -> u64 {
        OsSystem.unix_s()
    }

    fn tick(&self, cache: &Cache) {
        OsSystem.tick(cache);
    }

    fn create(&self, path: &Path) -> io::Result<Self::File> {
        OsSystem.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Self::File> {
        OsSystem.open(path)
    }

    fn sync(&self, file: &Self::File) -> io::Result<()> {
        OsSystem.sync(file)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        OsSystem.sync_directory(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        OsSystem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        OsSystem.remove(path)
    }

    fn is_directory(&self, path: &Path) -> bool {
        OsSystem.is_directory(path)
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        OsSystem.spawn(name, work)
    }
}

#[test]
fn a_snapshot_that_is_already_gone_is_durably_gone_after_its_removal() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("cache");
    let system = CountsSyncs::default();
    let syncs = || system.0.load(std::sync::atomic::Ordering::Relaxed);
    fs::write(&path, b"snapshot").expect("a file");
    remove(&system, &path).expect("the file can be removed");
    assert_eq!(syncs(), 1);
    // A server that died may have removed the file without making the removal durable.
    remove(&system, &path).expect("there is nothing to remove");
    assert_eq!(syncs(), 2);
}

#[test]
fn a_bad_snapshot_that_is_set_aside_does_not_come_back_after_a_crash() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("cache");
    let system = CountsSyncs::default();
    let syncs = || system.0.load(std::sync::atomic::Ordering::Relaxed);
    fs::write(&path, b"not a snapshot").expect("a file");
    let options = crate::SnapshotOptions::new(&path).ignore_bad(true);
    let writer = crate::server::SnapshotWriter::new(system.clone(), options);
    writer
        .restore(&cache(), &crate::ServerHandle::new())
        .expect("the bad snapshot is ignored");
    assert!(!path.exists());
    let bad = fs::read(with_suffix(&path, ".bad")).expect("it was kept");
    assert_eq!(bad, b"not a snapshot");
    assert_eq!(syncs(), 1);
}
