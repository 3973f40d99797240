//! Calls by address: the same program on the kernels and on the CPU leaves the same bytes.

use crate::{Order, Shim, row_of, rows_of, small};
use forerun_gpu::table::{
    Backend, Bags, Candidates, Condition, Element, GpuEvictStrategy, GpuTable, LookupMode,
    Operation, PoolingOptions, RawBatch, RawEntries, RawPooledBatch, RowFormat, Scan, StreamTable,
    TableOptions, Width,
};
use std::ptr::null_mut;
use std::sync::Arc;

/// Memory that a table's calls reach.
trait Place {
    fn array(&mut self, bytes: &[u8]) -> u64;
    fn bytes(&self, address: u64, len: usize) -> Vec<u8>;
}

impl Place for Arc<Shim> {
    fn array(&mut self, bytes: &[u8]) -> u64 {
        Shim::array(self, bytes)
    }

    fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(address, &mut bytes).unwrap();
        bytes
    }
}

/// This process's memory, in words, so that it is aligned.
#[derive(Default)]
struct Host(Vec<Vec<u64>>);

impl Place for Host {
    fn array(&mut self, bytes: &[u8]) -> u64 {
        let mut words = vec![0; bytes.len().div_ceil(8).max(1)];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(padded);
        }
        self.0.push(words);
        self.0.last().unwrap().as_ptr() as u64
    }

    fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let words = self.0.iter().find(|words| words.as_ptr() as u64 == address);
        let bytes = words.unwrap().iter().flat_map(|word| word.to_ne_bytes());
        bytes.take(len).collect()
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

const N: usize = 90;
const ROW: usize = 16;

/// The arrays of one call.
struct Call<'p> {
    place: &'p mut dyn Place,
    batch: RawBatch,
    outputs: Vec<(u64, usize)>,
    /// Output for this many entries, and how many there were before.
    entries: Option<(RawEntries, usize, u64)>,
}

