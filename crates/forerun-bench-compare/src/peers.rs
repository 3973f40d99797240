//! The stores that are compared with Forerun's, by name. The memtables are in
//! `rocks/memtable.rs`.

#[cfg(feature = "rocksdb")]
use crate::rocks::{BlockIndex, RocksDisk, RocksRun};
use forerun_bench::engine::{Engine, Feature};

/// A store on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// RocksDB with its default options, MultiGet for batches
    #[cfg(feature = "rocksdb")]
    Rocksdb,
    /// The same with Bloom filters of 10 bits per key
    #[cfg(feature = "rocksdb")]
    RocksdbBloom,
    /// RocksDB with its default options, but interpolation in evenly spread index blocks (kAuto)
    #[cfg(feature = "rocksdb")]
    RocksdbAutoIndex,
    /// RocksDB with its default options, but a trie as the index of its runs
    #[cfg(feature = "rocksdb")]
    RocksdbTrieIndex,
    /// LMDB, with the system's cache
    #[cfg(feature = "lmdb")]
    Lmdb,
    /// redb
    #[cfg(feature = "redb")]
    Redb,
    /// fjall
    #[cfg(feature = "fjall")]
    Fjall,
}

impl Peer {
    /// The peers measured by default.
    pub const DEFAULT: &[Peer] = &[
        #[cfg(feature = "rocksdb")]
        Peer::Rocksdb,
        #[cfg(feature = "lmdb")]
        Peer::Lmdb,
        #[cfg(feature = "redb")]
        Peer::Redb,
        #[cfg(feature = "fjall")]
        Peer::Fjall,
    ];

    /// Those of them that have several keyspaces in one store.
    pub fn with_keyspaces() -> Vec<Peer> {
        let all = Peer::DEFAULT.iter().copied();
        all.filter(|peer| peer.engine().supports(Feature::Keyspaces))
            .collect()
    }

    /// The peer as an engine.
    pub fn engine(self) -> Box<dyn Engine> {
        match self {
            #[cfg(feature = "rocksdb")]
            Peer::Rocksdb => Box::new(RocksDisk::Default),
            #[cfg(feature = "rocksdb")]
            Peer::RocksdbBloom => Box::new(RocksDisk::Bloom),
            #[cfg(feature = "rocksdb")]
            Peer::RocksdbAutoIndex => Box::new(RocksDisk::AutoIndex),
            #[cfg(feature = "rocksdb")]
            Peer::RocksdbTrieIndex => Box::new(RocksDisk::TrieIndex),
            #[cfg(feature = "lmdb")]
            Peer::Lmdb => Box::new(crate::lmdb::Lmdb),
            #[cfg(feature = "redb")]
            Peer::Redb => Box::new(crate::redb::Redb),
            #[cfg(feature = "fjall")]
            Peer::Fjall => Box::new(crate::fjall::Fjall),
        }
    }
}

/// What holds the entries of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RunPeer {
    /// RocksDB's block-based table with Bloom filters of 10 bits per key
    #[cfg(feature = "rocksdb")]
    Rocksdb,
    /// The same with interpolation in index blocks whose keys are spread evenly (kAuto)
    #[cfg(feature = "rocksdb")]
    RocksdbAutoIndex,
    /// The same with a trie as the index
    #[cfg(feature = "rocksdb")]
    RocksdbTrieIndex,
    /// OptimizeForPointLookup: as rocksdb, and a hash index in each block
    #[cfg(feature = "rocksdb")]
    RocksdbPointLookup,
    /// PlainTable: a mapped file with a hash index of whole keys
    #[cfg(feature = "rocksdb")]
    RocksdbPlainTable,
    /// LMDB, with the system's cache
    #[cfg(feature = "lmdb")]
    Lmdb,
}

impl RunPeer {
    /// The peers measured by default.
    pub const DEFAULT: &[RunPeer] = &[
        #[cfg(feature = "rocksdb")]
        RunPeer::Rocksdb,
        #[cfg(feature = "lmdb")]
        RunPeer::Lmdb,
    ];

    /// The peer as an engine.
    pub fn engine(self) -> Box<dyn Engine> {
        match self {
            #[cfg(feature = "rocksdb")]
            RunPeer::Rocksdb => Box::new(RocksRun::Blocks(BlockIndex::Binary)),
            #[cfg(feature = "rocksdb")]
            RunPeer::RocksdbAutoIndex => Box::new(RocksRun::Blocks(BlockIndex::Auto)),
            #[cfg(feature = "rocksdb")]
            RunPeer::RocksdbTrieIndex => Box::new(RocksRun::Blocks(BlockIndex::Trie)),
            #[cfg(feature = "rocksdb")]
            RunPeer::RocksdbPointLookup => Box::new(RocksRun::PointLookup),
            #[cfg(feature = "rocksdb")]
            RunPeer::RocksdbPlainTable => Box::new(RocksRun::PlainTable),
            #[cfg(feature = "lmdb")]
            RunPeer::Lmdb => Box::new(crate::lmdb::Lmdb),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use forerun_bench::output::Output;
    use forerun_bench::workloads;
    use forerun_measure::progress::Progress;

    #[test]
    fn engines_have_the_names_by_which_they_are_chosen() {
        let stores = Peer::value_variants().iter();
        let stores = stores.map(|peer| (peer.to_possible_value(), peer.engine()));
        let runs = RunPeer::value_variants().iter();
        let runs = runs.map(|peer| (peer.to_possible_value(), peer.engine()));
        for (name, engine) in stores.chain(runs) {
            assert_eq!(name.unwrap().get_name(), engine.name());
        }
    }

    #[test]
    fn stores_with_keyspaces_are_compared_by_default() {
        let names: Vec<_> = Peer::with_keyspaces()
            .iter()
            .filter_map(|peer| Some(peer.to_possible_value()?.get_name().to_owned()))
            .collect();
        let expected = [
            ("rocksdb", cfg!(feature = "rocksdb")),
            ("fjall", cfg!(feature = "fjall")),
        ];
        let built_in = expected.iter().filter(|(_, built_in)| *built_in);
        assert!(built_in.map(|(name, _)| *name).eq(names));
    }

    #[test]
    fn engines_with_keyspaces_run_every_shape_that_they_can() {
        for peer in Peer::with_keyspaces() {
            let engine = peer.engine();
            let args = workloads::Args {
                output: Output {
                    quick: true,
                    json: true,
                    ..Output::default()
                },
                keyspaces: Some(3),
                ..workloads::Args::default()
            };
            let mut out = Vec::new();
            workloads::run_to(&args, &[&*engine], &Progress::hidden(), &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            let rows = |shape: &str| {
                let shape = format!("\"case\":\"{shape}\"");
                let engine = format!("\"engine\":\"{}\"", engine.name());
                let lines = out.lines();
                lines
                    .filter(|line| line.contains(&shape) && line.contains(&engine))
                    .count()
            };
            let able = |feature, rows| if engine.supports(feature) { rows } else { 0 };
            assert_eq!(rows("hot-keyspace"), 3);
            assert_eq!(rows("nightly-load"), able(Feature::Ingestion, 3));
            assert_eq!(rows("queue"), 2);
            assert_eq!(rows("range-deletes"), able(Feature::RangeDeletes, 3));
            assert_eq!(rows("time-series"), able(Feature::Ttl, 3));
            assert_eq!(rows("overwrite"), 1);
        }
    }
}
