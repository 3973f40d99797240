//! What comes before a password: nothing but `set`, whose data block is `user password`.

use memchr::memchr;

use crate::input::LINE_BYTES_MAX;
use crate::protocol::numbers::parse_u32;
use crate::protocol::replies;
use crate::protocol::tokens::{Tokens, split, without_return};

use super::turn::Turn;
use super::{Next, Session, State, Step};

/// Longest `user password`.
const SECRET_BYTES_MAX: usize = 8 << 10;

impl Session {
    /// A line of a client that has not authenticated.
    pub(super) fn before_password(&mut self, bytes: &[u8], at: &mut usize, turn: &mut Turn<'_>) -> Step {
        let rest = &bytes[*at..];
        let window = &rest[..rest.len().min(LINE_BYTES_MAX)];
        let Some(end) = memchr(b'\n', window) else {
            return if window.len() == LINE_BYTES_MAX { Step::End(Next::Close) } else { Step::More };
        };
        *at += end + 1;
        let tokens = Tokens::of(without_return(&window[..end]));
        let len = parse_u32(tokens.get(4)).map(|len| len as usize);
        match len {
            Some(len) if tokens.count() >= 5 && tokens.get(0) == b"set" => {
                if len > SECRET_BYTES_MAX {
                    turn.say(b"CLIENT_ERROR auth token too long\r\n");
                    return Step::End(Next::Close);
                }
                self.state = State::Password(len);
            }
            _ => turn.say(b"CLIENT_ERROR unauthenticated\r\n"),
        }
        Step::On
    }

    /// The data block with the password.
    pub(super) fn password(&mut self, bytes: &[u8], at: &mut usize, turn: &mut Turn<'_>) -> Step {
        let State::Password(len) = self.state else {
            return Step::On;
        };
        let Some(block) = bytes[*at..].get(..len + 2) else {
            return Step::More;
        };
        *at += block.len();
        self.state = State::Unauthenticated;
        let Some(secret) = block.strip_suffix(b"\r\n") else {
            turn.say(b"CLIENT_ERROR bad command line termination\r\n");
            return Step::On;
        };
        let mut words = split(secret);
        let (Some(user), Some(password)) = (words.next(), words.next()) else {
            turn.say(b"CLIENT_ERROR bad authentication token format\r\n");
            return Step::On;
        };
        turn.counters.auth_cmds.add(1);
        if turn.shared.host.authenticates(user, password) {
            self.state = State::Command;
            turn.say(replies::STORED);
        } else {
            turn.counters.auth_errors.add(1);
            turn.say(b"CLIENT_ERROR authentication failure\r\n");
        }
        Step::On
    }
}
