//! The answers to multi-get frames that a client reads do not depend on how the bytes arrive, and
//! an answer that is not complete asks for a bounded number of bytes.

#![no_main]

use forerun_client::fuzz_frame_replies;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_frame_replies(bytes));
