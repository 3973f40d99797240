//! Batches of keys, the operations on them, and the answers by position in the caller's memory.

use super::error::TableError;
use super::params::{
    ABSENT_INSERT, BY_FLAG, EVICTED_OUT, FOUND_ADD_ROW, FOUND_ASSIGN_ROW, FOUND_ERASE, FOUND_PIN,
    FOUND_READ_ROW, FOUND_SCORE, FOUND_UNPIN, SCORE_AS_GIVEN,
};
use std::ops::Range;

/// The outcome of an operation for a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The key is not in the table and was not inserted.
    #[default]
    Absent = 0,
    /// The key was in the table.
    Found = 1,
    /// The key was inserted into a free slot.
    Inserted = 2,
    /// The key replaced an entry whose score was not greater.
    Evicted = 3,
    /// The key was not inserted: its buckets are full of greater scores or pinned entries.
    Refused = 4,
    /// The key is in the table but was not changed, because it is pinned.
    Pinned = 5,
}

impl Status {
    /// Whether the key is in the table after the operation, unless the operation was
    /// [`Operation::Erase`].
    pub fn is_present(self) -> bool {
        !matches!(self, Status::Absent | Status::Refused)
    }

    /// The status with this number, as a device writes it. Unknown numbers are [`Status::Absent`].
    pub fn of(number: u8) -> Status {
        match number {
            1 => Status::Found,
            2 => Status::Inserted,
            3 => Status::Evicted,
            4 => Status::Refused,
            5 => Status::Pinned,
            _ => Status::Absent,
        }
    }
}

/// The element type of rows that are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Element {
    /// `f32`.
    F32 = 0,
    /// `f64`.
    F64 = 1,
    /// `i32` or `u32`, wrapping.
    I32 = 2,
    /// `i64` or `u64`, wrapping.
    I64 = 3,
}

impl Element {
    /// Size in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Element::F32 | Element::I32 => 4,
            Element::F64 | Element::I64 => 8,
        }
    }
}

/// An operation on each key of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Sets the key's row. Inserts an absent key, if necessary in place of the entry with the
    /// lowest score.
    InsertOrAssign,
    /// Like [`Operation::InsertOrAssign`], and returns the entries that the table does not keep:
    /// evicted ones and refused new ones.
    InsertAndEvict,
    /// Returns the key's row. Inserts an absent key with the given row (zeros if none is given).
    FindOrInsert,
    /// Adds the given row to a present key whose flag is not 0. Inserts an absent key whose flag is
    /// 0.
    AccumulateOrAssign(Element),
    /// Sets row and score of a present key.
    Assign,
    /// Sets the row of a present key and keeps its score.
    AssignRows,
    /// Updates the score of a present key by the strategy and keeps its row.
    AssignScores,
    /// Returns the row of a present key and updates its score by the strategy.
    FindAndUpdate,
    /// Pins the entry: nothing changes, erases or evicts it until it is unlocked.
    Lock,
    /// Unpins the entry.
    Unlock,
    /// Erases the entry.
    Erase,
    /// Like [`Operation::InsertOrAssign`], with the given scores under every strategy: restores
    /// exported entries.
    Restore,
}

impl Operation {
    /// The kernels' action bits.
    pub(crate) fn actions(self) -> u32 {
        match self {
            Operation::InsertOrAssign => FOUND_ASSIGN_ROW | FOUND_SCORE | ABSENT_INSERT,
            Operation::InsertAndEvict => {
                FOUND_ASSIGN_ROW | FOUND_SCORE | ABSENT_INSERT | EVICTED_OUT
            }
            Operation::FindOrInsert => FOUND_READ_ROW | FOUND_SCORE | ABSENT_INSERT,
            Operation::AccumulateOrAssign(_) => {
                FOUND_ADD_ROW | FOUND_SCORE | ABSENT_INSERT | BY_FLAG
            }
            Operation::Assign => FOUND_ASSIGN_ROW | FOUND_SCORE,
            Operation::AssignRows => FOUND_ASSIGN_ROW,
            Operation::AssignScores => FOUND_SCORE,
            Operation::FindAndUpdate => FOUND_READ_ROW | FOUND_SCORE,
            Operation::Lock => FOUND_PIN,
            Operation::Unlock => FOUND_UNPIN,
            Operation::Erase => FOUND_ERASE,
            Operation::Restore => FOUND_ASSIGN_ROW | FOUND_SCORE | ABSENT_INSERT | SCORE_AS_GIVEN,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::InsertOrAssign => "insert_or_assign",
            Operation::InsertAndEvict => "insert_and_evict",
            Operation::FindOrInsert => "find_or_insert",
            Operation::AccumulateOrAssign(_) => "accumulate_or_assign",
            Operation::Assign => "assign",
            Operation::AssignRows => "assign_rows",
            Operation::AssignScores => "assign_scores",
            Operation::FindAndUpdate => "find_and_update",
            Operation::Lock => "lock",
            Operation::Unlock => "unlock",
            Operation::Erase => "erase",
            Operation::Restore => "restore",
        }
    }

