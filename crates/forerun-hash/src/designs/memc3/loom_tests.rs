//! Models of the optimistic read, run by loom through every interleaving and every weak outcome it knows:
//! `RUSTFLAGS="--cfg loom" cargo test -p forerun-hash --release --lib loom_tests`.

use super::MemC3;
use crate::designs::{FixedTable, SharedTable};
use forerun_core::arch::Isa;
use loom::sync::Arc;
use loom::thread;

/// Two preemptions reach every order of the few steps that matter.
fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(body);
}

fn table() -> Arc<MemC3<u64, u64>> {
    Arc::new(MemC3::new(8, Isa::Scalar, 1).unwrap())
}

#[test]
fn an_update_is_seen_whole_or_not_at_all() {
    model(|| {
        let table = table();
        table.insert_shared(5, 1).unwrap();
        let writer = Arc::clone(&table);
        let thread = thread::spawn(move || writer.insert_shared(5, 2).unwrap());
        assert!(matches!(table.get(5), Some(1 | 2)));
        assert_eq!(thread.join().unwrap(), Some(1));
        assert_eq!(table.get(5), Some(2));
    });
}

#[test]
fn a_key_that_is_put_where_another_was_is_not_taken_for_it() {
    model(|| {
        let table = table();
        table.insert_shared(5, 50).unwrap();
        let writer = Arc::clone(&table);
        let thread = thread::spawn(move || {
            assert_eq!(writer.remove_shared(5), Some(50));
            writer.insert_shared(6, 60).unwrap();
        });
        assert!(matches!(table.get(5), None | Some(50)));
        assert!(matches!(table.get(6), None | Some(60)));
        thread.join().unwrap();
        assert_eq!((table.get(5), table.get(6)), (None, Some(60)));
    });
}

#[test]
fn a_key_that_is_moved_is_found_all_the_time() {
    model(|| {
        let table = table();
        table.insert_shared(5, 50).unwrap();
        let writer = Arc::clone(&table);
        let thread = thread::spawn(move || {
            let at = writer.locate(5);
            let (from, _) = writer.look(at, 5).unwrap();
            let bucket = writer.other(from.bucket, at.tag);
            let to = super::Slot { bucket, slot: 3 };
            writer.move_entry(from, to);
        });
        assert_eq!(table.get(5), Some(50));
        thread.join().unwrap();
        assert_eq!(table.get(5), Some(50));
    });
}
