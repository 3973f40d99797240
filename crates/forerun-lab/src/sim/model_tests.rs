//! Tests of the model alone.

use std::time::Duration;

use super::super::key_order::KeyOrder;
use super::super::wall_clock::WallClock;
use super::*;

#[derive(Default)]
struct TestRules(WallClock);

impl TestRules {
    /// Rules with a clock that was set back by `seconds` at the time `at`.
    fn set_back(at: u64, seconds: u64) -> TestRules {
        let plain = TestRules::default();
        plain.0.set_back(Duration::from_secs(at), seconds);
        plain
    }
}

impl KeyspaceRules for TestRules {
    fn order(&self, _: KeyspaceId) -> KeyOrder {
        KeyOrder::Bytes
    }

    fn ttl_s(&self, keyspace_id: KeyspaceId) -> Option<u64> {
        (keyspace_id == 1).then_some(5)
    }

    fn clock(&self) -> &WallClock {
        &self.0
    }

    fn clock_may_go_back(&self) -> bool {
        true
    }
}

const AT: Span = Span {
    start: Duration::from_secs(10),
    end: Duration::from_secs(10),
};

fn put(key: &str, value: &str) -> Change {
    Change::Put(0, key.into(), Arc::from(value.as_bytes()))
}

fn observed(entries: &[(&str, &str)]) -> Observed {
    let entries = entries.iter();
    entries
        .map(|(key, value)| ((0, key.as_bytes().to_vec()), value.as_bytes().to_vec()))
        .collect()
}

fn history() -> History {
    let mut history = History::default();
    history.note(
        vec![put("a", "1"), put("b", "1")],
        WriteOutcome::Acknowledged,
        AT,
        &TestRules::default(),
    );
    history.note(
        vec![put("a", "2"), put("b", "2")],
        WriteOutcome::InDoubt,
        AT,
        &TestRules::default(),
    );
    history.note(
        vec![Change::DeleteRange(0, b"b".to_vec(), b"c".to_vec())],
        WriteOutcome::Acknowledged,
        AT,
        &TestRules::default(),
    );
    history
}

#[test]
fn only_prefixes_of_the_writes_from_the_floor_on_are_accepted() {
    for (entries, floor, is_right) in [
        (&[("a", "1")][..], 3, true),
        (&[("a", "2")], 3, true),
        (&[("a", "2"), ("b", "2")], 2, true),
        (&[("a", "2"), ("b", "2")], 3, false),
        (&[("a", "2"), ("b", "1")], 0, false),
        (&[("a", "1"), ("b", "1")], 1, true),
        (&[], 0, true),
        (&[], 1, false),
        (&[("c", "1")], 0, false),
    ] {
        let mut history = history();
        let resolved = history.resolve(&observed(entries), floor, floor, AT, &TestRules::default());
        assert_eq!(
            resolved.is_ok(),
            is_right,
            "{entries:?} from {floor}: {resolved:?}"
        );
        if is_right {
            assert_eq!(history.current().len(), entries.len());
            assert!(history.len() >= floor);
        }
    }
}

fn seconds(from: u64, to: u64) -> Span {
    Span {
        start: Duration::from_secs(from),
        end: Duration::from_secs(to),
    }
}

#[test]
fn an_entry_lives_for_its_time_to_live_and_expires_a_second_later() {
    let value = Value {
        bytes: Arc::from(&b"x"[..]),
        written: seconds(10, 11),
    };
    let clock = WallClock::default();
    let read = |from, to| value.visibility(Some(5), seconds(from, to), &clock);
    assert_eq!(read(15, 15), Visibility::Required);
    assert_eq!(read(15, 16), Visibility::Allowed);
    assert_eq!(read(16, 16), Visibility::Allowed);
    assert_eq!(read(17, 17), Visibility::Forbidden);
    let visibility = value.visibility(None, seconds(99, 99), &clock);
    assert_eq!(visibility, Visibility::Required);
}

#[test]
fn setting_the_clock_back_extends_lives_and_never_shortens_them() {
    let value = |at| Value {
        bytes: Arc::from(&b"x"[..]),
        written: seconds(at, at),
    };
    let clock = WallClock::default();
    clock.set_back(Duration::from_secs(20), 15);
    let read = |written, at| value(written).visibility(Some(5), seconds(at, at), &clock);
    // At 21 the clock shows 6 again, and the store's 21, if it was open all the time.
    assert_eq!(read(18, 23), Visibility::Required);
    assert_eq!(read(18, 24), Visibility::Allowed);
    assert_eq!(read(18, 40), Visibility::Forbidden);
    assert_eq!(read(21, 26), Visibility::Required);
    assert_eq!(read(21, 27), Visibility::Allowed);
    assert_eq!(read(21, 43), Visibility::Forbidden);
    // It may have been seen to expire before.
    assert_eq!(read(10, 21), Visibility::Allowed);
}

/// Key "a" of the keyspace whose entries live for five seconds.
fn lasting(value: &str) -> Change {
    Change::Put(1, b"a".to_vec(), Arc::from(value.as_bytes()))
}

fn found(value: &str) -> Observed {
    Observed::from([((1, b"a".to_vec()), value.as_bytes().to_vec())])
}

/// Two writes, the last of which is in doubt. An opening at 20 sees neither: both have expired.
/// Then the clock is set back.
fn hidden() -> (History, TestRules) {
    let mut history = History::default();
    let plain = TestRules::default();
    history.note(vec![lasting("1")], WriteOutcome::Acknowledged, AT, &plain);
    history.note(vec![lasting("2")], WriteOutcome::InDoubt, AT, &plain);
    let resolved = history.resolve(&Observed::new(), 1, 2, seconds(20, 20), &plain);
    assert_eq!(resolved, Ok(()));
    (history, TestRules::set_back(30, 20))
}

#[test]
fn any_expired_write_in_doubt_may_return() {
    let (history, plain) = hidden();
    let at = seconds(31, 31);
    for (value, is_right) in [("1", true), ("2", true), ("3", false)] {
        let resolved = history.clone().resolve(&found(value), 2, 2, at, &plain);
        assert_eq!(resolved.is_ok(), is_right, "{value}: {resolved:?}");
    }
    let dormant = history.dormant(&plain);
    assert_eq!(dormant[&(1, b"a".to_vec())].len(), 2, "{dormant:?}");
}

#[test]
fn an_expired_write_does_not_return_after_a_later_write_to_its_key() {
    let (mut history, plain) = hidden();
    let delete = Change::Delete(1, b"a".to_vec());
    history.note(
        vec![delete],
        WriteOutcome::Acknowledged,
        seconds(25, 25),
        &plain,
    );
    let at = seconds(31, 31);
    for (value, floor, is_right) in [("2", 3, false), ("1", 3, false), ("2", 2, true)] {
        let resolved = history.clone().resolve(&found(value), floor, 2, at, &plain);
        assert_eq!(resolved.is_ok(), is_right, "{value}: {resolved:?}");
    }
    let resolved = history.resolve(&Observed::new(), 3, 3, at, &plain);
    assert_eq!(resolved, Ok(()));
    assert!(history.dormant(&plain).is_empty(), "{history:?}");
}
