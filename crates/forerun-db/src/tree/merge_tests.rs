//! Merges against one sorted list.

use proptest::prelude::*;

use super::*;
use crate::ReverseBytewise;
use crate::testing::version_list::{Held, Sorted, held};
use crate::versions::SEQUENCE_MAX;

#[derive(Clone, Debug)]
enum Move {
    First,
    Last,
    Seek(u8, u64),
    SeekBefore(u8, u64),
    Next,
    Prev,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let sequence = || prop_oneof![Just(0), Just(SEQUENCE_MAX), 0_u64..60];
    let one = prop_oneof![
        1 => Just(Move::First),
        1 => Just(Move::Last),
        1 => (0_u8..10, sequence()).prop_map(|(key, sequence)| Move::Seek(key, sequence)),
        1 => (0_u8..10, sequence()).prop_map(|(key, sequence)| Move::SeekBefore(key, sequence)),
        6 => Just(Move::Next),
        6 => Just(Move::Prev),
    ];
    prop::collection::vec(one, 1..80)
}

fn walk(cursor: &mut dyn VersionCursor, step: &Move) -> Result<()> {
    match *step {
        Move::First => cursor.seek_first(),
        Move::Last => cursor.seek_last(),
        Move::Seek(key, sequence) => cursor.seek(&[key; 9], sequence),
        Move::SeekBefore(key, sequence) => cursor.seek_before(&[key; 9], sequence),
        Move::Next => cursor.next(),
        Move::Prev => cursor.prev(),
    }
}

/// Whether the current version is the newest of its key.
fn is_newest(plain: &mut Sorted) -> bool {
    let Some(at) = plain.at() else {
        return false;
    };
    let (key, sequence) = (at.key.to_vec(), at.sequence);
    plain.prev().unwrap();
    let is_newest = plain.at().is_none_or(|before| before.key != key);
    plain.seek(&key, sequence).unwrap();
    is_newest
}

proptest! {
    /// Keys of nine bytes tie in their prefix and need the call; shorter ones do not.
    #[test]
    fn a_merge_walks_like_one_sorted_list(
        keys in prop::collection::vec((0_u8..8, 0_usize..5, any::<bool>()), 0..50),
        sources in 0_usize..6,
        moves in moves(),
        reverse in any::<bool>(),
    ) {
        let order =
            if reverse { KeyOrder::new(Arc::new(ReverseBytewise)) } else { KeyOrder::Bytewise };
        let mut parts: Vec<Vec<Held>> = vec![Vec::new(); sources];
        let mut all = Vec::new();
        for (i, (key, source, long)) in keys.into_iter().enumerate() {
            if let Some(part) = parts.get_mut(source) {
                let key = if long { vec![key; 9] } else { vec![key] };
                let version = held(&key, i as u64 + 1, Some(format!("{i}").as_bytes()));
                part.push(version.clone());
                all.push(version);
            }
        }
        let cursors = parts.into_iter()
            .map(|part| Box::new(Sorted::new(order.clone(), part)) as Box<dyn VersionCursor>)
                .collect();
        let mut merge = Merge::new(order.clone(), cursors);
        let mut plain = Sorted::new(order, all);
        for step in &moves {
            walk(&mut merge, step).unwrap();
            walk(&mut plain, step).unwrap();
            prop_assert_eq!(merge.at(), plain.at(), "after {:?}", step);
            if let Move::Last | Move::SeekBefore(..) | Move::Prev = step
                && merge.is_newest_of_key()
            {
                prop_assert!(is_newest(&mut plain), "after {:?}", step);
            }
        }
    }
}

#[test]
fn after_a_failed_cursor_a_merge_has_no_position_until_the_next_seek() {
    let part = |from: u64| {
        let versions = (0..4)
            .map(|i| held(&[i as u8], from + i, Some(b"v")))
            .collect();
        Sorted::new(KeyOrder::Bytewise, versions)
    };
    for broken_at in 0..12 {
        let mut bad = part(10);
        bad.fail_call(broken_at);
        let mut merge = Merge::new(
            KeyOrder::Bytewise,
            vec![Box::new(part(1)), Box::new(bad), Box::new(part(20))],
        );
        let mut failed = merge.seek_first().is_err();
        for step in 0..10 {
            if failed {
                break;
            }
            failed = if step % 4 < 3 {
                merge.next()
            } else {
                merge.prev()
            }
            .is_err();
        }
        if failed {
            assert!(merge.at().is_none());
            merge.next().unwrap();
            assert!(merge.at().is_none());
            merge.seek(&[1], SEQUENCE_MAX).unwrap();
            assert_eq!(merge.at().map(|version| version.sequence), Some(21));
        } else {
            assert!(broken_at > 4, "call {broken_at} was never made");
        }
    }
}

#[test]
fn a_cursor_that_grows_meanwhile_does_not_turn_the_order_around() {
    let (mut early, mut late) = (Vec::new(), Vec::new());
    for i in 0..10_u8 {
        if i % 2 == 0 { &mut early } else { &mut late }.push(held(
            &[i],
            1 + u64::from(i),
            Some(b"v"),
        ));
    }
    let shared = Sorted::new(KeyOrder::Bytewise, late);
    let handle = shared.handle();
    let cursors: Vec<Box<dyn VersionCursor>> = vec![
        Box::new(Sorted::new(KeyOrder::Bytewise, early)),
        Box::new(shared),
    ];
    let mut merge = Merge::new(KeyOrder::Bytewise, cursors);
    merge.seek(&[4], SEQUENCE_MAX).unwrap();
    merge.prev().unwrap();
    merge.next().unwrap();
    handle.insert(held(&[4, 1], 100, Some(b"new")));
    handle.insert(held(&[3, 1], 101, Some(b"new")));
    let mut keys = Vec::new();
    merge.prev().unwrap();
    while let Some(version) = merge.at() {
        keys.push(version.key.to_vec());
        merge.next().unwrap();
    }
    assert!(keys.is_sorted(), "{keys:?}");
    assert!(keys.contains(&vec![4, 1]));
}
