//! Loom models of the words' memory orderings. Loom runs them through every interleaving and every
//! weak outcome that it knows: `RUSTFLAGS="--cfg loom" cargo test -p forerun-db --release --lib
//! cache::loom_tests`.
//!
//! The words are the real ones. The lock is loom's. A frame is a cell that loom watches for races.
//! The epoch is the simplest possible: one flag per reader; an evictor that finds it cleared knows
//! that no reader is left.

#![allow(
    unsafe_code,
    reason = "the cells that stand for frames are read and written as frames are"
)]

use std::sync::Arc as StdArc;

use forerun_core::sync::loom_model;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::frames::FrameNo;
use super::holders::Holders;
use super::page_words::{WordState, Words};
use super::verified_pages::VerifiedPages;

fn model(body: impl Fn() + Send + Sync + 'static) {
    loom_model::check(3, body);
}

struct Cache {
    words: StdArc<Words>,
    frames: [UnsafeCell<u64>; 2],
    holders: [AtomicU32; 2],
    lock: Mutex<()>,
    pinned: AtomicBool,
}

// SAFETY: the cells are shared as the frames are; the models show that this is right.
unsafe impl Sync for Cache {}
// SAFETY: as above.
unsafe impl Send for Cache {}

/// The content of a frame that holds this page.
fn bytes_of(page_no: u32) -> u64 {
    100 + u64::from(page_no)
}

impl Cache {
    fn new() -> Arc<Cache> {
        Arc::new(Cache {
            words: StdArc::new(Words::new(2)),
            frames: [UnsafeCell::new(0), UnsafeCell::new(0)],
            holders: [AtomicU32::new(0), AtomicU32::new(0)],
            lock: Mutex::new(()),
            pinned: AtomicBool::new(false),
        })
    }

    /// Fills a frame that this thread owns and publishes it. Returns false if another thread was
    /// faster.
    fn fill(&self, page_no: u32, frame: u32) -> bool {
        // SAFETY: the frame is this thread's; loom checks it.
        self.frames[frame as usize].with_mut(|cell| unsafe { *cell = bytes_of(page_no) });
        let _held = self.lock.lock().unwrap();
        let first = matches!(self.words.state(page_no), WordState::Absent(_));
        if first {
            let head = bytes_of(page_no);
            self.words.publish(page_no, FrameNo::from_bits(frame), head);
        }
        first
    }

    /// Evicts a page. Its frame may be reused once no reader is left.
    fn evict(&self, page_no: u32) -> Option<u32> {
        let _held = self.lock.lock().unwrap();
        loop {
            let WordState::Resident { frame, uses } = self.words.state(page_no) else {
                return None;
            };
            if self.words.unlink(page_no, frame, uses, 1) {
                return Some(frame.to_bits());
            }
        }
    }

    fn nobody_is_left(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.pinned.load(Ordering::Acquire)
    }

    /// Reads a page, pinned.
    fn read(&self, page_no: u32) -> bool {
        let Some((frame, head)) = self.words.find_with_head(page_no) else {
            return false;
        };
        assert_eq!(head, bytes_of(page_no));
        self.check(page_no, frame);
        true
    }

    fn check(&self, page_no: u32, frame: FrameNo) {
        // SAFETY: the frame was published and not reclaimed; loom checks it.
        let bytes = self.frames[frame.index()].with(|cell| unsafe { *cell });
        assert_eq!(bytes, bytes_of(page_no));
    }

    /// Holds a page, reads it without a pin, and uses its frame again if that is left to it.
    fn hold_and_read(&self, page_no: u32, next: u32) {
        self.pin();
        let found = self.words.find(page_no);
        if let Some(frame) = found {
            Holders(&self.holders[frame.index()]).hold();
        }
        self.unpin();
        let Some(frame) = found else {
            return;
        };
        self.check(page_no, frame);
        if Holders(&self.holders[frame.index()]).release() {
            assert!(self.fill(next, frame.to_bits()));
        }
    }

