//! Plants one defect after the other in a copy of the sources, and checks that what must find it
//! does.
//!
//! ```text
//!   copy, built once ──> tests: each fails with its defect, and passes without it
//!                   └──> workers of the simulators, with the defect ──> seeds 1, 2, 3, … ──> the first that fails
//!                                                            the same seed passes without the defect <──┘
//! ```
//!
//! A defect counts as found only by a seed that passes without it. So the seed detects the planted
//! defect, not a defect of the simulator.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Args;

use super::cargo;
use super::patches::{Finder, Patch, Test};
use super::tree::{self, Sources};
use crate::search::{self, Counts, FailedSeed, PLANTED_VARIABLE, Search};
use crate::{server_sim, sim};

/// The first seed: always the same, so that the results do not change from run to run.
const FIRST_SEED: u64 = 1;

/// How the copy is built: quickly, and with the checks of a debug build.
const PROFILE: [(&str, &str); 5] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "none"),
    ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true"),
    ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true"),
];

/// The arguments of the command.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forerun-lab planted hunt                   every defect
  forerun-lab planted hunt sync-skipped      one
  forerun-lab planted hunt --tests           only the tests, without the simulators

Exit codes: 0 all were found; 1 one was not; 2 usage error, or a patch does not apply.")]
pub struct HuntArgs {
    /// Look only for these defects.
    names: Vec<String>,
    /// Run only the tests that must find defects, no simulator.
    #[arg(long)]
    tests: bool,
    /// Give up after this many seeds.
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Where to copy the sources [default: target/planted]
    #[arg(long, value_name = "DIRECTORY")]
    into: Option<PathBuf>,
    /// Number of concurrent processes [default: number of cores]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
}

