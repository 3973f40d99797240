//! A disk that does not answer delays those who wait for it, and nobody else.

use forerun_db::forward_io;
use forerun_db::io::fault::FaultIo;
use forerun_db::io::{Io, IoFile, OpenMode};
use forerun_db::{Background, Db, Options, ReadBackend};
use forerun_table::{Dtype, Table, Update, WritePolicy};
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Whether reads stop, and how many have.
#[derive(Debug, Default)]
struct Reads {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Reads {
    fn stop(&self, stop: bool) {
        self.state.lock().unwrap().0 = stop;
        self.changed.notify_all();
    }

    fn wait_for_one(&self) {
        assert!(self.wait_for(1));
    }

    /// Waits until this many reads have stopped. Returns false if that takes too long.
    fn wait_for(&self, count: usize) -> bool {
        let state = self.state.lock().unwrap();
        let too_few = |(_, waiting): &mut (bool, usize)| *waiting < count;
        let limit = Duration::from_secs(30);
        let waited = self.changed.wait_timeout_while(state, limit, too_few);
        !waited.unwrap().1.timed_out()
    }

    fn read(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |(stop, _)| *stop).unwrap();
        state.1 -= 1;
    }
}

/// A disk whose reads can be stopped.
#[derive(Clone, Debug)]
struct SlowIo(FaultIo, Arc<Reads>);

#[derive(Debug)]
struct SlowFile(Box<dyn IoFile>, Arc<Reads>);

impl Io for SlowIo {
    forward_io!(this => this.0; list, create_dir, rename, remove, sync_dir, boot_id);

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        let file = self.0.open(path, mode)?;
        Ok(Box::new(SlowFile(file, Arc::clone(&self.1))))
    }
}

impl IoFile for SlowFile {
    forward_io!(this => this.0; write_at, len, set_len, sync, try_lock);

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.read();
        self.0.read_at(buffer, offset)
    }
}

const ROW: usize = 64;

/// Writes each key of the table a few times, so that all spare slots are used several times.
fn overwrite(table: &Table, keys: &[u64]) {
    for version in 0..20 {
        table
            .insert(keys, &vec![version; keys.len() * ROW])
            .unwrap();
    }
    let (mut rows, mut found) = (vec![0; keys.len() * ROW], vec![false; keys.len()]);
    let hits = table.find(keys, &mut rows, &mut found).unwrap();
    assert_eq!(hits, keys.len());
    assert!(rows.iter().all(|&byte| byte == 19));
}

/// The rows on the disk of a table: 1 in each byte of each.
const ROWS: u64 = 20_000;

/// A table of many rows on a slow disk, with little memory.
fn on_disk(reads: &Arc<Reads>) -> Table {
    let io = SlowIo(FaultIo::new(), Arc::clone(reads));
    let options = Options::default()
        .memtable_bytes(64 << 10)
        .cache_bytes(64 << 10)
        .background(Background::Caller)
        .reads(ReadBackend::Sync);
    let db = Db::open_with_io(Arc::new(io), "store", options).unwrap();
    let table = Table::builder(Dtype::U8, ROW as u32)
        .host_capacity(300)
        .db(db)
        .writes(WritePolicy::WriteBack)
        .open()
        .unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    table
        .import_rows(&keys, &vec![1; keys.len() * ROW])
        .unwrap();
    table
}

