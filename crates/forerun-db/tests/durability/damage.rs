//! Flips every bit of a small log and tries every length of it. A store never returns a wrong value
//! and never panics: it fails to open and names the file and the offset, or it reports what it
//! dropped or skipped.

use crate::testing;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forerun_db::io::fault::FaultIo;
use forerun_db::{Background, Durability, Error, Op, Recovery};
use testing::{batch, open, small_options};

const BATCHES: usize = 9;

/// How the store was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Closed,
    Killed,
    /// With every unsynced byte kept, so that only the test causes damage.
    PowerLost,
}

/// A store of a few segments, and its entries after each number of batches.
struct Store {
    io: FaultIo,
    states: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
    last_segment: PathBuf,
}

impl Store {
    fn new(left: Left) -> Store {
        let io = FaultIo::new();
        // The first segment is synced before the second one takes records.
        let options = small_options().background(Background::Caller);
        let db = open(&io, &options).unwrap();
        let mut states = vec![BTreeMap::new()];
        for i in 0..BATCHES {
            let batch = batch(i);
            db.write(&batch, forerun_db::Durability::Buffered).unwrap();
            let mut state = states[i].clone();
            for op in batch.ops() {
                match op {
                    Op::Put { key, value } => state.insert(key.to_vec(), value.to_vec()),
                    Op::Delete { key } => state.remove(key),
                    Op::DeleteRange { .. } => {
                        unreachable!("the log was written without range deletions")
                    }
                };
            }
            states.push(state);
        }
        let io = match left {
            Left::Closed => {
                db.close().unwrap();
                io
            }
            Left::Killed => io.kill(),
            Left::PowerLost => io.crash(1),
        };
        let last_segment = io
            .files()
            .into_iter()
            .rfind(|path| path.to_string_lossy().contains("wal-"))
            .unwrap();
        assert_eq!(last_segment.to_str(), Some("/store/wal-000002.log"));
        Store {
            io,
            states,
            last_segment,
        }
    }

    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let files: Vec<_> = self
            .io
            .files()
            .into_iter()
            .filter(|path| !path.ends_with("LOCK"))
            .collect();
        files
            .into_iter()
            .map(|path| (path.clone(), self.io.read(&path).unwrap()))
            .collect()
    }

    /// Opens the store with other bytes in one file, and checks the result.
    fn open_with(&self, path: &PathBuf, bytes: &[u8], recovery: Recovery, case: &str) -> Judged {
        let io = self.io.kill();
        io.write(path, bytes);
        let before: Vec<_> = io.files().iter().map(|path| io.read(path)).collect();
        match open(&io, &small_options().recovery(recovery)) {
            Ok(db) => {
                let entries: BTreeMap<_, _> = db.iter().map(|entry| entry.unwrap()).collect();
                let batches = self.states.iter().position(|state| *state == entries);
                Judged::Opened {
                    batches,
                    is_reported: db.recovery().lost_bytes() > 0
                        || !db.recovery().skipped.is_empty(),
                    entries,
                }
            }
            Err(Error::CorruptFile {
                path,
                offset,
                reason,
            }) => {
                let after: Vec<_> = io.files().iter().map(|path| io.read(path)).collect();
                assert!(
                    before == after,
                    "{case}: a failed opening must change nothing"
                );
                assert!(!reason.is_empty());
                Judged::Refused { path, offset }
            }
            Err(error) => panic!("{case}: {error}"),
        }
    }
}

#[derive(Debug)]
enum Judged {
    Opened {
        /// The number of batches, from the first, whose effects are exactly what the store holds.
        batches: Option<usize>,
        is_reported: bool,
        entries: BTreeMap<Vec<u8>, Vec<u8>>,
    },
    Refused {
        path: PathBuf,
        offset: u64,
    },
}

/// Calls `judge` for every flipped bit of every file.
fn for_each_flip(store: &Store, mut judge: impl FnMut(&PathBuf, usize, &[u8], &str)) {
    for (path, good) in store.files() {
        for at in 0..good.len() {
            // Every bit of the headers, and one bit of each byte elsewhere, since a checksum treats
            // all bits alike.
            for bit in if at < 64 { 0..8 } else { at % 8..at % 8 + 1 } {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                judge(
                    &path,
                    at,
                    &bad,
                    &format!("bit {bit} of byte {at} of {}", path.display()),
                );
            }
        }
    }
}

/// The error names the damaged file, and an offset at or before the damage.
fn check_place(named: &Path, offset: u64, path: &Path, at: usize, case: &str) {
    assert_eq!(named, path, "{case}");
    assert!(offset <= at as u64, "{case}: named offset {offset}");
}

