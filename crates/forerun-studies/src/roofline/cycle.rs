//! A buffer whose lines are linked into one cycle, and the loop that follows it.
//!
//! ```text
//!   line 0     line 1     line 2     ...            each line's first word: the byte offset of the next one
//!  +--------+ +--------+ +--------+
//!  | next o-+-|-> ...  | | ...    |                 one cycle through all lines, in an order no prefetcher
//!  +--------+ +--------+ +--------+                 guesses: the p-th line of the cycle is Order::line(p)
//! ```

use super::Buffer;
use forerun_core::arch::CACHE_LINE_BYTES;
use forerun_core::region::{Pages, Region, RegionError};
use forerun_core::sync::{Barrier, thread};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// A buffer whose lines are linked into one cycle.
pub(super) struct Cycle {
    region: Region,
    pub(super) pages: Pages,
    order: Order,
}

impl Cycle {
    pub(super) fn new(buffer_bytes: usize, pages: Pages) -> Result<Cycle, RegionError> {
        let order = Order::new((buffer_bytes / CACHE_LINE_BYTES).ilog2());
        let region = Region::new(order.lines() * CACHE_LINE_BYTES, pages)?;
        // Write line after line, not along the cycle: this is sequential and touches every page.
        for line in 0..order.lines() {
            let next = order.line(order.position(line) + 1);
            // SAFETY: line is below lines(), so the word lies inside the region, which is aligned
            // to more than a word and which nothing else uses yet.
            unsafe {
                let word = region.as_ptr().add(line * CACHE_LINE_BYTES).cast::<usize>();
                word.write(next * CACHE_LINE_BYTES);
            }
        }
        Ok(Cycle {
            region,
            pages,
            order,
        })
    }

    pub(super) fn buffer(&self) -> Buffer {
        Buffer {
            pages: self.pages,
            backing: self.region.backing(),
            len_bytes: self.region.len(),
            huge_bytes: self.region.huge_bytes(),
        }
    }

    /// Where the chases of all threads start in one round, as byte offsets. They are evenly spread
    /// over the cycle. Each round is shifted by a step that does not repeat an earlier start for a
    /// long time.
    fn starts(&self, chases: usize, round: usize) -> Vec<usize> {
        let shift = round.wrapping_mul(0x9e37_79b9 | 1) % self.order.lines();
        (0..chases)
            .map(|chase| {
                self.order
                    .line(chase * (self.order.lines() / chases) + shift)
            })
            .map(|line| line * CACHE_LINE_BYTES)
            .collect()
    }

    /// Lines per second of `threads` threads with `in_flight` chases each, over about `duration`.
    pub(super) fn rate(
        &self,
        threads: usize,
        in_flight: usize,
        round: usize,
        duration: Duration,
    ) -> f64 {
        let starts = self.starts(threads * in_flight, round);
        // Ask here, because a pinned thread sees only its own core.
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let barrier = Barrier::new(threads);
        thread::scope(|scope| {
            let mut handles = Vec::new();
            for (thread, starts) in starts.chunks(in_flight).enumerate() {
                let core = cores.get(thread % cores.len().max(1)).copied();
                let barrier = &barrier;
                handles.push(scope.spawn(move || {
                    core.map(core_affinity::set_for_current);
                    barrier.wait();
                    self.chase(starts, duration)
                }));
            }
            // A chase that panicked counts as no lines; it has no reason to panic.
            let rates = handles.into_iter().map(|handle| handle.join());
            rates.map(|rate| rate.unwrap_or(0.0)).sum()
        })
    }

    /// One thread's lines per second.
    fn chase(&self, starts: &[usize], duration: Duration) -> f64 {
        match starts.len() {
            1 => self.chase_all::<1>(starts, duration),
            2 => self.chase_all::<2>(starts, duration),
            4 => self.chase_all::<4>(starts, duration),
            8 => self.chase_all::<8>(starts, duration),
            16 => self.chase_all::<16>(starts, duration),
            32 => self.chase_all::<32>(starts, duration),
            64 => self.chase_all::<64>(starts, duration),
            other => unreachable!("{other} chases: Config::check lets only IN_FLIGHT pass"),
        }
    }

