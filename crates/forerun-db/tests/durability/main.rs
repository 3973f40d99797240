//! Files and what they survive: backups, damage, faults, crashes, opening.

mod backup;
mod backup_faults;
mod bad_page;
mod copies;
mod crashes;
mod damage;
mod direct_reads;
mod failed_installs;
mod fault_io;
mod faults;
mod log_segments;
mod open;
mod opening;
mod read_only;
mod regressions;
mod repair;
mod scrub;
mod unlinking;
mod write_out;

#[path = "../testing/mod.rs"]
mod testing;
