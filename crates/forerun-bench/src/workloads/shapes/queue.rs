//! A queue: a step pushes an entry at one end and pops the first one at the other.
//!
//! ```text
//!  keys     7 8 9 10 11 ... 10006 10007       --rows entries wait
//!  pop      ^ iter().next(), delete           push  ^ put
//! ```
//!
//! One client steps as fast as the store lets it. Every pop must return the oldest entry.

use crate::engine::{Reader, Store, Writer};
use crate::workload::EntryBuffer;
use crate::workloads::latencies::{Call, Kind, Latencies};
use crate::workloads::opened_store::{Measured, OpenedStore};
use crate::workloads::rows::{KEY_BYTES, KeyOrder, Rows};
use crate::workloads::run::{Classes, Client, Run};
use anyhow::{Result, ensure};
use std::time::Instant;

/// Fills the queue and runs.
///
/// # Errors
/// A failed call of the store, or a wrong answer.
pub(super) fn run(opened: &OpenedStore<'_>) -> Result<Measured> {
    let plan = opened.plan;
    let waiting = plan.rows(opened.shape);
    let store = &*opened.stores[0];
    let mut queue = Queue::new(store, &opened.strategy, plan.value_bytes)?;
    for _ in 0..waiting {
        queue.push()?;
    }
    drop(queue);
    let client: Client<'_> = Box::new(move |run: &Run| {
        let mut queue = Queue::new(store, &opened.strategy, plan.value_bytes)?;
        queue.tail = waiting;
        queue.steps(run, plan.steps)
    });
    let duration = plan.steps.is_none().then_some(plan.duration);
    opened.measure(|origin| Run::new(origin, duration).clients(&[client]))
}

struct Queue<'a> {
    reader: Box<dyn Reader + 'a>,
    writer: Box<dyn Writer + 'a>,
    rows: Rows,
    /// The number of the first entry, and that of the next one to push.
    head: u64,
    tail: u64,
    entry: EntryBuffer,
    /// The entry found first.
    first: EntryBuffer,
}

impl<'a> Queue<'a> {
    fn new(store: &'a dyn Store, strategy: &str, value_bytes: usize) -> Result<Queue<'a>> {
        Ok(Queue {
            reader: store.reader(strategy)?,
            writer: store.writer()?,
            // Each is written once and read once, so no versions are counted.
            rows: Rows::new(0, KeyOrder::ByNumber, value_bytes)?,
            head: 0,
            tail: 0,
            entry: EntryBuffer::default(),
            first: EntryBuffer::default(),
        })
    }

    /// Pushes and pops until the run is over, or `steps` times.
    fn steps(&mut self, run: &Run, steps: Option<u64>) -> Result<Classes> {
        let mut pushes = Latencies::new(Kind::Write, run.origin)?;
        let mut pops = Latencies::new(Kind::Write, run.origin)?;
        while !run.is_over() && steps.is_none_or(|steps| pushes.keys < steps) {
            pushes.record(self.push()?)?;
            pushes.keys += 1;
            pushes.put_bytes += self.rows.row_bytes();
            pops.record(self.pop()?)?;
            pops.keys += 1;
            pops.put_bytes += KEY_BYTES as u64;
        }
        Ok(vec![("pushes", pushes), ("pops", pops)])
    }

    fn push(&mut self) -> Result<Call> {
        let entry = &mut self.entry;
        self.rows.fill(self.tail, 1, entry);
        let began = Instant::now();
        self.writer.write(&entry.key, &entry.value)?;
        let ended = Instant::now();
        self.tail += 1;
        Ok(Call {
            intended: began,
            began,
            ended,
        })
    }

    fn pop(&mut self) -> Result<Call> {
        let first = &mut self.first;
        let began = Instant::now();
        let found = self.reader.scan(&[], 1, &mut |key, value| {
            first.key.clear();
            first.key.extend_from_slice(key);
            first.value.clear();
            first.value.extend_from_slice(value);
        })?;
        ensure!(found == 1, "the queue has lost entry {}", self.head);
        self.writer.delete(&first.key)?;
        let ended = Instant::now();
        self.rows.fill(self.head, 1, &mut self.entry);
        ensure!(
            self.first == self.entry,
            "a wrong answer: entry {} was to be popped",
            self.head
        );
        self.head += 1;
        Ok(Call {
            intended: began,
            began,
            ended,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::MapEngine;
    use crate::engine::{Engine, KeyspaceSpec, StoreLocation};

    #[test]
    fn entries_are_popped_in_order_and_a_lost_one_is_noticed() {
        let spec = KeyspaceSpec {
            name: "queue".into(),
            ttl: None,
        };
        let stores = MapEngine
            .open_keyspaces(&StoreLocation::default(), &[spec])
            .unwrap();
        let mut queue = Queue::new(&*stores[0], "batch", 40).unwrap();
        for _ in 0..10 {
            queue.push().unwrap();
        }
        let run = Run::new(Instant::now(), None);
        let classes = queue.steps(&run, Some(25)).unwrap();
        let keys: Vec<(&str, u64)> = classes.iter().map(|c| (c.0, c.1.keys)).collect();
        assert_eq!(keys, [("pushes", 25), ("pops", 25)]);
        assert_eq!((queue.head, queue.tail), (25, 35));
        let mut writer = stores[0].writer().unwrap();
        writer.delete(&25_u64.to_be_bytes()).unwrap();
        let error = queue.pop().unwrap_err().to_string();
        assert!(error.contains("entry 25"), "{error}");
    }
}
