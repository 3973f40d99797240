//! `forerun-bench cache`: the cache within this process, without sockets.
//!
//! ```text
//!   multiget   items of one size, all present; keys/s of a batch, of one key at a time, and of MemC3's design
//!   hits       get, and set what is missing, for a trace or a zipf mix; hit ratios at several memory sizes, with memcached's
//! ```

mod args;
mod hits;
mod memcached;
mod multiget;
mod workload;

pub use args::Args;
pub use hits::HitsRow;
pub use multiget::MultigetRow;

use crate::output::{on_stdout, write_facts};
use anyhow::Result;
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use std::io::Write;

/// Measures and prints to the standard output.
///
/// # Errors
/// Invalid lists, an unreadable trace, a cache that cannot be created, or an output that cannot be
/// written.
pub fn run(args: &Args) -> Result<()> {
    on_stdout(|out| run_to(args, &Progress::on_terminal(), out))
}

/// Measures and prints to `out`.
///
/// # Errors
/// The same as for [`run`].
pub fn run_to(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    args.output.check()?;
    if !args.output.json {
        write_facts(out, &machine::facts())?;
        out.flush()?;
    }
    if args.measures(args::Part::Multiget) {
        let rows = multiget::measure_all(args, progress)?;
        if !args.output.json_rows(&rows, out)? {
            writeln!(out, "\n{}", multiget::table(&rows).to_text())?;
        }
    }
    if args.measures(args::Part::Hits) {
        let rows = hits::measure_all(args, progress)?;
        if !args.output.json_rows(&rows, out)? {
            writeln!(out, "\n{}", hits::table(&rows).to_text())?;
            writeln!(out, "{}", hits::NOTE)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Output;

    #[test]
    fn a_quick_run_gives_a_row_for_each_case_and_right_answers() {
        let args = Args {
            memory: vec![2 << 20],
            reads: Some(20_000),
            keys: Some(5000),
            memcached: "no such memcached".into(),
            output: Output {
                quick: true,
                json: true,
                ..Output::default()
            },
            ..Args::default()
        };
        let mut out = Vec::new();
        run_to(&args, &Progress::hidden(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let names: Vec<_> = rows.iter().map(|row| row["strategy"].as_str()).collect();
        assert_eq!(names, ["memc3", "get", "multiget", "get or set"].map(Some));
        assert!(rows[2]["speedup_vs_memc3"].as_f64().unwrap() > 0.0);
        let ratio = rows[3]["hit_ratio"].as_f64().unwrap();
        assert!((0.1..1.0).contains(&ratio), "{ratio}");
    }
}
