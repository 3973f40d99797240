//! The lookups that are counted: in this process, and between two stops of a traced one.
//!
//! ```text
//!   traced    "ready" ── waits for a line ── stop stop ── stop lookups stop ── stop lookups stop …
//!                                            └ nothing: what stopping itself costs
//! ```

use super::cpu_counters;
use super::result_row::Event;
use crate::btree::{Order, RunEngine, RunStore};
use crate::engine::{Engine, Store};
use crate::skew::Skew;
use crate::workload::{Dataset, Queries};
use anyhow::{Context, Result, ensure};
use forerun_core::size::parse_count;
use rustix::process::{Signal, getpid, kill_process};
use std::io::{BufRead, Write};
use std::str::FromStr;

/// How much is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookups {
    /// Entries of the run.
    pub(super) keys: u64,
    /// Keys that are looked up step by step.
    pub(super) stepped: usize,
    /// Keys that are looked up while the CPU counts.
    pub(super) counted: usize,
}

/// A strategy and the keys of a batch.
pub(super) type CountCase = (String, usize);

/// The strategies that fit each size of a batch: single ones a single key.
pub(super) fn cases(strategies: &[String], batches: &[usize]) -> Result<Vec<CountCase>> {
    let known = engine().strategies();
    for name in strategies {
        let list = known.join(", ");
        ensure!(
            known.contains(name),
            "unknown strategy {name:?}; available: {list}"
        );
    }
    let fits = |name: &str, batch: usize| match (name.starts_with("multiget-"), name == "index") {
        (_, true) => true,
        (is_batched, false) => is_batched == (batch > 1),
    };
    let mut cases = Vec::new();
    for &batch in batches {
        let wanted = known.iter().filter(|name| {
            fits(name, batch) && (strategies.is_empty() || strategies.contains(name))
        });
        cases.extend(wanted.map(|name| (name.clone(), batch)));
    }
    ensure!(
        !cases.is_empty(),
        "none of these strategies looks up batches of these sizes"
    );
    Ok(cases)
}

fn engine() -> RunEngine {
    RunEngine {
        order: Order::Bytewise,
        page_bytes: 16 << 10,
        dir: std::env::temp_dir(),
    }
}

impl Lookups {
    fn data(&self) -> Result<Dataset> {
        Ok(Dataset::new(self.keys, 16, 0, 100)?)
    }

    /// A run of all entries.
    pub(super) fn store(&self) -> Result<RunStore> {
        engine().build(&self.data()?)
    }

    fn queries(&self, count: usize) -> Result<Queries> {
        Ok(Queries::new(&self.data()?, 1.0, Skew::Uniform, count, 7))
    }

    /// Suspensions per key.
    pub(super) fn suspensions(&self, store: &RunStore, strategy: &str) -> Result<Option<f64>> {
        let queries = self.queries(self.counted)?;
        let keys = queries.keys();
        let suspensions = store.count_suspensions(&keys, strategy)?;
        Ok(suspensions.map(|count| count as f64 / keys.len() as f64))
    }

    /// Events per key, if they can be counted.
    pub(super) fn count(
        &self,
        store: &RunStore,
        strategy: &str,
        batch: usize,
        event: Event,
    ) -> Result<Option<f64>> {
        if cpu_counters::refusal(event).is_some() {
            return Ok(None);
        }
        let queries = self.queries(self.counted)?;
        let keys = queries.keys();
        let mut read = Ok(());
        let counted = cpu_counters::count(event, || read = look_up(store, strategy, batch, &keys));
        read?;
        Ok(counted.map(|count| count as f64 / keys.len() as f64))
    }
}

/// Looks up all keys, which are present.
fn look_up(store: &RunStore, strategy: &str, batch: usize, keys: &[&[u8]]) -> Result<()> {
    let mut reader = store.reader(strategy)?;
    let mut found = 0;
    for batch in keys.chunks(batch) {
        found += reader.read(batch)?;
    }
    ensure!(
        found == keys.len(),
        "{found} of {} keys were found",
        keys.len()
    );
    Ok(())
}

/// The arguments of the process that is traced.
#[derive(clap::Args, Clone, Debug)]
pub struct TracedArgs {
    /// Entries of the run
    #[arg(long, value_parser = parse_count)]
    keys: u64,
    /// Keys that are looked up step by step
    #[arg(long)]
    stepped: usize,
    /// Strategies and batches
    #[arg(long, required = true)]
    case: Vec<Case>,
}

