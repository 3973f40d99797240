//! The process that takes memory and frees it.

use super::Phase;
use super::children::{Said, await_parent};
use anyhow::Result;
use std::time::{Duration, Instant};

/// Memory that is allocated at once. The C library returns blocks of this size to the system as
/// soon as they are freed, which need not be so for smaller ones.
const BLOCK_BYTES: usize = 64 << 20;

/// Memory that is touched between two looks at the clock.
const STEP_BYTES: usize = 1 << 20;

/// What the process does.
#[derive(clap::Args, Clone, Debug)]
pub struct NeighbourArgs {
    #[arg(long)]
    bytes: usize,
    /// Bytes per second.
    #[arg(long)]
    rate: u64,
    #[arg(long)]
    free_s: u64,
    #[arg(long)]
    hold_s: u64,
    #[arg(long)]
    cycles: u64,
}

pub(super) fn run(args: &NeighbourArgs) -> Result<()> {
    await_parent()?;
    let free = Duration::from_secs(args.free_s);
    for _ in 0..args.cycles {
        say(Phase::Free)?;
        std::thread::sleep(free);
        say(Phase::Taking)?;
        let taken = take(args.bytes, args.rate);
        say(Phase::Holding)?;
        std::thread::sleep(Duration::from_secs(args.hold_s));
        drop(taken);
    }
    say(Phase::Free)?;
    std::thread::sleep(free);
    Ok(())
}

fn say(phase: Phase) -> Result<()> {
    Said {
        phase,
        ..Said::default()
    }
    .say()
}

/// Takes memory at this rate.
fn take(bytes: usize, rate: u64) -> Vec<Vec<u8>> {
    let (begun, mut touched, mut blocks) = (Instant::now(), 0_u64, Vec::new());
    let mut left = bytes;
    while left > 0 {
        // Zeros that are not resident before they are written to.
        let mut block = vec![0_u8; left.min(BLOCK_BYTES)];
        left -= block.len();
        for step in block.chunks_mut(STEP_BYTES) {
            step.fill(1);
            touched += step.len() as u64;
            let due = Duration::from_secs_f64(touched as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
        // Otherwise nobody would read it, and it need not be written.
        blocks.push(std::hint::black_box(block));
    }
    blocks
}
