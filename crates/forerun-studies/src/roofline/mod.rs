//! Measures how fast this machine reads random cache lines. That rate is the upper bound for
//! batched lookups.
//!
//! The lines of a buffer are linked into one cycle in random order. A *chase* follows the cycle:
//! each load reads the address of the next one, so one chase pays the full latency for each line.
//! Several chases in one loop are independent, so their misses overlap. Their total rate, by the
//! number in flight, is the rate that the memory system gives a thread. Chases start far from each
//! other on the cycle, and elsewhere in every round, so no line is read again while a cache still
//! holds it.
//!
//! [`resume()`] measures the cost of suspending a lookup that has nothing to wait for.

mod cycle;
mod resume;

pub use resume::{Resume, resume};

use cycle::Cycle;
use forerun_core::arch::CACHE_LINE_BYTES;
use forerun_core::region::{Backing, Pages, RegionError};
use std::time::Duration;

/// The numbers of chases in flight that can be measured.
pub const IN_FLIGHT: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Maximum number of threads.
pub const THREADS_MAX: usize = 1024;

/// The measurements to make: all combinations of `pages`, `threads` and `in_flight`, called cells.
///
/// ```
/// use forerun_studies::roofline::{Config, measure};
///
/// let config = Config { threads: vec![1], ..Config::quick() };
/// let roofline = measure(&config, |_done, _total| ())?;
/// println!("{:.0} ns per line", roofline.cells[0].ns_per_line());
/// # Ok::<(), forerun_studies::roofline::RooflineError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Size of the buffer, rounded down to a power of two. There is one buffer for each entry of
    /// `pages`. The size should be many times that of the last-level cache.
    pub buffer_bytes: usize,
    /// Which pages to back buffers with.
    pub pages: Vec<Pages>,
    /// Numbers of threads that read the same buffer at the same time, each pinned to a core if the
    /// system allows it.
    pub threads: Vec<usize>,
    /// Numbers of chases in flight per thread, each one of [`IN_FLIGHT`].
    pub in_flight: Vec<usize>,
    /// Number of rounds. Every round measures every cell once, and a cell's result is the median of
    /// its rounds.
    pub rounds: usize,
    /// How long one cell is measured in one round.
    pub duration: Duration,
}

impl Default for Config {
    /// 1 GiB, both kinds of pages, one thread and one thread per core, all of [`IN_FLIGHT`], five
    /// rounds.
    fn default() -> Config {
        let cores = forerun_core::sync::thread::available_parallelism().map_or(1, usize::from);
        let mut threads = vec![1, cores];
        threads.dedup();
        Config {
            buffer_bytes: 1 << 30,
            pages: vec![Pages::Huge, Pages::Small],
            threads,
            in_flight: IN_FLIGHT.to_vec(),
            rounds: 5,
            duration: Duration::from_millis(50),
        }
    }
}

impl Config {
    /// A measurement with a buffer of 64 MiB, in a fraction of a second. The last-level cache may
    /// hold part of the buffer, so the figure is too high.
    pub fn quick() -> Config {
        Config {
            buffer_bytes: 64 << 20,
            rounds: 1,
            duration: Duration::from_millis(2),
            ..Config::default()
        }
    }

    fn check(&self) -> Result<(), RooflineError> {
        let lists = [
            ("pages", self.pages.len()),
            ("threads", self.threads.len()),
            ("in_flight", self.in_flight.len()),
            ("rounds", self.rounds),
        ];
        if let Some((name, _)) = lists.into_iter().find(|&(_, len)| len == 0) {
            return Err(RooflineError::Nothing { name });
        }
        if let Some(&asked) = self.in_flight.iter().find(|n| !IN_FLIGHT.contains(n)) {
            return Err(RooflineError::InFlight { asked });
        }
        let range = 1..=THREADS_MAX;
        if let Some(&asked) = self.threads.iter().find(|n| !range.contains(n)) {
            return Err(RooflineError::Threads { asked });
        }
        // Each chase needs a separate part of the cycle.
        let max_chases = |list: &[usize]| list.iter().copied().max().unwrap_or(1);
        let chases = max_chases(&self.threads) * max_chases(&self.in_flight);
        let needed_bytes = 2 * chases.next_power_of_two() * CACHE_LINE_BYTES;
        if self.buffer_bytes < needed_bytes {
            return Err(RooflineError::BufferTooSmall {
                buffer_bytes: self.buffer_bytes,
                needed_bytes,
            });
        }
        Ok(())
    }
}

