//! Damaged runs and manifests are found, named and repaired as far as possible. Checkpoints hold
//! the right entries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use crate::io::fault::{EIO, Fault, FaultIo};
use crate::io::{Io, OpenMode};
use crate::run::cursor::RunCursor;
use crate::run::{self, Run, RunWriter};
use crate::testing::tree_fixture::{
    DIR, Fixture, KEYS, RUN_OPTIONS, check_reads, grown, open, prepare_again, store_options,
};
use crate::testing::version_list::{Held, all_of, held};
use crate::tree::catalog::run_files;
use crate::tree::checkpoint::{LogEnd, LogPart, checkpoint};
use crate::tree::file_copy::{CopiedStore, FileCopyOptions, Meter};
use crate::tree::levels::record;
use crate::tree::repair::{RepairReport, repair};
use crate::tree::salvage::DataLoss;
use crate::tree::verify::{VerifyReport, verify_file, verify_levels, verify_run};
use crate::wal::clean_shutdown::CleanShutdown;
use crate::wal::log_file;
use crate::{Error, Result};

impl Fixture {
    pub(super) fn verify(&self) -> VerifyReport {
        let dir = Path::new(DIR);
        verify_levels(
            &self.io,
            dir,
            std::slice::from_ref(self.levels()),
            &[],
            &self.cache,
            &self.stop,
        )
        .unwrap()
    }

    /// Repairs what is on disk, as another process would.
    pub(super) fn repair(&self) -> Result<RepairReport> {
        let options = store_options(&self.order, self.options);
        self.with_build(self.options.run_bytes, |build| repair(build, &options))
    }

    pub(super) fn run_path(&self, place: usize) -> std::path::PathBuf {
        let runs: Vec<u64> = self.levels().runs().map(|(_, run)| run.number()).collect();
        run::path(Path::new(DIR), runs[place % runs.len()])
    }

    /// Every value ever written to a key, and what a reader without a snapshot should find.
    fn possible(&self, key: &[u8]) -> BTreeSet<Option<Vec<u8>>> {
        let of_key = self.model.iter().filter(|version| version.key == key);
        of_key
            .map(|version| version.value.clone())
            .chain([None])
            .collect()
    }

    /// The content of the store on disk, by key.
    fn found(&self) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        let catalog = open(&self.io, &self.order, &self.cache).unwrap();
        let levels = &catalog.runs_of(0).unwrap().levels;
        let contents: BTreeMap<u64, Vec<Held>> = levels
            .runs()
            .map(|(_, run)| (run.number(), all_of(&mut RunCursor::new(run)).unwrap()))
            .collect();
        let keys = (0..KEYS).map(|key| format!("{key:05}").into_bytes());
        keys.map(|key| {
            (
                key.clone(),
                self.read(levels, &contents, &key, self.sequence),
            )
        })
        .collect()
    }
}

fn is_in(loss: &DataLoss, key: &[u8]) -> bool {
    let Some(keys) = &loss.keys else { return true };
    keys.from.as_ref().is_none_or(|from| from[..] <= *key)
        && keys.to.as_ref().is_none_or(|to| *key <= to[..])
}

#[test]
fn a_sound_store_verifies_and_everything_in_it_is_counted() {
    for is_reverse in [false, true] {
        let fixture = grown(is_reverse);
        let verified = fixture.verify();
        let levels = fixture.levels();
        assert!(verified.problems.is_empty(), "{:?}", verified.problems);
        assert_eq!(verified.runs as usize, levels.run_count());
        let sum = |of: fn(&run::RunMeta) -> u64| {
            levels.runs().map(|(_, run)| of(run.meta())).sum::<u64>()
        };
        assert_eq!(verified.entries, sum(|meta| meta.entries));
        assert_eq!(verified.bytes, sum(|meta| meta.file_bytes));
        assert_eq!(verified.pages, sum(|meta| u64::from(meta.pages())));
        assert!(fixture.repair().unwrap().was_sound());
    }
}

