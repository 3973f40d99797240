//! Reads a log segment record by record, and after each bad record searches for the next good one.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    forerun_db::testing::fuzz::log_segment(bytes);
});
