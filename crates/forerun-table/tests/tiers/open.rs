//! What can be opened, and the messages about what cannot.

use crate::testing;

use forerun_db::{Access, Backups, Create, Db, Options};
use forerun_table::{
    Background, DeviceChoice, Dtype, Error, EvictStrategy, Table, WhenHostFull, WritePolicy,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testing::find;

fn refusal(opened: Result<Table, Error>) -> String {
    opened.unwrap_err().to_string()
}

#[test]
fn impossible_settings_are_refused_by_name() {
    let builder = || Table::builder(Dtype::F32, 4);
    let no_rows = refusal(Table::builder(Dtype::F32, 0).open());
    assert!(no_rows.contains("0 x float32"), "{no_rows}");
    let too_long = refusal(Table::builder(Dtype::F64, u32::MAX).open());
    assert!(too_long.contains("1048576"), "{too_long}");
    assert!(refusal(builder().host_capacity(0).open()).contains("minimum"));
    assert!(refusal(builder().host_capacity(usize::MAX).open()).contains("maximum"));
    assert!(refusal(builder().host_bytes(100).open()).contains("minimum"));
    assert!(refusal(builder().writes(WritePolicy::WriteBack).open()).contains("path"));
    let directory = tempfile::tempdir().unwrap();
    let both = builder()
        .path(directory.path())
        .when_full(WhenHostFull::Refuse);
    assert!(refusal(both.open()).contains("when_full"));
    let nowhere = builder()
        .device_capacity(10)
        .device(DeviceChoice::Gpu(10_000));
    assert!(matches!(
        nowhere.open(),
        Err(Error::NoDevice { rows: 10, .. })
    ));
    let too_many = builder()
        .device_capacity(usize::MAX)
        .device(DeviceChoice::Cpu);
    assert!(refusal(too_many.open()).contains("slots"));
    let without = builder().open().unwrap();
    let no_tier = without.find_ptr(&[1]).unwrap_err().to_string();
    assert!(no_tier.contains("device_capacity"), "{no_tier}");
}

#[test]
fn batches_whose_parts_do_not_fit_are_refused_and_nothing_is_done() {
    let table = Table::builder(Dtype::F32, 4).open().unwrap();
    let wrong = [
        table.insert(&[1, 2], &[0; 31]).unwrap_err(),
        table.find(&[1], &mut [0; 17], &mut [false]).unwrap_err(),
        table.find(&[1], &mut [0; 16], &mut []).unwrap_err(),
        table.contains(&[1], &mut [false; 2]).unwrap_err(),
    ];
    for error in wrong {
        assert!(matches!(error, Error::Length { .. }), "{error}");
    }
    assert!(matches!(
        table.insert_with_scores(&[1], &[0; 16], &[1]),
        Err(Error::Conflict(_))
    ));
    assert_eq!(table.host_len(), 0);
    assert_eq!(table.find(&[], &mut [], &mut []).unwrap(), 0);
    assert!(matches!(table.snapshot(), Err(Error::NoStore { .. })));
}

#[test]
fn a_store_of_other_rows_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let table = Table::builder(Dtype::F32, 4).path(&path).open().unwrap();
    table.insert(&[1], &[1; 16]).unwrap();
    table.close().unwrap();
    let other = refusal(Table::builder(Dtype::F32, 5).path(&path).open());
    assert!(other.contains("4 x float32"), "{other}");
    let scored = Table::builder(Dtype::F32, 4)
        .path(&path)
        .evict_strategy(EvictStrategy::Customized);
    assert!(refusal(scored.open()).contains("without scores"));
    let table = Table::builder(Dtype::F32, 4).path(&path).open().unwrap();
    assert_eq!(find(&table, &[1])[0].as_ref().unwrap(), &Some(vec![1; 16]));
    drop(table);

    let path = directory.path().join("other");
    let db = Db::open(&path, Options::default()).unwrap();
    db.put(b"town", b"Bern").unwrap();
    let foreign = refusal(Table::builder(Dtype::F32, 4).db(db.clone()).open());
    assert!(foreign.contains("no description"), "{foreign}");
    assert_eq!(db.iter().count(), 1);
}

