//! Which directories can be opened and which are rejected, and that rejected ones are left
//! unchanged.

use crate::testing;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use forerun_core::Pages;
use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Access, Backups, Bytewise, Comparator, Create, Db, Durability, Error, KEY_BYTES_MAX,
    MemoryChecks, Op, Options, ReverseBytewise, VALUE_BYTES_MAX, Values, WalMode, WriteBatch,
};
use testing::{open, small_options};

/// Names and bytes of all files of a directory.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                fs::read(&path).unwrap_or_default(),
            )
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_store_on_the_operating_systems_files_is_written_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a").join("b").join("store");
    let options = Options::default().wal_segment_bytes(10_000);
    let db = Db::open(&path, options.clone()).unwrap();
    assert_eq!((db.path(), db.recovery().clean_close), (&*path, false));
    for i in 0..500 {
        let durability = if i % 100 == 0 {
            Durability::Synced
        } else {
            Durability::Buffered
        };
        db.put_with(format!("{i:03}").as_bytes(), &[i as u8; 50], durability)
            .unwrap();
    }
    db.delete(b"007").unwrap();
    db.flush_wal().unwrap();
    let stats = db.stats();
    assert_eq!(
        (
            stats.write_batches,
            stats.last_sequence,
            stats.memtable.entries
        ),
        (501, 501, 501)
    );
    assert!(stats.log_groups == 501 && stats.log_written_bytes > 501 * 50 && stats.log_syncs >= 6);
    assert!(stats.to_string().contains("501 batches"), "{stats}");
    db.close().unwrap();

    let db = Db::open(&path, options).unwrap();
    let report = db.recovery();
    assert_eq!(
        (report.operations, report.batches, report.last_sequence),
        (501, 501, 501)
    );
    assert!(
        report.clean_close && report.segments > 3 && report.lost_bytes() == 0,
        "{report}"
    );
    assert_eq!(db.iter().count(), 499);
    assert_eq!(db.get(b"499").unwrap().as_deref(), Some(&[243; 50][..]));
    assert_eq!(db.get(b"007").unwrap(), None);
    assert_eq!(db.get(&vec![0; KEY_BYTES_MAX + 1]).unwrap(), None);
}

#[test]
fn a_directory_that_is_no_store_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let refuse =
        |path: &Path, create, word: &str| match Db::open(path, Options::default().create(create)) {
            Err(error @ Error::NotAStore { .. }) => {
                let text = error.to_string();
                assert!(
                    text.contains(word) && text.contains(path.to_str().unwrap()),
                    "{text}"
                );
            }
            other => panic!("{other:?}"),
        };
    refuse(
        &dir.path().join("nothing"),
        Create::Never,
        "no such directory",
    );
    assert_eq!(contents(dir.path()), []);
    refuse(dir.path(), Create::Never, "no FORMAT");

    for (name, bytes) in [
        ("thesis.tex", &b"\\begin{document}"[..]),
        ("LOCK", b"of another program"),
        ("wal-000001.log", b""),
    ] {
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join(name), bytes).unwrap();
        let before = contents(&other);
        for create in [Create::IfMissing, Create::Never, Create::MustBeNew] {
            refuse(&other, create, "FORMAT");
            assert_eq!(contents(&other), before);
        }
        fs::remove_dir_all(&other).unwrap();
    }
    let file = dir.path().join("file");
    fs::write(&file, b"text").unwrap();
    refuse(&file, Create::IfMissing, "it is a file");
    assert_eq!(fs::read(&file).unwrap(), b"text");
}

#[test]
fn a_store_must_be_new_if_that_is_asked_for() {
    let io = FaultIo::new();
    let options = small_options().create(Create::MustBeNew);
    open(&io, &options).unwrap().close().unwrap();
    assert!(matches!(
        open(&io, &options),
        Err(Error::AlreadyExists { .. })
    ));
    open(&io, &small_options().create(Create::Never)).unwrap();
}

