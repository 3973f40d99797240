//! A session of RESP gives the same answers however its input is split and its output read, and
//! uses bounded memory, whatever it receives.

#![no_main]

use forerun_server::fuzz_resp;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: ([u8; 8], &[u8])| {
    let (cuts, bytes) = input;
    fuzz_resp(&cuts, bytes);
});
