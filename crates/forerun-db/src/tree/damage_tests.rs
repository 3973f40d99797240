//! Damaged runs and manifests are found, named, and mended as far as that goes; checkpoints hold what they should.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::world::{DIR, KEYS, World, check_reads, grown, open, prepare_again, store_options};
use crate::io::fault::{EIO, Fault, FaultIo};
use crate::io::{Io, OpenMode};
use crate::run;
use crate::run::cursor::RunCursor;
use crate::tree::catalog::run_files;
use crate::tree::checkpoint::LogEnd;
use crate::tree::levels::record;
use crate::tree::repair::{Repaired, repair};
use crate::tree::salvage::Loss;
use crate::tree::verify::{Verified, verify_file, verify_levels};
use crate::versions::testing::{Held, all_of};
use crate::wal::closed::Closed;
use crate::{Error, Result};

impl World {
    fn verify(&self) -> Verified {
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
    fn repair(&self) -> Result<Repaired> {
        let options = store_options(&self.order, self.options);
        self.with_build(self.options.run_bytes, |build| repair(build, &options))
    }

    fn run_path(&self, place: usize) -> std::path::PathBuf {
        let runs: Vec<u64> = self.levels().runs().map(|(_, run)| run.number()).collect();
        run::path(Path::new(DIR), runs[place % runs.len()])
    }

    /// Every value that was ever written to a key, and what a reader without a snapshot should find.
    fn possible(&self, key: &[u8]) -> BTreeSet<Option<Vec<u8>>> {
        let of_key = self.model.iter().filter(|version| version.key == key);
        of_key
            .map(|version| version.value.clone())
            .chain([None])
            .collect()
    }

    /// What the store that is on disk has, by key.
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

fn is_in(loss: &Loss, key: &[u8]) -> bool {
    let Some(keys) = &loss.keys else { return true };
    keys.from.as_ref().is_none_or(|from| from[..] <= *key)
        && keys.to.as_ref().is_none_or(|to| *key <= to[..])
}

#[test]
fn a_sound_store_verifies_and_everything_in_it_is_counted() {
    for is_reverse in [false, true] {
        let world = grown(is_reverse);
        let verified = world.verify();
        let levels = world.levels();
        assert!(verified.problems.is_empty(), "{:?}", verified.problems);
        assert_eq!(verified.runs as usize, levels.run_count());
        let sum = |of: fn(&run::RunMeta) -> u64| {
            levels.runs().map(|(_, run)| of(run.meta())).sum::<u64>()
        };
        assert_eq!(verified.entries, sum(|meta| meta.entries));
        assert_eq!(verified.bytes, sum(|meta| meta.file_bytes));
        assert_eq!(verified.pages, sum(|meta| u64::from(meta.pages())));
        assert!(world.repair().unwrap().was_sound());
    }
}

#[test]
fn any_changed_byte_of_a_run_is_found_and_named() {
    let world = grown(false);
    let path = world.run_path(0);
    let number = run::number(path.file_name().unwrap().to_str().unwrap());
    let levels = world.levels();
    let (_, run) = levels
        .runs()
        .find(|(_, run)| Some(run.number()) == number)
        .unwrap();
    let problems = || {
        let mut found = Verified::default();
        let (named, dir) = (record(run), Path::new(DIR));
        let order = levels.order();
        verify_file(
            &world.io,
            dir,
            &named,
            order,
            &world.cache,
            &world.stop,
            &mut found,
        )
        .unwrap();
        found.problems
    };
    assert!(problems().is_empty());
    let good = world.io.read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        world.io.write(&path, &bad);
        match &problems()[..] {
            [Error::CorruptFile { path: named, .. }] => assert_eq!(*named, path, "byte {at}"),
            [Error::NewerFormat { .. }] => {
                assert!((8..12).contains(&at) || at + 64 > good.len(), "byte {at}")
            }
            other => panic!("byte {at}: {other:?}"),
        }
    }
    for len in [0, 31, 64, good.len() / 2, good.len() - 1] {
        world.io.write(&path, &good[..len]);
        assert_eq!(problems().len(), 1, "cut to {len}");
    }
    world.io.take(&path);
    assert_eq!(world.verify().problems.len(), 1);
}

#[test]
fn a_lost_manifest_is_made_from_the_runs() {
    for is_reverse in [false, true] {
        let mut world = grown(is_reverse);
        for damage in [None, Some(&b"FORE-MAN and no more"[..])] {
            match damage {
                Some(bytes) => world.io.write("/db/MANIFEST", bytes),
                None => world.io.take("/db/MANIFEST"),
            }
            let repaired = world.repair().unwrap();
            assert!(
                repaired.rebuilt_manifest && repaired.losses.is_empty(),
                "{repaired:?}"
            );
            let io = world.io.kill();
            world.reopen_on(io);
            world.check();
            assert!(world.verify().problems.is_empty());
        }
        // It goes on as before.
        world.write(3, Some(30));
        world.flush().unwrap();
        world.compact_all().unwrap();
        world.check();
    }
}

#[test]
fn a_bad_page_costs_what_was_in_it_and_nothing_else() {
    let mut world = grown(false);
    world.compact_all().unwrap();
    let path = world.run_path(1);
    let mut bytes = world.io.read(&path).unwrap();
    bytes[100] ^= 1;
    world.io.write(&path, &bytes);
    let repaired = world.repair().unwrap();
    let [loss] = &repaired.losses[..] else {
        panic!("{repaired:?}")
    };
    assert_eq!((&loss.path, repaired.new_runs), (&path, 1));
    assert!(loss.keys.is_some(), "{loss}");
    assert_eq!(repaired.set_aside, [path.with_extension("run.bad")]);
    assert_eq!(world.io.read(&repaired.set_aside[0]), Some(bytes));
    let expected = world.expected(world.sequence);
    let mut lost = 0;
    for (key, value) in world.found() {
        match is_in(loss, &key) {
            true => lost += usize::from(value.as_ref() != expected.get(&key)),
            false => assert_eq!(
                value.as_ref(),
                expected.get(&key),
                "key {}",
                key.escape_ascii()
            ),
        }
    }
    assert!(lost > 0 && lost < 60, "{lost} keys are lost");
    assert!(world.repair().unwrap().was_sound());
}

#[test]
fn a_run_that_is_another_ones_is_not_taken_for_it() {
    let world = grown(false);
    let (path, other) = (world.run_path(0), world.run_path(1));
    world.io.write(&path, &world.io.read(other).unwrap());
    let repaired = world.repair().unwrap();
    assert_eq!(repaired.losses.len(), 1, "{repaired:?}");
    assert!(world.found().len() == usize::from(KEYS));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn after_any_damage_a_repaired_store_opens_and_makes_nothing_up(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), 0_u8..6), 1..5),
        is_reverse in any::<bool>(),
    ) {
        let world = grown(is_reverse);
        let mut is_format_newer = false;
        let mut is_taken = false;
        for (file, at, byte, how) in damage {
            let files = world.io.files();
            let files: Vec<_> = files.iter().filter(|path| !path.ends_with("FORMAT")).collect();
            let path = file.get(&files);
            let mut bytes = world.io.read(path).unwrap();
            if bytes.is_empty() {
                continue;
            }
            let at = at.index(bytes.len());
            match how {
                0 => {
                    is_taken = true;
                    world.io.take(path);
                }
                1 => world.io.write(path, &bytes[..at]),
                _ => {
                    bytes[at] = byte;
                    is_format_newer |= (8..12).contains(&at);
                    world.io.write(path, &bytes);
                }
            }
        }
        match world.repair() {
            Ok(repaired) => {
                let expected = world.expected(world.sequence);
                for (key, value) in world.found() {
                    // Without a manifest nobody knows of a run that is not there.
                    let is_unknown = is_taken && repaired.rebuilt_manifest;
                    if is_unknown || repaired.losses.iter().any(|loss| is_reverse || is_in(loss, &key)) {
                        prop_assert!(world.possible(&key).contains(&value));
                    } else {
                        prop_assert_eq!(value.as_ref(), expected.get(&key), "key {}", key.escape_ascii());
                    }
                }
                prop_assert!(world.repair().unwrap().was_sound());
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
        let world = base.fork();
        let path = world.run_path(0);
        let mut bytes = world.io.read(&path).unwrap();
        bytes[50] ^= 1;
        world.io.write(&path, &bytes);
        world.io.take("/db/MANIFEST");
        // Were a file back that a compaction had replaced, there would be more to read.
        world.io.sync_dir(Path::new(DIR)).unwrap();
        world
    };
    let reference = prepare();
    let losses = reference.repair().unwrap().losses.len();
    let expected = reference.found();
    for call in 0.. {
        for fault in [Fault::Fail(EIO), Fault::PowerLoss] {
            let mut world = prepare();
            world.io.fail_call(world.io.calls() + call, fault);
            let first = world.repair();
            let Some(hit) = world.io.hit() else {
                assert_eq!(first.unwrap().losses.len(), losses);
                assert!(call > 20);
                return;
            };
            if fault == Fault::PowerLoss {
                world.io = world.io.crash(call);
            }
            let again = world
                .repair()
                .unwrap_or_else(|error| panic!("after {hit}: {error}"));
            // A run that was cut short in its writing looks like one more that is lost, in all.
            let known = again.losses.iter().filter(|loss| loss.keys.is_some());
            // Where the manifest was written already, all is as it should be.
            if again.rebuilt_manifest && first.is_err() && known.count() != losses {
                panic!("after {hit}: {again:?}");
            }
            let found = world.found();
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

fn with_log(world: World) -> (World, LogEnd) {
    world.io.write("/db/wal-000003.log", &[3; 100]);
    world.io.write("/db/wal-000004.log", &[4; 90]);
    let log = LogEnd {
        segments: vec![(3, 100), (4, 60)],
        last_sequence: world.sequence,
    };
    (world, log)
}

/// The store in a checkpoint, as a world whose directory it is.
fn world_of(world: &World, io: &FaultIo) -> World {
    let copy = FaultIo::new();
    copy.create_dir(Path::new(DIR)).unwrap();
    copy.sync_dir(Path::new("/")).unwrap();
    for path in io.files() {
        if let Ok(name) = path.strip_prefix("/copy") {
            copy.write(Path::new(DIR).join(name), &io.read(&path).unwrap());
        }
    }
    let mut next = prepare_again(world);
    next.reopen_on(copy);
    next
}

#[test]
fn a_checkpoint_is_a_store_of_its_own() {
    for has_links in [true, false] {
        let (mut world, log) = with_log(grown(false));
        world.io.set_links(has_links);
        world
            .catalog
            .checkpoint(Path::new("/copy"), &log, &world.stop)
            .unwrap();
        let io = world.io.crash(0);
        assert_eq!(io.read("/copy/wal-000003.log"), Some(vec![3; 100]));
        assert_eq!(io.read("/copy/wal-000004.log"), Some(vec![4; 60]));
        assert_eq!(io.read("/copy/FORMAT"), io.read("/db/FORMAT"));
        let closed = Closed::decode(&io.read("/copy/CLOSED").unwrap()).unwrap();
        assert_eq!(
            (closed.segment, closed.len_bytes, closed.last_sequence),
            (4, 60, world.sequence)
        );
        world_of(&world, &io).check();

        world.reopen_on(io.clone());
        (0..KEYS).for_each(|key| world.write(key, None));
        world.flush().unwrap();
        world.compact_all().unwrap();
        world.check();
        let mut old = world_of(&world, &io);
        old.model
            .retain(|version| version.sequence <= log.last_sequence);
        old.sequence = log.last_sequence;
        old.memtable.clear();
        old.check();
    }
}

#[test]
fn a_checkpoint_goes_nowhere_where_something_is() {
    let (world, log) = with_log(grown(false));
    world.io.create_dir("/copy".as_ref()).unwrap();
    world
        .io
        .open("/copy/mine".as_ref(), OpenMode::Create)
        .unwrap();
    let refused = world
        .catalog
        .checkpoint(Path::new("/copy"), &log, &world.stop);
    assert!(matches!(refused, Err(Error::AlreadyExists { .. })));
    assert!(world.io.read("/copy/mine").is_some());
    world.io.remove("/copy/mine".as_ref()).unwrap();
    world
        .catalog
        .checkpoint(Path::new("/copy"), &log, &world.stop)
        .unwrap();
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
            let (world, log) = with_log(base.fork());
            world.io.set_links(has_links);
            world.io.fail_call(world.io.calls() + call, fault);
            let made = world
                .catalog
                .checkpoint(Path::new("/copy"), &log, &world.stop);
            let Some(hit) = world.io.hit() else {
                made.unwrap();
                if has_links {
                    continue;
                }
                assert!(call > 20);
                return;
            };
            if fault != Fault::PowerLoss {
                assert!(made.is_err(), "{hit}");
                assert!(world.io.read("/copy/FORMAT").is_none(), "{hit}");
                check_reads(&world, &hit);
                world
                    .catalog
                    .checkpoint(Path::new("/copy"), &log, &world.stop)
                    .unwrap();
                world_of(&world, &world.io).check();
            } else {
                for seed in 0..6 {
                    let io = world.io.crash(seed);
                    if io.read("/copy/FORMAT").is_some() {
                        world_of(&world, &io).check();
                    }
                }
            }
        }
    }
}

#[test]
fn a_checkpoint_has_every_run_and_holds_none() {
    let (world, log) = with_log(grown(false));
    let before: Vec<usize> = world
        .levels()
        .runs()
        .map(|(_, run)| Arc::strong_count(run))
        .collect();
    world
        .catalog
        .checkpoint(Path::new("/copy"), &log, &world.stop)
        .unwrap();
    let after: Vec<usize> = world
        .levels()
        .runs()
        .map(|(_, run)| Arc::strong_count(run))
        .collect();
    assert_eq!(before, after);
    assert_eq!(
        run_files(&world.io, Path::new("/copy")).unwrap(),
        run_files(&world.io, Path::new(DIR)).unwrap()
    );
}
