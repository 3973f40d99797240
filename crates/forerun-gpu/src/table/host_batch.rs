//! Processes batches of keys in host memory with one copy to the device, one launch, one copy back
//! and one wait.
//!
//! ```text
//!   staging   │ keys │ rows │ scores │ flags │ count │ entries │ status │ rows │ scores │ ... │ entries' rows │
//!             └──────────── copied in ───────────────┘
//!                                            └──────────────── copied back ───────────────────┘
//! ```
//!
//! The count of entries goes in as zero. The rows of output entries are read afterwards, because a
//! batch may have many of them or none. A batch that does not fit into staging memory is processed
//! in parts.

use super::batch::{Answers, Batch, Entries, Status};
use super::params::{BY_FLAG, FOUND_READ_ROW, TableOp};
use super::staging::{EntryLayout, Layout};
use std::ops::Range;

/// An operation by key.
#[derive(Clone, Copy)]
pub(super) struct Keyed<'a> {
    pub(super) batch: &'a Batch<'a>,
    /// What a writer does; 0 for a lookup.
    pub(super) actions: u32,
    /// Whether it is a lookup that may run beside writers.
    pub(super) beside_writers: bool,
    /// Whether it returns entries: missing ones (a lookup) or those that the table does not keep.
    pub(super) with_rest: bool,
}

impl Keyed<'_> {
    /// Whether a key with this outcome has a row and a score in the answer. Other keys keep the
    /// caller's bytes, so nothing is copied for them.
    fn answered(&self, status: Status, flag: Option<u8>) -> (bool, bool) {
        let met = self.actions & BY_FLAG == 0 || flag.is_some_and(|flag| flag != 0);
        match status {
            Status::Absent | Status::Refused => (false, false),
            Status::Inserted | Status::Evicted => (true, true),
            Status::Found | Status::Pinned => {
                let reads = self.actions == 0 || self.actions & FOUND_READ_ROW != 0;
                (reads && met, met)
            }
        }
    }
}

/// The offsets of a part's arrays in staging memory.
pub(super) struct PartLayout {
    keys: u64,
    rows_in: Option<u64>,
    scores_in: Option<u64>,
    flags: Option<u64>,
    entries: Option<EntryLayout>,
    status: Option<u64>,
    rows_out: Option<u64>,
    scores_out: Option<u64>,
    slots_out: Option<u64>,
    pointers_out: Option<u64>,
    pub(super) input_bytes: u64,
    pub(super) output: Range<u64>,
    pub(super) bytes: u64,
}

impl PartLayout {
    pub(super) fn of(
        keyed: &Keyed<'_>,
        n: u64,
        row_bytes: u64,
        answers: &Answers<'_>,
    ) -> PartLayout {
        let batch = keyed.batch;
        let mut layout = Layout::default();
        let keys = layout.take(n * 8);
        let rows_in = layout.take_if(batch.rows.is_some(), n * row_bytes);
        let scores_in = layout.take_if(batch.scores.is_some(), n * 8);
        let flags = layout.take_if(batch.flags.is_some(), n);
        let output_start = layout.bytes;
        let is_writer = keyed.actions != 0;
        let mut entries = keyed
            .with_rest
            .then(|| EntryLayout::take(&mut layout, n, is_writer));
        let count_bytes = if entries.is_some() { 8 } else { 0 };
        // The outcome of each key determines whether it has a row and a score.
        let has_answers = answers.rows.is_some() || answers.scores.is_some();
        let status = layout.take_if(answers.status.is_some() || has_answers, n);
        let rows_out = layout.take_if(answers.rows.is_some(), n * row_bytes);
        let scores_out = layout.take_if(answers.scores.is_some(), n * 8);
        let slots_out = layout.take_if(answers.slots.is_some(), n * 8);
        let pointers_out = layout.take_if(answers.pointers.is_some(), n * 8);
        let output = output_start..layout.bytes;
        if let Some(entries) = entries.as_mut().filter(|_| is_writer) {
            entries.take_rows(&mut layout, row_bytes);
        }
        PartLayout {
            keys,
            rows_in,
            scores_in,
            flags,
            entries,
            status,
            rows_out,
            scores_out,
            slots_out,
            pointers_out,
            input_bytes: output_start + count_bytes,
            output,
            bytes: layout.bytes,
        }
    }

    pub(super) fn enter(&self, base: u64, op: &mut TableOp) {
        let at = |place: Option<u64>| Layout::place(base, place);
        op.keys = base + self.keys;
        op.rows_in = at(self.rows_in);
        op.scores_in = at(self.scores_in);
        op.flags = at(self.flags);
        op.status_out = at(self.status);
        op.rows_out = at(self.rows_out);
        op.scores_out = at(self.scores_out);
        op.slots_out = at(self.slots_out);
        op.pointers_out = at(self.pointers_out);
        if let Some(entries) = &self.entries {
            entries.enter(base, op);
        }
    }

