//! Runs seeds in worker processes until a seed fails, none is left, or the time has run out.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};

use super::worker::WorkerMessage;
use super::{Counts, PLANTED_VARIABLE, Report};

/// How long a simulation may take in real time. All its waiting is simulated.
const TIME_MAX: Duration = Duration::from_secs(60);

/// What to run.
#[derive(Clone, Debug)]
pub struct Search {
    /// The command that runs the simulator, and the one that runs a worker of it.
    pub simulator: &'static str,
    pub worker: &'static str,
    /// The first seed; the others follow it.
    pub first: u64,
    /// The number of seeds.
    pub seeds: Option<u64>,
    /// The duration.
    pub time: Option<Duration>,
    /// Concurrent worker processes.
    pub jobs: usize,
    /// More arguments for the workers.
    pub worker_args: Vec<String>,
    /// The program of the workers; `None`: this one.
    pub program: Option<PathBuf>,
    /// The defect that is planted in the workers of a program that has it.
    pub planted: Option<String>,
}

/// The totals over the seeds.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Totals<C> {
    pub seeds: u64,
    #[serde(flatten)]
    pub counts: C,
    pub seconds: f64,
}

/// A seed that fails.
#[derive(Clone, Debug)]
pub struct FailedSeed {
    pub seed: u64,
    pub finding: String,
    /// Its simulation ended, and the worker reported it.
    pub has_ended: bool,
}

impl<C: Counts> Totals<C> {
    fn add(&mut self, report: &Report<C>) {
        self.seeds += 1;
        self.counts += report.counts;
    }
}

/// A report of a worker process.
enum Event<C> {
    Message(WorkerMessage<C>),
    /// It ended, or printed something unintelligible.
    Ended(String),
}

/// A worker process. Dropping this ends it.
struct Worker {
    child: Child,
    /// The seed that it is running, and since when.
    seed: Option<u64>,
    since: Instant,
    /// How many seeds it was given, and how many it has run.
    given: Option<u64>,
    run: u64,
    is_done: bool,
}

