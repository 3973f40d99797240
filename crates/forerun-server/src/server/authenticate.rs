//! The first commands of a connection that must authenticate.

use crate::auth::{Authentication, Entry, UserFile};
use crate::counters::Counters;
use crate::input::Input;
use crate::output::Output;
use crate::session::SessionState;

/// The result of reading what a client sends to authenticate.
pub(crate) enum Login {
    /// The client has not authenticated yet.
    Waits(SessionState),
    /// The client has authenticated in the text protocol.
    Done,
    /// The client speaks the binary protocol. The session, which has not read anything yet,
    /// authenticates it.
    Binary,
}

/// Reads what a client sends to authenticate, and answers it.
pub(crate) fn authenticate(
    authentication: &mut Authentication,
    users: &UserFile,
    input: &mut Input,
    output: &mut Output,
    counters: &Counters,
) -> Login {
    loop {
        match authentication.read(input.bytes(), users) {
            Entry::More => return Login::Waits(SessionState::NeedsInput),
            Entry::Binary => return Login::Binary,
            Entry::Close => return Login::Waits(SessionState::Closed),
            Entry::Answered {
                consumed,
                answer,
                open,
                tried,
            } => {
                input.consume(consumed);
                output.bytes_mut().extend_from_slice(answer.as_bytes());
                counters.auth_cmds.add(u64::from(tried));
                counters.auth_errors.add(u64::from(tried && !open));
                if open {
                    return Login::Done;
                }
                if output.is_full() {
                    return Login::Waits(SessionState::OutputFull);
                }
            }
        }
    }
}
