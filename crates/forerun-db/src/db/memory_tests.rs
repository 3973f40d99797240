//! What memtables may touch at most, with the memory that they take over from earlier ones.

use std::sync::Arc;

use forerun_core::Pages;
use forerun_core::region::page_bytes;

use super::super::Inner;
use super::super::super_version::Table;
use crate::io::fault::FaultIo;
use crate::{Background, Db, Durability, Error, Keyspace, Options, WriteBatch};

/// The size of a memtable set.
const SET_BYTES: usize = 64 << 10;

fn options(limit_bytes: usize) -> Options {
    Options::default()
        .memtable_bytes(SET_BYTES)
        .memory_limit_bytes(limit_bytes)
        .pages(Pages::Small)
        .background(Background::Caller)
}

fn open(limit_bytes: usize) -> Db {
    Db::open_with_io(Arc::new(FaultIo::new()), "/db", options(limit_bytes)).unwrap()
}

/// Writes about so many KiB.
fn fill(keyspace: &Keyspace, kib: u32) {
    for key in 0..kib {
        keyspace.put(key.to_be_bytes(), [7; 900]).unwrap();
    }
}

/// The memory of all memtables and of the pool, as far as it was touched: that of a memtable up to
/// what it or an earlier owner of its region has used.
fn touched_bytes(inner: &Inner) -> usize {
    let active = inner.active.read().unwrap();
    let in_active = active.sum(|of| of.memtable.touched_bytes() + of.ranges.used_bytes());
    inner.held.bytes() + inner.regions.bytes() + in_active
}

#[test]
fn what_one_keyspace_has_used_leaves_memory_for_another() {
    let limit_bytes = 200 << 10;
    let db = open(limit_bytes);
    let inner = db.inner().unwrap();
    let (first, users) = (db.default_keyspace(), db.keyspace("users").unwrap());
    let mut readers = Vec::new();
    for _ in 0..2 {
        fill(&users, 54);
        readers.push(users.iter());
        db.flush().unwrap();
    }
    fill(&first, 50);
    db.flush().unwrap();
    // The store's own memtable takes the memory that it has used.
    fill(&users, 8);
    db.flush().unwrap();
    let limit = inner.active.read().unwrap().limit_bytes;
    assert_eq!(limit, SET_BYTES);
    for kib in 0..54 {
        users.put([kib], [7; 900]).unwrap();
        let bytes = touched_bytes(inner);
        assert!(bytes <= limit_bytes, "{kib} KiB: {bytes}");
    }
    assert!(inner.held.bytes() > 100 << 10);
    drop(readers);
}

#[test]
fn a_memtable_that_an_ingestion_replaces_keeps_no_memory_of_an_earlier_one() {
    let db = open(400 << 10);
    let inner = db.inner().unwrap();
    let first = db.default_keyspace();
    let mut readers: Vec<Arc<Table>> = Vec::new();
    for number in 0..4_u32 {
        for _ in 0..2 {
            fill(&first, 50);
            db.flush().unwrap();
        }
        // They are held as an iterator would hold them.
        readers.extend(inner.active.read().unwrap().shared_tables());
        let mut ingestion = db.ingest();
        ingestion.add(number.to_be_bytes(), "value").unwrap();
        ingestion.commit().unwrap();
        let held = readers.iter().map(|of| of.memtable.touched_bytes());
        let bytes = held.sum::<usize>();
        assert!(bytes <= readers.len() * page_bytes(), "{number}: {bytes}");
    }
    // They count until they are dropped.
    assert!(inner.held.bytes() > 0);
    drop(readers);
    assert_eq!(inner.held.bytes(), 0);
}

#[test]
fn the_replay_of_a_log_leaves_memory_for_other_keyspaces() {
    let limit_bytes = 2 * SET_BYTES;
    let io = Arc::new(FaultIo::new());
    let roomy = options(8 << 20).memtable_bytes(1 << 20);
    let db = Db::open_with_io(Arc::clone(&io) as _, "/db", roomy).unwrap();
    fill(&db.default_keyspace(), 61);
    for name in ["a", "b"] {
        fill(&db.keyspace(name).unwrap(), 61);
    }
    db.close().unwrap();
    let db = Db::open_with_io(io, "/db", options(limit_bytes)).unwrap();
    let inner = db.inner().unwrap();
    assert!(inner.active.read().unwrap().used_bytes() > 40 << 10);
    let bytes = touched_bytes(inner);
    assert!(bytes <= limit_bytes, "{bytes}");
    assert_eq!(db.iter().count(), 61);
    assert_eq!(db.keyspace("b").unwrap().iter().count(), 61);
}

#[test]
fn a_batch_that_does_not_fit_leaves_no_memory_behind() {
    let limit_bytes = 200 << 10;
    let db = open(limit_bytes);
    let inner = db.inner().unwrap();
    let names: Vec<_> = (0..8).map(|number| format!("{number}")).collect();
    let keyspaces = names.iter().map(|name| db.keyspace(name).unwrap());
    let keyspaces: Vec<_> = keyspaces.collect();
    keyspaces.iter().for_each(|keyspace| fill(keyspace, 1));
    let mut batch = WriteBatch::new();
    for keyspace in &keyspaces {
        batch.keyspace(keyspace).put("key", [7; 50 << 10]).unwrap();
    }
    let refused = db.write(&batch, Durability::Buffered);
    assert!(
        matches!(refused, Err(Error::MemoryLimit { .. })),
        "{refused:?}"
    );
    let active = inner.active.read().unwrap();
    let written = active.sum(|of| of.memtable.written_beyond_use());
    assert!(written <= 2 * page_bytes() * names.len(), "{written}");
}
