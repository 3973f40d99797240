//! The compactions that run, and what may begin beside them.
//!
//! ```text
//!   level 0   │ ▒▒▒▒▒▒▒  ▒▒▒▒▒▒▒▒  ▒▒▒▒▒ │    waits: it overlaps what the first one below takes
//!   level 5   │ ▓▓▓  ▒▒▒  ▒▒▒  ▓▓▓  ▒▒▒ │    ▓ two compactions from here at once
//!                 │              │
//!   level 6   │ ▓▓▓▓▓  ▒▒▒▒  ▓▓▓▓▓▓▓ ▒▒ │
//! ```
//!
//! Two compactions of a keyspace may run at once if they have no run in common, do not both take
//! from level 0, and write no common range of keys to one level. Whatever is older than an entry
//! that one of them moves is then in its own runs, or deeper than it writes: the other one cannot
//! have it, and so cannot bring it above or let a deletion go too early.

use std::time::Instant;

use crate::comparator::KeyOrder;
use crate::run::Run;
use crate::tree::key_bounds::KeyRange;
use crate::tree::pick::{Compaction, bytes};

/// The compactions that run, in all keyspaces.
#[derive(Debug, Default)]
pub(crate) struct RunningCompactions {
    last_id: u64,
    taken: Vec<Taken>,
    /// Keyspaces in which a full compaction waits until another one has ended.
    waiting: Vec<u32>,
}

/// What a compaction has taken.
#[derive(Debug)]
struct Taken {
    id: u64,
    keyspace: u32,
    is_background: bool,
    /// How many background threads it takes, or threads in their place.
    threads: usize,
    begun: Instant,
    from: usize,
    into: usize,
    /// Numbers of its runs, ascending.
    runs: Vec<u64>,
    /// The first and the last key that it may write.
    keys: Option<Keys>,
    /// What leaves its upper level.
    leaving_bytes: u64,
}

/// A range of keys; both ends are included.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    pub(super) from: Box<[u8]>,
    pub(super) to: Box<[u8]>,
}

/// The compactions that run in one keyspace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running<'a> {
    taken: Vec<&'a Taken>,
    is_level0_only: bool,
    /// The level that a compaction of level 0 waits for.
    kept_for_level0: Option<usize>,
    /// Numbers of runs that could not be read, ascending. Nothing that takes one may begin.
    unreadable: Vec<u64>,
}

/// What comes next.
#[derive(Clone, Debug)]
pub(crate) enum Pick {
    /// Nothing is left to do.
    Nothing,
    /// It gets in the way of a compaction that runs.
    Waits,
    Begins(Compaction),
}

impl RunningCompactions {
    /// Takes the runs of a compaction, which [`Running::allows`]. Returns its number.
    /// `is_background` says whether a background thread runs it, and `threads` how many of them it
    /// takes, or others in their place.
    pub(crate) fn begin(
        &mut self,
        keyspace: u32,
        compaction: &Compaction,
        is_background: bool,
        threads: usize,
        begun: Instant,
    ) -> u64 {
        debug_assert!(self.in_keyspace(keyspace).allows(compaction));
        self.last_id += 1;
        let mut runs: Vec<u64> = compaction.numbers().collect();
        runs.sort_unstable();
        let leaves = compaction.from != compaction.into;
        self.taken.push(Taken {
            id: self.last_id,
            keyspace,
            is_background,
            threads,
            begun,
            from: compaction.from,
            into: compaction.into,
            runs,
            keys: compaction.keys().map(|keys| Keys {
                from: keys.from.into(),
                to: keys.to.into(),
            }),
            leaving_bytes: if leaves { bytes(&compaction.upper) } else { 0 },
        });
        self.last_id
    }

    /// Notes that a compaction has ended: its runs are installed, or it has failed.
    pub(crate) fn end(&mut self, id: u64) {
        self.taken.retain(|taken| taken.id != id);
    }

    /// The compactions that run in a keyspace.
    pub(crate) fn in_keyspace(&self, keyspace: u32) -> Running<'_> {
        let of_keyspace = |taken: &&Taken| taken.keyspace == keyspace;
        Running {
            taken: self.taken.iter().filter(of_keyspace).collect(),
            ..Running::default()
        }
    }

    /// Whether no compaction runs.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// The numbers of the compactions that run in a keyspace.
    pub(crate) fn ids_in(&self, keyspace: u32) -> Vec<u64> {
        let running = self.in_keyspace(keyspace);
        running.taken.iter().map(|taken| taken.id).collect()
    }

    /// How many of these compactions still run.
    pub(crate) fn count_of(&self, ids: &[u64]) -> usize {
        let is_one = |taken: &&Taken| ids.contains(&taken.id);
        self.taken.iter().filter(is_one).count()
    }

    /// How many background threads the compactions take, or others in their place.
    pub(crate) fn threads(&self) -> usize {
        self.taken.iter().map(|taken| taken.threads).sum()
    }

    /// How many compactions of levels below level 0 the background threads run.
    pub(crate) fn deeper_in_background(&self) -> usize {
        let deeper = |taken: &&Taken| taken.is_background && taken.from > 0;
        self.taken.iter().filter(deeper).count()
    }

    /// Notes that a full compaction of a keyspace waits, or does so no more.
    pub(crate) fn set_waiting(&mut self, keyspace: u32, is_waiting: bool) {
        if is_waiting {
            self.waiting.push(keyspace);
        } else if let Some(index) = self.waiting.iter().position(|id| *id == keyspace) {
            self.waiting.swap_remove(index);
        }
    }

    /// Whether a full compaction of a keyspace waits.
    pub(crate) fn is_waiting(&self, keyspace: u32) -> bool {
        self.waiting.contains(&keyspace)
    }
}

