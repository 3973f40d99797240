//! Channels receive what a plain receiver would, whatever their messages claim, and keep no more
//! memory than their windows allow.

#![no_main]

use forerun_ucx::fuzz_messages;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_messages(bytes));