/// Why nothing was measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RooflineError {
    /// A list is empty or a count is zero.
    #[error("nothing to measure: {name} is empty or zero")]
    Nothing {
        /// The field of [`Config`].
        name: &'static str,
    },
    /// This number of chases cannot be measured.
    #[error("{asked} chases in flight cannot be measured: use 1, 2, 4, 8, 16, 32 or 64")]
    InFlight {
        /// The number asked for.
        asked: usize,
    },
    /// This number of threads cannot be measured.
    #[error("{asked} threads cannot be measured: use 1 to {THREADS_MAX}")]
    Threads {
        /// The number asked for.
        asked: usize,
    },
    /// The buffer is too small: chases would overlap.
    #[error(
        "a buffer of {buffer_bytes} bytes is too small for so many chases: {needed_bytes} bytes \
         are needed"
    )]
    BufferTooSmall {
        /// The requested size.
        buffer_bytes: usize,
        /// The minimum size for these lists.
        needed_bytes: usize,
    },
    /// A buffer could not be allocated.
    #[error("the roofline's buffer: {0}")]
    Region(RegionError),
}

/// The message contains the cause, so it is not a source as well.
impl From<RegionError> for RooflineError {
    fn from(cause: RegionError) -> RooflineError {
        RooflineError::Region(cause)
    }
}

/// The results.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// The buffers, in the order of [`Config::pages`].
    pub buffers: Vec<Buffer>,
    /// The cells, ordered by pages, then threads, then chases in flight, each in [`Config`]'s
    /// order.
    pub cells: Vec<Cell>,
}

/// One buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The pages asked for.
    pub pages: Pages,
    /// The pages that the region got.
    pub backing: Backing,
    /// Its size: a power of two.
    pub len_bytes: usize,
    /// How many of its bytes the kernel backed with huge pages, if the system reports it.
    pub huge_bytes: Option<usize>,
}

/// The rate of random lines at one combination of pages, threads and chases in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The pages asked for.
    pub pages: Pages,
    /// Threads that read at the same time.
    pub threads: usize,
    /// Chases in flight per thread.
    pub in_flight: usize,
    /// Lines per second of all threads together: the median of the rounds.
    pub lines_per_second: f64,
    /// The slowest round.
    pub lines_per_second_min: f64,
    /// The fastest round.
    pub lines_per_second_max: f64,
}

impl Cell {
    /// Nanoseconds per line, as one thread sees it. With one chase in flight this is the latency of
    /// a dependent miss.
    pub fn ns_per_line(&self) -> f64 {
        1e9 * self.threads as f64 / self.lines_per_second
    }
}

impl Roofline {
    /// The latency of a dependent miss in nanoseconds: that of one thread with one chase, on the
    /// first kind of pages that was measured with these.
    pub fn dependent_ns(&self) -> Option<f64> {
        let cell = self
            .cells
            .iter()
            .find(|cell| cell.threads == 1 && cell.in_flight == 1)?;
        Some(cell.ns_per_line())
    }

    /// The highest rate of random lines that `threads` threads reached together, over all pages and
    /// chases in flight.
    pub fn lines_per_second(&self, threads: usize) -> Option<f64> {
        let rates = self.cells.iter().filter(|cell| cell.threads == threads);
        rates.map(|cell| cell.lines_per_second).reduce(f64::max)
    }
}

/// Measures every cell of `config`. Calls `progress(done, total)` after each measurement.
///
/// This takes about `rounds * cells * duration`, plus the time to fill the buffers (at most a
/// second per GiB).
///
/// # Errors
/// [`RooflineError`] if the configuration is invalid or a buffer cannot be allocated.
pub fn measure(
    config: &Config,
    mut progress: impl FnMut(usize, usize),
) -> Result<Roofline, RooflineError> {
    config.check()?;
    let cycles = config
        .pages
        .iter()
        .map(|&pages| Cycle::new(config.buffer_bytes, pages))
        .collect::<Result<Vec<Cycle>, RegionError>>()?;
    let mut shapes = Vec::new();
    for cycle in &cycles {
        for &threads in &config.threads {
            shapes.extend(config.in_flight.iter().map(|&n| (cycle, threads, n)));
        }
    }
    let total = config.rounds * shapes.len();
    let mut samples = vec![Vec::with_capacity(config.rounds); shapes.len()];
    for round in 0..config.rounds {
        for turn in 0..shapes.len() {
            // Each round starts with another cell, so that no cell always follows the same one.
            let at = (turn + round) % shapes.len();
            let (cycle, threads, in_flight) = shapes[at];
            samples[at].push(cycle.rate(threads, in_flight, round, config.duration));
            progress(round * shapes.len() + turn + 1, total);
        }
    }
    let cells = shapes.iter().zip(&mut samples).map(|(shape, samples)| {
        samples.sort_by(f64::total_cmp);
        Cell {
            pages: shape.0.pages,
            threads: shape.1,
            in_flight: shape.2,
            lines_per_second: samples[samples.len() / 2],
            lines_per_second_min: samples[0],
            lines_per_second_max: samples[samples.len() - 1],
        }
    });
    let cells = cells.collect();
    Ok(Roofline {
        buffers: cycles.iter().map(Cycle::buffer).collect(),
        cells,
    })
}

