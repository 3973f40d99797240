//! Damaged indexes: never believed, reported by a verification, written again by a repair.

use std::path::Path;
use std::sync::Arc;

use crate::Error;
use crate::run::{self, Run, RunWriter, TRAILER_BYTES, checksum};
use crate::testing::tree_fixture::{DIR, Fixture, RUN_OPTIONS, grown};
use crate::testing::version_list::held;

/// Repairs a tree in which the index of one run is damaged, and checks that nothing is lost and
/// nothing is wrong afterwards.
fn check_repair(fixture: &mut Fixture) {
    let repaired = fixture.repair().unwrap();
    assert!(repaired.losses.is_empty(), "{repaired:?}");
    assert_eq!(repaired.new_runs, 1);
    let io = fixture.io.kill();
    fixture.reopen_on(io);
    fixture.check();
    assert!(fixture.verify().problems.is_empty());
}

/// Loads the index or the filter of every run, as a store does after it was opened.
fn load_filters(fixture: &Fixture) {
    for (_, run) in fixture.levels().runs() {
        assert!(!run.has_filter(), "opening loads none");
        run.load_filter().unwrap();
    }
}

#[test]
fn a_bad_index_is_reported_and_not_used_and_a_repair_writes_it_again() {
    let mut fixture = grown(false);
    fixture.compact_all().unwrap();
    let path = fixture.run_path(0);
    let range = {
        let named = |run: &&Arc<run::Run>| run.path() == path;
        let mut runs = fixture.levels().runs().map(|(_, run)| run);
        let run = runs.find(named).unwrap();
        assert!(run.index().is_some());
        run.index_range()
    };
    let good = fixture.io.read(&path).unwrap();
    for at in range.start as usize..range.end as usize {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        fixture.io.write(&path, &bytes);
        let io = fixture.io.kill();
        fixture.reopen_on(io);
        load_filters(&fixture);
        let mut runs = fixture.levels().runs().map(|(_, run)| run);
        assert!(runs.any(|run| run.path() == path && run.index().is_none()));
        if at % 16 == 0 {
            fixture.check();
        }
        let problems = fixture.verify().problems;
        let [Error::CorruptFile { path: named, .. }] = &problems[..] else {
            panic!("byte {at}: {problems:?}");
        };
        assert_eq!(*named, path);
    }
    check_repair(&mut fixture);
    load_filters(&fixture);
    let mut runs = fixture.levels().runs().map(|(_, run)| run);
    assert!(runs.all(|run| run.index().is_some()));
}

#[test]
fn a_wrong_index_with_a_valid_checksum_is_found_and_rebuilt() {
    let mut fixture = grown(false);
    fixture.compact_all().unwrap();
    let (path, salt, range) = {
        let (_, run) = fixture.levels().runs().next().unwrap();
        (run.path().to_owned(), run.salt(), run.index_range())
    };
    let good = fixture.io.read(&path).unwrap();
    let buckets = range.start as usize..range.end as usize - TRAILER_BYTES;
    // The run with one bit of its index changed, and the checksum of that.
    let with_lie = |at: usize, bit: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << bit;
        let end = range.end as usize - 8;
        let sum = checksum(salt, range.start, &bytes[buckets.start..end]);
        bytes[end..end + 8].copy_from_slice(&sum.to_le_bytes());
        bytes
    };
    let mut lies = 0;
    for at in buckets.clone() {
        for bit in [at % 8, (at + 3) % 8] {
            fixture.io.write(&path, &with_lie(at, bit));
            let problems = fixture.verify().problems;
            // One more overflow bit makes a lookup read one more bucket, and answer the same.
            let is_overflow = (at - buckets.start) % 64 == 63;
            if is_overflow && good[at] >> bit & 1 == 0 {
                assert!(problems.is_empty(), "byte {at}: {problems:?}");
            } else {
                let [Error::CorruptFile { path: named, .. }] = &problems[..] else {
                    panic!("byte {at}, bit {bit}: {problems:?}");
                };
                assert_eq!(*named, path);
                lies += 1;
            }
        }
    }
    assert!(lies > 200, "{lies} lies");
    fixture.io.write(&path, &with_lie(buckets.start, 0));
    check_repair(&mut fixture);
}

#[test]
fn an_index_of_another_run_is_not_believed() {
    let fixture = grown(false);
    let (io, order) = (&fixture.io, &fixture.order);
    let write = |number: u64, first: u32| {
        let path = run::path(Path::new(DIR), number);
        let created = RunWriter::create(io, &path, order, fixture.comparator, RUN_OPTIONS);
        let mut writer = created.unwrap();
        for key in first..first + 50 {
            writer
                .add(held(&key.to_be_bytes(), 1, Some(b"value")).version())
                .unwrap();
        }
        writer.finish().unwrap();
        path
    };
    let open = |path: &Path| Run::open(io, path, 9999, order.clone(), &fixture.cache).unwrap();
    let (one, other) = (write(9998, 0), write(9999, 50));
    let range = open(&one).index_range();
    assert_eq!(open(&other).index_range(), range);
    let range = range.start as usize..range.end as usize;
    let mut bytes = io.read(&other).unwrap();
    bytes[range.clone()].copy_from_slice(&io.read(&one).unwrap()[range]);
    io.write(&other, &bytes);
    let run = open(&other);
    assert!(run.index().is_none() && run.has_filter());
    assert!(matches!(run.read_index(), Err(Error::CorruptFile { .. })));
}

#[test]
fn a_run_opens_whatever_its_metadata_says_about_the_size_of_records() {
    let fixture = grown(false);
    let path = run::path(Path::new(DIR), 9999);
    for raw_bytes in [0, 6, 1 << 62, u64::MAX] {
        let (io, order) = (&fixture.io, &fixture.order);
        let created = RunWriter::create(io, &path, order, fixture.comparator, RUN_OPTIONS);
        let mut writer = created.unwrap();
        writer.add(held(b"a", 1, Some(b"value")).version()).unwrap();
        writer.claim_raw_bytes(raw_bytes);
        writer.finish().unwrap();
        let run = Run::open(io, &path, 9999, order.clone(), &fixture.cache).unwrap();
        assert!(run.average_record_bytes() >= 12, "{raw_bytes}");
    }
}
