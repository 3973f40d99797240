//! The versions of the row copy, and their kernels. A product build has only the kernels of V5; the
//! feature `study` adds the others, for measurements.
//!
//! | version | a row is copied by | requests |
//! |---------|--------------------|----------|
//! | v0 | a thread, byte by byte | each lane on its own row |
//! | v1 | a thread, a unit at a time | the same, 16 bytes each |
//! | v2 | a warp | load, store, load, store |
//! | v3 | a warp | all loads, then all stores |
//! | v4 | a warp that strides over the rows | as v3; any grid, so it can be limited |
//! | v5-r1, v5-r2 | a warp, one or two rows at once | as v4, each beginning on a line of 128 bytes across the link (32 for units of one byte) |
//! | v6 | the bulk copy unit, one operation per run of neighbouring rows | through shared memory; compute capability 9.0 |
//!
//! V0 to V4 are the steps of a published study, whose measurements can be repeated.

use forerun_core::sync::OnceLock;

/// A version of the row copy on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // The table above describes each.
pub enum KernelVersion {
    V0,
    V1,
    V2,
    V3,
    V4,
    V5R1,
    V5R2,
    V6,
}

impl KernelVersion {
    /// All versions, the oldest first.
    pub const ALL: [KernelVersion; 8] = [
        KernelVersion::V0,
        KernelVersion::V1,
        KernelVersion::V2,
        KernelVersion::V3,
        KernelVersion::V4,
        KernelVersion::V5R1,
        KernelVersion::V5R2,
        KernelVersion::V6,
    ];

    /// The name, as [`FromStr`](std::str::FromStr) reads it.
    pub fn name(&self) -> &'static str {
        match self {
            KernelVersion::V0 => "v0",
            KernelVersion::V1 => "v1",
            KernelVersion::V2 => "v2",
            KernelVersion::V3 => "v3",
            KernelVersion::V4 => "v4",
            KernelVersion::V5R1 => "v5-r1",
            KernelVersion::V5R2 => "v5-r2",
            KernelVersion::V6 => "v6",
        }
    }

    /// Whether the version strides over the rows, so that any number of blocks works. The other
    /// versions need one thread or one warp per row.
    #[cfg(feature = "study")]
    pub fn can_be_capped(&self) -> bool {
        *self >= KernelVersion::V4
    }

    /// Threads that copy one row together.
    pub(crate) fn threads_per_row(&self) -> u64 {
        if *self <= KernelVersion::V1 { 1 } else { 32 }
    }

    /// Whether rows go through the bulk copy unit.
    pub(crate) fn is_bulk(&self) -> bool {
        *self == KernelVersion::V6
    }
}

forerun_core::names! {
    KernelVersion, "version of the row copy";
    /// A name that no version of the row copy has.
    UnknownKernelVersion
}

/// Bytes that a lane moves at a time. All addresses, strides and the row size must be multiples of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AccessWidth {
    /// One byte: fits everything.
    B1,
    /// Four bytes.
    B4,
    /// Eight bytes.
    B8,
    /// Sixteen bytes: the unit of the fast path.
    B16,
}

impl AccessWidth {
    /// All units, the smallest first.
    pub const ALL: [AccessWidth; 4] = [
        AccessWidth::B1,
        AccessWidth::B4,
        AccessWidth::B8,
        AccessWidth::B16,
    ];

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            AccessWidth::B1 => 1,
            AccessWidth::B4 => 4,
            AccessWidth::B8 => 8,
            AccessWidth::B16 => 16,
        }
    }

    /// The number of bytes, as [`FromStr`](std::str::FromStr) reads it.
    pub fn name(&self) -> &'static str {
        match self {
            AccessWidth::B1 => "1",
            AccessWidth::B4 => "4",
            AccessWidth::B8 => "8",
            AccessWidth::B16 => "16",
        }
    }

    /// The largest unit that divides all of `values`.
    pub(crate) fn largest_of(values: impl IntoIterator<Item = u64>) -> AccessWidth {
        // The bitwise OR keeps the low bits that are zero in all values. For zero values, all bits
        // are zero.
        let bits = values.into_iter().fold(0, |bits, value| bits | value);
        let fits = |unit: &&AccessWidth| bits % unit.bytes() == 0;
        *AccessWidth::ALL
            .iter()
            .rev()
            .find(fits)
            .unwrap_or(&AccessWidth::B1)
    }
}

forerun_core::names! {
    AccessWidth, "access width";
    /// A number of bytes that no access width has.
    UnknownAccessWidth
}

/// The lists of the kernels that this build has.
const LISTS: &[&str] = &[
    include_str!("../kernels/gather.list"),
    #[cfg(feature = "study")]
    include_str!("../kernels/gather_study.list"),
];

