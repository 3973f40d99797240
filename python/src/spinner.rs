//! A spinner on the terminal during long calls.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How long a call runs before a terminal shows it.
pub(crate) const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// A line on standard error if that is a terminal. It vanishes when dropped.
pub(crate) struct Spinner(Option<ProgressBar>);

impl Spinner {
    /// Shows a description of the call.
    pub(crate) fn new(what: &'static str) -> Spinner {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_message(what);
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Spinner(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