#[test]
fn a_store_that_must_be_new_cannot_be_opened_for_reading_only() {
    let io = FaultIo::new();
    let options = small_options().create(Create::MustBeNew);
    let read_only = options.clone().access(Access::ReadOnly);
    let refused = |opened: Result<_, Error>| match opened {
        Err(Error::BadOption { option, .. }) => assert_eq!(option, "create"),
        other => panic!("{:?}", other.map(|_: forerun_db::Db| ())),
    };
    refused(open(&io, &read_only));
    open(&io, &options).unwrap().close().unwrap();
    refused(open(&io, &read_only));
}

#[test]
fn a_newer_format_is_refused_and_not_reported_as_damage() {
    let io = FaultIo::new();
    open(&io, &small_options()).unwrap().close().unwrap();
    let mut format = io.read("/store/FORMAT").unwrap();
    format[8] = 2;
    let checksum = crc32c::crc32c(&format[..12]);
    format[12..16].copy_from_slice(&checksum.to_le_bytes());
    // In a newer version, anything may follow the first 16 bytes.
    format.truncate(17);
    io.write("/store/FORMAT", &format);
    match open(&io, &small_options()) {
        Err(
            error @ Error::NewerFormat {
                found: 2,
                supported: 1,
                ..
            },
        ) => {
            assert_eq!(
                error.to_string(),
                "/store has format version 2; this release reads up to version 1"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(io.read("/store/FORMAT").unwrap(), format);
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let first = Db::open(dir.path(), Options::default()).unwrap();
    let clone = first.clone();
    match Db::open(dir.path(), Options::default()) {
        Err(error @ Error::Locked { .. }) => {
            let text = error.to_string();
            assert!(text.contains(dir.path().to_str().unwrap()), "{text}");
            assert!(
                text.contains(&format!("by process {}", std::process::id())),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
    drop(first);
    assert!(
        matches!(
            Db::open(dir.path(), Options::default()),
            Err(Error::Locked { .. })
        ),
        "a clone has it open"
    );
    drop(clone);
    let second = Db::open(dir.path(), Options::default()).unwrap();
    assert!(
        second.recovery().clean_close,
        "dropping the last handle closes"
    );
    let reader = second.clone();
    second.put(b"key", b"value").unwrap();
    second.close().unwrap();
    let third = Db::open(dir.path(), Options::default()).unwrap();
    assert_eq!(
        reader.get(b"key").unwrap().as_deref(),
        Some(&b"value"[..]),
        "other handles read on"
    );
    assert!(matches!(reader.put(b"key", b"other"), Err(Error::Closed)));
    assert!(matches!(reader.flush_wal(), Err(Error::Closed)));
    reader.close().unwrap();
    third.put(b"key", b"third").unwrap();
}

#[test]
fn an_opening_to_read_leaves_a_cleanly_closed_store_closed() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    db.put(b"key", b"value").unwrap();
    db.close().unwrap();
    let db = open(&io, &small_options()).unwrap();
    assert!(db.get(b"key").unwrap().is_some());
    let io = io.kill();
    assert!(open(&io, &small_options()).unwrap().recovery().clean_close);
    let db = open(&io, &small_options()).unwrap();
    db.put(b"key", b"other").unwrap();
    let io = io.kill();
    assert!(!open(&io, &small_options()).unwrap().recovery().clean_close);
}

/// Orders keys by length, then by bytes.
struct ByLength;

impl Comparator for ByLength {
    fn name(&self) -> &str {
        "test.by-length"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.len().cmp(&b.len()).then_with(|| a.cmp(b))
    }
}

#[test]
fn a_store_keeps_its_comparator() {
    let io = FaultIo::new();
    let by_length = small_options().comparator(Arc::new(ByLength));
    let db = open(&io, &by_length).unwrap();
    for key in ["aaa", "b", "cc"] {
        db.put(key.as_bytes(), b"").unwrap();
    }
    db.close().unwrap();
    let files = io.files();
    match open(&io, &small_options()) {
        Err(Error::ComparatorMismatch { stored, given, .. }) => {
            assert_eq!((&*stored, &*given), (ByLength.name(), Bytewise.name()));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(io.files(), files);
    let db = open(&io, &by_length).unwrap();
    let keys: Vec<_> = db.iter().map(|entry| entry.unwrap().0).collect();
    assert_eq!(keys, [&b"b"[..], b"cc", b"aaa"]);
    let mut prefix = db.prefix(b"a");
    match prefix.next() {
        Some(Err(error @ Error::PrefixOrder { .. })) => {
            assert!(error.to_string().contains(ByLength.name()), "{error}")
        }
        other => panic!("{other:?}"),
    }
    assert!(prefix.next().is_none() && prefix.next_back().is_none());
}

#[test]
fn a_prefix_scan_ends_with_its_prefix_also_in_reverse_order_and_at_the_last_byte() {
    for comparator in [
        Arc::new(Bytewise) as Arc<dyn Comparator>,
        Arc::new(ReverseBytewise),
    ] {
        let options = small_options().comparator(comparator);
        let db = open(&FaultIo::new(), &options).unwrap();
        let keys: [&[u8]; 9] = [
            b"",
            b"a",
            b"a\xff",
            b"a\xff\xff",
            b"a\xff\xffz",
            b"b",
            b"\xff",
            b"\xff\xff",
            b"\xff\xff\x00",
        ];
        for key in keys {
            db.put(key, key).unwrap();
        }
        for prefix in [
            &b""[..],
            b"a",
            b"a\xff",
            b"a\xff\xff",
            b"b",
            b"c",
            b"\xff",
            b"\xff\xff",
            b"\xff\xff\xff",
        ] {
            let mut wanted: Vec<_> = keys
                .iter()
                .filter(|key| key.starts_with(prefix))
                .map(|key| key.to_vec())
                .collect();
            wanted.sort_by(|a, b| options.comparator.compare(a, b));
            let found: Vec<_> = db.prefix(prefix).map(|entry| entry.unwrap().0).collect();
            assert_eq!(found, wanted, "{:?}", prefix.escape_ascii().to_string());
            let mut backward: Vec<_> = db
                .prefix(prefix)
                .rev()
                .map(|entry| entry.unwrap().0)
                .collect();
            backward.reverse();
            assert_eq!(backward, wanted);
        }
    }
}

#[test]
fn sizes_that_no_memtable_can_have_are_invalid_options() {
    for (name, options) in [
        ("memtable_bytes", Options::default().memtable_bytes(0)),
        ("memtable_bytes", Options::default().memtable_bytes(1000)),
        (
            "memory_limit_bytes",
            Options::default().memory_limit_bytes(0),
        ),
    ] {
        match open(&FaultIo::new(), &options) {
            Err(Error::BadOption { option, reason }) => {
                assert_eq!(option, name);
                assert!(reason.contains("too few"), "{reason}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let smallest = Options::default()
        .memtable_bytes(1 << 10)
        .memory_limit_bytes(2 << 10);
    let db = open(&FaultIo::new(), &smallest).unwrap();
    db.put(b"key", b"value").unwrap();
    assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_checkpoint_inside_the_store_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (store, link) = (
        directory.path().join("store"),
        directory.path().join("link"),
    );
    let db = Db::open(&store, Options::default()).unwrap();
    std::os::unix::fs::symlink(&store, &link).unwrap();
    fs::create_dir(store.join("empty")).unwrap();
    let before = contents(&store);
    for inside in [
        store.join("copy"),
        store.join("empty"),
        link.join("copy"),
        store.join("../store/copy"),
        store.join("missing/copy"),
    ] {
        let refused = db.checkpoint(&inside);
        assert!(
            matches!(refused, Err(Error::InsideStore { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(contents(&store), before);
    // A name that begins like the store's is another directory.
    db.checkpoint(directory.path().join("store-2")).unwrap();
}

#[test]
fn backups_inside_the_store_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let [store, link, outside] =
        ["store", "link", "backups"].map(|name| directory.path().join(name));
    let db = Db::open(&store, Options::default()).unwrap();
    std::os::unix::fs::symlink(&store, &link).unwrap();
    let before = contents(&store);
    let is_inside = |refused: Result<_, Error>| match refused {
        Err(Error::InsideStore { .. }) => {}
        other => panic!("{other:?}"),
    };
    for inside in [
        store.join("backups"),
        link.join("backups"),
        store.join("missing/backups"),
    ] {
        is_inside(Backups::open_or_create(&inside).map(|_| ()));
        is_inside(Backups::create_new(&inside).map(|_| ()));
    }
    assert_eq!(contents(&store), before);
    let [below, alias] = [store.join("below"), directory.path().join("alias")];
    fs::create_dir(&below).unwrap();
    std::os::unix::fs::symlink(&below, &alias).unwrap();
    is_inside(Backups::open_or_create(&alias).map(|_| ()));
    is_inside(Backups::create_new(&alias).map(|_| ()));
    assert_eq!(fs::read_dir(&below).unwrap().count(), 0);

    // A directory that was moved there can be restored from, but takes no backup.
    drop(Backups::create_new(&outside).unwrap());
    fs::rename(&outside, store.join("backups")).unwrap();
    let mut moved = Backups::open(link.join("backups")).unwrap();
    is_inside(moved.create(&db).map(|_| ()));
    assert!(moved.list().unwrap().backups.is_empty());

    // A directory beside the store is outside it.
    let mut beside = Backups::open_or_create(directory.path().join("store-2")).unwrap();
    beside.create(&db).unwrap();
}

#[test]
fn keys_and_values_over_their_limits_are_refused() {
    let db = open(
        &FaultIo::new(),
        &small_options().memory_limit_bytes(1 << 20),
    )
    .unwrap();
    let key = vec![b'k'; KEY_BYTES_MAX + 1];
    for result in [db.put(&key, b""), db.delete(&key)] {
        match result {
            Err(error @ Error::KeyTooLong { .. }) => {
                assert!(error.to_string().contains("65537"), "{error}")
            }
            other => panic!("{other:?}"),
        }
    }
    // Zeroed memory of a gibibyte is only mapped, and the check does not touch it.
    let value = vec![0; VALUE_BYTES_MAX + 1];
    assert!(matches!(
        db.put(b"k", &value),
        Err(Error::ValueTooLong { .. })
    ));
    assert_eq!(db.stats().log_written_bytes, 0);
    db.put(&key[1..], b"longest").unwrap();
    assert_eq!(db.get(&key[1..]).unwrap().as_deref(), Some(&b"longest"[..]));
    db.put(b"", b"empty key").unwrap();
    assert_eq!(db.get(b"").unwrap().as_deref(), Some(&b"empty key"[..]));
}

#[test]
fn a_write_over_the_memory_limit_is_refused_and_leaves_nothing_behind() {
    let io = FaultIo::new();
    for wal in [WalMode::On, WalMode::Off] {
        // Stores of other tests would change the share of a cache without a size.
        let options = small_options().cache_bytes(128 << 10).wal(wal);
        let db = open(&io, &options).unwrap();
        let before = db.stats();
        let mut batch = WriteBatch::new();
        batch.put(b"first", b"1").unwrap();
        batch.put(b"large", &vec![1; 300 << 10]).unwrap();
        match db.write(&batch, Durability::Buffered) {
            Err(error @ Error::MemoryLimit { limit_bytes, .. }) => {
                assert_eq!(limit_bytes, 256 << 10);
                assert!(error.to_string().contains("memory_limit_bytes"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(db.stats(), before);
        assert_eq!(db.get(b"first").unwrap(), None);
        db.put(b"small", b"2").unwrap();
        assert_eq!(
            db.stats().last_sequence,
            before.last_sequence + 1,
            "no sequence number is used up"
        );
    }
    // Entries that fitted into memory before go to a run if there is less memory.
    let db = open(&io, &small_options()).unwrap();
    for key in ["a", "b", "c", "d"] {
        db.put(key.as_bytes(), &vec![1; 40 << 10]).unwrap();
    }
    db.close().unwrap();
    let less = small_options().memory_limit_bytes(100 << 10);
    let db = open(&io, &less).unwrap();
    assert!(db.recovery().clean_close);
    for key in ["a", "b", "c", "d"] {
        assert_eq!(db.get(key.as_bytes()).unwrap(), Some(vec![1; 40 << 10]));
    }
}

#[test]
fn without_the_log_a_store_reads_runs_and_keeps_no_new_writes() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    db.put(b"logged", b"1").unwrap();
    db.close().unwrap();
    let files: Vec<_> = io
        .files()
        .iter()
        .map(|path| (path.clone(), io.read(path)))
        .collect();
    let db = open(&io, &small_options().wal(WalMode::Off)).unwrap();
    db.put(b"unlogged", b"2").unwrap();
    db.delete(b"logged").unwrap();
    assert_eq!(db.get(b"unlogged").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(db.get(b"logged").unwrap(), None);
    assert_eq!((db.stats().write_batches, db.stats().last_sequence), (2, 3));
    assert!(matches!(
        db.put_with(b"k", b"v", Durability::Synced),
        Err(Error::LogOff)
    ));
    assert!(matches!(db.flush_wal(), Err(Error::LogOff)));
    let other = db.clone();
    db.close().unwrap();
    assert!(matches!(other.put(b"k", b"v"), Err(Error::Closed)));
    let after: Vec<_> = io
        .files()
        .iter()
        .map(|path| (path.clone(), io.read(path)))
        .collect();
    assert!(files == after, "nothing is written");
    let db = open(&io, &small_options()).unwrap();
    assert_eq!(db.get(b"logged").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.get(b"unlogged").unwrap(), None);
}

#[test]
fn an_empty_batch_is_fine_and_can_ask_for_a_sync() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    let empty = WriteBatch::new();
    assert_eq!(db.write(&empty, Durability::Buffered).unwrap(), 0);
    db.put(b"key", b"value").unwrap();
    assert_eq!(db.write(&empty, Durability::Synced).unwrap(), 1);
    assert_eq!(db.stats().write_batches, 1);
    let db = open(&io.crash(0), &small_options()).unwrap();
    assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    let mut values = Values::new();
    db.multi_get::<&[u8]>(&[], &mut values).unwrap();
    assert!(values.is_empty());
}

#[test]
fn a_batch_larger_than_a_segment_is_one_record() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    let mut batch = WriteBatch::new();
    for i in 0..200_u32 {
        batch.put(&i.to_be_bytes(), &[i as u8; 90]).unwrap();
    }
    assert_eq!(db.write(&batch, Durability::Buffered).unwrap(), 200);
    db.put(b"next", b"segment").unwrap();
    let db = open(&io.kill(), &small_options()).unwrap();
    assert_eq!((db.recovery().batches, db.recovery().segments), (2, 2));
    assert_eq!(db.iter().count(), 201);
    assert!(batch.ops().all(
        |op| matches!(op, Op::Put { key, value } if db.get(key).unwrap().as_deref() == Some(value))
    ));
}

#[test]
fn paranoid_checks_change_no_answer() {
    let options = small_options()
        .checks(MemoryChecks::Paranoid)
        .pages(Pages::Small);
    let db = open(&FaultIo::new(), &options).unwrap();
    for i in 0..100_u32 {
        db.put(&i.to_be_bytes(), b"v").unwrap();
    }
    let keys: Vec<_> = (0..200_u32).map(u32::to_be_bytes).collect();
    let mut values = Values::new();
    db.multi_get(&keys, &mut values).unwrap();
    assert_eq!((values.found(), db.iter().count()), (100, 100));
    assert_eq!(
        (db.stats().lookup_batches, db.stats().lookup_keys),
        (1, 200)
    );
}
