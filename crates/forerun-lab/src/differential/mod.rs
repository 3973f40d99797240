//! The differential test of the server: memcached and this workspace's server must give the same
//! answers to random commands.
//!
//! ```text
//!   generate/              a seed's history: steps of commands
//!   command.rs, packet.rs  commands of the text protocol, requests of the binary protocol
//!   step.rs                steps of either
//!   peer.rs                the two servers and connections to them
//!   history.rs             plays a history to both
//!   compare_answers.rs     compares two answers of the text protocol, and
//!   compare_packets.rs     two of the binary protocol
//!   known_differences.rs   the intended differences
//!   counters.rs            the commands that change numbers
//!   shrink.rs              shortens a failing history
//!   history_file.rs        histories as text, to be played again
//! ```

mod command;
mod compare_answers;
mod compare_packets;
mod counters;
mod generate;
mod history;
mod history_file;
mod known_differences;
mod packet;
mod peer;
mod shrink;
mod step;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use command::shorten;
use history::{Failure, PlayCounts, describe, play};
use known_differences::{Affected, DIFFERENCES, EARLIER, LATER, Treatment};
use peer::Memcached;
use step::Step;

/// Compare this server with memcached: send random commands to both and compare the answers byte by
/// byte.
///
/// A failing seed prints a line that repeats it and a shortened history.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun-lab differential --seconds 60                                    new seeds for a minute
  forerun-lab differential --seed 4711                                     one seed
  forerun-lab differential --seconds 60 --memcached /usr/bin/memcached     another memcached
  forerun-lab differential --replay FILE                                   a history that was kept
  forerun-lab differential --list                                          the accepted differences

Exit codes: 0 all answers agree, or no memcached is installed; 1 an answer differs; \
2 usage error.")]
pub struct Args {
    /// Play only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Play seeds for this many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The memcached to compare with [default: the one on the PATH; without one, nothing is
    /// compared]
    #[arg(long, value_name = "FILE")]
    memcached: Option<PathBuf>,
    /// The first seed of a run of `--seconds` [default: taken from the clock]
    #[arg(long)]
    from: Option<u64>,
    /// Play the history in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "from"])]
    replay: Option<PathBuf>,
    /// Write the shortened history of a failing seed to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// List the differences that are accepted, and exit.
    #[arg(long)]
    list: bool,
}

/// Runs the test. It fails if an answer differs.
pub fn command(args: &Args) -> Result<ExitCode> {
    Ok(if run(args)? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Plays seeds; returns false if an answer differs.
fn run(args: &Args) -> Result<bool> {
    if args.list {
        list();
        return Ok(true);
    }
    let path = args.memcached.clone().unwrap_or_else(|| "memcached".into());
    let Some(memcached) = Memcached::find(&path)? else {
        if args.memcached.is_some() {
            bail!("there is no {}", path.display());
        }
        println!("skipped: there is no {}", path.display());
        return Ok(true);
    };
    if !memcached.version.is_listed() {
        eprintln!(
            "the differences from memcached {} are not listed, only those from {EARLIER} and from \
             {LATER} and later: answers may differ because of the version",
            memcached.version
        );
    }
    if let Some(file) = &args.replay {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {file:?}"))?;
        let steps = history_file::from_text(&text).with_context(|| format!("read {file:?}"))?;
        let (played, failure) = play(&memcached, &steps)?;
        return match failure {
            Some(failure) => {
                let repeat = format!("--replay {}", file.display());
                report(&memcached, &repeat, &steps, failure, args)?;
                Ok(false)
            }
            None => {
                println!("{} answers agree", played.answers);
                Ok(true)
            }
        };
    }
    let first = match (args.seed, args.from) {
        (Some(seed), _) | (None, Some(seed)) => seed,
        (None, None) => u64::from(std::process::id()) << 32 | u64::from(now_low_bits()),
    };
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let mut total = PlayCounts::default();
    let mut seeds = 0;
    for seed in first.. {
        let steps = generate::history(seed, memcached.version);
        let (played, failure) = play(&memcached, &steps)?;
        total.commands += played.commands;
        total.answers += played.answers;
        total.ended += played.ended;
        seeds += 1;
        if let Some(failure) = failure {
            report(&memcached, &format!("--seed {seed}"), &steps, failure, args)?;
            return Ok(false);
        }
        if args.seed.is_some() || Instant::now() >= until {
            break;
        }
    }
    println!(
        "differential: {seeds} seeds, {} commands, {} answers compared with memcached {}, {} \
         histories ended by a listed difference: only listed differences",
        total.commands, total.answers, memcached.version, total.ended
    );
    Ok(true)
}

fn list() {
    for difference in DIFFERENCES {
        let from = match difference.affected {
            Affected::Earlier => "1.6.18",
            Affected::Later => "1.6.45",
            Affected::Any => "all versions",
        };
        let treatment = match difference.treatment {
            Treatment::Masked => "masked",
            Treatment::NotGenerated => "not generated",
            Treatment::Ends => "ends a history",
        };
        println!("{from}, {treatment}: {}", difference.text);
    }
}

fn now_low_bits() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u32)
}

