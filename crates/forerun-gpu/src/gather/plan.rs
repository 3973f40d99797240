//! Chooses the kernel and its number of blocks, and states why.
//!
//! # The rule and its basis
//! A block runs on one multiprocessor, so a launch of `b` blocks occupies at most `b` of them. A
//! copy over the link needs enough bytes in flight: bandwidth times latency. At 55 GB/s and 1.3 us
//! that is 72 KB. The rule uses nearly twice as much ([`IN_FLIGHT_BYTES`]), because warps do not
//! all wait at the same time, and in proportion for other links.
//!
//! ```text
//!   bytes in flight = blocks x warps per block x rows in flight per warp x bytes of a row (at most what a warp holds)
//! ```
//!
//! By default the plan uses V5 with lines of 128 bytes, the largest unit that fits, and the
//! smallest number of rows in flight that reaches this target. Its blocks have 256 threads, an
//! eighth of those of a multiprocessor, so that they can run alongside blocks of other kernels: a
//! larger block would wait for a multiprocessor with that much room. By default there are
//! [`DEFAULT_THREADS`] threads in all. For short rows there are as many more blocks as reach the
//! target, at most one per multiprocessor. A copy within a device has no link to wait for, and
//! takes all multiprocessors. On an H200, 32 blocks of 256 threads copy rows of 656
//! bytes as fast as all multiprocessors do, and eight reach less than half that rate. With rows of
//! 64 bytes, 32 blocks have 32 KiB in flight and reach less than half the rate of all
//! multiprocessors; so the default for them is 128 blocks, which has not yet been run on a GPU.

use super::request::{Direction, KernelChoice};
use crate::DeviceInfo;
use crate::copy_version::{AccessWidth, KernelEntry, KernelVersion, kernel, units_of};
use crate::gather_error::GatherError;
use std::fmt;

/// The default number of threads for a copy: 32 blocks of 256, or 8 of 1,024. Copies of short rows
/// get more blocks, until [`IN_FLIGHT_BYTES`] are in flight.
pub const DEFAULT_THREADS: u32 = 8192;
/// The default maximum number of blocks, for versions with even smaller blocks.
const DEFAULT_BLOCKS_MAX: u32 = 32;

/// Bytes that should be in flight at a time on a PCIe 5 link of 16 lanes, and on one of unknown
/// speed: nearly twice the 72 KB that keep it busy. Other links have as much more or less as they
/// are faster or slower: 256 KiB on PCIe 6, and 1 MiB on NVLink to a Grace CPU.
pub const IN_FLIGHT_BYTES: u64 = 128 << 10;

/// The bytes that should be in flight on the way from the host to a device.
fn link_in_flight_bytes(device: &DeviceInfo) -> u64 {
    /// Giga-transfers a second of all lanes, for [`IN_FLIGHT_BYTES`].
    const PCIE_5_X16: f64 = 32.0 * 16.0;
    if device.shares_page_tables {
        // NVLink-C2C has 450 GB/s in each direction.
        return 8 * IN_FLIGHT_BYTES;
    }
    let rate = device.pcie.as_ref().and_then(|link| {
        let speed = link.speed_max.split_whitespace().next()?;
        Some(speed.parse::<f64>().ok()? * f64::from(link.lanes))
    });
    let bytes = rate.map_or(IN_FLIGHT_BYTES as f64, |rate| {
        IN_FLIGHT_BYTES as f64 * rate / PCIE_5_X16
    });
    // Half of it for PCIe 4; a link that reports less is not the one that the copy uses.
    (bytes as u64).clamp(IN_FLIGHT_BYTES / 2, 8 * IN_FLIGHT_BYTES)
}

/// Lanes of a warp.
const WARP: u64 = 32;

