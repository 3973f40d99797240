//! The stores on disk that are compared with Forerun's, by name.

use forerun_bench::engine::Engine;

/// A store on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// RocksDB with its default options, MultiGet for batches
    #[cfg(feature = "rocksdb")]
    Rocksdb,
    /// The same with Bloom filters of 10 bits per key
    #[cfg(feature = "rocksdb")]
    RocksdbBloom,
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

    /// The peer as an engine.
    pub fn engine(self) -> Box<dyn Engine> {
        match self {
            #[cfg(feature = "rocksdb")]
            Peer::Rocksdb => Box::new(crate::rocks::RocksDisk { filters: false }),
            #[cfg(feature = "rocksdb")]
            Peer::RocksdbBloom => Box::new(crate::rocks::RocksDisk { filters: true }),
            #[cfg(feature = "lmdb")]
            Peer::Lmdb => Box::new(crate::lmdb::Lmdb),
            #[cfg(feature = "redb")]
            Peer::Redb => Box::new(crate::redb::Redb),
            #[cfg(feature = "fjall")]
            Peer::Fjall => Box::new(crate::fjall::Fjall),
        }
    }
}
