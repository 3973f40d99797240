//! Reads bytes as a cache's snapshot: the result is an error or a cache, never a panic, and it uses
//! no more memory than the cache may hold.

#![no_main]

use forerun_server::fuzz_snapshot;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_snapshot(bytes));
