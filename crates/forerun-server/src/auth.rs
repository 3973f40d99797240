//! Authentication with a file of users, as with memcached's `-Y`.
//!
//! The file has one line `user:password` per user. A connection's first command must be a `set` of
//! any key whose value is `user password`:
//!
//! ```text
//!   set any 0 0 13\r\n
//!   alice s3cret7\r\n        ->  STORED, then the connection is an ordinary one
//! ```
//!
//! [`Authentication`] reads that command before the connection's session sees any input. The
//! session gets all later bytes. It also gets all bytes of a client of the binary protocol, which
//! authenticates with SASL.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use forerun_core::sync::{PoisonError, RwLock};

use crate::error::Error;
use crate::protocol::binary;
use crate::regular_file;

/// The largest file of users that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// A peer that sends this many bytes without a line end does not want to authenticate.
const LINE_BYTES_MAX: usize = 2048;
/// The byte order mark that some programs write before a text. It is not part of the first user.
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
/// The longest value of an authenticating `set`.
const VALUE_BYTES_MAX: usize = 2048;

/// A file of users and its content when it was last read.
#[derive(Debug)]
pub(crate) struct UserFile {
    path: PathBuf,
    users: RwLock<Users>,
}

impl UserFile {
    /// Reads a file of users.
    ///
    /// # Errors
    /// [`Error::Auth`], as [`Users::load`].
    pub(crate) fn load(path: &Path) -> Result<UserFile, Error> {
        Ok(UserFile {
            path: path.to_owned(),
            users: RwLock::new(Users::load(path)?),
        })
    }

    /// Reads the file again. Connections that have authenticated stay open. If the file cannot be
    /// used, the users do not change.
    ///
    /// # Errors
    /// [`Error::Auth`], as [`Users::load`], or if it is no longer a regular file.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        regular_file::check(&self.path).map_err(|error| Error::Auth {
            path: self.path.clone(),
            reason: error.to_string(),
        })?;
        let users = Users::load(&self.path)?;
        // The whole list is replaced at once, so a panic elsewhere cannot leave half of it.
        *self.users.write().unwrap_or_else(PoisonError::into_inner) = users;
        Ok(())
    }

    /// Whether this user has this password.
    pub(crate) fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        users.knows(user, password)
    }
}

/// Users and their passwords.
#[derive(Clone, Default, PartialEq, Eq)]
struct Users {
    list: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Users {
    /// Reads a file of users.
    ///
    /// # Errors
    /// [`Error::Auth`] if the file cannot be read, is too long, has a line that is not
    /// `user:password`, or names no user.
    fn load(path: &Path) -> Result<Users, Error> {
        let wrong = |reason: String| Error::Auth {
            path: PathBuf::from(path),
            reason,
        };
        // Devices and pipes have no length, and a file may grow, so count what is read.
        let mut text = Vec::new();
        File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text))
            .map_err(|error| wrong(error.to_string()))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(wrong(format!("it is longer than {FILE_BYTES_MAX} bytes")));
        }
        Users::parse(&text).map_err(wrong)
    }

    fn parse(text: &[u8]) -> Result<Users, String> {
        let mut list = Vec::new();
        let text = text.strip_prefix(UTF8_MARK).unwrap_or(text);
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
            return Err("it has no users".to_owned());
        }
        Ok(Users { list })
    }

    /// Whether this user has this password. The time does not depend on the position of the first
    /// difference.
    fn knows(&self, user: &[u8], password: &[u8]) -> bool {
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

/// Whether two texts are equal. The time depends only on their lengths.
fn same(a: &[u8], b: &[u8]) -> bool {
    let different = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(different) == 0 && a.len() == b.len()
}

/// The state of a connection that has not authenticated yet.
#[derive(Debug, Default)]
pub(crate) struct Authentication {
    /// Length of the value that comes next, including its line end, once the `set` line is read.
    value_bytes: Option<usize>,
    /// Whether the client has sent a line, and so speaks the text protocol.
    is_text: bool,
}

/// The result of reading the bytes received so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The command is incomplete.
    More,
    /// The first `consumed` bytes were a command. Send `answer`. The client may be authenticated
    /// now.
    Answered {
        /// Bytes to remove from the input.
        consumed: usize,
        /// The line to answer with.
        answer: &'static str,
        /// Whether the connection has authenticated.
        open: bool,
        /// Whether the client tried to authenticate as a user, for the counters.
        tried: bool,
    },
    /// The bytes begin a request of the binary protocol, in which the session authenticates.
    Binary,
    /// No memcached client sends these bytes.
    Close,
}

