//! Files are closed and reopened without the reader noticing.

use forerun_core::sync::atomic::AtomicUsize;

use super::*;
use crate::io::OsIo;
use crate::io::fault::FaultIo;
use crate::io::reads::{BatchedReads, Done, Read, ReadBackend};
use forerun_core::Wait;

/// A file system that counts its open files and allows a limited number.
#[derive(Clone, Debug)]
struct Counting {
    io: Arc<dyn Io>,
    open: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
    limit: usize,
    /// What its files say of their openings.
    openings: Arc<AtomicUsize>,
}

impl Counting {
    fn new(io: Arc<dyn Io>, limit: usize) -> Counting {
        Counting {
            io,
            open: Arc::default(),
            peak: Arc::default(),
            limit,
            openings: Arc::new(AtomicUsize::new(1)),
        }
    }

    fn peak(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }
}

#[derive(Debug)]
struct CountedFile {
    file: Box<dyn IoFile>,
    open: Arc<AtomicUsize>,
    openings: Arc<AtomicUsize>,
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Io for Counting {
    crate::forward_io!(this => this.io; list, create_dir, rename, remove, sync_dir, boot_id);

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn IoFile>> {
        if self.open.load(Ordering::SeqCst) >= self.limit {
            return Err(Errno::MFILE.into());
        }
        let file = self.io.open(path, mode)?;
        let now = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(now, Ordering::SeqCst);
        Ok(Box::new(CountedFile {
            file,
            open: Arc::clone(&self.open),
            openings: Arc::clone(&self.openings),
        }))
    }
}

impl IoFile for CountedFile {
    crate::forward_io!(
        this => this.file;
        read_at, read_cached_at, is_direct, write_at, len, set_len, sync, try_lock, shared
    );

    fn openings(&self) -> u64 {
        self.openings.load(Ordering::SeqCst) as u64
    }
}

fn byte(file: &dyn IoFile) -> io::Result<u8> {
    let mut byte = [0];
    file.read_at(&mut byte, 0)?;
    Ok(byte[0])
}

fn paths(dir: &Path, count: u8) -> Vec<PathBuf> {
    (0..count).map(|n| dir.join(format!("file-{n}"))).collect()
}

#[test]
fn any_number_of_files_is_read_with_a_few_open() {
    let model = FaultIo::new();
    let paths = paths("/".as_ref(), 50);
    for (n, path) in paths.iter().enumerate() {
        model.write(path, &[n as u8]);
    }
    let counting = Counting::new(Arc::new(model), usize::MAX);
    let files = OpenFiles::new(Arc::new(counting.clone()), 7);
    let open = |path: &PathBuf| files.open(path, OpenMode::ReadImmutable).unwrap();
    let mut held: Vec<_> = paths.iter().map(open).collect();
    for round in 0..3 {
        for (n, file) in held.iter().enumerate() {
            assert_eq!(byte(&**file).unwrap(), n as u8, "round {round}");
        }
    }
    assert_eq!(counting.peak(), 7);
    held.truncate(3);
    drop(held);
    assert_eq!(counting.open.load(Ordering::SeqCst), 0);
    assert_eq!(files.0.clock().entries.len(), 0);
}

#[test]
fn a_file_that_is_used_stays_open_and_one_that_is_not_is_closed() {
    let model = FaultIo::new();
    let paths = paths("/".as_ref(), 5);
    paths.iter().for_each(|path| model.write(path, b"x"));
    let files = OpenFiles::new(Arc::new(model.clone()), 3);
    let open = |path: &PathBuf| files.open(path, OpenMode::ReadImmutable).unwrap();
    let hot = open(&paths[0]);
    let cold = [open(&paths[1]), open(&paths[2])];
    // One round clears all marks.
    let _third = open(&paths[3]);
    byte(&*hot).unwrap();
    let _fourth = open(&paths[4]);
    let calls = model.calls();
    byte(&*hot).unwrap();
    assert_eq!(model.calls() - calls, 1, "a read and no opening");
    let calls = model.calls();
    for cold in &cold {
        byte(&**cold).unwrap();
    }
    assert!(model.calls() - calls > 2, "openings too");
}

#[test]
fn running_out_of_files_closes_one() {
    let model = FaultIo::new();
    let paths = paths("/".as_ref(), 10);
    paths.iter().for_each(|path| model.write(path, b"x"));
    let counting = Counting::new(Arc::new(model), 4);
    let files = OpenFiles::new(Arc::new(counting.clone()), 100);
    let open = |path: &PathBuf| files.open(path, OpenMode::ReadImmutable).unwrap();
    let held: Vec<_> = paths.iter().map(open).collect();
    held.iter()
        .for_each(|file| assert_eq!(byte(&**file).unwrap(), b'x'));
    // Files opened for writing get a descriptor too, as long as one is left.
    let written: Vec<_> = (0..4)
        .map(|n| {
            files
                .open(format!("/new-{n}").as_ref(), OpenMode::Create)
                .unwrap()
        })
        .collect();
    let refused = byte(&*held[0]).unwrap_err();
    assert!(is_out_of_files(&refused), "{refused}");
    drop(written);
    assert_eq!(byte(&*held[0]).unwrap(), b'x');
}

#[test]
fn running_reads_are_correct_while_files_are_closed_and_opened() {
    const FILES: u8 = 24;
    let dir = tempfile::tempdir().unwrap();
    let paths = paths(dir.path(), FILES);
    for (n, path) in paths.iter().enumerate() {
        std::fs::write(path, vec![n as u8; 8192]).unwrap();
    }
    let files = OpenFiles::new(Arc::new(OsIo), 3);
    let open = |path: &PathBuf| files.open(path, OpenMode::ReadImmutable).unwrap();
    let held: Vec<_> = paths.iter().map(open).collect();
    let held = &held;
    forerun_core::sync::thread::scope(|scope| {
        for (thread, backend) in ReadBackend::ALL.into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..30 {
                    let mut reads = BatchedReads::new(backend);
                    let wanted = (0..8).map(|n| (n * 5 + thread + round) % FILES as usize);
                    for at in wanted {
                        reads.push(Read {
                            file: &*held[at],
                            offset: 4096,
                            buffer: vec![0xff; 4096],
                            token: at as u32,
                        });
                    }
                    let mut done: Vec<Done> = Vec::new();
                    while done.len() < 8 {
                        reads.turn(Wait::ForOne, &mut done);
                    }
                    for done in done {
                        done.result.unwrap();
                        assert!(
                            done.buffer
                                .iter()
                                .all(|byte| u32::from(*byte) == done.token)
                        );
                    }
                }
            });
        }
    });
    assert!(files.0.clock().entries.len() <= 3 + 8 * ReadBackend::ALL.len());
}

