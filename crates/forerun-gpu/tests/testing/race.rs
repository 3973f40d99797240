//! Threads that change a table while others look up keys, through the calls for batches in host
//! memory. Shared by the tests on a device and those on the shim.

use forerun_gpu::table::{
    Answers, Bags, Batch, GpuTable, Operation, PoolingOptions, RowFormat, TableOptions,
};
use forerun_gpu::{DeviceBuffer, DeviceSlice};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Values of a row.
const DIM: usize = 8;
const ROW_BYTES: usize = DIM * 4;

/// Keys that are always there, and keys that come and go.
const STAYING: u64 = 16;
const COMING: u64 = 8;

/// The first stamp of each writer; no writer has as many rounds.
const STAMPS_APART: u32 = 1 << 10;

/// Options of a table that never evicts any of the keys.
pub fn options() -> TableOptions {
    TableOptions::new(1 << 12, ROW_BYTES as u64)
}

/// A row whose values are equal. They tell the key and the stamp, and are exact in `f32`.
fn row_of(key: u64, stamp: u32) -> Vec<u8> {
    let value = (key as u32 * 4 * STAMPS_APART + stamp) as f32;
    value.to_le_bytes().repeat(DIM)
}

fn rows_of(keys: &[u64], stamp: u32) -> Vec<u8> {
    keys.iter().flat_map(|&key| row_of(key, stamp)).collect()
}

/// The value of a row, which must be whole.
fn value_of(row: &[u8]) -> u32 {
    let value = &row[..4];
    assert!(
        row.chunks_exact(4).all(|other| other == value),
        "a mixed row {row:?}"
    );
    f32::from_le_bytes([value[0], value[1], value[2], value[3]]) as u32
}

/// The stamp of a key's row, which must be whole and the key's.
fn stamp_of(key: u64, row: &[u8]) -> u32 {
    let value = value_of(row);
    let stamp = value % (4 * STAMPS_APART);
    assert_eq!(row, row_of(key, stamp), "key {key}, stamp {stamp}");
    stamp
}

fn apply(table: &GpuTable, operation: Operation, batch: &Batch<'_>) {
    let applied = table.apply_beside_lookups(operation, batch, Answers::default());
    assert!(applied.expect("the device works").is_empty());
}

/// Makes sure that lookups run while the writers are half-way.
#[derive(Default)]
struct Progress {
    /// How many times each reader has looked up all keys; `usize::MAX` once it has ended.
    lookups: [AtomicUsize; 2],
    /// Whether the writers have ended.
    is_written: AtomicBool,
}

