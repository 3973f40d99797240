//! Progress bars on a terminal, and nothing in a pipe or a file.
//!
//! Bars are drawn on standard error, so output can be piped at the same time. They disappear when
//! the task is done.
//!
//! - [`Bar`] counts steps and can say what is going on;
//! - [`RateBar`] counts things, such as rows, and shows how many there are per second.

use crate::size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const STEPS: &str = "{prefix:>12} [{bar:30}] {human_pos}/{human_len} {eta:>4} {msg}";
const RATE: &str = "{prefix} {wide_bar} {percent:>3}%  {msg}  {eta} left";
const RATE_WITHOUT_TOTAL: &str = "{prefix} {spinner}  {msg}";

/// Whether and where progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Shown if standard error is a terminal.
    pub fn on_terminal() -> Progress {
        Progress {
            shown: std::io::stderr().is_terminal(),
        }
    }

    /// Never shown.
    pub fn hidden() -> Progress {
        Progress { shown: false }
    }

    /// A bar over `total` steps, with the rate and the time left. It disappears when it is dropped.
    pub fn steps(&self, what: &str, total: u64) -> Bar {
        let bar = self.bar(what, Some(total), STEPS);
        if self.shown {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Bar(bar)
    }

    /// Starts a bar that is full at `total` and shows a rate. Without a total (standard input) it
    /// only spins and counts. `unit` is the plural of what is counted, such as `rows`.
    pub fn rate(&self, what: &str, total: Option<u64>, unit: &'static str) -> RateBar {
        let template = match total {
            Some(_) => RATE,
            None => RATE_WITHOUT_TOTAL,
        };
        RateBar {
            bar: self.bar(what, total, template),
            unit,
            started: Instant::now(),
        }
    }

    fn bar(&self, what: &str, total: Option<u64>, template: &str) -> ProgressBar {
        let target = if self.shown {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(total, target);
        // The templates are constants. A test checks them.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(match template {
                STEPS => style.progress_chars("=> "),
                _ => style,
            });
        }
        bar.set_prefix(what.to_owned());
        bar
    }
}

/// A bar that disappears when it is dropped.
pub struct Bar(ProgressBar);

impl Bar {
    /// Advances by one step.
    pub fn step(&self) {
        self.0.inc(1);
    }

    /// Advances by `steps` steps.
    pub fn skip(&self, steps: u64) {
        self.0.inc(steps);
    }

    /// Sets the total number of steps.
    pub fn set_total(&self, total: u64) {
        self.0.set_length(total);
    }

    /// Sets the number of steps done.
    pub fn at(&self, done: u64) {
        self.0.set_position(done);
    }

    /// The number of steps done.
    pub fn position(&self) -> u64 {
        self.0.position()
    }

    /// Shows what is going on.
    pub fn set_status(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A running task. Its position (bytes read, keys written) drives the bar, and its count (rows,
/// keys) is displayed with its rate. The bar disappears when dropped.
pub struct RateBar {
    bar: ProgressBar,
    unit: &'static str,
    started: Instant,
}

impl RateBar {
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
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        self.bar.set_message(format!(
            "{} {}  {}/s",
            size::with_commas(things),
            self.unit,
            size::short(things as f64 / seconds)
        ));
    }

    /// Removes the bar and returns the time that the task took.
    pub fn finish(self) -> Duration {
        self.started.elapsed()
    }

    /// Removes the bar while others still hold it.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for RateBar {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_valid() {
        for template in [STEPS, RATE, RATE_WITHOUT_TOTAL] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn a_hidden_rate_bar_measures_the_time() {
        let bar = Progress::hidden().rate("load", Some(10), "rows");
        bar.set_total(20);
        bar.update(5, 2);
        assert_eq!(bar.bar.length(), Some(20));
        assert!(bar.bar.is_hidden());
        assert!(bar.finish() < Duration::from_secs(60));
    }

    #[test]
    fn a_hidden_bar_counts_and_shows_nothing() {
        let bar = Progress::hidden().steps("loading", 3);
        bar.step();
        bar.set_status("first");
        bar.at(3);
        assert_eq!(bar.0.position(), 3);
        assert!(bar.0.is_hidden());
    }
}