#[test]
fn metadata_that_is_wrong_about_repeated_keys_is_found() {
    let fixture = Fixture::new(false);
    let path = run::path(Path::new(DIR), 1);
    for (sequences, claim) in [
        ([2, 1], false),
        ([2, 1], true),
        ([2, 2], false),
        ([2, 2], true),
    ] {
        let mut writer = RunWriter::create(
            &fixture.io,
            &path,
            &fixture.order,
            fixture.comparator,
            RUN_OPTIONS,
        )
        .unwrap();
        let repeats_keys = sequences == [2, 1];
        let second = if repeats_keys { b"a" } else { b"b" };
        for (key, sequence) in [b"a", second].into_iter().zip(sequences) {
            writer
                .add(held(key, sequence, Some(b"value")).version())
                .unwrap();
        }
        writer.claim_repeats_keys(claim);
        writer.finish().unwrap();
        let run = Run::open(&fixture.io, &path, 1, fixture.order.clone(), &fixture.cache).unwrap();
        let verified = verify_run(&run, &fixture.stop, &mut VerifyReport::default());
        assert_eq!(verified.is_ok(), claim == repeats_keys, "{verified:?}");
        if let Err(error) = verified {
            let error = error.to_string();
            assert!(
                error.contains("whether a key occurs more than once"),
                "{error}"
            );
        }
    }
}

#[test]
fn any_changed_byte_of_a_run_is_found_and_named() {
    let fixture = grown(false);
    let path = fixture.run_path(0);
    let number = run::number(path.file_name().unwrap().to_str().unwrap());
    let levels = fixture.levels();
    let (_, run) = levels
        .runs()
        .find(|(_, run)| Some(run.number()) == number)
        .unwrap();
    let problems = || {
        let mut found = VerifyReport::default();
        let (named, dir) = (record(run), Path::new(DIR));
        let order = levels.order();
        verify_file(
            &fixture.io,
            dir,
            &named,
            order,
            &fixture.cache,
            &fixture.stop,
            &mut found,
        )
        .unwrap();
        found.problems
    };
    assert!(problems().is_empty());
    let good = fixture.io.read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fixture.io.write(&path, &bad);
        match &problems()[..] {
            [Error::CorruptFile { path: named, .. }] => assert_eq!(*named, path, "byte {at}"),
            [Error::NewerFormat { .. }] => {
                assert!((8..12).contains(&at) || at + 64 > good.len(), "byte {at}")
            }
            other => panic!("byte {at}: {other:?}"),
        }
    }
    for len in [0, 31, 64, good.len() / 2, good.len() - 1] {
        fixture.io.write(&path, &good[..len]);
        assert_eq!(problems().len(), 1, "cut to {len}");
    }
    fixture.io.take(&path);
    assert_eq!(fixture.verify().problems.len(), 1);
}

#[test]
fn a_lost_manifest_is_made_from_the_runs() {
    for is_reverse in [false, true] {
        let mut fixture = grown(is_reverse);
        for damage in [None, Some(&b"FORE-MAN and no more"[..])] {
            match damage {
                Some(bytes) => fixture.io.write("/db/MANIFEST", bytes),
                None => fixture.io.take("/db/MANIFEST"),
            }
            let repaired = fixture.repair().unwrap();
            assert!(
                repaired.rebuilt_manifest && repaired.losses.is_empty(),
                "{repaired:?}"
            );
            let io = fixture.io.kill();
            fixture.reopen_on(io);
            fixture.check();
            assert!(fixture.verify().problems.is_empty());
        }
        // It continues as before.
        fixture.write(3, Some(30));
        fixture.flush().unwrap();
        fixture.compact_all().unwrap();
        fixture.check();
    }
}

