//! A store whose writer is killed: nothing acknowledged may be lost, no write may be there by half, nothing removed
//! may come back.
//!
//! ```text
//! parent                         child (this program again, --write-from)
//!   start ─────────────────────►  open the store, say "open"
//!   note acknowledgements ◄─────  each thread: write n, say "t n"; write n+1, …
//!   at a random time: SIGKILL ──► ✝
//!   open, compare, close
//!   start the next, with the numbers it found …
//! ```
//!
//! An acknowledgement is a line of a few bytes written by one call, so a kill cannot tear it. Killing a process
//! leaves alone what it had handed to the operating system: buffered and synced writes must both be there. (What a
//! power cut does is tested with a fault-injecting file system, below.)

mod check;
mod writer;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use forerun::{Options, TreeOptions};
use rand::Rng;
use rand::rngs::SmallRng;

use self::check::{Expected, check};
use super::Workplace;
use super::script;
use crate::exit::CheckFailed;
use crate::output::{self, Out};
use crate::progress::Progress;

pub use self::writer::write;

/// Short segments, so that kills also meet the turn from one to the next.
const SEGMENT_BYTES: u64 = 256 << 10;
/// A store whose files have grown beyond this is left for a new one: each cycle reads the whole log again.
const STORE_BYTES_MAX: u64 = 24 << 20;
/// How long a child may take to open its store before that counts as a fault.
const OPEN_TIME_MAX: Duration = Duration::from_secs(60);

/// Little memtables, runs and levels, so that kills also meet flushes and compactions at every depth.
fn options() -> Options {
    Options {
        wal_segment_bytes: SEGMENT_BYTES,
        memtable_bytes: 192 << 10,
        cache_bytes: 1 << 20,
        tree: TreeOptions {
            level1_bytes: 1 << 20,
            level_factor: 4,
            run_bytes: 128 << 10,
            ..TreeOptions::default()
        },
        ..Options::default()
    }
}

/// What one run has come to.
#[derive(Default)]
struct Tally {
    acknowledged: u64,
    killed_opening: u64,
    under_way_applied: u64,
    stores: u64,
}

/// Runs the parent: so many cycles of start, kill, compare.
pub fn run(place: &Workplace, seed: u64, threads: usize, cycles: u64) -> anyhow::Result<()> {
    let mut out = Out::new();
    out.line(format_args!(
        "crash: seed {seed}, {threads} threads, {cycles} cycles"
    ))?;
    out.flush()?;
    let mut rng = script::rng(seed, u64::MAX - 1, 0);
    let mut tally = Tally::default();
    let mut expected: Vec<Expected> = Vec::new();
    let progress = Progress::new("crash", Some(cycles), "writes");
    for cycle in 0..cycles {
        let path = place.store(tally.stores);
        let fresh = expected.is_empty();
        if fresh {
            expected.resize_with(threads, Expected::default);
        }
        // Another seed for another store: its writes are others.
        let store_seed = seed.wrapping_add(tally.stores);
        let told = one_life(&path, store_seed, &expected, &mut rng, &mut tally);
        let checked = told.and_then(|acknowledged| {
            check(&path, store_seed, &mut expected, &acknowledged, &mut tally)
        });
        checked.with_context(|| {
            format!(
                "crash cycle {cycle} of the run with seed {seed}; the store is left in {}",
                path.display()
            )
        })?;
        progress.update(cycle + 1, tally.acknowledged);
        if size_bytes(&path)? > STORE_BYTES_MAX {
            place.remove_store(tally.stores)?;
            tally.stores += 1;
            expected.clear();
        }
    }
    let took = progress.finish();
    out.line(format_args!(
        "{} in {}: {} acknowledged and none lost, {} under way and found whole, {} killed while opening; {}",
        output::counted(cycles, "kill"),
        output::time(took),
        output::counted(tally.acknowledged, "write"),
        output::count(tally.under_way_applied),
        output::count(tally.killed_opening),
        output::counted(tally.stores + u64::from(!expected.is_empty()), "store"),
    ))?;
    out.finish()
}

