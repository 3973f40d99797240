//! The write-ahead log. Its bytes are defined in `docs/internals/format-log.md`.
//!
//! ```text
//!   record.rs             a batch and its checksum: begun, sealed, read
//!   segment_bytes.rs      the bytes of such a file, read in pieces
//!   record_search.rs      finds good records among any bytes
//!   log_file.rs           a file of records: its name and its header
//!   clean_shutdown.rs     where the log ended at a clean close
//!   open_segment.rs       a segment that is open for writing, and why a change of it failed
//!   writer.rs             appends groups of records, begins files, undoes failed appends
//!   unsynced_segments.rs  full segments, synced behind the writer
//!   recovery.rs           reads the log back and decides which bad bytes are damage
//!   durable_segments.rs   which segments were on stable storage when the power was lost
//!   recovery_report.rs    what recovery found, for people and programs
//! ```

pub(crate) mod clean_shutdown;
mod durable_segments;
pub(crate) mod log_file;
#[cfg(test)]
mod lost_segments_tests;
pub(crate) mod open_segment;
pub(crate) mod record;
pub(crate) mod record_search;
pub(crate) mod recovery;
pub(crate) mod recovery_report;
mod segment_bytes;
pub(crate) mod unsynced_segments;
pub(crate) mod writer;
