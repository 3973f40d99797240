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

/// The thread is descheduled for 50 ms after it has read the wall clock to write, and before it
/// reads it to load.
#[test]
fn a_pause_between_the_clocks_ends_no_item_early() {
    let before = cache();
    before.advance_ms(50_123);
    let _ = before.store(Store {
        expiry: Expiry::AtMs(50_123 + 700),
        ..Store::set(b"k", b"v")
    });
    let mut bytes = Vec::new();
    let clock = || {
        before.advance_ms(50_173);
        NOW_UNIX_MS
    };
    write_to(&before, &mut bytes, clock, |_, _| Ok(())).expect("a write to memory");
    let after = cache();
    after.advance_ms(7_000);
    let clock = || {
        after.advance_ms(7_050);
        NOW_UNIX_MS + 150
    };
    load_from(&after, bytes.as_slice(), clock, &LoadLimits::default()).expect("a valid file");
    let guard = after.pin();
    let expiry_ms = guard.peek(b"k").and_then(|item| item.expiry_ms());
    let left_ms = expiry_ms.expect("a live item") - 7_050;
    assert!((550..=600).contains(&left_ms), "{left_ms}");
}

/// A later record of the file replaces the item of an earlier one even if it has expired.
#[test]
fn an_item_does_not_return_when_a_later_record_of_its_key_has_expired() {
    let before = cache();
    let set = |expiry, value: &[u8]| {
        let stored = before.store(Store {
            expiry,
            ..Store::set(b"k", value)
        });
        assert!(matches!(stored, StoreResult::Stored { .. }), "{stored:?}");
    };
    set(Expiry::Never, b"v1");
    let mut bytes = Vec::new();
    write_to(&before, &mut bytes, || NOW_UNIX_MS, |_, _| Ok(())).expect("a write to memory");
    set(Expiry::AtMs(before.now_ms() + 50), b"v2");
    let mut later = Vec::new();
    write_to(&before, &mut later, || NOW_UNIX_MS, |_, _| Ok(())).expect("a write to memory");
    let after = cache();
    for (bytes, now_unix_ms) in [(bytes, NOW_UNIX_MS), (later, NOW_UNIX_MS + 1000)] {
        read_from(&after, bytes.as_slice(), now_unix_ms).expect("a valid file");
    }
    assert!(after.get(b"k").is_none());
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

/// A cache with so many keyspaces.
fn with_keyspaces(keyspaces: u16) -> Cache {
    let options = cache().options().clone();
    Cache::new(options.keyspaces(keyspaces)).expect("a cache")
}

#[test]
fn a_key_keeps_its_keyspace_also_in_a_cache_with_another_number_of_them() {
    // The last one looks like a key of keyspace 1.
    let keys = [&b"a"[..], b"", b"\n\x01a"];
    for (written_with, read_with) in [(1, 1), (1, 16), (16, 1), (16, 16), (16, 2), (2, 16)] {
        let before = with_keyspaces(written_with);
        let of = |cache: &Cache, number| cache.keyspace(number).expect("it has so many");
        for number in [0, 1, 9]
            .into_iter()
            .filter(|number| *number < written_with)
        {
            for key in keys {
                let _ = before.set(&of(&before, number).stored_key(key), &[number as u8]);
            }
        }
        let mut bytes = Vec::new();
        write_to(&before, &mut bytes, || NOW_UNIX_MS, |_, _| Ok(())).expect("a write to memory");
        let after = with_keyspaces(read_with);
        let stats = read_from(&after, bytes.as_slice(), NOW_UNIX_MS).expect("a valid file");
        let mut found = 0;
        for number in 0..read_with {
            for key in keys {
                let value = after.get(of(&after, number).stored_key(key));
                let is_kept = [0, 1, 9].contains(&number) && number < written_with;
                let expected = is_kept.then(|| vec![number as u8]);
                assert_eq!(
                    value, expected,
                    "{written_with} to {read_with}: {number} {key:?}"
                );
                found += u64::from(is_kept);
            }
        }
        assert_eq!((stats.items, after.len()), (found, found));
        assert_eq!(stats.refused, before.len() - found);
    }
}
