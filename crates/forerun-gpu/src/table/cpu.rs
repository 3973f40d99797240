//! The table on the CPU. It is the reference for the kernels and replaces them on machines without
//! a GPU.
//!
//! It processes the keys of a batch in order. For each key it chooses the same slot, victim and
//! score as a launch of one warp does (`kernels/table/write.cuh`). It prefetches the digests of
//! later keys.

use super::batch::{Answers, Batch, Condition, Element, Entries, Operation, Status};
use super::candidate_slots::{CandidateSlots, EMPTY, RECLAIMED};
use super::error::TableError;
use super::params::{
    ABSENT_INSERT, BY_FLAG, EVICTED_OUT, FOUND_ADD_ROW, FOUND_ASSIGN_ROW, FOUND_ERASE, FOUND_PIN,
    FOUND_READ_ROW, FOUND_SCORE, FOUND_UNPIN, SCAN_ERASE, SCAN_EXPORT, TableOp, TableState,
};
use super::score::{EvictOrder, held, score_of};
use forerun_core::arch::prefetch_read;
use forerun_core::sync::time;
use std::ops::Range;
use std::time::UNIX_EPOCH;

/// Slots whose digests a search compares together.
const CHUNK_SLOTS: u64 = 16;
/// Prefetch distance in keys.
const AHEAD: usize = 16;
const NO_SLOT: u64 = u64::MAX;

/// The arrays of `docs/internals/gpu-table.md`, in ordinary memory.
pub(crate) struct CpuTable {
    /// The table's layout; the addresses are 0.
    pub(crate) form: TableState,
    pub(super) digests: Vec<u8>,
    pub(super) keys: Vec<u64>,
    scores: Vec<u64>,
    /// One flag per bucket: whether a key with this home was ever inserted into its second bucket.
    pub(super) spilled: Vec<bool>,
    pins: Vec<bool>,
    rows: Vec<u8>,
    pub(crate) size: u64,
    pub(super) pinned: u64,
    last_ns: u64,
}

fn filled<T: Clone>(value: T, len: u64, what: &'static str) -> Result<Vec<T>, TableError> {
    let out_of_memory = |_| TableError::OutOfMemory {
        bytes: len.saturating_mul(size_of::<T>() as u64),
        what,
    };
    let mut all = Vec::new();
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    all.try_reserve_exact(len).map_err(out_of_memory)?;
    all.resize(len, value);
    Ok(all)
}

impl CpuTable {
    pub(crate) fn new(form: TableState) -> Result<CpuTable, TableError> {
        let slots = form.buckets * u64::from(form.width);
        Ok(CpuTable {
            form,
            digests: filled(EMPTY, slots, "digests")?,
            keys: filled(0, slots, "keys")?,
            scores: filled(0, slots, "scores")?,
            spilled: filled(false, form.buckets, "buckets")?,
            pins: filled(false, slots, "pins")?,
            rows: filled(0, slots.saturating_mul(form.row_stride_bytes), "rows")?,
            size: 0,
            pinned: 0,
            last_ns: 0,
        })
    }

    fn row_range(&self, slot: u64) -> Range<usize> {
        let start = (slot * self.form.row_stride_bytes) as usize;
        start..start + self.form.row_bytes as usize
    }

    /// The row of a slot.
    pub(crate) fn row(&self, slot: u64) -> &[u8] {
        &self.rows[self.row_range(slot)]
    }

    fn pointer(&self, slot: u64) -> u64 {
        self.rows.as_ptr() as u64 + slot * self.form.row_stride_bytes
    }

    /// A time that is strictly later than the last one returned.
    pub(super) fn time_ns(&mut self) -> u64 {
        let since = time::system_now().duration_since(UNIX_EPOCH);
        let now = since.map_or(0, |since| since.as_nanos() as u64);
        self.last_ns = now.max(self.last_ns + 1);
        self.last_ns
    }

    /// The slot of a bucket that has the key.
    fn slot_in(&self, bucket: u64, place: &CandidateSlots, key: u64) -> Option<u64> {
        let width = u64::from(self.form.width);
        for turn in (0..width).step_by(CHUNK_SLOTS as usize) {
            let first = bucket * width + (place.start ^ turn);
            let chunk = &self.digests[first as usize..(first + CHUNK_SLOTS) as usize];
            let here = (first..).zip(chunk).find(|(slot, digest)| {
                **digest == place.digest && self.keys[*slot as usize] == key
            });
            if let Some((slot, _)) = here {
                return Some(slot);
            }
            if chunk.contains(&EMPTY) {
                return None;
            }
        }
        None
    }

