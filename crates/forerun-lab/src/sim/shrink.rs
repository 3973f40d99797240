//! Removes steps and faults from a failing program, as long as it fails in the same way.
//!
//! A program that lacks steps may fail for another reason. So only a failure of the same kind
//! counts: the finding says the same up to its first colon, apart from numbers and names.

use std::time::{Duration, Instant};

use crate::search::report::{ShrunkSeed, repeat};
use crate::search::{FailedSeed, Search, run_one};

use super::program::KeptIds;
use super::{Report, draw, only_args};

/// The maximum time for shrinking.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Shrinks a failing seed. If `only` is given, only those steps and faults were run.
///
/// # Errors
/// A worker process cannot be started.
pub fn shrink(
    found: &FailedSeed,
    search: &Search,
    only: Option<&KeptIds>,
) -> anyhow::Result<ShrunkSeed> {
    let started = Instant::now();
    let all = match only {
        Some(only) => draw::draw(found.seed).keep(only).ids(),
        None => draw::draw(found.seed).ids(),
    };
    let run = |ids: &[u32]| -> anyhow::Result<Report> {
        let search = Search {
            worker_args: only_args(&KeptIds::new(ids.iter().copied())),
            ..search.clone()
        };
        run_one(found.seed, &search)
    };
    let drawn = all.len();
    let mut kept = all;
    let mut report = run(&kept)?;
    let failed_as = report.finding.as_deref().map(kind);
    // Halves, quarters, … are removed, down to single parts.
    let mut len = kept.len().div_ceil(2);
    while len > 0 && report.finding.is_some() && started.elapsed() < TIME_MAX {
        let (mut start, mut has_shrunk) = (0, false);
        while start < kept.len() && started.elapsed() < TIME_MAX {
            let end = (start + len).min(kept.len());
            let rest = [&kept[..start], &kept[end..]].concat();
            let tried = run(&rest)?;
            if tried.finding.as_deref().map(kind) == failed_as {
                (kept, report, has_shrunk) = (rest, tried, true);
            } else {
                start = end;
            }
        }
        if !(has_shrunk && len == 1) {
            len /= 2;
        }
    }
    Ok(ShrunkSeed {
        summary: format!("shrunk from {drawn} to {} steps and faults", kept.len()),
        history: report.trace,
        finding: report.finding,
        repeat: Some(format!(
            "{} --only {}",
            repeat(search, found.seed),
            KeptIds::new(kept)
        )),
    })
}

/// The kind of a failure: the beginning of its finding, without the thread, the step, numbers and
/// names.
fn kind(finding: &str) -> String {
    let line = finding.lines().next().unwrap_or_default();
    let line = match line.split_once(": ") {
        Some((who, rest)) if who.starts_with("thread ") && who.contains(", step ") => rest,
        _ => line,
    };
    let beginning = line.split(": ").next().unwrap_or_default();
    // Quoted text and paths are names, which differ between runs.
    let plain = beginning.split('"').step_by(2).collect::<String>();
    let words = plain.split_whitespace();
    let words = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit() || c == '/'));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_failure_ignores_threads_keys_and_numbers() {
        let get = "thread 0, step 15: get: key \"a04kk\" of keyspace 2 holds nothing";
        assert_eq!(kind(get), "get");
        let other = "thread 3, step 7: get: key \"c\" of keyspace 0 holds \"2.1.0\" (9 bytes)";
        assert_eq!(kind(get), kind(other));
        assert_ne!(
            kind(get),
            kind("thread 0, step 15: scan: key \"a04kk\" of keyspace 2")
        );
        assert_eq!(kind("the copy /copy-0-1: key \"a\""), "the copy");
        assert_eq!(
            kind("3 backups are left, and only 2 should be kept"),
            "backups are left, and only should be kept"
        );
        assert_eq!(kind("deadlock\n  main: waits"), "deadlock");
        let panicked = "forerun-flush panicked: index out of bounds, at src/a.rs:1:2";
        assert_eq!(kind(panicked), "forerun-flush panicked");
    }
}
