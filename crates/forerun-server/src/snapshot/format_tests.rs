//! What each version of the format holds.

use super::tests::{NOW_UNIX_MS, NOW_UNIX_S, cache, item};
use super::*;
use forerun_cache::{Expiry, ItemKind, Store, StoreResult};

/// A clock that stands still between its calls: what is read is the same moment as what is written,
/// plus what the caller adds.
#[test]
fn milliseconds_kinds_and_long_keys_come_back_and_nothing_expires_early() {
    let before = cache();
    before.advance_ms(50_123);
    let keys = [vec![], vec![b'k'; 251], vec![b'l'; before.key_bytes_max()]];
    for (key, left_ms) in keys.iter().zip([1, 700, 90_001]) {
        let stored = before.store(Store {
            expiry: Expiry::AtMs(50_123 + left_ms),
            kind: ItemKind::Hash,
            ..Store::set(key, b"value")
        });
        assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
    }
    let mut bytes = Vec::new();
    write_to(&before, &mut bytes, || NOW_UNIX_MS + 999, |_, _| Ok(())).expect("a write to memory");
    for later_ms in [0, 1, 2, 699, 702, 3000, 90_000, 90_003] {
        let after = cache();
        after.advance_ms(7_007);
        let stats = read_from(&after, bytes.as_slice(), NOW_UNIX_MS + 999 + later_ms);
        assert_eq!(stats.expect("a valid file").refused, 0);
        for (key, left_ms) in keys.iter().zip([1_u64, 700, 90_001]) {
            let guard = after.pin();
            let item = guard.peek(key);
            let left_at_least = left_ms.saturating_sub(later_ms);
            match item.and_then(|item| item.expiry_ms()) {
                Some(ms) => {
                    let left = ms - 7_007;
                    assert!((left_at_least..left_at_least + 3).contains(&left), "{left}");
                }
                None => assert_eq!(left_at_least, 0, "after {later_ms} ms"),
            }
            assert!(item.is_none_or(|item| item.kind() == ItemKind::Hash));
        }
    }
}

/// A file of version 3, byte by byte.
#[test]
fn a_file_of_the_version_before_is_read() {
    let mut bytes = header(NOW_UNIX_S).to_vec();
    bytes[8] = 3;
    let checksum = crc32c::crc32c(&bytes[..20]);
    bytes[20..].copy_from_slice(&checksum.to_le_bytes());
    let mut records = Vec::new();
    for (key, expires_at) in [(&b"never"[..], 0), (b"later", NOW_UNIX_S + 9), (b"gone", 5)] {
        records.push(key.len() as u8);
        records.extend_from_slice(&7_u32.to_le_bytes());
        records.extend_from_slice(&expires_at.to_le_bytes());
        records.extend_from_slice(&11_u64.to_le_bytes());
        records.extend_from_slice(&5_u32.to_le_bytes());
        records.extend_from_slice(key);
        records.extend_from_slice(b"value");
    }
    let (items, flush_at, last_cas) = (3, 0, 12);
    let mut frames = FrameWriter::new(&mut bytes);
    frames.write_all(&records).expect("a write to memory");
    let end = End {
        items,
        flush_at,
        last_cas,
    };
    end.write(&mut frames).expect("a write to memory");
    frames.finish().expect("a write to memory");
    let after = cache();
    let stats = read_from(&after, bytes.as_slice(), NOW_UNIX_MS).expect("a valid file");
    assert_eq!((stats.items, stats.expired), (2, 1));
    let expected = |left| Some((b"value".to_vec(), 7, 11, left));
    assert_eq!(item(&after, b"never"), expected(None));
    assert_eq!(item(&after, b"later"), expected(Some(9)));
    assert_eq!(after.last_cas(), 12);
}