    fn chase_all<const N: usize>(&self, starts: &[usize], duration: Duration) -> f64 {
        /// Lines between two reads of the clock: well under a millisecond of independent misses.
        const LOOK_LINES: usize = 8192;
        let mut at: [usize; N] = std::array::from_fn(|chase| starts[chase]);
        let base = self.region.as_ptr();
        let mut lines = 0u64;
        let start = Instant::now();
        loop {
            for _ in 0..LOOK_LINES / N {
                for at in &mut at {
                    // SAFETY: starts and every linked offset are a line's offset inside the region;
                    // the word was written by new() and is only read since.
                    *at = unsafe { base.add(*at).cast::<usize>().read() };
                }
            }
            lines += (LOOK_LINES / N * N) as u64;
            let elapsed = start.elapsed();
            if elapsed >= duration {
                black_box(at);
                return lines as f64 / elapsed.as_secs_f64();
            }
        }
    }
}

/// A bijection between positions on the cycle and lines, over a power of two: multiply by an odd
/// number, fold the high half onto the low half, and both once more.
struct Order {
    bits: u32,
}

impl Order {
    const FIRST: usize = 0x9e37_79b9_7f4a_7c15_u64 as usize;
    const SECOND: usize = 0xbf58_476d_1ce4_e5b9_u64 as usize;

    fn new(bits: u32) -> Order {
        Order { bits }
    }

    fn lines(&self) -> usize {
        1 << self.bits
    }

    /// The line at a position, taken modulo the number of lines.
    fn line(&self, position: usize) -> usize {
        let once = self.fold(position.wrapping_mul(Self::FIRST));
        self.fold(once.wrapping_mul(Self::SECOND))
    }

    /// The position of a line: the inverse of [`Order::line`], step by step.
    fn position(&self, line: usize) -> usize {
        const FIRST_INVERSE: usize = odd_inverse(Order::FIRST);
        const SECOND_INVERSE: usize = odd_inverse(Order::SECOND);
        let once = self.fold(line).wrapping_mul(SECOND_INVERSE);
        self.fold(once).wrapping_mul(FIRST_INVERSE) & (self.lines() - 1)
    }

    /// Folds the high half of the low `bits` onto the low half, and clears the rest. Applied twice,
    /// it changes nothing, because bits that are shifted twice are dropped.
    fn fold(&self, value: usize) -> usize {
        let value = value & (self.lines() - 1);
        value ^ (value >> self.bits.div_ceil(2).max(1))
    }
}

/// The inverse of an odd number modulo the word. Each Newton step doubles the number of correct
/// bits, which is three at the start for an odd number.
const fn odd_inverse(odd: usize) -> usize {
    let mut inverse = odd;
    let mut correct_bits = 3;
    while correct_bits < usize::BITS {
        inverse = inverse.wrapping_mul(2usize.wrapping_sub(odd.wrapping_mul(inverse)));
        correct_bits *= 2;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_links_form_one_cycle_through_every_line() {
        for lines in [1usize, 2, 4, 8, 32, 1 << 10, 1 << 15] {
            let cycle = Cycle::new(lines * CACHE_LINE_BYTES, Pages::Small).unwrap();
            let mut seen = vec![false; lines];
            let mut at = 0;
            for _ in 0..lines {
                assert!(!std::mem::replace(&mut seen[at / CACHE_LINE_BYTES], true));
                // SAFETY: the links lead to lines of this region.
                at = unsafe { cycle.region.as_ptr().add(at).cast::<usize>().read() };
            }
            assert_eq!(at, 0, "the walk closes after {lines} lines");
        }
    }

    #[test]
    fn successive_lines_are_far_apart() {
        let order = Order::new(16);
        let near = (0..order.lines()).filter(|&position| {
            let (here, next) = (order.line(position), order.line(position + 1));
            here.abs_diff(next) < 64
        });
        // A random order has 1 in 512 there.
        assert!(near.count() < order.lines() / 256);
    }

    #[test]
    fn chases_start_at_distinct_lines_every_round() {
        let cycle = Cycle::new(1 << 20, Pages::Small).unwrap();
        for round in 0..3 {
            let mut starts = cycle.starts(128, round);
            assert!(
                starts
                    .iter()
                    .all(|at| at % CACHE_LINE_BYTES == 0 && *at < 1 << 20)
            );
            starts.sort_unstable();
            starts.dedup();
            assert_eq!(starts.len(), 128);
        }
        assert_ne!(cycle.starts(2, 0), cycle.starts(2, 1));
    }
}
