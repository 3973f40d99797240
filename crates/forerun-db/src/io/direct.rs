//! Reads of files that are open for direct reads, by plain calls.
//!
//! ```text
//!   file ── whole blocks ──> this thread's buffer ── the wanted part ──> the caller's buffer
//! ```
//!
//! The caller's buffer is seldom where a device could write to: a page begins anywhere in its file,
//! and a frame of the cache at any line.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::reads::extent::Extent;

/// The most bytes of a read, which are those of a large read-ahead.
const READ_BYTES_MAX: usize = 256 << 10;

/// The most bytes that a thread keeps.
const KEPT_BYTES_MAX: usize = 64 << 10;

thread_local! {
    /// This thread's buffer between reads, of at most [`KEPT_BYTES_MAX`].
    static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Whether this is how a file system refuses direct reads: some open a file for them, and fail the
/// first one.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput
    )
}

/// Reads like [`FileExt::read_at`], but fewer bytes of a long buffer.
pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    if buffer.is_empty() {
        return Ok(0);
    }
    // A thread that is exiting may have no thread-local values any more.
    let mut blocks = KEPT.try_with(Cell::take).unwrap_or_default();
    let len = buffer.len().min(READ_BYTES_MAX);
    let extent = Extent::blocks(offset, len, &mut blocks);
    let (start, rest) = extent.rest(&mut blocks);
    let read = file.read_at(rest, start).map(|got| extent.wanted_of(got));
    if let Ok(got) = read {
        buffer[..got].copy_from_slice(&blocks[extent.wanted()][..got]);
    }
    blocks.truncate(KEPT_BYTES_MAX);
    blocks.shrink_to(KEPT_BYTES_MAX);
    let _ = KEPT.try_with(|kept| kept.set(blocks));
    read
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::ErrorKind;
    use std::path::Path;

    use proptest::prelude::*;

    use crate::io::reads::{BatchedReads, Read, ReadBackend, read_exact_at};
    use crate::io::{Io, IoFile, OpenMode, OsIo};
    use forerun_core::Wait;

    const LEN: usize = 41_003;

    fn contents() -> Vec<u8> {
        let byte = |at: usize| (at.wrapping_mul(0x9e37_79b9) >> 20) as u8;
        (0..LEN).map(byte).collect()
    }

    /// A file with these contents, open for direct reads; `None` where there are none.
    fn file(dir: &Path) -> Option<Box<dyn IoFile>> {
        let path = dir.join("f");
        std::fs::write(&path, contents()).unwrap();
        match OsIo.open(&path, OpenMode::ReadDirect) {
            Ok(file) => Some(file),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                eprintln!("no direct reads here: {error}");
                None
            }
        }
    }

    /// Reads ranges with a backend, and compares each with the contents.
    fn check(file: &dyn IoFile, backend: ReadBackend, ranges: &[(usize, usize)]) {
        let contents = contents();
        let mut reads = BatchedReads::new(backend);
        for (token, (offset, len)) in ranges.iter().enumerate() {
            reads.push(Read {
                file,
                offset: *offset as u64,
                buffer: vec![0xee; *len],
                token: token as u32,
            });
        }
        let mut done = Vec::new();
        while done.len() < ranges.len() {
            reads.turn(Wait::ForOne, &mut done);
        }
        for done in done {
            let (offset, len) = ranges[done.token as usize];
            match contents.get(offset..offset + len) {
                Some(wanted) => {
                    done.result.as_ref().unwrap();
                    assert!(done.bytes() == wanted, "{offset}+{len} with {backend:?}");
                }
                None if len == 0 => {}
                None => assert_eq!(done.result.unwrap_err().kind(), ErrorKind::UnexpectedEof),
            }
        }
    }

    #[test]
    fn direct_reads_return_what_ordinary_ones_do_up_to_the_last_partial_block() {
        let dir = tempfile::tempdir().unwrap();
        let Some(file) = file(dir.path()) else {
            return;
        };
        assert!(file.is_direct() && file.read_cached_at(&mut [0], 0).is_err());
        assert_eq!(file.len().unwrap(), LEN as u64);
        let last = LEN / 4096 * 4096;
        let mut ranges = vec![
            (0, LEN),
            (0, LEN + 1),
            (last, LEN - last),
            (last - 1, LEN - last + 2),
            (LEN - 1, 1),
            (LEN - 1, 2),
            (LEN, 1),
            (10 * LEN, 100),
        ];
        for offset in [0, 1, 511, 512, 4095, 4096, 4097, 8191] {
            ranges.extend([1, 512, 4095, 4096, 4097, 16_393].map(|len| (offset, len)));
        }
        for backend in ReadBackend::ALL {
            check(&*file, backend, &ranges);
            for range in &ranges {
                check(&*file, backend, &[*range]);
            }
        }
        let mut whole = vec![0; LEN];
        read_exact_at(&*file, &mut whole, 0).unwrap();
        assert!(whole == contents());
        assert_eq!(file.read_at(&mut [], 5).unwrap(), 0);
        assert_eq!(file.read_at(&mut [0; 10], LEN as u64 - 3).unwrap(), 3);
    }

    #[test]
    fn any_ranges_are_read_directly_with_every_backend() {
        let dir = tempfile::tempdir().unwrap();
        let Some(file) = file(dir.path()) else {
            return;
        };
        let range = (0..LEN + 100, 0..20_000_usize);
        let ranges = prop::collection::vec(range, 1..30);
        let config = ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(crate::testing::cases(30, 500))
        };
        proptest!(config, |(wanted in ranges)| {
            for backend in ReadBackend::ALL {
                check(&*file, backend, &wanted);
            }
        });
    }

    #[test]
    fn a_file_system_without_direct_reads_refuses_them() {
        let opened = OsIo.open("/proc/self/status".as_ref(), OpenMode::ReadDirect);
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