    pub(crate) fn element(self) -> Element {
        match self {
            Operation::AccumulateOrAssign(element) => element,
            _ => Element::F32,
        }
    }

    /// What must divide the address of input rows: sums read whole elements.
    pub(crate) fn row_align(self) -> u64 {
        match self {
            Operation::AccumulateOrAssign(element) => element.bytes(),
            _ => 1,
        }
    }

    fn takes_rows(self) -> bool {
        matches!(
            self,
            Operation::InsertOrAssign
                | Operation::InsertAndEvict
                | Operation::AccumulateOrAssign(_)
                | Operation::Assign
                | Operation::AssignRows
                | Operation::Restore
        )
    }

    /// Checks that a batch has the arrays that the operation needs. `has_rows`, `has_scores` and
    /// `has_flags` report what it has.
    pub(crate) fn check(
        self,
        row_bytes: u64,
        has_rows: bool,
        has_scores: bool,
        has_flags: bool,
    ) -> Result<(), TableError> {
        let missing = |what| TableError::Missing {
            operation: self.name(),
            what,
        };
        if self.takes_rows() && row_bytes > 0 && !has_rows {
            return Err(missing("rows"));
        }
        if self == Operation::Restore && !has_scores {
            return Err(missing("scores"));
        }
        if let Operation::AccumulateOrAssign(element) = self {
            if !has_flags {
                return Err(missing("flags"));
            }
            if !row_bytes.is_multiple_of(element.bytes()) {
                return Err(TableError::NotElements {
                    row_bytes,
                    element_bytes: element.bytes(),
                });
            }
        }
        Ok(())
    }
}

/// How many lookups only measurements choose.
const STUDY: usize = if cfg!(feature = "study") { 2 } else { 0 };

/// How slots are searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LookupMode {
    /// With tiles of lanes: narrow while the table is at most 13/16 full, wide beyond. With two
    /// candidates of 128 slots, at most 3/4 full, and 2^16 keys or more: one thread per key, which
    /// was measured to be faster there. The kernel reads the load from the table.
    #[default]
    ByLoad,
    /// With tiles: first half of a row of 128 digests, then the other half if necessary.
    Narrow,
    /// With tiles: the row of digests in one request.
    Wide,
    /// One thread per key, 16 digests at a time.
    Thread,
    /// One warp per key in a pipeline of three steps: HierarchicalKV's, for buckets of 128 slots.
    /// It must not run concurrently with operations that change entries.
    #[cfg(feature = "study")]
    Pipeline,
    /// HierarchicalKV's rule: the pipeline above 7/8 full, otherwise one thread per key. Like the
    /// pipeline, it must not run concurrently with operations that change entries.
    #[cfg(feature = "study")]
    SeedRule,
}

impl LookupMode {
    /// All of them.
    pub const ALL: [LookupMode; 4 + STUDY] = [
        LookupMode::ByLoad,
        LookupMode::Narrow,
        LookupMode::Wide,
        LookupMode::Thread,
        #[cfg(feature = "study")]
        LookupMode::Pipeline,
        #[cfg(feature = "study")]
        LookupMode::SeedRule,
    ];

    /// Whether operations that change entries may run at the same time. The pipeline copies with
    /// cp.async, which guarantees no memory order.
    #[cfg(feature = "study")]
    pub fn may_run_beside_writers(self) -> bool {
        !matches!(self, LookupMode::Pipeline | LookupMode::SeedRule)
    }

    /// The name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            LookupMode::ByLoad => "by-load",
            LookupMode::Narrow => "narrow",
            LookupMode::Wide => "wide",
            LookupMode::Thread => "thread",
            #[cfg(feature = "study")]
            LookupMode::Pipeline => "pipeline",
            #[cfg(feature = "study")]
            LookupMode::SeedRule => "seed-rule",
        }
    }
}

/// Keys, and the arrays that accompany them. Rows are concatenated.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    /// Any keys in any order; they may repeat.
    pub keys: &'a [u64],
    /// One row per key.
    pub rows: Option<&'a [u8]>,
    /// One score per key.
    pub scores: Option<&'a [u64]>,
    /// One flag per key, for [`Operation::AccumulateOrAssign`].
    pub flags: Option<&'a [u8]>,
    /// The epoch of the epoch strategies, up to 2^32 - 1.
    pub epoch: u64,
}

impl<'a> Batch<'a> {
    /// A batch of keys only.
    pub fn of(keys: &'a [u64]) -> Batch<'a> {
        Batch {
            keys,
            ..Batch::default()
        }
    }

    /// A batch of keys with rows.
    pub fn rows(keys: &'a [u64], rows: &'a [u8]) -> Batch<'a> {
        Batch {
            keys,
            rows: Some(rows),
            ..Batch::default()
        }
    }