impl Running<'_> {
    /// If `is_level0_only`, nothing but compactions of level 0 may begin beside them.
    pub(crate) fn level0_only(self, is_level0_only: bool) -> Self {
        Running {
            is_level0_only,
            ..self
        }
    }

    /// If there is a `level`, nothing but compactions of level 0 takes runs of it.
    pub(super) fn kept_for_level0(&self, level: Option<usize>) -> Self {
        Running {
            kept_for_level0: level,
            ..self.clone()
        }
    }

    /// Nothing that takes one of these runs may begin. Their numbers ascend.
    pub(crate) fn without(self, unreadable: Vec<u64>) -> Self {
        Running { unreadable, ..self }
    }

    /// Whether this run could not be read.
    pub(super) fn is_unreadable(&self, run: &Run) -> bool {
        self.unreadable.binary_search(&run.number()).is_ok()
    }

    /// Whether a compaction takes a run that could not be read.
    pub(super) fn takes_unreadable(&self, compaction: &Compaction) -> bool {
        let mut runs = compaction.upper.iter().chain(&compaction.lower);
        runs.any(|run| self.is_unreadable(run))
    }

    /// Whether one of them began at this moment or later.
    pub(crate) fn has_begun_since(&self, moment: Instant) -> bool {
        self.taken.iter().any(|taken| taken.begun >= moment)
    }

    /// Whether nothing but compactions of level 0 may begin.
    pub(crate) fn is_level0_only(&self) -> bool {
        self.is_level0_only
    }

    /// Whether one of them has this run.
    pub(crate) fn takes(&self, run: &Run) -> bool {
        let has = |taken: &&Taken| taken.runs.binary_search(&run.number()).is_ok();
        self.taken.iter().any(has)
    }

    /// Whether one of them takes from level 0.
    pub(super) fn takes_level0(&self) -> bool {
        self.taken.iter().any(|taken| taken.from == 0)
    }

    /// Whether one of them may write one of these keys to a level.
    pub(crate) fn writes(&self, order: &KeyOrder, level: usize, keys: KeyRange<'_>) -> bool {
        let overlaps = |Keys { from, to }: &Keys| KeyRange { from, to }.overlaps(order, keys);
        let mut into_level = self.taken.iter().filter(|taken| taken.into == level);
        into_level.any(|taken| taken.keys.as_ref().is_some_and(overlaps))
    }

    /// Whether a compaction may begin.
    pub(crate) fn allows(&self, compaction: &Compaction) -> bool {
        let mut runs = compaction.upper.iter().chain(&compaction.lower);
        let is_second_of_level0 = compaction.from == 0 && self.takes_level0();
        let is_kept = |level| self.kept_for_level0 == Some(level);
        let takes_kept =
            compaction.from > 0 && (is_kept(compaction.from) || is_kept(compaction.into));
        let order = compaction.upper.first().map(|run| run.order());
        !is_second_of_level0
            && !takes_kept
            && !self.takes_unreadable(compaction)
            && !runs.any(|run| self.takes(run))
            && !order
                .zip(compaction.keys())
                .is_some_and(|(order, keys)| self.writes(order, compaction.into, keys))
    }

    /// What they move from a level to a deeper one.
    pub(super) fn leaving_bytes(&self, level: usize) -> u64 {
        let of_level = self.taken.iter().filter(|taken| taken.from == level);
        of_level.map(|taken| taken.leaving_bytes).sum()
    }

    /// The first of these compactions that may begin. There is nothing to wait for if they need
    /// runs that cannot be read.
    pub(super) fn first_allowed(&self, compactions: impl Iterator<Item = Compaction>) -> Pick {
        let mut waits = false;
        for compaction in compactions.filter(|of| !self.takes_unreadable(of)) {
            if self.allows(&compaction) {
                return Pick::Begins(compaction);
            }
            waits = true;
        }
        if waits { Pick::Waits } else { Pick::Nothing }
    }
}

impl Pick {
    /// This one, or `next` if nothing is left to do.
    pub(super) fn or(self, next: impl FnOnce() -> Pick) -> Pick {
        match self {
            Pick::Nothing => next(),
            pick => pick,
        }
    }

    /// The compaction, if one begins.
    pub(crate) fn begins(self) -> Option<Compaction> {
        match self {
            Pick::Begins(compaction) => Some(compaction),
            Pick::Nothing | Pick::Waits => None,
        }
    }
}
