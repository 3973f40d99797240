//! Stores with damaged files are checked and repaired: the damage is found, the remaining data is
//! kept, and nothing is invented.

use crate::testing;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use forerun_db::io::fault::{Fault, FaultIo};
use forerun_db::{
    Background, CheckReport, Compression, DataLoss, Error, LevelStats, RepairReport, Result,
    RunOptions, ZstdOptions, check_with_io, repair_with_io,
};
use proptest::prelude::*;
use testing::{STORE, open, run_files, small_options, tiny_options};

const KEYS: u64 = 150;
const WRITES: u64 = 600;

fn key(i: u64) -> Vec<u8> {
    format!("key{:03}", i * 37 % KEYS).into_bytes()
}

/// Bytes that do not compress, so that there are several runs.
fn value(i: u64) -> Option<Vec<u8>> {
    let words = (0..1 + i % 41).map(|word| (i << 8 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (i % 11 != 3).then(|| words.flat_map(u64::to_le_bytes).collect())
}

/// A closed store with several runs and some entries in the log, and its contents.
fn filled() -> (FaultIo, BTreeMap<Vec<u8>, Vec<u8>>) {
    let io = FaultIo::new();
    let db = open(&io, &tiny_options()).unwrap();
    let mut model = BTreeMap::new();
    for i in 0..WRITES {
        match value(i) {
            Some(value) => {
                db.put(&key(i), &value).unwrap();
                model.insert(key(i), value);
            }
            None => {
                db.delete(&key(i)).unwrap();
                model.remove(&key(i));
            }
        }
    }
    let runs: usize = db.stats().levels.iter().map(|level| level.runs).sum();
    assert!(runs > 2);
    db.close().unwrap();
    (io, model)
}

fn check(io: &FaultIo) -> Result<CheckReport> {
    check_with_io(Arc::new(io.clone()), STORE, &tiny_options())
}

fn repair(io: &FaultIo) -> Result<RepairReport> {
    repair_with_io(Arc::new(io.clone()), STORE, &tiny_options())
}

fn is_in(loss: &DataLoss, key: &[u8]) -> bool {
    let Some(keys) = &loss.keys else { return true };
    keys.from.as_ref().is_none_or(|from| from[..] <= *key)
        && keys.to.as_ref().is_none_or(|to| *key <= to[..])
}

/// Repairs crash copies of a store. In each copy, one more call of the repair than in the copy
/// before succeeds, and the next call fails with `errno`. `check` gets the copy, the call that
/// failed, and the result, and returns whether it has checked the copy. Returns how many copies
/// were checked.
fn fail_each_call_of_a_repair(
    io: &FaultIo,
    errno: i32,
    check: impl Fn(&FaultIo, &str, Result<RepairReport>) -> bool,
) -> usize {
    let mut checked = 0;
    for call in 0.. {
        let copy = io.crash(1);
        copy.fail_call(call, Fault::Fail(errno));
        let repaired = repair(&copy);
        let Some(failed_call) = copy.hit() else { break };
        checked += usize::from(check(&copy, &failed_call, repaired));
    }
    checked
}

#[test]
fn a_sound_store_is_left_byte_for_byte_as_it_was() {
    let (io, _) = filled();
    let contents = |io: &FaultIo| -> Vec<_> {
        let files = io
            .files()
            .into_iter()
            .filter(|path| !path.ends_with("LOCK"));
        files.map(|path| (io.read(&path), path)).collect()
    };
    let before = contents(&io);
    let checked = check(&io).unwrap();
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    assert_eq!(checked.log.last_sequence, WRITES);
    assert!(checked.runs.runs > 2 && checked.runs.entries > 50);
    assert!(repair(&io).unwrap().was_sound());
    assert_eq!(contents(&io), before);
}

#[test]
fn an_interrupted_read_does_not_affect_a_repair() {
    const EINTR: i32 = 4;
    let (io, _) = filled();
    let manifest = Path::new(STORE).join("MANIFEST");
    io.write(&manifest, b"no manifest");
    let expected = format!("{:?}", repair(&io.crash(1)).unwrap());
    let interrupted = fail_each_call_of_a_repair(&io, EINTR, |_, call, repaired| {
        if !call.starts_with("read") {
            return false;
        }
        let repaired = repaired.unwrap_or_else(|error| panic!("{call}: {error}"));
        assert_eq!(format!("{repaired:?}"), expected, "{call}");
        true
    });
    assert!(
        interrupted > 10,
        "only {interrupted} reads were interrupted"
    );
}

#[test]
fn a_repair_whose_manifest_cannot_be_written_leaves_no_new_runs() {
    const ENOSPC: i32 = 28;
    let (io, _) = filled();
    let runs = run_files(&io);
    let largest = runs.iter().max_by_key(|path| io.read(path).unwrap().len());
    io.overwrite(largest.unwrap(), 100, b"damage");
    assert!(repair(&io.crash(1)).unwrap().new_runs > 0);
    let failed = fail_each_call_of_a_repair(&io, ENOSPC, |copy, call, repaired| {
        if !call.ends_with("MANIFEST.new") || call.starts_with("rename") {
            return false;
        }
        repaired.unwrap_err();
        assert_eq!(run_files(copy), runs, "{call}");
        true
    });
    assert!(
        failed >= 3,
        "only {failed} steps of writing the manifest failed"
    );
}

#[test]
fn an_open_store_is_neither_checked_nor_repaired() {
    let (io, _) = filled();
    let _db = open(&io, &tiny_options()).unwrap();
    assert!(matches!(check(&io), Err(Error::Locked { .. })));
    assert!(matches!(repair(&io), Err(Error::Locked { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_changed_byte_is_found_and_a_repair_keeps_the_rest(
        file in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        flip in 1_u8..=255,
        cut in prop::bool::weighted(0.2),
    ) {
        let (io, model) = filled();
        let files = io.files();
        let mine = |path: &&std::path::PathBuf| !path.ends_with("LOCK")
            && !path.ends_with("FORMAT");
        let files: Vec<_> = files.iter().filter(mine).collect();
        let path = file.get(&files);
        let mut bytes = io.read(path).unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= flip }
        io.write(path, &bytes);

        let checked = match check(&io) {
            Ok(checked) => checked,
            // The manifest's version has its own checksum.
            Err(Error::NewerFormat { .. }) => return Ok(()),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        prop_assert!(!checked.problems.is_empty(), "{} at {at}", path.display());
        // Damage after a damaged part of the log is reported too.
        let is_log = |path: &std::path::Path| path.extension()
            .is_some_and(|extension| extension == "log");
        for problem in &checked.problems {
            match problem {
                Error::CorruptFile { path: named, .. } => {
                    let is_of_it = named == *path || path.ends_with("CLOSED") || is_log(named)
                        && is_log(path);
                    prop_assert!(is_of_it, "{problem}");
                }
                Error::NewerFormat { .. } => {}
                other => prop_assert!(false, "{other}"),
            }
        }
        let repaired = match repair(&io) {
            Err(Error::NewerFormat { .. }) => return Ok(()),
            repaired => repaired.unwrap(),
        };
        prop_assert!(check(&io).unwrap().problems.is_empty());
        let db = open(&io, &tiny_options()).unwrap();
        for i in 0..KEYS {
            let (key, found) = (key(i), db.get(&key(i)).unwrap());
            if repaired.losses.iter().any(|loss| is_in(loss, &key)) {
                let mut written = (i % KEYS..WRITES).step_by(KEYS as usize).map(value);
                prop_assert!(found.is_none() || written.any(|value| value == found), "{found:?}");
            } else {
                prop_assert_eq!(found.as_ref(), model.get(&key), "key {}", key.escape_ascii());
            }
        }
        db.put(b"more", b"value").unwrap();
        db.flush().unwrap();
        prop_assert_eq!(db.get(b"more").unwrap(), Some(b"value".to_vec()));
    }
}

#[test]
fn a_repair_merges_any_number_of_runs_that_overlap_and_leaves_no_file_of_what_comes_between() {
    let (io, model) = filled();
    let runs = run_files(&io);
    let largest = runs.iter().max_by_key(|path| io.read(path).unwrap().len());
    let bytes = io.read(largest.unwrap()).unwrap();
    // As if compactions had been interrupted again and again.
    for number in 1_000..1_100 {
        io.write(format!("{STORE}/run-{number:06}.run"), &bytes);
    }
    io.take(format!("{STORE}/MANIFEST"));
    let repaired = repair(&io).unwrap();
    assert!(repaired.losses.is_empty(), "{repaired:?}");
    let checked = check(&io).unwrap();
    assert!(checked.problems.is_empty() && checked.leftovers == 0);
    let db = open(&io, &tiny_options()).unwrap();
    let named: usize = db.stats().levels.iter().map(|level| level.runs).sum();
    assert_eq!(run_files(&io).len(), named);
    assert!(
        repaired.new_runs <= named && named < runs.len() + 20,
        "{named} runs"
    );
    for i in 0..KEYS {
        assert_eq!(db.get(key(i)).unwrap().as_ref(), model.get(&key(i)));
    }
}

#[test]
fn the_runs_that_a_repair_writes_have_dictionaries() {
    let zstd = ZstdOptions::default().max_dict_bytes(4 << 10);
    let run = RunOptions::default().page_bytes(4 << 10);
    let options = small_options()
        .memtable_bytes(64 << 10)
        .background(Background::Caller)
        .run(run.compression(Compression::Zstd(zstd)));
    let io = FaultIo::new();
    let db = open(&io, &options).unwrap();
    for i in 0..2_000_u64 {
        let value = format!("{i:05} is what was written, ").repeat(4 + i as usize % 9);
        db.put(i.to_be_bytes(), value).unwrap();
    }
    db.compact().unwrap();
    db.close().unwrap();
    let runs = run_files(&io);
    let largest = runs.iter().max_by_key(|path| io.read(path).unwrap().len());
    let bytes = io.read(largest.unwrap()).unwrap();
    // As if a compaction had been interrupted: the repair merges what overlaps.
    io.write(format!("{STORE}/run-001000.run"), &bytes);
    io.take(format!("{STORE}/MANIFEST"));
    let repaired = repair_with_io(Arc::new(io.clone()), STORE, &options).unwrap();
    let db = open(&io, &options).unwrap();
    let sum = |of: fn(&LevelStats) -> usize| db.stats().levels.iter().map(of).sum::<usize>();
    assert_eq!(sum(|level| level.runs), repaired.new_runs, "{repaired:?}");
    assert!(sum(|level| level.dictionary_bytes) > 0, "{}", db.stats());
    assert_eq!(db.iter().count(), 2_000);
}
