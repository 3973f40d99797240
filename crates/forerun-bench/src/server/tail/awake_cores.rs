//! Loops of idle priority that keep cores awake during the study.
//!
//! A virtual core that has nothing to do is given back to the host, and a server that is woken then
//! waits for the host to run it again: for milliseconds, which is more than either server takes for
//! anything. The waits would hit the server that sleeps more, whatever it does with its time. A
//! loop in the scheduling class `SCHED_IDLE` runs only while a core has nothing else to do, and
//! gives it up at once.

use std::process::{Child, Command, Stdio};

use super::server_process::spawn_on;

/// Ends by itself when the process that started it is gone.
const LOOP: &str = "while kill -0 \"$PPID\" 2>/dev/null; do :; done";

/// The loops, which end when this is dropped.
pub(super) struct AwakeCores(Vec<Child>);

impl AwakeCores {
    /// Starts a loop on each core. There are none where `chrt` is missing or refused.
    pub(super) fn start(cores: impl Iterator<Item = usize>) -> AwakeCores {
        let start = |core| {
            let mut command = Command::new("chrt");
            command
                .args(["--idle", "0", "/bin/sh", "-c", LOOP])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            spawn_on(command, &[core]).ok()
        };
        AwakeCores(cores.filter_map(start).collect())
    }

    /// What the study says of the cores.
    pub(super) fn fact(&mut self) -> (String, String) {
        let runs = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        let awake = if !self.0.is_empty() && self.0.iter_mut().all(runs) {
            "yes, by loops of idle priority"
        } else {
            "no: the tails contain the time in which cores wake up"
        };
        ("kept awake".to_owned(), awake.to_owned())
    }
}

impl Drop for AwakeCores {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A loop that has already ended cannot be killed, but is still waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// The scheduling class in `/proc/PID/stat`, field 41; `SCHED_IDLE` is 5.
    fn policy(child: &Child) -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_whitespace().nth(38)?.parse().ok()
    }

    #[test]
    fn a_loop_has_idle_priority_and_ends_with_the_study() {
        let mut awake = AwakeCores::start(0..1);
        let Some(child) = awake.0.first() else {
            eprintln!("skipped: there is no chrt");
            return;
        };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while policy(child) != Some(5) && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(policy(child), Some(5));
        let path = format!("/proc/{}", child.id());
        assert!(awake.fact().1.starts_with("yes"));
        drop(awake);
        assert!(!std::fs::exists(path).unwrap());
    }
}