/// The stages per warp of the bulk versions in shared memory, each with a head, as laid out in
/// `kernels/gather/bulk_rows.cuh`.
const STAGES: u32 = 8;
/// How many of them a warp keeps in flight.
const STAGES_IN_FLIGHT: u64 = 6;
const STAGE_HEAD_BYTES: u32 = 32;
/// The maximum stage size: 4 warps with 8 such stages take 129 KiB of the 227 that a block may
/// have.
const STAGE_BYTES_MAX: u64 = 4096;

/// The properties of a copy that determine the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The direction.
    pub direction: Direction,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Rows of all layers together; an upper bound if the count is on the device.
    pub rows: u64,
    /// Whether both sides are in the device's memory.
    pub within_device: bool,
    /// The quantities that the unit must divide, with their names: the row, strides, addresses.
    pub divided: Vec<(String, u64)>,
}

impl Work {
    /// Work with addresses and strides that are multiples of `aligned` bytes.
    pub fn new(direction: Direction, row_bytes: u64, rows: u64, aligned: u64) -> Work {
        Work {
            direction,
            row_bytes,
            rows,
            within_device: false,
            divided: vec![
                (format!("the row of {row_bytes} bytes"), row_bytes),
                (format!("the alignment of {aligned} bytes"), aligned),
            ],
        }
    }

    /// The largest unit that divides all of them.
    pub fn largest_unit(&self) -> AccessWidth {
        AccessWidth::largest_of(self.divided.iter().map(|(_, bytes)| *bytes))
    }
}

/// The chosen kernel and its launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(crate) version: KernelVersion,
    /// The unit.
    pub unit: AccessWidth,
    /// The kernel's name.
    pub kernel: &'static str,
    /// Number of blocks, which is also the maximum number of multiprocessors that it occupies at a
    /// time. 0 if there is nothing to do.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block.
    pub shared_bytes: u32,
    /// Bytes of a stage of the bulk versions, otherwise 0.
    pub stage_bytes: u32,
    /// Maximum bytes in flight at a time.
    pub in_flight_bytes: u64,
    /// The reason for the choice.
    pub why: String,
}

#[cfg(feature = "study")]
impl Plan {
    /// The version of the row copy.
    pub fn version(&self) -> KernelVersion {
        self.version
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} by {}-byte units, {} blocks of {} threads, {} KiB in flight: {}",
            self.version,
            self.unit,
            self.blocks,
            self.threads,
            self.in_flight_bytes >> 10,
            self.why
        )
    }
}

