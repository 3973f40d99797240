//! Forks the test process and reports how the child ended. Shared by the tests of several crates.

use std::fs::File;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A child that takes longer than this counts as hanging.
const CHILD_SECONDS: u32 = 60;

/// How a child ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// At once, without dropping anything.
    AtOnce,
    /// By `exit`, which runs the destructors of thread locals and `atexit` handlers.
    #[allow(dead_code, reason = "not every test binary uses it")]
    Exit,
}

/// A running child.
pub struct Child {
    process: i32,
    reported: File,
}

/// Runs `work` in a child process. Panics if the child panics, is killed by a signal, or hangs.
pub fn in_child(ending: Ending, work: impl FnOnce()) {
    begin(ending, work).wait();
}

/// Starts running `work` in a child process.
pub fn begin(ending: Ending, work: impl FnOnce()) -> Child {
    let mut ends = [0; 2];
    // SAFETY: the call writes two descriptors, and `ends` has space for two.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the child continues with a copy of this thread only. It uses what a handle's owner
    // may use in a child: allocation, which the C library keeps usable across a fork, and the calls
    // under test.
    let process = unsafe { libc::fork() };
    assert!(process >= 0, "{}", std::io::Error::last_os_error());
    if process > 0 {
        // SAFETY: this process owns the descriptor, and nothing else uses it.
        unsafe { libc::close(ends[1]) };
        // SAFETY: as above.
        let reported = unsafe { File::from_raw_fd(ends[0]) };
        return Child { process, reported };
    }
    // SAFETY: it sets this process's alarm, which kills the process by a signal.
    unsafe { libc::alarm(CHILD_SECONDS) };
    let result = catch_unwind(AssertUnwindSafe(work));
    if let Err(panic) = &result {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        // SAFETY: this process owns the descriptor, and nothing else uses it.
        let mut tell = ManuallyDrop::new(unsafe { File::from_raw_fd(ends[1]) });
        let _ = tell.write_all(text.unwrap_or("a panic without words").as_bytes());
    }
    let code = i32::from(result.is_err());
    match ending {
        // SAFETY: the child ends here without running anything else.
        Ending::AtOnce => unsafe { libc::_exit(code) },
        // SAFETY: the child ends here. It has one thread, so nothing races with its exit handlers.
        Ending::Exit => unsafe { libc::exit(code) },
    }
}

impl Child {
    /// Its process ID.
    #[allow(dead_code, reason = "not every test binary asks")]
    pub fn process(&self) -> u32 {
        self.process as u32
    }

    /// Waits until it ends.
    pub fn wait(mut self) {
        let mut status = 0;
        loop {
            // SAFETY: `status` has space for what the call writes. The child is ours and has not
            // been waited for.
            let waited = unsafe { libc::waitpid(self.process, &raw mut status, 0) };
            if waited == self.process {
                break;
            }
            let error = std::io::Error::last_os_error();
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}");
        }
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
            return;
        }
        // A single read instead of reading to the end, because a grandchild may hold the other end,
        // too. A child that was killed has written nothing.
        let mut said = [0; 4096];
        let len = if libc::WIFEXITED(status) {
            self.reported.read(&mut said).unwrap_or(0)
        } else {
            0
        };
        panic!(
            "the child ended with status {status:#x} (signal {}): {}",
            libc::WTERMSIG(status),
            String::from_utf8_lossy(&said[..len])
        );
    }
}
