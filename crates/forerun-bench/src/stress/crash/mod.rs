//! Tests a store whose writer is killed. No acknowledged write may be lost, no write may be applied
//! in part, and no deleted entry may return.
//!
//! ```text
//! parent                         child (this program again, --write-from)
//!   start ─────────────────────►  open the store, say "open"
//!   note acknowledgements ◄─────  each thread: write n, say "t n"; write n+1, …
//!                                 meanwhile: say "begin m", ingest, back up, …, say "done m"     operation.rs
//!   at a random time, or soon
//!   after a "begin": SIGKILL ───► ✝
//!   open, compare, close
//!   start the next, with the numbers it found …
//! ```
//!
//! An acknowledgement is a line of a few bytes written by one call, so a kill cannot tear it.
//! Killing a process does not affect data that the operating system already has, so both buffered
//! and synced writes must be there. (The tests of forerun-db and `forerun-lab sim` cover losses of
//! power, with a file system in memory.)

mod check_store;
mod opening;
mod operation;
mod writer;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rand::Rng;
use rand::rngs::SmallRng;

use self::check_store::{Expected, check, check_copies};
use super::WorkDirectory;
use super::script;
use forerun_cli::exit::CheckFailed;
use forerun_cli::output::{self, Out};
use forerun_measure::progress::Progress;

pub use self::opening::{Opening, Requested};
pub use self::operation::{Operation, remove_beside};
pub use self::writer::write;

/// A store whose files are larger than this is replaced by a new one, because each cycle reads the
/// whole log again.
const STORE_BYTES_MAX: u64 = 24 << 20;
/// How long a child may take to open its store before that counts as a fault.
const OPEN_TIME_MAX: Duration = Duration::from_secs(60);

/// The assumed duration of an operation before one has completed.
const OPERATION_TIME: Duration = Duration::from_millis(3);

/// The results of a run.
#[derive(Default)]
struct Counters {
    acknowledged: u64,
    killed_opening: u64,
    under_way_applied: u64,
    stores: u64,
}

/// The results of a run for one operation.
struct OperationCounts {
    operation: Operation,
    /// The number of the next one.
    next: u64,
    /// The last one begun and the last one done in the current store.
    begun: Option<u64>,
    done: Option<u64>,
    /// How many were done in total, and during how many a kill happened.
    finished: u64,
    kills: u64,
    /// Its typical duration.
    typical: Duration,
}

impl OperationCounts {
    fn new(operation: Operation) -> OperationCounts {
        OperationCounts {
            operation,
            next: 0,
            begun: None,
            done: None,
            finished: 0,
            kills: 0,
            typical: OPERATION_TIME,
        }
    }

    /// Records a child's report about it.
    fn note(&mut self, report: &ChildReport) {
        let number = |of: &Option<OperationBegin>| of.as_ref().map(|mark| mark.number);
        let (begun, done) = (number(&report.begun), number(&report.done));
        self.finished += report.operation_times.len() as u64;
        self.kills += u64::from(begun.is_some() && begun != done);
        self.begun = begun.or(self.begun);
        self.done = done.or(self.done);
        self.next = self.begun.map_or(0, |begun| begun + 1).max(self.next);
        for took in &report.operation_times {
            self.typical = (7 * self.typical + *took) / 8;
        }
    }

    /// Records that the store is a new one.
    fn start_over(&mut self) {
        (self.begun, self.done) = (None, None);
    }
}

/// A child's report.
#[derive(Default)]
struct ChildReport {
    /// The number of each thread's next write.
    next: Vec<u64>,
    /// The last operation begun, and the last one done.
    begun: Option<OperationBegin>,
    done: Option<OperationBegin>,
    /// The duration of each completed operation.
    operation_times: Vec<Duration>,
}

/// An operation's number, and the numbers of the threads' next writes when it was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OperationBegin {
    number: u64,
    writes: Vec<u64>,
}

/// A report of the child that the parent may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Open,
    Begun,
}

/// Parses the value of `--operation`.
pub fn parse_operation(text: &str) -> Result<(Operation, u64), String> {
    let (operation, first) = text.split_once(':').ok_or("a number is missing")?;
    let first = first.parse().map_err(|_| "a number is wanted")?;
    Ok((operation.parse()?, first))
}

