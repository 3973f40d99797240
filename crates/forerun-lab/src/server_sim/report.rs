//! Describes the smallest plan found that fails like a seed.

use crate::search::report::ShrunkSeed;

use super::plan::{Listeners, Plan};
use super::{play, shrink::shrink};

/// The maximum number of requests that are shown per client.
const OPS_SHOWN: usize = 12;

/// The smallest plan found that fails in the same way as this one.
///
/// # Errors
/// If nothing can be simulated.
pub fn shrink_plan(plan: &Plan) -> anyhow::Result<ShrunkSeed> {
    // A panic becomes a finding.
    std::panic::set_hook(Box::new(|_| {}));
    let Err(failure) = play(plan)?.ended else {
        return Ok(ShrunkSeed::default());
    };
    let smallest = shrink(plan, failure.kind)?;
    let played = play(&smallest)?;
    let mut history = describe(&smallest);
    history.push("its last moments:".to_owned());
    history.extend(played.trace);
    Ok(ShrunkSeed {
        summary: "the smallest plan found that fails in this way".to_owned(),
        history,
        finding: played.ended.err().map(|failure| failure.to_string()),
        repeat: None,
    })
}

fn describe(plan: &Plan) -> Vec<String> {
    let mut lines = vec![format!(
        "{} workers, {} MiB, items up to {} bytes, at most {} connections, idle timeout {} s, \
         drain timeout {} s{}{}",
        plan.threads,
        plan.memory_mib,
        plan.max_item_bytes,
        plan.connection_limit,
        plan.idle_timeout_s,
        plan.drain_timeout_s,
        match plan.listeners {
            Listeners::Plain => "",
            Listeners::Tls => ", TLS",
            Listeners::Both => ", a plain listener and one with TLS",
        },
        if plan.snapshot { ", a snapshot" } else { "" },
    )];
    if plan.interrupts > 0 {
        lines.push(format!("one call in {} is interrupted", plan.interrupts));
    }
    for (number, incarnation) in plan.incarnations.iter().enumerate() {
        lines.push(format!("server {}: {incarnation:?}", number + 1));
    }
    for client in &plan.clients {
        lines.push(format!(
            "client {} (server {}{}{}{}) from {:?}, pipes {:?}, {:?}, sends {} bytes / {:?}, reads \
             {} bytes / {:?}, window {}, ends: {:?}",
            client.id,
            client.incarnation + 1,
            if client.tls { ", TLS" } else { "" },
            if client.tls12 { " 1.2" } else { "" },
            if client.resp { ", RESP" } else { "" },
            client.start,
            client.capacities,
            client.style,
            client.send.bytes_max,
            client.send.pause_max,
            client.read.bytes_max,
            client.read.pause_max,
            client.window,
            client.end,
        ));
        for op in client.ops.iter().take(OPS_SHOWN) {
            lines.push(format!("    {op:?}"));
        }
        if client.ops.len() > OPS_SHOWN {
            lines.push(format!(
                "    and {} more requests",
                client.ops.len() - OPS_SHOWN
            ));
        }
    }
    for (at, event) in &plan.events {
        lines.push(format!("at {at:?}: {event:?}"));
    }
    lines
}
