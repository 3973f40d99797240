//! A segment of the log is read record by record, with the search for the next good one after each
//! bad one.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    forerun_db::wal::fuzz_segment(bytes);
});
