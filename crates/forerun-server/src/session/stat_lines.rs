//! The lines of an answer to `stats`.

use std::fmt::{Display, Write};

use super::command_context::CommandContext;

/// `STAT name value` lines.
#[derive(Default)]
pub(super) struct Lines(String);

impl Lines {
    /// Adds a line.
    pub(super) fn put(&mut self, name: impl Display, value: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "STAT {name} {value}\r\n");
    }

    /// Answers with the lines.
    pub(super) fn end(mut self, context: &mut CommandContext<'_>) {
        self.0.push_str("END\r\n");
        context.push(self.0.as_bytes());
    }
}
