//! Plays a history to both servers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::connection::{End, Reply};
use super::protocol::{Agreement, Protocol, Servers};
use super::step::Step;

/// Counts of the comparisons.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlayCounts {
    pub commands: u64,
    pub answers: u64,
    /// Histories that a listed difference ended.
    pub ended: u64,
}

/// The step at which the two servers answered differently.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// The number of the step.
    pub step: usize,
    pub reason: String,
    pub ours: Reply,
    pub theirs: Reply,
}

/// Plays `steps` to two new servers, until the first difference, or until a listed one that ends
/// the history.
pub(super) fn play(
    protocol: &impl Protocol,
    steps: &[Step],
) -> Result<(PlayCounts, Option<Failure>)> {
    let dir = tempfile::tempdir().context("make a directory for sockets")?;
    let mut servers = protocol.start(dir.path())?;
    let mut connections = Vec::new();
    let mut played = PlayCounts::default();
    for (number, step) in steps.iter().enumerate() {
        if connections.len() <= step.connection {
            connections.resize_with(step.connection + 1, || None);
        }
        let to = match &mut connections[step.connection] {
            Some(to) => to,
            none => none.insert(servers.connect(step)?),
        };
        std::thread::sleep(Duration::from_millis(step.wait_ms));
        let [ours, theirs] = servers.ask(to, step)?;
        match compare(&mut servers, to, step, &ours, &theirs) {
            Ok(agreed) => {
                played.commands += (step.commands.len() + step.packets.len()) as u64;
                played.answers += agreed.answers;
                if agreed.ends_history {
                    played.ended += 1;
                    break;
                }
            }
            Err(reason) => {
                let failure = Failure {
                    step: number,
                    reason,
                    ours,
                    theirs,
                };
                return Ok((played, Some(failure)));
            }
        }
        if ours.end != End::Fence {
            connections[step.connection] = None;
        }
    }
    Ok((played, None))
}

fn compare<S: Servers>(
    servers: &mut S,
    to: &mut S::Connections,
    step: &Step,
    ours: &Reply,
    theirs: &Reply,
) -> Result<Agreement, String> {
    let agreed = servers.compare(to, step, ours, theirs)?;
    if ours.end == theirs.end {
        Ok(agreed)
    } else {
        Err(format!(
            "the first server {}, the second {}",
            ours.end.describe(),
            theirs.end.describe()
        ))
    }
}

/// The time of day in milliseconds.
pub(super) fn now_ms() -> Result<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(i64::try_from(
        since.context("read the time of day")?.as_millis(),
    )?)
}
