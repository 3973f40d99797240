//! The table on a device: its arrays, and operations whose keys and answers are in host memory.
//!
//! ```text
//!   arrays     digests │ keys │ scores │ words │ pins │ control      rows          rows on the host
//!              one allocation, initially zeroed                      one           one, if there are any
//!   staging    input and output of a batch (host_batch.rs)           two, made on first use, of bounded size
//!              or of bags (device_pooled.rs)                         unless a single bag exceeds it
//!
//!   lookups use one staging allocation and everything else the other, so a lookup waits for no writer
//! ```

use super::backend::{Backend, BufferKind, HostBatch, TableLaunch};
use super::batch::{Answers, Batch, Condition, Entries, LookupMode, Operation};
use super::error::TableError;
use super::host_batch::{Keyed, PartLayout};
use super::kernel;
use super::params::{EVICTED_OUT, SCAN_CLOCK, SCAN_EXPORT, TableOp, TableState};
use super::staging::{EntryLayout, Layout};
use std::ops::Range;
use std::sync::Arc;

use forerun_core::sync::{Mutex, PoisonError};

/// Maximum bytes of staging memory.
pub(super) const STAGING_BYTES: u64 = 64 << 20;

/// Memory of a backend, freed on drop.
struct Memory {
    backend: Arc<dyn Backend + Sync>,
    address: u64,
}

