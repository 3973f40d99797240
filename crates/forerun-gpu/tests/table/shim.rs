//! A device for tests: the kernels' own sources, compiled for the host, in a process that is driven
//! through a pipe. `tests/kernels/table_server.cpp` is the other side and describes the protocol.

use crate::testing::programs;
use forerun_gpu::Gpu;
use forerun_gpu::table::params::TableOp;
use forerun_gpu::table::{Backend, BufferKind, TableError, TableLaunch};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

/// How kernels are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One warp, which processes keys that share a bucket in batch order.
    OneWarp,
    /// Several blocks, with a seed that changes on every launch.
    Seeded(u64),
}

struct Pipe {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
    launches: u64,
}

pub struct Shim {
    pipe: Mutex<Pipe>,
    order: Order,
}

impl Shim {
    /// Returns `None` without a C++ compiler, which has been reported by then.
    pub fn start(order: Order) -> Option<Arc<Shim>> {
        let mut child = Command::new(programs()?.join("table"))
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
        Some(Arc::new(Shim {
            pipe: Mutex::new(Pipe {
                child,
                to,
                from,
                launches: 0,
            }),
            order,
        }))
    }

    fn talk<T>(&self, talk: impl FnOnce(&mut Pipe) -> std::io::Result<T>) -> T {
        let mut pipe = self.pipe.lock().expect("no test continues after a panic");
        talk(&mut pipe).expect("the kernels' process has ended: see its message above")
    }

    /// Launches kernels at the same time, each on its own blocks. Panics with the failure.
    pub fn beside(&self, threads: u32, seed: u64, kernels: &[(&str, u32, TableOp)]) {
        let failure = self.talk(|pipe| {
            pipe.to.write_all(b"l")?;
            let shared_bytes = threads * 128;
            for word in [threads, shared_bytes, 2 + (seed % 3) as u32] {
                pipe.to.write_all(&word.to_ne_bytes())?;
            }
            pipe.to.write_all(&seed.to_ne_bytes())?;
            pipe.to.write_all(&(kernels.len() as u32).to_ne_bytes())?;
            for (name, blocks, op) in kernels {
                let mut padded = [0; 32];
                padded[..name.len()].copy_from_slice(name.as_bytes());
                pipe.to.write_all(&padded)?;
                pipe.to.write_all(&blocks.to_ne_bytes())?;
                pipe.to.write_all(&op_bytes(op))?;
            }
            pipe.to.flush()?;
            let mut length = [0; 4];
            pipe.from.read_exact(&mut length)?;
            let mut text = vec![0; u32::from_ne_bytes(length) as usize];
            pipe.from.read_exact(&mut text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        });
        assert!(failure.is_empty(), "{kernels:?}, seed {seed}: {failure}");
    }

    /// A new array on the device.
    pub fn array(&self, bytes: &[u8]) -> u64 {
        let address = self
            .allocate(bytes.len() as u64, BufferKind::Device)
            .expect("it allocates");
        self.write(address, bytes).expect("it writes");
        address
    }
}

fn op_bytes(op: &TableOp) -> Vec<u8> {
    let t = &op.table;
    let mut bytes = Vec::with_capacity(size_of::<TableOp>());
    let mut words = |all: &[u64]| all.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    words(&[
        t.digests,
        t.keys,
        t.scores,
        t.words,
        t.pins,
        t.control,
        t.rows,
        t.rows_host,
    ]);
    words(&[t.rows_split, t.buckets, t.row_bytes, t.row_stride_bytes]);
    let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    const { assert!(cfg!(target_endian = "little")) };
    words(&[pair(t.width, t.candidates), pair(t.score_bytes, t.policy)]);
    words(&[
        op.count,
        op.keys,
        op.rows_in,
        op.rows_out,
        op.scores_in,
        op.scores_out,
    ]);
    words(&[
        op.slots_out,
        op.pointers_out,
        op.status_out,
        op.flags,
        op.out_count,
        op.out_keys,
    ]);
    words(&[
        op.out_rows,
        op.out_scores,
        op.out_places,
        op.epoch,
        op.first_slot,
    ]);
    words(&[op.score_min, op.score_max, op.key_mask, op.key_value]);
    words(&[
        pair(op.actions, op.scan),
        pair(op.element, op.lookup),
        pair(op.concurrent_writers, op.row_format),
        op.count_at,
    ]);
    words(&[op.bags, op.offsets, op.weights, op.found_out, op.sums]);
    words(&[pair(op.pooling, op.output)]);
    assert_eq!(bytes.len(), size_of::<TableOp>());
    bytes
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // The process exits at the end of its input. A test that failed in the middle of an
        // exchange cannot wait for that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Backend for Shim {
    fn allocate(&self, bytes: u64, kind: BufferKind) -> Result<u64, TableError> {
        Ok(self.talk(|pipe| {
            pipe.to.write_all(b"a")?;
            pipe.to.write_all(&bytes.to_ne_bytes())?;
            pipe.to.flush()?;
            let mut address = [0; 8];
            pipe.from.read_exact(&mut address)?;
            if kind == BufferKind::Zeroed {
                pipe.to.write_all(b"z")?;
                pipe.to.write_all(&address)?;
                pipe.to.write_all(&bytes.to_ne_bytes())?;
            }
            Ok(u64::from_ne_bytes(address))
        }))
    }

    fn free(&self, address: u64) {
        // After a failed test the process may be gone.
        if let Ok(mut pipe) = self.pipe.lock() {
            let _ = pipe.to.write_all(b"f");
            let _ = pipe.to.write_all(&address.to_ne_bytes());
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), TableError> {
        self.talk(|pipe| {
            pipe.to.write_all(b"w")?;
            pipe.to.write_all(&address.to_ne_bytes())?;
            pipe.to.write_all(&(bytes.len() as u64).to_ne_bytes())?;
            pipe.to.write_all(bytes)
        });
        Ok(())
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), TableError> {
        self.talk(|pipe| {
            pipe.to.write_all(b"r")?;
            pipe.to.write_all(&address.to_ne_bytes())?;
            pipe.to.write_all(&(bytes.len() as u64).to_ne_bytes())?;
            pipe.to.flush()?;
            pipe.from.read_exact(bytes)
        });
        Ok(())
    }

    fn launch(&self, launch: TableLaunch, op: &TableOp) -> Result<(), TableError> {
        let launches = self.talk(|pipe| {
            pipe.launches += 1;
            Ok(pipe.launches)
        });
        match self.order {
            Order::OneWarp => self.beside(32, launches, &[(launch.kernel, 1, *op)]),
            Order::Seeded(seed) => {
                let seed = seed.wrapping_mul(1_000_003).wrapping_add(launches);
                let threads = if seed.is_multiple_of(2) { 32 } else { 64 };
                let blocks = 1 + (seed / 2 % 3) as u32;
                self.beside(threads, seed, &[(launch.kernel, blocks, *op)]);
            }
        }
        Ok(())
    }

    fn blocks_max(&self) -> u32 {
        4
    }

    fn gpu(&self) -> Option<&Gpu> {
        None
    }
}