/// Runs the parent: this many cycles of start, kill and compare.
pub fn run(
    place: &WorkDirectory,
    seed: u64,
    threads: usize,
    cycles: u64,
    requested: &Requested,
) -> anyhow::Result<()> {
    let mut out = Out::stdout();
    out.line(format_args!(
        "crash: seed {seed}, {threads} threads, {cycles} cycles"
    ))?;
    out.flush()?;
    let mut rng = script::rng(seed, u64::MAX - 1, 0);
    let mut counters = Counters::default();
    let mut expected: Vec<Expected> = Vec::new();
    let mut operated = Operation::ALL.map(OperationCounts::new);
    let progress = Progress::on_terminal().rate("crash", Some(cycles), "writes");
    for cycle in 0..cycles {
        let path = place.store(counters.stores);
        let fresh = expected.is_empty();
        if fresh {
            expected.resize_with(threads, Expected::default);
            operated.iter_mut().for_each(OperationCounts::start_over);
        }
        // Every fifth cycle only writes.
        let place_of = (cycle % (operated.len() as u64 + 1)) as usize;
        let meanwhile = operated.get(place_of);
        // A different seed for each store, so that its writes differ.
        let store_seed = seed.wrapping_add(counters.stores);
        let [by_child, by_check] =
            [0, 1].map(|turn| Opening::draw(seed, 2 * cycle + turn, requested));
        let child = ChildOptions {
            path: &path,
            seed: store_seed,
            opening: by_child,
            meanwhile,
        };
        let report = child.run(&expected, &mut rng, &mut counters);
        let checked = report.and_then(|report| {
            if let Some(operated) = operated.get_mut(place_of) {
                operated.note(&report);
                let operation = operated.operation;
                check_copies(&path, &by_check, store_seed, operation, &expected, &report)?;
            }
            let acknowledged = &report.next;
            check(
                &path,
                &by_check,
                store_seed,
                &mut expected,
                acknowledged,
                &operated,
                &mut counters,
            )
        });
        checked.with_context(|| {
            format!(
                "crash cycle {cycle} of the run with seed {seed}, written with {by_child}, checked \
                 with {by_check}; the store is left in {}",
                path.display()
            )
        })?;
        progress.update(cycle + 1, counters.acknowledged);
        if size_bytes(&path)? > STORE_BYTES_MAX {
            place.remove_store(counters.stores)?;
            counters.stores += 1;
            expected.clear();
        }
    }
    let took = progress.finish();
    out.line(format_args!(
        "{} in {}: {} acknowledged and none lost, {} under way and found whole, {} killed while \
         opening; {}",
        output::counted(cycles, "kill"),
        output::time(took),
        output::counted(counters.acknowledged, "write"),
        output::count(counters.under_way_applied),
        output::count(counters.killed_opening),
        output::counted(counters.stores + u64::from(!expected.is_empty()), "store"),
    ))?;
    let during = operated.iter().map(|of| {
        let (operation, kills) = (of.operation, output::count(of.kills));
        format!(
            "{kills} during {operation} ({} done)",
            output::count(of.finished)
        )
    });
    out.line(format_args!(
        "of the kills, {}: each was complete or absent",
        during.collect::<Vec<_>>().join(", ")
    ))?;
    out.finish()
}

/// How to start a child.
struct ChildOptions<'a> {
    path: &'a Path,
    seed: u64,
    opening: Opening,
    /// The operation that it repeats besides its writes.
    meanwhile: Option<&'a OperationCounts>,
}

impl ChildOptions<'_> {
    /// Starts a child, kills it at a random time, and returns its report.
    fn run(
        &self,
        expected: &[Expected],
        rng: &mut SmallRng,
        counters: &mut Counters,
    ) -> anyhow::Result<ChildReport> {
        let from: Vec<u64> = expected.iter().map(|thread| thread.writes).collect();
        let mut child = self.start(&from)?;
        let (event_sender, events) = mpsc::channel();
        let output = child
            .stdout
            .take()
            .context("the child has no standard output")?;
        let mut errors = child
            .stderr
            .take()
            .context("the child has no standard error")?;
        thread::scope(|scope| {
            let listener = scope.spawn(move || listen(output, from, &event_sender));
            let complaints = scope.spawn(move || {
                let mut text = String::new();
                errors.read_to_string(&mut text).map(|_| text)
            });
            let killed_opening = wait(&events, self.meanwhile.map(|of| of.typical), rng);
            // A child that ended by itself cannot be killed; this is reported below.
            let ended = child.try_wait();
            let killed = child.kill().and_then(|()| child.wait());
            let report = listener
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
            counters.killed_opening += u64::from(killed_opening?);
            report
        })
    }

    fn start(&self, from: &[u64]) -> anyhow::Result<Child> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let from: Vec<String> = from.iter().map(u64::to_string).collect();
        let operation = self
            .meanwhile
            .map(|of| format!("--operation={}:{}", of.operation, of.next));
        Command::new(program)
            .args([
                "stress",
                "--crash",
                "--seed",
                &self.seed.to_string(),
                "--write-from",
                &from.join(","),
            ])
            .args(self.opening.arguments())
            .args(operation)
            .arg("--dir")
            .arg(self.path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the writing child")
    }
}

/// Waits until it is time to kill the child: at a random time, or during an operation of this
/// duration. Returns whether it was still opening its store.
fn wait(
    events: &Receiver<Event>,
    operation: Option<Duration>,
    rng: &mut SmallRng,
) -> anyhow::Result<bool> {
    let while_opening = rng.random_ratio(1, 5);
    let child = Duration::from_micros(rng.random_range(20_000..200_000));
    let patience = if while_opening {
        Duration::from_micros(rng.random_range(0..20_000))
    } else {
        OPEN_TIME_MAX
    };
    match events.recv_timeout(patience) {
        Ok(_) => {
            thread::sleep(child);
            match operation {
                Some(typical) => wait_for_begin(events, typical, rng).map(|()| false),
                None => Ok(false),
            }
        }
        Err(RecvTimeoutError::Timeout) if while_opening => Ok(true),
        Err(RecvTimeoutError::Timeout) => Err(CheckFailed(format!(
            "the child did not open its store within {}",
            output::time(OPEN_TIME_MAX)
        ))
        .into()),
        // It ended before it reported anything; the reason is determined next.
        Err(RecvTimeoutError::Disconnected) => {
            thread::sleep(Duration::from_millis(100));
            Ok(true)
        }
    }
}

