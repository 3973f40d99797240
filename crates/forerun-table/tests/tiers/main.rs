//! The table and its tiers.

mod close;
mod count;
mod device;
mod faults;
mod find_pooled;
mod find_to_device;
mod import;
mod metadata;
mod model;
mod open;
mod slow_disk;
mod write_amplification;
mod write_once;

#[path = "../testing/mod.rs"]
mod testing;
