//! What a run's file holds besides pages is read: its description, its footer, its filter, and a
//! page as it is stored.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], u64)| {
    let (bytes, number) = input;
    forerun_db::run::fuzz::read_meta(bytes);
    forerun_db::run::fuzz::read_filter(bytes, number);
    forerun_db::run::fuzz::read_stored(bytes, number as u16);
});