/// Waits for the next operation to begin, and then for a part of its expected duration.
fn wait_for_begin(
    events: &Receiver<Event>,
    typical: Duration,
    rng: &mut SmallRng,
) -> anyhow::Result<()> {
    while events.try_recv().is_ok() {}
    match events.recv_timeout(OPEN_TIME_MAX) {
        Ok(_) => {
            let max = typical.as_micros().max(1) as u64;
            thread::sleep(Duration::from_micros(rng.random_range(0..max)));
            Ok(())
        }
        Err(RecvTimeoutError::Timeout) => Err(CheckFailed(format!(
            "the child made no progress with its operations for {}",
            output::time(OPEN_TIME_MAX)
        ))
        .into()),
        // It ended; the reason is determined next.
        Err(RecvTimeoutError::Disconnected) => {
            thread::sleep(Duration::from_millis(100));
            Ok(())
        }
    }
}

/// Records the reports of a child until it is gone.
fn listen(
    output: impl Read,
    next: Vec<u64>,
    events: &mpsc::Sender<Event>,
) -> anyhow::Result<ChildReport> {
    let mut report = ChildReport {
        next,
        ..ChildReport::default()
    };
    let mut begun_at = Instant::now();
    for line in BufReader::new(output).lines() {
        let line = line.context("cannot hear the child")?;
        if line == "open" {
            // No thread waits for this if the child is already being killed.
            let _ = events.send(Event::Open);
            continue;
        }
        let Some((what, n)) = line.split_once(' ') else {
            bail!("the child said \"{line}\"")
        };
        let n: u64 = n
            .parse()
            .with_context(|| format!("the child said \"{line}\""))?;
        if what == "begin" {
            begun_at = Instant::now();
            report.begun = Some(OperationBegin {
                number: n,
                writes: report.next.clone(),
            });
            let _ = events.send(Event::Begun);
            continue;
        }
        if what == "done" {
            report.operation_times.push(begun_at.elapsed());
            report.done.clone_from(&report.begun);
            if report.done.as_ref().is_none_or(|done| done.number != n) {
                let problem = format!("the child finished operation {n}, which it had not begun");
                return Err(CheckFailed(problem).into());
            }
            continue;
        }
        let thread: usize = what
            .parse()
            .with_context(|| format!("the child said \"{line}\""))?;
        match report.next.get_mut(thread) {
            Some(next) if *next == n => *next += 1,
            _ => {
                return Err(CheckFailed(format!(
                    "the child acknowledged write {n} of thread {thread} out of turn"
                ))
                .into());
            }
        }
    }
    Ok(report)
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
        let (sender, events) = mpsc::channel();
        let report = listen(&b"open\n0 5\n1 0\n0 6\n"[..], vec![5, 0], &sender).unwrap();
        assert_eq!(report.next, [7, 1]);
        assert_eq!(events.try_recv(), Ok(Event::Open));
        assert!(listen(&b"0 6\n"[..], vec![5], &sender).is_err(), "a gap");
        assert!(
            listen(&b"3 0\n"[..], vec![0], &sender).is_err(),
            "no such thread"
        );
        assert!(listen(&b"hello\n"[..], vec![0], &sender).is_err());
        assert!(listen(&b"hello 1\n"[..], vec![0], &sender).is_err());
    }

    #[test]
    fn a_kill_hits_an_operation_in_progress() {
        let (sender, events) = mpsc::channel();
        let hear = |said: &[u8]| listen(said, vec![0], &sender).unwrap();
        let mut operated = OperationCounts::new(Operation::Backup);
        let report = hear(b"open\n0 0\nbegin 3\n0 1\ndone 3\n0 2\nbegin 4\n");
        let mark = |number, writes| Some(OperationBegin { number, writes });
        assert_eq!(report.done, mark(3, vec![1]));
        assert_eq!(report.begun, mark(4, vec![3]));
        operated.note(&report);
        assert_eq!((operated.kills, operated.finished), (1, 1));
        assert_eq!((operated.done, operated.begun), (Some(3), Some(4)));
        assert_eq!(operated.next, 5);
        assert_eq!(
            events.try_iter().filter(|of| *of == Event::Begun).count(),
            2
        );
        for said in [&b"open\nbegin 5\ndone 5\n"[..], b"open\n", b""] {
            operated.note(&hear(said));
        }
        assert_eq!(
            (operated.kills, operated.finished, operated.next),
            (1, 2, 6)
        );
        assert!(listen(&b"done 1\n"[..], vec![0], &sender).is_err());
    }
}
