//! Growth: all entries move to a larger table.
//!
//! ```text
//!   pinned entries    looked up ─▶ inserted, pinned        first, so that nothing evicts them
//!   all entries       a part of the slots: exported ─▶ staging ─▶ inserted with the same scores
//! ```
//!
//! On a device, each part takes two launches, and its keys, scores and rows stay on the device. The
//! number of entries of a part is read there by the second launch.
//!
//! The number of buckets determines the buckets of a key, so a bucket of the larger table can get
//! more entries than it has slots. The move is then repeated with a multiple of the buckets: each
//! bucket gets entries of one bucket only.

use super::batch::{Answers, Entries, LookupMode, Operation, Status};
use super::cpu::CpuTable;
use super::device_table::DeviceTable;
use super::error::TableError;
use super::gpu_table::{Engine, GpuTable, WALK_SLOTS, form_of};
use super::kernel;
use super::options::TableOptions;
use super::params::{SCAN_EXPORT, TableOp};
use super::staging::{EntryLayout, Layout};

impl GpuTable {
    pub(super) fn capacity_max(&self) -> u64 {
        self.options.max_capacity.max(self.options.capacity)
    }

    /// Grows the table for this many more keys if the options allow it.
    pub(super) fn grow_for(&mut self, keys: u64) -> Result<(), TableError> {
        let max = self.capacity_max();
        if self.capacity() >= max {
            return Ok(());
        }
        // Which keys are new is not known yet, so assume that all are.
        let entries = self.size()?.saturating_add(keys);
        let wanted = entries.saturating_mul(16) / self.options.sixteenths_before_growth();
        if wanted <= self.capacity() {
            return Ok(());
        }
        let doubled = self.capacity().saturating_mul(2);
        let target = wanted.max(doubled).min(max);
        if target >= self.too_large {
            return Ok(());
        }
        // If it cannot grow, this table is unchanged and can evict.
        match self.reserve(target) {
            Err(TableError::Pinned { .. }) => Ok(()),
            Err(error) if error.is_out_of_memory() => {
                // Every later batch would try the same allocations again.
                self.too_large = target;
                Ok(())
            }
            result => result,
        }
    }

    /// Grows the table to at least this many slots, up to the option `max_capacity`. Entries move,
    /// so pointers and slots become invalid. Pinned entries stay pinned. On a GPU, rows do not
    /// leave its memory, unless they are pinned. Both tables need memory during the move.
    ///
    /// If a bucket of the larger table would be too full, the table grows further. If it has
    /// reached `max_capacity`, that bucket evicts, as it does for new entries.
    ///
    /// # Errors
    /// The capacity exceeds `max_capacity`; the buckets of a table with `max_capacity` do not hold
    /// all pinned entries; out of memory; the device's error. The table is then unchanged.
    pub fn reserve(&mut self, capacity: u64) -> Result<(), TableError> {
        let max = self.capacity_max();
        if capacity > max {
            return Err(TableError::BeyondMax { capacity, max });
        }
        if capacity <= self.capacity() {
            return Ok(());
        }
        let pinned = self.pinned_keys()?;
        let mut capacity = capacity;
        loop {
            let mut larger = self.empty_with(capacity)?;
            let has_pinned = larger.take_pinned(self, &pinned)?;
            if has_pinned {
                self.move_entries(&mut larger)?;
                if capacity >= max || larger.size()? == self.size()? {
                    larger.options = self.options;
                    // `too_large` is unknown again: memory may have been freed since.
                    *self = larger;
                    return Ok(());
                }
            } else if capacity >= max {
                return Err(TableError::Pinned { capacity });
            }
            capacity = self.multiple_above(capacity).min(max);
        }
    }

    /// The least capacity above this one that is this table's, doubled any number of times.
    fn multiple_above(&self, capacity: u64) -> u64 {
        let times = (capacity / self.capacity() + 1).next_power_of_two();
        self.capacity().saturating_mul(times)
    }

