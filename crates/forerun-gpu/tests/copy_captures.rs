//! Copies that a graph captures, on a fake driver that needs no device and refuses what a capture
//! refuses.

#![cfg(target_os = "linux")]

#[path = "testing/fake_calls.rs"]
mod fake_calls;
#[path = "testing/fake_driver.rs"]
mod fake_driver;
#[path = "testing/pools.rs"]
mod pools;

use cudarc::driver::sys;
use fake_calls::{allocated, another_thread_captures, calls, faults, finish};
use fake_driver::has_fake_driver;
use forerun_gpu::gather::{CopyQueue, Layers, QueuedCopy, QueuedPairs, cpu};
use forerun_gpu::{Gpu, GpuError};
use pools::{Captured, NOWHERE, Pools, ROW_BYTES, ROWS};
use std::sync::Arc;

#[test]
fn sixty_layers_are_captured_in_one_graph_that_keeps_their_indices() {
    let name = "sixty_layers_are_captured_in_one_graph_that_keeps_their_indices";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 60);
    let kept = Arc::new(());
    // Copies the row of its own number in one layer.
    let enqueue_layer = |layer: u64| {
        let mut request = pools.request(NOWHERE, false);
        request.spec.layers = 1;
        for layout in [&mut request.spec.host, &mut request.spec.device] {
            layout.layers = Layers::Step { bytes: 0 };
            layout.offset_bytes = layer * ROWS * ROW_BYTES;
        }
        let pairs = [layer as i64, 7];
        let pairs = cpu::Pairs::interleaved(cpu::Indices::I64(&pairs)).unwrap();
        let copy = QueuedCopy {
            request,
            within_device: false,
            pairs: QueuedPairs::Copied(pairs),
            kept: Some(Box::new(kept.clone())),
        };
        // SAFETY: as in `Pools::enqueue`, and the graph is dropped before the pools.
        let enqueued = unsafe { pools.queue.enqueue(&pools.stream, copy) };
        enqueued.unwrap();
    };
    // An earlier copy is still in flight.
    pools.copy(&[0, 0], true).unwrap();
    calls();
    let captured = Captured::of(pools.handle, || (0..60).for_each(enqueue_layer)).unwrap();
    assert_eq!(calls(), ["launch"; 60].join(" "));
    assert_eq!((Arc::strong_count(&kept), faults()), (61, String::new()));
    for replay in 1..4 {
        // Other copies do not get the graph's memory.
        for row in 0..ROWS as i64 {
            pools.copy(&[row, row], true).unwrap();
        }
        finish();
        pools.device.fill(0).unwrap();
        captured.launch(pools.handle);
        finish();
        for layer in 0..60 {
            let row = pools.there(layer, 7);
            assert_eq!(
                row,
                pools.here(layer, layer),
                "replay {replay}, layer {layer}"
            );
        }
    }
    drop(captured);
    // What the graph kept is dropped by a later call.
    pools.copy(&[0, 0], true).unwrap();
    assert_eq!(Arc::strong_count(&kept), 1);
    let before = allocated();
    for _ in 0..60 {
        pools.copy(&[0, 0], true).unwrap();
    }
    assert_eq!(allocated(), before, "the graph's pieces are used again");
    assert_eq!(faults(), "");
}

/// The double refuses what a driver refuses, so that the test above can fail.
#[test]
fn a_wait_within_a_capture_breaks_it() {
    if !has_fake_driver("a_wait_within_a_capture_breaks_it", &[]) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 1);
    let captured = Captured::of(pools.handle, || {
        pools.copy(&[0, 0], false).unwrap();
        pools.stream.synchronize().unwrap_err();
        // The capture is invalid now, and nothing is put on the stream.
        let error = pools.copy(&[0, 0], false).unwrap_err();
        assert!(
            matches!(error, GpuError::Driver { code: 901, .. }),
            "{error}"
        );
    });
    let invalidated = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    assert_eq!(captured.err(), Some(invalidated));
    assert!(faults().contains("a wait for the stream"));
    let waits = || pools.device.fill(1);
    assert!(Captured::of(pools.handle, || waits().unwrap()).is_err());
    assert!(faults().contains("the default stream"));
}

#[test]
fn another_threads_capture_goes_on_beside_copies() {
    if !has_fake_driver("another_threads_capture_goes_on_beside_copies", &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    another_thread_captures(true);
    let queue = CopyQueue::new(&gpu).unwrap();
    another_thread_captures(false);
    let mut pools = Pools::new(ROW_BYTES, 3);
    pools.queue = queue;
    another_thread_captures(true);
    for _ in 0..20 {
        pools.copy(&[1, 2], true).unwrap();
        finish();
    }
    assert_eq!(pools.queue.out_of_range(), Ok(0));
    another_thread_captures(false);
    assert_eq!(faults(), "");
}
