//! Loom models of the kernels' memory orders, which `kernels/table/bucket.cuh` lists.
//!
//! Each test checks a model with the kernels' orders. It then removes each order that it names, and
//! the model must fail, which shows that the order is needed. Here, a warp's lanes are threads, and
//! starting and joining them models `warp_sync`. Relaxed accesses and fences have the same meaning
//! in PTX.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};

const LOCKED: u32 = 1;
const VERSION: u32 = 8;

/// The steps that order accesses. All of them are `true` in the kernels.
#[derive(Clone, Copy, Debug)]
struct Orders {
    /// The fence after the lock's compare-and-swap.
    lock: bool,
    /// The fence before the word is stored.
    unlock: bool,
    /// The same if the lock's holder has changed nothing.
    unlock_unchanged: bool,
    /// The digest is stored with release.
    publish: bool,
    /// The fence between digests and keys, in a search that runs concurrently with writers.
    search: bool,
    /// The fence after the word is read, before the data that it guards is read.
    version: bool,
    /// The fence after the row is read, before the word is read again.
    check: bool,
    /// One lane reads the words for all.
    one_lane: bool,
    /// The fence of every lane after the lanes have met, before the changes under the locks.
    all_lanes: bool,
    /// A lock that was of no use is given back with an exchange, not with a store.
    give_back: bool,
}

const KERNELS: Orders = Orders {
    lock: true,
    unlock: true,
    unlock_unchanged: true,
    publish: true,
    search: true,
    version: true,
    check: true,
    one_lane: true,
    all_lanes: true,
    give_back: true,
};

fn fence_if(wanted: bool) {
    if wanted {
        fence(AcqRel);
    }
}

/// Runs the model in every execution with at most three preemptions.
fn check(orders: Orders, model: fn(Orders)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || model(orders));
}

/// Whether the model holds in every execution.
fn holds(orders: Orders, model: fn(Orders)) -> bool {
    catch_unwind(AssertUnwindSafe(|| check(orders, model))).is_ok()
}

/// Checks that a model holds, and that it fails with each of the weaker orders.
fn needs(model: fn(Orders), weaker: &[Orders]) {
    check(KERNELS, model);
    for orders in weaker {
        assert!(!holds(*orders, model), "the model holds with {orders:?}");
    }
}

/// The word before the lock, if the attempt got it.
///
/// The kernels use `atomicOr`. If the word is locked, that leaves it as it is, so this only loads
/// it then: loom would also order the operation after the store that unlocks, which C++ and PTX
/// forbid, since it has read what came before.
fn set_locked(word: &AtomicU32) -> Option<u32> {
    let was = word.load(Relaxed);
    if was & LOCKED != 0 {
        return None;
    }
    word.compare_exchange(was, was | LOCKED, Relaxed, Relaxed)
        .ok()
}

fn try_lock(word: &AtomicU32, orders: Orders) -> Option<u32> {
    let was = set_locked(word)?;
    fence_if(orders.lock);
    Some(was)
}

fn unlock(word: &AtomicU32, was: u32, orders: Orders) {
    fence_if(orders.unlock);
    word.store(was + VERSION, Relaxed);
}

/// A change under the lock, if the attempt gets it. Returns the number of changes.
fn change(word: &AtomicU32, entries: &UnsafeCell<u32>, orders: Orders) -> u32 {
    let Some(was) = try_lock(word, orders) else {
        return 0;
    };
    // SAFETY: the lock guards it; loom reports a race otherwise.
    entries.with_mut(|entries| unsafe { *entries += 1 });
    unlock(word, was, orders);
    1
}

/// Two writers change the data that the lock guards. If `gives_back` is set, a third one locks the
/// word, fails to lock the other candidate of its key, and gives the lock back.
fn writers(orders: Orders, gives_back: bool) {
    let shared = Arc::new((AtomicU32::new(0), UnsafeCell::new(0)));
    let other = {
        let shared = shared.clone();
        thread::spawn(move || change(&shared.0, &shared.1, orders))
    };
    let third = gives_back.then(|| {
        let shared = shared.clone();
        thread::spawn(move || {
            let word = &shared.0;
            match set_locked(word) {
                Some(was) if orders.give_back => drop(word.swap(was, Relaxed)),
                Some(was) => word.store(was, Relaxed),
                None => {}
            }
        })
    });
    let mine = change(&shared.0, &shared.1, orders);
    let both = mine + other.join().unwrap();
    if let Some(third) = third {
        third.join().unwrap();
    }
    // SAFETY: all writers have ended.
    let counted = shared.1.with(|entries| unsafe { *entries });
    assert_eq!(counted, both);
    assert_eq!(shared.0.load(Relaxed), both * VERSION);
}

#[test]
fn the_lock_needs_its_fences() {
    let weaker = [
        Orders {
            lock: false,
            ..KERNELS
        },
        Orders {
            unlock: false,
            ..KERNELS
        },
    ];
    needs(|orders| writers(orders, false), &weaker);
}