    pub(super) fn fill(&self, batch: &Batch<'_>, bytes: &mut [u8]) {
        put_words(batch.keys.iter().copied(), bytes, self.keys);
        if let (Some(rows), Some(at)) = (batch.rows, self.rows_in) {
            bytes[at as usize..][..rows.len()].copy_from_slice(rows);
        }
        if let (Some(scores), Some(at)) = (batch.scores, self.scores_in) {
            put_words(scores.iter().copied(), bytes, at);
        }
        if let (Some(flags), Some(at)) = (batch.flags, self.flags) {
            bytes[at as usize..][..flags.len()].copy_from_slice(flags);
        }
        if self.entries.is_some() {
            put_words(std::iter::once(0), bytes, self.output.start);
        }
    }

    /// Copies the answers, and returns the entries without their rows.
    pub(super) fn take(
        &self,
        keyed: &Keyed<'_>,
        batch: &Batch<'_>,
        bytes: &[u8],
        row_bytes: usize,
        answers: &mut Answers<'_>,
        part: &Range<usize>,
    ) -> Entries {
        let from = |at: u64| &bytes[(at - self.output.start) as usize..];
        let n = batch.keys.len();
        if let Some(at) = self.status {
            let given = from(at)[..n].iter().map(|byte| Status::of(*byte));
            let rows_at = self.rows_out.map(from);
            let scores_at = self.scores_out.map(from);
            for (i, status) in given.enumerate() {
                let flag = batch.flags.map(|flags| flags[i]);
                let (row, score) = keyed.answered(status, flag);
                let to = part.start + i;
                if let (true, Some(rows), Some(from)) = (row, &mut answers.rows, rows_at) {
                    rows[to * row_bytes..][..row_bytes]
                        .copy_from_slice(&from[i * row_bytes..][..row_bytes]);
                }
                if let (true, Some(scores), Some(from)) = (score, &mut answers.scores, scores_at) {
                    scores[to] = word(from, i);
                }
                if let Some(all) = &mut answers.status {
                    all[to] = status;
                }
            }
        }
        for (to, at) in [
            (&mut answers.slots, self.slots_out),
            (&mut answers.pointers, self.pointers_out),
        ] {
            if let (Some(to), Some(at)) = (to, at) {
                get_words(from(at), &mut to[part.clone()]);
            }
        }
        let mut entries = Entries::default();
        if let Some(at) = &self.entries {
            let count = word(from(at.count), 0).min(n as u64) as usize;
            let words = |at: u64| {
                let mut words = vec![0; count];
                get_words(from(at), &mut words);
                words
            };
            entries.keys = words(at.keys);
            entries.positions = words(at.places);
            for position in &mut entries.positions {
                *position += part.start as u64;
            }
            if let Some(at) = at.scores {
                entries.scores = words(at);
            }
        }
        entries
    }
}

pub(super) fn put_words(words: impl Iterator<Item = u64>, bytes: &mut [u8], at: u64) {
    let places = bytes[at as usize..].as_chunks_mut().0;
    for (to, word) in places.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
}
fn get_words(bytes: &[u8], words: &mut [u64]) {
    for (to, word) in words.iter_mut().zip(bytes.as_chunks().0) {
        *to = u64::from_ne_bytes(*word);
    }
}
fn word(bytes: &[u8], i: usize) -> u64 {
    let mut words = [0];
    get_words(&bytes[i * 8..], &mut words);
    words[0]
}

#[cfg(test)]
mod tests {
    use super::super::batch::Operation;
    use super::*;

    #[test]
    fn only_answered_keys_have_rows_and_scores() {
        let batch = Batch::of(&[]);
        let answered = |operation: Option<Operation>, status, flag| {
            let keyed = Keyed {
                batch: &batch,
                actions: operation.map_or(0, Operation::actions),
                beside_writers: false,
                with_rest: false,
            };
            keyed.answered(status, flag)
        };
        let accumulate = Operation::AccumulateOrAssign(super::super::Element::F32);
        for (operation, status, flag, expected) in [
            (None, Status::Found, None, (true, true)),
            (None, Status::Absent, None, (false, false)),
            (
                Some(Operation::FindAndUpdate),
                Status::Pinned,
                None,
                (true, true),
            ),
            (
                Some(Operation::FindOrInsert),
                Status::Inserted,
                None,
                (true, true),
            ),
            (
                Some(Operation::FindOrInsert),
                Status::Refused,
                None,
                (false, false),
            ),
            (Some(Operation::Erase), Status::Found, None, (false, true)),
            (Some(accumulate), Status::Found, Some(1), (false, true)),
            (Some(accumulate), Status::Found, Some(0), (false, false)),
        ] {
            let found = answered(operation, status, flag);
            assert_eq!(found, expected, "{operation:?} {status:?} {flag:?}");
        }
    }
}
