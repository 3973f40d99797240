//! Scrubs find damage wherever it is, and leave nothing out.

use std::io::ErrorKind;

use proptest::prelude::*;

use super::*;
use crate::io::fault::{EIO, Fault, FaultIo};
use crate::run::path;
use crate::testing::runs::{cache, key, orders, run};
use crate::testing::version_list::{Held, held};
use crate::tree::levels::record;

const DIR: &str = "/";

/// What a scrub has told.
#[derive(Default)]
struct Told {
    paid_bytes: u64,
    damage: Vec<(Option<u32>, Error)>,
    /// It is to end once it would read more than this.
    stop_at: Option<u64>,
}

impl Scrubber for Told {
    fn pay(&mut self, bytes: u64) -> Result<()> {
        self.paid_bytes += bytes;
        match self.stop_at {
            Some(stop_at) if self.paid_bytes > stop_at => Err(Error::Closed),
            _ => Ok(()),
        }
    }

    fn note_damage(&mut self, page_no: Option<u32>, error: Error) {
        self.damage.push((page_no, error));
    }
}

/// A run of this number, which decides how it is stored, and a cache that it is not in.
fn written(io: &FaultIo, number: u64, order: &KeyOrder, keys: usize) -> (RunRecord, u32) {
    let value = |n: usize| vec![n as u8; n % 50];
    let of_key = |n: usize| held(&key(n), n as u64 + 1, Some(&value(n)));
    let versions: Vec<Held> = (0..keys).map(of_key).collect();
    let run = run(io, Path::new(DIR), number, order, &cache(100), &versions);
    (record(&run), run.meta().pages())
}

fn scrub(io: &dyn Io, named: &RunRecord, order: &KeyOrder) -> Told {
    let mut told = Told::default();
    scrub_into(io, named, order, &mut told).unwrap();
    told
}

fn scrub_into(io: &dyn Io, named: &RunRecord, order: &KeyOrder, told: &mut Told) -> Result<()> {
    scrub_run(io, Path::new(DIR), named, order, &cache(100), told)
}

#[test]
fn a_scrub_reads_every_byte_of_every_kind_of_run() {
    for order in orders() {
        for (number, keys) in [(1, 3), (1, 3_000), (2, 3_000), (3, 3_000), (4, 3_000)] {
            let io = FaultIo::new();
            let (named, pages) = written(&io, number, &order, keys);
            assert_eq!(pages > 50, keys > 3);
            let told = scrub(&io, &named, &order);
            assert_eq!((told.paid_bytes, told.damage.len()), (named.bytes, 0));
        }
    }
}

#[test]
fn a_damaged_byte_is_found_wherever_it_is() {
    let order = &orders()[0];
    for number in 1..5 {
        let io = FaultIo::new();
        let (named, _) = written(&io, number, order, 700);
        let file = path(Path::new(DIR), number);
        let bytes = io.read(&file).unwrap();
        let config = ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(crate::testing::cases(100, 3_000))
        };
        proptest!(config, |(at in 0..bytes.len(), flipped in 1..=255_u8)| {
            io.overwrite(&file, at, &[bytes[at] ^ flipped]);
            let told = scrub(&io, &named, order);
            io.overwrite(&file, at, &[bytes[at]]);
            prop_assert!(!told.damage.is_empty(), "byte {at} of {}", bytes.len());
        });
    }
}

#[test]
fn damage_does_not_hide_other_damage() {
    let (io, order) = (FaultIo::new(), &orders()[0]);
    let (named, pages) = written(&io, 1, order, 3_000);
    let file = path(Path::new(DIR), 1);
    // Leaves at a third, and at two thirds, of the file; the index comes last.
    for at in [named.bytes / 6, named.bytes / 3] {
        io.overwrite(&file, at as usize, &[0xaa; 8]);
    }
    let told = scrub(&io, &named, order);
    let numbers: Vec<_> = told.damage.iter().filter_map(|(page, _)| *page).collect();
    assert_eq!(numbers.len(), 2, "{:?}", told.damage);
    assert!(numbers[0] < numbers[1] && numbers[1] < pages);
    for (_, error) in &told.damage {
        assert!(matches!(error, Error::CorruptFile { .. }), "{error}");
    }
    io.remove(&file).unwrap();
    let told = scrub(&io, &named, order);
    assert!(matches!(
        &told.damage[..],
        [(None, Error::CorruptFile { .. })]
    ));
}

#[test]
fn a_page_that_cannot_be_read_is_damage_and_a_file_that_cannot_be_opened_is_not() {
    let (io, order) = (FaultIo::new(), &orders()[0]);
    let (named, _) = written(&io, 2, order, 700);
    let begun = io.calls();
    scrub(&io, &named, order);
    let calls = io.calls() - begun;
    let (mut damaged, mut failed, mut retried) = (0, 0, 0);
    for call in 0..calls {
        io.fail_call(io.calls() + call, Fault::Fail(EIO));
        let mut told = Told::default();
        match scrub_into(&io, &named, order, &mut told) {
            Ok(()) if told.damage.is_empty() => retried += 1,
            Ok(()) => {
                assert_eq!(told.damage.len(), 1, "call {call}");
                damaged += 1;
            }
            Err(error) => {
                assert!(matches!(error, Error::Io { op: "open", .. }), "{error}");
                failed += 1;
            }
        }
    }
    assert!(damaged > 10, "{damaged}");
    // What fails once may be opened, or read for the first time, another time.
    assert_eq!((failed, retried), (1, 1));
}

#[test]
fn a_scrub_ends_where_it_is_told_to() {
    let (io, order) = (FaultIo::new(), &orders()[0]);
    let (named, _) = written(&io, 1, order, 3_000);
    let mut told = Told {
        stop_at: Some(named.bytes / 2),
        ..Told::default()
    };
    let scrubbed = scrub_into(&io, &named, order, &mut told);
    assert!(matches!(scrubbed, Err(Error::Closed)));
    assert!(told.paid_bytes < named.bytes);
}

/// A file system without direct reads, whose files can only be read once.
#[derive(Debug)]
struct OnlyOnce {
    io: FaultIo,
    /// Whether it opens files for direct reads all the same.
    opens: bool,
}

#[derive(Debug)]
struct OnlyOnceFile(Box<dyn IoFile>);

impl Io for OnlyOnce {
    crate::forward_io!(this => this.io; list, create_dir, rename, remove, sync_dir, boot_id);

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        match mode {
            OpenMode::ReadDirect if !self.opens => Err(ErrorKind::Unsupported.into()),
            _ => Ok(Box::new(OnlyOnceFile(self.io.open(path, mode)?))),
        }
    }
}

impl IoFile for OnlyOnceFile {
    crate::forward_io!(this => this.0; write_at, len, set_len, sync, try_lock);

    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Err(ErrorKind::InvalidInput.into())
    }

    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
}

#[test]
fn without_direct_reads_a_scrub_leaves_nothing_in_memory() {
    let (io, order) = (FaultIo::new(), &orders()[0]);
    let (named, _) = written(&io, 3, order, 3_000);
    for opens in [false, true] {
        let io = io.clone();
        let told = scrub(&OnlyOnce { io, opens }, &named, order);
        assert_eq!((told.paid_bytes, told.damage.len()), (named.bytes, 0));
    }
}
