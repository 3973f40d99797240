//! Backups, checkpoints and ingestions keep to their rates and to the store's, report progress, end
//! when they are to, and leave alone what readers have in memory.

use crate::testing;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Backups, Create, Db, Error, FileCopyOptions, Options, Result, RunOptions, VerifyReport,
};
use rustix::fs::{Advice, fadvise};
use testing::{STORE, open, tiny_options};

const BACKUPS: &str = "/backups";
const COPY: &str = "/copy";

/// A store of about 100 KiB that does not compress, in files that have one name only.
fn store() -> (FaultIo, Db) {
    let io = FaultIo::new();
    io.set_links(false);
    let db = open(&io, &tiny_options()).unwrap();
    fill(&db, 100, 1000);
    db.flush().unwrap();
    (io, db)
}

fn fill(db: &Db, entries: u64, value_bytes: usize) {
    for number in 0..entries {
        db.put(number.to_be_bytes(), noise(number, value_bytes))
            .unwrap();
    }
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes as u64 / 8).map(|word| {
        let mut mixed = (seed << 32 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^= mixed >> 29;
        mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9)
    });
    words.flat_map(u64::to_le_bytes).collect()
}

fn backups(io: &FaultIo) -> Backups {
    Backups::open_with_io(Arc::new(io.clone()), BACKUPS, Create::IfMissing).unwrap()
}

/// The two ways to copy a store.
fn copy(db: &Db, io: &FaultIo, is_backup: bool, options: &FileCopyOptions) -> Result<()> {
    if !is_backup {
        return db.checkpoint_with(COPY, options);
    }
    let mut backups = backups(io);
    backups.set_copy_options(options.clone());
    backups.create(db).map(drop)
}

/// Bytes of files in the directories of copies, but for those that belong to no copy.
fn copied_files(io: &FaultIo) -> Vec<PathBuf> {
    let is_copied = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        (path.starts_with(BACKUPS) || path.starts_with(COPY)) && name != "BACKUPS" && name != "LOCK"
    };
    io.files().into_iter().filter(is_copied).collect()
}

#[test]
fn copies_keep_to_their_rate_and_to_that_of_the_store() {
    const RATE: u64 = 200_000;
    // 100 KB at 200 KB/s, less a burst of a tenth of a second and the last piece.
    let expected = Duration::from_millis(300);
    for is_backup in [true, false] {
        for is_of_store in [true, false] {
            let (io, db) = store();
            let mut options = FileCopyOptions::default();
            if is_of_store {
                db.set_write_rate(Some(RATE));
            } else {
                options = options.rate_bytes(RATE);
            }
            let begun = Instant::now();
            copy(&db, &io, is_backup, &options).unwrap();
            assert!(begun.elapsed() >= expected, "{:?}", begun.elapsed());
        }
    }
    let (io, db) = store();
    let mut backups = backups(&io);
    backups.create(&db).unwrap();
    backups.set_copy_options(FileCopyOptions::default().rate_bytes(RATE));
    let begun = Instant::now();
    backups.restore(None, COPY).unwrap();
    assert!(begun.elapsed() >= expected, "{:?}", begun.elapsed());
    backups.set_copy_options(FileCopyOptions::default());
    let begun = Instant::now();
    backups.verify().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn ingestions_keep_to_their_rate_and_to_that_of_the_store() {
    for is_of_store in [true, false] {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        let mut ingestion = db.ingest();
        if is_of_store {
            db.set_write_rate(Some(1 << 20));
        } else {
            ingestion.set_rate(Some(1 << 20));
        }
        let begun = Instant::now();
        for number in 0..512_u64 {
            ingestion
                .add(number.to_be_bytes(), noise(number, 1024))
                .unwrap();
        }
        let written_bytes = ingestion.written_bytes();
        assert!(
            (500_000..700_000).contains(&written_bytes),
            "{written_bytes}"
        );
        ingestion.commit().unwrap();
        // Half a second, less a burst and two pieces of 128 KiB.
        assert!(begun.elapsed() >= Duration::from_millis(200));
        assert_eq!(db.count().unwrap(), 512);
    }
}

#[test]
fn a_checkpoint_reports_progress_whether_it_links_or_copies() {
    for has_links in [true, false] {
        let (io, db) = store();
        io.set_links(has_links);
        let done = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&done);
        let options = FileCopyOptions::default().on_progress(move |of| {
            assert!(of.done_bytes <= of.total_bytes);
            let before = seen.swap(of.done_bytes, Ordering::Relaxed);
            assert!(before < of.done_bytes);
            if of.done_bytes == of.total_bytes {
                seen.store(u64::MAX, Ordering::Relaxed);
            }
        });
        db.checkpoint_with(COPY, &options).unwrap();
        assert_eq!(done.load(Ordering::Relaxed), u64::MAX);
    }
}

#[test]
fn a_copy_that_waits_for_its_rate_ends_at_once_and_leaves_nothing() {
    for is_backup in [true, false] {
        for is_closed in [true, false] {
            let (io, db) = store();
            let begun = Instant::now();
            let asked = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&asked);
            let options = FileCopyOptions::default()
                .rate_bytes(1)
                .interrupt_if(move || counted.fetch_add(1, Ordering::Relaxed) > 10 && !is_closed);
            let ended = forerun_core::sync::thread::scope(|scope| {
                let copying = scope.spawn(|| copy(&db, &io, is_backup, &options));
                while asked.load(Ordering::Relaxed) < 5 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if is_closed {
                    db.clone().close().unwrap();
                }
                copying.join().unwrap()
            });
            match ended {
                Err(Error::Closed) => assert!(is_closed),
                Err(Error::Interrupted) => assert!(!is_closed),
                other => panic!("{other:?}"),
            }
            assert!(begun.elapsed() < Duration::from_secs(60));
            assert_eq!(copied_files(&io), Vec::<PathBuf>::new());
            if !is_closed {
                copy(&db, &io, is_backup, &FileCopyOptions::default()).unwrap();
            }
        }
    }
}

