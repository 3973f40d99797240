//! Bytes are read as a manifest, under checksums that are made right.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    forerun_db::tree::fuzz_manifest(bytes);
});
