//! What memtables may touch at most, with the memory that they take over from earlier ones.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use forerun_core::Pages;
use forerun_core::region::page_bytes;

use super::super::Inner;
use super::super::memtables::HeldFor;
use super::super::super_version::Table;
use crate::io::fault::FaultIo;
use crate::testing::random::Random;
use crate::{Background, Db, Durability, Error, Iter, Keyspace, Options, Result, WriteBatch};

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
    let active = inner.memtables.read_active();
    let in_active = active.sum(|of| of.memtable.touched_bytes() + of.ranges.used_bytes());
    inner.memtables.held_bytes() + inner.memtables.pooled_bytes() + in_active
}

#[test]
fn range_deletions_in_runs_count_up_to_a_quarter_of_the_limit() {
    const LIMIT_BYTES: usize = 1 << 20;
    let db = open(LIMIT_BYTES);
    let inner = db.inner().unwrap();
    db.put([0; 4], b"").unwrap();
    db.put([255; 4], b"").unwrap();
    db.flush().unwrap();
    let free_bytes = inner.memtables.bytes_beside_held();
    // It needs what they cover, so they stay.
    let _snapshot = db.snapshot();
    let mut taken_bytes = Vec::new();
    for number in 0..5_000_u32 {
        db.delete_range((2 * number).to_be_bytes(), (2 * number + 1).to_be_bytes())
            .unwrap();
        if number % 1_000 == 999 {
            db.flush().unwrap();
            taken_bytes.push(free_bytes - inner.memtables.bytes_beside_held());
        }
    }
    assert!(taken_bytes[0] > 80_000, "{taken_bytes:?}");
    assert!(taken_bytes[1] > 160_000, "{taken_bytes:?}");
    assert_eq!(taken_bytes[4], LIMIT_BYTES / 4, "{taken_bytes:?}");
}

#[test]
fn a_memtable_takes_the_memory_of_the_last_one_and_returns_what_it_does_not_use() {
    let db = open(1 << 20);
    let inner = db.inner().unwrap();
    let keyspace = db.keyspace("users").unwrap();
    fill(&keyspace, 50);
    db.flush().unwrap();
    assert!(inner.memtables.pooled_bytes() > 40 << 10);
    fill(&keyspace, 1);
    assert!(inner.memtables.pooled_bytes() < 10 << 10);
    let tables = inner.memtables.read_active().shared_tables();
    let touched = |table: &Arc<Table>| table.memtable.touched_bytes();
    assert!(tables.iter().map(touched).sum::<usize>() > 40 << 10);
    // `tables` holds them, as a reader would.
    db.flush().unwrap();
    assert!(tables.iter().map(touched).sum::<usize>() <= tables.len() * page_bytes());
}

#[test]
fn memory_that_waits_for_a_memtable_is_freed_where_others_need_it() {
    let db = open(200 << 10);
    let inner = db.inner().unwrap();
    let [rare, busy] = ["rare", "busy"].map(|name| db.keyspace(name).unwrap());
    fill(&rare, 50);
    db.flush().unwrap();
    let mut readers = Vec::new();
    for round in 0..2 {
        assert!(inner.memtables.pooled_bytes() > 40 << 10);
        fill(&busy, 50);
        readers.push(busy.iter());
        db.flush().unwrap();
        let active = inner.memtables.read_active();
        let bytes =
            inner.memtables.held_bytes() + inner.memtables.pooled_bytes() + active.limit_bytes;
        assert!(bytes <= 200 << 10, "round {round}: {bytes}");
    }
    assert!(inner.memtables.held_bytes() > 80 << 10);
    drop(readers);
}

