//! Reads bytes as a saved table.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    forerun_gpu::table::fuzz_table_file(bytes);
});
