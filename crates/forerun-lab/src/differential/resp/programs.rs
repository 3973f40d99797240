//! Redis, Valkey and Forerun's command, and how they are started.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::differential::connection::RunningServer;
use crate::differential::program::output_of;

/// The databases of each server.
pub(super) const DATABASES: u16 = 4;

/// The memory of Forerun's server. It is large enough that it does not evict.
pub(super) const MEMORY_MIB: usize = 512;

/// Which server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Forerun,
    Redis,
    Valkey,
}

/// A program that speaks RESP on a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RedisProgram {
    pub path: PathBuf,
    pub kind: Kind,
    version: String,
}

impl fmt::Display for RedisProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            Kind::Redis => "Redis",
            Kind::Valkey => "Valkey",
            Kind::Forerun => "Forerun",
        };
        write!(f, "{name} {}", self.version)
    }
}

impl RedisProgram {
    /// Asks a program for its version; `redis` and `valkey` stand for `redis-server` and
    /// `valkey-server`. `None` if there is no such program.
    pub(super) fn find(name: &Path) -> Result<Option<Self>> {
        let path = match name.to_str() {
            Some(name @ ("redis" | "valkey")) => PathBuf::from(format!("{name}-server")),
            _ => name.to_owned(),
        };
        let Some(text) = output_of(&path, "--version")? else {
            return Ok(None);
        };
        match version_in(&text) {
            Some((kind, version)) => Ok(Some(Self {
                path,
                kind,
                version,
            })),
            None => bail!("{path:?} --version printed {text:?}, not Redis, Valkey or forerun"),
        }
    }

    /// Starts the program. It listens only on `socket` and saves nothing.
    pub(super) fn start(&self, dir: &Path, socket: PathBuf) -> Result<RunningServer> {
        let mut command = Command::new(&self.path);
        let databases = DATABASES.to_string();
        if self.kind == Kind::Forerun {
            command
                .arg("serve")
                .arg("--unix-socket")
                .arg(dir.join("memcached.sock"))
                .arg("--resp")
                .arg(format!("unix:{}", socket.display()))
                .args(["--resp-databases", &databases])
                .args(["--memory-limit", &MEMORY_MIB.to_string()]);
            return RunningServer::process(command, socket);
        }
        command
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(dir)
            .args(["--port", "0", "--databases", &databases, "--save", ""])
            .args(["--appendonly", "no", "--daemonize", "no"]);
        RunningServer::process(command, socket)
    }
}

/// Reads `Redis server v=7.0.15 sha=…`, `Valkey server v=9.1.2 sha=…` or `forerun 0.1.0`.
fn version_in(text: &str) -> Option<(Kind, String)> {
    if let Some(version) = text.strip_prefix("forerun ") {
        return Some((Kind::Forerun, version.trim().to_owned()));
    }
    let (name, rest) = text.split_once(" server v=")?;
    let kind = match name.trim() {
        "Redis" => Kind::Redis,
        "Valkey" => Kind::Valkey,
        _ => return None,
    };
    Some((kind, rest.split_whitespace().next()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(
            version_in("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64\n"),
            Some((Kind::Redis, "7.0.15".to_owned()))
        );
        assert_eq!(
            version_in("Valkey server v=9.1.2 sha=00000000:0 bits=64"),
            Some((Kind::Valkey, "9.1.2".to_owned()))
        );
        assert_eq!(
            version_in("forerun 0.1.0\n"),
            Some((Kind::Forerun, "0.1.0".to_owned()))
        );
        assert_eq!(version_in("memcached 1.6.18"), None);
    }
}