#[test]
fn an_invalid_row_fails_only_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path().join("rows"), Options::default()).unwrap();
    let table = Table::builder(Dtype::U8, 4).db(db.clone()).open().unwrap();
    table.import_rows(&[1, 2], b"one.two.").unwrap();
    db.put(&1u64.to_be_bytes(), b"longer than a row").unwrap();
    let answers = find(&table, &[1, 2]);
    assert!(matches!(
        answers[0],
        Err(Error::BadRow {
            key: 1,
            len_bytes: 17,
            ..
        })
    ));
    assert_eq!(answers[1].as_ref().unwrap(), &Some(b"two.".to_vec()));
}

#[test]
fn a_full_table_without_eviction_accepts_only_replacements() {
    let table = Table::builder(Dtype::U8, 4)
        .host_capacity(2)
        .when_full(WhenHostFull::Refuse)
        .background(Background::Caller)
        .open()
        .unwrap();
    table.insert(&[1, 2], b"one.two.").unwrap();
    let Err(Error::Keys(failures)) = table.insert(&[3, 2, 4], b"thr.TWO.for.") else {
        panic!("the table has no space for two more")
    };
    assert_eq!((failures.len(), failures.served()), (2, 1));
    let failed: Vec<(usize, u64)> = failures.iter().map(|(at, key, _)| (at, key)).collect();
    assert_eq!(failed, [(0, 3), (2, 4)]);
    assert!(failures.to_string().contains("2 keys failed"), "{failures}");
    assert_eq!(
        find(&table, &[2])[0].as_ref().unwrap(),
        &Some(b"TWO.".to_vec())
    );
    table.erase(&[1]).unwrap();
    table.insert(&[3], b"thr.").unwrap();
}

#[test]
fn every_handle_reports_that_its_table_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let table = Table::builder(Dtype::U8, 4).path(&path).open().unwrap();
    let other = table.clone();
    table.close().unwrap();
    assert!(matches!(
        other.find(&[1], &mut [0; 4], &mut [false]),
        Err(Error::Closed)
    ));
    assert!(matches!(other.insert(&[1], &[0; 4]), Err(Error::Closed)));
    other.wait_idle();
    // Another table can open the store while the handle lives.
    Table::builder(Dtype::U8, 4).path(&path).open().unwrap();
}

#[test]
fn bytes_of_the_host_tier_are_a_bound() {
    for bytes in [200_000, 10 << 20, 300 << 20] {
        for (dtype, dim) in [(Dtype::F32, 64), (Dtype::U8, 5), (Dtype::F64, 300)] {
            let table = Table::builder(dtype, dim).host_bytes(bytes).open();
            let Ok(table) = table else {
                assert!(
                    bytes == 200_000 && dim == 300,
                    "{bytes} for {dim} x {dtype}"
                );
                continue;
            };
            let reported = table.stats().host_bytes as usize;
            assert!(
                reported <= bytes,
                "{reported} of {bytes} for {dim} x {dtype}"
            );
            assert!(
                reported >= bytes / 2,
                "{reported} of {bytes} for {dim} x {dtype}"
            );
        }
    }
}

#[test]
fn a_checkpoint_is_an_independent_table() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("rows"), directory.path().join("copy"));
    let table = Table::builder(Dtype::U8, 4)
        .path(path)
        .writes(WritePolicy::WriteBack)
        .open()
        .unwrap();
    table.insert(&[1, 2], b"one.two.").unwrap();
    table.checkpoint(&copy).unwrap();
    table.erase(&[1]).unwrap();
    let copy = Table::builder(Dtype::U8, 4).path(copy).open().unwrap();
    assert_eq!(copy.count().unwrap(), 2);
    assert_eq!(
        find(&copy, &[1])[0].as_ref().unwrap(),
        &Some(b"one.".to_vec())
    );
}

#[test]
fn an_eviction_sink_may_be_shared() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let table = Table::builder(Dtype::U8, 1)
        .host_capacity(1)
        .background(Background::Caller)
        .when_full(WhenHostFull::Callback(Arc::new(move |keys, rows| {
            let _ = sender.send((keys.to_vec(), rows.to_vec()));
        })))
        .open()
        .unwrap();
    for key in 0..5 {
        table.insert(&[key], &[key as u8]).unwrap();
    }
    drop(table);
    let handed: Vec<(Vec<u64>, Vec<u8>)> = receiver.iter().collect();
    assert_eq!(handed.len(), 4);
    assert!(
        handed
            .iter()
            .all(|(keys, rows)| keys[0] == u64::from(rows[0]))
    );
}

