//! What a store does besides answering: flushes, compactions, ingestion, expiry, statistics.

mod compaction;
mod compression;
mod deletions;
mod dropped_listeners;
mod events;
mod expiry;
mod ingest;
mod ingest_commit;
mod parallel_compaction;
mod range_deletions;
mod statistics;

#[path = "../testing/mod.rs"]
mod testing;