#[test]
fn a_bad_page_costs_what_was_in_it_and_nothing_else() {
    let mut fixture = grown(false);
    fixture.compact_all().unwrap();
    let path = fixture.run_path(1);
    let mut bytes = fixture.io.read(&path).unwrap();
    bytes[100] ^= 1;
    fixture.io.write(&path, &bytes);
    let repaired = fixture.repair().unwrap();
    let [loss] = &repaired.losses[..] else {
        panic!("{repaired:?}")
    };
    assert_eq!((&loss.path, repaired.new_runs), (&path, 1));
    assert!(loss.keys.is_some(), "{loss}");
    assert_eq!(repaired.set_aside, [path.with_extension("run.bad")]);
    assert_eq!(fixture.io.read(&repaired.set_aside[0]), Some(bytes));
    let expected = fixture.expected(fixture.sequence);
    let mut lost = 0;
    for (key, value) in fixture.found() {
        if is_in(loss, &key) {
            lost += usize::from(value.as_ref() != expected.get(&key))
        } else {
            assert_eq!(
                value.as_ref(),
                expected.get(&key),
                "key {}",
                key.escape_ascii()
            )
        }
    }
    assert!(lost > 0 && lost < 60, "{lost} keys are lost");
    assert!(fixture.repair().unwrap().was_sound());
}

#[test]
fn a_bad_filter_costs_no_data() {
    for is_manifest_lost in [false, true] {
        let mut fixture = grown(false);
        fixture.compact_all().unwrap();
        let path = fixture.run_path(0);
        let at = {
            let named = |run: &&Arc<run::Run>| run.path() == path;
            let mut runs = fixture.levels().runs().map(|(_, run)| run);
            runs.find(named).unwrap().filter_range().start as usize
        };
        let mut bytes = fixture.io.read(&path).unwrap();
        bytes[at] ^= 1;
        fixture.io.write(&path, &bytes);
        if is_manifest_lost {
            fixture.io.take("/db/MANIFEST");
        }
        let repaired = fixture.repair().unwrap();
        assert!(repaired.losses.is_empty(), "{repaired:?}");
        assert_eq!(repaired.new_runs, 1);
        assert_eq!(repaired.set_aside, [path.with_extension("run.bad")]);
        let io = fixture.io.kill();
        fixture.reopen_on(io);
        fixture.check();
        assert!(fixture.verify().problems.is_empty());
    }
}

