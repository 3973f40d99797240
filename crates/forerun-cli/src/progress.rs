//! Progress of long work: a bar with the rate on a terminal, nothing in a pipe or a file.
//!
//! The bar is drawn on standard error, so that output can be piped while it is watched, and goes
//! away when the work is done: what stays is the summary that the command prints.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// A running piece of work, measured by position (bytes read, keys put) and counted in things
/// (rows, keys).
pub struct Progress {
    bar: ProgressBar,
    unit: &'static str,
    started: Instant,
}

impl Progress {
    /// Starts a bar that is full at `total`; without a total (standard input) it only spins and
    /// counts. `unit` names what is counted, in the plural: `rows`.
    pub fn new(what: &str, total: Option<u64>, unit: &'static str) -> Progress {
        // indicatif draws nothing where standard error is not a terminal.
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{prefix} {wide_bar} {percent:>3}%  {msg}  {eta} left",
            ),
            None => (ProgressBar::new_spinner(), "{prefix} {spinner}  {msg}"),
        };
        // The templates are constants, checked by a test.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_owned());
        Progress {
            bar,
            unit,
            started: Instant::now(),
        }
    }

    /// Has the bar be full at another position.
    pub fn set_total(&self, total: u64) {
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
        }
    }

    /// Says how far the work is: at `position` of the total, with `things` counted so far. Cheap,
    /// but not free: call it once a batch, not once a key.
    pub fn update(&self, position: u64, things: u64) {
        if self.bar.is_hidden() {
            return;
        }
        self.bar.set_position(position);
        let rate = output::per_second(things, self.started.elapsed());
        self.bar
            .set_message(format!("{} {}  {rate}/s", output::count(things), self.unit));
    }

    /// Takes the bar away and tells how long the work took.
    pub fn finish(self) -> Duration {
        self.clear();
        self.started.elapsed()
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_templates_are_valid() {
        for template in [
            "{prefix} {wide_bar} {percent:>3}%  {msg}  {eta} left",
            "{prefix} {spinner}  {msg}",
        ] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
        let progress = Progress::new("load", Some(10), "rows");
        progress.update(5, 2);
        assert!(progress.finish() < Duration::from_secs(60));
    }
}
