//! How commands connect to cache servers: the user, and TLS.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use forerun_client::{ClientOptions, Credentials, Error, RawConnection, ServerAddress, TlsOptions};

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
    /// Connect with TLS, except to Unix sockets
    #[arg(long, requires = "ssl_ca_cert")]
    tls: bool,
    /// PEM file of the authorities for the servers' certificates
    #[arg(long, value_name = "FILE", requires = "tls")]
    ssl_ca_cert: Option<PathBuf>,
    /// Name in the servers' certificates, if it is not the host of their addresses
    #[arg(long, value_name = "NAME", requires = "tls")]
    ssl_server_name: Option<String>,
    /// PEM file of a certificate for servers that ask for one, and its intermediate certificates
    #[arg(long, value_name = "FILE", requires_all = ["tls", "ssl_key"])]
    ssl_chain_cert: Option<PathBuf>,
    /// PEM file of the certificate's key
    #[arg(long, value_name = "FILE", requires = "ssl_chain_cert")]
    ssl_key: Option<PathBuf>,
}

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct Login {
    options: ClientOptions,
}

/// The longest value that a server can have: memcached's and Forerun's limit.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// The answer of a server that has users to a client that has not authenticated.
pub const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated";

/// What to tell the user about [`UNAUTHENTICATED`].
pub const NEEDS_USER: &str = "it has users: use --user and --password-file";

impl LoginArgs {
    /// Reads the password.
    pub fn read(&self) -> anyhow::Result<Login> {
        let mut login = match (&self.user, &self.password_file) {
            (Some(user), Some(path)) => Login::of(user, path)?,
            _ => Login::default(),
        };
        login.options.tls = self.tls_options();
        Ok(login)
    }

    fn tls_options(&self) -> Option<TlsOptions> {
        let authorities = self.ssl_ca_cert.as_ref().filter(|_| self.tls)?;
        let certificate = self.ssl_chain_cert.clone().zip(self.ssl_key.clone());
        let options = TlsOptions::new(authorities).server_name(self.ssl_server_name.clone());
        Some(options.certificate(certificate))
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
        let credentials = Credentials::new(user, password);
        Ok(Login {
            options: ClientOptions::default().credentials(Some(credentials)),
        })
    }

    /// Connects, and authenticates if there is a user. `timeout` is the maximum time to connect, to
    /// wait for bytes, and for a whole line.
    pub fn open(&self, server: &ServerAddress, timeout: Duration) -> Result<RawConnection, Error> {
        let options = self.options.clone().timeout(timeout);
        RawConnection::open(server, &options.max_value_bytes(VALUE_BYTES_MAX))
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
            let expected = Some(Credentials::new("alice", "secret"));
            assert_eq!(login.options.credentials, expected, "{text:?}");
        }
    }
}
