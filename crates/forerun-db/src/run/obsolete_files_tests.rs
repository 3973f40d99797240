//! When obsolete files are removed, and in which thread.

use std::io;
use std::time::Instant;

use forerun_core::sync::atomic::AtomicUsize;
use forerun_core::sync::thread;

use super::*;
use crate::io::fault::{EIO, Fault, FaultIo};

const MIB: u64 = 1 << 20;

/// Files with these names, and what removes them.
fn files(names: &[&str]) -> (FaultIo, Arc<ObsoleteFiles>) {
    let io = FaultIo::new();
    names.iter().for_each(|name| io.write(name, b"x"));
    let obsolete = ObsoleteFiles::new(Arc::new(io.clone()));
    // So much that nothing is urgent.
    obsolete.set_live_bytes(u64::MAX);
    (io, Arc::new(obsolete))
}

fn defer(obsolete: &ObsoleteFiles) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let on_empty = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    obsolete.defer(DELETE_RATE_BYTES, Arc::new(on_empty));
    calls
}

#[test]
fn files_are_removed_at_once_or_by_a_purge_and_kept_once_the_store_is_closed() {
    let (io, obsolete) = files(&["/a", "/b", "/c"]);
    let left = || io.files().len();
    drop(obsolete.file("/a".as_ref(), 1));
    assert_eq!(left(), 2);
    let calls = defer(&obsolete);
    drop(obsolete.file("/b".as_ref(), 7));
    assert_eq!((left(), calls.load(Ordering::Relaxed)), (2, 0));
    assert_eq!(obsolete.counts(), ObsoleteCounts { files: 1, bytes: 7 });
    assert_eq!(obsolete.remove_all(), 1);
    assert_eq!((left(), calls.load(Ordering::Relaxed)), (1, 1));
    assert!(obsolete.is_empty(), "those that wait are notified");
    assert_eq!((obsolete.remove_all(), obsolete.remove_one()), (0, false));
    assert_eq!(
        calls.load(Ordering::Relaxed),
        1,
        "nothing to remove, no thread to notify"
    );
    drop(obsolete.file("/c".as_ref(), 1));
    obsolete.close();
    assert_eq!(left(), 0);
    // By now the name belongs to another run.
    io.write("/c", b"x");
    drop(obsolete.file("/c".as_ref(), 1));
    assert_eq!((obsolete.remove_all(), obsolete.remove_one()), (0, false));
    assert_eq!(left(), 1);
}

/// Removes a file only once `may_remove`.
#[derive(Clone, Debug)]
struct SlowIo {
    io: FaultIo,
    /// How many removals have begun.
    begun: Arc<AtomicUsize>,
    /// 1: files are removed.
    may_remove: Arc<AtomicUsize>,
}

impl SlowIo {
    fn new(io: FaultIo) -> SlowIo {
        SlowIo {
            io,
            begun: Arc::default(),
            may_remove: Arc::default(),
        }
    }

    fn wait_for_removal(&self) {
        wait_for(|| self.begun.load(Ordering::SeqCst) > 0);
    }

    fn let_remove(&self) {
        self.may_remove.store(1, Ordering::SeqCst);
    }
}

impl Io for SlowIo {
    crate::forward_io!(this => this.io; open, list, create_dir, rename, sync_dir, boot_id);

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        wait_for(|| self.may_remove.load(Ordering::SeqCst) == 1);
        self.io.remove(path)
    }
}

/// A file that is obsolete, and what removes it, slowly.
fn slow_file() -> (SlowIo, Arc<ObsoleteFiles>) {
    let slow = SlowIo::new(FaultIo::new());
    slow.io.write("/a", b"x");
    let obsolete = Arc::new(ObsoleteFiles::new(Arc::new(slow.clone())));
    defer(&obsolete);
    drop(obsolete.file("/a".as_ref(), 1));
    (slow, obsolete)
}

