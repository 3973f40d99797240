//! Removes steps and faults from a failing program, as long as it still fails.
//!
//! It does not matter whether it fails in the same way: what is left at the end is a failure, and
//! small.

use std::time::{Duration, Instant};

use crate::search::report::{Smaller, repeat};
use crate::search::{Found, Search, run_one};

use super::program::Kept;
use super::{Report, draw, only_args};

/// How long it tries.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Shrinks a failing seed, of which `only` these steps and faults were run.
///
/// # Errors
/// A worker process cannot be started.
pub fn shrink(found: &Found, search: &Search, only: Option<&Kept>) -> anyhow::Result<Smaller> {
    let started = Instant::now();
    let all = match only {
        Some(only) => draw::draw(found.seed).keep(only).ids(),
        None => draw::draw(found.seed).ids(),
    };
    let run = |ids: &[u32]| -> anyhow::Result<Report> {
        let search = Search {
            worker_args: only_args(&Kept::new(ids.iter().copied())),
            ..search.clone()
        };
        run_one(found.seed, &search)
    };
    let drawn = all.len();
    let mut kept = all;
    let mut report = run(&kept)?;
    // Halves, quarters, … are removed, down to single parts.
    let mut len = kept.len().div_ceil(2);
    while len > 0 && report.finding.is_some() && started.elapsed() < TIME_MAX {
        let (mut start, mut has_shrunk) = (0, false);
        while start < kept.len() && started.elapsed() < TIME_MAX {
            let end = (start + len).min(kept.len());
            let rest = [&kept[..start], &kept[end..]].concat();
            let tried = run(&rest)?;
            if tried.finding.is_some() {
                (kept, report, has_shrunk) = (rest, tried, true);
            } else {
                start = end;
            }
        }
        if !(has_shrunk && len == 1) {
            len /= 2;
        }
    }
    Ok(Smaller {
        summary: format!("shrunk from {drawn} to {} steps and faults", kept.len()),
        history: report.trace,
        finding: report.finding,
        repeat: Some(format!(
            "{} --only {}",
            repeat(search, found.seed),
            Kept::new(kept)
        )),
    })
}
