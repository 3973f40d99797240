//! The write-ahead log. Its bytes are defined in `docs/internals/format-log.md`.
//!
//! ```text
//!   record.rs           a batch and its checksum: begun, sealed, read, searched for
//!   log_file.rs         a file of records: its name and its header
//!   clean_shutdown.rs   where the log ended at a clean close
//!   writer.rs           appends groups of records, begins files, undoes failed appends
//!   recovery.rs         reads the log back and decides which bad bytes are damage
//!   recovery_report.rs  what recovery found, for people and programs
//! ```

pub(crate) mod clean_shutdown;
pub(crate) mod log_file;
pub(crate) mod record;
pub(crate) mod recovery;
pub(crate) mod recovery_report;
pub(crate) mod writer;

/// Reads `bytes` as a log segment, as recovery does, and returns the number of good records found.
/// For fuzzing.
#[doc(hidden)]
pub fn fuzz_segment(bytes: &[u8]) -> usize {
    let (salt, mut sequence) = match log_file::Header::decode(bytes) {
        Ok(header) => (header.salt, header.first_sequence),
        Err(_) => (0, 1),
    };
    let (mut offset, mut records) = (log_file::HEADER_BYTES, 0);
    while offset < bytes.len() {
        let found = record::read(bytes, offset, salt)
            .ok()
            .or_else(|| record::find(bytes, offset + 1, salt, sequence));
        let Some(record) = found else { break };
        let numbered = record.ops.len() + usize::from(record.is_ingestion);
        assert_eq!(numbered, record.count as usize);
        assert_eq!(record.ops.clone().count(), record.ops.len());
        assert!(record.end > offset && record.end <= bytes.len());
        sequence = record.last_sequence() + 1;
        offset = record.end;
        records += 1;
    }
    records
}
