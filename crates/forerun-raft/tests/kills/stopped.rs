//! Stops a process for a while.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// A process that continues when this is dropped.
pub struct Stopped {
    process: Pid,
}

/// Stops a process with SIGSTOP.
pub fn stop(process: &std::process::Child) -> anyhow::Result<Stopped> {
    let process = Pid::from_child(process);
    kill_process(process, Signal::STOP)?;
    let stopped = Stopped { process };
    // Its threads run on until the signal has reached each of them.
    waitid(WaitId::Pid(process), WaitIdOptions::STOPPED)?;
    Ok(stopped)
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // If this fails, the process has ended.
        let _ = kill_process(self.process, Signal::CONT);
    }
}
