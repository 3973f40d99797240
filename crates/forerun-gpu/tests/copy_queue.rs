//! Copies on the streams of others: the calls that each one makes, and what happens when the device
//! is late or fails. With a fake driver that needs no device, and does work only when something
//! waits for it.

#![cfg(target_os = "linux")]

#[path = "testing/fake_calls.rs"]
mod fake_calls;
#[path = "testing/fake_driver.rs"]
mod fake_driver;
#[path = "testing/pools.rs"]
mod pools;

use fake_calls::{
    allocated, calls, calls_on_streams, current, enter, fail, faults, finish, report_pieces,
};
use fake_driver::has_fake_driver;
use forerun_gpu::gather::{
    BATCH_ROW_BYTES_MIN, CopyQueue, CountAt, IndexType, MapAt, MapUpdate, QueuedCopy, QueuedPairs,
    Request, cpu,
};
use forerun_gpu::{DeviceBuffer, GpuError, HostMemory, Stream};
use pools::{Captured, NOWHERE, Pools, ROW_BYTES, ROWS, bytes_of, on_device};

#[test]
fn a_steady_call_makes_exactly_its_enqueues_and_neither_waits_nor_allocates() {
    let name = "a_steady_call_makes_exactly_its_enqueues_and_neither_waits_nor_allocates";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 4);
    let pairs = [3, 5, 9, 1];
    let indices = DeviceBuffer::from_slice(&pools.gpu, &bytes_of(&pairs)).unwrap();
    let narrow = [3i32, 9];
    let reached = |uneven| {
        let request = pools.request(on_device(&indices), uneven);
        pools.enqueue(request, QueuedPairs::Reached)
    };
    let mixed = || {
        let mut request = pools.request(on_device(&indices), false);
        request.pairs.integer = IndexType::I32;
        request.pairs.step = 1;
        let sources = cpu::Indices::I32(&narrow);
        pools.enqueue(request, QueuedPairs::CopiedSources(sources))
    };
    let kept = || {
        let copy = QueuedCopy {
            request: pools.request(on_device(&indices), false),
            within_device: false,
            pairs: QueuedPairs::Reached,
            kept: Some(Box::new(())),
        };
        // SAFETY: as in `Pools::enqueue`.
        unsafe { pools.queue.enqueue(&pools.stream, copy) }
    };
    type Call<'a> = &'a dyn Fn() -> Result<(), GpuError>;
    let cases: [(Call<'_>, &str); 6] = [
        (&|| reached(false), "launch"),
        (&|| reached(true), "launch record"),
        (&|| pools.copy(&pairs, false), "launch record"),
        (&|| pools.copy(&pairs, true), "launch record"),
        (&mixed, "launch record"),
        (&kept, "launch record"),
    ];
    for (position, (call, expected)) in cases.into_iter().enumerate() {
        call().unwrap();
        finish();
        calls();
        let before = allocated();
        for _ in 0..100 {
            call().unwrap();
            let made = calls_on_streams();
            let words: Vec<&str> = made.iter().map(|(word, _)| word.as_str()).collect();
            assert_eq!(words.join(" "), expected, "case {position}");
            assert!(
                made.iter().all(|(_, stream)| *stream != 0),
                "case {position}"
            );
            finish();
        }
        assert_eq!(allocated(), before, "case {position}");
    }
    for layer in 0..4 {
        assert_eq!(pools.there(layer, 5), pools.here(layer, 3), "{layer}");
        assert_eq!(pools.there(layer, 1), pools.here(layer, 9), "{layer}");
    }
    assert_eq!(
        (faults(), pools.queue.out_of_range()),
        (String::new(), Ok(0))
    );
}

/// The device reads indices and tables when the copy runs, which may be long after the call.
#[test]
fn a_late_device_still_reads_the_indices_of_each_call() {
    if !has_fake_driver("a_late_device_still_reads_the_indices_of_each_call", &[]) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 3);
    for round in 0..20 {
        let before = allocated();
        calls();
        for row in 0..ROWS as i64 {
            // The slice is gone when the copy runs.
            let pairs = vec![(row + round) % ROWS as i64, row];
            pools.copy(&pairs, row % 2 == 0).unwrap();
        }
        // No earlier piece is free in the first round. Later ones use them again.
        assert!(round == 0 || allocated() == before, "round {round}");
        assert!(!calls().contains("wait"));
        finish();
        for (layer, row) in (0..3).flat_map(|layer| (0..ROWS).map(move |row| (layer, row))) {
            let from = (row + round as u64) % ROWS;
            // Both sides have the same order of layers, so it does not show.
            assert_eq!(pools.there(layer, row), pools.here(layer, from));
        }
    }
    assert_eq!(faults(), "");
}