#[test]
fn a_flipped_bit_in_a_cleanly_closed_store_is_refused_with_its_offset() {
    let store = Store::new(Left::Closed);
    let files = store.files().len();
    assert_eq!(files, 5, "FORMAT, MANIFEST, CLOSED and two segments");
    for_each_flip(&store, |path, at, bad, case| {
        match store.open_with(path, bad, Recovery::DropTail, case) {
            Judged::Refused {
                path: named,
                offset,
            } => {
                check_place(&named, offset, path, at, case);
            }
            other => panic!("{case}: {other:?}"),
        }
    });
}

#[test]
fn a_cleanly_closed_store_that_was_cut_is_refused() {
    let store = Store::new(Left::Closed);
    for (path, good) in store.files() {
        for len in 0..good.len() {
            let case = format!("{} cut to {len} bytes", path.display());
            let judged = store.open_with(&path, &good[..len], Recovery::DropTail, &case);
            assert!(
                matches!(judged, Judged::Refused { .. }),
                "{case}: {judged:?}"
            );
        }
    }
}

#[test]
fn a_flipped_bit_after_a_crash_is_refused_or_reported_as_a_cut_tail() {
    for left in [Left::Killed, Left::PowerLost] {
        let store = Store::new(left);
        let (mut refused, mut dropped) = (0, 0);
        for_each_flip(&store, |path, at, bad, case| {
            match store.open_with(path, bad, Recovery::DropTail, case) {
                Judged::Refused {
                    path: named,
                    offset,
                } => {
                    check_place(&named, offset, path, at, case);
                    refused += 1;
                }
                Judged::Opened {
                    batches,
                    is_reported,
                    ..
                } => {
                    let batches = batches
                        .unwrap_or_else(|| panic!("{left:?}, {case}: a state that never existed"));
                    assert!(
                        is_reported && batches < BATCHES,
                        "{left:?}, {case}: nothing is reported"
                    );
                    assert_eq!(
                        *path, store.last_segment,
                        "{left:?}, {case}: only the last segment has a tail"
                    );
                    if left == Left::Killed {
                        assert_eq!(
                            batches,
                            BATCHES - 1,
                            "{case}: only the last record is a tail if no power was lost"
                        );
                    }
                    dropped += 1;
                }
            }
        });
        assert!(
            refused > 100 && dropped > 100,
            "{left:?}: {refused} refused, {dropped} dropped"
        );
    }
}

#[test]
fn a_store_that_crashed_and_was_cut_gives_what_is_left() {
    for left in [Left::Killed, Left::PowerLost] {
        let store = Store::new(left);
        for (path, good) in store.files() {
            let mut boundaries = 0;
            for len in 0..good.len() {
                let case = format!("{left:?}: {} cut to {len} bytes", path.display());
                match store.open_with(&path, &good[..len], Recovery::DropTail, &case) {
                    Judged::Refused { .. } => assert_ne!(path, store.last_segment, "{case}"),
                    Judged::Opened {
                        batches,
                        is_reported,
                        ..
                    } => {
                        assert_eq!(path, store.last_segment, "{case}");
                        assert!(batches.is_some_and(|batches| batches < BATCHES), "{case}");
                        // A cut between two records looks like an earlier crash, and so does an
                        // empty file.
                        boundaries += usize::from(!is_reported);
                    }
                }
            }
            assert!(
                boundaries <= BATCHES,
                "{left:?}: {boundaries} cuts were not reported"
            );
        }
    }
}

#[test]
fn strict_recovery_refuses_a_torn_tail() {
    let store = Store::new(Left::Killed);
    let good = store.io.read(&store.last_segment).unwrap();
    for len in good.len() - 20..good.len() {
        let case = format!("cut to {len} bytes");
        match store.open_with(&store.last_segment, &good[..len], Recovery::Strict, &case) {
            Judged::Refused { path, offset } => {
                assert!(path == store.last_segment && offset < len as u64)
            }
            other => panic!("{case}: {other:?}"),
        }
    }
    let whole = store.open_with(&store.last_segment, &good, Recovery::Strict, "whole");
    assert!(
        matches!(
            whole,
            Judged::Opened {
                batches: Some(BATCHES),
                is_reported: false,
                ..
            }
        ),
        "{whole:?}"
    );
}