/// Chooses the kernel.
///
/// ```
/// use forerun_gpu::{CudaVersion, DeviceInfo};
/// use forerun_gpu::gather::{Direction, KernelChoice, Work, plan};
///
/// let h100 = DeviceInfo {
///     ordinal: 0,
///     name: "an H100".into(),
///     compute_capability: (9, 0),
///     multiprocessors: 132,
///     threads_per_multiprocessor: 2048,
///     memory_bytes: 80 << 30,
///     l2_bytes: 50 << 20,
///     copy_engines: 3,
///     pci_address: String::new(),
///     pcie: None,
///     shares_page_tables: false,
///     driver: CudaVersion(13_000),
/// };
/// let rows = Work::new(Direction::Gather, 656, 262_144, 256);
/// let plan = plan(&rows, &KernelChoice::default(), &h100)?;
/// assert_eq!((plan.kernel, plan.blocks, plan.threads), ("gather_v5_r1_a128_u16", 32, 256));
/// println!("{plan}");
/// # Ok::<(), forerun_gpu::gather::GatherError>(())
/// ```
///
/// # Errors
/// A unit or limit that was requested explicitly does not fit. A request is never replaced
/// by something slower.
pub fn plan(work: &Work, choice: &KernelChoice, device: &DeviceInfo) -> Result<Plan, GatherError> {
    if choice.multiprocessors == Some(0) {
        return Err(GatherError::NoMultiprocessors);
    }
    let largest = work.largest_unit();
    if let Some(unit) = choice.unit {
        let misfit = work.divided.iter().find(|(_, n)| n % unit.bytes() != 0);
        if let Some((what, _)) = misfit {
            return Err(GatherError::UnitDoesNotFit {
                unit,
                what: what.clone(),
                largest,
            });
        }
    }
    let multiprocessors = match choice.version {
        None if work.within_device => choice.multiprocessors.or(Some(device.multiprocessors)),
        _ => choice.multiprocessors,
    };
    let target = link_in_flight_bytes(device);
    let cap_of = |entry: &KernelEntry, growth: Growth| {
        let default = (DEFAULT_THREADS / entry.threads).min(DEFAULT_BLOCKS_MAX);
        let enough = || target.div_ceil(in_flight_bytes(entry, work.row_bytes, 1).max(1));
        let cap = match (multiprocessors, growth) {
            (Some(cap), _) => cap,
            (None, Growth::None) => default,
            (None, Growth::ForShortRows) => default.max(enough().min(u32::MAX.into()) as u32),
        };
        cap.min(device.multiprocessors)
    };
    // A version that is requested by name keeps its number of blocks, so that figures compare.
    let growth = match choice.version {
        Some(_) => Growth::None,
        None => Growth::ForShortRows,
    };
    let (entry, why) = match choice.version {
        Some(version) => (
            kernel_of(version, choice.unit, largest)?,
            "requested explicitly".into(),
        ),
        None => default_kernel(work, choice.unit.unwrap_or(largest), target, cap_of)?,
    };
    let version = entry.version;
    if device.compute_capability < entry.capability {
        return Err(GatherError::VersionNeedsNewerDevice {
            version: version.name(),
            needed: entry.capability,
            found: device.compute_capability,
        });
    }
    let mut plan = Plan {
        version,
        unit: entry.unit,
        kernel: entry.name,
        blocks: 0,
        threads: entry.threads,
        shared_bytes: 0,
        stage_bytes: 0,
        in_flight_bytes: 0,
        why,
    };
    if version.is_bulk() {
        stages(&mut plan, work.row_bytes);
    }
    let threads = u64::from(entry.threads);
    // Enough blocks to give each row a thread, or a warp for as many rows as it has in flight.
    let wanted = work
        .rows
        .div_ceil(u64::from(entry.rows))
        .saturating_mul(version.threads_per_row())
        .div_ceil(threads);
    let max = match multiprocessors {
        // All multiprocessors, each as full as possible.
        Some(cap) if cap >= device.multiprocessors => {
            let fit = device.threads_per_multiprocessor / entry.threads;
            let fit = if version.is_bulk() { 1 } else { fit.max(1) };
            u64::from(device.multiprocessors * fit)
        }
        _ => u64::from(cap_of(entry, growth)),
    };
    plan.blocks = wanted.min(max) as u32;
    #[cfg(feature = "study")]
    if !version.can_be_capped() {
        plan.blocks = whole_grid(version, choice, work, wanted)?;
    }
    plan.in_flight_bytes = in_flight_bytes(entry, work.row_bytes, plan.blocks.into());
    if plan.stage_bytes != 0 {
        let warps = u64::from(plan.blocks) * threads / WARP;
        plan.in_flight_bytes = warps * STAGES_IN_FLIGHT * u64::from(plan.stage_bytes);
    }
    Ok(plan)
}

/// The number of blocks of a version that needs a thread or a warp per row.
#[cfg(feature = "study")]
fn whole_grid(
    version: KernelVersion,
    choice: &KernelChoice,
    work: &Work,
    wanted: u64,
) -> Result<u32, GatherError> {
    /// Maximum number of blocks of a grid along x.
    const BLOCKS_MAX: u64 = (1 << 31) - 1;
    let version = version.name();
    if let Some(cap) = choice.multiprocessors {
        return Err(GatherError::CannotCap { version, cap });
    }
    if wanted > BLOCKS_MAX {
        return Err(GatherError::TooManyRows {
            version,
            rows: work.rows,
        });
    }
    Ok(wanted as u32)
}

