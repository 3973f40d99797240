//! Authentication of the binary protocol's clients: SASL with the mechanism PLAIN.
//!
//! ```text
//!             ┌── auth without a message ──► Started ── step ──┐
//!   Required ─┴── auth with the message ────────────────────── ┴─► Granted     again, with another user
//!       ▲                                                             │
//!       └─────────────── a wrong user or password ◄───────────────────┘
//! ```
//!
//! As in memcached, a failed attempt does not end the session, and takes back an earlier success.
//! Unlike in memcached, listing the mechanisms does not. Other commands need a success, and without
//! one they end the session. A server without users knows no command of SASL.

use crate::protocol::binary::parsed_request::{Command, Request};
use crate::protocol::binary::reply::{BodyLengths, Status, push_error, push_header, push_success};
use crate::protocol::binary::sasl;
use crate::session::command_context::CommandContext;
use crate::session::{Session, Step};
use crate::shared::Shared;

/// Whether a client may use the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum Access {
    /// The server has no users.
    Open,
    /// The client must authenticate.
    Required,
    /// The client has chosen a mechanism and must send the message.
    Started,
    /// The client has authenticated.
    Granted,
}

impl Access {
    pub(in crate::session) fn of_new(shared: &Shared) -> Access {
        if shared.reported.auth_enabled {
            Access::Required
        } else {
            Access::Open
        }
    }

    pub(in crate::session) fn is_granted(self) -> bool {
        matches!(self, Access::Open | Access::Granted)
    }
}

impl Session {
    /// The commands of SASL. The part of the message that has arrived follows the first `head_len`
    /// bytes of `rest`.
    pub(super) fn authenticate(
        &mut self,
        request: &Request<'_>,
        rest: &[u8],
        at: &mut usize,
        context: &mut CommandContext<'_>,
        head_len: usize,
    ) -> Step {
        let (id, out) = (request.id, context.out.bytes_mut());
        let refused = match request.command {
            _ if !context.shared.reported.auth_enabled => Some(Status::UnknownCommand),
            _ if request.key.len() > sasl::MECHANISM_BYTES_MAX => Some(Status::Invalid),
            _ if request.value_len > sasl::MESSAGE_BYTES_MAX => Some(Status::OutOfMemory),
            _ => None,
        };
        if let Some(status) = refused {
            push_error(out, id, status);
            return self.skip(head_len, request.value_len, at);
        }
        let Some(message) = rest.get(head_len..head_len + request.value_len) else {
            return Step::More;
        };
        *at += head_len + message.len();
        let has_started = self.binary == Some(Access::Started);
        let answers = match request.command {
            Command::SaslMechanisms => {
                push_success(out, id, sasl::MECHANISMS, 0);
                return Step::On;
            }
            Command::SaslStep => has_started,
            _ => request.key.eq_ignore_ascii_case(sasl::MECHANISMS),
        };
        if request.command == Command::SaslAuth && answers && message.is_empty() {
            push_header(out, id, Status::AuthContinue, BodyLengths::default(), 0);
            self.binary = Some(Access::Started);
            return Step::On;
        }
        let server = &context.shared.server;
        let is_user = answers
            && sasl::plain(message)
                .is_some_and(|(user, password)| server.knows_user(user, password));
        context.counters.auth_cmds.add(1);
        if is_user {
            push_success(out, id, b"Authenticated", 0);
            self.binary = Some(Access::Granted);
        } else {
            context.counters.auth_errors.add(1);
            push_error(out, id, Status::AuthError);
            self.binary = Some(Access::Required);
        }
        Step::On
    }
}