impl Authentication {
    /// Reads the next command from `bytes`. The caller removes `consumed` bytes of the input before
    /// the next call.
    pub(crate) fn read(&mut self, bytes: &[u8], users: &UserFile) -> Entry {
        let refuse = |consumed, answer| Entry::Answered {
            consumed,
            answer,
            open: false,
            tried: false,
        };
        if !self.is_text && bytes.first() == Some(&binary::REQUEST) {
            return Entry::Binary;
        }
        self.is_text |= !bytes.is_empty();
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            return match bytes.len() {
                0..=LINE_BYTES_MAX => Entry::More,
                _ => Entry::Close,
            };
        };
        let line = end + 1;
        let value_bytes = match self.value_bytes {
            Some(known) => known,
            None => match announced(&bytes[..end]) {
                Some(length) if length <= VALUE_BYTES_MAX => length + 2,
                Some(_) => return refuse(line, "CLIENT_ERROR auth token too long\r\n"),
                None => return refuse(line, "CLIENT_ERROR unauthenticated\r\n"),
            },
        };
        self.value_bytes = Some(value_bytes);
        let Some(value) = bytes.get(line..line + value_bytes) else {
            return Entry::More;
        };
        self.value_bytes = None;
        let consumed = line + value_bytes;
        let Some(value) = value.strip_suffix(b"\r\n") else {
            return refuse(consumed, "CLIENT_ERROR bad command line termination\r\n");
        };
        let mut words = value
            .split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty());
        let (Some(user), Some(password)) = (words.next(), words.next()) else {
            return refuse(consumed, "CLIENT_ERROR bad authentication token format\r\n");
        };
        let open = users.knows(user, password);
        let answer = if open {
            "STORED\r\n"
        } else {
            "CLIENT_ERROR authentication failure\r\n"
        };
        Entry::Answered {
            consumed,
            answer,
            open,
            tried: true,
        }
    }
}

