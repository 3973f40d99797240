//! A page of a run is checked, searched by every search, walked over and shown, whether it passed
//! the check or not.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (page, key) = input;
    forerun_db::run::fuzz::read_page(page, key);
});
