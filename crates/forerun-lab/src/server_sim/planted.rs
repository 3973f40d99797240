//! Plants known defects of the server, one after the other, and measures how soon the simulation
//! finds each.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use forerun_server::planted::{Defect, plant};

use super::plan::Plan;
use super::play;

/// How long to look for a defect by default.
const PATIENCE: Duration = Duration::from_secs(120);

/// Looks for the defect with this name, or for all.
///
/// # Errors
/// An unknown name, or nothing can be simulated.
pub fn find(name: &str, patience: Option<Duration>) -> anyhow::Result<ExitCode> {
    let patience = patience.unwrap_or(PATIENCE);
    if name == "list" {
        for defect in Defect::ALL {
            println!("{:<22} {}", defect.name(), defect.sentence());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let defects: Vec<Defect> = Defect::ALL
        .iter()
        .copied()
        .filter(|defect| name == "all" || defect.name() == name)
        .collect();
    if defects.is_empty() {
        anyhow::bail!("no defect is called {name:?}: see --planted list");
    }
    // A defect may be found through its panic, which is reported where it counts.
    std::panic::set_hook(Box::new(|_| {}));
    let mut found = 0;
    for defect in &defects {
        plant(Some(*defect));
        let start = Instant::now();
        let mut outcome = None;
        for seed in 1.. {
            if start.elapsed() > patience {
                break;
            }
            let plan = Plan::draw(seed);
            if let Err(failure) = play(&plan)?.ended {
                // A seed that also fails without the defect says nothing about it.
                plant(None);
                let is_clean = play(&plan)?.ended.is_ok();
                plant(Some(*defect));
                if !is_clean {
                    continue;
                }
                outcome = Some((seed, failure));
                break;
            }
        }
        plant(None);
        match outcome {
            Some((seed, failure)) => {
                found += 1;
                println!(
                    "{}: found after {seed} seeds, {:.1} s: {failure}",
                    defect.name(),
                    start.elapsed().as_secs_f64()
                );
            }
            None => println!(
                "{}: not found in {patience:?}. {}",
                defect.name(),
                defect.sentence()
            ),
        }
    }
    println!("found {found} of {}", defects.len());
    Ok(match found == defects.len() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
