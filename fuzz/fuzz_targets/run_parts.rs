//! Reads the parts of a run's file other than pages: its metadata, its footer and its filter; also
//! a stored page.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], u64)| {
    let (bytes, number) = input;
    forerun_db::run::testing::fuzz::read_meta(bytes);
    forerun_db::run::testing::fuzz::read_filter(bytes, number);
    forerun_db::run::testing::fuzz::read_stored(bytes, number as u16);
});
