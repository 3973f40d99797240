//! Chooses the kernel and its number of blocks, and states why.
//!
//! # The rule and its basis
//! A block runs on one multiprocessor, so a launch of `b` blocks occupies at most `b` of them. A
//! copy over the link needs enough bytes in flight: bandwidth times latency. At 55 GB/s and 1.3 us
//! that is 72 KB. The rule uses [`IN_FLIGHT_BYTES`], nearly twice as much, because warps do not all
//! wait at the same time.
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
//! target, at most one per multiprocessor. On an H200, 32 blocks of 256 threads copy rows of 656
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

/// Bytes that should be in flight at a time: nearly twice the 72 KB that keep a PCIe 5 link of 16
/// lanes busy.
pub const IN_FLIGHT_BYTES: u64 = 128 << 10;

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
    let cap_of = |entry: &KernelEntry, growth: Growth| {
        let default = (DEFAULT_THREADS / entry.threads).min(DEFAULT_BLOCKS_MAX);
        let enough = || IN_FLIGHT_BYTES.div_ceil(in_flight_bytes(entry, work.row_bytes, 1).max(1));
        let cap = match (choice.multiprocessors, growth) {
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
        None => default_kernel(work, choice.unit.unwrap_or(largest), cap_of)?,
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
    let max = match choice.multiprocessors {
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
    cap_of: impl Fn(&KernelEntry, Growth) -> u32,
) -> Result<(&'static KernelEntry, String), GatherError> {
    let bytes_of =
        |entry, growth| in_flight_bytes(entry, work.row_bytes, cap_of(entry, growth).into());
    // Two rows per warp come before more blocks, which take multiprocessors from other kernels.
    let mut entry = kernel_of(KernelVersion::V5R1, Some(unit), unit)?;
    if bytes_of(entry, Growth::None) < IN_FLIGHT_BYTES {
        entry = kernel_of(KernelVersion::V5R2, Some(unit), unit)?;
    }
    let bytes = bytes_of(entry, Growth::ForShortRows);
    let cap = cap_of(entry, Growth::ForShortRows);
    let across = match work.direction {
        Direction::Gather => "reads",
        Direction::Scatter => "writes",
    };
    let enough = if bytes >= IN_FLIGHT_BYTES {
        "the fewest rows per warp that keep"
    } else {
        "the maximum of rows per warp, which still falls short of"
    };
    let why = format!(
        "{across} across the link begin on a line of 128 bytes, with the largest unit that fits \
         and {enough} {} KiB in flight from {cap} blocks",
        IN_FLIGHT_BYTES >> 10
    );
    Ok((entry, why))
}

/// Bytes in flight at a time.
fn in_flight_bytes(entry: &KernelEntry, row_bytes: u64, blocks: u64) -> u64 {
    let unit = entry.unit.bytes();
    let (rows, bytes) = match entry.version {
        // Each lane waits for one unit.
        KernelVersion::V0 | KernelVersion::V1 => (WARP, unit),
        KernelVersion::V2 => (1, row_bytes.min(WARP * unit)),
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
mod tests {
    use super::*;
    use crate::CudaVersion;

    fn device(capability: (u32, u32)) -> DeviceInfo {
        DeviceInfo {
            ordinal: 0,
            name: "a device".into(),
            compute_capability: capability,
            multiprocessors: 132,
            threads_per_multiprocessor: 2048,
            memory_bytes: 1 << 36,
            l2_bytes: 1 << 25,
            copy_engines: 2,
            pci_address: String::new(),
            pcie: None,
            driver: CudaVersion(13_000),
        }
    }

    fn choose(work: &Work, choice: KernelChoice) -> Result<Plan, GatherError> {
        plan(work, &choice, &device((9, 0)))
    }

    #[cfg(feature = "study")]
    fn version(version: KernelVersion) -> KernelChoice {
        KernelChoice::default().version(version)
    }

    #[test]
    fn the_default_keeps_more_rows_in_flight_for_fewer_rows_or_blocks() {
        let plan_of = |row_bytes, cap| {
            let work = Work::new(Direction::Gather, row_bytes, 1 << 20, 4096);
            let choice = KernelChoice {
                multiprocessors: cap,
                ..KernelChoice::default()
            };
            choose(&work, choice).unwrap()
        };
        assert_eq!(plan_of(656, None).version, KernelVersion::V5R1);
        assert_eq!(plan_of(656, Some(16)).version, KernelVersion::V5R2);
        assert_eq!(plan_of(64, None).version, KernelVersion::V5R2);
        assert!(plan_of(64, Some(32)).why.contains("short of"));
        assert!(!plan_of(656, Some(16)).why.contains("short of"));
        let plan = plan_of(656, None);
        assert!(plan.in_flight_bytes >= IN_FLIGHT_BYTES);
        assert_eq!((plan.blocks, plan.unit), (32, AccessWidth::B16));
        // A copy does not wait for a multiprocessor that is almost empty.
        assert_eq!(plan.threads, 256);
    }

    #[test]
    fn short_rows_get_more_blocks_until_enough_bytes_are_in_flight() {
        // Of a device with 132 multiprocessors.
        for (row_bytes, blocks) in [
            (656, 32),
            (512, 32),
            (256, 32),
            (200, 41),
            (128, 64),
            (64, 128),
            (16, 132),
            (1, 132),
        ] {
            let work = Work::new(Direction::Gather, row_bytes, 1 << 20, 4096);
            let plan = choose(&work, KernelChoice::default()).unwrap();
            assert_eq!(plan.blocks, blocks, "{row_bytes}: {plan}");
            let enough = plan.in_flight_bytes >= IN_FLIGHT_BYTES;
            assert_eq!(enough, blocks < 132, "{plan}");
            assert_eq!(plan.why.contains("short of"), !enough, "{plan}");
            // An explicit limit holds.
            let capped = KernelChoice::default().multiprocessors(8);
            assert_eq!(choose(&work, capped).unwrap().blocks, 8);
        }
        // No more blocks than there is work for: a warp copies two rows at a time.
        let few = Work::new(Direction::Gather, 64, 100, 4096);
        assert_eq!(choose(&few, KernelChoice::default()).unwrap().blocks, 7);
    }

    #[test]
    fn the_largest_unit_that_fits_is_taken_and_another_only_by_name() {
        for (row_bytes, aligned, unit) in [
            (656, 256, AccessWidth::B16),
            (656, 8, AccessWidth::B8),
            (584, 256, AccessWidth::B8),
            (580, 256, AccessWidth::B4),
            (577, 256, AccessWidth::B1),
        ] {
            let work = Work::new(Direction::Scatter, row_bytes, 100, aligned);
            assert_eq!(choose(&work, KernelChoice::default()).unwrap().unit, unit);
        }
        let work = Work::new(Direction::Gather, 656, 100, 256);
        let by_name = KernelChoice {
            unit: Some(AccessWidth::B4),
            ..KernelChoice::default()
        };
        assert_eq!(choose(&work, by_name).unwrap().unit, AccessWidth::B4);
    }

    #[cfg(feature = "study")]
    #[test]
    fn every_version_gets_the_grid_that_it_needs() {
        let work = Work::new(Direction::Gather, 656, 262_144, 256);
        for (of, blocks) in [
            (KernelVersion::V0, 256),
            (KernelVersion::V1, 256),
            (KernelVersion::V2, 8192),
            (KernelVersion::V3, 8192),
            (KernelVersion::V4, 8),
            (KernelVersion::V5R2, 32),
            (KernelVersion::V6, 32),
        ] {
            let plan = choose(&work, version(of)).unwrap();
            assert_eq!((plan.version, plan.blocks), (of, blocks));
        }
        for of in KernelVersion::ALL {
            let none = Work::new(Direction::Gather, 656, 0, 256);
            assert_eq!(choose(&none, version(of)).unwrap().blocks, 0);
            let one = Work::new(Direction::Gather, 656, 1, 256);
            assert_eq!(choose(&one, version(of)).unwrap().blocks, 1);
        }
        let all = KernelChoice {
            multiprocessors: Some(132),
            ..version(KernelVersion::V4)
        };
        assert_eq!(choose(&work, all).unwrap().blocks, 264);
    }

    #[cfg(feature = "study")]
    #[test]
    fn stages_fit_shared_memory_whatever_the_row() {
        for row_bytes in [16, 64, 656, 4096, 1 << 20] {
            let work = Work::new(Direction::Gather, row_bytes, 1000, 256);
            let plan = choose(&work, version(KernelVersion::V6)).unwrap();
            assert!(plan.stage_bytes.is_multiple_of(128) && plan.stage_bytes > 0);
            assert!(plan.shared_bytes <= 227 << 10, "{plan:?}");
        }
    }

    #[test]
    fn invalid_requests_are_refused_with_a_message() {
        let work = Work::new(Direction::Gather, 584, 100, 256);
        let wide = KernelChoice::default().unit(AccessWidth::B16);
        let none = KernelChoice::default().multiprocessors(0);
        for (choice, words) in [
            (
                wide,
                "the row of 584 bytes is not a multiple of it; the largest unit that fits is 8",
            ),
            (none, "at least one multiprocessor"),
        ] {
            let refusal = choose(&work, choice).unwrap_err().to_string();
            assert!(refusal.contains(words), "{refusal}");
        }
        let work = Work::new(Direction::Gather, 656, 100, 256);
        let old = plan(&work, &KernelChoice::default(), &device((7, 5)));
        let refusal = old.unwrap_err().to_string();
        assert!(
            refusal.contains("needs compute capability 8.0"),
            "{refusal}"
        );
    }

    #[cfg(feature = "study")]
    #[test]
    fn versions_that_do_not_fit_are_refused_with_a_message() {
        let work = Work::new(Direction::Gather, 584, 100, 256);
        let narrow = version(KernelVersion::V1).unit(AccessWidth::B1);
        let capped = version(KernelVersion::V3).multiprocessors(4);
        let huge = Work::new(Direction::Gather, 584, 1 << 60, 256);
        for (work, choice, words) in [
            (
                &work,
                narrow,
                "no kernel v1 with 1-byte units, only with 4, 8, 16",
            ),
            (
                &work,
                version(KernelVersion::V6),
                "no kernel v6 with 8-byte units, only with 16",
            ),
            (&work, capped, "v3 needs a thread or warp per row"),
            (
                &huge,
                version(KernelVersion::V2),
                "too many for one launch of v2",
            ),
        ] {
            let refusal = choose(work, choice).unwrap_err().to_string();
            assert!(refusal.contains(words), "{refusal}");
        }
        let old = plan(
            &Work::new(Direction::Gather, 656, 100, 256),
            &version(KernelVersion::V6),
            &device((8, 0)),
        );
        let refusal = old.unwrap_err().to_string();
        assert!(
            refusal.contains("needs compute capability 9.0"),
            "{refusal}"
        );
    }
}
