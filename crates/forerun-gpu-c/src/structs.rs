//! The structs of `forerun_gpu.h`, field by field, which document them.
//!
//! A struct that grows in a later version grows at its end, and begins with the size that its
//! caller knows: fields beyond that are zero.

use crate::failure::Failure;
use forerun_gpu::table::{
    AllocatedMemory, Candidates, Element, GpuEvictStrategy, PooledDtype, Pooling, PoolingOptions,
    RawBatch, RawEntries, RawPooledBatch, RowFormat, ScoreBytes, TableAllocator, TableOptions,
    Width,
};
use std::ffi::c_void;

pub(crate) const DEVICE_ANY: i32 = -1;
pub(crate) const DEVICE_CPU: i32 = -2;

/// `forerun_gpu_allocator`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // The header has them.
pub struct Allocator {
    pub context: *mut c_void,
    pub allocate: Option<unsafe extern "C" fn(*mut c_void, i32, usize) -> *mut c_void>,
    pub deallocate: Option<unsafe extern "C" fn(*mut c_void, i32, *mut c_void)>,
}

/// `forerun_gpu_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Options {
    pub struct_bytes: usize,
    pub capacity: u64,
    pub max_capacity: u64,
    pub row_bytes: u64,
    pub device_row_bytes_max: u64,
    pub width: u32,
    pub candidates: u32,
    pub evict_strategy: u32,
    pub score_bytes: u32,
    pub device: i32,
    pub reserved: u32,
    pub allocator: *const Allocator,
}

/// `forerun_gpu_entries`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct EntryArrays {
    pub count: *mut u64,
    pub keys: *mut u64,
    pub rows: *mut c_void,
    pub scores: *mut u64,
    pub positions: *mut u64,
}

/// `forerun_gpu_batch`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct KeyArrays {
    pub struct_bytes: usize,
    pub count: u64,
    pub count_at: *const u64,
    pub keys: *const u64,
    pub rows: *const c_void,
    pub scores: *const u64,
    pub flags: *const u8,
    pub epoch: u64,
    pub rows_out: *mut c_void,
    pub scores_out: *mut u64,
    pub slots_out: *mut u64,
    pub pointers_out: *mut *mut c_void,
    pub status_out: *mut u8,
    pub entries_out: EntryArrays,
    pub element: u32,
    pub no_writers: u32,
}

/// `forerun_gpu_bags`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct BagArrays {
    pub struct_bytes: usize,
    pub count: u64,
    pub count_at: *const u64,
    pub keys: *const u64,
    pub bags: u64,
    pub offsets: *const u64,
    pub weights: *const f32,
    pub rows_out: *mut c_void,
    pub found_out: *mut u32,
    pub sums: *mut f32,
    pub row_format: u32,
    pub pooling: u32,
    pub output: u32,
    pub no_writers: u32,
}

/// `forerun_gpu_condition`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Condition {
    pub score_min: u64,
    pub score_max: u64,
    pub key_mask: u64,
    pub key_value: u64,
}

/// A struct that begins with the size that its caller knows.
///
/// # Safety
/// It must be `repr(C)`, begin with a `usize`, and be valid with all bytes zero.
pub(crate) unsafe trait HasSize: Copy {
    /// Its name in C.
    const NAME: &'static str;
}

// SAFETY: it has only numbers and pointers, the size first.
unsafe impl HasSize for Options {
    const NAME: &'static str = "forerun_gpu_options";
}
// SAFETY: as above.
unsafe impl HasSize for KeyArrays {
    const NAME: &'static str = "forerun_gpu_batch";
}
// SAFETY: as above.
unsafe impl HasSize for BagArrays {
    const NAME: &'static str = "forerun_gpu_bags";
}

