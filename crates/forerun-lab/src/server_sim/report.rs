//! Reports how to repeat a failing seed, and what the smallest plan found does.

use super::checks::Failure;
use super::plan::Plan;
use super::{play, shrink::shrink};

/// The most requests of a client that are shown.
const OPS_SHOWN: usize = 12;

/// # Errors
/// If nothing can be simulated.
pub fn failed(plan: &Plan, failure: &Failure) -> anyhow::Result<()> {
    eprintln!("seed {} failed: {failure}", plan.seed);
    eprintln!("to repeat it: forerun-lab server-sim --seed {}", plan.seed);
    let smallest = shrink(plan, failure.kind)?;
    let played = play(&smallest)?;
    eprintln!("\nThe smallest plan found that fails in this way:");
    for line in describe(&smallest) {
        eprintln!("  {line}");
    }
    eprintln!("\nIts last moments:");
    for line in &played.trace {
        eprintln!("  {line}");
    }
    if let Err(failure) = played.ended {
        eprintln!("  {failure}");
    }
    Ok(())
}

fn describe(plan: &Plan) -> Vec<String> {
    let mut lines = vec![format!(
        "{} workers, {} MiB, items up to {} bytes, at most {} connections, idle timeout {} s, drain timeout {} s{}{}",
        plan.threads,
        plan.memory_mib,
        plan.max_item_bytes,
        plan.connection_limit,
        plan.idle_timeout_s,
        plan.drain_timeout_s,
        if plan.tls { ", TLS" } else { "" },
        if plan.snapshot { ", a snapshot" } else { "" },
    )];
    if plan.interrupts > 0 {
        lines.push(format!("one call in {} is interrupted", plan.interrupts));
    }
    if let Some(after_s) = plan.restart_after_s {
        lines.push(format!(
            "a second server starts {after_s} s after the first has ended"
        ));
    }
    for client in &plan.clients {
        lines.push(format!(
            "client {} (server {}) from {:?}, pipes {:?}, {:?}, sends {} bytes / {:?}, reads {} bytes / {:?}, window {}, ends: {:?}",
            client.id,
            client.life + 1,
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
