//! Progress of long tasks: a bar with the rate on a terminal, nothing in a pipe or a file.
//!
//! The bar is drawn on standard error, so output can be piped at the same time. It disappears when
//! the task is done, and only the command's summary stays.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// A running task. Its position (bytes read, keys written) drives the bar, and its count (rows,
/// keys) is displayed.
pub struct Progress {
    bar: ProgressBar,
    unit: &'static str,
    started: Instant,
}

impl Progress {
    /// Starts a bar that is full at `total`. Without a total (standard input) it only spins and
    /// counts. `unit` is the plural of what is counted, such as `rows`.
    pub fn new(what: &str, total: Option<u64>, unit: &'static str) -> Progress {
        // indicatif draws nothing if standard error is not a terminal.
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{prefix} {wide_bar} {percent:>3}%  {msg}  {eta} left",
            ),
            None => (ProgressBar::new_spinner(), "{prefix} {spinner}  {msg}"),
        };
        // The templates are constants. A test checks them.
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

    /// Sets the position at which the bar is full.
    pub fn set_total(&self, total: u64) {
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
        }
    }

    /// Moves the bar to `position` and shows `things` as the count. Cheap, but not free: call it
    /// once per batch, not per key.
    pub fn update(&self, position: u64, things: u64) {
        if self.bar.is_hidden() {
            return;
        }
        self.bar.set_position(position);
        let rate = output::per_second(things, self.started.elapsed());
        self.bar
            .set_message(format!("{} {}  {rate}/s", output::count(things), self.unit));
    }

    /// Removes the bar and returns the time that the task took.
    pub fn finish(self) -> Duration {
        self.clear();
        self.started.elapsed()
    }

    /// Removes the bar.
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
