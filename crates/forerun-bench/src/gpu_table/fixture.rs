//! A filled table, and the code that runs its operations. On a device, all arrays of a call are in
//! its memory. On the CPU, they are slices.

use super::keys::{Call, Keys, row_of, rows_of};
use super::operation::{Op, OpVariant};
use super::pooled_batch;
use super::setting::Setting;
use crate::on_gpu::{CommandTimes, Timer};
use anyhow::{Result, ensure};
use forerun_gpu::table::{
    Answers, Bags, Batch, Condition, DeviceBatch, Entries, EntryBuffers, GpuTable, LookupMode,
    Operation, PooledBatch, Scan, Status, TableCommand, TableError,
};
use forerun_gpu::{DeviceBuffer, Gpu, GpuError};
use std::time::{Duration, Instant};

/// A condition that no entry meets, because no clock returns this score.
const NO_ENTRY: Condition = Condition {
    scores: 0..=0,
    key_mask: 0,
    key_value: 0,
};

/// The requested results of a call.
#[derive(Default)]
pub(super) struct Results {
    status: Vec<Status>,
    rows: Vec<u8>,
    pointers: Vec<u64>,
    /// Keys of each bag that were found.
    bag_counts: Vec<u32>,
    given: u64,
}

/// Arrays of a call in a device's memory.
struct Buffers {
    timer: Timer,
    keys: DeviceBuffer,
    rows: DeviceBuffer,
    flags: DeviceBuffer,
    rows_out: DeviceBuffer,
    pointers: DeviceBuffer,
    status: DeviceBuffer,
    given_count: DeviceBuffer,
    given_keys: DeviceBuffer,
    given_rows: DeviceBuffer,
    given_scores: DeviceBuffer,
    given_places: DeviceBuffer,
    offsets: DeviceBuffer,
    bag_counts: DeviceBuffer,
}

impl Buffers {
    fn new(gpu: &Gpu, setting: &Setting) -> Result<Buffers> {
        let n = setting.batch;
        let rows = n * setting.row_bytes() as usize;
        // Poisoned, because a call leaves the rows of absent keys as they are.
        let of = |bytes| -> Result<DeviceBuffer, GpuError> {
            let buffer = DeviceBuffer::new(gpu, bytes)?;
            buffer.fill(0xa5)?;
            Ok(buffer)
        };
        Ok(Buffers {
            timer: Timer::new(gpu)?,
            keys: of(n * 8)?,
            rows: of(rows)?,
            flags: of(n)?,
            rows_out: of(rows)?,
            pointers: of(n * 8)?,
            status: of(n)?,
            given_count: DeviceBuffer::from_slice(gpu, &[0; 8])?,
            given_keys: of(n * 8)?,
            given_rows: of(rows)?,
            given_scores: of(n * 8)?,
            given_places: of(n * 8)?,
            offsets: of((n + 1) * 8)?,
            bag_counts: of(n * 4)?,
        })
    }

    fn given(&self, rows: bool) -> EntryBuffers<'_> {
        EntryBuffers {
            count: &self.given_count,
            keys: &self.given_keys,
            rows: rows.then_some(&self.given_rows),
            scores: rows.then_some(&self.given_scores),
            positions: Some(&self.given_places),
        }
    }

    fn batch(&self, op: Op, n: u64) -> DeviceBatch<'_> {
        let pointers = matches!(op, Op::FindPtr | Op::FindOrInsertPtr);
        let given = matches!(op, Op::FindMissed | Op::InsertAndEvict);
        DeviceBatch {
            rows: op.takes_rows().then_some(&self.rows),
            flags: (op == Op::AccumulateOrAssign).then_some(&self.flags),
            rows_out: op.gives_rows().then_some(&self.rows_out),
            pointers_out: pointers.then_some(&self.pointers),
            status_out: Some(&self.status),
            entries_out: given.then(|| self.given(op == Op::InsertAndEvict)),
            ..DeviceBatch::new(&self.keys, n)
        }
    }

    /// Bags of the keys. There are no more of them than keys, so their rows fit.
    fn bags(&self, n: u64, bags: u64) -> PooledBatch<'_> {
        PooledBatch {
            count: n,
            count_at: None,
            keys: &self.keys,
            bags,
            offsets: &self.offsets,
            weights: None,
            rows_out: &self.rows_out,
            found_out: Some(&self.bag_counts),
            sums: None,
        }
    }

    /// The command that a variant puts on a stream.
    fn command<'a>(
        &'a self,
        table: &'a GpuTable,
        variant: OpVariant,
        n: u64,
        bags: u64,
        first_slot: u64,
    ) -> Result<TableCommand<'a>, TableError> {
        if variant.op.pools() {
            let beside = variant.op == Op::FindPooledBesideWriters;
            return table.pooled_command(&pooled_batch::options(), &self.bags(n, bags), beside);
        }
        let batch = self.batch(variant.op, n);
        if let Some(operation) = variant.op.operation() {
            return table.command(operation, &batch);
        }
        let (scan, slots, condition) = match variant.op {
            Op::SizeIf => (Scan::Count, 0..u64::MAX, Condition::ALL),
            Op::EraseIf => (Scan::Erase, 0..u64::MAX, NO_ENTRY),
            Op::ExportBatch => (Scan::Export, first_slot..first_slot + n, Condition::ALL),
            op => {
                let beside = op == Op::FindBesideWriters;
                return table.lookup_command(variant.lookup, &batch, beside);
            }
        };
        table.scan_command(scan, slots, &condition, &self.given(true))
    }
}

