//! Sizes and visibility of items.

use super::*;

fn visibility(deadline: Deadline, generation: Generation, moment: Moment<'_>) -> Visibility {
    let record = NewRecord {
        key: b"key",
        value: NewValue::Parts(&[b"value"]),
        cas: 1,
        flags: 0,
        kind: ItemKind::Hash,
        deadline,
        accessed: 1,
        marks: 0,
        frequency: 0,
        generation,
    };
    let mut start = vec![0u64; record.size_bytes() / 8];
    let start = NonNull::from(&mut start[..]).cast();
    // SAFETY: the buffer has the item's bytes at a multiple of eight and is accessed only
    // through the record.
    unsafe {
        record.write(start);
        Record::new(start).visibility(moment)
    }
}

#[test]
fn an_item_is_live_before_its_last_second_and_in_its_own_generation_only() {
    let clock = MsClock::new(false);
    let moment = |now| Moment {
        now,
        flushes: 7,
        clock: &clock,
    };
    let this = moment(1).generation();
    let at = |second| Deadline { second, ms: 0 };
    for (second, now, is_live) in [
        (0, 1, true),
        (0, u32::MAX, true),
        (u32::MAX, u32::MAX - 1, true),
        (u32::MAX, u32::MAX, false),
        (5, 4, true),
        (5, 5, false),
        (1, 1, false),
    ] {
        let visibility = visibility(at(second), this, moment(now));
        assert_eq!(
            matches!(visibility, Visibility::Live(_)),
            is_live,
            "{second} at {now}"
        );
        assert_eq!(
            matches!(visibility, Visibility::Expired),
            !is_live,
            "{second} at {now}"
        );
    }
    let other = Generation(this.0 ^ 1);
    assert!(matches!(
        visibility(at(0), other, moment(1)),
        Visibility::Flushed
    ));
}

#[test]
fn an_item_is_live_up_to_its_millisecond_however_late_the_second_is() {
    for (ms, is_live) in [(4000, true), (5249, true), (5250, false), (7000, false)] {
        let clock = MsClock::new(false);
        clock.advance_to_ms(ms);
        for now in [ms as u32 / 1000 - 1, ms as u32 / 1000] {
            let moment = Moment {
                now,
                flushes: 7,
                clock: &clock,
            };
            let deadline = Deadline { second: 5, ms: 250 };
            let visibility = visibility(deadline, moment.generation(), moment);
            let is_found = matches!(visibility, Visibility::Live(_));
            assert_eq!(is_found, is_live, "{ms} in second {now}");
        }
    }
}

#[test]
fn an_items_size_is_the_same_before_and_after_writing() {
    for key_len in (0..=300).chain([65_500, KEY_BYTES_MAX]) {
        let pointer = size_of::<*const LargeValue>();
        let bytes = size_bytes(key_len, pointer);
        assert_eq!(bytes, share_offset(key_len) + pointer, "key of {key_len}");
        assert!(size_bytes(key_len, 0) >= size_of::<Header>());
    }
    for item_bytes in [4 << 10, 64 << 10] {
        let longest = key_bytes_max(item_bytes);
        let large = |key_len| size_bytes(key_len, size_of::<*const LargeValue>());
        assert!(large(longest) <= item_bytes && large(longest + 1) > item_bytes);
    }
    assert_eq!(key_bytes_max(128 << 10), KEY_BYTES_MAX);
}