#[test]
fn long_rows_whose_indices_the_cpu_has_are_one_call_for_the_copy_engine() {
    let name = "long_rows_whose_indices_the_cpu_has_are_one_call_for_the_copy_engine";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let mut pools = Pools::new(BATCH_ROW_BYTES_MIN, 2);
    // Two runs of two rows, and one that does not exist: three copies in each of two layers.
    let pairs = [4, 0, 5, 1, 9, 7, 20, 30, 21, 31, 64, 9, -1, 8];
    let before = allocated();
    pools.copy(&pairs, false).unwrap();
    assert_eq!((calls(), allocated()), ("batch6".to_owned(), before));
    finish();
    for layer in 0..2 {
        for (from, to) in [(4, 0), (5, 1), (9, 7), (20, 30), (21, 31)] {
            assert_eq!(pools.there(layer, to), pools.here(layer, from));
        }
        assert_eq!((pools.there(layer, 9), pools.there(layer, 8)), (0, 0));
    }
    assert_eq!(pools.queue.out_of_range(), Ok(2));
    calls();

    // Nothing is left of a batch without rows.
    pools.copy(&[64, 9], false).unwrap();
    assert_eq!(calls(), "");
    // A capture and the default stream cannot have a batch.
    let captured = Captured::of(pools.handle, || {
        pools.copy(&pairs, false).unwrap();
    });
    assert!(captured.is_ok());
    assert_eq!(calls(), "launch");
    // SAFETY: it is the default stream.
    pools.stream = unsafe { Stream::borrowed(&pools.gpu, std::ptr::null_mut()) };
    pools.copy(&pairs, false).unwrap();
    assert_eq!(calls(), "launch record");
    // Indices on the device are not known.
    let indices = DeviceBuffer::from_slice(&pools.gpu, &bytes_of(&pairs)).unwrap();
    calls();
    let request = pools.request(on_device(&indices), false);
    pools.enqueue(request, QueuedPairs::Reached).unwrap();
    assert_eq!(calls(), "launch");
    finish();
    assert_eq!(faults(), "");
}

#[test]
fn a_copy_within_the_device_and_a_slot_map_are_one_launch() {
    if !has_fake_driver(
        "a_copy_within_the_device_and_a_slot_map_are_one_launch",
        &[],
    ) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 1);
    pools.copy(&[3, 5], false).unwrap();
    finish();
    // The map has 32 bits per host row. The count takes the first pair alone.
    let map = DeviceBuffer::from_slice(&pools.gpu, &[0xff; ROWS as usize * 4]).unwrap();
    let words = DeviceBuffer::from_slice(&pools.gpu, &bytes_of(&[2, 0])).unwrap();
    let pairs = [8, 9, 70, 2, 11, 12];
    let indices = DeviceBuffer::from_slice(&pools.gpu, &bytes_of(&pairs)).unwrap();
    let mut request = pools.request(on_device(&indices), false);
    request.count = Some(CountAt {
        address: words.address(),
        integer: IndexType::I64,
    });
    request.map = Some(MapAt {
        address: map.address(),
        integer: IndexType::I32,
        slots: ROWS,
        layer_step: 0,
        update: MapUpdate::Set,
    });
    request.out_of_range = Some(words.address() + 8);
    calls();
    pools.enqueue(request, QueuedPairs::Reached).unwrap();
    assert_eq!(calls(), "launch");
    finish();
    let entry = |row: usize| {
        let entries = map.to_vec().unwrap();
        i32::from_ne_bytes(entries[row * 4..][..4].try_into().unwrap())
    };
    assert_eq!((entry(8), entry(9), entry(11)), (9, -1, -1));
    assert_eq!(words.to_vec().unwrap(), bytes_of(&[2, 1]));
    assert_eq!(
        pools.queue.out_of_range(),
        Ok(0),
        "the request has its own counter"
    );

    let other = DeviceBuffer::from_slice(&pools.gpu, &vec![0; pools.host.len()]).unwrap();
    let mut request = pools.request(NOWHERE, false);
    request.host = pools.device.address();
    request.device = other.address();
    let copy = QueuedCopy {
        request,
        within_device: true,
        pairs: QueuedPairs::Copied(
            cpu::Pairs::split(cpu::Indices::I64(&[5]), cpu::Indices::I64(&[6])).unwrap(),
        ),
        kept: None,
    };
    // SAFETY: both buffers live longer.
    unsafe { pools.queue.enqueue(&pools.stream, copy) }.unwrap();
    finish();
    let there = other.to_vec().unwrap();
    assert_eq!(there[6 * ROW_BYTES as usize], pools.here(0, 3));
    assert_eq!(faults(), "");
}

