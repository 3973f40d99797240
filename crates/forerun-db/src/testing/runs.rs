//! Runs for tests, among them some with deep trees of pages.

use std::path::Path;
use std::sync::Arc;

use forerun_core::Pages;

use crate::cache::{CacheOptions, PageCache};
use crate::comparator::KeyOrder;
use crate::io::Io;
use crate::io::fault::FaultIo;
use crate::run::{Compression, Run, RunOptions, RunWriter, SearchKey, ZstdOptions, path};
use crate::testing::small_cache::small_cache;
use crate::testing::version_list::{Held, Sorted};
use crate::tree::build::{Build, RunNumbers, write_runs};
use crate::tree::limiter::{IoClass, RateLimiter};
use crate::tree::retain::Retain;
use crate::{Bytewise, ReverseBytewise};

pub(crate) const PAGE_BYTES: usize = RunOptions::PAGE_BYTES_MIN;

/// A cache with space for this many pages.
pub(crate) fn cache(frames: usize) -> Arc<PageCache> {
    let options = CacheOptions {
        capacity_bytes: frames * (PAGE_BYTES + 64),
        page_bytes: PAGE_BYTES,
        pages: Pages::Small,
    };
    PageCache::new(options).unwrap()
}

pub(crate) fn orders() -> [KeyOrder; 2] {
    [
        KeyOrder::new(Arc::new(Bytewise)),
        KeyOrder::new(Arc::new(ReverseBytewise)),
    ]
}

/// A key with long separators around it, so that a few thousand keys make a tree of three levels.
pub(crate) fn key(number: usize) -> Vec<u8> {
    let mut key = format!("{:04}", number / 5).repeat(30).into_bytes();
    key.extend_from_slice(format!("{}", number % 5).as_bytes());
    key
}

/// Sorts versions, writes them as a run, and opens it.
pub(crate) fn run(
    io: &dyn Io,
    dir: &Path,
    number: u64,
    order: &KeyOrder,
    cache: &Arc<PageCache>,
    versions: &[Held],
) -> Arc<Run> {
    let mut versions: Vec<_> = versions.iter().map(Held::version).collect();
    versions.sort_by(|a, b| a.compare(order, b));
    let path = path(dir, number);
    let options = RunOptions {
        page_bytes: PAGE_BYTES,
        compression: match number % 4 {
            0 | 2 => Compression::None,
            1 => Compression::Lz4,
            _ => Compression::Zstd(ZstdOptions::default().max_dict_bytes(1 << 10)),
        },
        filter_bits_per_key: if number.is_multiple_of(3) { 0 } else { 10 },
        index: !number.is_multiple_of(4),
    };
    let name = match order {
        KeyOrder::Bytewise => "forerun.bytewise",
        KeyOrder::Custom(comparator) => comparator.name(),
    };
    let mut writer = RunWriter::create(io, &path, order, name, options).unwrap();
    for version in versions {
        writer.add(version).unwrap();
    }
    writer.finish().unwrap();
    Arc::new(Run::open(io, &path, number, order.clone(), cache).unwrap())
}

/// All versions, sorted.
pub(crate) fn sorted(order: &KeyOrder, versions: &[Held]) -> Vec<Held> {
    let mut sorted = versions.to_vec();
    sorted.sort_by(|a, b| a.version().compare(order, &b.version()));
    sorted
}

/// The expected answer to a lookup, found by looking at every version.
pub(crate) fn answer(
    order: &KeyOrder,
    versions: &[Held],
    key: &SearchKey<'_>,
) -> Option<Option<Vec<u8>>> {
    let visible = versions.iter().filter(|version| {
        order.compare(&version.key, key.key).is_eq() && version.sequence <= key.sequence
    });
    visible
        .max_by_key(|version| version.sequence)
        .map(|version| version.value.clone())
}

/// A run of these versions, without compression and with the name of the order.
pub(crate) fn run_of(io: &FaultIo, order: &KeyOrder, number: u64, versions: Vec<Held>) -> Arc<Run> {
    let comparator = format!("{order:?}");
    let build = Build {
        io,
        dir: Path::new("/"),
        order,
        comparator: &comparator,
        keyspace: (0, ""),
        cache: &small_cache(),
        options: RunOptions::default(),
        run_bytes: u64::MAX,
        numbers: &RunNumbers::new(number),
        limiter: &RateLimiter::new(None),
        class: IoClass::Compaction,
        stop: &Arc::default(),
    };
    let mut versions = Sorted::new(order.clone(), versions);
    // Each version is the only one of its key.
    let mut retain = Retain::new(order.clone(), Vec::new());
    let mut runs = write_runs(&mut versions, &mut retain, |_| true, &build).unwrap();
    assert_eq!(runs.len(), 1);
    runs.remove(0)
}
