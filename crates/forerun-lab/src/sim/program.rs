//! A program: everything that a simulation does, as data. The seed draws it; the shrinker removes
//! parts of it.
//!
//! ```text
//!   program ── store: options, keyspaces
//!           ├─ incarnations: from an opening to an end (close, drop, crash of the process, loss of power)
//!           │    ├─ threads: steps
//!           │    └─ faults: calls of the file system that fail, comparisons that panic
//!           └─ damage: steps, and bytes that are overwritten afterwards
//! ```
//!
//! Each step and each fault has a number, which [`Program::keep`] uses.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Bound;
use std::str::FromStr;

use forerun_db::{
    Access, Background, Create, Durability, MemoryChecks, Recovery, RunOptions, TreeOptions,
    VerifyChecksums, WalMode,
};

use super::key_order::KeyOrder;

/// Everything that a simulation does.
#[derive(Clone, Debug)]
pub struct Program {
    pub seed: u64,
    pub store: StoreShape,
    pub incarnations: Vec<Incarnation>,
    /// Whether the store is opened read-only before it is reopened.
    pub opens_read_only: bool,
    /// The damage done to the disk at the very end.
    pub damage: Option<Damage>,
}

/// The options of the store, except its comparators.
#[derive(Clone, Debug)]
pub struct StoreShape {
    pub memory_limit_bytes: usize,
    pub memtable_bytes: usize,
    pub memtable_index: bool,
    pub cache_bytes: usize,
    pub max_open_files: Option<usize>,
    pub segment_bytes: u64,
    pub background: Background,
    pub background_threads: usize,
    pub durability: Durability,
    pub wal: WalMode,
    pub checks: MemoryChecks,
    pub verify_checksums: VerifyChecksums,
    /// In how many of 100 calls the system has in memory what is to be read.
    pub cached_percent: u64,
    pub scrub_rate_bytes: u64,
    /// The keyspaces that every thread uses. The first one is the store's own.
    pub keyspaces: Vec<KeyspaceShape>,
    /// The keyspaces that each thread creates and drops for itself.
    pub private: KeyspaceShape,
    /// Whether the file system can give a file a second name.
    pub has_links: bool,
    /// How long a sync of a file takes.
    pub sync_us: u64,
    /// Whether a failed sync permanently loses what it should have made durable.
    pub is_forgetful: bool,
}

/// The options of a keyspace.
#[derive(Clone, Debug)]
pub struct KeyspaceShape {
    pub order: KeyOrder,
    pub ttl_s: Option<u64>,
    pub run: RunOptions,
    pub tree: TreeOptions,
}

/// From an opening of the store to its end.
#[derive(Clone, Debug)]
pub struct Incarnation {
    /// The options, if they differ from [`Program::store`]. The files on the disk stay as they are.
    pub options: Option<Box<StoreShape>>,
    pub recovery: Recovery,
    pub threads: Vec<Vec<Step>>,
    pub faults: Vec<PlannedFault>,
    pub end: End,
    /// The fault that occurs while the store is closed or its last handle is dropped.
    pub end_fault: Option<FaultKind>,
    /// The number of the end among the parts of the program. Without it, the store is closed, and
    /// nothing fails during the closing.
    pub end_id: u32,
}

/// How an incarnation ends after its threads have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Close,
    /// The last handle is dropped.
    Drop,
    /// The process crashes, or the power is lost, at a call of the file system or when the threads
    /// are done.
    Crash {
        how: Crash,
        at_call: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    Process,
    Power,
}

/// A step of a thread.
#[derive(Clone, Debug)]
pub struct Step {
    pub id: u32,
    pub op: Op,
}

/// The keyspace of a step: one of [`StoreShape::keyspaces`], or the thread's private one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKeyspace {
    Shared(u8),
    Private,
}

