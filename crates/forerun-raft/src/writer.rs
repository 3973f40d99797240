//! Writes batches to the store, with a thread so that no task of the runtime waits long for the
//! disk.
//!
//! ```text
//!   caller   small, nothing queued: written, readable ─> syncs are short: synced, durable ─> return
//!            otherwise ─> queue                  └─ otherwise ─> queue ─────────────────────> return
//!                           │                                      │
//!   thread                  └─> written, readable ─> one sync for all that is queued ─> durable
//! ```
//!
//! Batches are written in the order of the calls. All of them go to one log, so after a power loss
//! the store has a prefix of them.
//!
//! openraft waits until an entry is durable, so each thread that it has to wait for before that
//! adds a context switch, and a core whose caches have nothing of the batch. So the caller writes
//! small batches by itself, which takes microseconds unless flushes or compactions do not keep up,
//! and syncs the log if that usually takes as long as a few context switches. Other tasks of its
//! runtime's thread wait meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forerun_db::{Db, Durability, WriteBatch};
use tokio::sync::oneshot;

use crate::{Error, Result};

/// A caller writes at most so much by itself.
const CALLER_BYTES_MAX: usize = 256 << 10;

/// A caller writes by itself, and syncs, if each usually takes at most so long. Writes take longer
/// while flushes or compactions do not keep up.
const CALLER_MAX: Duration = Duration::from_micros(500);

/// Before the first sync.
const UNKNOWN: u64 = u64::MAX;

type OnDurable = Box<dyn FnOnce(forerun_db::Result<()>) + Send>;

struct Command {
    /// Still to be written.
    batches: Vec<WriteBatch>,
    readable: Option<oneshot::Sender<forerun_db::Result<()>>>,
    on_durable: Option<OnDurable>,
}

/// What callers and the thread use.
struct Shared {
    db: Db,
    /// Commands that the thread has not executed.
    unfinished: AtomicUsize,
    /// How long a write of at most [`CALLER_BYTES_MAX`] usually takes.
    usual_write_ns: AtomicU64,
    /// How long a sync usually takes, or [`UNKNOWN`].
    usual_sync_ns: AtomicU64,
}

/// Adds how long something took that began at `begun` to how long it usually takes.
fn note_took(usual: &AtomicU64, begun: Instant) {
    let took_ns = begun.elapsed().as_nanos() as u64;
    // Relaxed, also below: an estimate, of which it does not matter if an update is lost.
    let usual_ns = match usual.load(Ordering::Relaxed) {
        UNKNOWN => took_ns,
        usual_ns => usual_ns - usual_ns / 8 + took_ns / 8,
    };
    usual.store(usual_ns, Ordering::Relaxed);
}

fn is_short(usual: &AtomicU64) -> bool {
    u128::from(usual.load(Ordering::Relaxed)) <= CALLER_MAX.as_nanos()
}

fn is_small(batches: &[WriteBatch]) -> bool {
    let bytes: usize = batches.iter().map(|batch| batch.encoded().len()).sum();
    bytes <= CALLER_BYTES_MAX
}

impl Shared {
    fn write(&self, batches: &[WriteBatch]) -> forerun_db::Result<()> {
        let begun = Instant::now();
        let written: forerun_db::Result<()> = batches.iter().try_for_each(|batch| {
            self.db.write(batch, Durability::Buffered)?;
            Ok(())
        });
        if !batches.is_empty() && is_small(batches) {
            note_took(&self.usual_write_ns, begun);
        }
        written
    }

    /// Makes what was written durable.
    fn sync(&self) -> forerun_db::Result<()> {
        let begun = Instant::now();
        let synced = self.db.flush_wal();
        note_took(&self.usual_sync_ns, begun);
        synced
    }

    /// Notes that commands have been executed, before their callers learn of it, so that their next
    /// calls find nothing queued.
    fn finish(&self, commands: usize) {
        // Release: pairs with the Acquire in `may_write`.
        self.unfinished.fetch_sub(commands, Ordering::Release);
    }
}

