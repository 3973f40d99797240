//! Merges the runs of a group, reading only some of them at a time.
//!
//! ```text
//!   runs     ├─ 1 ─┤  ├─ 2 ─┤ ├── 4 ──┤      a chain: disjoint, so one of them is read at a time
//!                ├─── 3 ───┤      ├─ 5 ─┤    another one
//!
//!   more chains than may be read at a time: some are merged, and what they become is a chain
//! ```

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::Repair;
use crate::Result;
use crate::comparator::KeyOrder;
use crate::run::Run;
use crate::run::level_cursor::LevelCursor;
use crate::tree::build::Build;
use crate::tree::key_bounds::{largest, smallest};
use crate::tree::merge::Merge;
use crate::versions::VersionCursor;

/// The most chains that are read at a time. Each reads up to 256 KiB ahead.
const CHAINS_MAX: usize = 64;

/// Runs in ascending order that share no key.
type Chain = Vec<Arc<Run>>;

/// The chains that are left to merge.
struct Rounds(VecDeque<Chain>);

impl Rounds {
    /// Divides runs into chains.
    fn of(order: &KeyOrder, runs: &[Arc<Run>]) -> Rounds {
        let mut sorted = runs.to_vec();
        sorted.sort_by(|a, b| order.compare(smallest(a), smallest(b)));
        let mut chains = VecDeque::<Chain>::new();
        for run in sorted {
            let ends_before = |chain: &Chain| {
                let last = chain.last();
                last.is_some_and(|last| order.compare(largest(last), smallest(&run)).is_lt())
            };
            match chains.iter().position(ends_before) {
                Some(at) => chains[at].push(run),
                None => chains.push_back(vec![run]),
            }
        }
        Rounds(chains)
    }

    /// Takes those to merge next.
    fn take(&mut self, chains_max: usize) -> Vec<Chain> {
        self.0.drain(..self.0.len().min(chains_max)).collect()
    }

    /// Whether what was taken last is all that was left.
    fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what some of them have become.
    fn add(&mut self, merged: Chain) {
        self.0.push_back(merged);
    }
}

impl Repair<'_> {
    /// Merges runs to new ones: the newest version of each key.
    pub(super) fn merge(&mut self, build: &Build<'_>, runs: &[Arc<Run>]) -> Result<Chain> {
        let mut rounds = Rounds::of(build.order, runs);
        // What is merged once more.
        let mut between = HashSet::new();
        loop {
            let chains = rounds.take(CHAINS_MAX);
            let cursors = chains.iter().map(|chain| {
                Box::new(LevelCursor::past_cache(chain)) as Box<dyn VersionCursor + '_>
            });
            let mut merge = Merge::new(build.order.clone(), cursors.collect());
            let merged = self.write(build, &mut merge)?;
            let numbers = chains.iter().flatten().map(|run| run.number());
            let gone: HashSet<u64> = numbers.filter(|of| between.contains(of)).collect();
            self.remove_new(&gone);
            if rounds.is_done() {
                return Ok(merged);
            }
            between.extend(merged.iter().map(|run| run.number()));
            rounds.add(merged);
        }
    }

    /// Removes new runs whose versions are in newer ones.
    fn remove_new(&mut self, numbers: &HashSet<u64>) {
        let (gone, written) = std::mem::take(&mut self.written)
            .into_iter()
            .partition::<Vec<_>, _>(|run| numbers.contains(&run.number()));
        self.written = written;
        self.repaired.new_runs -= gone.len();
        for run in gone {
            // If this fails, the next opening does it.
            let _ = self.base.io.remove(run.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fault::FaultIo;
    use crate::testing::runs::run_of;
    use crate::testing::version_list::held;

    #[test]
    fn runs_that_share_no_key_are_read_one_after_the_other_and_few_chains_at_a_time() {
        let (io, order) = (FaultIo::new(), KeyOrder::Bytewise);
        let run = |number: u64, keys: &[&str]| {
            let versions = keys.iter().map(|key| held(key.as_bytes(), number, None));
            run_of(&io, &order, number, versions.collect())
        };
        let runs = [
            run(1, &["k", "p"]),
            run(2, &["a", "c"]),
            run(3, &["b", "m"]),
            run(4, &["d", "f"]),
            run(5, &["e", "z"]),
            run(6, &["n"]),
        ];
        let mut rounds = Rounds::of(&order, &runs);
        let numbers = |chains: Vec<Chain>| -> Vec<Vec<u64>> {
            let of = |chain: Chain| chain.iter().map(|run| run.number()).collect();
            chains.into_iter().map(of).collect()
        };
        assert_eq!(numbers(rounds.take(2)), [vec![2, 4, 1], vec![3, 6]]);
        assert!(!rounds.is_done());
        rounds.add(vec![run(7, &["a", "p"])]);
        assert_eq!(numbers(rounds.take(2)), [vec![5], vec![7]]);
        assert!(rounds.is_done());
    }
}
