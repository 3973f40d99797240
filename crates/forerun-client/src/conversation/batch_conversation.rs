//! The answers to one server's part of a batch of commands, in order.

use std::ops::Range;

use super::command_conversation::{Answer, CommandConversation};
use super::{Conversation, Progress};
use crate::error::Failure;
use crate::protocol::compose::Command;
use crate::protocol::reply::Reply;

/// State shared by the servers' parts of a batch of commands.
#[derive(Debug)]
pub(crate) struct CommandBatch<'a> {
    /// Positions of keys, grouped by server.
    pub(crate) order: &'a [u32],
    /// The answer for the key at each position.
    pub(crate) answers: &'a mut [Option<Answer>],
}

/// One server's part of a batch of commands of the same kind.
#[derive(Debug)]
pub(crate) struct BatchConversation<'a> {
    /// Its part of `order` that has no answer yet.
    rest: Range<usize>,
    /// Waits for the answer to the next command.
    command: CommandConversation,
    batch: std::marker::PhantomData<CommandBatch<'a>>,
}

impl BatchConversation<'_> {
    /// Waits for the answers to the commands at `part` of `order`. The first command has the number
    /// `opaque`; each later one has the next number.
    pub(crate) fn new(part: Range<usize>, command: &Command<'_>, opaque: Option<u32>) -> Self {
        BatchConversation {
            rest: part,
            command: CommandConversation::new(command, opaque),
            batch: std::marker::PhantomData,
        }
    }

    /// The number of commands that have no answer.
    pub(crate) fn unanswered(&self) -> usize {
        self.rest.len()
    }
}

impl<'a> Conversation for BatchConversation<'a> {
    type Shared = CommandBatch<'a>;

    fn reply(&mut self, reply: Reply<'_>, batch: &mut Self::Shared) -> Result<Progress, Failure> {
        self.command.reply(reply, &mut ())?;
        if let Some(at) = self.rest.next() {
            batch.answers[batch.order[at] as usize] = self.command.answer.take();
        }
        self.command.next();
        if self.rest.is_empty() {
            Ok(Progress::Done)
        } else {
            Ok(Progress::More)
        }
    }

    fn oversized(
        &mut self,
        reply: Reply<'_>,
        bytes: u64,
        _: &mut Self::Shared,
    ) -> Result<(), Failure> {
        self.command.oversized(reply, bytes, &mut ())
    }
}
