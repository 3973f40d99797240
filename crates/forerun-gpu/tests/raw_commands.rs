//! Operations on memory of other libraries, with a fake driver that needs no device: what is put on
//! the caller's stream, what is refused, and where a table's memory comes from.

#![cfg(target_os = "linux")]

#[path = "testing/fake_calls.rs"]
mod fake_calls;
#[path = "testing/fake_driver.rs"]
mod fake_driver;

use fake_calls::{calls, calls_on_streams, current, enter, fail, faults};
use fake_driver::has_fake_driver;
use forerun_gpu::table::{
    AllocatedMemory, Condition, GpuTable, LookupMode, Operation, PoolingOptions, RawBatch,
    RawEntries, RawPooledBatch, RowFormat, Scan, StreamTable, TableAllocator, TableCommand,
    TableError, TableOptions,
};
use forerun_gpu::{Command, DeviceBuffer, Gpu, GpuError, Graph, PinnedBuffer, Stream};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

const ROW_BYTES: u64 = 16;
/// Of all arrays of a batch. A piece of memory of its own, with nothing right behind it.
const MEMORY_BYTES: usize = 1 << 20;

/// A stream of the caller's. The fake driver counts streams from 0x2000 on.
const STREAM: u32 = 77;

fn stream() -> *mut c_void {
    (0x2000 + u64::from(STREAM)) as *mut c_void
}

fn options() -> TableOptions {
    TableOptions::new(4096, ROW_BYTES)
}

/// 64 keys and everything that goes with them, in device memory.
fn arrays(gpu: &Gpu) -> (DeviceBuffer, RawBatch) {
    let memory = DeviceBuffer::new(gpu, MEMORY_BYTES).unwrap();
    let at = |part: u64| Some(memory.address() + part * 4096);
    let batch = RawBatch {
        rows: at(1),
        scores: at(2),
        flags: at(3),
        rows_out: at(4),
        scores_out: at(5),
        slots_out: at(6),
        pointers_out: at(7),
        status_out: at(8),
        entries_out: Some(RawEntries {
            count: memory.address() + 9 * 4096,
            keys: memory.address() + 10 * 4096,
            rows: at(11),
            scores: at(12),
            positions: at(13),
        }),
        ..RawBatch::new(memory.address(), 64)
    };
    (memory, batch)
}

#[test]
fn a_call_is_one_launch_on_the_caller_s_stream_and_waits_for_nothing() {
    let name = "a_call_is_one_launch_on_the_caller_s_stream_and_waits_for_nothing";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let table = StreamTable::new(GpuTable::on_gpu(&gpu, options()).unwrap());
    let (_memory, batch) = arrays(&gpu);
    let entries = batch.entries_out.unwrap();
    let pooled = RawPooledBatch {
        count: 64,
        count_at: None,
        keys: batch.keys,
        bags: 8,
        offsets: entries.keys,
        weights: None,
        rows_out: batch.rows_out.unwrap(),
        found_out: None,
        sums: None,
    };
    let pooling = PoolingOptions::new(RowFormat::F32);
    let expect_launch = |what: &str| {
        assert_eq!(
            calls_on_streams(),
            [("launch".to_owned(), STREAM)],
            "{what}"
        );
    };
    calls();
    // SAFETY: the arrays have 64 elements each and outlive the work; the fake driver has a stream
    // with any number.
    unsafe {
        table
            .apply(Operation::InsertAndEvict, &batch, stream())
            .unwrap();
        expect_launch("apply");
        table
            .lookup(LookupMode::ByLoad, &batch, true, stream())
            .unwrap();
        expect_launch("lookup");
        table
            .find_pooled(&pooling, &pooled, true, stream())
            .unwrap();
        expect_launch("find_pooled");
        table
            .scan(Scan::Export, 0..64, &Condition::ALL, &entries, stream())
            .unwrap();
        expect_launch("scan");
        table.clear(stream()).unwrap();
        expect_launch("clear");
        // This must know what the stream does first.
        table.size(stream()).unwrap();
        let calls = calls_on_streams();
        assert_eq!(calls[0], ("wait".to_owned(), STREAM), "{calls:?}");
        table.reserve(1 << 13, stream()).unwrap_err();
        table.reserve_for(1 << 20, stream()).unwrap();
    }
    drop(table);
    assert_eq!(faults(), "");
}

