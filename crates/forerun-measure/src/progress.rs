//! Progress bars, shown only on a terminal.
//!
//! They are drawn on standard error, so a benchmark's output can be piped at the same time.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

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
        let target = if self.shown {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let template = "{prefix:>12} [{bar:30}] {human_pos}/{human_len} {eta:>4} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what.to_owned());
        if self.shown {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Bar(bar)
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
    pub fn tell(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_bar_counts_and_shows_nothing() {
        let bar = Progress::hidden().steps("loading", 3);
        bar.step();
        bar.tell("first");
        bar.at(3);
        assert_eq!(bar.0.position(), 3);
        assert!(bar.0.is_hidden());
    }
}