#[test]
fn a_memory_budget_is_a_bound_on_all_parts_together() {
    const BUDGET: usize = 8 << 20;
    for (dtype, dim) in [(Dtype::F32, 64), (Dtype::F64, 300)] {
        let directory = tempfile::tempdir().unwrap();
        let table = Table::builder(dtype, dim)
            .memory_bytes(BUDGET)
            .path(directory.path().join("rows"))
            .open()
            .unwrap();
        let stats = table.stats();
        assert!(stats.memory_limit_bytes <= BUDGET as u64, "{stats:?}");
        assert!(stats.memory_limit_bytes >= BUDGET as u64 * 3 / 4);
        assert!(stats.host_bytes >= BUDGET as u64 / 2);
        let row_bytes = table.row().bytes();
        let keys: Vec<u64> = (0..(BUDGET / row_bytes) as u64).collect();
        for keys in keys.chunks(4096) {
            table
                .insert(keys, &vec![7; keys.len() * row_bytes])
                .unwrap();
            let stats = table.stats();
            assert!(stats.memory_bytes() <= stats.memory_limit_bytes);
        }
        for keys in keys.chunks(4096).cycle().take(2 * keys.len() / 4096) {
            let (mut rows, mut found) = (vec![0; keys.len() * row_bytes], vec![false; keys.len()]);
            assert_eq!(table.find(keys, &mut rows, &mut found).unwrap(), keys.len());
        }
        table.wait_idle();
        let stats = table.stats();
        assert!(
            stats.memory_bytes() <= stats.memory_limit_bytes,
            "{stats:?}"
        );
    }
}

#[test]
fn a_memory_budget_contradicts_other_sizes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let builder = || Table::builder(Dtype::F32, 4).memory_bytes(64 << 20);
    assert!(refusal(builder().host_capacity(10).open()).contains("one budget"));
    assert!(refusal(builder().host_bytes(1 << 20).open()).contains("one budget"));
    let db = Db::open(&path, Options::default()).unwrap();
    assert!(refusal(builder().db(db).open()).contains("limits of its own"));
    let small = Table::builder(Dtype::F32, 4).memory_bytes(1000);
    let small = small.path(directory.path().join("none")).open();
    assert!(matches!(
        small,
        Err(Error::MemoryBudget {
            asked_bytes: 1000,
            ..
        })
    ));
    assert!(!directory.path().join("none").exists());
    let memory = builder().open().unwrap().stats();
    assert!(memory.memory_limit_bytes <= 64 << 20 && memory.host_bytes > 60 << 20);
}

#[test]
fn an_automatic_memory_budget_is_half_of_what_the_process_may_use() {
    let builder = Table::builder(Dtype::F32, 1024).memory_auto();
    if let Some(limit) = forerun_core::memory_limit() {
        assert_eq!(builder.memory_budget(), Some(limit.bytes as usize / 2));
    }
    let budget = builder.memory_budget().unwrap() as u64;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    assert!(refusal(builder.clone().host_capacity(10).open()).contains("one budget"));
    let limit_bytes = builder
        .path(path)
        .open()
        .unwrap()
        .stats()
        .memory_limit_bytes;
    assert!(limit_bytes <= budget && limit_bytes >= budget / 2);
    let given = Table::builder(Dtype::F32, 4);
    assert_eq!(given.memory_budget(), None);
    assert_eq!(given.memory_bytes(7).memory_budget(), Some(7));
}

#[test]
fn the_smallest_memory_budget_takes_writes() {
    for (dtype, dim) in [(Dtype::F32, 1), (Dtype::F32, 4096), (Dtype::F64, 1 << 17)] {
        let directory = tempfile::tempdir().unwrap();
        let open = |bytes| {
            let path = directory.path().join("rows");
            Table::builder(dtype, dim)
                .memory_bytes(bytes)
                .path(path)
                .open()
        };
        let Err(Error::MemoryBudget { needed_bytes, .. }) = open(1000) else {
            panic!("1000 bytes for {dim} x {dtype}");
        };
        let table = open(needed_bytes).unwrap();
        let row_bytes = table.row().bytes();
        let keys: Vec<u64> = (0..3000.min((64 << 20) / row_bytes as u64)).collect();
        table
            .insert(&keys, &vec![7; keys.len() * row_bytes])
            .unwrap();
        assert_eq!(table.count().unwrap(), keys.len() as u64);
    }
}

