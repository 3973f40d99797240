//! What a store does besides answering: flushes, compactions, ingestion, expiry, statistics.

mod compaction;
mod compression;
mod deletions;
mod events;
mod expiry;
mod ingest;
mod parallel_compaction;
mod range_deletions;
mod statistics;

#[path = "../testing/mod.rs"]
mod testing;
