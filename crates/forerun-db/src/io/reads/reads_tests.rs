//! The same tests for every backend and its fallback.

use std::path::Path;

use forerun_core::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use super::*;
use crate::io::fault::{EIO, Fault, FaultIo};
use crate::io::{Io, OpenMode, OsIo, write_all_at};

/// Held by the tests that make the kernel refuse rings, and by those that need it to allow them.
static REFUSAL: Mutex<()> = Mutex::new(());

fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

const LEN: u64 = 100_003;

fn file(dir: &Path) -> Box<dyn IoFile> {
    let file = OsIo.open(&dir.join("f"), OpenMode::CreateEmpty).unwrap();
    let bytes: Vec<u8> = (0..LEN).map(byte).collect();
    write_all_at(&*file, &bytes, 0).unwrap();
    file
}

/// Reads ranges, `together` of them pushed between turns, and checks each: its bytes, or that it
/// ends early.
fn read_all<'f>(
    reads: &mut BatchedReads<'f>,
    file: impl Fn(usize) -> &'f dyn IoFile,
    ranges: &[(u64, usize)],
    together: usize,
) -> Vec<Done> {
    let mut done = Vec::new();
    for (chunk_at, chunk) in ranges.chunks(together).enumerate() {
        for (at, &(offset, len)) in chunk.iter().enumerate() {
            let token = chunk_at * together + at;
            reads.push(Read {
                file: file(token),
                offset,
                buffer: vec![0xee; len],
                token: token as u32,
            });
        }
        reads.turn(Wait::Never, &mut done);
    }
    while done.len() < ranges.len() {
        let before = done.len();
        reads.turn(Wait::ForOne, &mut done);
        assert!(done.len() > before, "a turn for one completes one");
    }
    reads.turn(Wait::ForOne, &mut done);
    reads.turn(Wait::Never, &mut done);
    assert_eq!(done.len(), ranges.len());
    done.sort_by_key(|done| done.token);
    for (at, (done, &(offset, len))) in done.iter().zip(ranges).enumerate() {
        assert_eq!((done.token as usize, done.bytes().len()), (at, len));
        if offset + len as u64 <= LEN {
            done.result.as_ref().unwrap();
            let right = (offset..).zip(done.bytes()).all(|(at, b)| *b == byte(at));
            assert!(right, "bytes of {offset}+{len}");
        } else if len > 0 {
            let error = done.result.as_ref().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
        }
    }
    done
}

fn ranges(count: usize) -> Vec<(u64, usize)> {
    let random = |n: usize| (n as u64).wrapping_mul(0xd134_2543_de82_ef95) >> 16;
    (0..count)
        .map(|n| match n % 11 {
            // At the end, across it and after it.
            0 => (LEN - 10, 10),
            1 => (LEN - 10, 11),
            2 => (LEN, 1),
            3 => (LEN + 1_000_000, 100),
            4 => (random(n) % LEN, 1),
            _ => {
                let offset = random(n) % (LEN - 20_000);
                (offset, 1 + (random(n + 1) % 20_000) as usize)
            }
        })
        .collect()
}

fn every_backend(mut body: impl FnMut(ReadBackend)) {
    let _alone = REFUSAL.lock().unwrap_or_else(|error| error.into_inner());
    for backend in ReadBackend::ALL {
        body(backend);
    }
    // The same with a kernel that refuses rings.
    #[cfg(target_os = "linux")]
    {
        let before = Ring::refuse(true);
        body(ReadBackend::Uring);
        body(ReadBackend::Auto);
        Ring::refuse(before);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_ring_refused_for_lack_of_descriptors_is_asked_for_again_after_a_second() {
    use rustix::io::Errno;
    let _alone = REFUSAL.lock().unwrap_or_else(|error| error.into_inner());
    let before = Ring::refuse(false);
    for lack in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN] {
        let counted = super::ring_refusals();
        assert!(Ring::answer(lack.raw_os_error()), "{lack}");
        assert_eq!(super::ring_refusals(), counted + 1, "{lack}");
        assert!(!Ring::answer(lack.raw_os_error()), "at once: {lack}");
        if lack == Errno::MFILE {
            std::thread::sleep(std::time::Duration::from_millis(1_010));
        } else {
            Ring::end_wait();
        }
    }
    for refusal in [Errno::NOSYS, Errno::PERM] {
        let counted = super::ring_refusals();
        assert!(Ring::answer(refusal.raw_os_error()), "{refusal}");
        assert_eq!(super::ring_refusals(), counted, "{refusal}");
        Ring::end_wait();
        assert!(!Ring::answer(refusal.raw_os_error()), "later: {refusal}");
        Ring::refuse(false);
    }
    Ring::refuse(before);
}

#[test]
fn names_read_back_and_an_unknown_one_lists_the_known() {
    for backend in ReadBackend::ALL {
        assert_eq!(backend.name().parse(), Ok(backend));
    }
    let error = "fast".parse::<ReadBackend>().unwrap_err().to_string();
    assert!(
        error.contains("\"fast\"") && error.contains("uring"),
        "{error}"
    );
}

#[test]
fn reads_are_whole_or_an_error_of_their_own_in_any_number_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    every_backend(|backend| {
        // More reads than a ring has entries, and several batches on the kept ring.
        for (count, together) in [(0, 1), (1, 1), (2, 2), (64, 7), (500, 500), (300, 1)] {
            let mut reads = BatchedReads::new(backend);
            read_all(&mut reads, |_| &*file, &ranges(count), together);
        }
    });
}