    /// An empty table in the same place, which does not grow.
    fn empty_with(&self, capacity: u64) -> Result<GpuTable, TableError> {
        let options = TableOptions {
            capacity,
            max_capacity: capacity,
            ..self.options
        };
        let form = form_of(&options, capacity);
        let engine = match &self.engine {
            Engine::Cpu(_) => Engine::Cpu(CpuTable::new(form)?),
            Engine::Device(table) => {
                Engine::Device(DeviceTable::new(table.backend().clone(), form)?)
            }
        };
        Ok(GpuTable::with(options, engine))
    }

    /// The pinned keys.
    fn pinned_keys(&self) -> Result<Vec<u64>, TableError> {
        let pinned = match &self.engine {
            Engine::Cpu(table) => table.pinned,
            Engine::Device(table) => table.pinned()?,
        };
        if pinned == 0 {
            return Ok(Vec::new());
        }
        let (_, keys, _, pins) = self.arrays()?;
        let pinned = keys.into_iter().zip(pins).filter(|(_, pinned)| *pinned);
        Ok(pinned.map(|(key, _)| key).collect())
    }

    /// Inserts and pins another table's pinned entries. Returns whether all of them found a slot.
    fn take_pinned(&mut self, from: &GpuTable, pinned: &[u64]) -> Result<bool, TableError> {
        let row_bytes = self.options.row_bytes as usize;
        for keys in pinned.chunks(WALK_SLOTS as usize) {
            let mut entries = Entries {
                keys: keys.to_vec(),
                scores: vec![0; keys.len()],
                rows: vec![0; keys.len() * row_bytes],
                positions: Vec::new(),
            };
            let answers = Answers {
                rows: Some(&mut entries.rows),
                scores: Some(&mut entries.scores),
                ..Answers::default()
            };
            from.lookup(LookupMode::ByLoad, keys, answers)?;
            self.restore(&entries)?;
            // Those that another one has evicted are absent.
            let locked = self.lock(keys)?;
            if locked.iter().any(|status| *status != Status::Found) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Inserts all entries into another table in the same place. Those that are pinned there stay
    /// as they are.
    fn move_entries(&mut self, to: &mut GpuTable) -> Result<(), TableError> {
        match (&self.engine, &to.engine) {
            (Engine::Device(from), Engine::Device(to)) => from.move_entries(to),
            _ => self.for_each(|entries| to.restore(entries)),
        }
    }
}

impl DeviceTable {
    /// Inserts all entries into another table of the same backend.
    fn move_entries(&self, to: &DeviceTable) -> Result<(), TableError> {
        let (backend, from) = (self.backend(), self.state());
        let max = backend.blocks_max();
        let slots = from.buckets * u64::from(from.width);
        let step = self.keys_a_part();
        for first in (0..slots).step_by(step) {
            let n = (step as u64).min(slots - first);
            let mut layout = Layout::default();
            let mut entries = EntryLayout::take(&mut layout, n, true);
            entries.take_rows(&mut layout, self.row_bytes());
            self.staged(layout.bytes, |base| {
                let mut export = TableOp {
                    table: *from,
                    count: n,
                    first_slot: first,
                    score_max: u64::MAX,
                    scan: SCAN_EXPORT,
                    ..TableOp::default()
                };
                entries.enter(base, &mut export);
                backend.write(export.out_count, &[0; 8])?;
                backend.launch(kernel::scan(n, max), &export)?;
                let insert = TableOp {
                    table: *to.state(),
                    count: n,
                    count_at: export.out_count,
                    keys: export.out_keys,
                    rows_in: export.out_rows,
                    scores_in: export.out_scores,
                    actions: Operation::Restore.actions(),
                    ..TableOp::default()
                };
                backend.launch(kernel::write(to.state().width, n, max), &insert)
            })?;
        }
        Ok(())
    }
}
