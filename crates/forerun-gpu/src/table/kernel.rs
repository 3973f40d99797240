//! Chooses the kernel for an operation, and its number of blocks.

use super::backend::{BLOCKS_EACH, TableLaunch};
use super::batch::LookupMode;
use super::error::TableError;
use super::params::{LOOKUP_BY_LOAD, LOOKUP_NARROW, LOOKUP_WIDE};

/// Threads per block of the kernels that work by key, as in `kernels/table.list`. Each thread takes
/// one key at a time.
const KEY_THREADS: u32 = 128;
const WARP_LANES: u32 = 32;
/// Threads per block of the kernels that scan all slots.
const SCAN_THREADS: u32 = 256;

/// A kernel for each width, with its maximum of registers per thread, as in `kernels/table.list`.
type ByWidth = [(&'static str, u32); 4];

const WRITE: ByWidth = [
    ("table_write_w16", 160),
    ("table_write_w32", 168),
    ("table_write_w64", 168),
    ("table_write_w128", 168),
];
const FIND_ROWS: ByWidth = [
    ("table_find_rows_w16", 96),
    ("table_find_rows_w32", 96),
    ("table_find_rows_w64", 96),
    ("table_find_rows_w128", 128),
];
const FIND_SLOTS: ByWidth = [
    ("table_find_slots_w16", 48),
    ("table_find_slots_w32", 64),
    ("table_find_slots_w64", 96),
    ("table_find_slots_w128", 128),
];

fn of_width<T: Copy>(width: u32, all: [T; 4]) -> T {
    match width {
        16 => all[0],
        32 => all[1],
        64 => all[2],
        _ => all[3],
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

/// Registers of a multiprocessor.
const REGISTERS: u32 = 1 << 16;

/// A grid of not more blocks than run at a time. Each takes keys until none are left, so a warp
/// requests its next keys before it has answered the ones before.
fn resident(kernels: ByWidth, width: u32, keys: u64, max: u32) -> TableLaunch {
    let (kernel, registers) = of_width(width, kernels);
    let each = REGISTERS / (registers * KEY_THREADS);
    by_key(kernel, keys, max.saturating_mul(each).div_ceil(BLOCKS_EACH))
}

/// The kernel that writes by key.
pub(crate) fn write(width: u32, keys: u64, max: u32) -> TableLaunch {
    resident(WRITE, width, keys, max)
}

/// The kernel that finds rows or scores.
pub(crate) fn find_rows(width: u32, keys: u64, max: u32) -> TableLaunch {
    resident(FIND_ROWS, width, keys, max)
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
    let by_tiles = resident(FIND_SLOTS, width, keys, max);
    Ok(match lookup {
        LookupMode::ByLoad => (by_tiles, LOOKUP_BY_LOAD),
        LookupMode::Narrow => (by_tiles, LOOKUP_NARROW),
        LookupMode::Wide => (by_tiles, LOOKUP_WIDE),
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
            let registers: u32 = fields.next().unwrap().parse().unwrap();
            let mut resident = [WRITE, FIND_ROWS, FIND_SLOTS].into_iter().flatten();
            if let Some((_, expected)) = resident.find(|(kernel, _)| *kernel == name) {
                assert_eq!(registers, expected, "{name}");
            }
            seen += 1;
        }
        assert_eq!(seen, if cfg!(feature = "study") { 21 } else { 19 });
        #[cfg(feature = "study")]
        assert!(find_slots(LookupMode::Pipeline, 64, 5, 9).is_err());
    }

    #[test]
    fn grids_cover_the_keys_up_to_the_blocks_that_run_at_a_time() {
        let max = 100 * BLOCKS_EACH;
        assert_eq!(write(128, 0, max).blocks, 1);
        assert_eq!(write(128, 128, max).blocks, 1);
        assert_eq!(write(16, 129, max).blocks, 2);
        // 128 threads of 168 registers, and of 128.
        assert_eq!(write(128, 1 << 40, max).blocks, 300);
        assert_eq!(find_rows(128, 1 << 40, max).blocks, 400);
        assert_eq!(write(128, 1 << 40, 1).blocks, 1);
        let by_thread = find_slots(LookupMode::Thread, 128, 1 << 40, max);
        assert_eq!(by_thread.unwrap().0.blocks, max);
        assert_eq!(find_pooled(128, 4, max).blocks, 1);
        assert_eq!(find_pooled(128, 5, max).blocks, 2);
    }
}
