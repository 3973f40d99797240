//! Lookups from many tasks, answered in batches: a thread collects the keys that tasks request and
//! looks up everything that has arrived in one call.
//!
//! A single lookup would block a task's thread while it waits for memory or for the disk. Here
//! tasks wait without blocking, and the busier the program, the larger its batches.
//!
//! ```sh
//! cargo run --release -p forerun --example tokio
//! ```

use std::thread::JoinHandle;

use forerun::prelude::*;
use tokio::sync::{mpsc, oneshot};

const BATCH_MAX: usize = 1024;

type Answer = Result<Option<Vec<u8>>, String>;

struct Request {
    key: Vec<u8>,
    answer: oneshot::Sender<Answer>,
}

/// A handle for tasks. Clones share one lookup thread.
#[derive(Clone)]
struct Lookups(mpsc::Sender<Request>);

impl Lookups {
    /// The first handle, and the thread, which ends once all handles are dropped.
    fn start(db: Db) -> (Lookups, JoinHandle<()>) {
        let (sender, receiver) = mpsc::channel(BATCH_MAX);
        let thread = std::thread::spawn(move || serve(&db, receiver));
        (Lookups(sender), thread)
    }

    async fn get(&self, key: impl Into<Vec<u8>>) -> Answer {
        let (answer, answered) = oneshot::channel();
        let key = key.into();
        let request = Request { key, answer };
        let gone = "the thread of lookups has ended";
        self.0.send(request).await.map_err(|_| gone)?;
        answered.await.map_err(|_| gone)?
    }
}

fn serve(db: &Db, mut receiver: mpsc::Receiver<Request>) {
    let mut values = Values::new();
    let mut requests: Vec<Request> = Vec::new();
    let mut batches = 0;
    let mut keys_total = 0;
    while receiver.blocking_recv_many(&mut requests, BATCH_MAX) > 0 {
        let keys: Vec<&[u8]> = requests.iter().map(|request| &request.key[..]).collect();
        let outcome = db.multi_get(&keys, &mut values);
        batches += 1;
        keys_total += keys.len();
        for (position, request) in requests.drain(..).enumerate() {
            let answer = match &outcome {
                Ok(()) => values.get(position).map(|value| value.map(<[u8]>::to_vec)),
                Err(error) => Err(error.clone()),
            };
            // A task that no longer waits has dropped its receiver.
            let _ = request
                .answer
                .send(answer.map_err(|error| error.to_string()));
        }
    }
    println!("{keys_total} keys in {batches} batches");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let db = Db::open(directory.path().join("numbers.db"), Options::default())?;
    let mut batch = WriteBatch::new();
    for number in 0..100_000_u32 {
        batch.put(&number.to_be_bytes(), number.to_string().as_bytes())?;
    }
    db.write(&batch, Durability::Buffered)?;

    let (lookups, thread) = Lookups::start(db);
    let tasks = (0..200_u32).map(|task| {
        let lookups = lookups.clone();
        tokio::spawn(async move {
            for step in 0..100 {
                let number = (task * 7919 + step * 104_729) % 100_000;
                let value = lookups.get(number.to_be_bytes()).await?;
                assert_eq!(value, Some(number.to_string().into_bytes()));
            }
            Ok::<(), String>(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    // Without handles, the thread answers the remaining requests and closes the store.
    drop(lookups);
    thread.join().expect("the thread of lookups does not panic");
    Ok(())
}
