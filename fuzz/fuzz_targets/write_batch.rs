//! A batch is decoded from its encoding. What decodes encodes to the same bytes.

#![no_main]

use forerun_db::{Op, WriteBatch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (ops, bytes) = input;
    let Ok(batch) = WriteBatch::from_encoded(bytes, ops.into()) else {
        return;
    };
    assert_eq!(batch.len(), ops.into());
    let mut again = WriteBatch::new();
    for op in batch.ops() {
        match op {
            Op::Put { key, value } => again.put(key, value),
            Op::Delete { key } => again.delete(key),
            Op::DeleteRange { start, end } => again.delete_range(start, end),
        }
        .expect("lengths were checked");
    }
    assert_eq!(again.encoded(), bytes);
});