/// A filled table.
pub(super) struct Fixture {
    pub(super) setting: Setting,
    pub(super) table: GpuTable,
    pub(super) keys: Keys,
    /// Whether writers have changed it, so that its entries are in other slots.
    pub(super) written: bool,
    buffers: Option<Buffers>,
    first_slot: u64,
}

impl Fixture {
    pub(super) fn new(gpu: Option<&Gpu>, setting: &Setting) -> Result<Fixture> {
        let options = setting.options(setting.slots);
        let mut table = match gpu {
            Some(gpu) => GpuTable::on_gpu(gpu, options)?,
            None => GpuTable::on_cpu(options)?,
        };
        let keys = Keys::fill(&mut table, setting)?;
        ensure!(
            !keys.sample().is_empty(),
            "a table of {} slots holds nothing at that load",
            setting.slots
        );
        let mut fixture = Fixture {
            setting: setting.clone(),
            table,
            keys,
            written: false,
            buffers: None,
            first_slot: 0,
        };
        fixture.turn_to(setting)?;
        Ok(fixture)
    }

    /// Continues with another setting that uses the same table.
    pub(super) fn turn_to(&mut self, setting: &Setting) -> Result<()> {
        let larger = self.buffers.is_none() || setting.batch > self.setting.batch;
        self.setting = setting.clone();
        if let Some(gpu) = self.table.gpu().cloned().filter(|_| larger) {
            self.buffers = Some(Buffers::new(&gpu, setting)?);
        }
        Ok(())
    }

    /// Makes the requested keys the youngest of the table, so that new entries do not evict them.
    pub(super) fn before_writers(&mut self) -> Result<()> {
        self.written = true;
        for part in self.keys.sample().chunks(1 << 20) {
            self.table.assign_scores(part, None)?;
        }
        Ok(())
    }

    /// How many keys, or slots, a call of a variant processes.
    pub(super) fn items(&self, op: Op) -> u64 {
        match op {
            Op::SizeIf | Op::EraseIf => self.table.capacity(),
            Op::ExportBatch => (self.setting.batch as u64).min(self.table.capacity()),
            _ => self.setting.batch as u64,
        }
    }

    /// Runs a variant once on the next keys. Returns the time, and the results if wanted.
    pub(super) fn call(
        &mut self,
        variant: OpVariant,
        call: &Call,
        wanted: bool,
    ) -> Result<(CommandTimes, Results)> {
        if variant.op == Op::Unlock {
            self.table.lock(&call.keys)?;
        }
        let rows = if variant.op.takes_rows() {
            rows_of(&call.keys, self.setting.row_bytes())
        } else {
            Vec::new()
        };
        let done = match &self.buffers {
            Some(_) => self.on_device(variant, call, &rows, wanted)?,
            None => self.on_cpu(variant, call, &rows)?,
        };
        self.put_back(variant.op, call)?;
        Ok(done)
    }

