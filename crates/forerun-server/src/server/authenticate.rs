//! The first commands of a connection that must authenticate.

use crate::auth::{Authentication, Entry, UserFile};
use crate::counters::Counters;
use crate::input::Input;
use crate::output::Output;
use crate::session::SessionState;

/// Reads what a client sends to authenticate, and answers it. Returns `None` once the session may
/// read the rest.
pub(crate) fn authenticate(
    authentication: &mut Authentication,
    users: &UserFile,
    input: &mut Input,
    output: &mut Output,
    counters: &Counters,
) -> Option<SessionState> {
    loop {
        match authentication.read(input.bytes(), users) {
            Entry::More => return Some(SessionState::NeedsInput),
            // The session has not read anything yet. It will see the connection's first byte and
            // close.
            Entry::Binary => return None,
            Entry::Close => return Some(SessionState::Closed),
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
                    return None;
                }
                if output.is_full() {
                    return Some(SessionState::OutputFull);
                }
            }
        }
    }
}
