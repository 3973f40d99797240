//! Makes a failing plan smaller. Removes clients, events and requests as long as it fails in the
//! same way.

use std::time::{Duration, Instant};

use super::plan::{Event, Listeners, Plan};
use super::play;

/// How long to look for a smaller plan.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a smaller plan that fails in the same way, or the plan itself.
///
/// # Errors
/// If nothing can be simulated.
pub fn shrink(plan: &Plan, kind: &str) -> anyhow::Result<Plan> {
    let start = Instant::now();
    let mut best = plan.clone();
    let fails = |plan: &Plan| -> anyhow::Result<bool> {
        Ok(start.elapsed() < TIMEOUT
            && play(plan)?.ended.is_err_and(|failure| failure.kind == kind))
    };
    loop {
        let mut is_smaller = false;
        for smaller in smaller(&best) {
            if fails(&smaller)? {
                best = smaller;
                is_smaller = true;
                break;
            }
        }
        if !is_smaller {
            return Ok(best);
        }
    }
}

/// Smaller plans, the smallest first.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut push = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        plans.push(plan);
    };
    let clients = plan.clients.len();
    for part in [2, 4, 8, clients] {
        let step = clients.div_ceil(part.max(1)).max(1);
        for from in (0..clients).step_by(step).filter(|_| clients > 1) {
            push(&|plan| {
                plan.clients.drain(from..clients.min(from + step));
            });
        }
    }
    for number in 0..plan.events.len() {
        push(&|plan| {
            plan.events.remove(number);
        });
    }
    for number in 0..clients {
        let ops = plan.clients[number].ops.len();
        for part in [2, 4, ops] {
            let step = ops.div_ceil(part.max(1)).max(1);
            for from in (0..ops).step_by(step) {
                push(&|plan| {
                    plan.clients[number].ops.drain(from..ops.min(from + step));
                });
            }
        }
    }
    if plan.interrupts > 0 {
        push(&|plan| plan.interrupts = 0);
    }
    if plan.threads > 1 {
        push(&|plan| plan.threads = 1);
    }
    for number in (0..plan.incarnations.len()).filter(|_| plan.incarnations.len() > 1) {
        push(&|plan| {
            plan.incarnations.remove(number);
            plan.clients.retain(|client| client.incarnation != number);
            for client in &mut plan.clients {
                client.incarnation -= usize::from(client.incarnation > number);
            }
        });
    }
    for number in 0..plan.incarnations.len() {
        if plan.incarnations[number].crash.is_some() {
            push(&|plan| plan.incarnations[number].crash = None);
        }
    }
    let snapshots = plan
        .events
        .iter()
        .any(|(_, event)| matches!(event, Event::Snapshot));
    if plan.snapshot && !snapshots && plan.incarnations.len() == 1 {
        push(&|plan| plan.snapshot = false);
    }
    if plan.clients.iter().any(|client| client.tls12) {
        push(&|plan| {
            plan.clients
                .iter_mut()
                .for_each(|client| client.tls12 = false)
        });
    }
    if plan.listeners.have_tls() && !plan.clients.iter().any(|client| client.end.needs_tls()) {
        push(&|plan| {
            plan.listeners = Listeners::Plain;
            plan.clients
                .iter_mut()
                .for_each(|client| client.tls = false);
        });
    }
    plans.retain(|plan| !plan.clients.is_empty());
    plans
}
