//! The entry points of the fuzz targets that read bytes of a store: a batch, a log segment, a
//! manifest and a backup's record. Those of pages are in `run/testing/fuzz.rs`.

use crate::WriteBatch;
use crate::backup::backup_record::{self, Record};
use crate::io::fault::FaultIo;
use crate::io::{Io, OpenMode};
use crate::sealed::put_bytes;
use crate::tree::manifest::{self, Manifest};
use crate::wal::log_file;
use crate::wal::record_search::RecordSearch;

/// Decodes `encoded` as a batch of `ops` operations. Whatever decodes must encode to the same
/// bytes. Returns the number of operations.
pub fn write_batch(encoded: &[u8], ops: usize) -> usize {
    let Ok(batch) = WriteBatch::from_encoded(encoded, ops) else {
        return 0;
    };
    let mut again = WriteBatch::new();
    for (keyspace, op) in batch.ops().with_keyspaces() {
        assert!(again.push_in(keyspace, op).is_ok(), "lengths were checked");
    }
    assert_eq!(again, batch);
    batch.len()
}

/// Reads `bytes` as a log segment, as recovery does, and returns the number of good records.
pub fn log_segment(bytes: &[u8]) -> usize {
    let (salt, mut sequence) = match log_file::Header::decode(bytes) {
        Ok(header) => (header.salt, header.first_sequence),
        Err(_) => (0, 1),
    };
    let io = FaultIo::new();
    io.write("/segment", bytes);
    let file = io.open("/segment".as_ref(), OpenMode::Read);
    let file = file.expect("it was just written");
    let mut search = RecordSearch::new(&*file, salt).expect("it has a length");
    let (mut offset, mut records) = (log_file::HEADER_BYTES, 0);
    while offset < bytes.len() {
        let is_good = search.record(offset).expect("it is read").is_ok();
        let found = if is_good {
            Some(offset)
        } else {
            search.find(offset + 1, sequence).expect("it is read")
        };
        let Some(found) = found else { break };
        let record = search.record(found).expect("it is read");
        let record = record.expect("it was found");
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

/// Decodes `body` as a manifest's body and returns the number of runs in it. Whatever decodes must
/// encode to the same bytes.
pub fn manifest(body: &[u8]) -> usize {
    // Add the checksums, so that the fuzzer gets past their check.
    let bytes = manifest::KIND.seal_bytes(body);
    match Manifest::decode(&bytes) {
        Ok(manifest) => {
            assert_eq!(manifest.encode(), bytes);
            manifest.runs().count()
        }
        Err(_) => 0,
    }
}

/// Decodes `body` as the body of a backup's record, after adding valid checksums, and returns the
/// number of runs in it. If `manifest_body` decodes, it replaces the record's manifest. Whatever
/// decodes must encode to the same bytes.
pub fn backup_record(body: &[u8], manifest_body: &[u8]) -> usize {
    let mut decoded = 0;
    let with_manifest = body.split_at_checked(16).map(|(start, rest)| {
        let mut body = start.to_vec();
        put_bytes(&mut body, &manifest::KIND.seal_bytes(manifest_body));
        body.extend_from_slice(rest);
        body
    });
    for body in with_manifest.iter().map(Vec::as_slice).chain([body]) {
        let bytes = backup_record::KIND.seal_bytes(body);
        if let Ok(record) = Record::decode(&bytes) {
            assert_eq!(record.encode(), bytes);
            assert_eq!(record.runs().count(), record.checksums.len());
            decoded += record.checksums.len();
        }
    }
    decoded
}