    pub(super) fn slot_of(&self, place: &CandidateSlots, key: u64) -> Option<u64> {
        self.slot_in(place.home, place, key).or_else(|| {
            let spilled = self.form.candidates == 2 && self.spilled[place.home as usize];
            spilled.then(|| self.slot_in(place.spill, place, key))?
        })
    }

    /// Prefetches the digests of a key's home at which the search begins.
    pub(super) fn fetch(&self, key: u64) {
        let place = CandidateSlots::of(&self.form, key);
        let first = place.home * u64::from(self.form.width);
        prefetch_read(&raw const self.digests[(first + place.start) as usize]);
    }

    /// Finds the keys of a batch. Missing ones go to `missed`.
    pub(crate) fn find(
        &self,
        keys: &[u64],
        answers: &mut Answers<'_>,
        mut missed: Option<&mut Entries>,
    ) {
        let row_bytes = self.form.row_bytes as usize;
        keys.iter().take(AHEAD).for_each(|key| self.fetch(*key));
        for (i, &key) in keys.iter().enumerate() {
            if let Some(&later) = keys.get(i + AHEAD) {
                self.fetch(later);
            }
            let slot = self.slot_of(&CandidateSlots::of(&self.form, key), key);
            if let Some(slot) = slot {
                if let Some(rows) = &mut answers.rows {
                    rows[i * row_bytes..][..row_bytes].copy_from_slice(self.row(slot));
                }
                if let Some(scores) = &mut answers.scores {
                    scores[i] = self.scores[slot as usize];
                }
            } else if let Some(missed) = &mut missed {
                missed.keys.push(key);
                missed.positions.push(i as u64);
            }
            let status = slot.map_or(Status::Absent, |_| Status::Found);
            self.answer(i, slot, status, answers);
        }
    }

    fn answer(&self, i: usize, slot: Option<u64>, status: Status, answers: &mut Answers<'_>) {
        if let Some(slots) = &mut answers.slots {
            slots[i] = slot.unwrap_or(NO_SLOT);
        }
        if let Some(pointers) = &mut answers.pointers {
            pointers[i] = slot.map_or(0, |slot| self.pointer(slot));
        }
        if let Some(all) = &mut answers.status {
            all[i] = status;
        }
    }

    /// Applies one operation to every key of a batch.
    pub(crate) fn write(
        &mut self,
        operation: Operation,
        batch: &Batch<'_>,
        answers: &mut Answers<'_>,
        rest: &mut Entries,
    ) {
        let op = TableOp {
            table: self.form,
            epoch: batch.epoch,
            actions: operation.actions(),
            element: operation.element() as u32,
            ..TableOp::default()
        };
        for (i, &key) in batch.keys.iter().enumerate() {
            if let Some(&later) = batch.keys.get(i + AHEAD) {
                self.fetch(later);
            }
            let mut key = Key {
                op: &op,
                batch,
                i,
                key,
                place: CandidateSlots::of(&self.form, key),
            };
            let found = self.slot_of(&key.place, key.key);
            let flag = op.actions & BY_FLAG != 0 && batch.flags.is_some_and(|flags| flags[i] != 0);
            let (slot, status) = match found {
                Some(slot) if op.actions & BY_FLAG != 0 && !flag => (Some(slot), Status::Found),
                Some(slot) => (Some(slot), self.meet(&key, slot, answers)),
                None if op.actions & ABSENT_INSERT != 0 && !flag => {
                    self.insert(&mut key, answers, rest)
                }
                None => (None, Status::Absent),
            };
            self.answer(i, slot, status, answers);
        }
    }

