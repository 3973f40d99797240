//! The two processes, and what they have said last.
//!
//! ```text
//!  parent          child
//!  spawn     ───>  waits for a line          so that it is in the group before it takes memory
//!  admit, "go" ─>  works
//!            <───  one JSON object per line
//!  drop, or its end ─> the standard input ends: so does the child
//! ```

use super::memory_group::MemoryGroup;
use super::{Args, Phase};
use crate::process_usage::resident_bytes_of;
use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// What a child says; those fields that are not its own stay at their defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Said {
    /// Whether the store is filled.
    pub(super) is_ready: bool,
    /// Bytes of records written so far.
    pub(super) filled_bytes: u64,
    /// Keys found so far.
    pub(super) keys: u64,
    pub(super) phase: Phase,
}

impl Said {
    /// Says this to the parent.
    ///
    /// # Errors
    /// There is no parent any more.
    pub(super) fn say(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(self)?)?;
        Ok(out.flush()?)
    }
}

/// Waits for the parent's word, and from then on ends this process when the parent has gone.
///
/// # Errors
/// There is no parent.
pub(super) fn await_parent() -> Result<()> {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        bail!("this process is started by `forerun-bench pressure`");
    }
    std::thread::spawn(|| {
        let mut line = String::new();
        while std::io::stdin()
            .read_line(&mut line)
            .is_ok_and(|len| len > 0)
        {}
        std::process::exit(0);
    });
    Ok(())
}

/// A child that runs. Dropping it kills the process.
pub(super) struct Running {
    name: &'static str,
    process: Child,
    input: ChildStdin,
    said: Arc<Mutex<Said>>,
}

impl Running {
    fn start(
        name: &'static str,
        group: &MemoryGroup,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Running> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(["pressure-child", name]);
        arguments(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command
            .spawn()
            .with_context(|| format!("cannot start the process \"{name}\""))?;
        let pipes = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            bail!("the process \"{name}\" has no pipes");
        };
        let said = Arc::new(Mutex::new(Said::default()));
        let running = Running {
            name,
            process,
            input,
            said: Arc::clone(&said),
        };
        group.admit(running.id())?;
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                if let Ok(now) = serde_json::from_str(&line) {
                    *said.lock().unwrap_or_else(PoisonError::into_inner) = now;
                }
            }
        });
        Ok(running)
    }

    /// Lets it begin.
    pub(super) fn begin(&mut self) -> Result<()> {
        writeln!(self.input, "go").with_context(|| format!("\"{}\" has ended", self.name))
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it said last.
    pub(super) fn said(&self) -> Said {
        self.said
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether it says that it is ready.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn is_ready(&mut self) -> Result<bool> {
        self.check()?;
        Ok(self.said().is_ready)
    }

    /// Whether it has ended as it should.
    ///
    /// # Errors
    /// It was killed or has failed.
    pub(super) fn is_finished(&mut self) -> Result<bool> {
        match self.process.try_wait()? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => Err(anyhow!("the process \"{}\" ended: {status}", self.name)),
        }
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        if self.is_finished()? {
            bail!("the process \"{}\" ended too early", self.name);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Both processes.
pub(super) struct Children {
    pub(super) store: Running,
    pub(super) neighbour: Running,
}

impl Children {
    /// Starts both, in the group. The store begins, the neighbour waits.
    pub(super) fn start(args: &Args, group: &MemoryGroup, dir: &Path) -> Result<Children> {
        let mut store = Running::start("lookups", group, |command| {
            command.arg("--dir").arg(dir);
            if let Some(root) = group.simulated_root() {
                command.arg("--system-root").arg(root);
            }
            for (name, value) in [
                ("--data", args.data.to_string()),
                ("--value-bytes", args.value_bytes.to_string()),
                ("--batch", args.batch.to_string()),
                ("--access", args.access.to_string()),
            ] {
                command.arg(name).arg(value);
            }
        })?;
        let neighbour = Running::start("neighbour", group, |command| {
            for (name, value) in [
                ("--bytes", args.neighbour as u64),
                ("--rate", args.neighbour_rate as u64),
                ("--free-s", args.free_s),
                ("--hold-s", args.hold_s),
                ("--cycles", args.cycles),
            ] {
                command.arg(name).arg(value.to_string());
            }
        })?;
        store.begin()?;
        Ok(Children { store, neighbour })
    }

    /// What both use, without cached files.
    pub(super) fn resident_bytes(&self) -> u64 {
        let each = [self.store.id(), self.neighbour.id()];
        each.into_iter().filter_map(resident_bytes_of).sum()
    }
}
