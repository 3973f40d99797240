//! Tests on which streams batches in host memory run, and what is left in flight after failures,
//! with a fake driver that needs no device.

#![cfg(target_os = "linux")]

#[path = "testing/fake_calls.rs"]
mod fake_calls;
#[path = "testing/fake_driver.rs"]
mod fake_driver;
#[path = "../../forerun-core/tests/testing/fork.rs"]
#[allow(dead_code, reason = "this test ends its children in one way")]
mod fork;

use fake_calls::{
    another_thread_captures, calls, calls_on_streams, current, enter, fail, faults, hold_launches,
    waiting_launches,
};
use fake_driver::has_fake_driver;
use forerun_gpu::gather::{Destination, StagingRing, StagingShape};
use forerun_gpu::table::{
    Answers, Bags, Batch, Condition, Entries, GpuTable, Operation, PoolingOptions, RowFormat,
    TableError, TableOptions,
};
use forerun_gpu::{DeviceBuffer, Gpu, GpuError, PinnedBuffer};
use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

const ROW_BYTES: usize = 16;

fn table() -> (Gpu, GpuTable) {
    let gpu = Gpu::open(0).unwrap();
    let options = TableOptions::new(4096, ROW_BYTES as u64);
    let table = GpuTable::on_gpu(&gpu, options).unwrap();
    (gpu, table)
}

fn keys(n: u64) -> Vec<u64> {
    (0..n).collect()
}

fn rows(n: u64) -> Vec<u8> {
    vec![7; n as usize * ROW_BYTES]
}

/// The streams of the calls since the last question.
fn streams() -> BTreeSet<u32> {
    calls_on_streams()
        .into_iter()
        .map(|(_, stream)| stream)
        .collect()
}

fn insert(table: &GpuTable, n: u64) -> Result<Entries, TableError> {
    let (keys, rows) = (keys(n), rows(n));
    let batch = Batch::rows(&keys, &rows);
    table.apply_beside_lookups(Operation::InsertAndEvict, &batch, Answers::default())
}

/// Lookups of all kinds that may run beside writers.
fn look_up(table: &GpuTable, n: u64) -> Result<(), TableError> {
    let keys = keys(n);
    table.find(&keys, &mut rows(n))?;
    table.find_missed(&keys, &mut rows(n))?;
    table.contains(&keys)?;
    table.find_ptr(&keys)?;
    let pooling = PoolingOptions::new(RowFormat::F32);
    let offsets = [0, n];
    let bags = Bags::new(&keys, &offsets);
    table.find_pooled(&bags, &pooling, &mut [0; ROW_BYTES], &mut [0])
}

fn run(table: &GpuTable, writes: bool, n: u64) -> Result<(), TableError> {
    if writes {
        insert(table, n).map(drop)
    } else {
        table.find(&keys(n), &mut rows(n)).map(drop)
    }
}

/// Memory for a batch is made on first use and grows later.
#[test]
fn lookups_never_use_the_stream_of_writers_not_even_for_new_memory() {
    let name = "lookups_never_use_the_stream_of_writers_not_even_for_new_memory";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let (gpu, table) = table();
    streams();
    insert(&table, 10).unwrap();
    let of_writers = streams();
    look_up(&table, 10).unwrap();
    let of_lookups = streams();
    let beside: Vec<_> = of_lookups.intersection(&of_writers).collect();
    // One stream zeroes new memory for both; nothing long runs there.
    assert!(beside.len() <= 1, "{of_lookups:?}, {of_writers:?}");
    for n in [10, 10_000] {
        insert(&table, n).unwrap();
        let mut of_writers = streams();
        of_writers.retain(|stream| !beside.contains(&stream));
        look_up(&table, n).unwrap();
        let of_lookups = streams();
        assert!(
            of_lookups.is_disjoint(&of_writers),
            "{of_lookups:?}, {of_writers:?}"
        );
    }
    let there = DeviceBuffer::new(&gpu, 10 * ROW_BYTES).unwrap();
    streams();
    table
        .find_missed_on_device(&keys(10), &(&there).into())
        .unwrap();
    let calls = calls_on_streams();
    assert_eq!(
        calls.last().unwrap().0,
        "wait",
        "the rows are there when it returns"
    );
    assert!(calls.iter().all(|(_, stream)| of_lookups.contains(stream)));
}