#[test]
fn skipping_damage_loses_the_damaged_batches_only() {
    let store = Store::new(Left::Closed);
    let all = &store.states[BATCHES];
    for_each_flip(&store, |path, at, bad, case| {
        // Only damage of the log is skipped; a damaged manifest needs a repair.
        if path.ends_with("FORMAT") || path.ends_with("MANIFEST") {
            return;
        }
        match store.open_with(path, bad, Recovery::SkipCorrupt, case) {
            Judged::Opened {
                entries,
                is_reported,
                ..
            } => {
                assert!(is_reported, "{case}: nothing is reported");
                for (key, value) in &entries {
                    assert!(
                        all.get(key) == Some(value) || key == b"last",
                        "{case}: {}",
                        key.escape_ascii()
                    );
                }
                let lost = all.len() - entries.len();
                // A batch writes two keys of its own; without a good header the whole segment is
                // lost.
                let is_header = path.to_string_lossy().contains("wal-") && at < 32;
                assert!(is_header || lost <= 2, "{case}: {lost} entries are lost");
                assert!(
                    !is_header || lost < all.len(),
                    "{case}: the other segment is lost too"
                );
            }
            other => panic!("{case}: {other:?}"),
        }
    });
}

#[test]
fn a_store_with_skipped_damage_takes_writes_and_keeps_them() {
    let store = Store::new(Left::Killed);
    for (path, good) in store.files() {
        for at in (0..good.len()).step_by(5) {
            if path.ends_with("FORMAT") || path.ends_with("MANIFEST") {
                continue;
            }
            let case = format!("byte {at} of {}", path.display());
            let io = store.io.kill();
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            io.write(&path, &bad);
            let options = small_options().recovery(Recovery::SkipCorrupt);
            for round in 0..3 {
                let db = open(&io, &options).unwrap_or_else(|error| panic!("{case}: {error}"));
                for old in 0..round {
                    let value = db.get(format!("new-{old}").as_bytes()).unwrap();
                    assert_eq!(
                        value.as_deref(),
                        Some(&b"value"[..]),
                        "{case}, round {round}"
                    );
                }
                db.put(format!("new-{round}").as_bytes(), b"value").unwrap();
                if round == 1 {
                    db.close().unwrap();
                }
            }
        }
    }
}

#[test]
fn a_missing_segment_is_refused_and_named() {
    for left in [Left::Closed, Left::Killed] {
        let store = Store::new(left);
        let io = store.io.kill();
        io.take("/store/wal-000001.log");
        match open(&io, &small_options()) {
            Err(Error::CorruptFile { path, .. }) => {
                assert_eq!(path.to_str(), Some("/store/wal-000001.log"))
            }
            other => panic!("{left:?}: {other:?}"),
        }
        let io = store.io.kill();
        io.take("/store/wal-000002.log");
        match (left, open(&io, &small_options())) {
            (Left::Closed, Err(Error::CorruptFile { path, .. })) => {
                assert_eq!(path, store.last_segment)
            }
            (Left::Killed, Ok(_)) => {}
            (_, other) => panic!("{left:?}: {other:?}"),
        }
        // One segment in place of the other.
        let io = store.io.kill();
        io.write(
            "/store/wal-000001.log",
            &io.read("/store/wal-000002.log").unwrap(),
        );
        assert!(
            matches!(open(&io, &small_options()), Err(Error::CorruptFile { .. })),
            "{left:?}"
        );
    }
}

#[test]
fn a_log_stored_as_a_value_is_not_taken_for_the_log() {
    // A record of the log is torn, and its value contains complete records: a copy of this very
    // log.
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    db.put(b"first", b"1").unwrap();
    db.put(b"second", b"2").unwrap();
    let log = io.read("/store/wal-000001.log").unwrap();
    db.put(b"backup", &log[32..]).unwrap();
    let io = io.kill();
    let whole = io.read("/store/wal-000001.log").unwrap();
    for cut in 1..20 {
        let io = io.kill();
        io.write("/store/wal-000001.log", &whole[..whole.len() - cut]);
        let db = open(&io, &small_options()).unwrap();
        assert_eq!(db.iter().count(), 2);
        assert_eq!(
            db.recovery().dropped_tail.as_ref().map(|tail| tail.offset),
            Some(log.len() as u64)
        );
    }
}

#[test]
fn a_damaged_lock_file_does_no_harm() {
    let store = Store::new(Left::Killed);
    for bytes in [&b""[..], b"forerun lock\n", &[0; 70], &[0xff; 300]] {
        let io = store.io.kill();
        io.write("/store/LOCK", bytes);
        let db = open(&io, &small_options()).unwrap();
        let entries: BTreeMap<_, _> = db.iter().map(|entry| entry.unwrap()).collect();
        assert_eq!(entries, store.states[BATCHES]);
    }
}

