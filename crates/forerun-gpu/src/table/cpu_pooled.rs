//! Pooled lookups in the table on the CPU.
//!
//! ```text
//!   64 keys    digests of the next keys ─ slots ─ rows prefetched      whatever their bags
//!              rows added to the sums of their bags, in order
//! ```

use super::candidate_slots::CandidateSlots;
use super::cpu::CpuTable;
use forerun_core::arch::prefetch_read;
use forerun_core::pooling::{BagSum, Bags, PoolingError, PoolingOptions};

/// Keys whose rows are prefetched before the first of them is added.
const STRETCH: usize = 64;
/// Prefetch distance for digests, in keys.
const AHEAD: usize = 16;
const LINE_BYTES: usize = 64;
/// Lines of a row that are prefetched. The CPU prefetches the rest of a longer row itself.
const LINES_MAX: usize = 8;

impl CpuTable {
    /// Looks up bags that have been checked.
    pub(crate) fn find_pooled(
        &self,
        bags: &Bags<'_>,
        options: &PoolingOptions,
        rows_out: &mut [u8],
        found: &mut [u32],
    ) -> Result<(), PoolingError> {
        let mut sum = BagSum::new(options, self.form.row_bytes)?;
        let keys = bags.keys;
        keys.iter().take(AHEAD).for_each(|key| self.fetch(*key));
        let mut slots = [None; STRETCH];
        let (mut first, mut bag) = (0, 0);
        loop {
            let end = (first + STRETCH).min(keys.len());
            for at in first..end {
                if let Some(&later) = keys.get(at + AHEAD) {
                    self.fetch(later);
                }
                let key = keys[at];
                let slot = self.slot_of(&CandidateSlots::of(&self.form, key), key);
                if let Some(slot) = slot {
                    let lines = self.row(slot).chunks(LINE_BYTES).take(LINES_MAX);
                    lines.for_each(|line| prefetch_read(line.as_ptr()));
                }
                slots[at - first] = slot;
            }
            let row_at = |at: usize| slots[at - first].map(|slot| self.row(slot));
            bag = sum.add_block(bags, first..end, bag, row_at, rows_out, found);
            first = end;
            if first == keys.len() {
                return Ok(());
            }
        }
    }
}
