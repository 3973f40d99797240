//! Compression by level: every choice gives the same answers, and statistics tell what is stored.

use crate::testing;

use std::collections::BTreeMap;

use forerun_db::io::fault::FaultIo;
use forerun_db::{
    Compression, Db, DescribeOptions, Description, Error, KeyspaceOptions, LevelStats, Options,
    RunOptions, TreeOptions, ZstdOptions, describe,
};
use proptest::prelude::*;

use testing::{open, tiny_options};

fn zstd(max_dict_bytes: usize) -> Compression {
    Compression::Zstd(ZstdOptions::default().max_dict_bytes(max_dict_bytes))
}

/// A value that compresses, differently for each round.
fn value(key: u16, round: u16) -> Vec<u8> {
    let text = format!("{key:05} was written in round {round}, ");
    text.repeat(4 + usize::from(key % 9)).into_bytes()
}

fn compression() -> impl Strategy<Value = Option<Compression>> {
    prop_oneof![
        Just(None),
        Just(Some(Compression::None)),
        Just(Some(Compression::Lz4)),
        Just(Some(zstd(0))),
        Just(Some(zstd(8 << 10))),
    ]
}

fn levels() -> impl Strategy<Value = [Option<Compression>; TreeOptions::LEVELS]> {
    proptest::array::uniform7(compression())
}

/// All entries of a store.
fn entries(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut entries = BTreeMap::new();
    let mut iter = db.iter();
    while let Some(entry) = iter.next_entry().unwrap() {
        entries.insert(entry.key.to_vec(), entry.value.to_vec());
    }
    entries
}

/// The sum over all levels.
fn sum(db: &Db, of: impl Fn(&LevelStats) -> u64) -> u64 {
    db.stats().levels.iter().map(of).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 24 } else { 300 }))]

    #[test]
    fn any_mixture_of_compressions_gives_the_same_answers_also_after_reopening(
        mixtures in prop::collection::vec((levels(), any::<bool>()), 1..4),
        keys in prop::collection::vec(0..400_u16, 100..900),
        page_kib in 4..17_usize,
    ) {
        let io = FaultIo::new();
        let mut model = BTreeMap::new();
        for (round, (levels, is_ingested)) in mixtures.into_iter().enumerate() {
            let base = tiny_options();
            let tree = base.tree.compression_per_level(levels);
            let run = base.run.page_bytes(page_kib << 10);
            // The trainer of a dictionary takes 12 MiB.
            let options = base.memtable_bytes(16 << 10).cache_bytes(32 << 20);
            let options = options.tree(tree).run(run);
            let db = open(&io, &options).unwrap();
            prop_assert_eq!(&entries(&db), &model);
            if is_ingested {
                let mut keys = keys.clone();
                keys.sort_unstable();
                keys.dedup();
                let mut ingestion = db.ingest();
                for key in keys {
                    let value = value(key, round as u16);
                    ingestion.add(key.to_be_bytes(), &value).unwrap();
                    model.insert(key.to_be_bytes().to_vec(), value);
                }
                ingestion.commit().unwrap();
            } else {
                for (at, key) in keys.iter().enumerate() {
                    if at % 10 == 9 {
                        db.delete(key.to_be_bytes()).unwrap();
                        model.remove(&key.to_be_bytes()[..]);
                    } else {
                        let value = value(*key, round as u16);
                        db.put(key.to_be_bytes(), &value).unwrap();
                        model.insert(key.to_be_bytes().to_vec(), value);
                    }
                }
                db.flush().unwrap();
            }
            prop_assert_eq!(&entries(&db), &model);
            for key in 0..400_u16 {
                let found = db.get(key.to_be_bytes()).unwrap();
                prop_assert_eq!(found.as_ref(), model.get(&key.to_be_bytes()[..]));
            }
            prop_assert_eq!(db.verify().unwrap().problems.len(), 0);
            db.close().unwrap();
        }
    }
}

