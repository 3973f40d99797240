//! Plays a history to both servers.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::compare_answers::{Agreement, Versions, compare};
use super::compare_packets;
use super::counters::{CounterCommands, key_of_counter};
use super::peer::{Connection, End, Memcached, Peer, Reply};
use super::step::{CompareMode, Step};

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

/// A connection to each server.
struct ConnectionPair {
    ours: Connection,
    theirs: Connection,
}

/// Plays `steps` to two new servers, until the first difference, or until a listed one that ends
/// the history.
pub(super) fn play(memcached: &Memcached, steps: &[Step]) -> Result<(PlayCounts, Option<Failure>)> {
    let dir = tempfile::tempdir().context("make a directory for sockets")?;
    play_in(dir.path(), memcached, steps)
}

fn play_in(
    dir: &Path,
    memcached: &Memcached,
    steps: &[Step],
) -> Result<(PlayCounts, Option<Failure>)> {
    let theirs = memcached.start(dir)?;
    let ours = Peer::ours(dir)?;
    let mut pairs: Vec<Option<ConnectionPair>> = Vec::new();
    let mut versions = Versions::default();
    let mut played = PlayCounts::default();
    for (number, step) in steps.iter().enumerate() {
        if pairs.len() <= step.connection {
            pairs.resize_with(step.connection + 1, || None);
        }
        let pair = match &mut pairs[step.connection] {
            Some(pair) => pair,
            none => none.insert(ConnectionPair {
                ours: ours.connect(step.is_binary())?,
                theirs: theirs.connect(step.is_binary())?,
            }),
        };
        std::thread::sleep(Duration::from_secs(step.wait_s));
        let now_s = now_s()?;
        let bytes_of =
            |mine: fn((u64, u64)) -> u64| step.render(now_s, |back| mine(versions.back(back)));
        let (to_us, to_them) = (bytes_of(|pair| pair.0), bytes_of(|pair| pair.1));
        let cuts = |len: usize| -> Vec<usize> {
            let offset = |cut: &u16| len * usize::from(*cut) / 1000;
            step.cuts.iter().map(offset).collect()
        };
        let ask = |connection: &mut Connection, bytes: &[u8]| match step.compare {
            CompareMode::Unordered if !step.is_binary() => connection.ask_list(bytes),
            _ => connection.ask(bytes, &cuts(bytes.len())),
        };
        let before = match &step.commands[..] {
            [command] => key_of_counter(command).and_then(|key| ours.number(&key)),
            _ => None,
        };
        let our_reply = ask(&mut pair.ours, &to_us)?;
        let their_reply = ask(&mut pair.theirs, &to_them)?;
        let outcome = compare_replies(
            &our_reply,
            &their_reply,
            step,
            &CounterCommands::new(&step.commands, before),
            memcached,
            &mut versions,
        );
        match outcome {
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
                    ours: our_reply,
                    theirs: their_reply,
                };
                return Ok((played, Some(failure)));
            }
        }
        if our_reply.end != End::Fence {
            pairs[step.connection] = None;
        }
    }
    Ok((played, None))
}

fn compare_replies(
    ours: &Reply,
    theirs: &Reply,
    step: &Step,
    counts: &CounterCommands<'_>,
    memcached: &Memcached,
    versions: &mut Versions,
) -> Result<Agreement, String> {
    let (ours_bytes, theirs_bytes) = (&ours.bytes, &theirs.bytes);
    let memcached = memcached.version;
    let how = step.compare;
    let agreed = if step.is_binary() {
        let packets = &step.packets;
        compare_packets::compare(ours_bytes, theirs_bytes, how, packets, memcached, versions)?
    } else {
        compare(ours_bytes, theirs_bytes, how, counts, memcached, versions)?
    };
    if ours.end == theirs.end {
        Ok(agreed)
    } else {
        Err(format!(
            "this server {}, memcached {}",
            describe(ours.end),
            describe(theirs.end)
        ))
    }
}

/// The state of a server after its answer.
pub(super) fn describe(end: End) -> &'static str {
    match end {
        End::Fence => "goes on",
        End::Closed => "closes the connection",
        End::Waiting => "waits for more",
    }
}

fn now_s() -> Result<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(i64::try_from(
        since.context("read the time of day")?.as_secs(),
    )?)
}