/// Length of the value that the line `set key flags expiry length …` announces.
fn announced(line: &[u8]) -> Option<usize> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = line
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    if words.next()? != b"set" {
        return None;
    }
    let length = words.nth(3)?;
    std::str::from_utf8(length).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> UserFile {
        let users = Users::parse(b"alice:s3cret\r\n\nbob:a:b\n");
        UserFile {
            path: PathBuf::new(),
            users: RwLock::new(users.expect("the file of users is valid")),
        }
    }

    fn answer(bytes: &[u8]) -> (usize, &'static str, bool) {
        match Authentication::default().read(bytes, &users()) {
            Entry::Answered {
                consumed,
                answer,
                open,
                ..
            } => (consumed, answer, open),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_user_authenticates_and_later_bytes_are_left() {
        let first = b"set any 0 0 12\r\nalice s3cret\r\n";
        let mut bytes = first.to_vec();
        bytes.extend_from_slice(b"get a\r\n");
        assert_eq!(answer(&bytes), (first.len(), "STORED\r\n", true));
        assert!(answer(b"set x 1 2 7\r\nbob a:b\r\n").2);
    }

    #[test]
    fn a_mark_before_the_file_is_not_part_of_the_first_user() {
        let marked = Users::parse("\u{feff}alice:s3cret\nbob:a".as_bytes()).expect("two users");
        assert!(marked.knows(b"alice", b"s3cret") && marked.knows(b"bob", b"a"));
        assert!(Users::parse("\u{feff}\n".as_bytes()).is_err());
    }

    #[test]
    fn refused_users_get_memcacheds_error() {
        for (bytes, reported) in [
            (&b"get a\r\n"[..], "CLIENT_ERROR unauthenticated\r\n"),
            (b"set x 0 0\r\n", "CLIENT_ERROR unauthenticated\r\n"),
            (
                b"set x 0 0 12\r\nalice wrong!\r\n",
                "CLIENT_ERROR authentication failure\r\n",
            ),
            (
                b"set x 0 0 11\r\nalice s3cre\r\n",
                "CLIENT_ERROR authentication failure\r\n",
            ),
            (
                b"set x 0 0 5\r\nalice\r\n",
                "CLIENT_ERROR bad authentication token format\r\n",
            ),
            (
                b"set x 0 0 5\r\nalice s",
                "CLIENT_ERROR bad command line termination\r\n",
            ),
            (
                b"set x 0 0 2147483646\r\n",
                "CLIENT_ERROR auth token too long\r\n",
            ),
        ] {
            assert_eq!(answer(bytes), (bytes.len(), reported, false));
        }
    }

    #[test]
    fn a_command_may_come_byte_by_byte() {
        let bytes = b"set any 0 0 12\r\nalice s3cret\r\n";
        let mut authentication = Authentication::default();
        for end in 0..bytes.len() {
            assert_eq!(
                authentication.read(&bytes[..end], &users()),
                Entry::More,
                "{end}"
            );
        }
        assert!(matches!(
            authentication.read(bytes, &users()),
            Entry::Answered { open: true, .. }
        ));
    }

    #[test]
    fn endless_lines_are_refused_early() {
        let mut authentication = Authentication::default();
        assert_eq!(
            authentication.read(&[b'x'; LINE_BYTES_MAX], &users()),
            Entry::More
        );
        assert_eq!(
            authentication.read(&[b'x'; LINE_BYTES_MAX + 1], &users()),
            Entry::Close
        );
    }

    #[test]
    fn reloading_a_file_works_and_a_bad_file_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("users");
        let write = |text: &str| std::fs::write(&path, text).expect("a file");
        write("alice:old\n");
        let file = UserFile::load(&path).expect("the file of users is valid");
        write("alice:new\nbob:b\n");
        assert!(file.knows(b"alice", b"old") && !file.knows(b"bob", b"b"));
        file.reload().expect("the file of users is valid");
        assert!(file.knows(b"alice", b"new") && file.knows(b"bob", b"b"));
        assert!(!file.knows(b"alice", b"old"));
        write("alice\n");
        file.reload().expect_err("the file is not valid");
        assert!(file.knows(b"alice", b"new"));
    }

    #[test]
    fn a_pipe_is_not_read_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("users");
        std::fs::write(&path, "alice:old\n").expect("a file");
        let file = UserFile::load(&path).expect("the file of users is valid");
        std::fs::remove_file(&path).expect("it is there");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("there is mkfifo").success());
        // Nobody writes to the pipe. Reading it would block the thread that accepts connections.
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let error = file.reload().expect_err("it is a pipe").to_string();
            let _ = done.send((error, file.knows(b"alice", b"old")));
        });
        let (error, is_kept) = is_done
            .recv_timeout(std::time::Duration::from_secs(10))
            .expect("it does not wait for a writer");
        assert!(error.ends_with("it is not a regular file"), "{error}");
        assert!(is_kept);
    }

    #[test]
    fn a_file_of_users_is_refused_with_its_line() {
        for (text, reason) in [
            (&b"alice:x\nbob\n"[..], "line 2 is not user:password"),
            (b":x\n", "line 1 is not user:password"),
            (b"x:\n", "line 1 is not user:password"),
            (b"\n\n", "it has no users"),
        ] {
            assert_eq!(Users::parse(text), Err(reason.to_owned()));
        }
    }

    #[test]
    fn a_file_of_users_is_refused_at_its_limit_even_if_it_has_no_length() {
        let endless = UserFile::load(Path::new("/dev/zero")).expect_err("it has no end");
        assert!(
            endless.to_string().contains("longer than 1048576 bytes"),
            "{endless}"
        );
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("users");
        let user = b"alice:x\n";
        std::fs::write(&path, user.repeat((1 << 20) / user.len())).expect("a file");
        UserFile::load(&path).expect("it is as long as the limit");
        std::fs::write(&path, user.repeat((1 << 20) / user.len() + 1)).expect("a file");
        UserFile::load(&path).expect_err("it is longer than the limit");
    }

    #[test]
    fn debug_output_hides_passwords() {
        assert!(!format!("{:?}", users()).contains("s3cret"));
    }
}