impl<'p> Call<'p> {
    fn new(place: &'p mut dyn Place, keys: &[u64], scores: &[u64]) -> Call<'p> {
        let keys_at = place.array(&words(keys));
        let flags: Vec<u8> = keys.iter().map(|key| (key % 2) as u8).collect();
        let batch = RawBatch {
            rows: Some(place.array(&rows_of(keys, 3, ROW as u64))),
            scores: Some(place.array(&words(scores))),
            flags: Some(place.array(&flags)),
            ..RawBatch::new(keys_at, keys.len() as u64)
        };
        Call {
            place,
            batch,
            outputs: Vec::new(),
            entries: None,
        }
    }

    fn output(&mut self, len: usize) -> u64 {
        let address = self.place.array(&vec![0xaa; len]);
        self.outputs.push((address, len));
        address
    }

    /// Output for entries that begins after `before` others.
    fn entries(&mut self, room: usize, before: u64) -> RawEntries {
        let room = room + before as usize;
        let out = RawEntries {
            count: self.place.array(&words(&[before])),
            keys: self.place.array(&vec![0xaa; room * 8]),
            rows: Some(self.place.array(&vec![0xaa; room * ROW])),
            scores: Some(self.place.array(&vec![0xaa; room * 8])),
            positions: Some(self.place.array(&vec![0xaa; room * 8])),
        };
        self.entries = Some((out, room, before));
        out
    }

    /// All outputs of a call.
    fn with_outputs(mut self, entries: bool) -> Self {
        let rows_out = self.output(N * ROW);
        self.batch = RawBatch {
            rows_out: Some(rows_out),
            scores_out: Some(self.output(N * 8)),
            slots_out: Some(self.output(N * 8)),
            status_out: Some(self.output(N)),
            ..self.batch
        };
        if entries {
            self.batch.entries_out = Some(self.entries(N, 3));
        }
        self
    }

    /// What the call has left. Entries have no order.
    fn given(self) -> Vec<Vec<u8>> {
        let outputs = self.outputs.iter();
        let mut all: Vec<_> = outputs
            .map(|(at, len)| self.place.bytes(*at, *len))
            .collect();
        let Some((out, room, before)) = self.entries else {
            return all;
        };
        let count = self.place.bytes(out.count, 8);
        let end = u64::from_ne_bytes(count[..].try_into().unwrap()) as usize;
        let arrays = [
            (Some(out.keys), 8),
            (out.rows, ROW),
            (out.scores, 8),
            (out.positions, 8),
        ];
        let arrays = arrays.map(|(at, each)| (self.place.bytes(at.unwrap(), room * each), each));
        let entry = |i: usize| -> Vec<u8> {
            let parts = arrays
                .iter()
                .map(|(bytes, each)| &bytes[i * each..][..*each]);
            parts.flatten().copied().collect()
        };
        let mut given: Vec<Vec<u8>> = (before as usize..end.min(room)).map(entry).collect();
        given.sort();
        all.push(count);
        all.extend(given);
        // Nothing else is written.
        all.extend((0..before as usize).chain(end.min(room)..room).map(entry));
        all
    }
}

/// All calls, one after the other, and what each of them leaves.
fn program(table: &StreamTable, place: &mut dyn Place) -> Vec<(String, Vec<Vec<u8>>)> {
    let mut all = Vec::new();
    let stream = null_mut();
    let writes = [
        Operation::InsertOrAssign,
        Operation::FindOrInsert,
        Operation::AccumulateOrAssign(Element::I32),
        Operation::Assign,
        Operation::Lock,
        Operation::AssignRows,
        Operation::AssignScores,
        Operation::InsertAndEvict,
        Operation::FindAndUpdate,
        Operation::Unlock,
        Operation::Restore,
        Operation::InsertAndEvict,
        Operation::Erase,
    ];
    for (turn, operation) in writes.into_iter().enumerate() {
        let keys: Vec<u64> = (0..N as u64)
            .map(|i| (i * 7 + turn as u64 * 40) % 400)
            .collect();
        let scores: Vec<u64> = keys.iter().map(|key| key * 3 % 101 + turn as u64).collect();
        let evicts = operation == Operation::InsertAndEvict;
        let mut call = Call::new(place, &keys, &scores).with_outputs(evicts);
        // The number of keys may be in memory.
        if turn % 3 == 1 {
            call.batch.count_at = Some(call.place.array(&words(&[77])));
        }
        // SAFETY: the arrays have room for all keys, and the calls are done when they return.
        unsafe { table.apply(operation, &call.batch, stream) }.unwrap();
        all.push((format!("{operation:?}"), call.given()));

        for missed in [false, true] {
            let call = Call::new(place, &keys, &scores).with_outputs(missed);
            // SAFETY: as above.
            unsafe { table.lookup(LookupMode::ByLoad, &call.batch, true, stream) }.unwrap();
            all.push((format!("lookup after {operation:?}"), call.given()));
        }
    }
    let condition = Condition {
        scores: 10..=60,
        ..Condition::ALL
    };
    for scan in [Scan::Count, Scan::Export, Scan::Erase, Scan::Count] {
        let slots = 32..table.capacity() + 99;
        let room = (table.capacity() - 32) as usize;
        let mut call = Call::new(place, &[], &[]);
        let out = call.entries(room, 0);
        // SAFETY: as above, for each slot.
        unsafe { table.scan(scan, slots, &condition, &out, stream) }.unwrap();
        all.push((format!("{scan:?}"), call.given()));
    }
    // SAFETY: null is a stream.
    let size = unsafe { table.size(stream) }.unwrap();
    assert!(size > 40, "{size}");
    all.push((format!("{size} entries"), Vec::new()));
    // SAFETY: as above.
    unsafe { table.clear(stream) }.unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { table.size(stream) }.unwrap(), 0);
    all
}

