//! Shows that the simulator works: known defects are planted one at a time, and it must find each
//! of them.
//!
//! ```text
//!   defect ──> worker processes that plant it ──> seeds 1, 2, 3, … ──> the first that fails ──> the same seed without it passes
//! ```
//!
//! A defect counts as found only by a seed that passes without it. So the seed shows the defect and
//! not a flaw of the simulator.

use std::fmt;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use forerun_db::planted::{Defect, plant};

use super::search::{Found, Search, run_one, search};

/// How long to look for a defect.
const TIME_MAX: Duration = Duration::from_secs(120);

/// The first seed: always the same, so that the results do not change from run to run.
const FIRST_SEED: u64 = 1;

/// The value of `sim --planted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// List the defects.
    List,
    /// Find all of them.
    All,
    /// Find one.
    One(Planted),
}

/// A defect, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted(Defect);

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Which, String> {
        match text {
            "list" => Ok(Which::List),
            "all" => Ok(Which::All),
            name => name.parse().map(Which::One),
        }
    }
}

impl FromStr for Planted {
    type Err = String;

    fn from_str(name: &str) -> Result<Planted, String> {
        let mut all = Defect::ALL.iter();
        let named = all.find(|defect| defect.name() == name);
        named
            .map(|defect| Planted(*defect))
            .ok_or_else(|| "no such defect: see --planted list".to_owned())
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

impl Planted {
    /// Plants it in this process.
    pub fn plant(self) {
        plant(Some(self.0));
    }

    /// The arguments of a worker that plants it.
    fn worker_args(self) -> Vec<String> {
        vec!["--plant".to_owned(), self.to_string()]
    }
}

/// Looks for planted defects, and reports after how many seeds each was found.
///
/// # Errors
/// A worker process cannot be started.
pub fn command(which: Which, jobs: usize) -> anyhow::Result<ExitCode> {
    let defects = match which {
        Which::List => {
            for defect in Defect::ALL {
                println!("{:<28} {}", defect.name(), defect.sentence());
            }
            return Ok(ExitCode::SUCCESS);
        }
        Which::All => Defect::ALL.iter().map(|defect| Planted(*defect)).collect(),
        Which::One(defect) => vec![defect],
    };
    let started = Instant::now();
    let mut found = 0;
    for planted in &defects {
        let result = look_for(*planted, jobs)?;
        found += usize::from(result.found.is_some());
        println!("{:<28} {result}", planted.0.name());
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{seconds:.0} s");
    println!("found {found} of {}", defects.len());
    Ok(match found == defects.len() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(1),
    })
}

/// The outcome of the search for a defect.
struct Looked {
    seeds: u64,
    seconds: f64,
    found: Option<Found>,
    /// Seeds that fail without the defect too, and so show nothing.
    fail_without: Vec<u64>,
}

impl fmt::Display for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Looked { seeds, seconds, .. } = self;
        match &self.found {
            None => write!(f, "NOT FOUND in {seeds} seeds, {seconds:.1} s")?,
            Some(Found { seed, finding }) => {
                let line = finding.lines().next().unwrap_or_default();
                write!(f, "{seeds:>6} seeds {seconds:>6.1} s  seed {seed}: {line}")?;
            }
        }
        match &self.fail_without[..] {
            [] => Ok(()),
            seeds => write!(f, " (these fail without it too: {seeds:?})"),
        }
    }
}

fn look_for(planted: Planted, jobs: usize) -> anyhow::Result<Looked> {
    let started = Instant::now();
    let mut with = Search {
        first: FIRST_SEED,
        seeds: None,
        time: Some(TIME_MAX),
        jobs,
        only: None,
        worker_args: planted.worker_args(),
    };
    let without = Search {
        worker_args: Vec::new(),
        ..with.clone()
    };
    let mut looked = Looked {
        seeds: 0,
        seconds: 0.0,
        found: None,
        fail_without: Vec::new(),
    };
    while let Some(left) = TIME_MAX.checked_sub(started.elapsed()) {
        with.time = Some(left);
        let (tally, found) = search(&with, &mut |_| {})?;
        looked.seeds += tally.seeds;
        looked.seconds = started.elapsed().as_secs_f64();
        let Some(found) = found else { break };
        if run_one(found.seed, &without)?.finding.is_none() {
            looked.found = Some(found);
            break;
        }
        with.first = found.seed + 1;
        looked.fail_without.push(found.seed);
    }
    Ok(looked)
}