/// The queue of a writing thread. openraft waits for each call before the next one, so the queue
/// has at most a few entries.
pub(crate) struct Writer {
    name: &'static str,
    shared: Arc<Shared>,
    /// `None` while it is dropped.
    queue: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(crate) fn start(db: Db, name: &'static str) -> Result<Writer> {
        let (queue, commands) = channel();
        let shared = Arc::new(Shared {
            db,
            unfinished: AtomicUsize::new(0),
            usual_write_ns: AtomicU64::new(0),
            usual_sync_ns: AtomicU64::new(UNKNOWN),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&of_thread, &commands))
            .map_err(|error| Error::Thread {
                thread: name,
                reason: error.to_string(),
            })?;
        Ok(Writer {
            name,
            shared,
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Writes batches, one after the other. When it returns they can be read; they survive the end
    /// of the process, but not a power loss.
    pub(crate) async fn write(&self, batches: Vec<WriteBatch>) -> Result<()> {
        self.send(batches, None).await
    }

    /// Writes a batch durably.
    pub(crate) async fn write_durably(&self, batch: WriteBatch) -> Result<()> {
        let (sender, durable) = oneshot::channel();
        // If nobody waits any longer, nobody needs the result.
        let on_durable = move |result| drop(sender.send(result));
        self.write_then(vec![batch], on_durable).await?;
        durable.await.map_err(|_| self.ended())?.map_err(Error::Db)
    }

    /// Writes batches, one after the other. When it returns they can be read. `on_durable` is
    /// called once, when they survive a power loss, or with the error.
    pub(crate) async fn write_then(
        &self,
        batches: Vec<WriteBatch>,
        on_durable: impl FnOnce(forerun_db::Result<()>) + Send + 'static,
    ) -> Result<()> {
        self.send(batches, Some(Box::new(on_durable))).await
    }

    async fn send(&self, batches: Vec<WriteBatch>, on_durable: Option<OnDurable>) -> Result<()> {
        if !self.may_write(&batches) {
            let (readable, written) = oneshot::channel();
            self.queue(Command {
                batches,
                readable: Some(readable),
                on_durable,
            })?;
            return written.await.map_err(|_| self.ended())?.map_err(Error::Db);
        }
        let written = self.shared.write(&batches);
        if let Some(on_durable) = on_durable {
            match &written {
                Ok(()) if is_short(&self.shared.usual_sync_ns) => on_durable(self.shared.sync()),
                Ok(()) => self.queue(Command {
                    batches: Vec::new(),
                    readable: None,
                    on_durable: Some(on_durable),
                })?,
                Err(error) => on_durable(Err(error.clone())),
            }
        }
        written.map_err(Error::Db)
    }

    /// Whether the caller may write these batches by itself. Otherwise it would overtake the write
    /// of a call that was dropped before it returned, or wait for a sync, or for flushes.
    fn may_write(&self, batches: &[WriteBatch]) -> bool {
        // Acquire: pairs with the Release in `finish`, so what the thread has written comes before.
        let is_idle = self.shared.unfinished.load(Ordering::Acquire) == 0;
        is_idle && is_small(batches) && is_short(&self.shared.usual_write_ns)
    }

    fn queue(&self, command: Command) -> Result<()> {
        let queue = self.queue.as_ref().ok_or_else(|| self.ended())?;
        // Relaxed: the queue orders it before the thread's subtraction.
        self.shared.unfinished.fetch_add(1, Ordering::Relaxed);
        queue.send(command).map_err(|_| self.ended())
    }

    fn ended(&self) -> Error {
        Error::ThreadEnded { thread: self.name }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The thread ends when it has executed what is queued.
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic was already reported to those who waited.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, commands: &Receiver<Command>) {
    while let Ok(first) = commands.recv() {
        let mut waiting = Vec::new();
        for command in std::iter::once(first).chain(commands.try_iter()) {
            let written = shared.write(&command.batches);
            match (&written, command.on_durable) {
                (Ok(()), Some(on_durable)) => waiting.push(on_durable),
                (Err(error), Some(on_durable)) => {
                    shared.finish(1);
                    on_durable(Err(error.clone()));
                }
                (_, None) => shared.finish(1),
            }
            if let Some(readable) = command.readable {
                // The caller may have been cancelled.
                let _ = readable.send(written);
            }
        }
        if !waiting.is_empty() {
            let synced = shared.sync();
            shared.finish(waiting.len());
            for on_durable in waiting {
                on_durable(synced.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use forerun_db::Options;
    use forerun_db::io::fault::FaultIo;

    use super::*;

    fn batch(key: &str) -> WriteBatch {
        let mut batch = WriteBatch::new();
        batch.put(key, "value").unwrap();
        batch
    }

    #[tokio::test]
    async fn what_was_written_durably_survives_a_power_loss() {
        let io = FaultIo::new();
        let db = Db::open_with_io(Arc::new(io.clone()), "/store", Options::default()).unwrap();
        let writer = Writer::start(db.clone(), "test").unwrap();
        writer.write(vec![batch("a"), batch("b")]).await.unwrap();
        assert!(db.get("b").unwrap().is_some());
        // By the thread, and then by the caller.
        for (key, usual_sync_ns) in [("c", UNKNOWN), ("d", 0)] {
            let shared = &writer.shared;
            shared.usual_sync_ns.store(usual_sync_ns, Ordering::Relaxed);
            writer.write_durably(batch(key)).await.unwrap();
            assert_eq!(shared.unfinished.load(Ordering::Relaxed), 0);
            assert_ne!(shared.usual_sync_ns.load(Ordering::Relaxed), UNKNOWN);
        }
        writer.write(vec![batch("e")]).await.unwrap();

        let io = io.crash(0);
        drop(writer);
        let db = Db::open_with_io(Arc::new(io), "/store", Options::default()).unwrap();
        let keys: Vec<Vec<u8>> = db.iter().map(|entry| entry.unwrap().0).collect();
        assert_eq!(keys, [b"a", b"b", b"c", b"d"]);
    }

    #[tokio::test]
    async fn a_write_does_not_overtake_one_that_was_dropped_after_it_was_queued() {
        let io = FaultIo::new();
        let db = Db::open_with_io(Arc::new(io), "/store", Options::default()).unwrap();
        let writer = Writer::start(db.clone(), "test").unwrap();
        for turn in 0..50_u32 {
            let mut large = WriteBatch::new();
            large.put("filler", vec![7; CALLER_BYTES_MAX]).unwrap();
            large.put("key", turn.to_le_bytes()).unwrap();
            {
                let batches = vec![large];
                assert!(
                    !writer.may_write(&batches),
                    "it is too large for the caller"
                );
                let mut dropped = pin!(writer.write(batches));
                // It may have been written already.
                poll_fn(|context| {
                    let _ = dropped.as_mut().poll(context);
                    Poll::Ready(())
                })
                .await;
            }
            let mut small = WriteBatch::new();
            small.put("key", (turn + 1000).to_le_bytes()).unwrap();
            writer.write(vec![small]).await.unwrap();
            let found = db.get("key").unwrap();
            assert_eq!(found.as_deref(), Some(&(turn + 1000).to_le_bytes()[..]));
        }
    }

    #[tokio::test]
    async fn while_writes_wait_the_thread_writes() {
        const LONG_NS: u64 = 1 << 40;
        let io = FaultIo::new();
        let db = Db::open_with_io(Arc::new(io), "/store", Options::default()).unwrap();
        let writer = Writer::start(db.clone(), "test").unwrap();
        let usual_ns = &writer.shared.usual_write_ns;
        assert!(writer.may_write(&[batch("a")]));
        usual_ns.store(LONG_NS, Ordering::Relaxed);
        assert!(!writer.may_write(&[batch("a")]));
        writer.write_durably(batch("a")).await.unwrap();
        assert!(db.get("a").unwrap().is_some());
        let after_ns = usual_ns.load(Ordering::Relaxed);
        assert!(after_ns < LONG_NS, "the thread's writes count: {after_ns}");
    }

    #[tokio::test]
    async fn a_callback_gets_the_error_of_its_write() {
        let io = FaultIo::new();
        let db = Db::open_with_io(Arc::new(io.clone()), "/store", Options::default()).unwrap();
        let writer = Writer::start(db, "test").unwrap();
        io.crash(0);
        let (sender, receiver) = oneshot::channel();
        let report = move |result: forerun_db::Result<()>| sender.send(result.is_err()).unwrap();
        writer
            .write_then(vec![batch("a")], report)
            .await
            .unwrap_err();
        assert!(receiver.await.unwrap());
    }
}
