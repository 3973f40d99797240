//! Reads bytes as a backup's record, with valid checksums.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (body, manifest_body) = input;
    forerun_db::testing::fuzz::backup_record(body, manifest_body);
});