#[test]
fn a_run_that_is_another_ones_is_not_taken_for_it() {
    let fixture = grown(false);
    let (path, other) = (fixture.run_path(0), fixture.run_path(1));
    fixture.io.write(&path, &fixture.io.read(other).unwrap());
    let repaired = fixture.repair().unwrap();
    assert_eq!(repaired.losses.len(), 1, "{repaired:?}");
    assert!(fixture.found().len() == usize::from(KEYS));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn after_any_damage_a_repaired_store_opens_and_makes_nothing_up(
        damage in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), 0_u8..6),
                1..5),
        is_reverse in any::<bool>(),
    ) {
        let fixture = grown(is_reverse);
        let mut is_format_newer = false;
        let mut is_taken = false;
        for (file, at, byte, how) in damage {
            let files = fixture.io.files();
            let files: Vec<_> = files.iter().filter(|path| !path.ends_with("FORMAT")).collect();
            let path = file.get(&files);
            let mut bytes = fixture.io.read(path).unwrap();
            if bytes.is_empty() {
                continue;
            }
            let at = at.index(bytes.len());
            match how {
                0 => {
                    is_taken = true;
                    fixture.io.take(path);
                }
                1 => fixture.io.write(path, &bytes[..at]),
                _ => {
                    bytes[at] = byte;
                    is_format_newer |= (8..12).contains(&at);
                    fixture.io.write(path, &bytes);
                }
            }
        }
        match fixture.repair() {
            Ok(repaired) => {
                let expected = fixture.expected(fixture.sequence);
                for (key, value) in fixture.found() {
                    // Without a manifest, a missing run goes unnoticed.
                    let is_unknown = is_taken && repaired.rebuilt_manifest;
                    if is_unknown || repaired.losses.iter()
                        .any(|loss| is_reverse || is_in(loss, &key)) {
                        prop_assert!(fixture.possible(&key).contains(&value));
                    } else {
                        prop_assert_eq!(value.as_ref(), expected.get(&key), "key {}",
                            key.escape_ascii());
                    }
                }
                prop_assert!(fixture.repair().unwrap().was_sound());
            }
            Err(Error::NewerFormat { .. }) => prop_assert!(is_format_newer),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

#[test]
fn a_repair_that_fails_anywhere_is_begun_again() {
    let base = grown(false);
    let prepare = || {
        let fixture = base.fork();
        let path = fixture.run_path(0);
        let mut bytes = fixture.io.read(&path).unwrap();
        bytes[50] ^= 1;
        fixture.io.write(&path, &bytes);
        fixture.io.take("/db/MANIFEST");
        // If a run that a compaction replaced came back, more would be readable.
        fixture.io.sync_dir(Path::new(DIR)).unwrap();
        fixture
    };
    let reference = prepare();
    let losses = reference.repair().unwrap().losses.len();
    let expected = reference.found();
    for call in 0.. {
        for fault in [Fault::Fail(EIO), Fault::PowerLoss] {
            let mut fixture = prepare();
            fixture.io.fail_call(fixture.io.calls() + call, fault);
            let first = fixture.repair();
            let Some(hit) = fixture.io.hit() else {
                assert_eq!(first.unwrap().losses.len(), losses);
                assert!(call > 20);
                return;
            };
            if fault == Fault::PowerLoss {
                fixture.io = fixture.io.crash(call);
            }
            let again = fixture
                .repair()
                .unwrap_or_else(|error| panic!("after {hit}: {error}"));
            // A run whose write was interrupted looks like one more run that is entirely lost.
            let known = again.losses.iter().filter(|loss| loss.keys.is_some());
            // If the manifest was already written, everything is right.
            if again.rebuilt_manifest && first.is_err() && known.count() != losses {
                panic!("after {hit}: {again:?}");
            }
            let found = fixture.found();
            for (key, value) in &found {
                assert!(
                    expected[key] == *value,
                    "after {hit}: key {}, {again:?}",
                    key.escape_ascii()
                );
            }
        }
    }
}

fn with_log(fixture: Fixture) -> (Fixture, LogEnd) {
    fixture.io.write("/db/wal-000003.log", &[3; 100]);
    fixture.io.write("/db/wal-000004.log", &[4; 90]);
    let part = |number, len| LogPart {
        number,
        file: {
            let path = log_file::path(Path::new(DIR), number);
            fixture.io.open(&path, OpenMode::Read).unwrap()
        },
        len,
    };
    let log = LogEnd {
        segments: vec![part(3, 100), part(4, 60)],
        last_sequence: fixture.sequence,
    };
    (fixture, log)
}

fn checkpoint_of(fixture: &Fixture, log: &LogEnd) -> Result<()> {
    let (io, into): (Arc<dyn Io>, _) = (Arc::new(fixture.io.clone()), Path::new("/copy"));
    let source = fixture.catalog.snapshot();
    let options = FileCopyOptions::default();
    let store = CopiedStore {
        limiter: &fixture.limiter,
        stop: &fixture.stop,
    };
    let mut meter = Meter::new(&options, Some(store), 0);
    let dir = Path::new(DIR);
    checkpoint(&io, dir, into, &source.manifest, log, &mut meter)
}

/// The store in a checkpoint, as a fixture in the checkpoint's directory.
fn world_of(fixture: &Fixture, io: &FaultIo) -> Fixture {
    let copy = FaultIo::new();
    copy.create_dir(Path::new(DIR)).unwrap();
    copy.sync_dir(Path::new("/")).unwrap();
    for path in io.files() {
        if let Ok(name) = path.strip_prefix("/copy") {
            copy.write(Path::new(DIR).join(name), &io.read(&path).unwrap());
        }
    }
    let mut next = prepare_again(fixture);
    next.reopen_on(copy);
    next
}

#[test]
fn a_checkpoint_is_a_store_of_its_own() {
    for has_links in [true, false] {
        let (mut fixture, log) = with_log(grown(false));
        fixture.io.set_links(has_links);
        checkpoint_of(&fixture, &log).unwrap();
        let io = fixture.io.crash(0);
        assert_eq!(io.read("/copy/wal-000003.log"), Some(vec![3; 100]));
        assert_eq!(io.read("/copy/wal-000004.log"), Some(vec![4; 60]));
        assert_eq!(io.read("/copy/FORMAT"), io.read("/db/FORMAT"));
        let shutdown = CleanShutdown::decode(&io.read("/copy/CLOSED").unwrap()).unwrap();
        assert_eq!(
            (shutdown.segment, shutdown.len_bytes, shutdown.last_sequence),
            (4, 60, fixture.sequence)
        );
        world_of(&fixture, &io).check();

        fixture.reopen_on(io.clone());
        (0..KEYS).for_each(|key| fixture.write(key, None));
        fixture.flush().unwrap();
        fixture.compact_all().unwrap();
        fixture.check();
        let mut old = world_of(&fixture, &io);
        old.model
            .retain(|version| version.sequence <= log.last_sequence);
        old.sequence = log.last_sequence;
        old.memtable.clear();
        old.check();
    }
}

#[test]
fn a_checkpoint_goes_nowhere_where_something_is() {
    let (fixture, log) = with_log(grown(false));
    fixture.io.create_dir("/copy".as_ref()).unwrap();
    fixture
        .io
        .open("/copy/mine".as_ref(), OpenMode::Create)
        .unwrap();
    let refused = checkpoint_of(&fixture, &log);
    assert!(matches!(refused, Err(Error::AlreadyExists { .. })));
    assert!(fixture.io.read("/copy/mine").is_some());
    fixture.io.remove("/copy/mine".as_ref()).unwrap();
    checkpoint_of(&fixture, &log).unwrap();
}

#[test]
fn a_checkpoint_that_fails_anywhere_is_whole_or_no_store() {
    let base = grown(false);
    for call in 0.. {
        for (fault, has_links) in [
            (Fault::Fail(EIO), true),
            (Fault::TornWrite(EIO), false),
            (Fault::PowerLoss, true),
            (Fault::PowerLoss, false),
        ] {
            let (fixture, log) = with_log(base.fork());
            fixture.io.set_links(has_links);
            fixture.io.fail_call(fixture.io.calls() + call, fault);
            let made = checkpoint_of(&fixture, &log);
            let Some(hit) = fixture.io.hit() else {
                made.unwrap();
                if has_links {
                    continue;
                }
                assert!(call > 20);
                return;
            };
            if fault != Fault::PowerLoss && hit.starts_with("drop what is cached") {
                made.unwrap();
                world_of(&fixture, &fixture.io).check();
            } else if fault != Fault::PowerLoss {
                assert!(made.is_err(), "{hit}");
                assert!(fixture.io.read("/copy/FORMAT").is_none(), "{hit}");
                check_reads(&fixture, &hit);
                checkpoint_of(&fixture, &log).unwrap();
                world_of(&fixture, &fixture.io).check();
            } else {
                for seed in 0..6 {
                    let io = fixture.io.crash(seed);
                    if io.read("/copy/FORMAT").is_some() {
                        world_of(&fixture, &io).check();
                    }
                }
            }
        }
    }
}

#[test]
fn a_checkpoint_has_every_run_and_holds_none() {
    let (fixture, log) = with_log(grown(false));
    let before: Vec<usize> = fixture
        .levels()
        .runs()
        .map(|(_, run)| Arc::strong_count(run))
        .collect();
    checkpoint_of(&fixture, &log).unwrap();
    let after: Vec<usize> = fixture
        .levels()
        .runs()
        .map(|(_, run)| Arc::strong_count(run))
        .collect();
    assert_eq!(before, after);
    assert_eq!(
        run_files(&fixture.io, Path::new("/copy")).unwrap(),
        run_files(&fixture.io, Path::new(DIR)).unwrap()
    );
}