#[test]
fn a_write_waits_for_the_file_that_another_thread_removes() {
    let (slow, obsolete) = slow_file();
    thread::scope(|scope| {
        scope.spawn(|| obsolete.remove_one());
        slow.wait_for_removal();
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            slow.let_remove();
        });
        assert!(obsolete.remove_one());
        assert!(slow.io.files().is_empty(), "there is room now");
    });
    assert!(!obsolete.remove_one());
}

#[test]
fn closing_waits_for_the_file_that_a_thread_removes_and_no_other_thread_does() {
    let (slow, obsolete) = slow_file();
    thread::scope(|scope| {
        scope.spawn(|| obsolete.remove_one());
        slow.wait_for_removal();
        let waiting = scope.spawn(|| obsolete.remove_one());
        let closing = scope.spawn(|| {
            obsolete.close();
            slow.io.files()
        });
        assert!(!waiting.join().unwrap(), "closing wakes it");
        thread::sleep(Duration::from_millis(50));
        slow.let_remove();
        assert!(closing.join().unwrap().is_empty(), "not before that");
    });
}

#[test]
fn a_purge_removes_one_file_and_removing_all_ends_when_it_is_to_stop() {
    let (io, obsolete) = files(&["/a", "/b", "/c"]);
    defer(&obsolete);
    for name in ["/a", "/b", "/c"] {
        drop(obsolete.file(name.as_ref(), 1));
    }
    assert_eq!((obsolete.remove_one(), io.files().len()), (true, 2));
    obsolete.stop();
    assert_eq!((obsolete.remove_all(), io.files().len()), (0, 2));
    assert_eq!((obsolete.remove_one(), io.files().len()), (true, 1));
}

/// Runs the thread that removes files while `work` runs.
fn beside_its_thread(obsolete: &ObsoleteFiles, work: impl FnOnce()) {
    thread::scope(|scope| {
        scope.spawn(|| obsolete.remove_paced());
        work();
        obsolete.stop();
    });
}