impl Worker {
    /// Ends it between two seeds.
    fn end(&mut self) {
        self.is_done = true;
        // It may have ended already.
        let _ = self.child.kill();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs seeds until one fails. Calls `watch` periodically with the progress. When the time has run
/// out, the seeds in progress run to their end, because a seed that never ends is a finding too.
///
/// # Errors
/// A worker process cannot be started, or ends before it has run its seeds.
pub fn search<C: Counts>(
    search: &Search,
    watch: &mut dyn FnMut(&Totals<C>),
) -> anyhow::Result<(Totals<C>, Option<FailedSeed>)> {
    let started = Instant::now();
    let mut totals = Totals::default();
    let (sender, events) = mpsc::channel();
    let jobs = search
        .jobs
        .min(search.seeds.unwrap_or(u64::MAX) as usize)
        .max(1);
    let scratch_dir = scratch_dir()?;
    let mut workers = Vec::new();
    for number in 0..jobs {
        workers.push(start(
            search,
            number,
            jobs,
            scratch_dir.path(),
            sender.clone(),
        )?);
    }
    let mut is_over = false;
    let found = loop {
        let wait = Duration::from_millis(200);
        match events.recv_timeout(wait) {
            Ok((number, event)) => {
                let worker: &mut Worker = &mut workers[number];
                worker.since = Instant::now();
                match event {
                    Event::Message(_) if worker.is_done => {}
                    Event::Message(WorkerMessage::Begin(seed)) => worker.seed = Some(seed),
                    Event::Message(WorkerMessage::End(report)) => {
                        totals.add(&report);
                        if let (Some(finding), Some(seed)) = (report.finding, worker.seed) {
                            break Some(FailedSeed {
                                seed,
                                finding,
                                has_ended: true,
                            });
                        }
                        worker.seed = None;
                        worker.run += 1;
                        if is_over {
                            worker.end();
                        }
                    }
                    Event::Ended(_) if worker.is_done => {}
                    Event::Ended(why) => {
                        worker.is_done = true;
                        if let Some(seed) = worker.seed {
                            break Some(FailedSeed {
                                seed,
                                finding: why,
                                has_ended: false,
                            });
                        }
                        if worker.given != Some(worker.run) {
                            let status =
                                worker.child.wait().context("wait for a worker process")?;
                            let run = worker.run;
                            bail!("a worker process ended after {run} seeds ({status}): {why}");
                        }
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break None,
        }
        if workers.iter().all(|worker| worker.is_done) {
            break None;
        }
        let is_late = |worker: &&Worker| worker.seed.is_some() && worker.since.elapsed() > TIME_MAX;
        if let Some(Worker {
            seed: Some(seed), ..
        }) = workers.iter().find(is_late)
        {
            let finding = format!("it does not end within {} s", TIME_MAX.as_secs());
            break Some(FailedSeed {
                seed: *seed,
                finding,
                has_ended: false,
            });
        }
        totals.seconds = started.elapsed().as_secs_f64();
        watch(&totals);
        if !is_over && search.time.is_some_and(|time| started.elapsed() >= time) {
            is_over = true;
            let idle = workers.iter_mut().filter(|worker| worker.seed.is_none());
            idle.for_each(Worker::end);
        }
    };
    totals.seconds = started.elapsed().as_secs_f64();
    Ok((totals, found))
}

/// Starts a worker for every `jobs`th seed.
fn start<C: Counts>(
    search: &Search,
    number: usize,
    jobs: usize,
    scratch_dir: &Path,
    sender: Sender<(usize, Event<C>)>,
) -> anyhow::Result<Worker> {
    let (number_u64, jobs_u64) = (number as u64, jobs as u64);
    let mut command = command(search, scratch_dir)?;
    command.args([
        "--first",
        &search.first.wrapping_add(number_u64).to_string(),
    ]);
    command.args(["--step", &jobs.to_string()]);
    let given = search
        .seeds
        .map(|seeds| seeds.saturating_sub(number_u64).div_ceil(jobs_u64));
    if let Some(count) = given {
        command.args(["--count", &count.to_string()]);
    }
    let mut child = command.spawn().context("cannot start a worker process")?;
    let out = child
        .stdout
        .take()
        .ok_or_else(|| anyhow!("a worker has no output"))?;
    thread::spawn(move || {
        for line in BufReader::new(out).lines() {
            let message = line.map_err(|error| error.to_string());
            let message = message.and_then(|line| {
                serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"))
            });
            let event = match message {
                Ok(line) => Event::Message(line),
                Err(error) => Event::Ended(error),
            };
            if sender.send((number, event)).is_err() {
                return;
            }
        }
        // The search may be over.
        let _ = sender.send((
            number,
            Event::Ended("the process ended in the middle of it".to_owned()),
        ));
    });
    Ok(Worker {
        child,
        seed: None,
        since: Instant::now(),
        given,
        run: 0,
        is_done: false,
    })
}

/// Runs the program as a worker.
fn command(search: &Search, scratch_dir: &Path) -> anyhow::Result<Command> {
    let program = match &search.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("cannot find this program")?,
    };
    let mut command = Command::new(program);
    command.env_remove(PLANTED_VARIABLE);
    if let Some(defect) = &search.planted {
        command.env(PLANTED_VARIABLE, defect);
    }
    command.arg(search.worker);
    command.args(&search.worker_args);
    command.env("TMPDIR", scratch_dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// Where workers, which may be killed, leave their temporary files.
fn scratch_dir() -> anyhow::Result<tempfile::TempDir> {
    tempfile::tempdir().context("cannot make a directory for the workers")
}

/// Runs one seed in a separate worker, with its history.
///
/// # Errors
/// The worker cannot be started.
pub fn run_one<C: Counts>(seed: u64, search: &Search) -> anyhow::Result<Report<C>> {
    let one = Search {
        first: seed,
        seeds: Some(1),
        worker_args: [&search.worker_args[..], &["--trace".to_owned()]].concat(),
        ..search.clone()
    };
    let (sender, events) = mpsc::channel();
    let scratch_dir = scratch_dir()?;
    let _worker = start(&one, 0, 1, scratch_dir.path(), sender)?;
    let started = Instant::now();
    loop {
        match events.recv_timeout(TIME_MAX.saturating_sub(started.elapsed())) {
            Ok((_, Event::Message(WorkerMessage::Begin(_)))) => {}
            Ok((_, Event::Message(WorkerMessage::End(report)))) => return Ok(report),
            Ok((_, Event::Ended(why))) => {
                return Ok(Report {
                    finding: Some(why),
                    ..Report::default()
                });
            }
            Err(_) => {
                return Ok(Report {
                    finding: Some(format!("it does not end within {} s", TIME_MAX.as_secs())),
                    ..Report::default()
                });
            }
        }
    }
}