/// Other libraries put long work on the default stream.
#[test]
fn a_table_does_not_use_the_default_stream() {
    if !has_fake_driver("a_table_does_not_use_the_default_stream", &[]) {
        return;
    }
    streams();
    let (_, mut table) = table();
    insert(&table, 100).unwrap();
    look_up(&table, 100).unwrap();
    table.size().unwrap();
    table.erase_if(&Condition::ALL).unwrap();
    table.export_batch(0..100, &mut Entries::default()).unwrap();
    table.clear().unwrap();
    table.row(0).unwrap();
    table.arrays().unwrap();
    let used = streams();
    assert!(!used.is_empty() && !used.contains(&0), "{used:?}");
}

/// Calls on the host return when the device is done, so nothing is in flight when a table or its
/// memory goes.
#[test]
fn every_call_of_a_table_ends_with_a_wait() {
    if !has_fake_driver("every_call_of_a_table_ends_with_a_wait", &[]) {
        return;
    }
    let (_, mut table) = table();
    let options = TableOptions::new(4096, ROW_BYTES as u64).device_row_bytes_max(1000);
    let mut on_host = GpuTable::on_gpu(table.gpu().unwrap(), options).unwrap();
    for table in [&mut table, &mut on_host] {
        calls();
        let waits = |what: &str| {
            let calls = calls();
            assert!(calls.ends_with("wait"), "{what}: {calls}");
        };
        insert(table, 100).unwrap();
        waits("insert");
        look_up(table, 100).unwrap();
        waits("look up");
        table.clear().unwrap();
        waits("clear");
        table.size_if(&Condition::ALL).unwrap();
        waits("size_if");
        table.row(4000).unwrap();
        waits("row");
    }
    drop((table, on_host));
    assert_eq!(faults(), "");
}

/// Whichever call of a batch fails, the error is the driver's, the memory of the batch is used
/// again only when nothing is in flight, and the thread's context stays what it was.
#[test]
fn a_batch_that_fails_leaves_nothing_in_flight() {
    if !has_fake_driver("a_batch_that_fails_leaves_nothing_in_flight", &[]) {
        return;
    }
    let (_gpu, table) = table();
    let other = enter(1);
    insert(&table, 10).unwrap();
    look_up(&table, 10).unwrap();
    let mut larger = [4_000; 2];
    for function in [
        "cuMemcpyHtoDAsync_v2",
        "cuLaunchKernel",
        "cuMemcpyDtoHAsync_v2",
        "cuStreamSynchronize",
    ] {
        for writes in [false, true] {
            let run = |n| run(&table, writes, n);
            calls();
            fail(function, 0);
            let error = run(10).unwrap_err();
            assert!(
                matches!(error, TableError::Gpu(GpuError::Driver { code: 719, .. })),
                "{function}: {error}"
            );
            assert_eq!(current(), other, "{function}");
            let calls = calls();
            if function != "cuStreamSynchronize" {
                assert!(calls.ends_with("wait"), "{function}: {calls}");
            } else {
                // The device is lost in this case. The fake one goes on.
                run(10).unwrap();
            }
            // The memory of the batch that failed is replaced by more.
            let larger = &mut larger[usize::from(writes)];
            *larger *= 2;
            run(*larger).unwrap();
            assert_eq!(faults(), "", "{function}");
        }
    }
    // A lack of memory leaves no memory that is too small.
    for writes in [false, true] {
        for function in ["cuMemHostAlloc", "cuMemAlloc_v2"] {
            let larger = &mut larger[usize::from(writes)];
            *larger *= 2;
            fail(function, 0);
            run(&table, writes, *larger).unwrap_err();
            run(&table, writes, *larger).unwrap();
        }
    }
    drop(table);
    assert_eq!((faults(), current()), (String::new(), other));
}

/// While it exists, launches wait.
struct HeldLaunches;

impl HeldLaunches {
    fn new() -> HeldLaunches {
        hold_launches(true);
        HeldLaunches
    }
}

