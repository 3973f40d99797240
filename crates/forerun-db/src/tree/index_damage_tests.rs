//! Damaged indexes: never believed, reported by a verification, written again by a repair.

use std::path::Path;
use std::sync::Arc;

use crate::Error;
use crate::run::{self, Run, RunWriter, TRAILER_BYTES, checksum};
use crate::testing::tree_fixture::{DIR, RUN_OPTIONS, grown};
use crate::testing::version_list::held;

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
    let repaired = fixture.repair().unwrap();
    assert!(repaired.losses.is_empty(), "{repaired:?}");
    assert_eq!(repaired.new_runs, 1);
    let io = fixture.io.kill();
    fixture.reopen_on(io);
    fixture.check();
    assert!(fixture.verify().problems.is_empty());
    let mut runs = fixture.levels().runs().map(|(_, run)| run);
    assert!(runs.all(|run| run.index().is_some()));
}

#[test]
fn an_index_that_lies_is_found_although_its_checksum_is_right() {
    let fixture = grown(false);
    let (_, run) = fixture.levels().runs().next().unwrap();
    let range = run.index_range();
    let good = fixture.io.read(run.path()).unwrap();
    let locations = range.start as usize..range.end as usize - TRAILER_BYTES;
    let mut lies = 0;
    for bucket in locations.step_by(64) {
        for slot in (bucket..bucket + 48).step_by(4) {
            if good[slot..slot + 4] == [0; 4] {
                continue;
            }
            let mut bytes = good.clone();
            bytes[slot] ^= 1;
            let (start, end) = (range.start as usize, range.end as usize - 8);
            let sum = checksum(run.salt(), range.start, &bytes[start..end]);
            bytes[end..end + 8].copy_from_slice(&sum.to_le_bytes());
            fixture.io.write(run.path(), &bytes);
            let problems = fixture.verify().problems;
            assert_eq!(problems.len(), 1, "{problems:?}");
            lies += 1;
        }
    }
    assert!(lies > 10);
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
        assert!(
            (12..=256).contains(&run.usual_record_bytes()),
            "{raw_bytes}"
        );
    }
}