/// Copies, builds and hunts.
///
/// # Errors
/// A patch does not apply, the copy cannot be built, or a process cannot be started.
pub fn command(args: &HuntArgs, sources: &Sources) -> anyhow::Result<ExitCode> {
    let all = Patch::all(sources.root())?;
    let wanted = Patch::named(&all, &args.names)?;
    let copy = super::place(args.into.as_deref(), sources, "planted")?;
    tree::copy(sources, &all, &copy)?;
    println!("{} defects in {}", all.len(), copy.display());
    let programs = Programs::build(&copy, &wanted)?;
    let jobs = args.jobs.map_or_else(search::cores, usize::from);
    let started = Instant::now();
    let mut missed = test(&wanted, &programs, jobs)?;
    if !args.tests {
        for patch in &wanted {
            for finder in &patch.finders {
                let search = Search {
                    simulator: "sim",
                    worker: "sim-worker",
                    first: FIRST_SEED,
                    seeds: Some(args.seeds),
                    time: None,
                    jobs,
                    worker_args: Vec::new(),
                    program: Some(programs.lab.clone()),
                    planted: None,
                };
                let is_found = match finder {
                    Finder::Test(_) => continue,
                    Finder::Store => simulate::<sim::Counts>(patch, &search)?,
                    Finder::Server => {
                        let search = Search {
                            simulator: "server-sim",
                            worker: "server-sim-worker",
                            ..search
                        };
                        simulate::<server_sim::Counts>(patch, &search)?
                    }
                };
                if !is_found {
                    missed.insert(patch.name.clone());
                }
            }
        }
    }
    println!("{:.0} s", started.elapsed().as_secs_f64());
    println!("found {} of {}", wanted.len() - missed.len(), wanted.len());
    Ok(if missed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

/// What was built in the copy.
struct Programs {
    /// The copy.
    root: PathBuf,
    /// This program, for the workers of the simulators.
    lab: PathBuf,
    /// The programs of the tests, by their crate and file.
    tests: BTreeMap<(String, String), PathBuf>,
}

impl Programs {
    fn build(copy: &Path, patches: &[Patch]) -> anyhow::Result<Programs> {
        let wanted: BTreeSet<(String, String)> = tests(patches)
            .map(|(_, test)| (test.package.clone(), test.file.clone()))
            .collect();
        let mut build = cargo(copy);
        build.envs(PROFILE);
        build.env("CARGO_TARGET_DIR", copy.join("target"));
        build.env_remove("RUSTFLAGS").env_remove(PLANTED_VARIABLE);
        build.args(["build", "--locked", "--release", "-p", "forerun-lab"]);
        build.args([
            "--bin",
            "forerun-lab",
            "--message-format",
            "json-render-diagnostics",
        ]);
        for (package, file) in &wanted {
            build.args(["-p", package, "--test", file]);
        }
        build.stderr(Stdio::inherit());
        let output = build.output().context("cannot run cargo")?;
        ensure!(
            output.status.success(),
            "the sources with the planted defects cannot be built in {}",
            copy.display()
        );
        let mut lab = None;
        let mut tests = BTreeMap::new();
        for line in output.stdout.split(|byte| *byte == b'\n') {
            let Ok(message) = serde_json::from_slice::<serde_json::Value>(line) else {
                continue;
            };
            let Some(program) = message["executable"].as_str() else {
                continue;
            };
            let name = message["target"]["name"].as_str().unwrap_or_default();
            if name == "forerun-lab" {
                lab = Some(PathBuf::from(program));
            } else if let Some(test) = test_file(&message).filter(|test| wanted.contains(test)) {
                tests.insert(test, PathBuf::from(program));
            }
        }
        Ok(Programs {
            root: copy.to_owned(),
            lab: lab.context("cargo does not say where it has put forerun-lab")?,
            tests,
        })
    }

    /// Whether a test passes, with this defect or without any.
    fn passes(&self, test: &Test, defect: Option<&str>) -> anyhow::Result<bool> {
        let program = self.tests.get(&(test.package.clone(), test.file.clone()));
        let program = program.with_context(|| format!("{test} was not built"))?;
        let mut command = Command::new(program);
        command.current_dir(self.root.join("crates").join(&test.package));
        command.args(["--exact", &test.name]);
        command.env_remove(PLANTED_VARIABLE);
        command.envs(defect.map(|defect| (PLANTED_VARIABLE, defect)));
        let output = command.stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {test}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(said.contains("running 1 test\n"), "there is no test {test}");
        Ok(output.status.success())
    }
}

/// The crate and the file of the tests that cargo has built, from its message. Crates may have test
/// files of the same name, and cargo builds all of them.
fn test_file(message: &serde_json::Value) -> Option<(String, String)> {
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let package = manifest.parent()?.file_name()?.to_str()?;
    let file = message["target"]["name"].as_str()?;
    Some((package.to_owned(), file.to_owned()))
}

fn tests(patches: &[Patch]) -> impl Iterator<Item = (&Patch, &Test)> {
    patches.iter().flat_map(|patch| {
        let tests = patch.finders.iter().filter_map(|finder| match finder {
            Finder::Test(test) => Some(test),
            Finder::Store | Finder::Server => None,
        });
        tests.map(move |test| (patch, test))
    })
}

/// Runs each test with its defects, and without any. Returns the defects that a test has missed.
fn test(patches: &[Patch], programs: &Programs, jobs: usize) -> anyhow::Result<BTreeSet<String>> {
    let alone: BTreeSet<&Test> = tests(patches).map(|(_, test)| test).collect();
    let mut runs: Vec<(Option<&Patch>, &Test)> =
        alone.into_iter().map(|test| (None, test)).collect();
    runs.extend(tests(patches).map(|(patch, test)| (Some(patch), test)));
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    // Some tests only wait: a defect makes a thread wait forever.
    std::thread::scope(|scope| {
        for _ in 0..4 * jobs {
            scope.spawn(|| {
                while let Some((patch, test)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = programs.passes(test, patch.map(|patch| &*patch.name));
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    results.push((*patch, *test, result));
                }
            });
        }
    });
    let mut missed = BTreeSet::new();
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (patch, test, result) in results {
        let passed = result?;
        let Some(patch) = patch else {
            ensure!(passed, "{test} fails without a planted defect");
            continue;
        };
        if passed {
            println!("{:<28} NOT FOUND by {test}", patch.name);
            missed.insert(patch.name.clone());
        } else {
            println!("{:<28} found by {test}", patch.name);
        }
    }
    Ok(missed)
}

/// Runs seeds until one fails because of a defect. Prints how many it took, and returns whether
/// there was one.
fn simulate<C: Counts>(patch: &Patch, simulator: &Search) -> anyhow::Result<bool> {
    let started = Instant::now();
    let last = simulator.first + simulator.seeds.unwrap_or(u64::MAX);
    let mut with = Search {
        planted: Some(patch.name.clone()),
        ..simulator.clone()
    };
    let mut seeds = 0;
    // Seeds that also fail without the defect, and therefore prove nothing.
    let mut fail_without = Vec::new();
    let mut found = None;
    while with.first < last {
        with.seeds = Some(last - with.first);
        let (totals, failed) = search::search::<C>(&with, &mut |_| {})?;
        seeds += totals.seeds;
        let Some(failed) = failed else { break };
        if search::run_one::<C>(failed.seed, simulator)?
            .finding
            .is_none()
        {
            found = Some(failed);
            break;
        }
        with.first = failed.seed + 1;
        fail_without.push(failed.seed);
    }
    let seconds = started.elapsed().as_secs_f64();
    print!("{:<28} ", patch.name);
    match &found {
        None => print!("NOT FOUND in {seeds} seeds, {seconds:.1} s"),
        Some(FailedSeed { seed, finding, .. }) => {
            let line = finding.lines().next().unwrap_or_default();
            print!("{seeds:>6} seeds {seconds:>6.1} s  seed {seed}: {line}");
        }
    }
    if !fail_without.is_empty() {
        print!(" (these fail without it too: {fail_without:?})");
    }
    println!();
    Ok(found.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_two_crates_in_files_of_one_name_differ() {
        let built = |package: &str| {
            test_file(&serde_json::json!({
                "manifest_path": format!("/copy/crates/{package}/Cargo.toml"),
                "target": { "name": "model" },
                "executable": "/copy/target/release/deps/model-1",
            }))
        };
        let expected = ("forerun-db".to_owned(), "model".to_owned());
        assert_eq!(built("forerun-db"), Some(expected));
        assert_ne!(built("forerun-db"), built("forerun-server"));
    }
}
