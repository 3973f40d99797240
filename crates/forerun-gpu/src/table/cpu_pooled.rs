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
        let mut rows_out = rows_out.chunks_exact_mut(sum.output_bytes());
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
            while bag < bags.len() {
                let range = bags.range(bag);
                let here = range.start.max(first)..range.end.min(end);
                if !here.is_empty() {
                    sum.add(bags, here, |at| {
                        slots[at - first].map(|slot| self.row(slot))
                    });
                }
                if range.end > end {
                    break;
                }
                let Some(row_out) = rows_out.next() else {
                    break;
                };
                found[bag] = sum.end(bags, bag, row_out);
                bag += 1;
            }
            first = end;
            if first == keys.len() {
                return Ok(());
            }
        }
    }
}