#[test]
fn what_one_keyspace_has_used_leaves_memory_for_another() {
    let limit_bytes = 260 << 10;
    let db = open(limit_bytes);
    let inner = db.inner().unwrap();
    let (first, users) = (db.default_keyspace(), db.keyspace("users").unwrap());
    let mut readers = Vec::new();
    for _ in 0..2 {
        fill(&users, 54);
        readers.push(users.iter());
        db.flush().unwrap();
    }
    fill(&first, 60);
    db.flush().unwrap();
    // The store's own memtable takes the memory that it has used, as far as the limit allows it.
    fill(&users, 40);
    readers.push(users.iter());
    db.flush().unwrap();
    let active = inner.memtables.read_active();
    assert_eq!(active.limit_bytes, SET_BYTES);
    let spare_bytes = active.sum(|of| of.memtable.spare_bytes());
    assert!((30 << 10..55 << 10).contains(&spare_bytes), "{spare_bytes}");
    drop(active);
    for kib in 0..60 {
        users.put([kib], [7; 900]).unwrap();
        let bytes = touched_bytes(inner);
        assert!(bytes <= limit_bytes, "{kib} KiB: {bytes}");
    }
    assert!(inner.memtables.held_bytes() > 140 << 10);
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
        readers.extend(inner.memtables.read_active().shared_tables());
        let mut ingestion = db.ingest();
        ingestion.add(number.to_be_bytes(), "value").unwrap();
        ingestion.commit().unwrap();
        let held = readers.iter().map(|of| of.memtable.touched_bytes());
        let bytes = held.sum::<usize>();
        assert!(bytes <= readers.len() * page_bytes(), "{number}: {bytes}");
    }
    // They count until they are dropped.
    assert!(inner.memtables.held_bytes() > 0);
    drop(readers);
    assert_eq!(inner.memtables.held_bytes(), 0);
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
    assert!(inner.memtables.read_active().used_bytes() > 40 << 10);
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
    let active = inner.memtables.read_active();
    let written = active.sum(|of| of.memtable.written_beyond_use());
    assert!(written <= 2 * page_bytes() * names.len(), "{written}");
}

#[test]
fn small_entries_and_all_indexes_take_no_more_than_a_memtable_set_may() {
    let set_bytes = 512 << 10;
    for (has_hash_index, has_ranges) in [(true, false), (false, false), (true, true), (false, true)]
    {
        let options = options(4 << 20)
            .memtable_bytes(set_bytes)
            .memtable_index(has_hash_index);
        let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
        let inner = db.inner().unwrap();
        // Beside another keyspace, or beside a range deletion.
        let keyspace = if has_ranges {
            db.default_keyspace()
        } else {
            db.keyspace("users").unwrap()
        };
        let mut random = Random(1);
        let (mut sets, mut entries_max) = (0, 0);
        while sets < 3 {
            let mut batch = WriteBatch::new();
            for _ in 0..50 {
                let key = random.below(u64::MAX).to_be_bytes();
                batch.keyspace(&keyspace).put(key, "").unwrap();
            }
            if has_ranges && random.below(20) == 0 {
                batch.keyspace(&keyspace).delete_range("a", "b").unwrap();
            }
            let number = inner.memtables.read_active().number;
            db.write(&batch, Durability::Buffered).unwrap();
            let active = inner.memtables.read_active();
            sets += usize::from(active.number != number);
            let bytes = active.used_bytes();
            assert!(
                bytes <= set_bytes,
                "{has_hash_index}, {has_ranges}: {bytes}"
            );
            entries_max = entries_max.max(active.sum(|of| of.memtable.stats().entries));
        }
        // Skip-list indexes are built from 2,048 entries on.
        assert!(entries_max > 4096, "{entries_max}");
    }
}

/// A store, and what reads it.
struct Busy {
    db: Db,
    io: Arc<FaultIo>,
    readers: Vec<Iter>,
    random: Random,
    checkpoints: usize,
}

impl Busy {
    fn keyspace(&mut self) -> Result<Keyspace> {
        match self.random.index(6) {
            0 => Ok(self.db.default_keyspace()),
            number => self.db.keyspace(&format!("{number}")),
        }
    }

    fn value(&mut self, limit_bytes: usize) -> Vec<u8> {
        vec![7; self.random.index(limit_bytes)]
    }