#[test]
fn a_command_of_addresses_is_captured_like_any_other() {
    if !has_fake_driver("a_command_of_addresses_is_captured_like_any_other", &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let table = GpuTable::on_gpu(&gpu, options()).unwrap();
    let (_memory, batch) = arrays(&gpu);
    let own = Stream::new(&gpu).unwrap();
    // SAFETY: the arrays have 64 elements each and outlive the commands and the graph.
    unsafe {
        let insert = TableCommand::from_raw(&table, Operation::InsertOrAssign, &batch).unwrap();
        let find = TableCommand::lookup_from_raw(&table, LookupMode::Wide, &batch, false).unwrap();
        calls();
        let graph = Graph::capture(&own, &[&insert, &find]).unwrap();
        assert_eq!(calls(), "launch launch");
        graph.enqueue(&own).unwrap();
        insert.enqueue(&Stream::borrowed(&gpu, stream())).unwrap();
        let made = calls_on_streams();
        let names: Vec<&str> = made.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, ["graph", "launch"]);
        assert_eq!(made[1].1, STREAM);
    }
    own.synchronize().unwrap();
}

#[test]
fn memory_that_the_device_cannot_use_is_refused_before_a_launch() {
    let name = "memory_that_the_device_cannot_use_is_refused_before_a_launch";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let table = GpuTable::on_gpu(&gpu, options()).unwrap();
    let (memory, batch) = arrays(&gpu);
    let host = vec![0u64; 64];
    let refused = |batch: &RawBatch| {
        calls();
        // SAFETY: what is refused is not used.
        let made = unsafe { TableCommand::from_raw(&table, Operation::Assign, batch) };
        assert_eq!(calls(), "");
        match made.unwrap_err() {
            TableError::Gpu(error) => error,
            other => panic!("{other}"),
        }
    };
    let of_keys = |keys| refused(&RawBatch { keys, ..batch });
    assert_eq!(of_keys(0), GpuError::NullAddress { what: "the keys" });
    let address = memory.address() + 1;
    assert_eq!(
        of_keys(address),
        GpuError::Misaligned {
            what: "the keys",
            address,
            align: 8
        }
    );
    let address = host.as_ptr() as u64;
    assert_eq!(
        of_keys(address),
        GpuError::WrongMemory {
            what: "the keys",
            address,
            found: "ordinary host memory"
        }
    );
    // The last element is beyond the allocation.
    let error = of_keys(memory.address() + MEMORY_BYTES as u64 - 8);
    assert!(matches!(error, GpuError::WrongMemory { .. }), "{error}");
    let rows = Some(memory.address() + MEMORY_BYTES as u64 - 64 * ROW_BYTES + 1);
    let error = refused(&RawBatch { rows, ..batch });
    assert!(error.to_string().starts_with("the rows: "), "{error}");

    // Rows may begin anywhere, and pinned memory is reached.
    let pinned = PinnedBuffer::new(&gpu, 4096).unwrap();
    let fine = RawBatch {
        keys: pinned.as_slice().as_ptr() as u64,
        rows: Some(memory.address() + 1),
        ..batch
    };
    // SAFETY: the arrays have 64 elements each.
    unsafe { TableCommand::from_raw(&table, Operation::Assign, &fine) }.unwrap();
}

/// Gives out memory of the driver, like a caching allocator.
#[derive(Default)]
struct Allocator {
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    device: BTreeMap<u64, DeviceBuffer>,
    pinned: BTreeMap<u64, PinnedBuffer>,
    log: Vec<(AllocatedMemory, u64)>,
    offset: u64,
}

// SAFETY: each allocation is a buffer of its own, held until it is freed.
unsafe impl TableAllocator for Allocator {
    fn allocate(&self, memory: AllocatedMemory, bytes: u64) -> Option<u64> {
        let gpu = Gpu::open(0).ok()?;
        let mut held = self.held.lock().unwrap();
        held.log.push((memory, bytes));
        let (offset, len) = (held.offset, bytes as usize + 256);
        let address = match memory {
            AllocatedMemory::Device => {
                let buffer = DeviceBuffer::new(&gpu, len).ok()?;
                let address = buffer.address() + offset;
                held.device.insert(address, buffer);
                address
            }
            AllocatedMemory::PinnedHost => {
                let buffer = PinnedBuffer::new(&gpu, len).ok()?;
                let address = buffer.as_slice().as_ptr() as u64 + offset;
                held.pinned.insert(address, buffer);
                address
            }
        };
        Some(address)
    }

    fn free(&self, memory: AllocatedMemory, address: u64) {
        let mut held = self.held.lock().unwrap();
        let is_held = match memory {
            AllocatedMemory::Device => held.device.remove(&address).is_some(),
            AllocatedMemory::PinnedHost => held.pinned.remove(&address).is_some(),
        };
        assert!(is_held, "{memory:?} {address:#x}");
    }
}

