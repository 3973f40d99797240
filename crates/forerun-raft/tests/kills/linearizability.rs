//! Whether a history of one register is linearizable: whether every call can take effect at one
//! moment between its start and its return, so that each read returns the value written last.
//!
//! The method is that of Wing and Gong with Lowe's memory of states, as in Porcupine: of the calls
//! that have not taken effect, any that started before the first return can be the next one. A
//! search tries them, and a pair of (calls that took effect, value) is visited once.
//!
//! A write without a return may take effect at any time after its start, or never. The histories of
//! several keys are checked one by one: a history is linearizable if that of each key is (Herlihy
//! and Wing 1990).

use std::collections::HashSet;

/// A value; `None` if the key does not exist.
pub type Value = Option<u64>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Write(Value),
    /// And what it has returned.
    Read(Value),
}

#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub action: Action,
    pub start_ns: u64,
    /// `None` if it is not known whether and when it ended.
    pub end_ns: Option<u64>,
}

/// The calls that took effect, as a set of bits, and the value after them.
type State = (Vec<u64>, Value);

pub fn is_linearizable(calls: &[Call]) -> bool {
    // A read that has not returned says nothing.
    let is_known = |call: &&Call| call.end_ns.is_some() || matches!(call.action, Action::Write(_));
    let mut calls: Vec<Call> = calls.iter().filter(is_known).copied().collect();
    calls.sort_by_key(|call| call.start_ns);

    let mut visited = HashSet::<State>::new();
    let mut pending = vec![(vec![0_u64; calls.len().div_ceil(64)], None)];
    while let Some((done, value)) = pending.pop() {
        let is_done = |at: usize| done[at / 64] & (1 << (at % 64)) != 0;
        let open = || (0..calls.len()).filter(|&at| !is_done(at));
        let Some(first_end_ns) = open().filter_map(|at| calls[at].end_ns).min() else {
            return true;
        };
        for at in open().take_while(|&at| calls[at].start_ns <= first_end_ns) {
            let value = match calls[at].action {
                Action::Write(written) => written,
                Action::Read(read) if read == value => value,
                Action::Read(_) => continue,
            };
            let mut done = done.clone();
            done[at / 64] |= 1 << (at % 64);
            let state = (done, value);
            if visited.insert(state.clone()) {
                pending.push(state);
            }
        }
    }
    false
}

fn calls(of: &[(Action, u64, Option<u64>)]) -> Vec<Call> {
    let call = |&(action, start_ns, end_ns)| Call {
        action,
        start_ns,
        end_ns,
    };
    of.iter().map(call).collect()
}

#[test]
fn histories_with_an_order_are_linearizable() {
    use Action::{Read, Write};
    let histories: [&[(Action, u64, Option<u64>)]; 6] = [
        &[],
        &[
            (Read(None), 0, Some(1)),
            (Write(Some(1)), 2, Some(3)),
            (Read(Some(1)), 4, Some(5)),
        ],
        // Calls at the same time take effect in any order.
        &[
            (Write(Some(1)), 0, Some(9)),
            (Write(Some(2)), 1, Some(8)),
            (Read(Some(2)), 2, Some(3)),
            (Read(Some(1)), 4, Some(5)),
        ],
        // A write without a return takes effect late, or never.
        &[
            (Write(Some(1)), 0, None),
            (Read(None), 5, Some(6)),
            (Read(Some(1)), 7, Some(8)),
        ],
        &[
            (Write(Some(1)), 0, None),
            (Write(None), 2, Some(3)),
            (Read(None), 5, Some(6)),
        ],
        &[
            (Write(Some(1)), 0, Some(5)),
            (Read(Some(1)), 1, Some(2)),
            (Read(Some(1)), 3, None),
        ],
    ];
    for history in histories {
        assert!(is_linearizable(&calls(history)), "{history:?}");
    }
}

#[test]
fn histories_without_an_order_are_not() {
    use Action::{Read, Write};
    let histories: [&[(Action, u64, Option<u64>)]; 5] = [
        // A value that nobody wrote.
        &[(Read(Some(1)), 0, Some(1))],
        // An old value.
        &[
            (Write(Some(1)), 0, Some(1)),
            (Write(Some(2)), 2, Some(3)),
            (Read(Some(1)), 4, Some(5)),
        ],
        // A lost write.
        &[(Write(Some(1)), 0, Some(1)), (Read(None), 2, Some(3))],
        // The value goes back.
        &[
            (Write(Some(1)), 0, Some(9)),
            (Read(Some(1)), 1, Some(2)),
            (Read(None), 3, Some(4)),
        ],
        // One write that takes effect twice.
        &[
            (Write(Some(1)), 0, None),
            (Read(Some(1)), 1, Some(2)),
            (Write(Some(2)), 3, Some(4)),
            (Read(Some(2)), 5, Some(6)),
            (Read(Some(1)), 7, Some(8)),
        ],
    ];
    for history in histories {
        assert!(!is_linearizable(&calls(history)), "{history:?}");
    }
}
