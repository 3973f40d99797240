//! Operations, and how they find slots.

use forerun_gpu::table::{Element, LookupMode, Operation};
use std::fmt;
use std::str::FromStr;

/// An operation of the table, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the table documents them")]
pub enum Op {
    FindPtr,
    Contains,
    Find,
    /// `Find` that allows concurrent writers.
    FindBesideWriters,
    FindMissed,
    /// The sums of bags of keys.
    FindPooled,
    /// `FindPooled` that allows concurrent writers.
    FindPooledBesideWriters,
    InsertOrAssign,
    InsertAndEvict,
    FindOrInsert,
    FindOrInsertPtr,
    AccumulateOrAssign,
    Assign,
    AssignRows,
    AssignScores,
    FindAndUpdate,
    Lock,
    Unlock,
    Erase,
    SizeIf,
    EraseIf,
    ExportBatch,
}

impl Op {
    /// All operations, lookups first.
    pub const ALL: [Op; 22] = [
        Op::FindPtr,
        Op::Contains,
        Op::Find,
        Op::FindBesideWriters,
        Op::FindMissed,
        Op::FindPooled,
        Op::FindPooledBesideWriters,
        Op::InsertOrAssign,
        Op::InsertAndEvict,
        Op::FindOrInsert,
        Op::FindOrInsertPtr,
        Op::AccumulateOrAssign,
        Op::Assign,
        Op::AssignRows,
        Op::AssignScores,
        Op::FindAndUpdate,
        Op::Lock,
        Op::Unlock,
        Op::Erase,
        Op::SizeIf,
        Op::EraseIf,
        Op::ExportBatch,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Op::FindPtr => "find_ptr",
            Op::Contains => "contains",
            Op::Find => "find",
            Op::FindBesideWriters => "find_beside_writers",
            Op::FindMissed => "find_missed",
            Op::FindPooled => "find_pooled",
            Op::FindPooledBesideWriters => "find_pooled_beside_writers",
            Op::InsertOrAssign => "insert_or_assign",
            Op::InsertAndEvict => "insert_and_evict",
            Op::FindOrInsert => "find_or_insert",
            Op::FindOrInsertPtr => "find_or_insert_ptr",
            Op::AccumulateOrAssign => "accumulate_or_assign",
            Op::Assign => "assign",
            Op::AssignRows => "assign_rows",
            Op::AssignScores => "assign_scores",
            Op::FindAndUpdate => "find_and_update",
            Op::Lock => "lock",
            Op::Unlock => "unlock",
            Op::Erase => "erase",
            Op::SizeIf => "size_if",
            Op::EraseIf => "erase_if",
            Op::ExportBatch => "export_batch",
        }
    }

    /// The table's writing operation, if it is one.
    pub(super) fn operation(self) -> Option<Operation> {
        Some(match self {
            Op::InsertOrAssign => Operation::InsertOrAssign,
            Op::InsertAndEvict => Operation::InsertAndEvict,
            Op::FindOrInsert | Op::FindOrInsertPtr => Operation::FindOrInsert,
            Op::AccumulateOrAssign => Operation::AccumulateOrAssign(Element::I32),
            Op::Assign => Operation::Assign,
            Op::AssignRows => Operation::AssignRows,
            Op::AssignScores => Operation::AssignScores,
            Op::FindAndUpdate => Operation::FindAndUpdate,
            Op::Lock => Operation::Lock,
            Op::Unlock => Operation::Unlock,
            Op::Erase => Operation::Erase,
            _ => return None,
        })
    }

    /// Whether it leaves the table unchanged.
    pub(super) fn only_reads(self) -> bool {
        self.is_lookup() || matches!(self, Op::SizeIf | Op::ExportBatch)
    }

    /// Whether it looks up keys and changes nothing.
    pub(super) fn is_lookup(self) -> bool {
        matches!(
            self,
            Op::FindPtr | Op::Contains | Op::Find | Op::FindBesideWriters | Op::FindMissed
        ) || self.pools()
    }

    /// Whether it sums the rows of bags of keys.
    pub(super) fn pools(self) -> bool {
        matches!(self, Op::FindPooled | Op::FindPooledBesideWriters)
    }

    /// Whether it inserts missing keys.
    pub(super) fn inserts(self) -> bool {
        matches!(
            self,
            Op::InsertOrAssign
                | Op::InsertAndEvict
                | Op::FindOrInsert
                | Op::FindOrInsertPtr
                | Op::AccumulateOrAssign
        )
    }

    /// Whether the batch includes rows.
    pub(super) fn takes_rows(self) -> bool {
        matches!(
            self,
            Op::InsertOrAssign
                | Op::InsertAndEvict
                | Op::FindOrInsert
                | Op::AccumulateOrAssign
                | Op::Assign
                | Op::AssignRows
        )
    }

    /// Whether it copies out a row per key.
    pub(super) fn gives_rows(self) -> bool {
        matches!(
            self,
            Op::Find
                | Op::FindBesideWriters
                | Op::FindMissed
                | Op::FindOrInsert
                | Op::FindAndUpdate
        )
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Op, String> {
        let name = text.trim().replace('-', "_");
        let found = Op::ALL.into_iter().find(|op| op.name() == name);
        let names = || Op::ALL.map(Op::name).join(", ");
        found.ok_or_else(|| {
            format!(
                "{text:?} is not an operation of the table; available: {}",
                names()
            )
        })
    }
}

/// An operation, and how it finds slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpVariant {
    pub(super) op: Op,
    /// For lookups of slots; other operations ignore it.
    pub(super) lookup: LookupMode,
}

impl OpVariant {
    /// The operation in its default variant.
    pub(super) fn of(op: Op) -> OpVariant {
        OpVariant {
            op,
            lookup: LookupMode::ByLoad,
        }
    }

    pub(super) fn name(self) -> String {
        match self.lookup {
            LookupMode::ByLoad => self.op.name().to_owned(),
            lookup => format!("{}:{}", self.op, lookup.name()),
        }
    }
}