/// A strategy and a batch, as `multiget-plain:64`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Case(CountCase);

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Case, String> {
        let parts = text.rsplit_once(':').ok_or("a batch is missing")?;
        let batch = parts.1.parse().map_err(|_| "a batch is a number")?;
        Ok(Case((parts.0.to_owned(), batch)))
    }
}

/// The command line of the traced process.
pub(super) fn traced_line(lookups: &Lookups, cases: &[CountCase]) -> Vec<String> {
    let cases = cases
        .iter()
        .map(|(strategy, batch)| format!("--case={strategy}:{batch}"));
    let mut line = vec![
        "traced-lookups".to_owned(),
        format!("--keys={}", lookups.keys),
        format!("--stepped={}", lookups.stepped),
    ];
    line.extend(cases);
    line
}

/// Stops itself before and after each case's lookups, for the process that traces it.
///
/// # Errors
/// A failing run, or a process that is not traced.
pub fn run_traced(args: &TracedArgs) -> Result<()> {
    let lookups = Lookups {
        keys: args.keys,
        stepped: args.stepped,
        counted: 0,
    };
    let store = lookups.store()?;
    let queries = lookups.queries(lookups.stepped)?;
    let keys = queries.keys();
    println!("ready");
    std::io::stdout().flush()?;
    let mut line = String::new();
    let bytes = std::io::stdin().lock().read_line(&mut line)?;
    ensure!(
        bytes > 0,
        "this process waits to be traced by `forerun-bench count-lookups`"
    );
    stop()?;
    stop()?;
    for Case((strategy, batch)) in &args.case {
        // What is done only once is done now: memory of the reader, of the answers.
        let mut reader = store.reader(strategy)?;
        let mut found = 0;
        for batch in keys.chunks(*batch) {
            found += reader.read(batch)?;
        }
        ensure!(
            found == keys.len(),
            "{found} of {} keys were found",
            keys.len()
        );
        stop()?;
        for batch in keys.chunks(*batch) {
            found += reader.read(batch)?;
        }
        stop()?;
        ensure!(found == 2 * keys.len(), "{found} keys were found");
    }
    Ok(())
}

/// Stops this thread, the first of the process, until the tracer lets it go on.
fn stop() -> Result<()> {
    kill_process(getpid(), Signal::STOP).context("cannot stop for the tracer")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKUPS: Lookups = Lookups {
        keys: 3000,
        stepped: 8,
        counted: 500,
    };

    #[test]
    fn single_strategies_have_single_keys_and_the_index_has_both() {
        let all = cases(&[], &[1, 64]).unwrap();
        assert_eq!(all.len(), 10);
        assert!(all.contains(&("index".into(), 64)) && all.contains(&("plain".into(), 1)));
        assert!(!all.contains(&("plain".into(), 64)));
        let named = cases(&["index".into()], &[8]).unwrap();
        assert_eq!(named, [("index".to_owned(), 8)]);
        let unknown = cases(&["guess".into()], &[8]).unwrap_err().to_string();
        assert!(unknown.contains("key-prefixes"), "{unknown}");
        assert!(cases(&["plain".into()], &[8]).is_err());
    }

    #[test]
    fn searches_that_read_fewer_lines_suspend_less_often() {
        let store = LOOKUPS.store().unwrap();
        let of = |strategy| LOOKUPS.suspensions(&store, strategy).unwrap();
        let (plain, prefixes) = (of("plain").unwrap(), of("multiget-key-prefixes").unwrap());
        assert!((1.0..20.0).contains(&plain) && (1.0..20.0).contains(&prefixes));
        assert_eq!(of("index"), None);
    }

    #[test]
    fn the_traced_command_is_parsed_as_it_is_written() {
        let cases = vec![("multiget-plain".to_owned(), 64), ("index".to_owned(), 1)];
        let line = traced_line(&LOOKUPS, &cases);
        let command = <TracedArgs as clap::Args>::augment_args(clap::Command::new("x"));
        let matches = command.try_get_matches_from(line).unwrap();
        let args = <TracedArgs as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
        assert_eq!((args.keys, args.stepped), (3000, 8));
        assert!(args.case.iter().map(|case| &case.0).eq(&cases));
    }
}
