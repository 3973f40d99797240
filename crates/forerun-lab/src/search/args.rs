//! The arguments that select the seeds that a simulator runs.

use std::time::Duration;

use clap::Args;

use super::Search;

/// How long the simulator runs seeds by default.
const TIME: Duration = Duration::from_secs(10);

/// Which seeds to run, and how.
#[derive(Args, Debug)]
pub struct SeedArgs {
    /// Run only this seed.
    #[arg(long, conflicts_with_all = ["seeds", "seconds", "from"])]
    pub seed: Option<u64>,
    /// Run this many seeds.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Run seeds for this many seconds [default: 10, unless --seeds is given]
    #[arg(long)]
    seconds: Option<u64>,
    /// The first seed [default: taken from the clock]
    #[arg(long)]
    from: Option<u64>,
    /// Number of concurrent processes [default: number of cores]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Report a failing seed as it is, without shrinking it.
    #[arg(long)]
    pub no_shrink: bool,
}

impl SeedArgs {
    /// The search that these arguments describe, for the simulator whose workers this command
    /// starts.
    pub fn search(&self, simulator: &'static str, worker: &'static str) -> Search {
        let seeds = self.seed.map(|_| 1).or(self.seeds);
        let time = match (seeds, self.seconds) {
            (_, Some(seconds)) => Some(Duration::from_secs(seconds)),
            (None, None) => Some(TIME),
            (Some(_), None) => None,
        };
        Search {
            simulator,
            worker,
            first: self.seed.or(self.from).unwrap_or_else(clock_seed),
            seeds,
            time,
            jobs: self.jobs(),
            worker_args: Vec::new(),
            program: None,
            planted: None,
        }
    }

    /// Number of concurrent processes.
    fn jobs(&self) -> usize {
        self.jobs.map_or_else(cores, usize::from)
    }
}

/// The number of cores.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A seed taken from the clock, short enough to type.
fn clock_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64 % 100_000_000_000)
}
