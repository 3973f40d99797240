//! Reads bytes as a manifest, with valid checksums.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    forerun_db::testing::fuzz::manifest(bytes);
});
