//! What the tests of lookups and cursors share: runs with deep trees of pages.

use std::path::Path;
use std::sync::Arc;

use forerun_core::Pages;

use super::{Compression, Run, RunOptions, RunWriter, SearchKey, path};
use crate::cache::{CacheOptions, PageCache};
use crate::comparator::KeyOrder;
use crate::io::Io;
use crate::versions::testing::Held;
use crate::{Bytewise, ReverseBytewise};

pub(crate) const PAGE_BYTES: usize = RunOptions::MIN_PAGE_BYTES;

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
        compression: match number % 2 {
            0 => Compression::None,
            _ => Compression::Lz4,
        },
        filter_bits_per_key: if number.is_multiple_of(3) { 0 } else { 10 },
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
