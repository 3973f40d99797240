//! SASL as the binary protocol uses it: one mechanism, PLAIN (RFC 4616).
//!
//! ```text
//!   key    PLAIN
//!   value  [user to act as] NUL user NUL password
//! ```

/// The mechanisms that the server offers.
pub(crate) const MECHANISMS: &[u8] = b"PLAIN";

/// The longest name of a mechanism, as in memcached.
pub(crate) const MECHANISM_BYTES_MAX: usize = 32;

/// The longest message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 2048;

/// The user and the password in a message of PLAIN. `None` if it is malformed, or if the client
/// wants to act as another user: no user may.
pub(crate) fn plain(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = message.split(|&byte| byte == 0);
    let (act_as, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    let is_itself = act_as.is_empty() || act_as == user;
    (is_itself && !user.is_empty() && parts.next().is_none()).then_some((user, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_user_and_a_password() {
        let alice = Some((&b"alice"[..], &b"s3cret"[..]));
        for (message, expected) in [
            (&b"\0alice\0s3cret"[..], alice),
            (b"alice\0alice\0s3cret", alice),
            (b"bob\0alice\0s3cret", None),
            (b"\0alice\0", Some((b"alice", b""))),
            (b"\0\0s3cret", None),
            (b"alice\0s3cret", None),
            (b"\0alice\0s3cret\0", None),
            (b"", None),
        ] {
            assert_eq!(plain(message), expected, "{}", message.escape_ascii());
        }
    }
}
