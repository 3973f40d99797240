//! The entry point of a fuzz target.

use std::path::PathBuf;

use super::file::Reader;

/// Reads bytes as a saved table. The result is an error or entries, never a panic.
pub fn fuzz_table_file(bytes: &[u8]) {
    let mut reader = Reader::new(PathBuf::from("bytes"), bytes);
    // No file has rows that are longer than the file.
    let Ok((row_bytes, ..)) = reader.header() else {
        return;
    };
    let row_bytes = row_bytes.min(bytes.len() as u64);
    let mut all = 0;
    while let Ok(Some(entries)) = reader.chunk(row_bytes, all) {
        all += entries.len() as u64;
    }
}
