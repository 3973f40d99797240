//! Pages with a valid checksum that point to the wrong pages, files that were cut, and pages that
//! were changed: a search names the file and the place, whether it overlaps with others or not.

use std::sync::Arc;

use forerun_core::block_on_with;

use super::*;
use crate::cache::driver::Reads;
use crate::cache::{PageCache, pin};
use crate::io::fault::FaultIo;
use crate::io::{Io, OpenMode, ReadBackend};
use crate::run::interleaved_seek::InterleavedSeek;
use crate::run::stored::{PageLocation, TRAILER_BYTES, checksum};
use crate::testing::runs::{cache, key, orders, run};
use crate::testing::version_list::{Held, held};
use crate::versions::{SEQUENCE_MAX, SeekSide, SeekTarget};

/// Even: its pages are not compressed.
const NUMBER: u64 = 2;

fn versions() -> Vec<Held> {
    let version = |n: usize| held(&key(n), n as u64 + 1, Some(b"value"));
    (0..4_000).map(version).collect()
}

/// A file with a run, and where its last internal page below the root, and the first leaf below
/// that, are stored.
struct File {
    io: FaultIo,
    order: KeyOrder,
    salt: u64,
    leaf_pages: u32,
    internal: (u32, PageLocation),
    leaf: PageLocation,
    /// The first internal page.
    other: PageLocation,
    /// A key that is in that leaf.
    key: Vec<u8>,
}

impl File {
    fn new() -> File {
        let (io, order) = (FaultIo::new(), orders()[0].clone());
        let run = run(&io, "/".as_ref(), NUMBER, &order, &cache(100), &versions());
        let root = run.root();
        let last = root.rows() - 1;
        let mut cursor = RunCursor::new(&run);
        let is_below = |cursor: &RunCursor<'_>| {
            cursor.path.len() == 2 && (cursor.path[0].row, cursor.path[1].row) == (last, 0)
        };
        let mut number = 0;
        while !is_below(&cursor) {
            number += 1;
            cursor.seek(&key(number), SEQUENCE_MAX).unwrap();
        }
        File {
            salt: run.salt(),
            leaf_pages: run.meta().leaf_pages,
            internal: root.child(last),
            leaf: cursor.above(1).child(0).1,
            other: root.child(0).1,
            // Not the leaf's first key, which a search for it may reach from the leaf before.
            key: key(number + 1),
            order,
            io,
        }
    }

    fn path(&self) -> std::path::PathBuf {
        crate::run::path("/".as_ref(), NUMBER)
    }

    /// Changes a page's bytes, and its checksum with them.
    fn rewrite(&self, location: PageLocation, change: impl FnOnce(&mut [u8])) {
        let mut file = self.io.read(self.path()).unwrap();
        let start = location.offset as usize;
        let stored = &mut file[start..][..location.stored_len as usize];
        let len = stored.len();
        change(&mut stored[..len - TRAILER_BYTES]);
        let sum = checksum(self.salt, location.offset, &stored[..len - 8]);
        stored[len - 8..].copy_from_slice(&sum.to_le_bytes());
        self.io.write(self.path(), &file);
    }

    fn open(&self, cache: &Arc<PageCache>) -> Run {
        Run::open(&self.io, &self.path(), NUMBER, self.order.clone(), cache).unwrap()
    }

    /// Checks that every search for the key fails with this reason at this offset, and that the
    /// next one for another key does not.
    fn assert_reported(&self, run: &Run, reason: &str, offset: u64) {
        for side in [SeekSide::AtOrAfter, SeekSide::Before] {
            for is_interleaved in [true, false] {
                let mut cursor = RunCursor::new(run);
                for _ in 0..2 {
                    let to = |key| SeekTarget {
                        key,
                        sequence: SEQUENCE_MAX,
                        side,
                    };
                    let error = search(&mut cursor, to(&self.key), is_interleaved).unwrap_err();
                    let text = error.to_string();
                    assert!(text.contains(reason), "{text} instead of {reason}");
                    let Error::CorruptFile {
                        path, offset: at, ..
                    } = error
                    else {
                        panic!("another error: {text}");
                    };
                    assert_eq!((path, at), (self.path(), offset), "{text}");
                    assert_eq!(cursor.at(), None);
                    // Below another internal page than the first and the last.
                    let other = key(2_000);
                    search(&mut cursor, to(&other), is_interleaved).unwrap();
                    let expected = match side {
                        SeekSide::AtOrAfter => other,
                        SeekSide::Before => key(1_999),
                    };
                    assert_eq!(cursor.at().unwrap().key, expected);
                }
            }
        }
    }
}

fn search(cursor: &mut RunCursor<'_>, to: SeekTarget<'_>, is_interleaved: bool) -> Result<()> {
    if cursor.seek_by_bounds(to) {
        return cursor.read();
    }
    if !is_interleaved {
        return cursor.search(to);
    }
    let pin = pin();
    let reads = Reads::new(cursor.run.slots().cache(), &pin, ReadBackend::Sync);
    block_on_with(&reads, cursor.search_interleaved(&reads, to))
}

#[test]
fn a_page_that_points_to_a_page_of_another_kind_is_reported() {
    let cache = &cache(100);

    let file = File::new();
    let (number, location) = file.internal;
    file.rewrite(location, |page| {
        page[8..12].copy_from_slice(&number.to_le_bytes());
    });
    file.assert_reported(&file.open(cache), NOT_BELOW, file.leaf.offset);

    let file = File::new();
    file.rewrite(location, |page| {
        page[8..12].copy_from_slice(&file.leaf_pages.to_le_bytes());
    });
    file.assert_reported(&file.open(cache), LEAF_ABOVE, file.leaf.offset);

    let file = File::new();
    let other = file.other;
    file.rewrite(location, |page| {
        let record = u32::from_le_bytes(page[12..16].try_into().unwrap()) as usize;
        page[record + 8..][..8].copy_from_slice(&other.offset.to_le_bytes());
        page[record + 16..][..4].copy_from_slice(&other.stored_len.to_le_bytes());
        page[record + 20..][..4].copy_from_slice(&other.raw_len.to_le_bytes());
    });
    file.assert_reported(&file.open(cache), "instead of a leaf", other.offset);
}

#[test]
fn a_page_that_was_changed_or_cut_off_is_reported() {
    let cache = &cache(100);
    let file = File::new();
    let run = file.open(cache);
    file.io
        .overwrite(file.path(), file.leaf.offset as usize + 100, b"damage");
    file.assert_reported(&run, "checksum", file.leaf.offset);

    let file = File::new();
    let run = file.open(cache);
    file.io.overwrite(
        file.path(),
        file.internal.1.offset as usize + 100,
        b"damage",
    );
    file.assert_reported(&run, "checksum", file.internal.1.offset);

    let file = File::new();
    let run = file.open(cache);
    let writable = file.io.open(&file.path(), OpenMode::ReadWrite).unwrap();
    writable.set_len(file.internal.1.offset + 10).unwrap();
    file.assert_reported(&run, "ends", file.internal.1.offset);
}