impl Memory {
    fn new(
        backend: &Arc<dyn Backend + Sync>,
        bytes: u64,
        kind: BufferKind,
    ) -> Result<Memory, TableError> {
        let address = backend.allocate(bytes.max(1), kind)?;
        Ok(Memory {
            backend: backend.clone(),
            address,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.backend.free(self.address);
    }
}

/// A table's arrays on a backend.
pub(crate) struct DeviceTable {
    backend: Arc<dyn Backend + Sync>,
    state: TableState,
    _arrays: [Memory; 3],
    lookup_staging: Staging,
    staging: Staging,
}

/// Memory and its length, once there is any.
type Staging = Mutex<Option<(Memory, u64)>>;

/// Chooses the kernel for a part of the keys and completes its op.
type Prepare<'p> = dyn Fn(&Range<usize>, &mut TableOp) -> Result<TableLaunch, TableError> + 'p;

/// The offsets of the arrays in the first allocation, and its length.
struct Arrays {
    at: [u64; 6],
    bytes: u64,
}

impl Arrays {
    fn of(form: &TableState) -> Option<Arrays> {
        let slots = form.buckets.checked_mul(form.width.into())?;
        let pin_words = (u64::from(form.width) / 32).max(1);
        let lengths = [
            slots,
            slots.checked_mul(8)?,
            slots.checked_mul(form.score_bytes.into())?,
            form.buckets.checked_mul(4)?,
            form.buckets.checked_mul(pin_words * 4)?,
            16,
        ];
        let mut layout = Layout::default();
        let at = lengths.map(|bytes| layout.take(bytes));
        Some(Arrays {
            at,
            bytes: layout.bytes,
        })
    }
}

impl DeviceTable {
    /// Creates an empty table with this layout. `form.rows_split` is the number of slots whose rows
    /// are on the device.
    pub(crate) fn new(
        backend: Arc<dyn Backend + Sync>,
        form: TableState,
    ) -> Result<DeviceTable, TableError> {
        let slots = form.buckets * u64::from(form.width);
        let arrays = Arrays::of(&form).ok_or(TableError::OutOfMemory {
            bytes: u64::MAX,
            what: "a table's arrays",
        })?;
        let first = Memory::new(&backend, arrays.bytes, BufferKind::Zeroed)?;
        let on_device = form.rows_split.min(slots);
        let row_bytes = |rows: u64| rows.saturating_mul(form.row_stride_bytes);
        let rows = Memory::new(&backend, row_bytes(on_device), BufferKind::Device)?;
        let host_lies = if on_device == slots {
            BufferKind::Device
        } else {
            BufferKind::PinnedHost
        };
        let rows_host = Memory::new(&backend, row_bytes(slots - on_device), host_lies)?;
        let [digests, keys, scores, words, pins, control] = arrays.at.map(|at| first.address + at);
        Ok(DeviceTable {
            state: TableState {
                digests,
                keys,
                scores,
                words,
                pins,
                control,
                rows: rows.address,
                rows_host: rows_host.address,
                rows_split: on_device,
                ..form
            },
            backend,
            _arrays: [first, rows, rows_host],
            lookup_staging: Mutex::default(),
            staging: Mutex::default(),
        })
    }

    pub(crate) fn state(&self) -> &TableState {
        &self.state
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend + Sync> {
        &self.backend
    }

    pub(super) fn row_bytes(&self) -> u64 {
        self.state.row_bytes
    }

    /// Keys per part, so that the keys and their arrays fit into staging memory.
    pub(super) fn keys_a_part(&self) -> usize {
        (STAGING_BYTES / (3 * self.row_bytes() + 96)).max(1) as usize
    }

    /// Reads the entries that a scan returned, at most `max`.
    fn read_entries(&self, op: &TableOp, max: u64, into: &mut Entries) -> Result<(), TableError> {
        let mut count = [0];
        self.read_words(op.out_count, &mut count)?;
        let n = count[0].min(max) as usize;
        let old = into.keys.len();
        into.keys.resize(old + n, 0);
        self.read_words(op.out_keys, &mut into.keys[old..])?;
        into.positions.resize(old + n, 0);
        self.read_words(op.out_places, &mut into.positions[old..])?;
        into.scores.resize(old + n, 0);
        self.read_words(op.out_scores, &mut into.scores[old..])?;
        self.read_rows(op.out_rows, n, into)
    }

    /// Reads the rows of entries.
    fn read_rows(
        &self,
        address: u64,
        entries: usize,
        into: &mut Entries,
    ) -> Result<(), TableError> {
        if address == 0 || entries == 0 {
            return Ok(());
        }
        let old = into.rows.len();
        into.rows
            .resize(old + entries * self.row_bytes() as usize, 0);
        self.backend.read(address, &mut into.rows[old..])
    }

    /// Calls `work` with this many bytes of the staging memory of lookups.
    pub(super) fn staged_lookup<T>(
        &self,
        bytes: u64,
        work: impl FnOnce(u64) -> Result<T, TableError>,
    ) -> Result<T, TableError> {
        self.staged_in(&self.lookup_staging, bytes, work)
    }

    /// Calls `work` with this many bytes of staging memory, not that of lookups.
    pub(super) fn staged<T>(
        &self,
        bytes: u64,
        work: impl FnOnce(u64) -> Result<T, TableError>,
    ) -> Result<T, TableError> {
        self.staged_in(&self.staging, bytes, work)
    }

    fn staged_in<T>(
        &self,
        staging: &Staging,
        bytes: u64,
        work: impl FnOnce(u64) -> Result<T, TableError>,
    ) -> Result<T, TableError> {
        // Before the lock, which a thread of the parent of a fork may have held.
        if let Some(gpu) = self.backend.gpu() {
            gpu.expect_process()?;
        }
        // A panic elsewhere leaves the memory usable: each use lays it out again.
        let mut staging = staging.lock().unwrap_or_else(PoisonError::into_inner);
        let held = match staging.take() {
            Some((memory, held)) if held >= bytes => (memory, held),
            smaller => {
                drop(smaller);
                let held = bytes.next_power_of_two().max(1 << 16);
                // A batch is copied back as a whole, including the rows of absent keys, which no
                // kernel has written.
                let memory = Memory::new(&self.backend, held, BufferKind::Zeroed)?;
                (memory, held)
            }
        };
        let result = work(held.0.address);
        *staging = Some(held);
        result
    }

    pub(super) fn read_words(&self, address: u64, into: &mut [u64]) -> Result<(), TableError> {
        let mut bytes = vec![0; size_of_val(into)];
        self.backend.read(address, &mut bytes)?;
        for (word, bytes) in into.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(())
    }

    /// Runs a kernel on keys, one part at a time.
    fn keyed(
        &self,
        keyed: Keyed<'_>,
        answers: &mut Answers<'_>,
        rest: Option<&mut Entries>,
        prepare: &Prepare<'_>,
    ) -> Result<(), TableError> {
        let mut rest = rest;
        let step = self.keys_a_part();
        for first in (0..keyed.batch.keys.len()).step_by(step) {
            let part = first..(first + step).min(keyed.batch.keys.len());
            let entries = self.keyed_part(&keyed, part, answers, prepare)?;
            if let Some(rest) = rest.as_deref_mut() {
                rest.append(entries);
            }
        }
        Ok(())
    }

    fn keyed_part(
        &self,
        keyed: &Keyed<'_>,
        part: Range<usize>,
        answers: &mut Answers<'_>,
        prepare: &Prepare<'_>,
    ) -> Result<Entries, TableError> {
        let row_bytes = self.row_bytes();
        let batch = keyed.batch.part(part.clone(), row_bytes as usize);
        let of_part = Keyed {
            batch: &batch,
            ..*keyed
        };
        let n = batch.keys.len() as u64;
        let layout = PartLayout::of(&of_part, n, row_bytes, answers);
        // A lookup that must not run beside writers waits for them here.
        let staging = if keyed.beside_writers {
            &self.lookup_staging
        } else {
            &self.staging
        };
        self.staged_in(staging, layout.bytes, |base| {
            let mut op = TableOp {
                table: *self.state(),
                count: n,
                epoch: batch.epoch,
                concurrent_writers: keyed.beside_writers.into(),
                ..TableOp::default()
            };
            layout.enter(base, &mut op);
            let launch = prepare(&part, &mut op)?;
            let mut entries = Entries::default();
            self.backend().run(
                launch,
                &op,
                HostBatch {
                    address: base,
                    input_bytes: layout.input_bytes,
                    output: layout.output.clone(),
                    fill: &mut |bytes| layout.fill(&batch, bytes),
                    take: &mut |bytes| {
                        let rows = row_bytes as usize;
                        entries = layout.take(&of_part, &batch, bytes, rows, answers, &part);
                    },
                },
            )?;
            let count = entries.keys.len();
            self.read_rows(op.out_rows, count, &mut entries)?;
            Ok(entries)
        })
    }

    /// Rows go to a device address if one is given.
    pub(crate) fn find(
        &self,
        lookup: LookupMode,
        keys: &[u64],
        answers: &mut Answers<'_>,
        rows_at: Option<u64>,
        missed: Option<&mut Entries>,
    ) -> Result<(), TableError> {
        let width = self.state.width;
        let max = self.backend.blocks_max();
        let with_rows = answers.rows.is_some() || answers.scores.is_some() || rows_at.is_some();
        let mut found = Entries::default();
        let wants_missed = missed.is_some();
        let rest = if wants_missed { Some(&mut found) } else { None };
        let batch = Batch::of(keys);
        let keyed = Keyed {
            batch: &batch,
            actions: 0,
            #[cfg(feature = "study")]
            beside_writers: lookup.may_run_beside_writers(),
            #[cfg(not(feature = "study"))]
            beside_writers: true,
            with_rest: wants_missed,
        };
        self.keyed(keyed, answers, rest, &|part, op| {
            let n = part.len() as u64;
            if let Some(address) = rows_at {
                op.rows_out = address + part.start as u64 * self.row_bytes();
            }
            let (launch, number) = kernel::find_slots(lookup, width, n, max)?;
            op.lookup = number;
            Ok(if with_rows {
                kernel::find_rows(width, n, max)
            } else if wants_missed {
                kernel::find_slots(LookupMode::ByLoad, width, n, max)?.0
            } else {
                launch
            })
        })?;
        if let Some(missed) = missed {
            missed.keys.append(&mut found.keys);
            missed.positions.append(&mut found.positions);
        }
        Ok(())
    }

    pub(crate) fn write(
        &self,
        operation: Operation,
        batch: &Batch<'_>,
        answers: &mut Answers<'_>,
        rest: &mut Entries,
    ) -> Result<(), TableError> {
        let width = self.state.width;
        let max = self.backend.blocks_max();
        let gives = operation.actions() & EVICTED_OUT != 0;
        let keyed = Keyed {
            batch,
            actions: operation.actions(),
            beside_writers: false,
            with_rest: gives,
        };
        self.keyed(keyed, answers, gives.then_some(rest), &|part, op| {
            op.actions = operation.actions();
            op.element = operation.element() as u32;
            Ok(kernel::write(width, part.len() as u64, max))
        })
    }

    pub(crate) fn scan(
        &self,
        scan: u32,
        slots: Range<u64>,
        condition: &Condition,
        out: &mut Entries,
    ) -> Result<u64, TableError> {
        let exports = scan == SCAN_EXPORT;
        let step = if exports {
            self.keys_a_part() as u64
        } else {
            u64::MAX
        };
        let mut met = 0;
        let mut first = slots.start;
        while first < slots.end {
            let n = step.min(slots.end - first);
            let mut layout = Layout::default();
            let exported = if exports { n } else { 0 };
            let mut given = EntryLayout::take(&mut layout, exported, true);
            given.take_rows(&mut layout, self.row_bytes());
            met += self.staged(layout.bytes, |base| {
                let mut op = TableOp {
                    table: self.state,
                    count: n,
                    first_slot: first,
                    score_min: *condition.scores.start(),
                    score_max: *condition.scores.end(),
                    key_mask: condition.key_mask,
                    key_value: condition.key_value,
                    scan,
                    ..TableOp::default()
                };
                given.enter(base, &mut op);
                self.backend.write(op.out_count, &[0; 8])?;
                let launch = kernel::scan(n, self.backend.blocks_max());
                self.backend.launch(launch, &op)?;
                if exports {
                    let before = out.len();
                    self.read_entries(&op, n, out)?;
                    return Ok((out.len() - before) as u64);
                }
                let mut count = [0];
                self.read_words(op.out_count, &mut count)?;
                Ok(count[0])
            })?;
            first += n;
        }
        Ok(met)
    }

    /// The device's clock.
    pub(crate) fn clock_ns(&self) -> Result<u64, TableError> {
        self.staged(8, |base| {
            let op = TableOp {
                table: self.state,
                scan: SCAN_CLOCK,
                out_count: base,
                ..TableOp::default()
            };
            self.backend.launch(kernel::scan(1, 1), &op)?;
            let mut now = [0];
            self.read_words(base, &mut now)?;
            Ok(now[0])
        })
    }

    pub(crate) fn clear(&self) -> Result<(), TableError> {
        let op = TableOp {
            table: self.state,
            ..TableOp::default()
        };
        let launch = kernel::clear(self.state.buckets, self.backend.blocks_max());
        self.backend.launch(launch, &op)
    }

    pub(crate) fn size(&self) -> Result<u64, TableError> {
        let mut size = [0];
        self.read_words(self.state.control, &mut size)?;
        Ok(size[0])
    }

    /// Number of pinned entries.
    pub(crate) fn pinned(&self) -> Result<u64, TableError> {
        let mut pinned = [0];
        self.read_words(self.state.control + 8, &mut pinned)?;
        Ok(pinned[0])
    }

    pub(crate) fn row(&self, slot: u64) -> Result<Vec<u8>, TableError> {
        let s = &self.state;
        let address = match slot.checked_sub(s.rows_split) {
            None => s.rows + slot * s.row_stride_bytes,
            Some(beyond) => s.rows_host + beyond * s.row_stride_bytes,
        };
        let mut row = vec![0; s.row_bytes as usize];
        self.backend.read(address, &mut row)?;
        Ok(row)
    }

    /// One digest, key, score and pin per slot.
    pub(crate) fn arrays(&self) -> Result<super::Image, TableError> {
        let s = &self.state;
        let slots = (s.buckets * u64::from(s.width)) as usize;
        let mut digests = vec![0; slots];
        self.backend.read(s.digests, &mut digests)?;
        let mut keys = vec![0; slots];
        self.read_words(s.keys, &mut keys)?;
        let mut bytes = vec![0; slots * s.score_bytes as usize];
        self.backend.read(s.scores, &mut bytes)?;
        let scores = match s.score_bytes {
            4 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| u32::from_ne_bytes(*b).into())
                .collect(),
            _ => bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| u64::from_ne_bytes(*b))
                .collect(),
        };
        let bits = s.width.min(32) as usize;
        let mut bytes = vec![0; slots / bits * 4];
        self.backend.read(s.pins, &mut bytes)?;
        let words = bytes.as_chunks().0.iter().map(|b| u32::from_ne_bytes(*b));
        let pins = words.flat_map(|word| (0..bits).map(move |bit| word >> bit & 1 == 1));
        Ok((digests, keys, scores, pins.collect()))
    }
}