/// Reads a struct of the caller.
///
/// # Safety
/// `from` must be null, or point to as many bytes as its first field says.
pub(crate) unsafe fn given<T: HasSize>(from: *const T) -> Result<T, Failure> {
    let (name, known) = (T::NAME, size_of::<T>());
    if from.is_null() {
        return Err(Failure::invalid(format!("the {name} is null")));
    }
    // SAFETY: the struct begins with its size.
    let bytes = unsafe { from.cast::<usize>().read_unaligned() };
    if bytes < size_of::<usize>() || bytes > known {
        return Err(Failure::invalid(format!(
            "{name}.struct_bytes is {bytes}, but this library knows {known} bytes: initialise the \
             struct, and use the header of this version"
        )));
    }
    let mut all = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the caller guarantees `bytes` bytes, which are at most those of `T`. All bytes of `T`
    // are initialised, with zeros where there are no others.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), all.as_mut_ptr().cast(), bytes);
        Ok(all.assume_init())
    }
}

/// The address of an optional array.
fn optional<T>(array: *const T) -> Option<u64> {
    (!array.is_null()).then_some(array as u64)
}

impl EntryArrays {
    pub(crate) fn raw(&self) -> RawEntries {
        RawEntries {
            count: self.count as u64,
            keys: self.keys as u64,
            rows: optional(self.rows),
            scores: optional(self.scores),
            positions: optional(self.positions),
        }
    }
}

impl KeyArrays {
    pub(crate) fn raw(&self) -> RawBatch {
        let entries = &self.entries_out;
        RawBatch {
            count_at: optional(self.count_at),
            rows: optional(self.rows),
            scores: optional(self.scores),
            flags: optional(self.flags),
            epoch: self.epoch,
            rows_out: optional(self.rows_out),
            scores_out: optional(self.scores_out),
            slots_out: optional(self.slots_out),
            pointers_out: optional(self.pointers_out),
            status_out: optional(self.status_out),
            entries_out: (!entries.count.is_null()).then(|| entries.raw()),
            ..RawBatch::new(self.keys as u64, self.count)
        }
    }

    pub(crate) fn element(&self) -> Result<Element, Failure> {
        Ok(match self.element {
            0 => Element::F32,
            1 => Element::F64,
            2 => Element::I32,
            3 => Element::I64,
            other => return Err(unknown("element", other, "0 to 3")),
        })
    }
}

impl BagArrays {
    pub(crate) fn raw(&self) -> RawPooledBatch {
        RawPooledBatch {
            count: self.count,
            count_at: optional(self.count_at),
            keys: self.keys as u64,
            bags: self.bags,
            offsets: self.offsets as u64,
            weights: optional(self.weights),
            rows_out: self.rows_out as u64,
            found_out: optional(self.found_out),
            sums: optional(self.sums),
        }
    }

    pub(crate) fn pooling(&self) -> Result<PoolingOptions, Failure> {
        let format = match self.row_format {
            0 => RowFormat::F32,
            1 => RowFormat::F16,
            2 => RowFormat::Bf16,
            3 => RowFormat::QInt8Rowwise,
            4 => RowFormat::QUint8Rowwise,
            other => return Err(unknown("row_format", other, "0 to 4")),
        };
        let pooling = match self.pooling {
            0 => Pooling::Sum,
            1 => Pooling::Mean,
            other => return Err(unknown("pooling", other, "0 or 1")),
        };
        let output = match self.output {
            0 => PooledDtype::F32,
            1 => PooledDtype::F16,
            2 => PooledDtype::Bf16,
            other => return Err(unknown("output", other, "0 to 2")),
        };
        Ok(PoolingOptions::new(format).pooling(pooling).output(output))
    }
}

impl Condition {
    /// The condition that a pointer gives; all entries for null.
    ///
    /// # Safety
    /// It must be null or point to a condition.
    pub(crate) unsafe fn at(condition: *const Condition) -> forerun_gpu::table::Condition {
        // SAFETY: the caller guarantees it.
        match unsafe { condition.as_ref() } {
            None => forerun_gpu::table::Condition::ALL,
            Some(given) => forerun_gpu::table::Condition {
                scores: given.score_min..=given.score_max,
                key_mask: given.key_mask,
                key_value: given.key_value,
            },
        }
    }
}