    /// The batch with scores.
    pub fn with_scores(self, scores: &'a [u64]) -> Batch<'a> {
        Batch {
            scores: Some(scores),
            ..self
        }
    }

    pub(crate) fn check(&self, operation: Operation, row_bytes: u64) -> Result<(), TableError> {
        let keys = self.keys.len() as u64;
        let has = (
            self.rows.is_some(),
            self.scores.is_some(),
            self.flags.is_some(),
        );
        operation.check(row_bytes, has.0, has.1, has.2)?;
        expect(
            "rows",
            "bytes",
            self.rows.map(<[u8]>::len),
            keys * row_bytes,
            keys,
        )?;
        expect(
            "scores",
            "scores",
            self.scores.map(<[u64]>::len),
            keys,
            keys,
        )?;
        expect("flags", "flags", self.flags.map(<[u8]>::len), keys, keys)?;
        if self.epoch >> 32 != 0 {
            return Err(TableError::Epoch { epoch: self.epoch });
        }
        Ok(())
    }

    /// A part of the batch.
    pub(crate) fn part(&self, of: Range<usize>, row_bytes: usize) -> Batch<'a> {
        let rows = of.start * row_bytes..of.end * row_bytes;
        Batch {
            keys: &self.keys[of.clone()],
            rows: self.rows.map(|all| &all[rows]),
            scores: self.scores.map(|all| &all[of.clone()]),
            flags: self.flags.map(|all| &all[of]),
            epoch: self.epoch,
        }
    }
}

/// Where answers go: one entry per key in each array that is present.
#[derive(Debug, Default)]
pub struct Answers<'a> {
    /// The row. If the key is absent, these bytes stay as they are; if another stream removed the
    /// key during the lookup, they are zeros.
    pub rows: Option<&'a mut [u8]>,
    /// The score after the operation. If the key is absent, it stays as it is, or is 0, like the
    /// row.
    pub scores: Option<&'a mut [u64]>,
    /// The slot, or `u64::MAX`.
    pub slots: Option<&'a mut [u64]>,
    /// The device address of the row, or 0. It is valid until the entry is erased or evicted.
    pub pointers: Option<&'a mut [u64]>,
    /// The outcome.
    pub status: Option<&'a mut [Status]>,
}

impl Answers<'_> {
    pub(crate) fn check(&self, keys: usize, row_bytes: u64) -> Result<(), TableError> {
        let keys = keys as u64;
        let rows = self.rows.as_ref().map(|all| all.len());
        let scores = self.scores.as_ref().map(|all| all.len());
        let slots = self.slots.as_ref().map(|all| all.len());
        let pointers = self.pointers.as_ref().map(|all| all.len());
        let status = self.status.as_ref().map(|all| all.len());
        check_rows_len(rows, row_bytes, keys)?;
        expect("score answers", "entries", scores, keys, keys)?;
        expect("slot answers", "entries", slots, keys, keys)?;
        expect("pointer answers", "entries", pointers, keys, keys)?;
        expect("status answers", "entries", status, keys, keys)
    }
}

/// Checks that this many bytes are one row per key.
pub(super) fn check_rows_len(
    bytes: Option<usize>,
    row_bytes: u64,
    keys: u64,
) -> Result<(), TableError> {
    expect("row answers", "bytes", bytes, keys * row_bytes, keys)
}

fn expect(
    what: &'static str,
    unit: &'static str,
    found: Option<usize>,
    expected: u64,
    keys: u64,
) -> Result<(), TableError> {
    match found {
        Some(found) if found as u64 != expected => Err(TableError::Length {
            what,
            unit,
            found: found as u64,
            expected,
            keys,
        }),
        _ => Ok(()),
    }
}

/// Evicted, missing or exported entries, in no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// One key each.
    pub keys: Vec<u64>,
    /// One score each; empty for missing keys.
    pub scores: Vec<u64>,
    /// One row each, concatenated; empty for missing keys.
    pub rows: Vec<u8>,
    /// For evicted entries, the position in the batch of the key that took the slot. For missing
    /// keys, their position. For exported entries, the slot.
    pub positions: Vec<u64>,
}

impl Entries {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn append(&mut self, mut more: Entries) {
        self.keys.append(&mut more.keys);
        self.scores.append(&mut more.scores);
        self.rows.append(&mut more.rows);
        self.positions.append(&mut more.positions);
    }

    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.scores.clear();
        self.rows.clear();
        self.positions.clear();
    }
}

/// A condition on entries: the score is in a range, and the key has given bits.
///
/// ```
/// use forerun_gpu::table::Condition;
///
/// let old = Condition { scores: 0..=99, ..Condition::ALL };
/// let of_table_7 = Condition { key_mask: 0xff << 56, key_value: 7 << 56, ..Condition::ALL };
/// assert!(old.holds(7 << 56 | 1, 99) && of_table_7.holds(7 << 56 | 1, 100) && !old.holds(1, 100));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The range of scores, inclusive.
    pub scores: std::ops::RangeInclusive<u64>,
    /// The bits of the key that are compared.
    pub key_mask: u64,
    /// The value that these bits must have.
    pub key_value: u64,
}

impl Condition {
    /// Matches every entry.
    pub const ALL: Condition = Condition {
        scores: 0..=u64::MAX,
        key_mask: 0,
        key_value: 0,
    };

    /// Whether an entry matches.
    pub fn holds(&self, key: u64, score: u64) -> bool {
        self.scores.contains(&score) && key & self.key_mask == self.key_value
    }
}
