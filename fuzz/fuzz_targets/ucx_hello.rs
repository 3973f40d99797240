//! A hello and its answer are parsed alike however their bytes arrive, and bytes that are neither
//! are refused.

#![no_main]

use forerun_ucx::fuzz_hello;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_hello(bytes));