/// The operation of a step.
#[derive(Clone, Debug)]
pub enum Op {
    Write {
        changes: Vec<Change>,
        durability: Option<Durability>,
    },
    /// Writes one number to all shared keyspaces in one batch.
    Stamp {
        durability: Durability,
    },
    Ingest {
        keyspace: StepKeyspace,
        /// Keys, each with the length of its value, or `None` for a deletion.
        keys: Vec<(u8, Option<u16>)>,
        commits: bool,
    },
    Get {
        keyspace: StepKeyspace,
        key: u8,
    },
    MultiGet {
        keyspace: StepKeyspace,
        keys: Vec<u8>,
    },
    /// A lookup that lends the value to a closure.
    Read {
        keyspace: StepKeyspace,
        key: u8,
    },
    /// A batch of lookups that returns copies of the values.
    MultiGetToVec {
        keyspace: StepKeyspace,
        keys: Vec<u8>,
    },
    Scan {
        keyspace: StepKeyspace,
        direction: ReadDirection,
    },
    Range {
        keyspace: StepKeyspace,
        from: Bound<u8>,
        to: Bound<u8>,
        direction: ReadDirection,
    },
    /// Reads all keys that start with one of the thread's keys.
    Prefix {
        keyspace: StepKeyspace,
        key: u8,
        len: u8,
        direction: ReadDirection,
    },
    /// Takes some of the thread's entries from one end, one after another, as from a queue.
    Pop {
        keyspace: StepKeyspace,
        count: u8,
        is_back: bool,
        /// Whether everything up to the key is deleted, and not the key alone.
        by_range: bool,
    },
    ReadStamps {
        by_snapshot: bool,
    },
    TakeSnapshot,
    ReadSnapshot,
    DropSnapshot,
    BeginIter {
        keyspace: StepKeyspace,
    },
    StepIter {
        steps: u8,
        is_back: bool,
    },
    DropIter,
    Flush,
    FlushKeyspace {
        keyspace: StepKeyspace,
    },
    FlushLog,
    Compact,
    CompactKeyspace {
        keyspace: StepKeyspace,
    },
    SetWriteRate {
        bytes_per_second: Option<u64>,
    },
    WaitIdle,
    Checkpoint,
    Backup,
    Restore,
    KeepBackups {
        newest: u8,
    },
    /// Deletes the newest backup or the oldest.
    DeleteBackup {
        is_newest: bool,
    },
    CreateKeyspace,
    DropKeyspace,
    /// Uses the private keyspace of another thread, which may drop it concurrently.
    UseOther {
        thread: u8,
        key: u8,
        len: u16,
    },
    Reopen,
    OpenTwice {
        access: Access,
    },
    /// Two threads create one new store at the same time.
    RaceToCreate {
        create: Create,
    },
    Verify,
    /// A batch larger than all memory for memtables.
    Oversized {
        keyspace: StepKeyspace,
        is_ranges: bool,
    },
    /// For a while no manifest can be written, and flushes are attempted repeatedly.
    Outage,
    Wait {
        ms: u16,
    },
}

impl Op {
    /// Whether it reads the store, which keeps memtables in memory until it ends.
    pub fn reads(&self) -> bool {
        match self {
            Op::Get { .. }
            | Op::Read { .. }
            | Op::MultiGet { .. }
            | Op::MultiGetToVec { .. }
            | Op::UseOther { .. }
            | Op::Scan { .. }
            | Op::Range { .. }
            | Op::Prefix { .. }
            | Op::Pop { .. }
            | Op::ReadStamps { .. }
            | Op::ReadSnapshot
            | Op::BeginIter { .. }
            | Op::StepIter { .. }
            | Op::Checkpoint
            | Op::Backup
            | Op::Reopen
            | Op::Verify => true,
            Op::Write { .. }
            | Op::Stamp { .. }
            | Op::Ingest { .. }
            | Op::TakeSnapshot
            | Op::DropSnapshot
            | Op::DropIter
            | Op::Flush
            | Op::FlushKeyspace { .. }
            | Op::FlushLog
            | Op::SetWriteRate { .. }
            | Op::Compact
            | Op::CompactKeyspace { .. }
            | Op::WaitIdle
            | Op::Restore
            | Op::KeepBackups { .. }
            | Op::DeleteBackup { .. }
            | Op::CreateKeyspace
            | Op::DropKeyspace
            | Op::OpenTwice { .. }
            | Op::RaceToCreate { .. }
            | Op::Oversized { .. }
            | Op::Outage
            | Op::Wait { .. } => false,
        }
    }
}

/// Where an iterator starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadDirection {
    Forward,
    Backward,
    /// From both ends, until they meet.
    Both,
}

/// One operation of a batch. Keys are the thread's own, by number.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub keyspace: StepKeyspace,
    pub kind: ChangeKind,
}

#[derive(Clone, Copy, Debug)]
pub enum ChangeKind {
    Put { key: u8, len: u16 },
    Delete { key: u8 },
    DeleteRange { from: u8, to: u8 },
}

/// A planned fault.
#[derive(Clone, Copy, Debug)]
pub struct PlannedFault {
    pub id: u32,
    /// After this many calls of the file system, or comparisons, in this incarnation.
    pub at: u64,
    pub kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// This many calls of a kind fail.
    Fail {
        calls: CallFilter,
        count: u32,
        errno: i32,
    },
    /// The next write takes half of its bytes and returns that count.
    ShortWrite,
    /// The next write takes half of its bytes and then fails.
    TornWrite,
    /// The disk is full for this many calls.
    Full { count: u32 },
    /// A user's comparator panics for this many comparisons.
    Panic { count: u32 },
    /// The wall clock is set back.
    ClockBack { seconds: u32 },
}

/// A set of file-system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFilter {
    Any,
    Reads,
    Writes,
    Syncs,
    /// Syncs of segments of the log.
    LogSyncs,
    /// Calls that change directories: creates, renames, removes, links, and syncs of directories.
    Directory,
    /// Everything that concerns the manifest.
    Manifest,
    /// Everything that changes a segment of the log.
    Log,
    /// Everything that changes a run.
    Runs,
}

