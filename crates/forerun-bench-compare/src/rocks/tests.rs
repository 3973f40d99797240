//! Every RocksDB answers correctly with the options that it claims, or says what it lacks.

use super::*;
use clap::ValueEnum;
use forerun_bench::engine::{self, Engine, StoreRequirements};
use forerun_bench::workload::Dataset;

fn verify_all(engine: &dyn Engine, store: &dyn Store, data: &Dataset) {
    for strategy in engine.strategies() {
        let mut reader = store.reader(&strategy).unwrap();
        let answers = engine::verify(&mut *reader, data);
        answers.unwrap_or_else(|error| panic!("{} {strategy}: {error:#}", engine.name()));
    }
    let facts = store.facts();
    assert_eq!(facts.len(), 1, "{facts:?}");
    let name = &facts[0].0;
    assert!(name.starts_with(engine.name()), "{name}");
}

#[test]
fn each_memtable_answers_correctly() {
    for peer in RocksMemtable::value_variants() {
        let data = Dataset::new(3000, 16, 0, 100).unwrap();
        let store = match peer.open(&StoreRequirements::of(&data, 3000)) {
            Err(error) if *peer == RocksMemtable::RocksdbFinger => {
                let error = format!("{error:#}");
                assert!(
                    error.contains("memtable_batch_lookup_optimization"),
                    "{error}"
                );
                continue;
            }
            opened => opened.unwrap(),
        };
        let mut writer = store.writer().unwrap();
        engine::load(&mut *writer, &data, 0..1500, 1, |_| ()).unwrap();
        engine::load(&mut *writer, &data, 1500..3000, 7, |_| ()).unwrap();
        store.wait_idle().unwrap();
        verify_all(peer, &*store, &data);
        // The second version of an entry counts.
        let key = data.present(5);
        writer.write(&key, b"second").unwrap();
        for strategy in peer.strategies() {
            let mut reader = store.reader(&strategy).unwrap();
            assert_eq!(reader.read(&[&key]).unwrap(), 1);
            assert_eq!(reader.value(0), Some(&b"second"[..]));
        }
    }
}

#[test]
fn each_run_answers_correctly() {
    for peer in [
        RocksRun::Blocks(BlockIndex::Binary),
        RocksRun::Blocks(BlockIndex::Auto),
        RocksRun::Blocks(BlockIndex::Trie),
        RocksRun::PointLookup,
        RocksRun::PlainTable,
    ] {
        for (key_bytes, value_bytes) in [(16, 100), (9, 0), (100, 1000)] {
            let data = Dataset::new(3000, key_bytes, 0, value_bytes).unwrap();
            let store = peer.open_loaded(&data).unwrap().unwrap();
            verify_all(&peer, &*store, &data);
        }
    }
}

#[test]
fn each_store_on_disk_answers_correctly() {
    for peer in [
        RocksDisk::Default,
        RocksDisk::Bloom,
        RocksDisk::AutoIndex,
        RocksDisk::TrieIndex,
    ] {
        let data = Dataset::new(3000, 16, 0, 100).unwrap();
        let store = peer.open(&StoreRequirements::of(&data, 3000)).unwrap();
        engine::load(&mut *store.writer().unwrap(), &data, 0..3000, 7, |_| ()).unwrap();
        store.wait_idle().unwrap();
        verify_all(&peer, &*store, &data);
    }
}

#[test]
fn a_memtable_that_was_flushed_is_not_measured() {
    let data = Dataset::new(300, 16, 0, 10).unwrap();
    let requirements = StoreRequirements::of(&data, 0);
    let mut options = Options::default();
    options.create_if_missing(true);
    let directory = requirements.directory().unwrap();
    let store = RocksStore::open("rocksdb", &options, directory, Kept::Memtable).unwrap();
    engine::load(&mut *store.writer().unwrap(), &data, 0..300, 1, |_| ()).unwrap();
    store.wait_idle().unwrap();
    store.db.flush().unwrap();
    let error = store.wait_idle().unwrap_err().to_string();
    assert!(error.contains("flushed"), "{error}");
}

#[test]
fn engines_have_the_names_by_which_they_are_chosen() {
    for peer in RocksMemtable::value_variants() {
        let name = peer.to_possible_value().unwrap();
        assert_eq!(name.get_name(), peer.name());
    }
}