#[test]
fn a_table_s_memory_comes_from_the_given_allocator_and_goes_back() {
    let name = "a_table_s_memory_comes_from_the_given_allocator_and_goes_back";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let allocator = Arc::new(Allocator::default());
    let given: Arc<dyn TableAllocator> = allocator.clone();
    let options = options().device_row_bytes_max(1000).max_capacity(1 << 13);
    let mut table = GpuTable::on_gpu_with(&gpu, options, given.clone()).unwrap();
    let log = std::mem::take(&mut allocator.held.lock().unwrap().log);
    type Asked = Vec<(AllocatedMemory, u64)>;
    let (device, pinned): (Asked, Asked) = log
        .iter()
        .copied()
        .partition(|(memory, _)| *memory == AllocatedMemory::Device);
    // The arrays, the rows on the device, and those on the host.
    let rows_on_device = 1000 / ROW_BYTES;
    assert_eq!((device.len(), pinned.len()), (2, 1), "{log:?}");
    assert_eq!(device[1].1, rows_on_device * ROW_BYTES);
    assert_eq!(pinned[0].1, (4096 - rows_on_device) * ROW_BYTES);
    assert!(device[0].1 > 4096 * 17);
    // What a larger table needs too, and what the smaller one gives back.
    table.reserve(1 << 13).unwrap();
    let held = |allocator: &Allocator| {
        let held = allocator.held.lock().unwrap();
        (held.device.len(), held.pinned.len())
    };
    let (on_device, on_host) = held(&allocator);
    assert!(
        (2..5).contains(&on_device) && on_host == 1,
        "{on_device} {on_host}"
    );
    drop(table);
    assert_eq!(held(&allocator), (0, 0));
    assert_eq!(faults(), "");

    // Memory that is not aligned is given back, and so is the rest if some is missing.
    allocator.held.lock().unwrap().offset = 8;
    let error = GpuTable::on_gpu_with(&gpu, options, given.clone()).unwrap_err();
    assert!(
        error.to_string().contains("is not a multiple of 256 bytes"),
        "{error}"
    );
    allocator.held.lock().unwrap().offset = 0;
    fail("cuMemHostAlloc", 0);
    let error = GpuTable::on_gpu_with(&gpu, options, given).unwrap_err();
    let expected = "pinned host memory of the given allocator";
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(held(&allocator), (0, 0));
}

#[test]
fn a_table_on_the_cpu_has_no_commands() {
    let table = GpuTable::on_cpu(options()).unwrap();
    let batch = RawBatch::new(8, 0);
    // SAFETY: what is refused is not used.
    let error = unsafe { TableCommand::from_raw(&table, Operation::Erase, &batch) }.unwrap_err();
    assert!(
        matches!(error, TableError::Gpu(GpuError::NoDevice)),
        "{error}"
    );
    let table = StreamTable::new(table);
    // SAFETY: there are no keys; a table on the CPU ignores streams.
    unsafe { table.apply(Operation::Erase, &batch, stream()) }.unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { table.size(null_mut()) }.unwrap(), 0);
}

#[test]
fn the_device_of_the_current_context_is_opened() {
    if !has_fake_driver("the_device_of_the_current_context_is_opened", &[]) {
        return;
    }
    assert_eq!(Gpu::open_current().unwrap().info().ordinal, 0);
    let other = enter(1);
    assert_eq!(Gpu::open_current().unwrap().info().ordinal, 1);
    assert_eq!(current(), other);
}

#[test]
fn bytes_of_a_device_are_set_and_copied_in_the_order_of_a_stream() {
    let name = "bytes_of_a_device_are_set_and_copied_in_the_order_of_a_stream";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let table = StreamTable::new(GpuTable::on_gpu(&gpu, options()).unwrap());
    let memory = DeviceBuffer::new(&gpu, 16).unwrap();
    let mut bytes = [0; 16];
    calls();
    // SAFETY: the memory has 16 bytes, and nothing else uses it.
    unsafe {
        table.fill(memory.address(), 5, 16, stream()).unwrap();
        assert_eq!(calls_on_streams(), [("fill".to_owned(), STREAM)]);
        table.copy_in(memory.address(), b"four", stream()).unwrap();
        table
            .copy_out(memory.address(), &mut bytes, stream())
            .unwrap();
    }
    assert_eq!(calls(), "in wait out wait");
    assert_eq!(
        &bytes,
        b"four\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05"
    );
}