#[test]
fn a_table_over_a_read_only_store_is_read_and_takes_no_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let builder = || Table::builder(Dtype::U8, 4).path(&path);
    let table = builder().open().unwrap();
    table.insert(&[1, 2], b"one.two.").unwrap();
    table.close().unwrap();
    let options = builder().default_store_options().access(Access::ReadOnly);
    let back = builder()
        .store_options(options.clone())
        .writes(WritePolicy::WriteBack);
    assert!(refusal(back.open()).contains("reading only"));
    let table = builder().store_options(options).open().unwrap();
    for _ in 0..3 {
        assert_eq!(
            find(&table, &[2])[0].as_ref().unwrap(),
            &Some(b"two.".to_vec())
        );
    }
    let mut found = [false];
    let refused = [
        table.insert(&[1], b"1111").unwrap_err(),
        table.import_rows(&[1], b"1111").unwrap_err(),
        table.erase(&[1]).unwrap_err(),
        table
            .update(&[1], b"1111", forerun_table::Update::Assign, &mut found)
            .unwrap_err(),
    ];
    for error in refused {
        let is_read_only = matches!(&error, Error::Store(forerun_db::Error::ReadOnly { .. }));
        assert!(is_read_only, "{error}");
    }
    assert_eq!(
        find(&table, &[1])[0].as_ref().unwrap(),
        &Some(b"one.".to_vec())
    );
    assert_eq!(table.count().unwrap(), 2);
    table.flush().unwrap();
    table.close().unwrap();
}

#[test]
fn a_count_follows_every_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    for writes in [WritePolicy::WriteThrough, WritePolicy::WriteBack] {
        let builder = Table::builder(Dtype::U8, 4).path(&path).writes(writes);
        let table = builder.open().unwrap();
        table.insert(&[1, 2, 3], b"one.two.tre.").unwrap();
        assert_eq!((table.count().unwrap(), table.count().unwrap()), (3, 3));
        table.erase(&[2]).unwrap();
        assert_eq!(table.count().unwrap(), 2);
        table.insert(&[1, 4], b"one.four").unwrap();
        assert_eq!(table.count().unwrap(), 3);
        table.erase(&[1, 3, 4]).unwrap();
        assert_eq!(table.count().unwrap(), 0);
        table.close().unwrap();
    }
}

#[test]
fn a_backup_has_the_rows_that_were_not_yet_written_back() {
    let directory = tempfile::tempdir().unwrap();
    let [path, kept, restored] =
        ["rows", "kept", "restored"].map(|name| directory.path().join(name));
    let builder = Table::builder(Dtype::U8, 4)
        .path(path)
        .writes(WritePolicy::WriteBack);
    let table = builder.open().unwrap();
    table.insert(&[1, 2], b"one.two.").unwrap();
    let mut backups = Backups::open_or_create(kept).unwrap();
    table.backup(&mut backups).unwrap();
    backups.restore(None, &restored).unwrap();
    let restored = Table::builder(Dtype::U8, 4).path(restored).open().unwrap();
    assert_eq!(
        find(&restored, &[2])[0].as_ref().unwrap(),
        &Some(b"two.".to_vec())
    );
    let nowhere = Table::builder(Dtype::U8, 4).open().unwrap();
    assert!(matches!(
        nowhere.backup(&mut backups),
        Err(Error::NoStore { op: "backup" })
    ));
}

#[test]
fn an_unchanged_table_is_not_counted_again() {
    let directory = tempfile::tempdir().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let questions = Arc::clone(&asked);
    let builder = Table::builder(Dtype::U8, 4).path(directory.path().join("rows"));
    let builder = builder.interrupt_if(move || {
        questions.fetch_add(1, Ordering::Relaxed);
        false
    });
    let table = builder.open().unwrap();
    table.insert(&[1, 2, 3], b"one.two.tre.").unwrap();
    // A scan asks whether to continue.
    let count = || {
        let before = asked.load(Ordering::Relaxed);
        let count = table.count().unwrap();
        (count, asked.load(Ordering::Relaxed) - before)
    };
    let (first, asked_first) = count();
    let (second, asked_second) = count();
    assert_eq!((first, second), (3, 3));
    assert!(asked_second < asked_first);
    table.erase(&[3]).unwrap();
    assert_eq!(count(), (2, asked_first));
}