/// Starts a child, kills it at a random time, and tells how many writes of each thread are acknowledged.
fn one_life(
    path: &Path,
    seed: u64,
    expected: &[Expected],
    rng: &mut SmallRng,
    tally: &mut Tally,
) -> anyhow::Result<Vec<u64>> {
    let from: Vec<u64> = expected.iter().map(|thread| thread.writes).collect();
    let mut child = start(path, seed, &from)?;
    let (opened_sender, opened) = mpsc::channel();
    let output = child
        .stdout
        .take()
        .context("the child has no standard output")?;
    let mut errors = child
        .stderr
        .take()
        .context("the child has no standard error")?;
    thread::scope(|scope| {
        let listener = scope.spawn(move || listen(output, from, &opened_sender));
        let complaints = scope.spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).map(|_| text)
        });
        let killed_opening = wait(&opened, rng);
        // A child that ended by itself cannot be killed; that is told below.
        let ended = child.try_wait();
        let killed = child.kill().and_then(|()| child.wait());
        let acknowledged = listener
            .join()
            .map_err(|_| anyhow!("the listening thread panicked"))?;
        let complaints = complaints
            .join()
            .map_err(|_| anyhow!("the listening thread panicked"))?;
        // Whatever else went wrong, a child that ended by itself says why.
        if let Some(status) = ended.context("cannot watch the child")? {
            let complaints = complaints.unwrap_or_default();
            let complaints = complaints.trim();
            let problem = format!("the writing child ended by itself ({status}): {complaints}");
            return Err(CheckFailed(problem).into());
        }
        killed.context("cannot kill the child")?;
        tally.killed_opening += u64::from(killed_opening?);
        acknowledged
    })
}

fn start(path: &Path, seed: u64, from: &[u64]) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let from: Vec<String> = from.iter().map(u64::to_string).collect();
    Command::new(program)
        .args([
            "stress",
            "--crash",
            "--seed",
            &seed.to_string(),
            "--write-from",
            &from.join(","),
        ])
        .arg("--dir")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start the writing child")
}

/// Waits until the child is to be killed; tells whether it was still opening its store.
fn wait(opened: &Receiver<()>, rng: &mut SmallRng) -> anyhow::Result<bool> {
    let while_opening = rng.random_ratio(1, 5);
    let life = Duration::from_micros(rng.random_range(20_000..200_000));
    let patience = if while_opening {
        Duration::from_micros(rng.random_range(0..20_000))
    } else {
        OPEN_TIME_MAX
    };
    match opened.recv_timeout(patience) {
        Ok(()) => {
            thread::sleep(life);
            Ok(false)
        }
        Err(RecvTimeoutError::Timeout) if while_opening => Ok(true),
        Err(RecvTimeoutError::Timeout) => Err(CheckFailed(format!(
            "the child did not open its store within {}",
            output::time(OPEN_TIME_MAX)
        ))
        .into()),
        // It ended before it said a word; who it was that ended it is found next.
        Err(RecvTimeoutError::Disconnected) => {
            thread::sleep(Duration::from_millis(100));
            Ok(true)
        }
    }
}

/// Notes what a child says until it is gone: the number of each thread's next write.
fn listen(
    output: impl Read,
    mut next: Vec<u64>,
    opened: &mpsc::Sender<()>,
) -> anyhow::Result<Vec<u64>> {
    for line in BufReader::new(output).lines() {
        let line = line.context("cannot hear the child")?;
        if line == "open" {
            // Nobody waits for it where the child is being killed already.
            let _ = opened.send(());
            continue;
        }
        let told = line
            .split_once(' ')
            .and_then(|(thread, n)| Some((thread.parse().ok()?, n.parse().ok()?)));
        let Some((thread, n)) = told else {
            bail!("the child said \"{line}\"")
        };
        let (thread, n): (usize, u64) = (thread, n);
        match next.get_mut(thread) {
            Some(next) if *next == n => *next += 1,
            _ => {
                return Err(CheckFailed(format!(
                    "the child acknowledged write {n} of thread {thread} out of turn"
                ))
                .into());
            }
        }
    }
    Ok(next)
}

fn size_bytes(path: &Path) -> anyhow::Result<u64> {
    let sum = || -> std::io::Result<u64> {
        std::fs::read_dir(path)?.try_fold(0, |sum, entry| Ok(sum + entry?.metadata()?.len()))
    };
    sum().with_context(|| format!("cannot measure {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_counted_and_must_be_in_turn() {
        let (sender, opened) = mpsc::channel();
        let heard = listen(&b"open\n0 5\n1 0\n0 6\n"[..], vec![5, 0], &sender).unwrap();
        assert_eq!(heard, [7, 1]);
        assert!(opened.try_recv().is_ok());
        assert!(listen(&b"0 6\n"[..], vec![5], &sender).is_err(), "a gap");
        assert!(
            listen(&b"3 0\n"[..], vec![0], &sender).is_err(),
            "no such thread"
        );
        assert!(listen(&b"hello\n"[..], vec![0], &sender).is_err());
    }
}