/// The kernel of a version, with the given unit or the largest that fits.
fn kernel_of(
    version: KernelVersion,
    unit: Option<AccessWidth>,
    largest: AccessWidth,
) -> Result<&'static KernelEntry, GatherError> {
    let has = units_of(version);
    let fitting = has.iter().rev().find(|unit| **unit <= largest);
    let unit = unit.or(fitting.copied());
    let found = unit.and_then(|unit| kernel(version, unit));
    found.ok_or(GatherError::NoKernel {
        version: version.name(),
        unit: unit.unwrap_or(largest),
        has,
    })
}

/// Whether the default number of blocks grows until enough bytes are in flight.
#[derive(Clone, Copy)]
enum Growth {
    None,
    ForShortRows,
}

/// The default kernel, and the reason for it.
fn default_kernel(
    work: &Work,
    unit: AccessWidth,
    target: u64,
    cap_of: impl Fn(&KernelEntry, Growth) -> u32,
) -> Result<(&'static KernelEntry, String), GatherError> {
    if work.within_device {
        // The device's memory carries tens of times as much as a link.
        let entry = kernel_of(KernelVersion::V5R2, Some(unit), unit)?;
        let cap = cap_of(entry, Growth::None);
        let why = format!(
            "within the device, with the largest unit that fits, on {cap} of its \
             multiprocessors"
        );
        return Ok((entry, why));
    }
    let bytes_of =
        |entry, growth| in_flight_bytes(entry, work.row_bytes, cap_of(entry, growth).into());
    // Two rows per warp come before more blocks, which take multiprocessors from other kernels.
    let mut entry = kernel_of(KernelVersion::V5R1, Some(unit), unit)?;
    if bytes_of(entry, Growth::None) < target {
        entry = kernel_of(KernelVersion::V5R2, Some(unit), unit)?;
    }
    let bytes = bytes_of(entry, Growth::ForShortRows);
    let cap = cap_of(entry, Growth::ForShortRows);
    let across = match work.direction {
        Direction::Gather => "reads",
        Direction::Scatter => "writes",
    };
    let enough = if bytes >= target {
        "the fewest rows per warp that keep"
    } else {
        "the maximum of rows per warp, which still falls short of"
    };
    let why = format!(
        "{across} across the link begin on a line of 128 bytes, with the largest unit that fits \
         and {enough} {} KiB in flight from {cap} blocks",
        target >> 10
    );
    Ok((entry, why))
}

/// Bytes in flight at a time.
fn in_flight_bytes(entry: &KernelEntry, row_bytes: u64, blocks: u64) -> u64 {
    let unit = entry.unit.bytes();
    let (rows, bytes) = match entry.version {
        // Each lane waits for one unit.
        #[cfg(feature = "study")]
        KernelVersion::V0 | KernelVersion::V1 => (WARP, unit),
        #[cfg(feature = "study")]
        KernelVersion::V2 => (1, row_bytes.min(WARP * unit)),
        #[cfg(feature = "study")]
        KernelVersion::V3 | KernelVersion::V4 => (1, row_bytes.min(4 * WARP * unit)),
        _ => (u64::from(entry.rows), row_bytes.min(2 * WARP * unit)),
    };
    blocks * (u64::from(entry.threads) / WARP) * rows * bytes
}

/// The stages of the bulk versions.
fn stages(plan: &mut Plan, row_bytes: u64) {
    // A run has up to 32 rows.
    let run = row_bytes.min(STAGE_BYTES_MAX) * 32;
    plan.stage_bytes = run.next_multiple_of(128).min(STAGE_BYTES_MAX) as u32;
    plan.shared_bytes = plan.threads / WARP as u32 * STAGES * (STAGE_HEAD_BYTES + plan.stage_bytes);
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