#[test]
fn a_copy_that_fills_the_disk_leaves_nothing_and_the_next_one_succeeds() {
    for is_backup in [true, false] {
        for free_bytes in (5_000..100_000).step_by(9_000) {
            let (io, db) = store();
            io.set_capacity_bytes(Some(io.used_bytes() + free_bytes));
            let failed = copy(&db, &io, is_backup, &FileCopyOptions::default());
            assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
            assert_eq!(copied_files(&io), Vec::<PathBuf>::new());
            io.set_capacity_bytes(None);
            copy(&db, &io, is_backup, &FileCopyOptions::default()).unwrap();
            if is_backup {
                backups(&io).restore(None, COPY).unwrap();
            }
            let copied = Db::open_with_io(Arc::new(io.clone()), COPY, tiny_options()).unwrap();
            let report: VerifyReport = copied.verify().unwrap();
            assert!(report.problems.is_empty());
            assert_eq!(copied.count().unwrap(), db.count().unwrap());
            assert_eq!(db.path(), Path::new(STORE));
        }
    }
}

/// Which pages of a file the system has in memory.
fn resident(path: &Path) -> Vec<bool> {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    let mut pages = vec![0_u8; len.div_ceil(4096)];
    // SAFETY: a new mapping of a file that stays as it is, unmapped below and never read.
    unsafe {
        let fd = file.as_raw_fd();
        let at = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_SHARED,
            fd,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mincore(at, len, pages.as_mut_ptr().cast()), 0);
        libc::munmap(at, len);
    }
    pages.into_iter().map(|page| page & 1 == 1).collect()
}

fn drop_pages(path: &Path) {
    fadvise(&File::open(path).unwrap(), 0, None, Advice::DontNeed).unwrap();
}

/// Brings every second piece of 16 pages into memory.
fn touch_pages(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = File::open(path).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    let pages = 0..file.metadata().unwrap().len() / 4096;
    for page in pages.filter(|page| page / 16 % 2 == 0) {
        file.read_at(&mut [0; 8], page * 4096).unwrap();
    }
}

fn all_resident(paths: &[PathBuf]) -> Vec<bool> {
    paths.iter().flat_map(|path| resident(path)).collect()
}

fn counted(pages: &[bool]) -> usize {
    pages.iter().filter(|is_there| **is_there).count()
}

fn runs(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut runs: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|of| of == "run"))
        .collect();
    runs.sort();
    runs
}

/// Whether reads can leave the page cache exactly as it is; else a few pages beside those that were
/// not in memory may be dropped.
fn has_dontcache(path: &Path) -> bool {
    let flag = rustix::io::ReadWriteFlags::from_bits_retain(0x80);
    let mut byte = [0];
    let buffers = &mut [std::io::IoSliceMut::new(&mut byte)];
    rustix::io::preadv2(File::open(path).unwrap(), buffers, 0, flag).is_ok()
}

#[test]
#[cfg(target_os = "linux")]
fn a_backup_leaves_the_page_cache_and_the_cache_of_the_store_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let options = Options::default()
        .memory_limit_bytes(64 << 20)
        .cache_bytes(4 << 20)
        .run(RunOptions::default().page_bytes(4 << 10));
    let db = Db::open(&path, options).unwrap();
    fill(&db, 20_000, 1000);
    db.compact().unwrap();
    db.wait_idle().unwrap();
    for number in 0..20_000_u64 {
        db.get(number.to_be_bytes()).unwrap();
    }
    let files = runs(&path);
    files.iter().for_each(|path| drop_pages(path));
    if counted(&all_resident(&files)) > 0 {
        return; // A file system in memory.
    }
    // Other processes may need the memory, so what is there stays in one round of these.
    let kept = (0..5).map(|round| {
        let copies = directory.path().join(format!("backups-{round}"));
        let restored = directory.path().join(format!("restored-{round}"));
        files.iter().for_each(|path| drop_pages(path));
        files.iter().for_each(|path| touch_pages(path));
        let before = (all_resident(&files), db.stats().cache);
        let mut backups = Backups::open_or_create(&copies).unwrap();
        backups.create(&db).unwrap();
        backups.verify().unwrap();
        backups.restore(None, &restored).unwrap();
        let after = (all_resident(&files), db.stats().cache);
        let pages = before.0.iter().zip(&after.0);
        let added = pages.filter(|(before, after)| !**before && **after);
        assert_eq!(added.count(), 0);
        assert_eq!(counted(&all_resident(&runs(&copies))), 0);
        assert_eq!(counted(&all_resident(&runs(&restored))), 0);
        assert_eq!(
            (after.1.used_bytes, after.1.evictions),
            (before.1.used_bytes, before.1.evictions)
        );
        (counted(&before.0), counted(&after.0))
    });
    let is_exact = has_dontcache(&files[0]);
    let mut tried = Vec::new();
    let is_kept = kept.inspect(|of| tried.push(*of)).any(|(before, after)| {
        let is_touched = before > 2000 && before < 3000;
        is_touched && (after == before || !is_exact && after * 10 > before * 8)
    });
    assert!(is_kept, "of pages in memory: {tried:?}");
}