#[test]
fn a_table_is_written_while_another_tables_lookup_waits_for_the_disk() {
    let reads = Arc::new(Reads::default());
    let on_disk = on_disk(&reads);
    let many: Vec<u64> = (0..ROWS).collect();
    let in_memory = Table::builder(Dtype::U8, ROW as u32)
        .host_capacity(1000)
        .open()
        .unwrap();
    let keys: Vec<u64> = (0..1000).collect();

    reads.stop(true);
    std::thread::scope(|scope| {
        let lookup = scope.spawn(|| {
            let (mut rows, mut found) = (vec![0; many.len() * ROW], vec![false; many.len()]);
            on_disk.find(&many, &mut rows, &mut found).unwrap()
        });
        reads.wait_for_one();
        let started = Instant::now();
        let written = std::panic::catch_unwind(AssertUnwindSafe(|| {
            overwrite(&in_memory, &keys);
            // The table that waits has rows in memory, too.
            let few: Vec<u64> = (1_000_000..1_000_100).collect();
            overwrite(&on_disk, &few);
        }));
        let took = started.elapsed();
        reads.stop(false);
        assert_eq!(lookup.join().unwrap(), many.len());
        assert!(written.is_ok());
        assert!(took < Duration::from_secs(9), "{took:?}");
    });
}

#[test]
fn writers_of_other_keys_do_not_wait_while_an_update_reads_the_disk() {
    let reads = Arc::new(Reads::default());
    let on_disk = on_disk(&reads);
    let cold: Vec<u64> = (0..1_000).collect();
    let hot: Vec<u64> = (1_000_000..1_000_100).collect();
    overwrite(&on_disk, &hot);

    reads.stop(true);
    std::thread::scope(|scope| {
        let update = scope.spawn(|| {
            let (rows, mut found) = (vec![1; cold.len() * ROW], vec![false; cold.len()]);
            on_disk
                .update(&cold, &rows, Update::Add, &mut found)
                .unwrap()
        });
        reads.wait_for_one();
        let (written, wait) = std::sync::mpsc::channel();
        let on_disk = &on_disk;
        scope.spawn(move || {
            overwrite(on_disk, &hot);
            // It replaces a row that the update has read, or is about to read.
            on_disk.insert(&[7], &[40; ROW]).unwrap();
            written.send(()).unwrap();
        });
        let written = wait.recv_timeout(Duration::from_secs(30));
        reads.stop(false);
        assert_eq!(update.join().unwrap(), cold.len());
        assert!(
            written.is_ok(),
            "the locks of the update are held while it reads"
        );
    });
    let (mut rows, mut found) = (vec![0; cold.len() * ROW], vec![false; cold.len()]);
    assert_eq!(
        on_disk.find(&cold, &mut rows, &mut found).unwrap(),
        cold.len()
    );
    for (key, row) in cold.iter().zip(rows.chunks(ROW)) {
        let wanted = if *key == 7 { 41 } else { 2 };
        assert!(row.iter().all(|&byte| byte == wanted), "key {key}: {row:?}");
    }
}

#[test]
fn updates_that_read_the_disk_take_no_slots_from_other_writers() {
    /// More than there are spare slots for.
    const UPDATES: u64 = 12;
    let reads = Arc::new(Reads::default());
    let on_disk = on_disk(&reads);
    let hot: Vec<u64> = (1_000_000..1_000_100).collect();
    overwrite(&on_disk, &hot);

    reads.stop(true);
    std::thread::scope(|scope| {
        let on_disk = &on_disk;
        let update = |nth: u64| {
            let keys: Vec<u64> = (nth * 1_000..).take(64).collect();
            let (rows, mut found) = (vec![1; keys.len() * ROW], vec![false; keys.len()]);
            on_disk.update(&keys, &rows, Update::Add, &mut found)
        };
        let updates: Vec<_> = (0..UPDATES)
            .map(|nth| scope.spawn(move || update(nth)))
            .collect();
        let all_wait = reads.wait_for(UPDATES as usize);
        let (written, wait) = std::sync::mpsc::channel();
        scope.spawn(move || {
            overwrite(on_disk, &hot);
            written.send(()).unwrap();
        });
        let written = wait.recv_timeout(Duration::from_secs(30));
        reads.stop(false);
        for update in updates {
            assert_eq!(update.join().unwrap().unwrap(), 64);
        }
        assert!(all_wait && written.is_ok(), "{all_wait}, {written:?}");
    });
}
