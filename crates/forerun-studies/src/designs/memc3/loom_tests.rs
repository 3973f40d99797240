//! Models of the optimistic read. Loom runs them through every interleaving and every weak outcome
//! it knows: `RUSTFLAGS="--cfg loom" cargo test -p forerun-studies --release --lib loom_tests`.
//!
//! The writing threads of these models make the table's writes without the reads that precede them;
//! `loom_model::check` says why.

use super::{MemC3, Slot};
use crate::designs::FixedTable;
use forerun_core::arch::Isa;
use forerun_core::sync::loom_model;
use loom::sync::Arc;
use loom::thread;

/// Two preemptions reach every order of the few steps that matter.
fn model(body: impl Fn() + Send + Sync + 'static) {
    loom_model::check(2, body);
}

fn table() -> Arc<MemC3<u64, u64>> {
    Arc::new(MemC3::new(64, Isa::Scalar, 1).unwrap())
}

/// Two keys with the same first bucket and the same tag, but different version counters: they are
/// the hardest to distinguish.
fn alike(table: &MemC3<u64, u64>) -> [u64; 2] {
    let first = table.locate(5);
    let stripe = |stripe: u32| stripe >> 8 & 1;
    let second = (6..1_000_000).find(|&key| {
        let at = table.locate(key);
        (at.bucket, at.tag) == (first.bucket, first.tag)
            && stripe(at.stripe) != stripe(first.stripe)
    });
    [5, second.unwrap()]
}

#[test]
fn an_entry_is_seen_whole_or_not_at_all() {
    model(|| {
        let table = table();
        let [one, other] = alike(&table);
        let (at, next) = (table.locate(one), table.locate(other));
        let slot = Slot {
            bucket: at.bucket,
            slot: 0,
        };
        let writer = Arc::clone(&table);
        let thread = thread::spawn(move || {
            writer.fill(slot, at, one, 10);
            writer.free(slot, at);
            writer.fill(slot, next, other, 20);
        });
        assert!(matches!(table.get(one), None | Some(10)));
        thread.join().unwrap();
        assert_eq!((table.get(one), table.get(other)), (None, Some(20)));
    });
}

#[test]
fn a_key_in_a_reused_slot_is_not_mistaken_for_the_old_one() {
    model(|| {
        let table = table();
        let [one, other] = alike(&table);
        let (at, next) = (table.locate(one), table.locate(other));
        let slot = Slot {
            bucket: at.bucket,
            slot: 0,
        };
        table.fill(slot, at, one, 10);
        let writer = Arc::clone(&table);
        let thread = thread::spawn(move || {
            writer.free(slot, at);
            writer.fill(slot, next, other, 20);
        });
        assert!(matches!(table.get(one), None | Some(10)));
        thread.join().unwrap();
        assert_eq!((table.get(one), table.get(other)), (None, Some(20)));
    });
}

#[test]
fn a_key_that_is_moved_is_found_all_the_time() {
    model(|| {
        let table = table();
        let at = table.locate(5);
        let first = Slot {
            bucket: at.bucket,
            slot: 0,
        };
        let second = Slot {
            bucket: table.other(at.bucket, at.tag),
            slot: 0,
        };
        assert_ne!(first, second);
        table.fill(second, at, 5, 50);
        let writer = Arc::clone(&table);
        // The move goes from the bucket that is read last to the one that is read first, so a
        // reader may miss the entry in both.
        let thread = thread::spawn(move || writer.move_entry(second, first));
        assert_eq!(table.get(5), Some(50));
        thread.join().unwrap();
        assert_eq!(table.get(5), Some(50));
    });
}
