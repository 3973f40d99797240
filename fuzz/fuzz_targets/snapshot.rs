//! Bytes as a cache's snapshot: an error or a cache, never a panic, and no more memory than the
//! cache may hold.

#![no_main]

use forerun_server::fuzz_snapshot;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_snapshot(bytes));
