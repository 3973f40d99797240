//! A session gives the same answers to multi-get frames however they are split and read, whatever
//! they contain, and the answers agree with their own lengths.

#![no_main]

use forerun_server::fuzz_multi_get;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: ([u8; 8], &[u8])| {
    let (cuts, bytes) = input;
    fuzz_multi_get(&cuts, bytes);
});
