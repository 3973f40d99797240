//! A process without standard streams: what it prints does not reach the files of its stores.

#[path = "../../forerun-core/tests/testing/fork.rs"]
mod fork;

use std::collections::BTreeSet;

use forerun_core::Pages;
use forerun_db::{Backups, Create, Db, Options, ReadBackend, Values};
use fork::Ending::{AtOnce, Exit};

/// The open descriptors of this process among the standard streams'.
fn standard_streams() -> BTreeSet<i32> {
    // SAFETY: the call only asks about the descriptor.
    let is_open = |descriptor: &i32| unsafe { libc::fcntl(*descriptor, libc::F_GETFD) } != -1;
    (0..3).filter(is_open).collect()
}

#[test]
fn no_file_of_a_store_has_the_descriptor_of_a_standard_stream() {
    for ending in [AtOnce, Exit] {
        let directory = tempfile::tempdir().unwrap();
        let [path, backups] = ["store", "backups"].map(|name| directory.path().join(name));
        fork::in_child(ending, || {
            for descriptor in 0..3 {
                // SAFETY: nothing in this child uses the standard streams.
                unsafe { libc::close(descriptor) };
            }
            let options = Options::default()
                .pages(Pages::Small)
                .cache_bytes(0)
                .reads(ReadBackend::Uring);
            let db = Db::open(&path, options).unwrap();
            let keys: Vec<[u8; 4]> = (0..600_u32).map(u32::to_be_bytes).collect();
            for key in &keys[..300] {
                db.put(key, [b'v'; 100]).unwrap();
            }
            db.flush().unwrap();
            db.multi_get(&keys, &mut Values::new()).unwrap();
            let made = Backups::open_or_create(&backups).unwrap().create(&db);
            made.unwrap();
            for key in &keys[300..] {
                db.put(key, [b'v'; 100]).unwrap();
            }
            assert_eq!(standard_streams(), BTreeSet::new());
            if ending == Exit {
                db.close().unwrap();
            }
        });
        let db = Db::open(&path, Options::default().create(Create::Never)).unwrap();
        assert_eq!(db.iter().count(), 600, "{ending:?}");
    }
}
