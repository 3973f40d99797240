//! How commands authenticate at cache servers that have users.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::exit::UsageError;

/// The options of commands that connect to cache servers.
#[derive(Clone, Debug, clap::Args)]
pub struct LoginArgs {
    /// User to authenticate as, if the servers have users
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// File with the user's password
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

/// What a connection sends first.
#[derive(Clone, Default)]
pub struct Login {
    request: Option<Vec<u8>>,
}

/// The answer to a request that the server accepts.
pub const ACCEPTED: &str = "STORED";

/// The answer of a server that has users to a client that has not authenticated.
pub const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated";

/// What to tell the user about [`UNAUTHENTICATED`].
pub const NEEDS_USER: &str = "it has users: use --user and --password-file";

impl LoginArgs {
    /// Reads the password.
    pub fn read(&self) -> anyhow::Result<Login> {
        match (&self.user, &self.password_file) {
            (Some(user), Some(path)) => Login::of(user, path),
            _ => Ok(Login::default()),
        }
    }
}

impl Login {
    fn of(user: &str, path: &Path) -> anyhow::Result<Login> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let password = text.trim_end_matches(['\r', '\n']);
        if user.is_empty() || user.contains([' ', '\r', '\n']) {
            bail!(UsageError(format!(
                "--user: {user:?} is not the name of a user"
            )));
        }
        if password.is_empty() || password.contains(['\r', '\n']) {
            bail!(UsageError(format!(
                "{}: not one line with a password",
                path.display()
            )));
        }
        let value = format!("{user} {password}");
        let request = format!("set auth 0 0 {}\r\n{value}\r\n", value.len());
        Ok(Login {
            request: Some(request.into_bytes()),
        })
    }

    /// The request that authenticates, if there is a user.
    pub fn request(&self) -> Option<&[u8]> {
        self.request.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_and_a_line_end_are_not_part_of_the_password() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for text in ["secret", "secret\r\n", "\u{feff}secret\n"] {
            std::fs::write(file.path(), text).expect("it is written");
            let login = Login::of("alice", file.path()).expect("a password");
            let request = &b"set auth 0 0 12\r\nalice secret\r\n"[..];
            assert_eq!(login.request(), Some(request), "{text:?}");
        }
    }
}
