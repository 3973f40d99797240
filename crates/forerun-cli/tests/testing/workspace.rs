//! Runs a built command in a temporary directory of the test. The tests of `forerun-bench` use this
//! file, too.

use super::{NAME, PROGRAM};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory that is removed when the test ends. Commands run in it.
pub struct Workspace {
    dir: tempfile::TempDir,
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Workspace {
    pub fn new() -> Workspace {
        Workspace {
            dir: tempfile::tempdir().expect("a temporary directory can be made"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file into the directory.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> &Workspace {
        std::fs::write(self.path(name), content).expect("a file can be written");
        self
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs the command with these arguments.
    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::from(
            self.command(args)
                .output()
                .expect("the command can be started"),
        )
    }

    /// Runs the command with these arguments and this standard input.
    pub fn run_with_input(&self, args: &[&str], input: &[u8]) -> Ran {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command can be started");
        let mut stdin = child.stdin.take().expect("it was asked for");
        std::thread::scope(|scope| {
            // A command that stops at a bad line does not read the rest.
            scope.spawn(move || drop(stdin.write_all(input)));
            Ran::from(
                child
                    .wait_with_output()
                    .expect("the command can be waited for"),
            )
        })
    }

    /// Runs the command, expects success, and returns its output.
    pub fn succeeds(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        ran.text()
    }

    /// Runs the command, expects it to fail with `code` and a single worded line, and returns that
    /// line.
    pub fn fails(&self, code: i32, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
        ran.complaint()
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            // No code means that a signal ended the process, which no test expects.
            code: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("what is printed for reading is UTF-8")
    }

    /// The single line on standard error. Every error must be one worded line, not a panic.
    pub fn complaint(&self) -> String {
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert!(
            lines.len() == 1 && lines[0].starts_with(&format!("{NAME}: ")),
            "not one worded line: {}",
            self.stderr
        );
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
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
