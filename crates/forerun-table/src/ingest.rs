//! Ingestion: many rows in ascending key order go straight to files of the store.
//!
//! ```text
//!   import, ascending ──> an ingestion of the store: invisible files      lookups and writers go on
//!                     ──> all locks ──> commit ──> unlink the rows in memory, bump versions       writers wait
//! ```
//!
//! So rows are written once, to the place where compaction would finally put them, and skip the log
//! and the memtable.

use forerun_core::sync::time;

use crate::disk_tier::Store;
use crate::find_scratch::Scratch;
use crate::inner::Inner;
use crate::{Error, Failures, Result};

/// Keys that are unlinked together.
const UNLINK_BATCH: usize = 1024;

impl Inner {
    /// Writes checked rows to the store: all or none. Returns `None` if the store does not sort its
    /// keys in numeric order, which rules an ingestion out.
    pub(crate) fn ingest(
        &self,
        store: &Store,
        keys: &[u64],
        rows: &[u8],
        scores: Option<&[u64]>,
    ) -> Option<Result<()>> {
        let start = time::now();
        let mut failures = Failures::default();
        match self.ingest_all(store, keys, rows, scores) {
            Ok(()) => {}
            Err(Error::Store(forerun_db::Error::OutOfOrder { .. })) => return None,
            Err(error @ (Error::Closed | Error::Interrupted)) => return Some(Err(error)),
            Err(error) => {
                for (at, &key) in keys.iter().enumerate() {
                    failures.push(at, key, error.clone());
                }
            }
        }
        self.clocks.write.record(time::elapsed(start));
        self.counters.written_rows.add(keys.len() - failures.len());
        self.counters.failed_keys.add(failures.len());
        Some(failures.into_result(0).map(drop))
    }

    fn ingest_all(
        &self,
        store: &Store,
        keys: &[u64],
        rows: &[u8],
        scores: Option<&[u64]>,
    ) -> Result<()> {
        let mut ingestion = store.ingest();
        for (at, (&key, row)) in keys
            .iter()
            .zip(rows.chunks_exact(self.row.bytes()))
            .enumerate()
        {
            if at % UNLINK_BATCH == 0 {
                self.interrupt.check()?;
            }
            ingestion.add(key, row, scores.map_or(0, |scores| scores[at]))?;
        }
        // Lock all keys. Otherwise a lookup could see the new row, then one that was written to the
        // host tier during the ingestion, then the new one again.
        let _held = self.lock_all_to_write()?;
        let mut reservation = self.host.reserve_none()?;
        keys.chunks(UNLINK_BATCH).for_each(|keys| {
            self.invalidate(keys);
        });
        let committed = ingestion.commit(keys);
        let mut scratch = Scratch::take();
        let mut found = [false; UNLINK_BATCH];
        for keys in keys.chunks(UNLINK_BATCH) {
            if committed.is_ok() {
                let found = &mut found[..keys.len()];
                self.host.contains(keys, &mut scratch.slots, found);
                for (&key, _) in keys.iter().zip(found).filter(|(_, found)| **found) {
                    self.host.unlink(key, &mut reservation);
                }
            }
            self.changed(keys);
        }
        scratch.keep();
        committed
    }
}
