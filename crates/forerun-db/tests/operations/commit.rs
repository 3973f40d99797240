//! Many threads write and read at once: writes are grouped, batches are atomic, and a writer reads
//! what it wrote.

use crate::testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use forerun_db::io::fault::{EIO, Fault, FaultIo};
use forerun_db::{Db, Durability, Error, Options, Values, WalMode, WriteBatch};
use testing::small_options;

const THREADS: usize = 4;

fn options(wal: WalMode) -> Options {
    small_options()
        .memory_limit_bytes(16 << 20)
        .wal_segment_bytes(20_000)
        .wal(wal)
}

#[test]
fn a_writer_reads_what_it_wrote_and_all_is_recovered() {
    let dir = tempfile::tempdir().unwrap();
    for wal in [WalMode::Off, WalMode::On] {
        let db = Db::open(dir.path(), options(wal)).unwrap();
        forerun_core::sync::thread::scope(|scope| {
            for thread in 0..THREADS {
                let db = &db;
                scope.spawn(move || {
                    let mut values = Values::new();
                    for i in 0..500 {
                        let key = format!("{thread}-{i}");
                        let durability = if wal == WalMode::On && i % 50 == 0 {
                            Durability::Synced
                        } else {
                            Durability::Buffered
                        };
                        db.put_with(key.as_bytes(), key.as_bytes(), durability)
                            .unwrap();
                        db.multi_get(&[&key, "missing"], &mut values).unwrap();
                        assert_eq!(values.get(0).unwrap(), Some(key.as_bytes()));
                        assert_eq!(values.found(), 1);
                    }
                });
            }
        });
        let stats = db.stats();
        assert_eq!((stats.write_batches, stats.last_sequence), (2000, 2000));
        assert_eq!(db.iter().count(), 2000);
        db.close().unwrap();
    }
    let db = Db::open(dir.path(), options(WalMode::On)).unwrap();
    assert_eq!(
        (db.recovery().batches, db.recovery().last_sequence),
        (2000, 2000)
    );
    assert!(
        db.iter()
            .all(|entry| entry.is_ok_and(|(key, value)| key == value))
    );
    assert_eq!(db.iter().count(), 2000);
}

#[test]
fn readers_see_batches_whole_and_in_order() {
    const KEYS: usize = 5;
    for wal in [WalMode::On, WalMode::Off] {
        let db = Db::open_with_io(Arc::new(FaultIo::new()), testing::STORE, options(wal)).unwrap();
        let is_over = AtomicBool::new(false);
        let rounds = AtomicUsize::new(0);
        forerun_core::sync::thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let db = &db;
                    scope.spawn(move || {
                        let mut batch = WriteBatch::new();
                        for i in 0..300_u32 {
                            batch.clear();
                            for key in 0..KEYS {
                                batch
                                    .put(format!("{thread}-{key}").as_bytes(), &i.to_be_bytes())
                                    .unwrap();
                            }
                            db.write(&batch, Durability::Buffered).unwrap();
                        }
                    })
                })
                .collect();
            for _ in 0..2 {
                scope.spawn(|| {
                    let keys: Vec<String> = (0..THREADS)
                        .flat_map(|thread| (0..KEYS).map(move |key| format!("{thread}-{key}")))
                        .collect();
                    let mut values = Values::new();
                    let mut last = vec![None; THREADS];
                    while !is_over.load(Ordering::Relaxed) {
                        let snapshot = db.snapshot();
                        snapshot.multi_get(&keys, &mut values).unwrap();
                        for (thread, last) in last.iter_mut().enumerate() {
                            let of_thread: Vec<_> = (0..KEYS)
                                .map(|key| {
                                    values.get(thread * KEYS + key).unwrap().map(<[u8]>::to_vec)
                                })
                                .collect();
                            assert!(
                                of_thread.iter().all(|value| *value == of_thread[0]),
                                "half a batch: {of_thread:?}"
                            );
                            assert!(of_thread[0] >= *last, "an older batch came back");
                            last.clone_from(&of_thread[0]);
                        }
                        // Reading the same moment in another way gives the same answer.
                        let scanned: Vec<_> =
                            snapshot.iter().map(|entry| entry.unwrap().1).collect();
                        let looked_up: Vec<_> = values
                            .iter()
                            .filter_map(|value| value.unwrap().map(<[u8]>::to_vec))
                            .collect();
                        assert_eq!(scanned, looked_up);
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            writers
                .into_iter()
                .for_each(|writer| writer.join().unwrap());
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(rounds.into_inner() > 10);
        assert_eq!(db.stats().last_sequence, (THREADS * 300 * KEYS) as u64);
    }
}

#[test]
fn writers_that_wait_for_a_sync_share_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options(WalMode::On)).unwrap();
    let held = AtomicUsize::new(0);
    forerun_core::sync::thread::scope(|scope| {
        for thread in 0..8 {
            let (db, held) = (&db, &held);
            scope.spawn(move || {
                held.fetch_add(1, Ordering::SeqCst);
                while held.load(Ordering::SeqCst) < 8 {
                    std::hint::spin_loop();
                }
                for i in 0..20 {
                    db.put_with(
                        format!("{thread}-{i}").as_bytes(),
                        b"value",
                        Durability::Synced,
                    )
                    .unwrap();
                }
            });
        }
    });
    let stats = db.stats();
    assert_eq!(stats.write_batches, 160);
    assert!(
        stats.log_groups <= 160 && stats.log_syncs <= stats.log_groups + 2,
        "{stats}"
    );
}

