//! The cache, by one thread and by many.

mod bounds;
mod clock;
mod compute;
mod compute_model;
mod crawler;
mod eviction;
mod expiry_ms;
mod flush;
mod guards;
mod item_bytes;
mod lookups;
mod model;
mod observed_evictions;
mod operations;
mod random;
mod refusing;
mod scan_keys;
mod shared;

#[path = "../testing/mod.rs"]
mod testing;