fn wait_for(done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_thread_removes_files_one_by_one_with_pauses() {
    let names = ["/a", "/b", "/c", "/d", "/e"];
    let (io, obsolete) = files(&names);
    defer(&obsolete);
    let begun = Instant::now();
    // Each file takes half a second, less what the process cannot measure.
    for name in &names[..3] {
        drop(obsolete.file(name.as_ref(), 64 * MIB));
    }
    beside_its_thread(&obsolete, || {
        wait_for(|| obsolete.is_empty());
        assert!(begun.elapsed() >= Duration::from_millis(1000));
        // A pause of a minute follows this one.
        drop(obsolete.file("/d".as_ref(), 100_000 * MIB));
        wait_for(|| obsolete.is_empty());
        // The next one waits for the pause after the last, also if it comes later; stopping does
        // not.
        drop(obsolete.file("/e".as_ref(), 1));
        assert_eq!(io.files(), [Path::new("/e")]);
    });
    assert_eq!(obsolete.counts().files, 1);
    obsolete.close();
    assert!(io.files().is_empty());
}

#[test]
fn files_are_removed_without_pauses_when_they_take_much_of_the_store_or_of_the_free_space() {
    for is_full in [false, true] {
        let names: Vec<String> = (0..100).map(|number| format!("/{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (io, obsolete) = files(&names);
        defer(&obsolete);
        if is_full {
            io.set_capacity_bytes(Some(100 + 800 * MIB));
        } else {
            obsolete.set_live_bytes(400 * MIB);
        }
        let begun = Instant::now();
        for name in names {
            drop(obsolete.file(name.as_ref(), 64 * MIB));
        }
        // 100 MiB may wait.
        beside_its_thread(&obsolete, || {
            wait_for(|| obsolete.counts().files <= 1);
        });
        assert!(begun.elapsed() < Duration::from_secs(20), "not at the rate");
    }
}

#[test]
fn a_file_that_cannot_be_removed_does_not_stop_the_others() {
    let (io, obsolete) = files(&["/a", "/b"]);
    let calls = defer(&obsolete);
    io.fail_call(io.calls(), Fault::Fail(EIO));
    beside_its_thread(&obsolete, || {
        drop(obsolete.file("/a".as_ref(), 1));
        drop(obsolete.file("/b".as_ref(), 1));
        wait_for(|| obsolete.is_empty());
    });
    assert_eq!(io.files(), [Path::new("/a")], "the next opening removes it");
    assert!(calls.load(Ordering::Relaxed) >= 1);
}

#[test]
fn files_wait_for_a_minute_at_most() {
    for (files, bytes) in [(100_000, 64 * MIB), (1_000_000, 100), (3, 100_000 * MIB)] {
        let begun = time::now();
        let mut pace = Pace {
            rate_bytes: DELETE_RATE_BYTES,
            last: None,
        };
        let cost = bytes.max(FILE_BYTES_MIN);
        let (mut now, mut longest) = (begun, Duration::ZERO);
        for left in (1..=files).rev() {
            let until = pace.paused_until(begun, cost * left, now).unwrap_or(now);
            longest = longest.max(until - now);
            now = until;
            pace.last = Some((now, cost));
        }
        assert!(now <= begun + WAIT_MAX, "{:?}", now - begun);
        assert!(now > begun + WAIT_MAX / 3, "{:?}", now - begun);
        if files > 3 {
            assert!(longest < Duration::from_millis(600), "spread: {longest:?}");
        }
        // What comes after all that does not wait longer.
        let until = pace.paused_until(now, cost, now).unwrap_or(now);
        assert!(until <= now + WAIT_MAX);
    }
}

#[test]
fn a_rate_of_zero_removes_without_pauses() {
    let names: Vec<String> = (0..50).map(|number| format!("/{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (io, obsolete) = files(&names);
    obsolete.defer(0, Arc::new(|| ()));
    let begun = Instant::now();
    beside_its_thread(&obsolete, || {
        names
            .iter()
            .for_each(|name| drop(obsolete.file(name.as_ref(), 1000 * MIB)));
        wait_for(|| io.files().is_empty());
    });
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn nobody_who_waits_until_all_is_removed_waits_out_a_pause() {
    let (io, obsolete) = files(&["/a", "/b", "/c"]);
    let calls = defer(&obsolete);
    let begun = Instant::now();
    beside_its_thread(&obsolete, || {
        // A pause of a minute follows the first.
        drop(obsolete.file("/a".as_ref(), 100_000 * MIB));
        wait_for(|| obsolete.is_empty());
        drop(obsolete.file("/b".as_ref(), 1));
        thread::sleep(Duration::from_millis(50));
        assert_eq!(io.files().len(), 2);
        let hurry = obsolete.hurry();
        wait_for(|| obsolete.is_empty());
        // What a reader drops after the purge does not wait either.
        drop(obsolete.file("/c".as_ref(), 1));
        wait_for(|| obsolete.is_empty());
        drop(hurry);
    });
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(io.files().is_empty());
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[test]
fn what_an_earlier_process_left_waits_for_the_thread() {
    let (io, obsolete) = files(&["/a"]);
    obsolete.add_found("/a".into(), 7);
    assert_eq!(io.files().len(), 1);
    defer(&obsolete);
    assert_eq!(obsolete.counts(), ObsoleteCounts { files: 1, bytes: 7 });
    assert!(obsolete.remove_one());
    assert!(io.files().is_empty());
}

#[test]
fn what_an_earlier_process_left_is_removed_when_space_is_needed_before_that() {
    let (io, obsolete) = files(&["/a", "/b"]);
    obsolete.add_found("/a".into(), 7);
    obsolete.add_found("/b".into(), 8);
    assert_eq!((obsolete.remove_one(), io.files().len()), (true, 1));
    defer(&obsolete);
    assert_eq!(obsolete.counts(), ObsoleteCounts { files: 1, bytes: 8 });
    assert_eq!((obsolete.remove_one(), io.files().len()), (true, 0));
    assert!(obsolete.is_empty());
}
