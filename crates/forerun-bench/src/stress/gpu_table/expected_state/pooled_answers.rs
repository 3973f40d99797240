//! The pooled rows that lookups may return while writers run.

use super::super::lanes::{Answer, Job};
use super::super::pooled_bags::{BAG_KEYS, COUNTED, POOLED_BYTES, pooled};
use super::super::stamped_row::{ROW_WORDS, fault, row_of};
use super::initial_state::InitialState;
use super::{ExpectedState, Owner};

impl InitialState {
    /// Checks what a pooled lookup returned: the sum of a bag must be that of whole rows, each of
    /// which its key has or had during the round.
    pub(super) fn pooled(
        &self,
        expected: &ExpectedState,
        job: &Job,
        said: &Answer,
    ) -> anyhow::Result<()> {
        let bags = job.keys.as_chunks::<BAG_KEYS>().0;
        let rows = said.rows.chunks_exact(POOLED_BYTES);
        for ((keys, row), count) in bags.iter().zip(rows).zip(&said.counts) {
            let key = keys[COUNTED];
            let there = match count.checked_sub(BAG_KEYS as u32 - 1) {
                Some(there @ (0 | 1)) => there == 1,
                _ => {
                    return Err(fault(format!(
                        "key {key:#x}: {count} keys of its bag were found, of which only this one \
                         may be absent"
                    )));
                }
            };
            self.check_presence(expected, key, there)?;
            let pooled_with = |own: Option<[u64; ROW_WORDS]>| {
                let mut rows = keys.map(|key| Some(row_of(key, 0)));
                rows[COUNTED] = own;
                pooled(rows)
            };
            let fits = if there {
                self.stamps(key)
                    .any(|stamp| pooled_with(Some(row_of(key, stamp))) == row)
            } else {
                pooled_with(None) == row
            };
            if !fits {
                return Err(fault(format!(
                    "key {key:#x}: the sum of its bag is that of a torn or foreign row"
                )));
            }
        }
        Ok(())
    }

    /// The stamps of the rows that a key may have during the round.
    fn stamps(&self, key: u64) -> impl Iterator<Item = u64> {
        let pinned = (self.owners.get(&key) == Some(&Owner::Pinned)).then_some(0);
        let before = self.before.get(&key).copied();
        let written = self.written.get(&key).into_iter().flatten().copied();
        pinned.into_iter().chain(before).chain(written)
    }
}
