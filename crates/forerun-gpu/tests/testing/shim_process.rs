//! A device for tests: the kernels' own sources, compiled for the host, in a process that is driven
//! through a pipe. `tests/testing/kernel_server.h` is the other side and describes the protocol.

use crate::testing::programs;
use std::io::{Read, Result, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

struct Pipe {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
}

pub struct ShimProcess(Mutex<Pipe>);

/// The block size of a launch, and how it is scheduled.
#[derive(Clone, Copy, Debug)]
pub struct ShimLaunch {
    pub threads: u32,
    pub shared_bytes: u32,
    /// Blocks that run at the same time.
    pub resident: u32,
    pub seed: u64,
}

impl ShimProcess {
    /// Returns `None` without a C++ compiler, which has been reported by then.
    pub fn start(program: &str) -> Option<ShimProcess> {
        let mut child = Command::new(programs()?.join(program))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .env(
                "ASAN_OPTIONS",
                "detect_leaks=0:detect_stack_use_after_return=0",
            )
            .env("UBSAN_OPTIONS", "print_stacktrace=1")
            .spawn()
            .expect("a program that was just built");
        let to = child.stdin.take().expect("it is piped");
        let from = child.stdout.take().expect("it is piped");
        Some(ShimProcess(Mutex::new(Pipe { child, to, from })))
    }

    fn talk<T>(&self, talk: impl FnOnce(&mut Pipe) -> Result<T>) -> T {
        let mut pipe = self.0.lock().expect("no test continues after a panic");
        talk(&mut pipe).expect("the kernels' process has ended: see its message above")
    }

    /// Launches kernels at the same time, each on its own blocks: names, blocks and arguments.
    /// Returns the failure, which is empty if there was none.
    pub fn launch(&self, launch: ShimLaunch, kernels: &[(&str, u32, Vec<u8>)]) -> String {
        self.talk(|pipe| {
            pipe.to.write_all(b"l")?;
            for word in [launch.threads, launch.shared_bytes, launch.resident] {
                pipe.to.write_all(&word.to_ne_bytes())?;
            }
            pipe.to.write_all(&launch.seed.to_ne_bytes())?;
            pipe.to.write_all(&(kernels.len() as u32).to_ne_bytes())?;
            for (name, blocks, argument) in kernels {
                let mut padded = [0; 32];
                padded[..name.len()].copy_from_slice(name.as_bytes());
                pipe.to.write_all(&padded)?;
                pipe.to.write_all(&blocks.to_ne_bytes())?;
                pipe.to.write_all(argument)?;
            }
            pipe.to.flush()?;
            let mut length = [0; 4];
            pipe.from.read_exact(&mut length)?;
            let mut text = vec![0; u32::from_ne_bytes(length) as usize];
            pipe.from.read_exact(&mut text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        })
    }

    /// Allocates bytes, which are poisoned or zeros.
    pub fn allocate(&self, bytes: u64, zeroed: bool) -> u64 {
        self.talk(|pipe| {
            pipe.to.write_all(b"a")?;
            pipe.to.write_all(&bytes.to_ne_bytes())?;
            pipe.to.flush()?;
            let mut address = [0; 8];
            pipe.from.read_exact(&mut address)?;
            if zeroed {
                pipe.to.write_all(b"z")?;
                pipe.to.write_all(&address)?;
                pipe.to.write_all(&bytes.to_ne_bytes())?;
            }
            Ok(u64::from_ne_bytes(address))
        })
    }

    pub fn free(&self, address: u64) {
        // After a failed test the process may be gone.
        if let Ok(mut pipe) = self.0.lock() {
            let _ = pipe.to.write_all(b"f");
            let _ = pipe.to.write_all(&address.to_ne_bytes());
        }
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.talk(|pipe| {
            pipe.to.write_all(b"w")?;
            pipe.to.write_all(&address.to_ne_bytes())?;
            pipe.to.write_all(&(bytes.len() as u64).to_ne_bytes())?;
            pipe.to.write_all(bytes)
        });
    }

    pub fn read(&self, address: u64, bytes: &mut [u8]) {
        self.talk(|pipe| {
            pipe.to.write_all(b"r")?;
            pipe.to.write_all(&address.to_ne_bytes())?;
            pipe.to.write_all(&(bytes.len() as u64).to_ne_bytes())?;
            pipe.to.flush()?;
            pipe.from.read_exact(bytes)
        });
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // The process exits at the end of its input. A test that failed in the middle of an
        // exchange cannot wait for that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
