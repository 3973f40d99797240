//! One result of `forerun-bench count-lookups`: a line of JSON with these names.

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// What a CPU may count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Cycles.
    Cycles,
    /// Retired instructions.
    Instructions,
    /// Cycles in which the backend stalled.
    BackendStalls,
    /// Loads that missed the first-level data cache.
    L1dMisses,
    /// Misses of the last-level cache.
    LastLevelMisses,
}

/// What a key costs with one strategy. A count is null where it could not be taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CountRow {
    /// `count-lookups`.
    pub bench: String,
    /// The strategy, as `forerun-bench btree` names it.
    pub strategy: String,
    /// Entries of the run.
    pub keys: u64,
    /// Keys per batch.
    pub batch: u64,
    /// Times that a search of pages waits for lines that it has prefetched; null for the index.
    pub suspensions_per_key: Option<f64>,
    /// Instructions, by single steps.
    pub instructions_per_key: Option<f64>,
    /// Different cache lines read or written, by single steps.
    pub lines_per_key: Option<f64>,
    /// Cycles of user mode.
    pub cycles_per_key: Option<f64>,
    /// Instructions per cycle, both as the CPU counts them.
    pub instructions_per_cycle: Option<f64>,
    /// Percentage of cycles in which the CPU's backend stalled.
    pub backend_bound_percent: Option<f64>,
    /// Loads that missed the first-level data cache.
    pub l1d_misses_per_key: Option<f64>,
    /// The same per 1000 instructions.
    pub l1d_misses_per_1000: Option<f64>,
    /// Misses of the last-level cache.
    pub llc_misses_per_key: Option<f64>,
}

impl CountRow {
    /// Fills in what the CPU counts. `count` returns the events of a kind per key, if they can be
    /// counted.
    pub(super) fn add_events(
        &mut self,
        count: &mut dyn FnMut(Event) -> Result<Option<f64>>,
    ) -> Result<()> {
        let cycles = count(Event::Cycles)?;
        let instructions = count(Event::Instructions)?;
        let stalled = count(Event::BackendStalls)?;
        let over = |part: Option<f64>, whole: Option<f64>| {
            let (part, whole) = part.zip(whole)?;
            (whole > 0.0).then_some(part / whole)
        };
        self.cycles_per_key = cycles;
        self.instructions_per_cycle = over(instructions, cycles);
        self.backend_bound_percent = over(stalled, cycles).map(|share| 100.0 * share);
        self.l1d_misses_per_key = count(Event::L1dMisses)?;
        let per_one = over(self.l1d_misses_per_key, instructions);
        self.l1d_misses_per_1000 = per_one.map(|misses| 1000.0 * misses);
        self.llc_misses_per_key = count(Event::LastLevelMisses)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_follow_from_the_counts_and_are_absent_without_them() {
        let mut row = CountRow::default();
        row.add_events(&mut |event| {
            Ok(match event {
                Event::Cycles => Some(400.0),
                Event::Instructions => Some(600.0),
                Event::BackendStalls => Some(100.0),
                Event::L1dMisses => Some(12.0),
                Event::LastLevelMisses => None,
            })
        })
        .unwrap();
        assert_eq!(row.instructions_per_cycle, Some(1.5));
        assert_eq!(row.backend_bound_percent, Some(25.0));
        assert_eq!(
            (row.l1d_misses_per_1000, row.llc_misses_per_key),
            (Some(20.0), None)
        );
        let mut row = CountRow::default();
        row.add_events(&mut |_| Ok(None)).unwrap();
        assert_eq!(row, CountRow::default());
    }
}
