//! The versions of the row copy, and their kernels.

use forerun_core::sync::OnceLock;

/// How many versions only measurements choose.
const STUDY: usize = if cfg!(feature = "study") { 6 } else { 0 };

/// A version of the row copy on the GPU. V0 to V4 are the steps of a published study, whose
/// measurements can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelVersion {
    /// A thread copies a row, byte by byte.
    #[cfg(feature = "study")]
    V0,
    /// A thread copies a row, a unit of up to 16 bytes at a time.
    #[cfg(feature = "study")]
    V1,
    /// A warp copies a row: load, store, load, store.
    #[cfg(feature = "study")]
    V2,
    /// A warp copies a row: all loads, then all stores.
    #[cfg(feature = "study")]
    V3,
    /// As V3, by warps that stride over the rows, so that the grid can be limited.
    #[cfg(feature = "study")]
    V4,
    /// Warps stride over the rows and copy one at a time: all loads, then all stores. Each request
    /// across the link begins on a line of 128 bytes, or of 32 for units of one byte.
    V5R1,
    /// As V5R1, two rows at a time.
    V5R2,
    /// The bulk copy unit copies runs of neighbouring rows through shared memory. Needs compute
    /// capability 9.0.
    #[cfg(feature = "study")]
    V6,
}

impl KernelVersion {
    /// All versions, the oldest first.
    pub const ALL: [KernelVersion; 2 + STUDY] = [
        #[cfg(feature = "study")]
        KernelVersion::V0,
        #[cfg(feature = "study")]
        KernelVersion::V1,
        #[cfg(feature = "study")]
        KernelVersion::V2,
        #[cfg(feature = "study")]
        KernelVersion::V3,
        #[cfg(feature = "study")]
        KernelVersion::V4,
        KernelVersion::V5R1,
        KernelVersion::V5R2,
        #[cfg(feature = "study")]
        KernelVersion::V6,
    ];

    /// The name, as [`FromStr`](std::str::FromStr) reads it.
    pub fn name(&self) -> &'static str {
        match self {
            #[cfg(feature = "study")]
            KernelVersion::V0 => "v0",
            #[cfg(feature = "study")]
            KernelVersion::V1 => "v1",
            #[cfg(feature = "study")]
            KernelVersion::V2 => "v2",
            #[cfg(feature = "study")]
            KernelVersion::V3 => "v3",
            #[cfg(feature = "study")]
            KernelVersion::V4 => "v4",
            KernelVersion::V5R1 => "v5-r1",
            KernelVersion::V5R2 => "v5-r2",
            #[cfg(feature = "study")]
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
        match self {
            #[cfg(feature = "study")]
            KernelVersion::V0 | KernelVersion::V1 => 1,
            _ => 32,
        }
    }

    /// Whether rows go through the bulk copy unit.
    pub(crate) fn is_bulk(&self) -> bool {
        match self {
            #[cfg(feature = "study")]
            KernelVersion::V6 => true,
            _ => false,
        }
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
    let version = match number_of {
        5 => format!("v5-r{rows}"),
        _ => format!("v{number_of}"),
    };
    Some(KernelEntry {
        name,
        version: version.parse().ok()?,
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
            assert_eq!(KernelVersion::ALL.len(), 2);
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
