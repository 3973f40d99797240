//! A batch of keys, what is done with it, and what comes back: by position, in the caller's memory.

use super::error::TableError;
use super::params::{
    ABSENT_INSERT, BY_FLAG, EVICTED_OUT, FOUND_ADD_ROW, FOUND_ASSIGN_ROW, FOUND_ERASE, FOUND_PIN,
    FOUND_READ_ROW, FOUND_SCORE, FOUND_UNPIN, SCORE_AS_GIVEN,
};
use std::ops::Range;

/// What became of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// It is not in the table, and was not put in.
    #[default]
    Absent = 0,
    /// It was there.
    Found = 1,
    /// It was put into a free slot.
    Inserted = 2,
    /// It was put in the place of an entry whose score was not greater.
    Evicted = 3,
    /// It was not put in: its buckets are full of greater scores, or of pinned entries.
    Refused = 4,
    /// It was there and stays as it is, since it is pinned.
    Pinned = 5,
}

impl Status {
    /// Whether the key is in the table after the operation (an erased one apart).
    pub fn is_present(self) -> bool {
        !matches!(self, Status::Absent | Status::Refused)
    }

    /// By its number, as a device writes it; an unknown one is [`Status::Absent`].
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

/// The numbers that rows are made of, where they are added up.
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
    /// Bytes of one.
    pub fn bytes(self) -> u64 {
        match self {
            Element::F32 | Element::I32 => 4,
            Element::F64 | Element::I64 => 8,
        }
    }
}

/// What is done with each key of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The key's row becomes the given one; an absent key is put in, if need be in place of the
    /// least score.
    InsertOrAssign,
    /// The same, and what the table does not keep is given away: evicted entries, refused
    /// newcomers.
    InsertAndEvict,
    /// The key's row is given back; an absent key is put in with the given row (zeros where none is
    /// given).
    FindOrInsert,
    /// A key with a flag that is not 0 has the given row added to its own, if it is there; one with
    /// flag 0 is put in, if it is not.
    AccumulateOrAssign(Element),
    /// Row and score of a key that is there become the given ones.
    Assign,
    /// Its row does, and its score stays.
    AssignRows,
    /// Its score follows the policy, and its row stays.
    AssignScores,
    /// Its row is given back, and its score follows the policy.
    FindAndUpdate,
    /// The entry is pinned: nothing changes, erases or evicts it until it is unlocked.
    Lock,
    /// It is no longer.
    Unlock,
    /// It goes.
    Erase,
    /// As [`Operation::InsertOrAssign`], with the given scores whatever the policy: what was
    /// exported comes back.
    Restore,
}

impl Operation {
    /// The kernels' bits.
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

    /// Which arrays a batch must bring, and of which table: `(has rows, has scores, has flags)` is
    /// what it has.
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

/// How slots are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lookup {
    /// By tiles of lanes; narrow up to 7/8 full, wide beyond. How full the table is, the kernel
    /// reads from the table.
    #[default]
    ByLoad,
    /// By tiles, a sector of 32 digests first, the rest of the row if need be.
    Narrow,
    /// By tiles, the row of digests in one request.
    Wide,
    /// By one thread a key, 16 digests at a time.
    Thread,
    /// By a warp a key in a pipeline of three steps: HierarchicalKV's, for buckets of 128.
    Pipeline,
    /// HierarchicalKV's rule: the pipeline above 7/8 full, else a thread a key.
    SeedRule,
}

impl Lookup {
    /// All of them.
    pub const ALL: [Lookup; 6] = [
        Lookup::ByLoad,
        Lookup::Narrow,
        Lookup::Wide,
        Lookup::Thread,
        Lookup::Pipeline,
        Lookup::SeedRule,
    ];

    /// As it is named on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Lookup::ByLoad => "by-load",
            Lookup::Narrow => "narrow",
            Lookup::Wide => "wide",
            Lookup::Thread => "thread",
            Lookup::Pipeline => "pipeline",
            Lookup::SeedRule => "seed-rule",
        }
    }
}

/// Keys, and what comes along with each. Rows lie one behind the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    /// Any, in any order, any of them several times.
    pub keys: &'a [u64],
    /// A row a key.
    pub rows: Option<&'a [u8]>,
    /// A score a key.
    pub scores: Option<&'a [u64]>,
    /// A flag a key, of [`Operation::AccumulateOrAssign`].
    pub flags: Option<&'a [u8]>,
    /// Of the epoch policies; up to 2^32 - 1.
    pub epoch: u64,
}

impl<'a> Batch<'a> {
    /// Keys alone.
    pub fn of(keys: &'a [u64]) -> Batch<'a> {
        Batch {
            keys,
            ..Batch::default()
        }
    }

    /// Keys with rows.
    pub fn rows(keys: &'a [u64], rows: &'a [u8]) -> Batch<'a> {
        Batch {
            keys,
            rows: Some(rows),
            ..Batch::default()
        }
    }

    /// With scores.
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

    /// Some of its keys.
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

/// Where to put what is asked for: an entry a key each, or nothing.
#[derive(Debug, Default)]
pub struct Answers<'a> {
    /// Its row; bytes of keys that are not there stay as they are.
    pub rows: Option<&'a mut [u8]>,
    /// Its score after the operation; those of keys that are not there stay as they are.
    pub scores: Option<&'a mut [u64]>,
    /// Its slot, or `u64::MAX`.
    pub slots: Option<&'a mut [u64]>,
    /// The address of its row as the device sees it, or 0; good until the entry is erased or
    /// evicted.
    pub pointers: Option<&'a mut [u64]>,
    /// What became of it.
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
        expect("room for scores", "entries", scores, keys, keys)?;
        expect("room for slots", "entries", slots, keys, keys)?;
        expect("room for pointers", "entries", pointers, keys, keys)?;
        expect(
            "room for what became of them",
            "entries",
            status,
            keys,
            keys,
        )
    }
}

/// That so many bytes are a row a key.
pub(super) fn check_rows_len(
    bytes: Option<usize>,
    row_bytes: u64,
    keys: u64,
) -> Result<(), TableError> {
    expect("room for rows", "bytes", bytes, keys * row_bytes, keys)
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

/// Entries that were given away: evicted, missed or exported ones. In no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// A key each.
    pub keys: Vec<u64>,
    /// A score each; of missed keys none.
    pub scores: Vec<u64>,
    /// A row each, one behind the other; of missed keys none.
    pub rows: Vec<u8>,
    /// Of an evicted entry and a missed key the place in the batch (of the key that took its slot);
    /// of an exported one the slot.
    pub places: Vec<u64>,
}

impl Entries {
    /// How many.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.scores.clear();
        self.rows.clear();
        self.places.clear();
    }
}

/// Which entries: those whose score lies in a range, and whose key has given bits.
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
    /// From the least to the greatest.
    pub scores: std::ops::RangeInclusive<u64>,
    /// Bits of the key that count.
    pub key_mask: u64,
    /// What they must be.
    pub key_value: u64,
}

impl Condition {
    /// Every entry.
    pub const ALL: Condition = Condition {
        scores: 0..=u64::MAX,
        key_mask: 0,
        key_value: 0,
    };

    /// Whether an entry is meant.
    pub fn holds(&self, key: u64, score: u64) -> bool {
        self.scores.contains(&score) && key & self.key_mask == self.key_value
    }
}
