//! Copies on the streams of others: the calls that each one makes, what a capture gets, and what
//! happens when the device is late or fails. With a fake driver that needs no device, does work only
//! when something waits for it, and refuses what a capture refuses.

#![cfg(target_os = "linux")]

#[path = "testing/fake_calls.rs"]
mod fake_calls;
#[path = "testing/fake_driver.rs"]
mod fake_driver;

use cudarc::driver::sys;
use fake_calls::{
    allocated, another_thread_captures, calls, calls_on_streams, current, enter, fail, faults,
    finish, report_pieces,
};
use fake_driver::has_fake_driver;
use forerun_gpu::gather::{
    BATCH_ROW_BYTES_MIN, CopyQueue, CopySpec, CountAt, Direction, Enqueued, IndexType, Layers,
    MapAt, MapUpdate, PairsAt, QueuedCopy, QueuedPairs, Request, RowLayout, cpu,
};
use forerun_gpu::{DeviceBuffer, Gpu, GpuError, HostMemory, PinnedBuffer, Stream};
use std::sync::Arc;

const ROW_BYTES: u64 = 16;
const ROWS: u64 = 64;

/// A pinned pool, a pool on the device, and the queue between them.
struct Pools {
    gpu: Gpu,
    queue: CopyQueue,
    handle: sys::CUstream,
    stream: Stream,
    host: PinnedBuffer,
    device: DeviceBuffer,
    row_bytes: u64,
    layers: u64,
}

impl Pools {
    fn new(row_bytes: u64, layers: u64) -> Pools {
        let gpu = Gpu::open(0).unwrap();
        enter(0);
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current; the fake driver writes one handle.
        let created = unsafe { sys::cuStreamCreateWithPriority(&mut handle, 1, 0) };
        assert_eq!(created, sys::CUresult::CUDA_SUCCESS);
        let bytes = (row_bytes * ROWS * layers) as usize;
        let mut host = PinnedBuffer::new(&gpu, bytes).unwrap();
        for (row, bytes) in host
            .as_mut_slice()
            .chunks_exact_mut(row_bytes as usize)
            .enumerate()
        {
            bytes.fill(row as u8 + 1);
        }
        Pools {
            queue: CopyQueue::new(&gpu).unwrap(),
            // SAFETY: it is a stream of this device and never destroyed.
            stream: unsafe { Stream::borrowed(&gpu, handle.cast()) },
            handle,
            device: DeviceBuffer::from_slice(&gpu, &vec![0; bytes]).unwrap(),
            host,
            gpu,
            row_bytes,
            layers,
        }
    }

    /// A gather whose layers are given by a table, evenly spaced or not.
    fn request(&self, pairs: PairsAt, uneven: bool) -> Request {
        let layer_bytes = self.row_bytes * ROWS;
        // The last two layers change places.
        let place = |layer| match layer {
            _ if !uneven || self.layers < 3 || layer + 2 < self.layers => layer,
            layer => 2 * self.layers - 3 - layer,
        };
        let offsets = (0..self.layers).map(|layer| place(layer) * layer_bytes);
        let layout = RowLayout::dense(ROWS, self.row_bytes).layers(Layers::Table {
            offsets_bytes: offsets.collect(),
        });
        Request {
            direction: Direction::Gather,
            spec: CopySpec::dense(self.row_bytes, 0, 0)
                .layers(self.layers as u32)
                .host(layout.clone())
                .device(layout),
            host: self.host.address(),
            device: self.device.address(),
            pairs,
            count: None,
            map: None,
            out_of_range: None,
        }
    }

    fn enqueue(&self, request: Request, pairs: QueuedPairs<'_>) -> Result<Enqueued, GpuError> {
        let copy = QueuedCopy {
            request,
            within_device: false,
            pairs,
            kept: None,
        };
        // SAFETY: the pools live as long as the test, and nothing reads the device's before it is
        // done.
        unsafe { self.queue.enqueue(&self.stream, copy) }
    }

    /// Enqueues a copy with indices from the CPU.
    fn copy(&self, pairs: &[i64], uneven: bool) -> Result<Enqueued, GpuError> {
        let pairs = cpu::Pairs::interleaved(cpu::Indices::I64(pairs)).unwrap();
        self.enqueue(self.request(NOWHERE, uneven), QueuedPairs::Copied(pairs))
    }

    /// The first byte of a row on the device.
    fn there(&self, layer: u64, row: u64) -> u8 {
        let mut byte = [0];
        let at = (layer * ROWS + row) * self.row_bytes;
        self.device.read(at, &mut byte).unwrap();
        byte[0]
    }

