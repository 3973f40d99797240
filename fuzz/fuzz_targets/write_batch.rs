//! Decodes a batch from its encoding. Whatever decodes must encode to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (ops, bytes) = input;
    let decoded = forerun_db::testing::fuzz::write_batch(bytes, ops.into());
    assert!(decoded == 0 || decoded == usize::from(ops));
});
