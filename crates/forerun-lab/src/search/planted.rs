//! Shows that a simulator works: known defects are planted one at a time, and it must find each of
//! them.
//!
//! ```text
//!   defect ──> worker processes that plant it ──> seeds 1, 2, 3, … ──> the first that fails
//!                                             the same seed passes without the defect <──┘
//! ```
//!
//! A defect counts as found only by a seed that passes without it. So the seed detects the planted
//! defect, not a defect of the simulator.

use std::fmt;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::{Counts, FailedSeed, Search, run_one, search};

/// How long to look for a defect.
const TIME_MAX: Duration = Duration::from_secs(120);

/// The first seed: always the same, so that the results do not change from run to run.
const FIRST_SEED: u64 = 1;

/// A known defect of the simulated program.
pub trait Defect: Copy + Send + Sync + 'static {
    /// All defects.
    const ALL: &'static [Self];
    /// Its name on the command line.
    fn name(self) -> &'static str;
    /// What it is, in one sentence.
    fn description(self) -> &'static str;
    /// Plants it in this process.
    fn plant(self);
}

/// Implements the trait for the defects that a crate can plant.
macro_rules! defects_of {
    ($defect:ty, $plant:path) => {
        impl $crate::search::planted::Defect for $defect {
            const ALL: &'static [Self] = <$defect>::ALL;

            fn name(self) -> &'static str {
                <$defect>::name(self)
            }

            fn description(self) -> &'static str {
                <$defect>::description(self)
            }

            fn plant(self) {
                $plant(Some(self));
            }
        }
    };
}
pub(crate) use defects_of;

/// The value of `--planted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefectChoice<D> {
    /// List the defects.
    List,
    /// Find all of them.
    All,
    /// Find one.
    One(Planted<D>),
}

/// A defect, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted<D>(pub D);

impl<D: Defect> FromStr for DefectChoice<D> {
    type Err = String;

    fn from_str(text: &str) -> Result<DefectChoice<D>, String> {
        match text {
            "list" => Ok(DefectChoice::List),
            "all" => Ok(DefectChoice::All),
            name => name.parse().map(DefectChoice::One),
        }
    }
}

impl<D: Defect> FromStr for Planted<D> {
    type Err = String;

    fn from_str(name: &str) -> Result<Planted<D>, String> {
        let mut all = D::ALL.iter();
        let named = all.find(|defect| defect.name() == name);
        named
            .map(|defect| Planted(*defect))
            .ok_or_else(|| "unknown defect: see --planted list".to_owned())
    }
}

/// Looks for planted defects, and reports after how many seeds each was found.
///
/// # Errors
/// A worker process cannot be started.
pub fn command<D: Defect, C: Counts>(
    which: DefectChoice<D>,
    simulator: &Search,
) -> anyhow::Result<ExitCode> {
    let defects = match which {
        DefectChoice::List => {
            for defect in D::ALL {
                println!("{:<28} {}", defect.name(), defect.description());
            }
            return Ok(ExitCode::SUCCESS);
        }
        DefectChoice::All => D::ALL.to_vec(),
        DefectChoice::One(Planted(defect)) => vec![defect],
    };
    let started = Instant::now();
    let mut found = 0;
    for defect in &defects {
        let result = search_for_defect::<D, C>(*defect, simulator)?;
        found += usize::from(result.found.is_some());
        println!("{:<28} {result}", defect.name());
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{seconds:.0} s");
    println!("found {found} of {}", defects.len());
    Ok(if found == defects.len() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

/// The outcome of the search for a defect.
struct DefectSearch {
    seeds: u64,
    seconds: f64,
    found: Option<FailedSeed>,
    /// Seeds that also fail without the defect, and therefore prove nothing.
    fail_without: Vec<u64>,
}

impl fmt::Display for DefectSearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DefectSearch { seeds, seconds, .. } = self;
        match &self.found {
            None => write!(f, "NOT FOUND in {seeds} seeds, {seconds:.1} s")?,
            Some(FailedSeed { seed, finding, .. }) => {
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

fn search_for_defect<D: Defect, C: Counts>(
    defect: D,
    simulator: &Search,
) -> anyhow::Result<DefectSearch> {
    let started = Instant::now();
    let without = Search {
        first: FIRST_SEED,
        seeds: None,
        time: Some(TIME_MAX),
        worker_args: Vec::new(),
        ..simulator.clone()
    };
    let mut with = Search {
        worker_args: vec!["--plant".to_owned(), defect.name().to_owned()],
        ..without.clone()
    };
    let mut result = DefectSearch {
        seeds: 0,
        seconds: 0.0,
        found: None,
        fail_without: Vec::new(),
    };
    while let Some(left) = TIME_MAX.checked_sub(started.elapsed()) {
        with.time = Some(left);
        let (totals, found) = search::<C>(&with, &mut |_| {})?;
        result.seeds += totals.seeds;
        result.seconds = started.elapsed().as_secs_f64();
        let Some(found) = found else { break };
        if run_one::<C>(found.seed, &without)?.finding.is_none() {
            result.found = Some(found);
            break;
        }
        with.first = found.seed + 1;
        result.fail_without.push(found.seed);
    }
    Ok(result)
}
