//! Authentication by a file of users, as memcached's `-Y`.
//!
//! The file has a line `user:password` for each user. A session asks [`Users::knows`] when its client says who it is.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// The longest file of users that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Users and their passwords.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Users {
    list: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Users {
    /// Reads a file of users.
    ///
    /// # Errors
    /// [`Error::Auth`] where it cannot be read, is too long, or has a line without a colon, or none at all.
    pub(crate) fn load(path: &Path) -> Result<Users, Error> {
        let wrong = |reason: String| Error::Auth {
            path: PathBuf::from(path),
            reason,
        };
        let length = std::fs::metadata(path)
            .map_err(|error| wrong(error.to_string()))?
            .len();
        if length > FILE_BYTES_MAX {
            return Err(wrong(format!("it is longer than {FILE_BYTES_MAX} bytes")));
        }
        let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        Users::parse(&text).map_err(wrong)
    }

    fn parse(text: &[u8]) -> Result<Users, String> {
        let mut list = Vec::new();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let colon = line.iter().position(|byte| *byte == b':');
            let Some(colon) = colon.filter(|at| *at > 0 && at + 1 < line.len()) else {
                return Err(format!("line {} is not user:password", number + 1));
            };
            list.push((line[..colon].to_vec(), line[colon + 1..].to_vec()));
        }
        if list.is_empty() {
            return Err("it names no user".to_owned());
        }
        Ok(Users { list })
    }

    /// Whether there is this user with this password. It takes as long wherever the first difference lies.
    pub(crate) fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        let mut known = false;
        for (name, secret) in &self.list {
            known |= same(name, user) & same(secret, password);
        }
        known
    }
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} users", self.list.len())
    }
}

/// Whether two texts are the same, in a time that depends on their lengths alone.
fn same(a: &[u8], b: &[u8]) -> bool {
    let different = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(different) == 0 && a.len() == b.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        Users::parse(b"alice:s3cret\r\n\nbob:a:b\n").expect("it is a file of users")
    }

    #[test]
    fn a_user_is_known_by_name_and_password_together() {
        let users = users();
        assert!(users.knows(b"alice", b"s3cret") && users.knows(b"bob", b"a:b"));
        for (user, password) in [
            ("alice", "s3cre"),
            ("alice", "s3crets"),
            ("alice", "S3cret"),
            ("alice", "a:b"),
            ("bob", "a"),
            ("", ""),
            ("carol", "s3cret"),
        ] {
            assert!(!users.knows(user.as_bytes(), password.as_bytes()), "{user}");
        }
    }

    #[test]
    fn a_file_of_users_is_refused_with_its_line() {
        for (text, reason) in [
            (&b"alice:x\nbob\n"[..], "line 2 is not user:password"),
            (b":x\n", "line 1 is not user:password"),
            (b"x:\n", "line 1 is not user:password"),
            (b"\n\n", "it names no user"),
        ] {
            assert_eq!(Users::parse(text), Err(reason.to_owned()));
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        assert!(!format!("{:?}", users()).contains("s3cret"));
    }
}