/// As the memory of PyTorch's expandable segments may be.
#[test]
fn memory_that_was_mapped_piece_by_piece_is_one_pool() {
    if !has_fake_driver("memory_that_was_mapped_piece_by_piece_is_one_pool", &[]) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 3);
    report_pieces(256);
    pools.copy(&[3, 63], true).unwrap();
    finish();
    assert_eq!(pools.there(2, 63), pools.here(2, 3));
    let mut request = pools.request(NOWHERE, false);
    request.spec.device.offset_bytes = ROW_BYTES;
    let pairs = cpu::Pairs::interleaved(cpu::Indices::I64(&[0, 0])).unwrap();
    let error = pools
        .enqueue(request, QueuedPairs::Copied(pairs))
        .unwrap_err();
    assert!(error.to_string().contains("past the end"), "{error}");
    report_pieces(0);
    assert_eq!(faults(), "");
}

/// Whichever call fails, the error is the driver's, no memory is used again before its launch has
/// run, and the thread's context stays what it was.
#[test]
fn a_call_that_fails_leaves_the_queue_usable() {
    if !has_fake_driver("a_call_that_fails_leaves_the_queue_usable", &[]) {
        return;
    }
    let mut pools = Pools::new(ROW_BYTES, 3);
    let other = enter(1);
    let mut row = 0;
    for function in [
        "cuPointerGetAttributes",
        "cuMemHostAlloc",
        "cuMemHostGetDevicePointer_v2",
        "cuEventCreate",
        "cuStreamGetCaptureInfo_v2",
        "cuLaunchKernel",
        "cuEventRecord",
        "cuEventQuery",
    ] {
        finish();
        // It has no piece yet, so the first call allocates one.
        pools.queue = CopyQueue::new(&pools.gpu).unwrap();
        fail(function, 0);
        let mut failed = 0;
        for _ in 0..3 {
            row = (row + 1) % ROWS as i64;
            if let Err(error) = pools.copy(&[row, row], true) {
                failed += 1;
                let text = error.to_string();
                assert!(text.contains("fake driver"), "{text}");
            }
        }
        assert_eq!((failed, current()), (1, other), "{function}");
        finish();
        for row in 0..ROWS as i64 {
            pools.copy(&[row, (row + 1) % ROWS as i64], true).unwrap();
        }
        finish();
        assert_eq!(pools.there(2, 1), pools.here(2, 0), "{function}");
    }
    enter(0);
    let captured = Captured::of(pools.handle, || {
        for function in [
            "cuUserObjectCreate",
            "cuGraphRetainUserObject",
            "cuLaunchKernel",
        ] {
            fail(function, 0);
            pools.copy(&[0, 0], true).unwrap_err();
        }
        pools.copy(&[0, 0], true).unwrap();
    });
    drop(captured.unwrap());
    drop(pools);
    assert_eq!(faults(), "");
}

#[test]
fn a_full_ring_waits_for_its_oldest_launch() {
    if !has_fake_driver("a_full_ring_waits_for_its_oldest_launch", &[]) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 1);
    // Each call needs a mebibyte of the 64 that a ring may have.
    let pairs: Vec<i64> = (0..2 * 40_000).map(|at| at / 2 % ROWS as i64).collect();
    for _ in 0..64 {
        pools.copy(&pairs, false).unwrap();
    }
    assert!(!calls().contains("wait"));
    // A wait that fails frees nothing: the next call waits again.
    fail("cuEventSynchronize", 0);
    pools.copy(&pairs, false).unwrap_err();
    calls();
    let before = allocated();
    pools.copy(&pairs, false).unwrap();
    assert_eq!(calls(), "wait launch record");
    assert_eq!(allocated(), before);
    finish();
    // A larger call takes the place of smaller ones, and one that is too large for the ring is
    // served all the same.
    let large: Vec<i64> = pairs
        .iter()
        .copied()
        .cycle()
        .take(pairs.len() * 120)
        .collect();
    calls();
    for _ in 0..3 {
        pools.copy(&large, false).unwrap();
        assert!(calls().ends_with("launch record"));
    }
    finish();
    assert_eq!(pools.there(0, 9), pools.here(0, 9));
    drop(pools);
    assert_eq!(faults(), "");
}

/// Copies so many rows on a stream.
fn copy_on(queue: &CopyQueue, request: &Request, stream: &Stream, count: i64) {
    let pairs: Vec<i64> = (0..2 * count).map(|at| at / 2 % ROWS as i64).collect();
    let pairs = cpu::Pairs::interleaved(cpu::Indices::I64(&pairs)).unwrap();
    let copy = QueuedCopy {
        request: request.clone(),
        within_device: false,
        pairs: QueuedPairs::Copied(pairs),
        kept: None,
    };
    // SAFETY: as in `Pools::enqueue`.
    unsafe { queue.enqueue(stream, copy) }.unwrap();
}