/// A store would end the release sequence of the last writer's unlock, so that the next writer's
/// lock would not see that writer's changes.
#[test]
fn a_lock_that_is_given_back_needs_the_exchange() {
    let stores = Orders {
        give_back: false,
        ..KERNELS
    };
    needs(|orders| writers(orders, true), &[stores]);
}

/// A writer that finds nothing to change reads the row under the lock, and leaves the version as it
/// is. The next one changes both words of the row.
fn unchanged_model(orders: Orders) {
    race(
        move |bucket| {
            let Some(was) = try_lock(&bucket.word, orders) else {
                return;
            };
            let row = [0, 1].map(|part| bucket.row[part].load(Relaxed));
            fence_if(orders.unlock_unchanged);
            bucket.word.store(was, Relaxed);
            assert_eq!(row, [was / VERSION; 2], "a row of another version");
        },
        |bucket| {
            // If the lock is not free, nothing is tested.
            if let Some(was) = try_lock(&bucket.word, orders) {
                bucket.row.iter().for_each(|word| word.store(1, Relaxed));
                unlock(&bucket.word, was, orders);
            }
        },
    );
}

#[test]
fn a_lock_that_changed_nothing_needs_its_fences() {
    let weaker = [
        Orders {
            lock: false,
            ..KERNELS
        },
        Orders {
            unlock: false,
            ..KERNELS
        },
    ];
    needs(unchanged_model, &weaker);
}

/// Three writers, of which the second changes nothing but must still pass on what the first has
/// changed.
#[test]
fn a_lock_that_changed_nothing_passes_on_what_was_changed_before() {
    fn model(orders: Orders) {
        let shared = Arc::new((AtomicU32::new(0), UnsafeCell::new(0)));
        let unchanging = {
            let shared = shared.clone();
            thread::spawn(move || {
                if let Some(was) = try_lock(&shared.0, orders) {
                    // SAFETY: the lock guards it.
                    shared.1.with(|entries| unsafe { *entries });
                    fence_if(orders.unlock_unchanged);
                    shared.0.store(was, Relaxed);
                }
            })
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || change(&shared.0, &shared.1, orders))
        };
        let mine = change(&shared.0, &shared.1, orders);
        let both = mine + other.join().unwrap();
        unchanging.join().unwrap();
        assert_eq!(shared.0.load(Relaxed), both * VERSION);
    }
    let weaker = Orders {
        unlock_unchanged: false,
        ..KERNELS
    };
    needs(model, &[weaker]);
}

/// The slot had key 1, which was erased. Key 2 with the same digest takes it while a search looks
/// for each of them.
fn publish_model(orders: Orders) {
    const DIGEST: u32 = 77;
    let slot = Arc::new((AtomicU32::new(1), AtomicU64::new(1), AtomicU32::new(0)));
    let writer = {
        let slot = slot.clone();
        thread::spawn(move || {
            let (digest, key, row) = &*slot;
            row.store(5, Relaxed);
            key.store(2, Relaxed);
            digest.store(DIGEST, if orders.publish { Release } else { Relaxed });
        })
    };
    let (digest, key, row) = &*slot;
    if digest.load(Relaxed) == DIGEST {
        fence_if(orders.search);
        assert_eq!(key.load(Relaxed), 2, "the search found an erased key");
        assert_eq!(row.load(Relaxed), 5, "the row comes after its key");
    }
    writer.join().unwrap();
}

#[test]
fn a_published_entry_needs_the_release_and_the_searchs_fence() {
    let weaker = [
        Orders {
            publish: false,
            ..KERNELS
        },
        Orders {
            search: false,
            ..KERNELS
        },
    ];
    needs(publish_model, &weaker);
}

/// The same, but one lane reads the digest, and after the lanes have met, another reads the key.
fn publish_to_lanes_model(orders: Orders) {
    const DIGEST: u32 = 77;
    let slot = Arc::new((AtomicU32::new(1), AtomicU64::new(1)));
    let reader = {
        let slot = slot.clone();
        thread::spawn(move || {
            let first = {
                let slot = slot.clone();
                thread::spawn(move || {
                    let digest = slot.0.load(Relaxed);
                    fence_if(orders.search);
                    digest
                })
            };
            if first.join().unwrap() == DIGEST {
                assert_eq!(slot.1.load(Relaxed), 2, "the search found an erased key");
            }
        })
    };
    let (digest, key) = &*slot;
    key.store(2, Relaxed);
    digest.store(DIGEST, if orders.publish { Release } else { Relaxed });
    reader.join().unwrap();
}

#[test]
fn the_fence_of_the_lane_that_reads_a_digest_counts_for_the_lane_that_reads_the_key() {
    let weaker = [
        Orders {
            publish: false,
            ..KERNELS
        },
        Orders {
            search: false,
            ..KERNELS
        },
    ];
    needs(publish_to_lanes_model, &weaker);
}

