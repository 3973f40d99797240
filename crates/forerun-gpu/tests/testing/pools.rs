//! Pools of rows between which a queue copies, and graphs that another library captures, over the
//! fake driver.

#![allow(dead_code, reason = "not every test binary uses all of them")]

use super::fake_calls::{calls, enter};
use cudarc::driver::sys;
use forerun_gpu::gather::{
    CopyQueue, CopySpec, Direction, IndexType, Layers, PairsAt, QueuedCopy, QueuedPairs, Request,
    RowLayout, cpu,
};
use forerun_gpu::{DeviceBuffer, Gpu, GpuError, HostMemory, PinnedBuffer, Stream};

pub const ROW_BYTES: u64 = 16;
pub const ROWS: u64 = 64;

/// A pinned pool, a pool on the device, and the queue between them.
pub struct Pools {
    pub gpu: Gpu,
    pub queue: CopyQueue,
    pub handle: sys::CUstream,
    pub stream: Stream,
    pub host: PinnedBuffer,
    pub device: DeviceBuffer,
    pub row_bytes: u64,
    pub layers: u64,
}

impl Pools {
    pub fn new(row_bytes: u64, layers: u64) -> Pools {
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
            bytes.fill((row as u8).wrapping_add(1));
        }
        let pools = Pools {
            queue: CopyQueue::new(&gpu).unwrap(),
            // SAFETY: it is a stream of this device and never destroyed.
            stream: unsafe { Stream::borrowed(&gpu, handle.cast()) },
            handle,
            device: DeviceBuffer::from_slice(&gpu, &vec![0; bytes]).unwrap(),
            host,
            gpu,
            row_bytes,
            layers,
        };
        calls();
        pools
    }

    /// A gather whose layers are given by a table, evenly spaced or not.
    pub fn request(&self, pairs: PairsAt, uneven: bool) -> Request {
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

    pub fn enqueue(&self, request: Request, pairs: QueuedPairs<'_>) -> Result<(), GpuError> {
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
    pub fn copy(&self, pairs: &[i64], uneven: bool) -> Result<(), GpuError> {
        let pairs = cpu::Pairs::interleaved(cpu::Indices::I64(pairs)).unwrap();
        self.enqueue(self.request(NOWHERE, uneven), QueuedPairs::Copied(pairs))
    }

    /// The first byte of a row on the device.
    pub fn there(&self, layer: u64, row: u64) -> u8 {
        let mut byte = [0];
        let at = (layer * ROWS + row) * self.row_bytes;
        self.device.read(at, &mut byte).unwrap();
        byte[0]
    }

    /// The first byte of a row on the host.
    pub fn here(&self, layer: u64, row: u64) -> u8 {
        self.host.as_slice()[((layer * ROWS + row) * self.row_bytes) as usize]
    }
}

pub const NOWHERE: PairsAt = PairsAt {
    source: 0,
    destination: 0,
    step: 1,
    integer: IndexType::I64,
    count: 0,
    layer_step: 0,
};

pub fn on_device(indices: &DeviceBuffer) -> PairsAt {
    let count = indices.len() as u64 / 16;
    PairsAt::interleaved(indices.address(), IndexType::I64, &[count, 2]).unwrap()
}

pub fn bytes_of(words: &[i64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn ok(result: sys::CUresult) -> Result<(), sys::CUresult> {
    match result {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(error),
    }
}

/// A graph that another library captured, and its instance.
pub struct Captured {
    graph: sys::CUgraph,
    instance: sys::CUgraphExec,
}

impl Captured {
    /// Captures what `work` puts on a stream.
    pub fn of(stream: sys::CUstream, work: impl FnOnce()) -> Result<Captured, sys::CUresult> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let mut captured = Captured {
            graph: std::ptr::null_mut(),
            instance: std::ptr::null_mut(),
        };
        // SAFETY: the fake driver is loaded, and a context is current. It writes two handles.
        unsafe {
            ok(sys::cuStreamBeginCapture_v2(stream, mode))?;
            work();
            ok(sys::cuStreamEndCapture(stream, &mut captured.graph))?;
            ok(sys::cuGraphInstantiateWithFlags(
                &mut captured.instance,
                captured.graph,
                0,
            ))?;
        }
        Ok(captured)
    }

    pub fn launch(&self, stream: sys::CUstream) {
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