// All accesses are relaxed: they publish nothing.
impl Progress {
    /// Waits until each reader has begun and ended a lookup.
    fn wait_for_readers(&self) {
        let before = self
            .lookups
            .each_ref()
            .map(|all| all.load(Ordering::Relaxed));
        for (lookups, before) in self.lookups.iter().zip(before) {
            // The first one to end may have begun before.
            while lookups.load(Ordering::Relaxed) < before.saturating_add(2) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Counts a reader's lookups, and lets nobody wait for the reader once this is dropped.
struct Lookups<'p>(&'p AtomicUsize);

impl Drop for Lookups<'_> {
    fn drop(&mut self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }
}

fn write(table: &GpuTable, writer: u32, rounds: u32, progress: &Progress) {
    let staying: Vec<u64> = (0..STAYING).collect();
    // The second writer has keys of its own that come and go.
    let first = STAYING + u64::from(writer) * COMING;
    let coming: Vec<u64> = (first..first + COMING).collect();
    for round in 1..=rounds {
        let stamp = writer * STAMPS_APART + round;
        let rows = rows_of(&staying, stamp);
        apply(
            table,
            Operation::InsertAndEvict,
            &Batch::rows(&staying, &rows),
        );
        let rows = rows_of(&coming, stamp);
        apply(
            table,
            Operation::InsertOrAssign,
            &Batch::rows(&coming, &rows),
        );
        apply(table, Operation::Erase, &Batch::of(&coming));
        if round == rounds / 2 {
            progress.wait_for_readers();
        }
    }
}

/// What a reader has seen.
#[derive(Default)]
struct Seen {
    stamps: std::collections::BTreeSet<u32>,
    absent: usize,
}

impl Seen {
    fn see(&mut self, key: u64, row: Option<&[u8]>) {
        match row {
            Some(row) => drop(self.stamps.insert(stamp_of(key, row))),
            None => {
                assert!(key >= STAYING, "key {key} was there all the time");
                self.absent += 1;
            }
        }
    }
}

fn look_up(table: &GpuTable, there: Option<&DeviceBuffer>, seen: &mut Seen) {
    let keys: Vec<u64> = (0..STAYING + 2 * COMING).rev().collect();
    let mut rows = vec![0; keys.len() * ROW_BYTES];
    let found = table.find(&keys, &mut rows).expect("the device works");
    for ((&key, row), found) in keys.iter().zip(rows.chunks_exact(ROW_BYTES)).zip(found) {
        seen.see(key, found.then_some(row));
    }
    let missed = match there {
        Some(there) => {
            let slice = DeviceSlice::from(there);
            let missed = table.find_missed_on_device(&keys, &slice);
            there.read(0, &mut rows).expect("the device works");
            missed
        }
        None => table.find_missed(&keys, &mut rows),
    };
    let missed = missed.expect("the device works");
    for (nth, (&key, row)) in keys.iter().zip(rows.chunks_exact(ROW_BYTES)).enumerate() {
        let is_missed = missed.positions.contains(&(nth as u64));
        seen.see(key, (!is_missed).then_some(row));
    }
    let there = table.contains(&keys).expect("the device works");
    let pointers = table.find_ptr(&keys).expect("the device works");
    for ((&key, there), pointer) in keys.iter().zip(there).zip(pointers) {
        assert!(key >= STAYING || (there && pointer != 0), "key {key}");
    }
    // Bags of one key twice: one time for both, or two.
    let twice: Vec<u64> = (0..STAYING).flat_map(|key| [key, key]).collect();
    let offsets: Vec<u64> = (0..=STAYING).map(|bag| bag * 2).collect();
    let pooling = PoolingOptions::new(RowFormat::F32);
    let (mut sums, mut found) = (vec![0; STAYING as usize * ROW_BYTES], [0; STAYING as usize]);
    let bags = Bags::new(&twice, &offsets);
    table
        .find_pooled(&bags, &pooling, &mut sums, &mut found)
        .expect("the device works");
    assert_eq!(found, [2; STAYING as usize]);
    for (key, sum) in (0..).zip(sums.chunks_exact(ROW_BYTES)) {
        let stamps = value_of(sum) - 2 * key * 4 * STAMPS_APART;
        assert!(stamps < 4 * STAMPS_APART, "key {key}: {stamps}");
    }
}

/// Two threads write while two look up keys in every way. Every row is whole, a key that stays is
/// always found, and the table is what the last writer of each key left.
pub fn lookups_beside_writers(table: &mut GpuTable, rounds: u32) {
    let staying: Vec<u64> = (0..STAYING).collect();
    apply(
        table,
        Operation::InsertOrAssign,
        &Batch::rows(&staying, &rows_of(&staying, 0)),
    );
    let shared = &*table;
    let there = shared.gpu().map(|gpu| {
        let bytes = (STAYING + 2 * COMING) as usize * ROW_BYTES;
        DeviceBuffer::new(gpu, bytes).expect("it is small")
    });
    let progress = Progress::default();
    let seen: Vec<Seen> = thread::scope(|scope| {
        let progress = &progress;
        let readers = [(0, there.as_ref()), (1, None)].map(|(reader, there)| {
            scope.spawn(move || {
                let mut seen = Seen::default();
                let lookups = Lookups(&progress.lookups[reader]);
                // Once more when the writers have ended.
                loop {
                    let is_last = progress.is_written.load(Ordering::Relaxed);
                    look_up(shared, there, &mut seen);
                    lookups.0.fetch_add(1, Ordering::Relaxed);
                    if is_last {
                        return seen;
                    }
                }
            })
        });
        let writers =
            [0, 1].map(|writer| scope.spawn(move || write(shared, writer, rounds, progress)));
        let results = writers.map(|writer| writer.join());
        progress.is_written.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok), "a writer failed");
        readers
            .map(|reader| reader.join().expect("a reader failed"))
            .into()
    });
    for seen in &seen {
        assert!(
            seen.stamps.len() > 1,
            "no reader met a writer: nothing was tested"
        );
        assert!(seen.absent > 0);
    }
    assert_eq!(table.size().expect("the device works"), STAYING);
    let last = [rounds, STAMPS_APART + rounds];
    let mut rows = rows_of(&staying, 0);
    table.find(&staying, &mut rows).expect("the device works");
    for (key, row) in (0..).zip(rows.chunks_exact(ROW_BYTES)) {
        assert!(last.contains(&stamp_of(key, row)), "key {key}: {row:?}");
    }
}
