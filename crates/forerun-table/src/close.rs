//! Closing a table.
//!
//! ```text
//!   close   refuse calls ──> end the thread ──> flush under all locks ──> close the store
//!   writer  lock its keys ──> refused? ──> write                          (Inner::lock_to_write)
//! ```
//!
//! If a write locks its keys before the last flush does, it is flushed. A later write is refused.

use crate::inner::Inner;
use crate::{Error, Result};
use forerun_core::sync::{Mutex, PoisonError, thread::JoinHandle};
use std::sync::Arc;

/// An open table. Dropping the last handle closes it.
pub(crate) struct Open {
    inner: Arc<Inner>,
    closing: Mutex<Closing>,
    /// Whether closing the table also closes the store.
    closes_store: bool,
}

/// Locked by the thread that closes the table, until it is closed.
struct Closing {
    thread: Option<JoinHandle<()>>,
    /// The result of closing.
    ended: Option<Result<()>>,
}

impl Open {
    pub(crate) fn new(
        inner: Arc<Inner>,
        thread: Option<JoinHandle<()>>,
        closes_store: bool,
    ) -> Open {
        Open {
            inner,
            closing: Mutex::new(Closing {
                thread,
                ended: None,
            }),
            closes_store,
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn close(&self) -> Result<()> {
        // A close that panicked has no result, so it starts again.
        let closing = self.closing.lock();
        let mut closing = closing.unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = &closing.ended {
            return ended.clone();
        }
        let ended = self.close_now(closing.thread.take());
        closing.ended = Some(ended.clone());
        ended
    }

    fn close_now(&self, thread: Option<JoinHandle<()>>) -> Result<()> {
        let inner = &self.inner;
        inner.refuse_calls();
        inner.queue.stop();
        // A thread that panicked has reported it and holds nothing that is needed here.
        let _ = thread.map(JoinHandle::join);
        let flushed = inner.flush_closed();
        if let Some(store) = &inner.store {
            store.row_count().forget();
        }
        let closed = match &inner.store {
            Some(store) if self.closes_store => store.db().clone().close(),
            _ => Ok(()),
        };
        flushed.and(closed.map_err(Error::from))
    }

    fn is_closed(&self) -> bool {
        let closing = self.closing.lock();
        let closing = closing.unwrap_or_else(PoisonError::into_inner);
        closing.ended.is_some()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.is_closed() {
            return;
        }
        if let Err(error) = self.close() {
            tracing::warn!(%error, "failed to close a dropped table cleanly");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, Table, Update, WritePolicy};
    use forerun_core::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    #[test]
    fn a_second_closer_waits_until_the_first_has_flushed() {
        let directory = tempfile::tempdir().unwrap();
        let table = Table::builder(Dtype::U8, 4)
            .path(directory.path().join("rows"))
            .writes(WritePolicy::WriteBack)
            .open()
            .unwrap();
        table.insert(&[7], b"row.").unwrap();
        // The last flush waits for this guard.
        let guard = table.inner().unwrap().key_locks.lock([7]);
        let (closed, is_closed) = channel();
        forerun_core::sync::thread::scope(|scope| {
            for _ in 0..2 {
                let (table, closed) = (table.clone(), closed.clone());
                scope.spawn(move || closed.send(table.close()).unwrap());
            }
            while table.inner().unwrap().check_open().is_ok() {
                std::thread::yield_now();
            }
            let early = is_closed.recv_timeout(Duration::from_millis(100));
            assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "{early:?}");
            drop(guard);
            for _ in 0..2 {
                is_closed.recv().unwrap().unwrap();
            }
        });
        assert_eq!(table.stats().host_dirty_rows, 0);
    }

    #[test]
    fn every_close_call_reports_unflushed_rows() {
        use forerun_db::io::fault::FaultIo;
        let io = FaultIo::new();
        let db = forerun_db::Db::open_with_io(Arc::new(io.clone()), "store", Default::default());
        let table = Table::builder(Dtype::U8, 4)
            .db(db.unwrap())
            .writes(WritePolicy::WriteBack)
            .open()
            .unwrap();
        table.insert(&[7], b"row.").unwrap();
        io.set_capacity_bytes(Some(0));
        for table in [table.clone(), table] {
            assert!(matches!(table.close(), Err(Error::Store(_))));
        }
    }

    #[test]
    fn an_interrupt_ends_a_long_call() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let directory = tempfile::tempdir().unwrap();
        for path in [None, Some(directory.path().join("rows"))] {
            let ends = Arc::new(AtomicBool::new(false));
            let asked = Arc::clone(&ends);
            let mut builder = Table::builder(Dtype::U8, 4);
            if let Some(path) = path {
                builder = builder.path(path);
            }
            let builder = builder.interrupt_if(move || asked.load(Ordering::Relaxed));
            let table = builder.open().unwrap();
            let keys: Vec<u64> = (0..100_000).collect();
            let (mut rows, mut found) = (vec![7; 400_000], vec![false; 100_000]);
            table.insert(&keys[..70_000], &rows[..280_000]).unwrap();
            assert_eq!(table.find(&keys, &mut rows, &mut found).unwrap(), 70_000);
            ends.store(true, Ordering::Relaxed);
            let answers = [
                table.find(&keys, &mut rows, &mut found).map(drop),
                table.contains(&keys, &mut found).map(drop),
                table.insert(&keys, &rows),
                table.import_rows(&keys, &rows),
                table.erase(&keys),
                table.prefetch(&keys),
                table.count().map(drop),
                table
                    .update(&keys, &rows, Update::Assign, &mut found)
                    .map(drop),
            ];
            for answer in answers {
                assert!(matches!(answer, Err(Error::Interrupted)), "{answer:?}");
            }
            ends.store(false, Ordering::Relaxed);
            assert_eq!(table.count().unwrap(), 70_000);
            table.close().unwrap();
        }
    }
}