impl Program {
    /// The program with only these steps and faults.
    pub fn keep(mut self, kept: &KeptIds) -> Program {
        for incarnation in &mut self.incarnations {
            for thread in &mut incarnation.threads {
                thread.retain(|step| kept.has(step.id));
            }
            incarnation.faults.retain(|planned| kept.has(planned.id));
            if !kept.has(incarnation.end_id) {
                incarnation.end = End::Close;
                incarnation.end_fault = None;
            }
        }
        if let Some(damage) = &mut self.damage {
            for thread in &mut damage.threads {
                thread.retain(|step| kept.has(step.id));
            }
            damage.overwrites.retain(|overwrite| kept.has(overwrite.id));
        }
        self
    }

    /// Whether entries of any keyspace expire.
    pub fn has_ttl(&self) -> bool {
        let mut keyspaces = self.store.keyspaces.iter().chain([&self.store.private]);
        keyspaces.any(|keyspace| keyspace.ttl_s.is_some())
    }

    /// Whether the clock is set back.
    pub fn sets_clock_back(&self) -> bool {
        let mut faults = self
            .incarnations
            .iter()
            .flat_map(|incarnation| &incarnation.faults);
        faults.any(|planned| matches!(planned.kind, FaultKind::ClockBack { .. }))
    }

    /// The numbers of its steps and faults.
    pub fn ids(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        for incarnation in &self.incarnations {
            ids.extend(incarnation.threads.iter().flatten().map(|step| step.id));
            ids.extend(incarnation.faults.iter().map(|planned| planned.id));
            if incarnation.end != End::Close || incarnation.end_fault.is_some() {
                ids.push(incarnation.end_id);
            }
        }
        if let Some(damage) = &self.damage {
            ids.extend(damage.threads.iter().flatten().map(|step| step.id));
            ids.extend(damage.overwrites.iter().map(|overwrite| overwrite.id));
        }
        ids.sort_unstable();
        ids
    }
}

/// Bytes that are overwritten on the disk of a store, after a few more steps, which the threads
/// take in turn.
#[derive(Clone, Debug)]
pub struct Damage {
    pub threads: Vec<Vec<Step>>,
    pub when: StoreState,
    pub overwrites: Vec<Overwrite>,
}

/// The state of the store when it is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    Open,
    Closed,
    Crashed,
}

/// The bytes of a file that are overwritten.
#[derive(Clone, Copy, Debug)]
pub struct Overwrite {
    pub id: u32,
    pub target: DamagedFile,
    /// The position in the file, out of 65,536.
    pub at: u16,
    pub len: u16,
    pub bytes: BytePattern,
    /// Chooses among the files, and determines the noise.
    pub seed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamagedFile {
    Run,
    /// The last segment of the log.
    Log,
    Manifest,
}

/// The new bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytePattern {
    Flipped,
    Zeros,
    Noise,
}

/// The numbers of the steps and faults to keep, written as `3-7,9`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptIds(BTreeSet<u32>);

impl KeptIds {
    pub fn new(ids: impl IntoIterator<Item = u32>) -> KeptIds {
        KeptIds(ids.into_iter().collect())
    }

    fn has(&self, id: u32) -> bool {
        self.0.contains(&id)
    }
}

impl fmt::Display for KeptIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<u32> = self.0.iter().copied().collect();
        let mut begin = 0;
        for end in 1..=ids.len() {
            if end < ids.len() && ids[end] == ids[end - 1] + 1 {
                continue;
            }
            let comma = if begin == 0 { "" } else { "," };
            match end - begin {
                1 => write!(f, "{comma}{}", ids[begin])?,
                _ => write!(f, "{comma}{}-{}", ids[begin], ids[end - 1])?,
            }
            begin = end;
        }
        Ok(())
    }
}

impl FromStr for KeptIds {
    type Err = String;

    fn from_str(text: &str) -> Result<KeptIds, String> {
        let mut ids = BTreeSet::new();
        let number = |text: &str| {
            let parsed = text.trim().parse::<u32>();
            parsed.map_err(|_| format!("{text:?} is not a number: write 3-7,9"))
        };
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            match part.split_once('-') {
                None => drop(ids.insert(number(part)?)),
                Some((first, last)) => ids.extend(number(first)?..=number(last)?.min(1 << 20)),
            }
        }
        Ok(KeptIds(ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_numbers_are_written_as_ranges_and_parsed_again() {
        for (ids, text) in [
            (vec![], ""),
            (vec![4], "4"),
            (vec![3, 4, 5, 9, 11, 12], "3-5,9,11-12"),
        ] {
            let kept = KeptIds::new(ids);
            assert_eq!(kept.to_string(), text);
            assert_eq!(text.parse::<KeptIds>().unwrap(), kept);
        }
        assert!("3-x".parse::<KeptIds>().is_err());
    }
}