    fn on_device(
        &mut self,
        variant: OpVariant,
        call: &Call,
        rows: &[u8],
        wanted: bool,
    ) -> Result<(CommandTimes, Results)> {
        let mut results = Results::default();
        let Some(buffers) = &self.buffers else {
            return Ok((CommandTimes::default(), results));
        };
        let bytes: Vec<u8> = call.keys.iter().flat_map(|key| key.to_ne_bytes()).collect();
        buffers.keys.write(0, &bytes)?;
        buffers.rows.write(0, rows)?;
        if variant.op == Op::AccumulateOrAssign {
            let flags: Vec<u8> = call.there.iter().map(|there| u8::from(*there)).collect();
            buffers.flags.write(0, &flags)?;
        }
        buffers.given_count.write(0, &[0; 8])?;
        let offsets = pooled_batch::offsets(call.keys.len(), self.setting.bag_keys);
        let bags = offsets.len() - 1;
        if variant.op.pools() {
            let bytes: Vec<u8> = offsets.iter().flat_map(|at| at.to_ne_bytes()).collect();
            buffers.offsets.write(0, &bytes)?;
        }
        let n = self.items(variant.op).min(call.keys.len() as u64);
        let took = {
            let command = buffers.command(&self.table, variant, n, bags as u64, self.first_slot)?;
            buffers.timer.time(&command, 0)?
        };
        self.first_slot = (self.first_slot + n) % self.table.capacity();
        if wanted {
            let mut count = [0; 8];
            buffers.given_count.read(0, &mut count)?;
            results.given = u64::from_ne_bytes(count);
            if variant.op.pools() {
                let mut counts = vec![0; bags * 4];
                buffers.bag_counts.read(0, &mut counts)?;
                let words = counts.as_chunks().0.iter();
                results.bag_counts = words.map(|word| u32::from_ne_bytes(*word)).collect();
                results.rows = vec![0; bags * self.setting.row_bytes() as usize];
                buffers.rows_out.read(0, &mut results.rows)?;
                return Ok((took, results));
            }
            let mut status = vec![0; call.keys.len()];
            buffers.status.read(0, &mut status)?;
            results.status = status.into_iter().map(Status::of).collect();
            if variant.op.gives_rows() {
                results.rows = vec![0; call.keys.len() * self.setting.row_bytes() as usize];
                buffers.rows_out.read(0, &mut results.rows)?;
            }
            if matches!(variant.op, Op::FindPtr | Op::FindOrInsertPtr) {
                let mut bytes = vec![0; call.keys.len() * 8];
                buffers.pointers.read(0, &mut bytes)?;
                let words = bytes.as_chunks().0.iter();
                results.pointers = words.map(|word| u64::from_ne_bytes(*word)).collect();
            }
        }
        Ok((took, results))
    }

    fn on_cpu(
        &mut self,
        variant: OpVariant,
        call: &Call,
        rows: &[u8],
    ) -> Result<(CommandTimes, Results)> {
        let n = call.keys.len();
        let mut results = Results {
            status: vec![Status::Absent; n],
            ..Results::default()
        };
        if variant.op.gives_rows() {
            results.rows = vec![0; n * self.setting.row_bytes() as usize];
        }
        if matches!(variant.op, Op::FindPtr | Op::FindOrInsertPtr) {
            results.pointers = vec![0; n];
        }
        let offsets = pooled_batch::offsets(n, self.setting.bag_keys);
        if variant.op.pools() {
            let bags = offsets.len() - 1;
            results.rows = vec![0; bags * self.setting.row_bytes() as usize];
            results.bag_counts = vec![0; bags];
        }
        let flags: Vec<u8> = call.there.iter().map(|there| u8::from(*there)).collect();
        let slots = self.first_slot..self.first_slot + self.items(variant.op);
        let start = Instant::now();
        let answers = Answers {
            rows: variant.op.gives_rows().then_some(&mut results.rows[..]),
            pointers: (!results.pointers.is_empty()).then_some(&mut results.pointers[..]),
            status: Some(&mut results.status[..]),
            ..Answers::default()
        };
        match (variant.op.operation(), variant.op) {
            (Some(operation), op) => {
                let batch = Batch {
                    keys: &call.keys,
                    rows: op.takes_rows().then_some(rows),
                    flags: (op == Op::AccumulateOrAssign).then_some(&flags[..]),
                    ..Batch::default()
                };
                results.given = self.table.apply(operation, &batch, answers)?.len() as u64;
            }
            (None, Op::SizeIf) => results.given = self.table.size_if(&Condition::ALL)?,
            (None, Op::EraseIf) => results.given = self.table.erase_if(&NO_ENTRY)?,
            (None, Op::ExportBatch) => {
                results.given = self.table.export_batch(slots, &mut Entries::default())?;
            }
            (None, op) if op.pools() => self.table.find_pooled(
                &Bags::new(&call.keys, &offsets),
                &pooled_batch::options(),
                &mut results.rows,
                &mut results.bag_counts,
            )?,
            (None, Op::FindMissed) => {
                let missed = self.table.find_missed(&call.keys, &mut results.rows)?;
                results.given = missed.len() as u64;
            }
            (None, _) => self.table.lookup(variant.lookup, &call.keys, answers)?,
        }
        let took = start.elapsed();
        self.first_slot = (self.first_slot + self.items(variant.op)) % self.table.capacity();
        Ok((
            CommandTimes {
                device: took,
                wall: took,
            },
            results,
        ))
    }

