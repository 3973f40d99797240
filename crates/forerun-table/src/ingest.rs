//! Many rows at once, ascending by key: straight to files of the store.
//!
//! ```text
//!   import, ascending ──> an ingestion of the store: files nobody sees      lookups and writers go on
//!                     ──> all locks ──> commit ──> what is above goes, versions are raised       writers wait
//! ```
//!
//! So rows are written once, to where compaction would bring them in the end, and not to the log
//! and a memtable first.

use forerun_core::sync::time;

use crate::find::Scratch;
use crate::inner::Inner;
use crate::store::Store;
use crate::{Error, Failures, Result};

/// Keys that are looked for above together.
const UNLINK_BATCH: usize = 1024;

impl Inner {
    /// Puts checked rows into the store: all or none. `None` if that cannot be, since the store
    /// orders its keys otherwise than numbers are.
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
        self.clocks.write.count(time::elapsed(start));
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
        // Everybody's: a lookup must not see the new row, then one that was written above
        // meanwhile, then the new one.
        let _held = self.lock_all_to_write()?;
        let mut reservation = self.host.reserve_none()?;
        keys.chunks(UNLINK_BATCH).for_each(|keys| {
            self.invalidate(keys);
        });
        let committed = ingestion.commit();
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
