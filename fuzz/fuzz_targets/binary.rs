//! A session gives the same answers to requests of memcached's binary protocol however they are
//! split and read, whatever they contain. Its answers are whole, and without a login only errors.

#![no_main]

use forerun_server::fuzz_binary;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: ([u8; 8], &[u8])| {
    let (cuts, bytes) = input;
    fuzz_binary(&cuts, bytes);
});
