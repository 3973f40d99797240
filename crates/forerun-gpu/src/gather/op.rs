//! The copy on the GPU: checked and planned once, launched any number of times.
//!
//! ```text
//!   gather(host, device, spec, pairs, options)          one call of the driver each time
//!     planned.rs, tables of layers on the device   ->   RowCopy: put on a stream, or captured in a graph
//! ```

use super::known_memory::{KnownMemory, Locate};
use super::launch_checks::Target;
use super::plan::Plan;
use super::planned::Planned;
use super::request::{CopySpec, CountAt, Direction, IndexType, MapAt, MapUpdate, PairsAt, Request};
use crate::driver::{Command, DeviceBuffer, HostMemory, Stream, sealed};
use crate::gather_error::GatherError;
use crate::memory_type::{MemoryType, PointerAttributes};
use crate::{Gpu, GpuError};
use std::fmt;
use std::marker::PhantomData;

/// Pairs of indices in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DevicePairs<'a> {
    at: PairsAt,
    source: &'a DeviceBuffer,
    destination: &'a DeviceBuffer,
}

impl<'a> DevicePairs<'a> {
    /// An array of shape `[..., 2]` at byte `offset_bytes` of a buffer.
    ///
    /// # Errors
    /// [`GatherError::WrongShape`].
    pub fn interleaved(
        buffer: &'a DeviceBuffer,
        offset_bytes: u64,
        integer: IndexType,
        shape: &[u64],
    ) -> Result<DevicePairs<'a>, GatherError> {
        let address = buffer.address().saturating_add(offset_bytes);
        Ok(DevicePairs {
            at: PairsAt::interleaved(address, integer, shape)?,
            source: buffer,
            destination: buffer,
        })
    }

    /// Two arrays, each of which fills a buffer.
    ///
    /// # Errors
    /// [`GatherError::LengthsDiffer`].
    pub fn split(
        integer: IndexType,
        source: &'a DeviceBuffer,
        destination: &'a DeviceBuffer,
    ) -> Result<DevicePairs<'a>, GatherError> {
        let part = |buffer: &DeviceBuffer| {
            let len = buffer.len() as u64 / integer.bytes();
            (buffer.address(), len)
        };
        Ok(DevicePairs {
            at: PairsAt::split(integer, part(source), part(destination))?,
            source,
            destination,
        })
    }

    /// Two arrays of `count` indices, each at an offset of its own buffer.
    pub fn arrays(
        integer: IndexType,
        count: u64,
        (source, source_offset_bytes): (&'a DeviceBuffer, u64),
        (destination, destination_offset_bytes): (&'a DeviceBuffer, u64),
    ) -> DevicePairs<'a> {
        DevicePairs {
            at: PairsAt {
                source: source.address().saturating_add(source_offset_bytes),
                destination: destination
                    .address()
                    .saturating_add(destination_offset_bytes),
                step: 1,
                integer,
                count,
                layer_step: 0,
            },
            source,
            destination,
        }
    }

    /// Gives each layer its own pairs, `layer_step` indices after those of the previous layer, with
    /// `count` pairs per layer.
    pub fn by_layer(mut self, count: u64, layer_step: u64) -> DevicePairs<'a> {
        self.at.count = count;
        self.at.layer_step = layer_step;
        self
    }
}

/// An integer in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceWord<'a> {
    /// The buffer.
    pub buffer: &'a DeviceBuffer,
    /// Offset of its first byte.
    pub offset_bytes: u64,
    /// Its type.
    pub integer: IndexType,
}

/// A slot map in device memory, with one entry per host row.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMap<'a> {
    /// The buffer. Its first entry belongs to host row 0 of layer 0.
    pub buffer: &'a DeviceBuffer,
    /// The entry type.
    pub integer: IndexType,
    /// Entries per layer.
    pub slots: u64,
    /// Entries from one layer's map to the next; 0 if all layers share one.
    pub layer_step: u64,
    /// The value that is written for each copied row.
    pub update: MapUpdate,
}

/// Optional parts of a copy.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct DeviceCopyOptions<'a> {
    /// Number of pairs that are used, read when the launch runs.
    pub count: Option<DeviceWord<'a>>,
    /// A slot map to maintain.
    pub map: Option<DeviceMap<'a>>,
    /// A `u64` at the buffer's first byte that counts indices out of range, except -1.
    pub out_of_range: Option<&'a DeviceBuffer>,
}

forerun_core::setters! {
    DeviceCopyOptions<'a> {} into {
        count: Option<DeviceWord<'a>>,
        map: Option<DeviceMap<'a>>,
        out_of_range: Option<&'a DeviceBuffer>,
    }
}