    /// Applies the operation to a present key.
    fn meet(&mut self, key: &Key<'_>, slot: u64, answers: &mut Answers<'_>) -> Status {
        let (at, i, actions) = (slot as usize, key.i, key.op.actions);
        let row_bytes = self.form.row_bytes as usize;
        let range = self.row_range(slot);
        if actions & FOUND_READ_ROW != 0
            && let Some(rows) = &mut answers.rows
        {
            rows[i * row_bytes..][..row_bytes].copy_from_slice(&self.rows[range.clone()]);
        }
        let pinned = self.pins[at];
        let mut status = Status::Found;
        if pinned && actions & FOUND_UNPIN == 0 {
            let changes = FOUND_ASSIGN_ROW | FOUND_ADD_ROW | FOUND_SCORE | FOUND_ERASE | FOUND_PIN;
            if actions & changes != 0 {
                status = Status::Pinned;
            }
        } else {
            if actions & FOUND_ASSIGN_ROW != 0 {
                self.rows[range.clone()].copy_from_slice(key.row());
            }
            if actions & FOUND_ADD_ROW != 0 {
                add_row(key.op.element, &mut self.rows[range], key.row());
            }
            if actions & FOUND_SCORE != 0 {
                let before = self.scores[at];
                self.scores[at] = score_of(key.op, key.score(), Some(before), || self.time_ns());
            }
        }
        if let Some(scores) = &mut answers.scores {
            scores[i] = self.scores[at];
        }
        if status == Status::Pinned {
            return status;
        }
        if actions & FOUND_PIN != 0 && !pinned {
            self.pins[at] = true;
            self.pinned += 1;
        }
        if actions & FOUND_UNPIN != 0 && pinned {
            self.pins[at] = false;
            self.pinned -= 1;
        }
        if actions & FOUND_ERASE != 0 {
            self.digests[at] = RECLAIMED;
            self.size -= 1;
        }
        status
    }

    fn free_in(&self, bucket: u64) -> u64 {
        let width = self.form.width as usize;
        let row = &self.digests[bucket as usize * width..][..width];
        row.iter().filter(|digest| **digest <= RECLAIMED).count() as u64
    }

    fn insert(
        &mut self,
        key: &mut Key<'_>,
        answers: &mut Answers<'_>,
        rest: &mut Entries,
    ) -> (Option<u64>, Status) {
        let score = score_of(key.op, key.score(), None, || self.time_ns());
        let width = u64::from(self.form.width);
        let place = key.place;
        let free_home = self.free_in(place.home);
        let free_spill = if self.form.candidates == 2 {
            self.free_in(place.spill)
        } else {
            0
        };
        if free_home + free_spill == 0 {
            return self.insert_in_place(key, score, answers, rest);
        }
        // Use the home until few of its slots are free, then the bucket with more free slots.
        let spills = free_home <= width * 3 / 16 && free_spill > free_home;
        let first = if spills { place.spill } else { place.home } * width;
        let slot = (0..width)
            .map(|turn| first + (place.start ^ turn))
            .find(|slot| self.digests[*slot as usize] <= RECLAIMED);
        // The counts above show that one of the two has a free slot.
        let Some(slot) = slot else {
            return (None, Status::Refused);
        };
        self.put(key, slot, score, spills, answers);
        self.size += 1;
        (Some(slot), Status::Inserted)
    }

    fn insert_in_place(
        &mut self,
        key: &Key<'_>,
        score: u64,
        answers: &mut Answers<'_>,
        rest: &mut Entries,
    ) -> (Option<u64>, Status) {
        let width = u64::from(self.form.width);
        let gives = key.op.actions & EVICTED_OUT != 0;
        let buckets = [key.place.home, key.place.spill];
        let order = EvictOrder::of(self.form.policy, || self.time_ns());
        // On a tie, take the first one: the home's, then the lowest slot.
        let least = buckets[..self.form.candidates as usize]
            .iter()
            .flat_map(|bucket| bucket * width..(bucket + 1) * width)
            .filter(|slot| !self.pins[*slot as usize])
            .min_by_key(|slot| order.rank(self.scores[*slot as usize]));
        match least {
            Some(slot) if order.rank(score) >= order.rank(self.scores[slot as usize]) => {
                if gives {
                    let at = slot as usize;
                    rest.keys.push(self.keys[at]);
                    rest.scores.push(self.scores[at]);
                    rest.rows
                        .extend_from_slice(&self.rows[self.row_range(slot)]);
                    rest.positions.push(key.i as u64);
                }
                let spills = self.form.candidates == 2 && slot / width == key.place.spill;
                self.put(key, slot, score, spills, answers);
                (Some(slot), Status::Evicted)
            }
            _ => {
                if gives {
                    rest.keys.push(key.key);
                    rest.scores.push(score);
                    rest.rows.extend_from_slice(key.row());
                    rest.positions.push(key.i as u64);
                }
                (None, Status::Refused)
            }
        }
    }

