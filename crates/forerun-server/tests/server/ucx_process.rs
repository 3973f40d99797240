//! Processes that a test starts, and what they use.

#![allow(dead_code, reason = "each test uses a part")]

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A child of this test, killed when it is dropped.
pub struct Process {
    pub child: Child,
    pub said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Runs a test of this executable.
    pub fn start(test: &str, environment: &[(&str, &str)]) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this executable"));
        command
            .args(["--exact", "--nocapture", test])
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Process { child, said }
    }

    /// What it says after this word.
    pub fn says(&mut self, word: &str) -> String {
        loop {
            let line = self.said.next().expect("it runs").expect("text");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Lets it end, and waits for that.
    pub fn leave(mut self) {
        drop(self.child.stdin.take());
        let ended = self.child.wait().expect("it ends");
        assert!(ended.success(), "{ended}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process uses.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Memory of its own.
    pub own_bytes: u64,
    /// Memory that it shares with others: the segments of UCX.
    pub shared_bytes: u64,
    pub descriptors: usize,
    /// Segments of UCX that it maps.
    pub segments: usize,
}

impl Usage {
    pub fn of(process: u32) -> Usage {
        let text = |name: &str| {
            let path = format!("/proc/{process}/{name}");
            std::fs::read_to_string(path).expect("Linux tells")
        };
        let status = text("status");
        let bytes_of = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.expect("a line").trim().trim_end_matches(" kB");
            kib.parse::<u64>().expect("a number") << 10
        };
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd"));
        let maps = text("maps");
        Usage {
            own_bytes: bytes_of("RssAnon:"),
            shared_bytes: bytes_of("RssShmem:"),
            descriptors: descriptors.expect("Linux tells").count(),
            segments: maps.lines().filter(|line| line.contains("ucx_shm")).count(),
        }
    }
}
