//! Results of calls that some servers did not answer.

use forerun::client::{Lookup, Lookups, Report, ServerFailure, Unwritten, WriteReport};
use pyo3::prelude::*;

use crate::errors::{partial, server_error};

/// The positions of the keys that have no answer.
pub(crate) fn unanswered_of(values: &Lookups, report: &Report) -> Vec<usize> {
    if report.failed + report.oversized == 0 {
        return Vec::new();
    }
    let is_unanswered =
        |position: &usize| matches!(values.lookup(*position), Some(Lookup::Unanswered(_)));
    (0..values.len()).filter(is_unanswered).collect()
}

/// Raises for the keys of a batch that have no answer, unless they count as missing.
pub(crate) fn check_answered(
    report: &Report,
    unanswered: Vec<usize>,
    keys: usize,
    misses_on_failure: bool,
) -> PyResult<()> {
    if misses_on_failure || unanswered.is_empty() {
        return Ok(());
    }
    let mut words = format!("{} of {keys} keys have no answer", unanswered.len());
    for failure in &report.failures {
        words += &format!("; {failure}");
    }
    if report.oversized > 0 {
        let oversized = report.oversized;
        words += &format!("; {oversized} values are longer than max_value_bytes");
    }
    Err(partial(words, unanswered))
}

/// Raises for the keys of a batch that were not written.
pub(crate) fn check_written(report: WriteReport, keys: usize) -> PyResult<()> {
    if report.unwritten.is_empty() {
        return Ok(());
    }
    let mut words = format!("{} of {keys} keys were not written", report.unwritten.len());
    let refused = report.unwritten.iter().find_map(|(at, why)| match why {
        Unwritten::Refused(line) => Some((at, line)),
        _ => None,
    });
    if let Some((position, line)) = refused {
        words += &format!("; key {position}: its server answered {line:?}");
    }
    for failure in &report.failures {
        words += &format!("; {failure}");
    }
    let positions = report.unwritten.into_iter().map(|(position, _)| position);
    Err(partial(words, positions.collect()))
}

/// Raises if a server did not delete its entries.
pub(crate) fn check_cleared(failures: &[ServerFailure]) -> PyResult<()> {
    if failures.is_empty() {
        return Ok(());
    }
    let words: Vec<String> = failures
        .iter()
        .map(|failed| format!("server {}: {}", failed.server, failed.failure))
        .collect();
    Err(server_error(words.join("; ")))
}