#[test]
fn statistics_tell_the_compression_of_each_level() {
    let directory = tempfile::tempdir().unwrap();
    let tree = TreeOptions::default()
        .compression_per_level([Some(Compression::None); TreeOptions::LEVELS])
        .bottommost_compression(zstd(4096));
    let options = Options::default()
        .run(RunOptions::default().page_bytes(4 << 10))
        .tree(tree);
    let db = Db::open(directory.path().join("store"), options.clone()).unwrap();
    let fill = |round| {
        for key in 0..2000_u16 {
            db.put(key.to_be_bytes(), value(key, round)).unwrap();
        }
    };
    fill(0);
    db.flush().unwrap();
    let level0 = db.stats().levels[0];
    assert_eq!((level0.runs, level0.lz4_runs, level0.zstd_runs), (1, 0, 0));
    assert!(level0.bytes > level0.raw_bytes, "it has an index");
    fill(1);
    db.flush().unwrap();
    db.compact().unwrap();
    let levels = db.stats().levels;
    let last = levels[TreeOptions::LEVELS - 1];
    assert_eq!((last.runs, last.lz4_runs, last.zstd_runs), (1, 0, 1));
    assert!(last.bytes * 3 < last.raw_bytes && last.dictionary_bytes > 0);
    assert_eq!(sum(&db, |level| level.runs as u64), 1);
    let text = db.stats().to_string();
    assert!(text.contains("uncompressed; 1 with zstd"), "{text}");
    let path = directory.path().join("store");
    db.close().unwrap();

    let what = |run| {
        let mut what = DescribeOptions::default();
        what.run = Some(run);
        what
    };
    let run = (1..9).find_map(|run| describe(&path, &options, what(run)).ok());
    let Some(Description::Run(run)) = run else {
        panic!("no run");
    };
    assert_eq!(run.compression, "zstd");
    assert!((256..=4096).contains(&run.dictionary_bytes));
    let text = run.to_string();
    assert!(text.contains("compression    zstd"), "{text}");
}

#[test]
fn a_run_keeps_its_compression_until_it_is_written_again() {
    let io = FaultIo::new();
    let options = |compression| {
        let tree = TreeOptions::default().bottommost_compression(compression);
        tiny_options().tree(tree).memtable_bytes(64 << 10)
    };
    let db = open(&io, &options(Compression::Lz4)).unwrap();
    let mut ingestion = db.ingest();
    for key in 0..300_u16 {
        ingestion.add(key.to_be_bytes(), value(key, 0)).unwrap();
    }
    ingestion.commit().unwrap();
    db.close().unwrap();
    let db = open(&io, &options(zstd(0))).unwrap();
    assert_eq!(sum(&db, |level| level.lz4_runs as u64), 1);
    assert_eq!(db.get(7_u16.to_be_bytes()).unwrap(), Some(value(7, 0)));
    for key in 0..300_u16 {
        db.put(key.to_be_bytes(), value(key, 1)).unwrap();
    }
    db.compact().unwrap();
    assert_eq!(sum(&db, |level| level.lz4_runs as u64), 0);
    assert_eq!(sum(&db, |level| level.zstd_runs as u64), 1);
    assert_eq!(db.get(7_u16.to_be_bytes()).unwrap(), Some(value(7, 1)));
}

#[test]
fn compressions_that_do_not_exist_are_refused_wherever_they_are_named() {
    let bad = Compression::Zstd(ZstdOptions::default().level(40));
    let run = RunOptions::default().compression(bad);
    let tree = TreeOptions::default().bottommost_compression(bad);
    for (options, named) in [
        (Options::default().run(run), "compression"),
        (Options::default().tree(tree), "compression_per_level"),
        (
            Options::default().keyspace("a", KeyspaceOptions::default().run(run)),
            "compression",
        ),
        (
            Options::default().keyspace("a", KeyspaceOptions::default().tree(tree)),
            "compression_per_level",
        ),
    ] {
        let error = open(&FaultIo::new(), &options).unwrap_err();
        assert!(
            matches!(&error, Error::BadOption { option, reason }
                if *option == named && reason.contains("zstd has no level 40")),
            "{error}"
        );
    }
}