    /// The first byte of a row on the host.
    fn here(&self, layer: u64, row: u64) -> u8 {
        self.host.as_slice()[((layer * ROWS + row) * self.row_bytes) as usize]
    }
}

const NOWHERE: PairsAt = PairsAt {
    source: 0,
    destination: 0,
    step: 1,
    integer: IndexType::I64,
    count: 0,
    layer_step: 0,
};

fn on_device(indices: &DeviceBuffer) -> PairsAt {
    let count = indices.len() as u64 / 16;
    PairsAt::interleaved(indices.address(), IndexType::I64, &[count, 2]).unwrap()
}

fn bytes_of(words: &[i64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

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
    type Call<'a> = &'a dyn Fn() -> Result<Enqueued, GpuError>;
    let cases: [(Call<'_>, &str); 6] = [
        (&|| reached(false), "launch"),
        (&|| reached(true), "launch record"),
        (&|| pools.copy(&pairs, false), "launch record"),
        (&|| pools.copy(&pairs, true), "launch record"),
        (&mixed, "launch record"),
        (&kept, "launch record"),
    ];
    for (position, (call, expected)) in cases.into_iter().enumerate() {
        assert_eq!(call().unwrap(), Enqueued::OnStream);
        finish();
        calls();
        let before = allocated();
        for _ in 0..100 {
            assert_eq!(call().unwrap(), Enqueued::OnStream);
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
        for row in 0..ROWS as i64 {
            // The slice is gone when the copy runs.
            let pairs = vec![(row + round) % ROWS as i64, row];
            assert_eq!(
                pools.copy(&pairs, row % 2 == 0).unwrap(),
                Enqueued::OnStream
            );
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

/// A graph that another library captured, and its instance.
struct Captured {
    graph: sys::CUgraph,
    instance: sys::CUgraphExec,
}

impl Captured {
    /// Captures what `work` puts on a stream.
    fn of(stream: sys::CUstream, work: impl FnOnce()) -> Result<Captured, sys::CUresult> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let mut captured = Captured {
            graph: std::ptr::null_mut(),
            instance: std::ptr::null_mut(),
        };
        // SAFETY: the fake driver is loaded, and a context is current. It writes two handles.
        unsafe {
            sys::cuStreamBeginCapture_v2(stream, mode).result()?;
            work();
            sys::cuStreamEndCapture(stream, &mut captured.graph).result()?;
            sys::cuGraphInstantiateWithFlags(&mut captured.instance, captured.graph, 0).result()?;
        }
        Ok(captured)
    }

    fn launch(&self, stream: sys::CUstream) {
        // SAFETY: as above; the instance exists.
        let launched = unsafe { sys::cuGraphLaunch(self.instance, stream) };
        assert_eq!(launched, sys::CUresult::CUDA_SUCCESS);
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: as above. Handles that were never written are null, which the driver rejects.
        unsafe {
            sys::cuGraphExecDestroy(self.instance);
            sys::cuGraphDestroy(self.graph);
        }
    }
}

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
        assert_eq!(enqueued.unwrap(), Enqueued::InGraph);
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
    assert_eq!(pools.copy(&pairs, false).unwrap(), Enqueued::OnStream);
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
    assert_eq!(pools.copy(&[64, 9], false).unwrap(), Enqueued::Nothing);
    assert_eq!(calls(), "");
    // A capture and the default stream cannot have a batch.
    let captured = Captured::of(pools.handle, || {
        assert_eq!(pools.copy(&pairs, false).unwrap(), Enqueued::InGraph);
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
    let pools = Pools::new(ROW_BYTES, 3);
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
        for round in 0..2 {
            fail(function, 0);
            // Nothing is free, so that a piece is allocated; then an event is asked.
            let mut failed = 0;
            for _ in 0..3 {
                row = (row + 1) % ROWS as i64;
                match pools.copy(&[row, row], true) {
                    Ok(enqueued) => assert_eq!(enqueued, Enqueued::OnStream),
                    Err(error) => {
                        failed += 1;
                        let text = error.to_string();
                        assert!(
                            text.contains("fake driver") || text.contains("0x"),
                            "{text}"
                        );
                    }
                }
            }
            assert_eq!((failed, current()), (1, other), "{function}, round {round}");
        }
        enter_first();
        finish();
        for row in 0..ROWS as i64 {
            pools.copy(&[row, (row + 1) % ROWS as i64], true).unwrap();
        }
        finish();
        assert_eq!(pools.there(2, 1), pools.here(2, 0), "{function}");
        enter(1);
    }
    enter_first();
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

fn enter_first() {
    enter(0);
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
        .take(pairs.len() * 60)
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
    assert_eq!(pools.copy(&[], false).unwrap(), Enqueued::Nothing);
    assert_eq!(calls(), "");
}