#[test]
fn files_beyond_the_limit_are_closed_once_their_reads_end() {
    let model = FaultIo::new();
    let counting = Counting::new(Arc::new(model.clone()), usize::MAX);
    let files = OpenFiles::new(Arc::new(counting.clone()), 1);
    let [first, second] = ["/first", "/second"].map(|path| {
        model.write(path, b"bytes");
        ImmutableFile {
            files: Arc::clone(&files.0),
            entry: Arc::new(Entry {
                path: path.into(),
                file: Mutex::default(),
                is_used: AtomicBool::new(false),
                openings: AtomicU64::new(0),
                inner_openings: AtomicU64::new(0),
            }),
        }
    });
    let mut buffer = [0; 5];
    let being_read = [&first, &second].map(|file| file.open().unwrap());
    assert_eq!(counting.open.load(Ordering::SeqCst), 2);
    // The reads end, and the next one does not have to open anything.
    drop(being_read);
    second.read_at(&mut buffer, 0).unwrap();
    assert_eq!(counting.open.load(Ordering::SeqCst), 1);
    first.read_at(&mut buffer, 0).unwrap();
    assert_eq!(
        (&buffer, counting.open.load(Ordering::SeqCst)),
        (b"bytes", 1)
    );
}

#[test]
fn an_opening_by_the_file_system_counts_too() {
    let model = FaultIo::new();
    model.set_cached_percent(100);
    let paths = paths("/".as_ref(), 2);
    for path in &paths {
        model.write(path, b"bytes");
    }
    let counting = Counting::new(Arc::new(model), usize::MAX);
    let files = OpenFiles::new(Arc::new(counting.clone()), 1);
    let open = |path: &PathBuf| files.open(path, OpenMode::ReadImmutable).unwrap();
    let file = open(&paths[0]);
    let openings = || {
        file.read_cached_at(&mut [0], 0).unwrap();
        file.openings()
    };
    let first = openings();
    assert_eq!(openings(), first);
    let other = open(&paths[1]);
    other.read_at(&mut [0], 0).unwrap();
    assert_eq!(openings(), first + 1, "it was closed");
    counting.openings.store(2, Ordering::SeqCst);
    assert_eq!(openings(), first + 2);
    counting.openings.store(0, Ordering::SeqCst);
    assert_eq!(openings(), 0, "unknown");
    counting.openings.store(3, Ordering::SeqCst);
    assert!(openings() > first + 2);
}
