//! The replies that a request expects.

mod batch_conversation;
mod command_conversation;
mod lookup_conversation;

pub(crate) use batch_conversation::{BatchConversation, CommandBatch};
pub(crate) use command_conversation::{Answer, CommandConversation};
pub(crate) use lookup_conversation::{
    KEYS_PER_LINE, LookupBatch, LookupConversation, LookupFormat,
};

use crate::error::Failure;
use crate::protocol::reply::{ErrorKind, Line, MetaCode, MetaFlags, NoReply, Reply};

/// Whether more replies are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Done,
}

/// Reads the replies to one request. After an error the connection cannot be used.
pub(crate) trait Conversation {
    /// State shared by the conversations of a round.
    type Shared;

    /// Reads the next reply.
    ///
    /// # Errors
    /// [`Failure::Malformed`] if it does not belong to the request, [`Failure::Refused`] if it is
    /// an error after which the rest of the answer is unknown.
    fn reply(&mut self, reply: Reply<'_>, shared: &mut Self::Shared) -> Result<Progress, Failure>;

    /// Reads the line of a reply whose value is too long to accept.
    ///
    /// # Errors
    /// The same as for [`Conversation::reply`].
    fn oversized(
        &mut self,
        reply: Reply<'_>,
        value_bytes: u64,
        shared: &mut Self::Shared,
    ) -> Result<(), Failure>;
}

/// Whether the server has done a delete that a request repeats, or refuses it.
///
/// # Errors
/// As for [`Conversation::reply`].
pub(crate) fn repeated_delete(reply: &Reply<'_>) -> Result<bool, Failure> {
    match *reply {
        Reply::Line(Line::Deleted | Line::NotFound) => Ok(true),
        Reply::Meta {
            code: MetaCode::Done | MetaCode::NotFound,
            ..
        } => Ok(true),
        Reply::Error { kind, line } => match kind {
            ErrorKind::Server => Ok(false),
            ErrorKind::Protocol => Err(refused(line)),
        },
        _ => Err(unexpected(reply)),
    }
}

fn unexpected(reply: &Reply<'_>) -> Failure {
    Failure::Malformed(format!("not an answer to the request: {}", name(reply)))
}

fn refused(line: &[u8]) -> Failure {
    Failure::Refused(shown(line))
}

/// The text of a server's line, for an error message. The limit on lines also limits its length.
pub(crate) fn shown(line: &[u8]) -> String {
    line[..line.len().min(200)].escape_ascii().to_string()
}

fn name(reply: &Reply<'_>) -> &'static str {
    match reply {
        Reply::Value { .. } => "VALUE",
        Reply::MetaValue { .. } => "VA",
        Reply::Meta { .. } => "a meta reply",
        Reply::Line(_) => "a classic reply",
        Reply::Number(_) => "a number",
        Reply::MultiGet { .. } => "MULTI_GET",
        Reply::Part(_) | Reply::Found { .. } | Reply::PartEnd { .. } => "a part of a multi-get",
        Reply::FrameError { .. } => "an error of a multi-get",
        Reply::Error { .. } => "an error",
    }
}

fn meta_flags(words: &[u8]) -> Result<MetaFlags, Failure> {
    MetaFlags::read(words).map_err(|NoReply(what)| Failure::malformed(what, words))
}