    fn put(
        &mut self,
        key: &Key<'_>,
        slot: u64,
        score: u64,
        spills: bool,
        answers: &mut Answers<'_>,
    ) {
        let (at, range) = (slot as usize, self.row_range(slot));
        match key.batch.rows {
            Some(_) => self.rows[range.clone()].copy_from_slice(key.row()),
            None => self.rows[range.clone()].fill(0),
        }
        if let Some(rows) = &mut answers.rows {
            let bytes = self.form.row_bytes as usize;
            rows[key.i * bytes..][..bytes].copy_from_slice(&self.rows[range]);
        }
        self.scores[at] = held(self.form.score_bytes, score);
        self.keys[at] = key.key;
        self.digests[at] = key.place.digest;
        if spills {
            self.spilled[key.place.home as usize] = true;
        }
        if let Some(scores) = &mut answers.scores {
            scores[key.i] = self.scores[at];
        }
    }

    /// Scans a range of slots and returns the number of matching entries.
    pub(crate) fn scan(
        &mut self,
        scan: u32,
        slots: Range<u64>,
        condition: &Condition,
        out: &mut Entries,
    ) -> u64 {
        let mut met = 0;
        for slot in slots {
            let at = slot as usize;
            let is_there = self.digests[at] > RECLAIMED;
            if !is_there || !condition.holds(self.keys[at], self.scores[at]) {
                continue;
            }
            if scan == SCAN_ERASE {
                if self.pins[at] {
                    continue;
                }
                self.digests[at] = RECLAIMED;
                self.size -= 1;
            }
            met += 1;
            if scan == SCAN_EXPORT {
                out.keys.push(self.keys[at]);
                out.scores.push(self.scores[at]);
                out.rows.extend_from_slice(&self.rows[self.row_range(slot)]);
                out.positions.push(slot);
            }
        }
        met
    }

    /// Clears the table. Pinned entries are removed too.
    pub(crate) fn clear(&mut self) {
        self.digests.fill(EMPTY);
        self.spilled.fill(false);
        self.pins.fill(false);
        (self.size, self.pinned) = (0, 0);
    }

    /// One digest, key, score and pin per slot, to compare the table with another.
    pub(crate) fn arrays(&self) -> super::Image {
        (
            self.digests.clone(),
            self.keys.clone(),
            self.scores.clone(),
            self.pins.clone(),
        )
    }
}

/// The current key of a batch.
struct Key<'a> {
    op: &'a TableOp,
    batch: &'a Batch<'a>,
    i: usize,
    key: u64,
    place: CandidateSlots,
}

impl Key<'_> {
    /// Its row in the batch; empty if the batch has no rows.
    fn row(&self) -> &[u8] {
        let bytes = self.op.table.row_bytes as usize;
        self.batch
            .rows
            .map_or(&[], |rows| &rows[self.i * bytes..][..bytes])
    }

    fn score(&self) -> Option<u64> {
        self.batch.scores.map(|scores| scores[self.i])
    }
}

fn add_row(element: u32, to: &mut [u8], from: &[u8]) {
    macro_rules! add {
        ($type:ty, $add:expr) => {
            for (to, from) in to
                .as_chunks_mut::<{ size_of::<$type>() }>()
                .0
                .iter_mut()
                .zip(from.as_chunks().0)
            {
                *to =
                    $add(<$type>::from_ne_bytes(*to), <$type>::from_ne_bytes(*from)).to_ne_bytes();
            }
        };
    }
    match element {
        e if e == Element::F32 as u32 => add!(f32, |a: f32, b: f32| a + b),
        e if e == Element::F64 as u32 => add!(f64, |a: f64, b: f64| a + b),
        e if e == Element::I32 as u32 => add!(u32, u32::wrapping_add),
        _ => add!(u64, u64::wrapping_add),
    }
}