#[test]
fn a_store_whose_entries_expire_holds_no_table() {
    let directory = tempfile::tempdir().unwrap();
    let [rows, new] = ["rows", "new"].map(|name| directory.path().join(name));
    let options = Options::default().ttl(Some(Duration::from_secs(60)));
    let open = || Db::open(&rows, options.clone()).unwrap();
    let expects = "the store's entries live 60 s, but a table's rows do not expire: \
                   use a store without a time to live";
    let builder = || Table::builder(Dtype::U8, 4);
    assert_eq!(refusal(builder().db(open()).open()), expects);
    assert_eq!(open().iter().count(), 0, "no description");
    // The store remembers its time to live.
    assert_eq!(refusal(builder().path(&rows).open()), expects);
    let options = builder().store_options(options.clone());
    assert_eq!(refusal(options.path(&new).open()), expects);
    assert!(!new.exists());
}

#[test]
fn a_read_only_table_is_never_created() {
    let directory = tempfile::tempdir().unwrap();
    let [path, empty, none] = ["rows", "empty", "none"].map(|name| directory.path().join(name));
    let builder = |path| Table::builder(Dtype::U8, 4).path(path);
    builder(&path).open().unwrap().close().unwrap();
    let options = Options::default().access(Access::ReadOnly);
    let new = options.clone().create(Create::MustBeNew);
    let refused = builder(&path).store_options(new).open().unwrap_err();
    let is_option = matches!(&refused, Error::Store(forerun_db::Error::BadOption { .. }));
    assert!(is_option, "{refused}");

    Db::open(&empty, Options::default()).unwrap();
    let opened = builder(&empty).store_options(options.clone()).open();
    let words = refusal(opened);
    assert!(words.contains("does not hold a table"), "{words}");
    assert!(words.contains("the store is empty"), "{words}");
    std::fs::create_dir(&none).unwrap();
    let words = refusal(builder(&none).store_options(options.clone()).open());
    assert!(words.contains("is not a Forerun store"), "{words}");

    let table = builder(&path).store_options(options).open().unwrap();
    let mut backups = Backups::open_or_create(directory.path().join("backups")).unwrap();
    let copy = directory.path().join("copy");
    for error in [
        table.checkpoint(&copy).unwrap_err(),
        table.backup(&mut backups).unwrap_err(),
    ] {
        let is_read_only = matches!(&error, Error::Store(forerun_db::Error::ReadOnly { .. }));
        assert!(is_read_only, "{error}");
    }
    assert!(!copy.exists() && backups.list().unwrap().backups.is_empty());
}

#[test]
fn a_long_log_of_a_store_opened_for_reading_only_takes_the_space_of_rows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let builder = || Table::builder(Dtype::F32, 64).path(&path);
    let table = builder().open().unwrap();
    let keys: Vec<u64> = (0..12_000).collect();
    table.insert(&keys, &vec![7; keys.len() * 256]).unwrap();
    table.close().unwrap();
    let options = builder().default_store_options().access(Access::ReadOnly);
    let open = |bytes| {
        let builder = builder().store_options(options.clone());
        builder.memory_bytes(bytes).open()
    };
    for bytes in [12 << 20, 64 << 20] {
        let table = open(bytes).unwrap();
        assert_eq!(table.count().unwrap(), 12_000);
        let stats = table.stats();
        assert!(
            stats.memory_bytes() <= stats.memory_limit_bytes,
            "{stats:?}"
        );
        assert!(stats.memory_limit_bytes <= bytes as u64, "{stats:?}");
    }
    let Err(Error::MemoryBudget { needed_bytes, .. }) = open(1000) else {
        panic!("1000 bytes for a table");
    };
    for bytes in [4 << 20, needed_bytes] {
        let Err(small @ Error::LogMemory { .. }) = open(bytes) else {
            panic!("3 MB in memtables of {bytes} / 2 bytes");
        };
        let words = small.to_string();
        assert!(words.contains("raise `memory`"), "{words}");
        assert!(words.contains(&format!("of {bytes} bytes")), "{words}");
    }
}

#[test]
fn the_admission_filter_of_a_device_tier_is_part_of_the_budget() {
    const BUDGET: usize = 16 << 20;
    let directory = tempfile::tempdir().unwrap();
    let builder = Table::builder(Dtype::U8, 4)
        .device(DeviceChoice::Cpu)
        .device_capacity(1 << 20)
        .memory_bytes(BUDGET);
    let on_disk = builder.clone().path(directory.path().join("rows"));
    for builder in [builder, on_disk] {
        let stats = builder.open().unwrap().stats();
        assert!(stats.memory_limit_bytes <= BUDGET as u64, "{stats:?}");
    }
}