/// Prepares a copy of host rows to the device: pairs of (host row, device row).
///
/// ```no_run
/// use forerun_gpu::gather::{DeviceCopyOptions, DevicePairs, IndexType, CopySpec, gather};
/// use forerun_gpu::{DeviceBuffer, Gpu, GpuError, PinnedBuffer, Stream};
///
/// let gpu = Gpu::open(0)?;
/// let mut host = PinnedBuffer::new(&gpu, 656 * 300_000)?;
/// host.as_mut_slice()[656 * 7..][..656].fill(1);
/// let device = DeviceBuffer::new(&gpu, 656 * 1000)?;
/// let pairs: Vec<u8> = [7i32, 0, 2, 1, -1, 2].iter().flat_map(|n| n.to_ne_bytes()).collect();
/// let pairs = DeviceBuffer::from_slice(&gpu, &pairs)?;
///
/// let spec = CopySpec::dense(656, 300_000, 1000);
/// let pairs = DevicePairs::interleaved(&pairs, 0, IndexType::I32, &[3, 2])?;
/// let copy = gather(&host, &device, &spec, &pairs, &DeviceCopyOptions::default())?;
/// println!("{}", copy.plan());
/// let stream = Stream::new(&gpu)?;
/// gpu.scope(|scope| scope.enqueue(&stream, &copy))?;
/// # Ok::<(), GpuError>(())
/// ```
///
/// # Errors
/// A [`GatherError`], or the driver's error when the kernels are loaded on the first call.
pub fn gather<'a>(
    host: &'a dyn HostMemory,
    device: &'a DeviceBuffer,
    spec: &CopySpec,
    pairs: &DevicePairs<'a>,
    options: &DeviceCopyOptions<'a>,
) -> Result<RowCopy<'a>, GpuError> {
    let host = HostSide::of_host(host);
    prepare(Direction::Gather, host, device, spec, pairs, options)
}

/// Prepares a copy of device rows to the host: pairs of (device row, host row). The copy borrows
/// the host memory mutably for as long as it exists, so the memory can be read only after the copy
/// has run and has been dropped.
///
/// # Errors
/// Those of [`gather`].
pub fn scatter<'a>(
    device: &'a DeviceBuffer,
    host: &'a mut dyn HostMemory,
    spec: &CopySpec,
    pairs: &DevicePairs<'a>,
    options: &DeviceCopyOptions<'a>,
) -> Result<RowCopy<'a>, GpuError> {
    let host = HostSide::of_host(host);
    prepare(Direction::Scatter, host, device, spec, pairs, options)
}

/// Prepares a copy of rows between two buffers of one device: pairs of (source row, destination
/// row). The spec's host side describes the source, and its device side the destination.
///
/// # Errors
/// Those of [`gather`].
pub fn copy_within_device<'a>(
    source: &'a DeviceBuffer,
    destination: &'a DeviceBuffer,
    spec: &CopySpec,
    pairs: &DevicePairs<'a>,
    options: &DeviceCopyOptions<'a>,
) -> Result<RowCopy<'a>, GpuError> {
    let source = HostSide::of_device(source);
    prepare(Direction::Gather, source, destination, spec, pairs, options)
}

/// The memory of a copy's host side. In a copy within a device, that is the source, which is on the
/// device too.
struct HostSide {
    address: u64,
    len: u64,
    memory: MemoryType,
    device_address: u64,
}

impl HostSide {
    fn of_host(host: &dyn HostMemory) -> HostSide {
        HostSide {
            address: host.address(),
            len: host.len() as u64,
            memory: MemoryType::Pinned,
            device_address: host.device_address(),
        }
    }

    fn of_device(buffer: &DeviceBuffer) -> HostSide {
        let ordinal = buffer.gpu().info().ordinal;
        HostSide {
            address: buffer.address(),
            len: buffer.len() as u64,
            memory: MemoryType::Device { ordinal },
            device_address: buffer.address(),
        }
    }
}

