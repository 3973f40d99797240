//! What the system is told to write out before a sync.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use forerun_core::Pages;
use forerun_db::io::fault::{EIO, FaultIo};
use forerun_db::io::{Io, IoFile, OpenMode};
use forerun_db::{Background, Compression, Db, Durability, Options, RunOptions, forward_io};

use crate::testing::STORE;

const PIECE_BYTES: u64 = 1 << 20;

/// The ranges of each file, in the order of the calls.
type Ranges = BTreeMap<PathBuf, Vec<Range<u64>>>;

/// Remembers what was to be written out, and fails to do it if it should.
#[derive(Clone, Debug)]
struct RangesIo {
    inner: FaultIo,
    is_failing: bool,
    ranges: Arc<Mutex<Ranges>>,
}

#[derive(Debug)]
struct RangesFile {
    file: Box<dyn IoFile>,
    path: PathBuf,
    io: RangesIo,
}

impl Io for RangesIo {
    forward_io!(this => this.inner; list, create_dir, rename, remove, link, sync_dir, boot_id);

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        Ok(Box::new(RangesFile {
            file: self.inner.open(path, mode)?,
            path: path.to_owned(),
            io: self.clone(),
        }))
    }
}

impl IoFile for RangesFile {
    forward_io!(this => this.file; read_at, write_at, len, set_len, sync, try_lock);

    fn start_write_out(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut ranges = self.io.ranges.lock().unwrap();
        let of_file = ranges.entry(self.path.clone()).or_default();
        of_file.push(offset..offset + len);
        if self.io.is_failing {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.file.start_write_out(offset, len)
    }
}

impl RangesIo {
    fn new(is_failing: bool) -> RangesIo {
        RangesIo {
            inner: FaultIo::new(),
            is_failing,
            ranges: Arc::default(),
        }
    }

    fn open_store(&self, background: Background) -> Db {
        let options = Options::default()
            .memory_limit_bytes(64 << 20)
            .memtable_bytes(16 << 20)
            .cache_bytes(1 << 20)
            .pages(Pages::Small)
            .background(background)
            .run(RunOptions::default().compression(Compression::None));
        Db::open_with_io(Arc::new(self.clone()), STORE, options).unwrap()
    }

    /// The ranges of the files with this extension.
    fn ranges(&self, extension: &str) -> Vec<(PathBuf, Vec<Range<u64>>)> {
        let ranges = self.ranges.lock().unwrap();
        let of = ranges.iter().map(|(path, of)| (path.clone(), of.clone()));
        of.filter(|(path, _)| path.extension() == Some(extension.as_ref()))
            .collect()
    }

    /// Waits until the thread of the log has written out all whole pieces of its only segment.
    fn wait_for_log(&self, len: u64) {
        for _ in 0..60_000 {
            if let [(_, ranges)] = &self.ranges("log")[..]
                && ranges.last().map(|last| last.end) == Some(len - len % PIECE_BYTES)
            {
                return check(ranges);
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("{:?} of {len}", self.ranges("log"));
    }
}

/// The ranges are whole pieces that follow each other.
fn check(ranges: &[Range<u64>]) {
    assert_eq!(ranges[0].start, 0);
    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
    assert!(ranges.iter().all(|of| of.end % PIECE_BYTES == 0));
}

/// Writes 50 values of 100,000 bytes.
fn write(db: &Db) {
    for key in 0..50_u32 {
        db.put(key.to_be_bytes(), vec![7; 100_000]).unwrap();
    }
}

#[test]
fn the_log_and_runs_are_written_out_piece_by_piece_before_their_syncs() {
    for is_failing in [false, true] {
        let io = RangesIo::new(is_failing);
        let db = io.open_store(Background::Threads);
        write(&db);
        io.wait_for_log(5_000_000);
        assert!(io.ranges("run").is_empty());
        db.flush().unwrap();
        let of_runs = io.ranges("run");
        let [(path, ranges)] = &of_runs[..] else {
            panic!("{of_runs:?}");
        };
        check(ranges);
        assert!(ranges.len() >= 4, "{ranges:?}");
        let len = io.inner.read(path).unwrap().len() as u64;
        assert_eq!(ranges.last().unwrap().end, len - len % PIECE_BYTES);
        // It was only a hint: what was promised is there after a loss of power all the same.
        let after = io.inner.crash(0);
        drop(db);
        let db = Db::open_with_io(Arc::new(after), STORE, Options::default()).unwrap();
        assert_eq!(db.iter().count(), 50);
    }
}

#[test]
fn synced_writes_leave_nothing_to_write_out_of_the_log() {
    let io = RangesIo::new(false);
    let db = io.open_store(Background::Threads);
    for key in 0..50_u32 {
        let value = vec![7; 100_000];
        db.put_with(key.to_be_bytes(), value, Durability::Synced)
            .unwrap();
    }
    db.close().unwrap();
    assert!(io.ranges("log").is_empty());
}

#[test]
fn without_a_thread_the_log_is_not_written_out() {
    let io = RangesIo::new(false);
    let db = io.open_store(Background::Caller);
    write(&db);
    db.close().unwrap();
    assert!(io.ranges("log").is_empty());
}