#[test]
fn damage_to_synced_records_is_found_after_a_power_loss_too() {
    let io = FaultIo::new();
    let db = open(&io, &small_options()).unwrap();
    let mut ends = Vec::new();
    for i in 0..5 {
        db.put_with(
            format!("key-{i}").as_bytes(),
            b"value",
            forerun_db::Durability::Synced,
        )
        .unwrap();
        ends.push(io.read("/store/wal-000001.log").unwrap().len());
    }
    let io = io.crash(0);
    let good = io.read("/store/wal-000001.log").unwrap();
    assert_eq!(Some(&good.len()), ends.last(), "synced bytes are kept");
    for at in 32..good.len() {
        let io = io.crash(0);
        let mut bad = good.clone();
        bad[at] ^= 4;
        io.write("/store/wal-000001.log", &bad);
        match open(&io, &small_options()) {
            Err(Error::CorruptFile { offset, .. }) => {
                assert!(at < ends[3] && offset <= at as u64, "byte {at}")
            }
            Ok(db) => assert!(
                at >= ends[3] && db.recovery().dropped_tail.is_some(),
                "byte {at}"
            ),
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
}

#[test]
fn damage_to_a_synced_record_is_an_error_even_if_its_value_is_all_zeros() {
    let io = FaultIo::new();
    let options = small_options().wal_segment_bytes(1 << 20);
    let db = open(&io, &options).unwrap();
    for n in 0..4 {
        db.put_with(&[n], &[0; 4096], Durability::Synced).unwrap();
    }
    for n in 4..8 {
        db.put(&[n], &[0; 4096]).unwrap();
    }
    let path = Path::new("/store/wal-000001.log");
    let left = io.kill();
    let good = left.read(path).unwrap();
    let opened = |record: usize| {
        let mut bad = good.clone();
        bad[(2 * record + 1) * good.len() / 16] ^= 1;
        let io = left.kill();
        io.write(path, &bad);
        open(&io, &options)
    };
    for record in 0..4 {
        let error = opened(record).err();
        assert!(
            matches!(error, Some(Error::CorruptFile { .. })),
            "record {record}: {error:?}"
        );
    }
    // Without a sync, this cannot be distinguished from a write that the disk never got.
    for record in 4..8 {
        let db = opened(record).unwrap();
        assert_eq!(db.iter().count(), record);
        assert!(db.recovery().dropped_tail.is_some());
    }
}

/// A volume may lose what was not synced without a restart of the machine: a snapshot of it is
/// restored, or it is detached and attached again.
#[test]
fn a_tail_with_sectors_that_were_never_written_is_dropped_in_the_same_boot_too() {
    const SECTOR: usize = 512;
    let io = FaultIo::new();
    let options = small_options().wal_segment_bytes(1 << 20);
    let db = open(&io, &options).unwrap();
    let value = |n: u8| vec![n + 1; 1_000];
    for n in 0..20 {
        db.put(&[n], &value(n)).unwrap();
    }
    let path = Path::new("/store/wal-000001.log");
    let left = io.kill();
    let good = left.read(path).unwrap();
    let end = |n: usize| good.len() - (19 - n) * (good.len() / 20);
    for lost in [2, 3, 17, 30] {
        let mut bad = good.clone();
        bad[lost * SECTOR..(lost + 1) * SECTOR].fill(0);
        let opened = |bad: &[u8], recovery| {
            let io = left.kill();
            io.write(path, bad);
            open(&io, &options.clone().recovery(recovery))
        };
        let db = opened(&bad, Recovery::DropTail).unwrap();
        let kept = db.iter().count();
        assert!(
            end(kept.max(1) - 1) <= (lost + 1) * SECTOR + 100,
            "{kept} kept"
        );
        assert!(end(kept) > lost * SECTOR, "sector {lost}: {kept} kept");
        for (n, entry) in db.iter().enumerate() {
            assert_eq!(entry.unwrap(), (vec![n as u8], value(n as u8)));
        }
        let dropped = db.recovery().dropped_tail.clone().unwrap();
        assert_eq!(dropped.offset + dropped.len_bytes, good.len() as u64);
        assert!(opened(&bad, Recovery::Strict).is_err());
        // Other damage is not what a lost write leaves.
        bad[lost * SECTOR..(lost + 1) * SECTOR].fill(1);
        assert!(matches!(
            opened(&bad, Recovery::DropTail),
            Err(Error::CorruptFile { .. })
        ));
    }
}
