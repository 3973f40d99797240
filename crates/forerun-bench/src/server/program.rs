//! The programs of servers, and the options that they are started with.
//!
//! ```text
//!   forerun, memcached    --listen, --port, --threads, --memory-limit, --conn-limit
//!   forerun with RESP     and --resp
//!   redis, valkey         --bind, --port, --io-threads, --maxmemory, --maxclients
//! ```

use super::form::Protocol;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The options that a program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionStyle {
    /// memcached's long options.
    Memcached,
    /// Redis's.
    Redis,
}

/// How to start a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The name for its rows.
    pub name: String,
    /// The program.
    pub path: PathBuf,
    /// Arguments before the options.
    pub args: Vec<OsString>,
    /// The options that it takes.
    pub options: OptionStyle,
}

/// The resources of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its threads.
    pub threads: usize,
    /// Its memory.
    pub memory_mib: u64,
    /// Maximum connections.
    pub connections: usize,
    /// The cores it may run on; all if the list is empty.
    pub cores: Vec<usize>,
}

/// Where a server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    /// memcached's protocol, unless the program speaks RESP only.
    pub memcached: SocketAddr,
    /// RESP.
    pub resp: Option<SocketAddr>,
}

impl Program {
    /// Forerun's own server: this executable, run as `forerun-bench serve`, which is `forerun
    /// serve`.
    ///
    /// # Errors
    /// The system does not report the path of this executable.
    pub fn forerun() -> Result<Program> {
        Ok(Program {
            name: "forerun".to_owned(),
            path: std::env::current_exe().context("cannot find this program's own executable")?,
            args: vec!["serve".into()],
            options: OptionStyle::Memcached,
        })
    }

    /// memcached at this path or in a directory of `PATH`, if it exists.
    pub fn memcached(name: &Path) -> Option<Program> {
        let mut args = Vec::new();
        // It refuses to run as root without an explicit option.
        #[cfg(target_os = "linux")]
        if rustix::process::geteuid().is_root() {
            args = vec!["--user".into(), "root".into()];
        }
        Some(Program {
            name: "memcached".to_owned(),
            path: on_path(name)?,
            args,
            options: OptionStyle::Memcached,
        })
    }

    /// Redis or Valkey at this path or in a directory of `PATH`, if it exists; `redis` and `valkey`
    /// stand for `redis-server` and `valkey-server`.
    ///
    /// # Errors
    /// The program cannot be run, or is neither.
    pub fn redis(name: &Path) -> Result<Option<Program>> {
        let name = match name.to_str() {
            Some(name @ ("redis" | "valkey")) => PathBuf::from(format!("{name}-server")),
            _ => name.to_owned(),
        };
        let Some(path) = on_path(&name) else {
            return Ok(None);
        };
        let output = Command::new(&path).arg("--version").output();
        let output = output.with_context(|| format!("cannot start {}", path.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some((name, version)) = text.split_once(" server v=") else {
            bail!("{} is not a Redis server: {text:?}", path.display());
        };
        let version = version.split_whitespace().next().unwrap_or_default();
        Ok(Some(Program {
            name: format!("{} {version}", name.trim().to_lowercase()),
            path,
            args: Vec::new(),
            options: OptionStyle::Redis,
        }))
    }

    /// The first line of what it says about its version, if it says anything.
    pub fn version(&self) -> Option<String> {
        let mut command = Command::new(&self.path);
        let output = command.args(&self.args).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().next().map(str::trim);
        line.filter(|line| !line.is_empty()).map(str::to_owned)
    }

    /// Whether it can speak this protocol.
    pub fn speaks(&self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::Memcached => self.options == OptionStyle::Memcached,
            Protocol::Resp => self.name != super::PEER,
        }
    }

    /// The command that starts it.
    pub(super) fn command(&self, share: &Share, at: &Addresses) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.args);
        let connections = share.connections.to_string();
        let threads = share.threads.to_string();
        match self.options {
            OptionStyle::Memcached => {
                command
                    .args(["--listen", &at.memcached.ip().to_string()])
                    .args(["--port", &at.memcached.port().to_string()])
                    .args(["--threads", &threads])
                    .args(["--memory-limit", &share.memory_mib.to_string()])
                    .args(["--conn-limit", &connections]);
                if let Some(resp) = at.resp {
                    command.args(["--resp", &resp.to_string()]);
                }
            }
            OptionStyle::Redis => {
                let at = at.resp.unwrap_or(at.memcached);
                command
                    .args(["--bind", &at.ip().to_string()])
                    .args(["--port", &at.port().to_string()])
                    .args(["--io-threads", &threads])
                    .args(["--maxmemory", &format!("{}mb", share.memory_mib)])
                    .args(["--maxmemory-policy", "allkeys-lru"])
                    .args(["--maxclients", &connections])
                    .args(["--save", "", "--appendonly", "no", "--databases", "1"]);
            }
        }
        command
    }
}

/// A program at this path, or in a directory of `PATH` if it is only a name.
fn on_path(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return Some(name.to_owned()).filter(|path| path.is_file());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&folders).map(|folder| folder.join(name));
    places.find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_gets_the_options_that_it_takes() {
        let share = Share {
            threads: 2,
            memory_mib: 64,
            connections: 16,
            cores: Vec::new(),
        };
        let at = Addresses {
            memcached: "127.0.0.1:11".parse().unwrap(),
            resp: Some("127.0.0.1:63".parse().unwrap()),
        };
        let line = |options, at: &Addresses| {
            let program = Program {
                name: "x".to_owned(),
                path: "x".into(),
                args: vec!["serve".into()],
                options,
            };
            let command = program.command(&share, at);
            let words: Vec<_> = command
                .get_args()
                .map(|word| word.to_string_lossy())
                .collect();
            words.join(" ")
        };
        let own = line(OptionStyle::Memcached, &at);
        assert!(
            own.starts_with("serve --listen 127.0.0.1 --port 11 --threads 2"),
            "{own}"
        );
        assert!(own.ends_with("--resp 127.0.0.1:63"), "{own}");
        let alone = Addresses { resp: None, ..at };
        assert!(!line(OptionStyle::Memcached, &alone).contains("resp"));
        let redis = line(OptionStyle::Redis, &at);
        assert!(
            redis.contains("--port 63 ") && redis.contains("--maxmemory 64mb"),
            "{redis}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_program_is_asked_for_its_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memcached");
        let script = "for last; do :; done\n\
                      test \"$last\" = --version && echo memcached 1.6.40\n";
        std::fs::write(&path, script).unwrap();
        // A shell reads the script. To execute it could fail with ETXTBSY: another thread may have
        // started a process meanwhile, which has it open for a moment.
        let mut program = Program::memcached(Path::new("/bin/sh")).unwrap();
        program.args.insert(0, path.into());
        assert_eq!(program.version().as_deref(), Some("memcached 1.6.40"));
    }

    #[test]
    fn a_program_that_is_absent_or_another_is_told_apart() {
        let absent = Program::redis(Path::new("/no/such/redis-server")).unwrap();
        assert_eq!(absent, None);
        let error = Program::redis(Path::new("/bin/echo")).unwrap_err();
        assert!(error.to_string().contains("not a Redis server"), "{error}");
    }
}