    /// Undoes the changes that a call made to the keys, outside the timed part.
    fn put_back(&mut self, op: Op, call: &Call) -> Result<()> {
        if op == Op::Lock {
            self.table.unlock(&call.keys)?;
        }
        if op == Op::Erase {
            let keys = call.keys_with(true);
            self.table
                .insert_or_assign(&keys, &rows_of(&keys, self.setting.row_bytes()), None)?;
        }
        if op == Op::AccumulateOrAssign {
            let keys = call.keys_with(true);
            let rows = rows_of(&keys, self.setting.row_bytes());
            self.table.apply(
                Operation::AssignRows,
                &Batch::rows(&keys, &rows),
                Answers::default(),
            )?;
        }
        // In a full table, new entries have replaced the oldest ones; the next new entries replace
        // them in turn.
        if op.inserts() && self.setting.load < 1.0 {
            self.table.erase(&call.keys_with(false))?;
        }
        Ok(())
    }

    /// Runs a variant once and compares its results with what was inserted. Returns the share of
    /// the keys that it found.
    pub(super) fn check(&mut self, variant: OpVariant) -> Result<f64> {
        let call = self.keys.call(&self.setting)?;
        let size = self.table.size()?;
        let (_, results) = self.call(variant, &call, true)?;
        if matches!(variant.op, Op::SizeIf | Op::EraseIf | Op::ExportBatch) {
            match variant.op {
                Op::SizeIf => ensure!(results.given == size, "{} counted of {size}", results.given),
                Op::EraseIf => ensure!(results.given == 0, "{} erased by mistake", results.given),
                _ => ensure!(
                    results.given <= self.items(variant.op),
                    "more entries than slots"
                ),
            }
            return Ok(1.0);
        }
        let mut found = 0;
        let row_bytes = self.setting.row_bytes() as usize;
        if variant.op.pools() {
            let offsets = pooled_batch::offsets(call.keys.len(), self.setting.bag_keys);
            let (rows, counts) = (&results.rows, &results.bag_counts);
            let found = pooled_batch::check(&call, &offsets, row_bytes as u64, rows, counts)?;
            return Ok(found as f64 / call.keys.len() as f64);
        }
        for (i, (key, there)) in call.keys.iter().zip(&call.there).enumerate() {
            let mut is = *there;
            if variant.op != Op::FindMissed {
                is = matches!(results.status[i], Status::Found | Status::Pinned);
                // Writers to a full table, or to narrow buckets, may have evicted some entries.
                ensure!(
                    is == *there || (variant.op.operation().is_some() && !is),
                    "key {key} is {}there",
                    if *there { "" } else { "not " }
                );
            }
            found += usize::from(is);
            if !results.pointers.is_empty() && variant.op == Op::FindPtr {
                ensure!(
                    (results.pointers[i] != 0) == *there,
                    "key {key}: a pointer to nothing"
                );
            }
            if variant.op.gives_rows() && is {
                let row = &results.rows[i * row_bytes..][..row_bytes];
                ensure!(
                    row.iter().copied().eq(row_of(*key, row_bytes as u64)),
                    "key {key} has another row"
                );
            }
        }
        if variant.op == Op::FindMissed {
            let misses = (call.keys.len() - call.hits()) as u64;
            ensure!(
                results.given == misses,
                "{} of {misses} missed keys",
                results.given
            );
        }
        let share = found as f64 / call.keys.len() as f64;
        ensure!(
            share + 0.02 >= self.setting.hit_rate,
            "{share} of the keys were found"
        );
        Ok(share)
    }

    /// One timed turn: returns the keys or slots processed, and the time.
    pub(super) fn turn(&mut self, variant: OpVariant) -> Result<(u64, CommandTimes)> {
        let mut all = CommandTimes {
            device: Duration::ZERO,
            wall: Duration::ZERO,
        };
        let calls = self.setting.calls();
        for _ in 0..calls {
            let call = self.keys.call(&self.setting)?;
            let (took, _) = self.call(variant, &call, false)?;
            all.device += took.device;
            all.wall += took.wall;
        }
        Ok((self.items(variant.op) * calls as u64, all))
    }

    /// The memory traffic of lookups of the next keys, counted in this table, or in a smaller one
    /// that is equally full.
    pub(super) fn traffic(&mut self, lookup: LookupMode) -> Result<forerun_gpu::table::Traffic> {
        let call = self.keys.call(&self.setting)?;
        Ok(self.table.traffic(lookup, &call.keys)?)
    }
}
