//! Converts the options of a program's store to the store's own types.

use std::time::Duration;

use forerun_core::Pages;
use forerun_db::{KeyspaceOptions, Options, ReadBackend};

use super::draw::{THREADS, private_name, shared_name};
use super::key_order::Panics;
use super::program::{KeyspaceShape, StoreShape};

impl StoreShape {
    /// The options as the store's own types.
    pub fn options(&self, panics: &Panics) -> Options {
        let own = &self.keyspaces[0];
        let shared = self.keyspaces.iter().enumerate().skip(1);
        let mut keyspaces: Vec<(String, KeyspaceOptions)> = shared
            .map(|(number, keyspace)| (shared_name(number), keyspace.options(panics)))
            .collect();
        let private = (0..THREADS).map(|n| (private_name(n), self.private.options(panics)));
        keyspaces.extend(private);
        let own_options = own.options(panics);
        Options::default()
            .comparator(own_options.comparator)
            .memory_limit_bytes(self.memory_limit_bytes)
            .memtable_bytes(self.memtable_bytes)
            .memtable_index(self.memtable_index)
            .cache_bytes(self.cache_bytes)
            .max_open_files(self.max_open_files)
            .pages(Pages::Small)
            .run(own.run)
            .ttl(own_options.ttl)
            .reads(ReadBackend::Sync)
            .tree(own.tree)
            .background(self.background)
            .background_threads(self.background_threads)
            .scrub_rate_bytes(self.scrub_rate_bytes)
            .durability(self.durability)
            .checks(self.checks)
            .verify_checksums(self.verify_checksums)
            .wal(self.wal)
            .wal_segment_bytes(self.segment_bytes)
            .keyspaces(keyspaces)
    }
}

impl KeyspaceShape {
    fn options(&self, panics: &Panics) -> KeyspaceOptions {
        KeyspaceOptions::default()
            .comparator(self.order.comparator(panics))
            .run(self.run)
            .tree(self.tree)
            .ttl(self.ttl_s.map(Duration::from_secs))
    }
}