    fn pin(&self) {
        self.pinned.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn unpin(&self) {
        self.pinned.store(false, Ordering::Release);
    }
}

#[test]
fn a_found_page_is_complete() {
    model(|| {
        let cache = Cache::new();
        let writer = {
            let cache = cache.clone();
            thread::spawn(move || assert!(cache.fill(0, 0)))
        };
        let reader = {
            let cache = cache.clone();
            // The second read counts a use, or finds it counted.
            thread::spawn(move || cache.read(0) && cache.read(0))
        };
        cache.read(0);
        writer.join().unwrap();
        reader.join().unwrap();
        assert!(cache.read(0), "it stays");
    });
}

#[test]
fn one_of_two_readers_publishes_a_page_and_both_find_it() {
    model(|| {
        let cache = Cache::new();
        let other = cache.clone();
        let thread = thread::spawn(move || {
            let first = other.fill(0, 0);
            assert!(other.read(0));
            first
        });
        let first = cache.fill(0, 1);
        assert!(cache.read(0));
        assert!(first ^ thread.join().unwrap());
    });
}

#[test]
fn a_frame_is_used_again_while_nobody_reads_it() {
    model(|| {
        let cache = Cache::new();
        assert!(cache.fill(0, 0));
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || {
                cache.pin();
                cache.read(0);
                cache.read(1);
                cache.read(0);
                cache.unpin();
            })
        };
        let frame = cache.evict(0).unwrap();
        if cache.nobody_is_left() {
            assert!(cache.fill(1, frame));
        }
        reader.join().unwrap();
        assert!(matches!(cache.words.state(0), WordState::Absent(1)));
    });
}

#[test]
fn a_held_frame_is_used_again_once_by_its_evictor_or_by_its_last_holder() {
    model(|| {
        let cache = Cache::new();
        assert!(cache.fill(0, 0));
        let cursor = {
            let cache = cache.clone();
            thread::spawn(move || cache.hold_and_read(0, 1))
        };
        let frame = cache.evict(0).unwrap();
        // One who still finds a pin waits for it. Here it leaves the frame alone.
        let is_retired = cache.nobody_is_left();
        if is_retired && Holders(&cache.holders[frame as usize]).retire() {
            assert!(cache.fill(1, frame));
        }
        cursor.join().unwrap();
        assert_eq!(cache.read(1), is_retired);
    });
}

#[test]
fn a_concurrent_use_count_does_not_revive_an_evicted_page() {
    model(|| {
        let cache = Cache::new();
        assert!(cache.fill(0, 0));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let cache = cache.clone();
                thread::spawn(move || cache.words.find(0).is_some())
            })
            .collect();
        assert_eq!(cache.evict(0), Some(0));
        assert!(!cache.read(0));
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(matches!(cache.words.state(0), WordState::Absent(1)));
    });
}

#[test]
fn a_page_counts_as_verified_only_for_the_opening_in_which_it_was() {
    model(|| {
        let pages = Arc::new(VerifiedPages::new(2));
        // How often the file was opened.
        let openings = Arc::new(AtomicU64::new(1));
        let verifying = {
            let (pages, openings) = (pages.clone(), openings.clone());
            thread::spawn(move || {
                openings.store(2, Ordering::Relaxed);
                pages.add(1, 2);
            })
        };
        let reading = {
            let (pages, openings) = (pages.clone(), openings.clone());
            thread::spawn(move || {
                if pages.opening_of(1).is_some() {
                    // It reads the file that was verified, or notices that it does not.
                    assert_eq!(openings.load(Ordering::Relaxed), 2);
                }
                assert_ne!(pages.opening_of(0), Some(2), "verified in the first");
            })
        };
        // A slow reader of the first opening.
        pages.add(0, 1);
        verifying.join().unwrap();
        reading.join().unwrap();
        assert_eq!((pages.opening_of(0), pages.opening_of(1)), (None, Some(2)));
    });
}