    /// Does something.
    fn act(&mut self) -> Result<()> {
        let key = [self.random.index(200) as u8];
        match self.random.index(100) {
            0..50 => {
                let (keyspace, value) = (self.keyspace()?, self.value(4000));
                keyspace.put(key, value)?;
            }
            50..60 => {
                let mut batch = WriteBatch::new();
                let limit_bytes = [2_000, 20_000, 60_000][self.random.index(3)];
                for _ in 0..1 + self.random.index(5) {
                    let (keyspace, value) = (self.keyspace()?, self.value(limit_bytes));
                    batch.keyspace(&keyspace).put(key, value)?;
                }
                self.db.write(&batch, Durability::Buffered)?;
            }
            60..70 => {
                let reader = self.keyspace()?.iter();
                self.readers.push(reader);
            }
            70..80 if !self.readers.is_empty() => {
                let index = self.random.index(self.readers.len());
                self.readers.remove(index);
            }
            80..85 => self.keyspace()?.delete_range([key[0]], [255])?,
            85..90 => {
                let mut ingestion = self.keyspace()?.ingest();
                ingestion.add(key, self.value(2000))?;
                ingestion.commit()?;
            }
            90..92 => {
                let keyspace = self.keyspace()?;
                if !keyspace.name().is_empty() {
                    self.db.drop_keyspace(keyspace.name())?;
                }
            }
            92..94 => {
                self.checkpoints += 1;
                let into = format!("/copy-{}", self.checkpoints);
                self.db.checkpoint(into)?;
            }
            94..95 => {
                self.readers.clear();
                self.db.clone().close()?;
                self.db = Db::open_with_io(Arc::clone(&self.io) as _, "/db", options(LIMIT_BYTES))?;
            }
            _ => self.db.flush()?,
        }
        Ok(())
    }
}

const LIMIT_BYTES: usize = 300 << 10;

#[test]
fn the_limit_holds_whatever_is_done() {
    for seed in 0..3 {
        let io = Arc::new(FaultIo::new());
        let mut busy = Busy {
            db: Db::open_with_io(Arc::clone(&io) as _, "/db", options(LIMIT_BYTES)).unwrap(),
            io,
            readers: Vec::new(),
            random: Random(seed),
            checkpoints: 0,
        };
        let mut recycled = 0;
        for step in 0..400 {
            match busy.act() {
                Ok(()) => {}
                // It waits a second for readers before.
                Err(Error::MemoryLimit { .. }) => busy.readers.clear(),
                Err(error) => panic!("seed {seed}, step {step}: {error}"),
            }
            let inner = busy.db.inner().unwrap();
            let active = inner.memtables.read_active();
            let spare = active.sum(|of| of.memtable.spare_bytes());
            recycled += usize::from(spare > 0);
            // The rest of a page for each.
            let rests = active.tables().len() * page_bytes();
            let written = active.sum(|of| of.memtable.written_beyond_use());
            assert!(written <= spare + 2 * rests, "seed {seed}, step {step}");
            drop(active);
            let bytes = touched_bytes(inner);
            assert!(
                bytes <= LIMIT_BYTES + rests,
                "seed {seed}, step {step}: {bytes}"
            );
        }
        assert!(recycled > 20);
    }
}

#[test]
fn a_write_learns_why_the_holder_of_the_memtables_flushes_while_others_wait_for_them() {
    let db = open(SET_BYTES * 8);
    let memtables = &db.inner().unwrap().memtables;
    let why = || memtables.try_read_active().err();
    let (has_them, gives_back) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let first = memtables.hold_active(HeldFor::Ingestion);
        scope.spawn(|| {
            let second = memtables.hold_active(HeldFor::Backup);
            has_them.wait();
            gives_back.wait();
            drop(second);
            has_them.wait();
        });
        // Most likely the second one waits then.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(why(), Some(Some(HeldFor::Ingestion)));
        drop(first);
        has_them.wait();
        assert_eq!(why(), Some(Some(HeldFor::Backup)));
        gives_back.wait();
        has_them.wait();
        assert_eq!(why(), None);
        let _plain = memtables.write_active();
        assert_eq!(why(), Some(None));
    });
}