#[test]
fn a_stream_that_is_late_neither_fills_the_ring_nor_delays_others() {
    let name = "a_stream_that_is_late_neither_fills_the_ring_nor_delays_others";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 1);
    let (late, other) = (&pools.stream, Stream::new(&pools.gpu).unwrap());
    let request = pools.request(NOWHERE, false);
    // Each call needs a mebibyte of the 64 that a ring may have.
    let copy = |stream: &Stream| copy_on(&pools.queue, &request, stream, 40_000);
    copy(late);
    let of_late = calls_on_streams()[0].1;
    copy(&other);
    let before = allocated();
    for _ in 0..100 {
        other.synchronize().unwrap();
        copy(&other);
    }
    assert_eq!(allocated(), before);

    // The late stream fills the ring, and waits for itself alone.
    other.synchronize().unwrap();
    for _ in 0..63 {
        copy(late);
    }
    assert!(!calls_on_streams().contains(&("wait".to_owned(), of_late)));
    copy(&other);
    assert_eq!(calls(), "launch record");
    copy(late);
    let late_calls = ["wait", "launch", "record"].map(|word| (word.to_owned(), of_late));
    assert_eq!(calls_on_streams(), late_calls);
    finish();
    drop(pools);
    assert_eq!(faults(), "");
}

#[test]
fn memory_is_not_freed_while_another_stream_is_late() {
    if !has_fake_driver("memory_is_not_freed_while_another_stream_is_late", &[]) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 1);
    let other = Stream::new(&pools.gpu).unwrap();
    let request = pools.request(NOWHERE, false);
    let copy = |stream: &Stream, count| copy_on(&pools.queue, &request, stream, count);
    copy(&pools.stream, 40_000);
    for _ in 0..63 {
        copy(&other, 40_000);
    }
    other.synchronize().unwrap();
    let before = allocated();
    // A smaller call takes a piece of a mebibyte, and a larger one a new piece.
    copy(&other, 100);
    assert_eq!(allocated(), before);
    copy(&other, 100_000);
    assert_eq!(allocated(), before + 1);
    finish();
    copy(&other, 200_000);
    assert!(allocated() > before + 2);
    finish();
    drop(pools);
    assert_eq!(faults(), "");
}

#[test]
fn a_thread_does_not_wait_for_the_stream_that_another_has_by_the_same_handle() {
    let name = "a_thread_does_not_wait_for_the_stream_that_another_has_by_the_same_handle";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 1);
    // SAFETY: it is `CU_STREAM_PER_THREAD`.
    let own = unsafe { Stream::borrowed(&pools.gpu, std::ptr::without_provenance_mut(2)) };
    let (queue, request) = (&pools.queue, &pools.request(NOWHERE, false));
    let copy = || copy_on(queue, request, &own, 40_000);
    for _ in 0..64 {
        copy();
    }
    calls();
    std::thread::scope(|scope| {
        scope.spawn(copy);
    });
    assert_eq!(calls(), "launch record");
    copy();
    assert_eq!(calls(), "wait launch record");
    finish();
    drop(pools);
    assert_eq!(faults(), "");
}

#[test]
fn indices_in_slices_that_overlap_are_those_of_their_own_side() {
    let name = "indices_in_slices_that_overlap_are_those_of_their_own_side";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 1);
    let base = [1i64, 4, 6, 2, 7];
    let [sources, destinations] = [&base[1..], &base[..4]].map(cpu::Indices::I64);
    let pairs = cpu::Pairs::split(sources, destinations).unwrap();
    let request = pools.request(NOWHERE, false);
    pools.enqueue(request, QueuedPairs::Copied(pairs)).unwrap();
    finish();
    for (to, from) in base.iter().zip(&base[1..]) {
        assert_eq!(pools.there(0, *to as u64), pools.here(0, *from as u64));
    }
}

#[test]
fn indices_must_fit_the_request() {
    if !has_fake_driver("indices_must_fit_the_request", &[]) {
        return;
    }
    let pools = Pools::new(ROW_BYTES, 1);
    let indices = DeviceBuffer::from_slice(&pools.gpu, &bytes_of(&[1, 2])).unwrap();
    let mut request = pools.request(on_device(&indices), false);
    (request.pairs.step, request.pairs.count) = (1, 2);
    for (slice, words) in [
        (cpu::Indices::I64(&[1]), "not 1 and 2"),
        (cpu::Indices::I64(&[1, 2, 3]), "not 3 and 2"),
        (cpu::Indices::I32(&[1, 2]), "different types"),
    ] {
        for pairs in [
            QueuedPairs::CopiedSources(slice),
            QueuedPairs::CopiedDestinations(slice),
        ] {
            let error = pools.enqueue(request.clone(), pairs).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
    calls();
    pools.copy(&[], false).unwrap();
    assert_eq!(calls(), "");
}
