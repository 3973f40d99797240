//! Chooses the kernel for an operation, and its number of blocks.

use super::backend::TableLaunch;
use super::batch::LookupMode;
use super::error::TableError;
use super::params::{LOOKUP_BY_LOAD, LOOKUP_NARROW, LOOKUP_WIDE};

/// Threads per block of the kernels that work by key, as in `kernels/table.list`. Each thread takes
/// one key at a time.
const KEY_THREADS: u32 = 128;
const WARP_LANES: u32 = 32;
/// Threads per block of the kernels that scan all slots.
const SCAN_THREADS: u32 = 256;

fn of_width(width: u32, names: [&'static str; 4]) -> &'static str {
    match width {
        16 => names[0],
        32 => names[1],
        64 => names[2],
        _ => names[3],
    }
}

/// A grid of blocks of `threads` threads for `items`. A block works on `a_block` items at a time.
fn launch(kernel: &'static str, threads: u32, items: u64, a_block: u64, max: u32) -> TableLaunch {
    TableLaunch {
        kernel,
        blocks: items.div_ceil(a_block).clamp(1, u64::from(max.max(1))) as u32,
        threads,
    }
}

fn by_key(kernel: &'static str, keys: u64, max: u32) -> TableLaunch {
    launch(kernel, KEY_THREADS, keys, KEY_THREADS.into(), max)
}

/// The kernel that writes by key.
pub(crate) fn write(width: u32, keys: u64, max: u32) -> TableLaunch {
    let names = [
        "table_write_w16",
        "table_write_w32",
        "table_write_w64",
        "table_write_w128",
    ];
    by_key(of_width(width, names), keys, max)
}

/// The kernel that finds rows or scores.
pub(crate) fn find_rows(width: u32, keys: u64, max: u32) -> TableLaunch {
    let names = [
        "table_find_rows_w16",
        "table_find_rows_w32",
        "table_find_rows_w64",
        "table_find_rows_w128",
    ];
    by_key(of_width(width, names), keys, max)
}

/// The kernel that finds pooled rows: one warp per bag.
pub(crate) fn find_pooled(width: u32, bags: u64, max: u32) -> TableLaunch {
    let names = [
        "table_find_pooled_w16",
        "table_find_pooled_w32",
        "table_find_pooled_w64",
        "table_find_pooled_w128",
    ];
    let kernel = of_width(width, names);
    launch(
        kernel,
        KEY_THREADS,
        bags,
        (KEY_THREADS / WARP_LANES).into(),
        max,
    )
}

/// The kernel that finds slots, and the number that selects how tiles search.
pub(crate) fn find_slots(
    lookup: LookupMode,
    width: u32,
    keys: u64,
    max: u32,
) -> Result<(TableLaunch, u32), TableError> {
    let by_key = |name| by_key(name, keys, max);
    let names = [
        "table_find_slots_w16",
        "table_find_slots_w32",
        "table_find_slots_w64",
        "table_find_slots_w128",
    ];
    let by_tiles = by_key(of_width(width, names));
    Ok(match lookup {
        LookupMode::ByLoad => (by_tiles, LOOKUP_BY_LOAD),
        LookupMode::Narrow => (by_tiles, LOOKUP_NARROW),
        LookupMode::Wide => (by_tiles, LOOKUP_WIDE),
        #[cfg(feature = "study")]
        LookupMode::Thread => (by_key("table_find_thread"), LOOKUP_BY_LOAD),
        #[cfg(feature = "study")]
        LookupMode::SeedRule => (by_key("table_find_seed_rule"), LOOKUP_BY_LOAD),
        #[cfg(feature = "study")]
        LookupMode::Pipeline if width == 128 => (by_key("table_find_pipeline"), LOOKUP_BY_LOAD),
        #[cfg(feature = "study")]
        LookupMode::Pipeline => return Err(TableError::Lookup { width }),
    })
}

/// The kernel that scans slots.
pub(crate) fn scan(slots: u64, max: u32) -> TableLaunch {
    launch("table_scan", SCAN_THREADS, slots, SCAN_THREADS.into(), max)
}

/// The kernel that clears the table.
pub(crate) fn clear(buckets: u64, max: u32) -> TableLaunch {
    launch(
        "table_clear",
        SCAN_THREADS,
        buckets,
        SCAN_THREADS.into(),
        max,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_the_list_is_launched_with_its_threads() {
        let mut launches = vec![scan(1, 9), clear(1, 9)];
        for width in [16, 32, 64, 128] {
            launches.extend([write(width, 5, 9), find_rows(width, 5, 9)]);
            launches.push(find_pooled(width, 5, 9));
            for lookup in LookupMode::ALL {
                launches.extend(find_slots(lookup, width, 5, 9).map(|(launch, _)| launch));
            }
        }
        let lists = [
            include_str!("../../kernels/table.list"),
            #[cfg(feature = "study")]
            include_str!("../../kernels/table_study.list"),
        ];
        let lines = lists.into_iter().flat_map(str::lines);
        let mut seen = 0;
        for line in lines.filter_map(|line| line.strip_prefix("KERNEL(")) {
            let mut fields = line.trim_end_matches(')').split(", ");
            let name = fields.next().unwrap();
            let threads: u32 = fields.nth(2).unwrap().parse().unwrap();
            let launched = launches.iter().find(|launch| launch.kernel == name);
            assert_eq!(launched.map(|l| l.threads), Some(threads), "{name}");
            seen += 1;
        }
        assert_eq!(seen, if cfg!(feature = "study") { 21 } else { 18 });
        #[cfg(feature = "study")]
        assert!(find_slots(LookupMode::Pipeline, 64, 5, 9).is_err());
    }

    #[test]
    fn grids_cover_the_keys_up_to_the_most_blocks() {
        assert_eq!(write(128, 0, 100).blocks, 1);
        assert_eq!(write(128, 128, 100).blocks, 1);
        assert_eq!(write(16, 129, 100).blocks, 2);
        assert_eq!(write(128, 1 << 40, 100).blocks, 100);
        assert_eq!(find_pooled(128, 4, 100).blocks, 1);
        assert_eq!(find_pooled(128, 5, 100).blocks, 2);
    }
}