#[test]
fn a_program_by_address_leaves_the_same_on_the_kernels_and_on_the_cpu() {
    for (width, candidates) in [(Width::W32, Candidates::Two), (Width::W64, Candidates::One)] {
        let options = small(width, candidates, 4);
        let Some(mut shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let kernels = StreamTable::new(GpuTable::on(shim.clone(), options).unwrap());
        let cpu = StreamTable::new(GpuTable::on_cpu(options).unwrap());
        let (ours, theirs) = (
            program(&cpu, &mut Host::default()),
            program(&kernels, &mut shim),
        );
        assert_eq!(ours.len(), theirs.len());
        for ((what, ours), (other, theirs)) in ours.iter().zip(&theirs) {
            assert_eq!(what, other);
            assert_eq!(ours, theirs, "{what}, {width:?}");
        }
    }
}

/// Looks up keys with a thread for each, of which 30 are missing.
fn missed_by_threads(table: &StreamTable, place: &mut dyn Place) -> Vec<Vec<u8>> {
    let keys: Vec<u64> = (0..N as u64).collect();
    let call = Call::new(place, &keys[..60], &keys[..60]);
    // SAFETY: the arrays have room for all keys, and the call is done when it returns.
    unsafe { table.apply(Operation::InsertOrAssign, &call.batch, null_mut()) }.unwrap();
    let mut call = Call::new(place, &keys, &keys);
    call.batch.slots_out = Some(call.output(N * 8));
    call.batch.entries_out = Some(call.entries(N, 3));
    // SAFETY: as above.
    unsafe { table.lookup(LookupMode::Thread, &call.batch, true, null_mut()) }.unwrap();
    call.given()
}

#[test]
fn a_lookup_by_threads_gives_missed_keys_too() {
    let options = small(Width::W64, Candidates::One, 4);
    let Some(mut shim) = Shim::start(Order::OneWarp) else {
        return;
    };
    let kernels = StreamTable::new(GpuTable::on(shim.clone(), options).unwrap());
    let cpu = StreamTable::new(GpuTable::on_cpu(options).unwrap());
    let given = missed_by_threads(&kernels, &mut shim);
    assert_eq!(given[1], words(&[3 + 30]));
    assert_eq!(given, missed_by_threads(&cpu, &mut Host::default()));
}

/// What is input and output at once.
#[test]
fn rows_and_scores_may_be_their_own_output() {
    let options = small(Width::W64, Candidates::One, 8);
    let table = StreamTable::new(GpuTable::on_cpu(options).unwrap());
    let mut place = Host::default();
    let keys: Vec<u64> = (0..64).collect();
    for stamp in 0..2 {
        let rows = place.array(&rows_of(&keys, stamp, ROW as u64));
        let scores = place.array(&words(&vec![stamp + 7; 64]));
        let batch = RawBatch {
            rows: Some(rows),
            rows_out: Some(rows),
            scores: Some(scores),
            scores_out: Some(scores),
            ..RawBatch::new(place.array(&words(&keys)), 64)
        };
        // SAFETY: the arrays have 64 elements each; the call is done when it returns.
        unsafe { table.apply(Operation::FindOrInsert, &batch, null_mut()) }.unwrap();
        // The first call inserts, the second one finds what the first has inserted.
        assert_eq!(place.bytes(rows, 64 * ROW), rows_of(&keys, 0, ROW as u64));
        assert_eq!(place.bytes(scores, 64 * 8), words(&vec![stamp + 7; 64]));
    }
}

#[test]
fn bags_by_address_are_those_of_the_host() {
    let options = TableOptions::new(1000, 8);
    let mut table = GpuTable::on_cpu(options).unwrap();
    let keys: Vec<u64> = (0..20).collect();
    let rows: Vec<u8> = (0..40u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
    table.insert_or_assign(&keys, &rows, None).unwrap();
    let (asked, offsets) = ([3u64, 99, 4, 4], [0u64, 2, 2, 4]);
    let pooling = PoolingOptions::new(RowFormat::F32);
    let (mut sums, mut found) = ([1; 24], [9; 3]);
    let bags = Bags::new(&asked, &offsets);
    table
        .find_pooled(&bags, &pooling, &mut sums, &mut found)
        .unwrap();

    let (table, mut place) = (StreamTable::new(table), Host::default());
    let rows_out = place.array(&[0xaa; 24]);
    let found_out = place.array(&[0xaa; 12]);
    let batch = RawPooledBatch {
        count: 4,
        count_at: None,
        keys: place.array(&words(&asked)),
        bags: 3,
        offsets: place.array(&words(&offsets)),
        weights: None,
        rows_out,
        found_out: Some(found_out),
        sums: None,
    };
    // SAFETY: the arrays have the lengths of these bags; the call is done when it returns.
    unsafe { table.find_pooled(&pooling, &batch, true, null_mut()) }.unwrap();
    assert_eq!(place.bytes(rows_out, 24), sums);
    let found: Vec<u8> = found.iter().flat_map(|n: &u32| n.to_ne_bytes()).collect();
    assert_eq!(place.bytes(found_out, 12), found);
}

#[test]
fn addresses_that_cannot_be_right_are_refused_before_anything_changes() {
    let options = small(Width::W64, Candidates::One, 8);
    let table = StreamTable::new(GpuTable::on_cpu(options).unwrap());
    let mut place = Host::default();
    let keys = place.array(&words(&[1, 2]));
    let rows = place.array(&[0; 2 * ROW]);
    let batch = RawBatch {
        rows: Some(rows),
        ..RawBatch::new(keys, 2)
    };
    for (batch, expected) in [
        (
            RawBatch { keys: 0, ..batch },
            "the keys: the address is null",
        ),
        (
            RawBatch {
                keys: keys + 4,
                count: 1,
                ..batch
            },
            "is not a multiple of 8 bytes",
        ),
        (
            RawBatch {
                rows: None,
                ..batch
            },
            "insert_or_assign needs rows",
        ),
        (
            RawBatch {
                epoch: 1 << 32,
                ..batch
            },
            "epoch 4294967296 exceeds",
        ),
        (
            RawBatch {
                scores_out: Some(0),
                ..batch
            },
            "the score output: the address is null",
        ),
        (
            RawBatch {
                count: 1 << 62,
                ..batch
            },
            "the keys",
        ),
    ] {
        // SAFETY: what is refused is not used.
        let error = unsafe { table.apply(Operation::InsertOrAssign, &batch, null_mut()) };
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // SAFETY: null is a stream.
    assert_eq!(unsafe { table.size(null_mut()) }.unwrap(), 0);
    // Without keys, no address is needed.
    // SAFETY: there are no elements.
    unsafe { table.apply(Operation::Erase, &RawBatch::new(0, 0), null_mut()) }.unwrap();
}

#[test]
fn it_grows_saves_and_loads_after_the_work_on_a_stream() {
    let options = TableOptions::new(128, ROW as u64)
        .max_capacity(1 << 12)
        .evict_strategy(GpuEvictStrategy::Customized);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("table");
    let Some(mut shim) = Shim::start(Order::OneWarp) else {
        return;
    };
    let table = StreamTable::new(GpuTable::on(shim.clone(), options).unwrap());
    let keys: Vec<u64> = (0..300).collect();
    let batch = RawBatch {
        rows: Some(Place::array(&mut shim, &rows_of(&keys, 1, ROW as u64))),
        ..RawBatch::new(Place::array(&mut shim, &words(&keys)), 300)
    };
    // SAFETY: the arrays have 300 elements each, and the backend has no streams.
    unsafe {
        table.reserve_for(300, null_mut()).unwrap();
        assert!(table.capacity() >= 300 * 16 / 10, "{}", table.capacity());
        table
            .apply(Operation::InsertOrAssign, &batch, null_mut())
            .unwrap();
        table.save(&path, null_mut()).unwrap();
    }
    let other = StreamTable::new(GpuTable::on_cpu(options).unwrap());
    // SAFETY: null is a stream.
    unsafe {
        assert_eq!(other.load(&path, null_mut()).unwrap(), 300);
        assert_eq!(other.size(null_mut()).unwrap(), 300);
        other.reserve(1 << 11, null_mut()).unwrap();
        other.set_max_capacity(1 << 11).unwrap();
        // The largest: nothing is reserved.
        other.reserve_for(u64::MAX, null_mut()).unwrap();
    }
    assert_eq!(other.capacity(), 1 << 11);
    let (mut place, mut row) = (Host::default(), vec![0; ROW]);
    let at = place.array(&row);
    let find = RawBatch {
        rows_out: Some(at),
        ..RawBatch::new(place.array(&words(&[299])), 1)
    };
    // SAFETY: the arrays have one element each.
    unsafe { other.lookup(LookupMode::ByLoad, &find, true, null_mut()) }.unwrap();
    row.copy_from_slice(&place.bytes(at, ROW));
    assert_eq!(row, row_of(299, 1, ROW as u64));
}
