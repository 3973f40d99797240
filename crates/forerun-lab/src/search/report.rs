//! A simulator's output: a progress bar, the failing seed with its history, and a last line with
//! the totals.

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};

use super::{Counts, FailedSeed, Search, Totals};

/// A bar on a terminal; nothing in a pipe.
pub struct SearchProgress {
    bar: ProgressBar,
    seeds: Option<u64>,
}

impl SearchProgress {
    pub fn new(search: &Search) -> SearchProgress {
        let total = search
            .seeds
            .or(search.time.map(|time| time.as_secs().max(1)));
        // indicatif draws nothing if standard error is not a terminal.
        let bar = ProgressBar::new(total.unwrap_or(1));
        let template = format!(
            "{} {{wide_bar}} {{percent:>3}}%  {{msg}}  {{eta}} left",
            search.simulator
        );
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        SearchProgress {
            bar,
            seeds: search.seeds,
        }
    }

    pub fn update<C>(&self, totals: &Totals<C>) {
        self.bar.set_position(match self.seeds {
            Some(_) => totals.seeds,
            None => totals.seconds as u64,
        });
        let rate = totals.seeds as f64 / totals.seconds.max(0.001);
        self.bar
            .set_message(format!("{} seeds  {rate:.0}/s", totals.seeds));
    }

    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// A shrunk failing seed.
#[derive(Debug, Default)]
pub struct ShrunkSeed {
    /// How much it was shrunk: "shrunk from 52 to 4 steps and faults".
    pub summary: String,
    /// Its steps and what happens, line by line.
    pub history: Vec<String>,
    /// How it fails; `None` if it passed when it was run again.
    pub finding: Option<String>,
    /// The command that repeats it, if there is one.
    pub repeat: Option<String>,
}

/// Prints the results, and returns the exit code.
pub fn print<C: Counts>(
    search: &Search,
    totals: &Totals<C>,
    found: Option<&FailedSeed>,
    shrunk: Option<&ShrunkSeed>,
    is_json: bool,
) -> ExitCode {
    if is_json {
        print_json(search, totals, found, shrunk)
    } else {
        print_text(search, totals, found, shrunk)
    }
    match found {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::from(1),
    }
}

/// The command that repeats a failing seed.
pub fn repeat(search: &Search, seed: u64) -> String {
    format!("forerun-lab {} --seed {seed}", search.simulator)
}

fn print_text<C: Counts>(
    search: &Search,
    totals: &Totals<C>,
    found: Option<&FailedSeed>,
    shrunk: Option<&ShrunkSeed>,
) {
    if let Some(found) = found {
        println!("{}", found.finding);
        println!("repeat: {}", repeat(search, found.seed));
        match shrunk {
            Some(shrunk) if shrunk.finding.is_some() => {
                println!("{}:", shrunk.summary);
                for line in shrunk.history.iter().chain(&shrunk.finding) {
                    println!("  {line}");
                }
                if let Some(repeat) = &shrunk.repeat {
                    println!("repeat: {repeat}");
                }
            }
            Some(_) => println!(
                "it passed when it was run again: the simulation is not deterministic there"
            ),
            None => {}
        }
    }
    let Totals {
        seeds,
        counts,
        seconds,
    } = totals;
    println!(
        "{seeds} seeds, {counts} in {seconds:.1} s ({:.0} seeds/s): {}",
        *seeds as f64 / seconds.max(0.001),
        match found {
            None => "all passed",
            Some(_) => "one failed",
        }
    );
}

fn print_json<C: Counts>(
    search: &Search,
    totals: &Totals<C>,
    found: Option<&FailedSeed>,
    shrunk: Option<&ShrunkSeed>,
) {
    let failure = found.map(|found| {
        let shrunk = shrunk.filter(|shrunk| shrunk.finding.is_some());
        let shortest = shrunk.and_then(|shrunk| shrunk.repeat.clone());
        serde_json::json!({
            "seed": found.seed,
            "finding": found.finding,
            "repeat": shortest.unwrap_or_else(|| repeat(search, found.seed)),
            "history": shrunk.map(|shrunk| &shrunk.history),
        })
    });
    let object = serde_json::json!({ "totals": totals, "failure": failure });
    println!("{object}");
}
