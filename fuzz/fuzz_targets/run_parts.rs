//! Reads the parts of a run's file other than pages: its metadata, its footer, its filter and its
//! index; also a stored page, with any dictionary.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], u64, &[u8])| {
    let (bytes, number, dictionary) = input;
    forerun_db::run::testing::fuzz::read_meta(bytes);
    forerun_db::run::testing::fuzz::read_filter(bytes, number);
    forerun_db::run::testing::fuzz::read_index(
        bytes,
        number,
        (number >> 40) as u32,
        1 << (number >> 16 & 31),
    );
    forerun_db::run::testing::fuzz::read_stored(bytes, number as u16, dictionary);
});
