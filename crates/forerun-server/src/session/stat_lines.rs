//! The lines of a `stats` answer: `STAT name value`.

use std::fmt::{Display, Write};

use super::command_context::CommandContext;

/// Lines that are collected for one answer.
#[derive(Debug, Default)]
pub(super) struct Lines(String);

impl Lines {
    /// Adds a line.
    pub(super) fn put(&mut self, name: impl Display, value: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "STAT {name} {value}\r\n");
    }

    /// Appends the lines and `END` to the client's answers.
    pub(super) fn end(mut self, context: &mut CommandContext<'_>) {
        self.0.push_str("END\r\n");
        context.push(self.0.as_bytes());
    }
}
