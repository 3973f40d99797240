//! A loom model of the team of blocks that resolves one request: `kernels/hot_pool/fetch.cuh` lists
//! its orders.
//!
//! The test checks the model with the kernel's orders. It then removes each order, and the model
//! must fail, which shows that the order is needed. A block is one thread here, because its threads
//! meet before and after each step. Joining the blocks models the end of a launch.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use loom::sync::atomic::{AtomicU32, fence};
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The steps that order accesses. All of them are `true` in the kernels.
#[derive(Clone, Copy, Debug)]
struct Orders {
    /// The plan is published with release.
    publish: bool,
    /// The fence after the published number is read.
    read: bool,
    /// The first to arrive leads, not the block with the first number.
    first_leads: bool,
    /// The last to leave clears the team.
    clear: bool,
}

const KERNELS: Orders = Orders {
    publish: true,
    read: true,
    first_leads: true,
    clear: true,
};

#[derive(Default)]
struct Team {
    arrived: AtomicU32,
    published: AtomicU32,
    left: AtomicU32,
}

struct Shared {
    team: Team,
    plan: UnsafeCell<[u32; 2]>,
    /// What each share of the plan was fetched as.
    rows: [UnsafeCell<u32>; 2],
}

const BLOCKS: u32 = 2;

/// A block's part in one launch. `value` is what the leader plans. Returns the share that the block
/// has fetched. A block that would wait returns `None`, and the execution ends: loom explores those
/// in which it comes later.
fn block(shared: &Shared, number: u32, value: u32, orders: Orders) -> Option<usize> {
    let team = &shared.team;
    let arrived = team.arrived.fetch_add(1, Relaxed);
    let member = if orders.first_leads { arrived } else { number };
    if member == 0 {
        // SAFETY: only the leader writes the plan, before it is published; loom reports a race.
        shared
            .plan
            .with_mut(|plan| unsafe { *plan = [value, value + 1] });
        let order = if orders.publish { Release } else { Relaxed };
        team.published.store(2 + 1, order);
    } else {
        if team.published.load(Relaxed) == 0 {
            return None;
        }
        if orders.read {
            fence(AcqRel);
        }
    }
    let share = member as usize % BLOCKS as usize;
    // SAFETY: the plan was published; loom reports a race otherwise.
    let planned = shared.plan.with(|plan| unsafe { (*plan)[share] });
    // SAFETY: each member has a row of its own.
    shared.rows[share].with_mut(|row| unsafe { *row = planned });
    if team.left.fetch_add(1, Relaxed) + 1 == BLOCKS && orders.clear {
        team.arrived.store(0, Relaxed);
        team.published.store(0, Relaxed);
        team.left.store(0, Relaxed);
    }
    Some(share)
}

/// Two launches, one after the other. The second must not use the first one's plan.
fn launches(orders: Orders) {
    let shared = Arc::new(Shared {
        team: Team::default(),
        plan: UnsafeCell::new([0; 2]),
        rows: [UnsafeCell::new(0), UnsafeCell::new(0)],
    });
    for value in [10, 20] {
        let other = {
            let shared = shared.clone();
            thread::spawn(move || block(&shared, 1, value, orders))
        };
        let own = block(&shared, 0, value, orders);
        let (Some(own), Some(others)) = (own, other.join().unwrap()) else {
            return; // a block would still wait
        };
        assert_eq!(own + others, 1, "each block has a share of its own");
        for share in [own, others] {
            let wanted = value + share as u32;
            // SAFETY: the blocks have ended.
            shared.rows[share].with(|row| assert_eq!(unsafe { *row }, wanted));
        }
    }
}

/// The blocks of a launch that runs one block at a time, the second one first.
fn one_at_a_time(orders: Orders) {
    let shared = Shared {
        team: Team::default(),
        plan: UnsafeCell::new([0; 2]),
        rows: [UnsafeCell::new(0), UnsafeCell::new(0)],
    };
    for number in [1, 0] {
        let share = block(&shared, number, 10, orders);
        assert!(
            share.is_some(),
            "block {number} waits for one that does not run"
        );
    }
    assert_eq!(shared.team.left.load(Relaxed), 0);
}

fn check(orders: Orders, model: fn(Orders)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || model(orders));
}

fn holds(orders: Orders, model: fn(Orders)) -> bool {
    catch_unwind(AssertUnwindSafe(|| check(orders, model))).is_ok()
}

#[test]
fn a_team_reads_the_plan_of_its_own_launch() {
    check(KERNELS, launches);
    for orders in [
        Orders {
            publish: false,
            ..KERNELS
        },
        Orders {
            read: false,
            ..KERNELS
        },
        Orders {
            clear: false,
            ..KERNELS
        },
    ] {
        assert!(!holds(orders, launches), "the model holds with {orders:?}");
    }
}

#[test]
fn blocks_that_run_one_at_a_time_in_any_order_do_not_wait_for_ever() {
    check(KERNELS, one_at_a_time);
    let by_number = Orders {
        first_leads: false,
        ..KERNELS
    };
    assert!(!holds(by_number, one_at_a_time));
}