#[test]
fn a_group_that_fails_fails_for_all_its_writers_and_the_others_are_kept() {
    // A call fails somewhere among the writes of four threads. Afterwards the store holds exactly
    // what each thread's results say.
    for call in (20..200).step_by(7) {
        for fault in [Fault::Fail(EIO), Fault::TornWrite(EIO), Fault::PowerLoss] {
            let io = FaultIo::new();
            let db = Db::open_with_io(Arc::new(io.clone()), testing::STORE, options(WalMode::On))
                .unwrap();
            io.fail_call(call, fault);
            let outcomes: Vec<Vec<bool>> = forerun_core::sync::thread::scope(|scope| {
                let writers: Vec<_> = (0..THREADS)
                    .map(|thread| {
                        let db = &db;
                        scope.spawn(move || {
                            (0..40)
                                .map(|i| {
                                    let durability = if i % 8 == 0 {
                                        Durability::Synced
                                    } else {
                                        Durability::Buffered
                                    };
                                    db.put_with(
                                        format!("{thread}-{i}").as_bytes(),
                                        b"value",
                                        durability,
                                    )
                                    .is_ok()
                                })
                                .collect()
                        })
                    })
                    .collect();
                writers
                    .into_iter()
                    .map(|writer| writer.join().unwrap())
                    .collect()
            });
            let check = |db: &Db, is_reopened: bool| {
                for (thread, outcomes) in outcomes.iter().enumerate() {
                    for (i, is_ok) in outcomes.iter().enumerate() {
                        let is_there = db
                            .get(format!("{thread}-{i}").as_bytes())
                            .unwrap()
                            .is_some();
                        assert!(
                            is_there || !is_ok,
                            "{fault:?} at call {call}: {thread}-{i} is gone"
                        );
                        // Whether a write that failed in the sync exists after a restart is open.
                        assert!(
                            !is_there || *is_ok || is_reopened,
                            "{fault:?} at call {call}: {thread}-{i} failed but is there"
                        );
                    }
                }
            };
            check(&db, false);
            let io = io.kill();
            check(
                &Db::open_with_io(Arc::new(io), testing::STORE, options(WalMode::On)).unwrap(),
                true,
            );
        }
    }
}

#[test]
fn closing_finishes_running_writes_and_refuses_new_ones() {
    for _ in 0..20 {
        let io = FaultIo::new();
        let db =
            Db::open_with_io(Arc::new(io.clone()), testing::STORE, options(WalMode::On)).unwrap();
        let written: usize = forerun_core::sync::thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let db = db.clone();
                    scope.spawn(move || {
                        for i in 0.. {
                            match db.put(format!("{thread}-{i}").as_bytes(), b"value") {
                                Ok(()) => {}
                                Err(Error::Closed) => return i,
                                Err(error) => panic!("{error}"),
                            }
                        }
                        unreachable!("the store is closed before the numbers end")
                    })
                })
                .collect();
            while db.stats().last_sequence < 50 {
                std::thread::yield_now();
            }
            db.close().unwrap();
            writers
                .into_iter()
                .map(|writer| writer.join().unwrap())
                .sum()
        });
        let db = Db::open_with_io(Arc::new(io), testing::STORE, options(WalMode::On)).unwrap();
        assert!(db.recovery().clean_close);
        assert_eq!(db.iter().count(), written);
    }
}
