//! Puts known defects of the server back, one after the other, and looks how soon the simulation finds each.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use forerun_server::planted::{Defect, plant};

use super::plan::Plan;
use super::play;

/// # Errors
/// No defect of that name, or nothing can be simulated.
pub fn find(name: &str, seconds_each: Duration) -> anyhow::Result<ExitCode> {
    let defects: Vec<Defect> = Defect::ALL
        .iter()
        .copied()
        .filter(|defect| name == "all" || defect.name() == name)
        .collect();
    if defects.is_empty() {
        let names: Vec<_> = Defect::ALL.iter().map(|defect| defect.name()).collect();
        anyhow::bail!(
            "no defect is called {name}; there are: all, {}",
            names.join(", ")
        );
    }
    // A defect may be found by its panic, which is said where it counts.
    std::panic::set_hook(Box::new(|_| {}));
    let mut found = 0;
    for defect in &defects {
        plant(Some(*defect));
        let start = Instant::now();
        let mut outcome = None;
        for seed in 0.. {
            if start.elapsed() > seconds_each {
                break;
            }
            let plan = Plan::draw(seed);
            if let Err(failure) = play(&plan)?.ended {
                // What fails without the defect as well says nothing about it.
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
                    "{}: found by seed {seed}, {:.1} s: {failure}",
                    defect.name(),
                    start.elapsed().as_secs_f64()
                );
            }
            None => println!(
                "{}: not found in {seconds_each:?}. {}",
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
