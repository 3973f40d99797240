//! The demo's temporary directory, which is removed however the demo ends.
//!
//! ```text
//!   end, error   ──> drop: close the signals, remove the directory
//!   SIGINT, ...  ──> thread: remove the directory, end the process as the signal would
//! ```

use std::path::Path;
use std::thread;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use tempfile::TempDir;

/// A temporary directory. It is removed when this is dropped, or when a signal ends the process.
pub(super) struct Directory {
    directory: TempDir,
    signals: Handle,
}

impl Directory {
    pub(super) fn new() -> anyhow::Result<Directory> {
        let directory = tempfile::Builder::new().prefix("forerun-demo-").tempdir();
        let directory = directory.context("cannot create a temporary directory")?;
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
        let (handle, path) = (signals.handle(), directory.path().to_owned());
        let remove = move || {
            if let Some(signal) = signals.forever().next() {
                remove_all(&path);
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        };
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(remove)
            .context("cannot start a thread")?;
        Ok(Directory {
            directory,
            signals: handle,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.signals.close();
    }
}

/// Removes a directory in which other threads may still create files.
fn remove_all(path: &Path) {
    for _ in 0..100 {
        if std::fs::remove_dir_all(path).is_ok() || !path.exists() {
            break;
        }
    }
}
