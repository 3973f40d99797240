//! An operator of the server under load: at an interval it asks for a copy of the cache, replaces
//! the certificates, and changes the memory limit.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use forerun_bench::server::server_process::Process;
use rustls::ClientConfig;

use super::certificates::Certificates;
use super::wire::{Target, Wire};

/// The lower limit as a share of the memory.
const LOWER_SHARE: (u64, u64) = (3, 4);

/// What the operator has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Actions {
    /// Copies of the cache that were complete before the next one was due.
    pub snapshots: u64,
    /// Certificates that new connections have shown.
    pub certificates: u64,
    /// Changes of the memory limit.
    pub limits: u64,
}

/// The operator.
pub struct Operator {
    interval: Duration,
    due: Duration,
    plain: Target,
    tls: SocketAddr,
    config: Arc<ClientConfig>,
    certificates: Certificates,
    /// Where the server writes copies of the cache.
    copy: PathBuf,
    memory_mib: u64,
    /// When the lower limit was set, while it holds.
    lowered: Option<Duration>,
    pub actions: Actions,
}

impl Operator {
    pub fn new(
        interval: Duration,
        plain: SocketAddr,
        tls: SocketAddr,
        certificates: Certificates,
        copy: PathBuf,
        memory_mib: u64,
    ) -> Result<Operator> {
        Ok(Operator {
            interval,
            due: interval,
            plain: Target::Plain(plain),
            tls,
            config: certificates.client()?,
            certificates,
            copy,
            memory_mib,
            lowered: None,
            actions: Actions::default(),
        })
    }

    /// Performs the actions that are due after `elapsed`. Returns faults of the server.
    pub fn work(&mut self, elapsed: Duration, server: &Process) -> Result<Result<(), String>> {
        if elapsed < self.due {
            return Ok(Ok(()));
        }
        self.due = elapsed + self.interval;
        // The first copy is requested now. Each later one must have ended in the meantime.
        if std::fs::exists(&self.copy).context("cannot look for the copy")? {
            std::fs::remove_file(&self.copy).context("cannot remove the copy")?;
            self.actions.snapshots += 1;
        }
        server.ask_for_snapshot()?;
        self.certificates.replace()?;
        Ok(self
            .change_certificates()
            .and_then(|()| self.change_limit(elapsed)))
    }

    /// The lower limit in bytes, if it has held for most of an interval.
    pub fn lower_limit_bytes(&self, elapsed: Duration) -> Option<u64> {
        let since = self.lowered?;
        (elapsed >= since + self.interval / 4 * 3).then(|| self.lower_mib() << 20)
    }

    fn lower_mib(&self) -> u64 {
        self.memory_mib * LOWER_SHARE.0 / LOWER_SHARE.1
    }

    fn change_certificates(&mut self) -> Result<(), String> {
        ask(&self.plain, "refresh_certs", "OK")?;
        let tls = Target::Tls(self.tls, self.config.clone());
        let mut wire = Wire::connect(&tls)?;
        wire.send(b"mn\r\n")?;
        wire.expect("mn", &["MN"])?;
        if wire.certificate() != Some(self.certificates.current()) {
            return Err("a new connection does not show the new certificate".to_owned());
        }
        self.actions.certificates += 1;
        Ok(())
    }

    fn change_limit(&mut self, elapsed: Duration) -> Result<(), String> {
        let (mebibytes, lowered) = match self.lowered {
            None => (self.lower_mib(), Some(elapsed)),
            Some(_) => (self.memory_mib, None),
        };
        ask(&self.plain, &format!("cache_memlimit {mebibytes}"), "OK")?;
        self.lowered = lowered;
        self.actions.limits += 1;
        Ok(())
    }
}

fn ask(target: &Target, request: &str, answer: &str) -> Result<(), String> {
    let mut wire = Wire::connect(target)?;
    wire.send(format!("{request}\r\n").as_bytes())?;
    wire.expect(request, &[answer]).map(drop)
}