/// A kernel of one of the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelEntry {
    pub(crate) name: &'static str,
    pub(crate) version: KernelVersion,
    pub(crate) unit: AccessWidth,
    /// Rows in flight per warp.
    pub(crate) rows: u32,
    /// Threads per block: the kernel is compiled for this number.
    pub(crate) threads: u32,
    /// The compute capability it needs.
    pub(crate) capability: (u32, u32),
}

/// The kernels, in the order of the lists.
pub(crate) fn kernels() -> &'static [KernelEntry] {
    static KERNELS: OnceLock<Vec<KernelEntry>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let lines = LISTS.iter().flat_map(|list| list.lines());
        lines.filter_map(parse_entry).collect()
    })
}

/// The kernel of a version with a unit.
pub(crate) fn kernel(version: KernelVersion, unit: AccessWidth) -> Option<&'static KernelEntry> {
    let mut list = kernels().iter();
    list.find(|entry| (entry.version, entry.unit) == (version, unit))
}

/// The units that a version has kernels for, the smallest first.
pub fn units_of(version: KernelVersion) -> Vec<AccessWidth> {
    let has = |unit: &AccessWidth| kernel(version, *unit).is_some();
    AccessWidth::ALL.into_iter().filter(has).collect()
}

/// Parses a line of the list: `KERNEL(gather_v5_r2_a128_u16, 5, 16, 2, 128, 256, 64)`.
fn parse_entry(line: &'static str) -> Option<KernelEntry> {
    let (macro_name, rest) = line.trim().split_once('(')?;
    let capability = match macro_name {
        "KERNEL" => (8, 0),
        "KERNEL90" => (9, 0),
        _ => return None,
    };
    let mut words = rest.split_once(')')?.0.split(',').map(str::trim);
    let name = words.next()?;
    let mut number = || words.next()?.parse::<u32>().ok();
    let (number_of, unit, rows, _align, threads) =
        (number()?, number()?, number()?, number()?, number()?);
    let version = match (number_of, rows) {
        (0, _) => KernelVersion::V0,
        (1, _) => KernelVersion::V1,
        (2, _) => KernelVersion::V2,
        (3, _) => KernelVersion::V3,
        (4, _) => KernelVersion::V4,
        (5, 1) => KernelVersion::V5R1,
        (5, 2) => KernelVersion::V5R2,
        (6, _) => KernelVersion::V6,
        _ => return None,
    };
    Some(KernelEntry {
        name,
        version,
        unit: AccessWidth::ALL
            .into_iter()
            .find(|u| u.bytes() == u64::from(unit))?,
        rows: if number_of == 5 { rows } else { 1 },
        threads,
        capability,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_lists_is_a_distinct_kernel() {
        let lines = LISTS.iter().flat_map(|list| list.lines());
        let lines = lines.filter(|line| line.starts_with("KERNEL"));
        assert_eq!(kernels().len(), lines.count());
        for (at, entry) in kernels().iter().enumerate() {
            let same = |other: &KernelEntry| {
                other.name == entry.name
                    || (other.version, other.unit) == (entry.version, entry.unit)
            };
            assert!(!kernels()[..at].iter().any(same), "{entry:?}");
            assert!(entry.threads % 32 == 0 && entry.threads > 0);
        }
    }

    #[test]
    fn the_versions_of_a_product_build_have_a_kernel_for_every_unit() {
        for version in [KernelVersion::V5R1, KernelVersion::V5R2] {
            assert_eq!(units_of(version), AccessWidth::ALL);
        }
        if !cfg!(feature = "study") {
            assert_eq!(kernels().len(), 2 * AccessWidth::ALL.len());
        }
    }

    #[cfg(feature = "study")]
    #[test]
    fn every_version_has_a_kernel_and_its_name_is_read_back() {
        for version in KernelVersion::ALL {
            assert!(!units_of(version).is_empty(), "{version}");
            assert_eq!(version.name().parse(), Ok(version));
        }
        assert_eq!(units_of(KernelVersion::V0), [AccessWidth::B1]);
        let error = "v9".parse::<KernelVersion>().unwrap_err().to_string();
        assert!(
            error.contains("\"v9\"") && error.contains("v5-r2"),
            "{error}"
        );
    }

    #[test]
    fn units_round_trip_and_are_found_by_divisibility() {
        for unit in AccessWidth::ALL {
            assert_eq!(unit.to_string().parse(), Ok(unit));
        }
        assert!("2".parse::<AccessWidth>().is_err());
        for (values, unit) in [
            (&[656, 0, 1 << 40][..], AccessWidth::B16),
            (&[656, 584], AccessWidth::B8),
            (&[16, 4], AccessWidth::B4),
            (&[16, 2], AccessWidth::B1),
            (&[], AccessWidth::B16),
        ] {
            assert_eq!(
                AccessWidth::largest_of(values.iter().copied()),
                unit,
                "{values:?}"
            );
        }
    }
}
