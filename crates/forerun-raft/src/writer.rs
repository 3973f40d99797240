//! A thread that writes batches to the store, so that no task of the runtime waits for the disk.
//!
//! ```text
//!   write        -> queue -> written, readable -> return
//!   write_then   -> queue -> written, readable -> return
//!                                  -> one sync for all that is queued -> durable: callbacks
//! ```
//!
//! Batches are written in the order of the calls. All of them go to one log, so after a power loss
//! the store has a prefix of them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use forerun_db::{Db, Durability, WriteBatch};
use tokio::sync::oneshot;

use crate::{Error, Result};

type OnDurable = Box<dyn FnOnce(forerun_db::Result<()>) + Send>;

struct Command {
    batches: Vec<WriteBatch>,
    readable: oneshot::Sender<forerun_db::Result<()>>,
    on_durable: Option<OnDurable>,
}

/// The queue of a writing thread. openraft waits for each call before the next one, so the queue
/// has at most a few entries.
pub(crate) struct Writer {
    name: &'static str,
    /// `None` while it is dropped.
    queue: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(crate) fn start(db: Db, name: &'static str) -> Result<Writer> {
        let (queue, commands) = channel();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&db, &commands))
            .map_err(|error| Error::Thread {
                thread: name,
                reason: error.to_string(),
            })?;
        Ok(Writer {
            name,
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
        let (readable, written) = oneshot::channel();
        let command = Command {
            batches,
            readable,
            on_durable,
        };
        let queue = self.queue.as_ref().ok_or_else(|| self.ended())?;
        queue.send(command).map_err(|_| self.ended())?;
        written.await.map_err(|_| self.ended())?.map_err(Error::Db)
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

fn run(db: &Db, commands: &Receiver<Command>) {
    while let Ok(first) = commands.recv() {
        let mut waiting = Vec::new();
        for command in std::iter::once(first).chain(commands.try_iter()) {
            let mut batches = command.batches.iter();
            let written: forerun_db::Result<()> = batches.try_for_each(|batch| {
                db.write(batch, Durability::Buffered)?;
                Ok(())
            });
            match (&written, command.on_durable) {
                (Ok(()), Some(on_durable)) => waiting.push(on_durable),
                (Err(error), Some(on_durable)) => on_durable(Err(error.clone())),
                (_, None) => {}
            }
            // The caller may have been cancelled.
            let _ = command.readable.send(written);
        }
        if !waiting.is_empty() {
            let synced = db.flush_wal();
            for on_durable in waiting {
                on_durable(synced.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
        writer.write_durably(batch("c")).await.unwrap();
        writer.write(vec![batch("d")]).await.unwrap();

        let io = io.crash(0);
        drop(writer);
        let db = Db::open_with_io(Arc::new(io), "/store", Options::default()).unwrap();
        let keys: Vec<Vec<u8>> = db.iter().map(|entry| entry.unwrap().0).collect();
        assert_eq!(keys, [b"a", b"b", b"c"]);
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