fn prepare<'a>(
    direction: Direction,
    host: HostSide,
    device: &DeviceBuffer,
    spec: &CopySpec,
    pairs: &DevicePairs<'a>,
    options: &DeviceCopyOptions<'a>,
) -> Result<RowCopy<'a>, GpuError> {
    let mut known = KnownMemory::default();
    known.add(host.address, host.len, host.memory, host.device_address);
    let mut add = |buffer: &DeviceBuffer| {
        let ordinal = buffer.gpu().info().ordinal;
        known.add(
            buffer.address(),
            buffer.len() as u64,
            MemoryType::Device { ordinal },
            buffer.address(),
        );
        buffer.address()
    };
    add(device);
    add(pairs.source);
    add(pairs.destination);
    let count = options.count.map(|word| CountAt {
        address: add(word.buffer).saturating_add(word.offset_bytes),
        integer: word.integer,
    });
    let map = options.map.map(|map| MapAt {
        address: add(map.buffer),
        integer: map.integer,
        slots: map.slots,
        layer_step: map.layer_step,
        update: map.update,
    });
    let out_of_range = options.out_of_range.map(&mut add);
    let request = Request {
        direction,
        spec: spec.clone(),
        host: host.address,
        device: device.address(),
        pairs: pairs.at,
        count,
        map,
        out_of_range,
    };
    let ordinal = device.gpu().info().ordinal;
    let target = match host.memory {
        MemoryType::Device { .. } => Target::WithinDevice { ordinal },
        _ => Target::Device { ordinal },
    };
    RowCopy::checked(device.gpu(), &request, &known, target)
}

/// A copy that is ready to launch: a [`Command`].
pub struct RowCopy<'a> {
    planned: Planned,
    /// Tables of layers. The kernel reads them.
    _tables: Vec<DeviceBuffer>,
    _memory: PhantomData<&'a ()>,
}

impl RowCopy<'_> {
    /// A copy between plain addresses, for callers that have only these. The driver reports the
    /// kind of memory at each.
    ///
    /// # Safety
    /// The request must be true: rows, indices, count, map and counter must stay allocated as long
    /// as the copy exists, and writes through it must obey the rules of [`Command::enqueue`].
    ///
    /// # Errors
    /// A [`GatherError`], or the driver's error.
    pub unsafe fn from_request(gpu: &Gpu, request: &Request) -> Result<RowCopy<'static>, GpuError> {
        let _current = gpu.bind()?;
        RowCopy::new(gpu, request, gpu)
    }

    /// Like [`RowCopy::from_request`], for rows that are all in the device's memory, those of the
    /// host's side too.
    ///
    /// # Safety
    /// That of [`RowCopy::from_request`].
    ///
    /// # Errors
    /// A [`GatherError`], or the driver's error.
    pub unsafe fn within_device(
        gpu: &Gpu,
        request: &Request,
    ) -> Result<RowCopy<'static>, GpuError> {
        let _current = gpu.bind()?;
        let ordinal = gpu.info().ordinal;
        RowCopy::checked(gpu, request, gpu, Target::WithinDevice { ordinal })
    }

    pub(super) fn new<'a>(
        gpu: &Gpu,
        request: &Request,
        memory: &dyn Locate,
    ) -> Result<RowCopy<'a>, GpuError> {
        let ordinal = gpu.info().ordinal;
        RowCopy::checked(gpu, request, memory, Target::Device { ordinal })
    }

    fn checked<'a>(
        gpu: &Gpu,
        request: &Request,
        memory: &dyn Locate,
        target: Target,
    ) -> Result<RowCopy<'a>, GpuError> {
        let mut planned = Planned::new(gpu, request, memory, target)?;
        let mut tables = Vec::new();
        planned.place_tables(|addresses| {
            let bytes: Vec<u8> = addresses.iter().flat_map(|a| a.to_ne_bytes()).collect();
            let table = DeviceBuffer::from_slice(gpu, &bytes)?;
            let address = table.address();
            tables.push(table);
            Ok::<_, GpuError>(address)
        })?;
        Ok(RowCopy {
            planned,
            _tables: tables,
            _memory: PhantomData,
        })
    }

    /// Which kernel runs, and why.
    pub fn plan(&self) -> &Plan {
        &self.planned.plan
    }
}

impl sealed::Sealed for RowCopy<'_> {}

impl Command for RowCopy<'_> {
    fn gpu(&self) -> &Gpu {
        self.planned.gpu()
    }

    unsafe fn enqueue(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.expect(self.gpu(), "the copy")?;
        // SAFETY: the caller guarantees the memory, and the tables live as long as this value.
        unsafe { self.planned.launch(stream) }
    }
}

impl fmt::Debug for RowCopy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowCopy")
            .field("params", &self.planned.params)
            .field("plan", &self.planned.plan)
            .finish()
    }
}

impl Locate for Gpu {
    fn locate(&self, address: u64) -> Result<PointerAttributes, GatherError> {
        self.locate_by_driver(address)
            .map_err(|error| GatherError::Unknown {
                address,
                text: error.to_string(),
            })
    }
}
