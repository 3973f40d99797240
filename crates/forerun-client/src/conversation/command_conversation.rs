//! The answer to a command for one key.

use super::{Conversation, Progress, meta_flags, refused, shown, unexpected};
use crate::error::Failure;
use crate::protocol::compose::Command;
use crate::protocol::reply::{ErrorKind, Line, MetaCode, Reply, number};

/// A server's answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    NotStored,
    Exists,
    NotFound,
    Number(u64),
    Refused(String),
}

/// The answers that a command can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Store,
    Delete,
    Count,
    Touch,
    FlushAll,
}

/// Waits for the answer to one command.
#[derive(Debug)]
pub(crate) struct CommandConversation {
    kind: Kind,
    /// The number of the request, in the meta protocol.
    opaque: Option<u32>,
    pub(crate) answer: Option<Answer>,
}

impl CommandConversation {
    pub(crate) fn new(command: &Command<'_>, opaque: Option<u32>) -> CommandConversation {
        let kind = match command {
            Command::Store { .. } => Kind::Store,
            Command::Delete => Kind::Delete,
            Command::Add(_) | Command::Subtract(_) => Kind::Count,
            Command::Touch(_) => Kind::Touch,
        };
        CommandConversation::of(kind, opaque)
    }

    /// Waits for the answer to the next command of the same kind, which has the next number.
    pub(crate) fn next(&mut self) {
        self.opaque = self.opaque.map(|opaque| opaque.wrapping_add(1));
    }

    pub(crate) fn flush_all() -> CommandConversation {
        CommandConversation::of(Kind::FlushAll, None)
    }

    fn of(kind: Kind, opaque: Option<u32>) -> CommandConversation {
        CommandConversation {
            kind,
            opaque,
            answer: None,
        }
    }

    /// Checks that a meta reply repeats the request's number. Memcached omits it after `EN`.
    fn check_opaque(&self, code: Option<MetaCode>, flags: &[u8]) -> Result<(), Failure> {
        let opaque = meta_flags(flags)?.opaque;
        let is_omitted = code == Some(MetaCode::Miss) && opaque.is_none();
        if is_omitted || opaque == self.opaque.map(u64::from) {
            Ok(())
        } else {
            Err(Failure::malformed("the number of another request", flags))
        }
    }
}

impl Conversation for CommandConversation {
    type Shared = ();

    fn reply(&mut self, reply: Reply<'_>, (): &mut ()) -> Result<Progress, Failure> {
        let answer = match (self.kind, reply) {
            (_, Reply::Error { kind, line }) => match kind {
                ErrorKind::Server => Answer::Refused(shown(line)),
                ErrorKind::Protocol => return Err(refused(line)),
            },
            (kind, Reply::Meta { code, flags }) if self.opaque.is_some() => {
                self.check_opaque(Some(code), flags)?;
                match (kind, code) {
                    (Kind::Store | Kind::Delete | Kind::Touch, MetaCode::Done) => Answer::Done,
                    (Kind::Store, MetaCode::NotStored) => Answer::NotStored,
                    (Kind::Store, MetaCode::Exists) => Answer::Exists,
                    (_, MetaCode::NotFound) => Answer::NotFound,
                    (Kind::Touch, MetaCode::Miss) => Answer::NotFound,
                    _ => return Err(unexpected(&reply)),
                }
            }
            (Kind::Count, Reply::MetaValue { flags, data }) if self.opaque.is_some() => {
                self.check_opaque(None, flags)?;
                let number = number(data.trim_ascii_end());
                Answer::Number(number.ok_or_else(|| Failure::malformed("not a number", data))?)
            }
            (Kind::Count, Reply::Number(number)) if self.opaque.is_none() => Answer::Number(number),
            (kind, Reply::Line(line)) if self.opaque.is_none() => match (kind, line) {
                (Kind::Store, Line::Stored)
                | (Kind::Delete, Line::Deleted)
                | (Kind::Touch, Line::Touched)
                | (Kind::FlushAll, Line::Ok) => Answer::Done,
                (Kind::Store, Line::NotStored) => Answer::NotStored,
                (Kind::Store, Line::Exists) => Answer::Exists,
                (Kind::Store | Kind::Delete | Kind::Count | Kind::Touch, Line::NotFound) => {
                    Answer::NotFound
                }
                _ => return Err(unexpected(&reply)),
            },
            _ => return Err(unexpected(&reply)),
        };
        self.answer = Some(answer);
        Ok(Progress::Done)
    }

    fn oversized(&mut self, reply: Reply<'_>, _: u64, (): &mut ()) -> Result<(), Failure> {
        Err(unexpected(&reply))
    }
}