/// A buffer that is kept, so that measurements of random lines can alternate with others: on a
/// machine whose memory is shared with other tenants, the rate changes within minutes.
///
/// ```
/// use forerun_core::Pages;
/// use forerun_studies::roofline::Probe;
/// use std::time::Duration;
///
/// let probe = Probe::new(1 << 20, Pages::Huge)?;
/// let rate = probe.lines_per_second(1, 16, 0, Duration::from_micros(100))?;
/// assert!(rate > 0.0);
/// # Ok::<(), forerun_studies::roofline::RooflineError>(())
/// ```
pub struct Probe {
    cycle: Cycle,
    buffer_bytes: usize,
}

impl Probe {
    /// Allocates and fills a buffer, in about a second per GiB. Its size is rounded down to a power
    /// of two.
    ///
    /// # Errors
    /// [`RooflineError`] if the buffer is too small for a chase or cannot be allocated.
    pub fn new(buffer_bytes: usize, pages: Pages) -> Result<Probe, RooflineError> {
        Probe::config(buffer_bytes, 1, 1).check()?;
        let cycle = Cycle::new(buffer_bytes, pages)?;
        Ok(Probe {
            cycle,
            buffer_bytes,
        })
    }

    /// Random lines per second that `threads` threads read together, each with `in_flight` chases,
    /// over about `duration`. `round` shifts where the chases start.
    ///
    /// # Errors
    /// [`RooflineError`] if the number of threads or chases cannot be measured, or the buffer is
    /// too small for them.
    pub fn lines_per_second(
        &self,
        threads: usize,
        in_flight: usize,
        round: usize,
        duration: Duration,
    ) -> Result<f64, RooflineError> {
        Probe::config(self.buffer_bytes, threads, in_flight).check()?;
        Ok(self.cycle.rate(threads, in_flight, round, duration))
    }

    fn config(buffer_bytes: usize, threads: usize, in_flight: usize) -> Config {
        Config {
            buffer_bytes,
            threads: vec![threads],
            in_flight: vec![in_flight],
            ..Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Config {
        Config {
            buffer_bytes: 1 << 20,
            pages: vec![Pages::Huge, Pages::Small],
            threads: vec![1, 2],
            in_flight: vec![1, 8, 64],
            rounds: 3,
            duration: Duration::from_micros(100),
        }
    }

    #[test]
    fn every_cell_is_measured_and_every_buffer_described() {
        let config = tiny();
        let mut calls = Vec::new();
        let roofline = measure(&config, |done, total| calls.push((done, total))).unwrap();
        assert_eq!(roofline.cells.len(), 2 * 2 * 3);
        assert_eq!(calls.len(), 36);
        assert_eq!(calls.last(), Some(&(36, 36)));
        for cell in &roofline.cells {
            assert!(cell.lines_per_second_min > 0.0);
            assert!(cell.lines_per_second_min <= cell.lines_per_second);
            assert!(cell.lines_per_second <= cell.lines_per_second_max);
        }
        let pages: Vec<Pages> = roofline.buffers.iter().map(|buffer| buffer.pages).collect();
        assert_eq!(pages, config.pages);
        assert!(roofline.dependent_ns().unwrap() > 0.0);
        assert!(roofline.lines_per_second(2).unwrap() > 0.0);
        assert_eq!(roofline.lines_per_second(3), None);
    }

    #[test]
    fn invalid_configurations_are_refused_by_name() {
        let error_of = |change: &dyn Fn(&mut Config)| {
            let mut config = tiny();
            change(&mut config);
            measure(&config, |_, _| ()).unwrap_err().to_string()
        };
        assert!(error_of(&|c| c.threads.clear()).contains("threads"));
        assert!(error_of(&|c| c.rounds = 0).contains("rounds"));
        assert!(error_of(&|c| c.in_flight = vec![3]).contains('3'));
        assert!(error_of(&|c| c.threads = vec![0]).contains("0 threads"));
        assert!(error_of(&|c| c.buffer_bytes = 4096).contains("4096"));
        assert!(error_of(&|c| c.buffer_bytes = 0).contains("0 bytes"));
    }

    #[test]
    fn a_probe_returns_a_rate_and_refuses_invalid_settings() {
        let probe = Probe::new(1 << 20, Pages::Huge).unwrap();
        for round in 0..3 {
            let rate = probe.lines_per_second(2, 8, round, Duration::from_micros(100));
            assert!(rate.unwrap() > 0.0);
        }
        let error_of = |threads, in_flight| {
            let rate = probe.lines_per_second(threads, in_flight, 0, Duration::ZERO);
            rate.unwrap_err().to_string()
        };
        assert!(error_of(1, 3).contains("3 chases"));
        assert!(error_of(0, 8).contains("0 threads"));
        assert!(Probe::new(64, Pages::Huge).is_err());
    }
}