#[test]
fn the_backend_is_the_requested_one_or_its_fallback() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    let _alone = REFUSAL.lock().unwrap_or_else(|error| error.into_inner());
    #[cfg(target_os = "linux")]
    {
        let before = Ring::refuse(true);
        assert!(Ring::take().is_none());
        let mut reads = BatchedReads::new(ReadBackend::Uring);
        read_all(&mut reads, |_| &*file, &ranges(20), 20);
        Ring::refuse(before);
        if Ring::take().is_none() {
            eprintln!("the kernel refuses io_uring: only what it falls back to is tested");
        }
    }
    // Sync needs no engine, and neither does Auto for a lone read.
    let mut reads = BatchedReads::new(ReadBackend::Sync);
    read_all(&mut reads, |_| &*file, &ranges(20), 20);
    assert!(reads.engine.is_none());
    let mut reads = BatchedReads::new(ReadBackend::Auto);
    reads.push(Read {
        file: &*file,
        offset: 0,
        buffer: vec![0; 10],
        token: 0,
    });
    let mut done = Vec::new();
    reads.turn(Wait::ForOne, &mut done);
    assert_eq!((done.len(), reads.engine.is_none()), (1, true));
}

#[test]
fn files_of_the_system_and_of_a_model_are_read_in_one_batch_and_a_failure_is_one_reads() {
    let dir = tempfile::tempdir().unwrap();
    let real = file(dir.path());
    let bytes: Vec<u8> = (0..LEN).map(byte).collect();
    every_backend(|backend| {
        let model = FaultIo::new();
        model.write("/f", &bytes);
        let modelled = model.open("/f".as_ref(), OpenMode::Read).unwrap();
        let mut reads = BatchedReads::new(backend);
        let both = |at: usize| match at % 2 {
            0 => &*real,
            _ => &*modelled,
        };
        read_all(&mut reads, both, &ranges(100), 10);

        model.fail_call(model.calls() + 3, Fault::Fail(EIO));
        let mut done = Vec::new();
        for token in 0..10 {
            reads.push(Read {
                file: both(token),
                offset: 5,
                buffer: vec![0; 100],
                token: token as u32,
            });
        }
        while done.len() < 10 {
            reads.turn(Wait::ForOne, &mut done);
        }
        let failed = done.iter().filter(|done| done.result.is_err());
        let failed: Vec<_> = failed.map(|done| done.token).collect();
        assert_eq!(failed, [7], "{backend}: the fourth read of the model");
    });
}

/// A file that gives few bytes at a time, and is interrupted in between.
#[derive(Debug)]
struct Trickle(Box<dyn IoFile>, AtomicU64);

impl IoFile for Trickle {
    crate::forward_io!(this => this.0; write_at, len, set_len, sync, try_lock);

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let call = self.1.fetch_add(1, Ordering::Relaxed);
        if call.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let some = buffer.len().min(1 + call as usize % 50);
        self.0.read_at(&mut buffer[..some], offset)
    }
}

#[test]
fn short_reads_and_interrupted_ones_go_on_where_they_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let file = Trickle(file(dir.path()), AtomicU64::new(0));
    let mut reads = BatchedReads::new(ReadBackend::Auto);
    read_all(&mut reads, |_| &file, &ranges(40), 40);
}

#[test]
fn a_batch_may_be_dropped_while_its_reads_are_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    every_backend(|backend| {
        for round in 0..20 {
            let file = file(dir.path());
            let mut reads = BatchedReads::new(backend);
            let mut done = Vec::new();
            for token in 0..100 {
                reads.push(Read {
                    file: &*file,
                    offset: token * 7,
                    buffer: vec![0; 5000],
                    token: token as u32,
                });
            }
            if round % 2 == 0 {
                reads.turn(Wait::Never, &mut done);
            }
            if round % 5 == 0 {
                // A ring that is never dropped is fine too.
                std::mem::forget(reads);
            }
            drop(file);
        }
        let file = file(dir.path());
        read_all(&mut BatchedReads::new(backend), |_| &*file, &ranges(50), 50);
    });
}

#[test]
fn nested_and_concurrent_batches_are_independent() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    every_backend(|backend| {
        forerun_core::sync::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let mut outer = BatchedReads::new(backend);
                        let mut done = Vec::new();
                        for token in 0..3 {
                            outer.push(Read {
                                file: &*file,
                                offset: 11,
                                buffer: vec![0; 3000],
                                token,
                            });
                        }
                        outer.turn(Wait::Never, &mut done);
                        let mut inner = BatchedReads::new(backend);
                        read_all(&mut inner, |_| &*file, &ranges(30), 10);
                        while done.len() < 3 {
                            outer.turn(Wait::ForOne, &mut done);
                        }
                        assert!(done.iter().all(|done| done.result.is_ok()));
                    }
                });
            }
        });
    });
}
