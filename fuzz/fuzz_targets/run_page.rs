//! Checks a page of a run, searches it with every search, walks over it and prints it, whether it
//! passed the check or not.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (page, key) = input;
    forerun_db::run::testing::fuzz::read_page(page, key);
});