impl Options {
    pub(crate) fn defaults(capacity: u64, row_bytes: u64) -> Options {
        let options = TableOptions::new(capacity, row_bytes);
        Options {
            struct_bytes: size_of::<Options>(),
            capacity,
            max_capacity: options.max_capacity,
            row_bytes,
            device_row_bytes_max: options.device_row_bytes_max,
            width: options.width.slots(),
            candidates: 1,
            evict_strategy: options.evict_strategy as u32,
            score_bytes: options.score_bytes.bytes(),
            device: DEVICE_ANY,
            reserved: 0,
            allocator: std::ptr::null(),
        }
    }

    pub(crate) fn table_options(&self) -> Result<TableOptions, Failure> {
        let mut widths = Width::ALL.into_iter();
        let width = widths.find(|width| width.slots() == self.width);
        let width = width.ok_or_else(|| unknown("width", self.width, "16, 32, 64 or 128"))?;
        let candidates = match self.candidates {
            1 => Candidates::One,
            2 => Candidates::Two,
            other => return Err(unknown("candidates", other, "1 or 2")),
        };
        let mut strategies = GpuEvictStrategy::ALL.into_iter();
        let strategy = strategies.find(|strategy| *strategy as u32 == self.evict_strategy);
        let strategy =
            strategy.ok_or_else(|| unknown("evict_strategy", self.evict_strategy, "0 to 4"))?;
        let score_bytes = match self.score_bytes {
            4 => ScoreBytes::Four,
            8 => ScoreBytes::Eight,
            other => return Err(unknown("score_bytes", other, "4 or 8")),
        };
        Ok(TableOptions::new(self.capacity, self.row_bytes)
            .max_capacity(self.max_capacity)
            .device_row_bytes_max(self.device_row_bytes_max)
            .width(width)
            .candidates(candidates)
            .evict_strategy(strategy)
            .score_bytes(score_bytes))
    }
}

fn unknown(field: &str, found: u32, known: &str) -> Failure {
    Failure::invalid(format!("{field} must be {known}, not {found}"))
}

/// An allocator of the caller, with both of its functions.
pub(crate) struct Callbacks {
    context: *mut c_void,
    allocate: unsafe extern "C" fn(*mut c_void, i32, usize) -> *mut c_void,
    deallocate: unsafe extern "C" fn(*mut c_void, i32, *mut c_void),
}

// SAFETY: the header says that any thread may call the functions.
unsafe impl Send for Callbacks {}
// SAFETY: as above.
unsafe impl Sync for Callbacks {}

impl Allocator {
    pub(crate) fn callbacks(&self) -> Result<Callbacks, Failure> {
        let (Some(allocate), Some(deallocate)) = (self.allocate, self.deallocate) else {
            return Err(Failure::invalid(
                "an allocator needs both functions, `allocate` and `deallocate`",
            ));
        };
        Ok(Callbacks {
            context: self.context,
            allocate,
            deallocate,
        })
    }
}

fn number_of(memory: AllocatedMemory) -> i32 {
    match memory {
        AllocatedMemory::Device => 0,
        AllocatedMemory::PinnedHost => 1,
    }
}

// SAFETY: the header demands it of the functions.
unsafe impl TableAllocator for Callbacks {
    fn allocate(&self, memory: AllocatedMemory, bytes: u64) -> Option<u64> {
        let bytes = usize::try_from(bytes).ok()?;
        // SAFETY: the functions are those of the header, with their context.
        optional(unsafe { (self.allocate)(self.context, number_of(memory), bytes) })
    }

    fn free(&self, memory: AllocatedMemory, address: u64) {
        // SAFETY: as above; the address comes from `allocate`.
        unsafe { (self.deallocate)(self.context, number_of(memory), address as *mut c_void) }
    }
}
