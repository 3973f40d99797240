//! The simulator's output: a progress bar while it runs, a failing seed with its history, and a
//! line at the end.

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};

use super::search::{Found, Search, Tally};
use super::shrink::Shrunk;

/// A bar on a terminal; nothing in a pipe.
pub struct Bar {
    bar: ProgressBar,
    seeds: Option<u64>,
}

impl Bar {
    pub fn new(search: &Search) -> Bar {
        let total = search
            .seeds
            .or(search.time.map(|time| time.as_secs().max(1)));
        // indicatif draws nothing if standard error is not a terminal.
        let bar = ProgressBar::new(total.unwrap_or(1));
        let style = ProgressStyle::with_template("sim {wide_bar} {percent:>3}%  {msg}  {eta} left");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Bar {
            bar,
            seeds: search.seeds,
        }
    }

    pub fn update(&self, tally: &Tally) {
        self.bar.set_position(match self.seeds {
            Some(_) => tally.seeds,
            None => tally.seconds as u64,
        });
        let rate = tally.seeds as f64 / tally.seconds.max(0.001);
        self.bar
            .set_message(format!("{} seeds  {rate:.0}/s", tally.seeds));
    }

    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// Prints the results, and returns the exit code.
pub fn print(
    tally: &Tally,
    found: Option<&Found>,
    shrunk: Option<&Shrunk>,
    is_json: bool,
) -> ExitCode {
    match is_json {
        true => print_json(tally, found, shrunk),
        false => print_text(tally, found, shrunk),
    }
    match found {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::from(1),
    }
}

/// The command that repeats a failure.
fn repeat(found: &Found, shrunk: Option<&Shrunk>) -> String {
    let seed = found.seed;
    match shrunk.filter(|shrunk| shrunk.report.finding.is_some()) {
        Some(shrunk) => format!("forerun-lab sim --seed {seed} --only {}", shrunk.kept),
        None => format!("forerun-lab sim --seed {seed}"),
    }
}

fn print_text(tally: &Tally, found: Option<&Found>, shrunk: Option<&Shrunk>) {
    if let Some(found) = found {
        println!("{}", found.finding);
        println!("repeat: forerun-lab sim --seed {}", found.seed);
        match shrunk {
            Some(shrunk) if shrunk.report.finding.is_some() => {
                println!(
                    "shrunk from {} to {} steps and faults:",
                    shrunk.drawn, shrunk.steps
                );
                for line in &shrunk.report.trace {
                    println!("  {line}");
                }
                if let Some(finding) = &shrunk.report.finding {
                    println!("  {finding}");
                }
                println!("repeat: {}", repeat(found, Some(shrunk)));
            }
            Some(_) => println!(
                "it passed when it was run again: the simulation is not deterministic there"
            ),
            None => {}
        }
    }
    let Tally {
        seeds,
        operations,
        faults,
        kills,
        seconds,
    } = tally;
    println!(
        "{seeds} seeds, {operations} operations, {faults} faults, {kills} kills in {seconds:.1} s ({:.0} seeds/s): {}",
        *seeds as f64 / seconds.max(0.001),
        match found {
            None => "all passed",
            Some(_) => "one failed",
        }
    );
}

fn print_json(tally: &Tally, found: Option<&Found>, shrunk: Option<&Shrunk>) {
    let failure = found.map(|found| {
        serde_json::json!({
            "seed": found.seed,
            "finding": found.finding,
            "repeat": repeat(found, shrunk),
            "history": shrunk.map(|shrunk| &shrunk.report.trace),
        })
    });
    let object = serde_json::json!({ "tally": tally, "failure": failure });
    println!("{object}");
}