/// Prints how to repeat a failure, and the shortest history found that fails.
fn report(
    memcached: &Memcached,
    repeat: &str,
    steps: &[Step],
    failure: Failure,
    args: &Args,
) -> Result<()> {
    let program = match &args.memcached {
        Some(program) => format!(" --memcached {}", program.display()),
        None => String::new(),
    };
    println!(
        "differs from memcached {}; repeat with: forerun-lab differential {repeat}{program}",
        memcached.version
    );
    let (steps, failure) = shrink::shrink(memcached, steps, failure)?;
    if let Some(file) = &args.save {
        let text = format!("# {}\n{}", failure.reason, history_file::to_text(&steps));
        std::fs::write(file, text).with_context(|| format!("write {file:?}"))?;
    }
    println!("{}", failure.reason);
    for step in &steps {
        let cuts = match step.cuts.len() {
            0 => String::new(),
            count => format!(" in {} packets", count + 1),
        };
        println!("  connection {}{cuts}:", step.connection);
        for command in &step.commands {
            println!("    {}", command.describe());
        }
        for packet in &step.packets {
            println!("    {}", packet.describe());
        }
    }
    for (name, reply) in [("forerun", &failure.ours), ("memcached", &failure.theirs)] {
        println!(
            "  {name:10} {} ({})",
            shorten(&reply.bytes),
            describe(reply.end)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use super::command::{Command, Word};
    use super::*;

    /// The memcached on the PATH. If there is none, or if its differences are not listed, a test is
    /// skipped and prints that.
    fn memcached() -> Option<Memcached> {
        let found = Memcached::find(Path::new("memcached")).expect("it reports its version");
        let reason = match &found {
            None => "no memcached on the PATH".to_owned(),
            Some(memcached) if !memcached.version.is_listed() => format!(
                "memcached {} on the PATH, and only {EARLIER} and {LATER} or later are compared",
                memcached.version
            ),
            Some(_) => return found,
        };
        // The test harness hides what eprintln! prints in a test that passes.
        let _ = writeln!(std::io::stderr(), "skipped: {reason}");
        None
    }

    fn step(line: &str) -> Step {
        let words = line.split(' ').map(Word::text).collect();
        Step::new(0, vec![Command::line(words)])
    }

    #[test]
    fn histories_that_failed_once_get_identical_answers() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/differential");
        let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
            .expect("the directory of histories")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort();
        assert!(files.len() >= 3, "only {files:?}");
        let memcached = memcached();
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a text");
            let steps = history_file::from_text(&text).expect("a history");
            let Some(memcached) = &memcached else {
                continue;
            };
            let (played, failure) = play(memcached, &steps).expect("both servers run");
            assert!(failure.is_none(), "{}: {failure:?}", file.display());
            assert!(played.answers > 0, "{}", file.display());
        }
    }

    #[test]
    fn fixed_seeds_get_identical_answers() {
        let Some(memcached) = memcached() else { return };
        for seed in 1..=8 {
            let steps = generate::history(seed, memcached.version);
            let (played, failure) = play(&memcached, &steps).expect("both servers run");
            assert!(failure.is_none(), "seed {seed}: {failure:?}");
            assert!(played.answers > 50, "seed {seed} has answers");
        }
    }

    #[test]
    fn a_seed_is_the_same_history_every_time() {
        for version in [EARLIER, LATER] {
            assert_eq!(generate::history(7, version), generate::history(7, version));
        }
        assert_ne!(generate::history(7, LATER), generate::history(8, LATER));
    }

    #[test]
    fn a_difference_is_found_and_its_history_shrunk() {
        let Some(memcached) = memcached() else { return };
        // A listed difference among steps that have none.
        let mut steps: Vec<Step> = ["mn", "get a b", "incr n 1", "mg a v"].map(step).to_vec();
        let difference = if memcached.version < LATER {
            "mg a E5 q k"
        } else {
            "incr +5 +5"
        };
        steps.push(step(difference));
        if memcached.version >= LATER {
            steps.push(step("bget a"));
        }
        let (_, failure) = play(&memcached, &steps).expect("both servers run");
        let failure = failure.expect("the answers differ");
        let (short, failure) = shrink::shrink(&memcached, &steps, failure).expect("they run");
        assert_eq!(short.len(), 1, "{short:?}");
        assert_ne!(failure.ours, failure.theirs);
    }
}
