//! Runs the built `forerun-bench` in the test's own directory.

// Each test file is a separate program and uses only a part of this.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory that is removed when the test ends, and the command run within it.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place {
            dir: tempfile::tempdir().expect("a temporary directory can be made"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file there.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> &Place {
        std::fs::write(self.path(name), content).expect("a file can be written");
        self
    }

    /// Runs `forerun-bench` with these arguments; returns its exit code, standard output and
    /// standard error.
    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_forerun-bench"))
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()
            .expect("forerun-bench can be started");
        let text = |bytes| String::from_utf8(bytes).expect("what it prints is UTF-8");
        // No code: a signal ended it, which no test here expects.
        let code = output.status.code().unwrap_or(-1);
        (code, text(output.stdout), text(output.stderr))
    }

    /// Runs `forerun-bench`, expects it to succeed, and returns what it printed.
    pub fn succeeds(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(args);
        assert_eq!(code, 0, "{args:?}: {stdout}{stderr}");
        stdout
    }

    /// Runs `forerun-bench`, expects it to fail with this exit code and a single error line, and
    /// returns that line.
    pub fn fails(&self, expected: i32, args: &[&str]) -> String {
        let (code, _, stderr) = self.run(args);
        assert_eq!(code, expected, "{args:?}: {stderr}");
        let lines: Vec<&str> = stderr.lines().collect();
        assert!(
            lines.len() == 1 && lines[0].starts_with("forerun-bench: "),
            "not one worded line: {stderr}"
        );
        lines[0].to_owned()
    }
}

/// The files of a directory, sorted by name.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("the directory can be read");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("it can be read").path())
        .collect();
    files.sort();
    files
}