struct Bucket {
    word: AtomicU32,
    row: [AtomicU32; 2],
}

/// Runs a writer, and a reader in another thread. The other way round, loom would miss schedules,
/// because the writer begins with a load of what the reader loads.
fn race(reader: impl FnOnce(&Arc<Bucket>) + 'static, writer: impl FnOnce(&Arc<Bucket>)) {
    let bucket = Arc::new(Bucket {
        word: AtomicU32::new(0),
        row: [AtomicU32::new(0), AtomicU32::new(0)],
    });
    let reading = {
        let bucket = bucket.clone();
        thread::spawn(move || reader(&bucket))
    };
    writer(&bucket);
    reading.join().unwrap();
}

/// What the lanes that copied a row of two words between two reads of the bucket's word must have.
fn expect_one_time(before: u32, after: u32, row: [u32; 2]) {
    if before & LOCKED != 0 || before != after {
        return; // the row is copied again, under the lock
    }
    let version = before / VERSION; // the only writer stores ones and makes it 1
    assert_eq!(row, [version; 2], "version {version}");
}

/// A lane copies a row.
fn versioned_read(bucket: &Bucket, orders: Orders) {
    let before = bucket.word.load(Relaxed);
    fence_if(orders.version);
    let row = [0, 1].map(|part| bucket.row[part].load(Relaxed));
    fence_if(orders.check);
    expect_one_time(before, bucket.word.load(Relaxed), row);
}

/// A lane replaces a row.
fn write(bucket: &Bucket, orders: Orders) {
    let was = try_lock(&bucket.word, orders).unwrap();
    bucket.row.iter().for_each(|word| word.store(1, Relaxed));
    unlock(&bucket.word, was, orders);
}

fn versioned_read_model(orders: Orders) {
    race(
        move |bucket| versioned_read(bucket, orders),
        |bucket| write(bucket, orders),
    );
}

#[test]
fn a_versioned_read_needs_its_fences_and_the_locks() {
    let weaker = [
        Orders {
            lock: false,
            ..KERNELS
        },
        Orders {
            unlock: false,
            ..KERNELS
        },
        Orders {
            version: false,
            ..KERNELS
        },
        Orders {
            check: false,
            ..KERNELS
        },
    ];
    needs(versioned_read_model, &weaker);
}

/// The same model with a writer of two lanes, each of which stores one word of the row. One of them
/// locks and unlocks the bucket for both.
fn writing_lanes_model(orders: Orders) {
    let store = move |bucket: &Bucket, part: usize| {
        fence_if(orders.all_lanes);
        bucket.row[part].store(1, Relaxed);
    };
    race(
        move |bucket| versioned_read(bucket, orders),
        |bucket| {
            let was = try_lock(&bucket.word, orders).unwrap();
            let other = {
                let bucket = bucket.clone();
                thread::spawn(move || store(&bucket, 1))
            };
            store(bucket, 0);
            other.join().unwrap();
            unlock(&bucket.word, was, orders);
        },
    );
}

#[test]
fn lanes_that_store_need_a_fence_each_after_the_lock() {
    let one_fence = Orders {
        all_lanes: false,
        ..KERNELS
    };
    needs(writing_lanes_model, &[one_fence]);
}

/// The same model with a reader of two lanes, each of which copies one word of the row.
fn lanes_model(orders: Orders) {
    let reader = move |bucket: &Arc<Bucket>| {
        let words = bucket.word.load(Relaxed);
        fence_if(orders.version);
        let lane = move |bucket: &Bucket, part: usize| {
            let mut before = words;
            if !orders.one_lane {
                before = bucket.word.load(Relaxed);
                fence_if(orders.version);
            }
            let copied = bucket.row[part].load(Relaxed);
            fence_if(orders.check);
            let same = before & LOCKED == 0 && bucket.word.load(Relaxed) == before;
            (copied, same)
        };
        let other = {
            let bucket = bucket.clone();
            thread::spawn(move || lane(&bucket, 1))
        };
        let (first, first_holds) = lane(bucket, 0);
        let (second, second_holds) = other.join().unwrap();
        if orders.one_lane {
            expect_one_time(words, bucket.word.load(Relaxed), [first, second]);
        } else if first_holds && second_holds {
            assert_eq!(first, second, "a mixed row");
        }
    };
    race(reader, |bucket| write(bucket, orders));
}

#[test]
fn lanes_need_the_words_of_one_lane_and_a_fence_each() {
    let weaker = [
        Orders {
            one_lane: false,
            ..KERNELS
        },
        Orders {
            version: false,
            ..KERNELS
        },
        Orders {
            check: false,
            ..KERNELS
        },
    ];
    needs(lanes_model, &weaker);
}