impl Drop for HeldLaunches {
    fn drop(&mut self) {
        hold_launches(false);
    }
}

/// A fork has no pinned memory, and its parent's other threads, which may hold locks, do not exist
/// there.
#[test]
fn a_fork_is_refused_before_it_touches_memory_or_waits_for_a_lock() {
    let name = "a_fork_is_refused_before_it_touches_memory_or_waits_for_a_lock";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let (gpu, table) = table();
    insert(&table, 10).unwrap();
    look_up(&table, 10).unwrap();
    let shape = StagingShape::of(ROW_BYTES);
    let mut ring = StagingRing::on_gpu(&gpu, shape).unwrap();
    let there = DeviceBuffer::new(&gpu, 10 * ROW_BYTES).unwrap();
    let held = HeldLaunches::new();
    thread::scope(|scope| {
        // Dropped before the scope waits for its threads, even after a panic.
        let held = held;
        let writer = scope.spawn(|| insert(&table, 10).unwrap());
        let reader = scope.spawn(|| look_up(&table, 10).unwrap());
        while waiting_launches() < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        fork::in_child(fork::Ending::AtOnce, || {
            let is_refused = |result: Result<(), TableError>| {
                let error = result.unwrap_err();
                assert!(
                    matches!(error, TableError::Gpu(GpuError::Forked(_))),
                    "{error}"
                );
            };
            is_refused(look_up(&table, 10));
            is_refused(insert(&table, 10).map(drop));
            is_refused(table.size().map(drop));
            let delivered = ring.deliver(&mut Destination::from(&there), |delivery| {
                delivery.reserve(1)?[..ROW_BYTES].fill(1);
                delivery.commit(&[0])
            });
            assert!(
                matches!(delivered, Err(GpuError::Forked(_))),
                "{delivered:?}"
            );
        });
        drop(held);
        writer.join().unwrap();
        reader.join().unwrap();
    });
}

/// Another thread may capture a graph in CUDA's default mode, as `torch.cuda.graph` does. A call
/// that may be unsafe then would fail, and break that capture.
#[test]
fn another_threads_capture_goes_on_beside_all_calls() {
    if !has_fake_driver("another_threads_capture_goes_on_beside_all_calls", &[]) {
        return;
    }
    let (gpu, table) = table();
    another_thread_captures(true);
    for n in [10, 10_000] {
        insert(&table, n).unwrap();
        look_up(&table, n).unwrap();
    }
    let buffer = DeviceBuffer::from_slice(&gpu, &[1; 16]).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1; 16]);
    drop((table, buffer, PinnedBuffer::new(&gpu, 16).unwrap()));
    another_thread_captures(false);
    assert_eq!(faults(), "");
}

/// Rows that travel when a delivery fails have arrived before its memory is used again or freed.
#[test]
fn a_delivery_that_fails_leaves_nothing_in_flight() {
    if !has_fake_driver("a_delivery_that_fails_leaves_nothing_in_flight", &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let there = DeviceBuffer::new(&gpu, 100 * ROW_BYTES).unwrap();
    for function in [
        "",
        "cuLaunchKernel",
        "cuEventRecord",
        "cuEventSynchronize",
        "refused",
    ] {
        let shape = StagingShape {
            row_bytes: ROW_BYTES,
            piece_rows: 2,
            pieces: 2,
        };
        let mut ring = StagingRing::on_gpu(&gpu, shape).unwrap();
        let other = enter(1);
        for after in 0..3 {
            calls();
            if function.starts_with("cu") {
                fail(function, after);
            }
            let delivered = ring.deliver(&mut Destination::from(&there), |delivery| {
                for place in 0..10 {
                    delivery.reserve(1)?[..ROW_BYTES].fill(1);
                    delivery.commit(&[place])?;
                }
                match function {
                    "refused" => Err(GpuError::NoDevice),
                    _ => Ok(()),
                }
            });
            assert_eq!(delivered.is_ok(), function.is_empty(), "{function} {after}");
            let calls = calls();
            assert!(calls.ends_with("wait"), "{function} {after}: {calls}");
            assert_eq!(current(), other);
        }
        drop(ring);
        assert_eq!(faults(), "", "{function}");
    }
}
