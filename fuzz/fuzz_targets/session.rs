//! A session answers the same however its input is cut and its output read, and takes bounded
//! memory, whatever comes in.

#![no_main]

use forerun_server::fuzz_session;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: ([u8; 8], &[u8])| {
    let (cuts, bytes) = input;
    fuzz_session(&cuts, bytes);
});
