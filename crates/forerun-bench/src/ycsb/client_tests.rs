//! Tests clients against an ordered map that records its requests, and against maps that give wrong
//! answers.

use super::*;
use crate::ycsb::mix::{Requests, Workload};
use std::collections::BTreeMap;
use std::sync::Mutex;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A request to a store: the number of keys together, a scan, or a write.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Request {
    Read(usize),
    Scan,
    Write(Vec<u8>),
}

/// How a store answers wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrongAnswer {
    None,
    /// Updates are dropped.
    Stale,
    /// The last value of a batch belongs to another record.
    Mixed,
    /// Scans leave out their second entry.
    Gap,
    /// Scans end after one entry.
    Short,
}

struct RecordingStore {
    map: Mutex<Map>,
    asked: Mutex<Vec<Request>>,
    lie: WrongAnswer,
}

struct Handle<'a> {
    store: &'a RecordingStore,
    values: Vec<Option<Vec<u8>>>,
}

impl Store for RecordingStore {
    fn reader(&self, _strategy: &str) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Handle {
            store: self,
            values: Vec::new(),
        }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        Ok(Box::new(Handle {
            store: self,
            values: Vec::new(),
        }))
    }
}

impl Handle<'_> {
    fn note(&self, asked: Request) {
        self.store.asked.lock().unwrap().push(asked);
    }
}

impl Reader for Handle<'_> {
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize> {
        self.note(Request::Read(keys.len()));
        let map = self.store.map.lock().unwrap();
        self.values = keys.iter().map(|&key| map.get(key).cloned()).collect();
        if self.store.lie == WrongAnswer::Mixed {
            let other = map.values().next().cloned();
            *self.values.last_mut().unwrap() = other;
        }
        Ok(self.values.iter().flatten().count())
    }

    fn value(&self, at: usize) -> Option<&[u8]> {
        self.values.get(at)?.as_deref()
    }

    fn scan(
        &mut self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        self.note(Request::Scan);
        let map = self.store.map.lock().unwrap();
        let limit = if self.store.lie == WrongAnswer::Short {
            1
        } else {
            limit
        };
        let gap = usize::from(self.store.lie == WrongAnswer::Gap);
        let entries = map.range(from.to_vec()..).enumerate();
        let kept = entries.filter(|(at, _)| gap == 0 || *at != 1).take(limit);
        Ok(kept.map(|(_, (key, value))| each(key, value)).count())
    }
}

impl Writer for Handle<'_> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.note(Request::Write(key.to_vec()));
        let mut map = self.store.map.lock().unwrap();
        if self.store.lie != WrongAnswer::Stale || !map.contains_key(key) {
            map.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }
}

const RECORDS: u64 = 300;

fn loaded(lie: WrongAnswer) -> (RecordingStore, ExpectedVersions) {
    let expected = ExpectedVersions::new(RECORDS + 2000).unwrap();
    let store = RecordingStore {
        map: Mutex::default(),
        asked: Mutex::default(),
        lie,
    };
    let mut entry = EntryBuffer::default();
    for _ in 0..RECORDS {
        let begun = expected.begin_insert().unwrap();
        record::key(begun.record, &mut entry.key);
        record::value(begun.record, begun.version, &mut entry.value);
        let mut map = store.map.lock().unwrap();
        map.insert(entry.key.clone(), entry.value.clone());
        drop(map);
        expected.end(begun);
    }
    (store, expected)
}

/// Runs a client and returns the requests to the store.
fn run(
    store: &RecordingStore,
    expected: &ExpectedVersions,
    workload: Workload,
    batch: usize,
) -> Result<Vec<Request>> {
    let operations = Requests::new(workload, RECORDS, RECORDS + 2000).operations(9);
    let mut client = Client::new(store, "", operations, expected, true)?;
    client.run(2000, batch)?;
    assert_eq!(
        client.into_latencies().len(),
        2000u64.div_ceil(batch as u64)
    );
    Ok(std::mem::take(&mut store.asked.lock().unwrap()))
}

fn asked(workload: Workload, batch: usize) -> Vec<Request> {
    let (store, expected) = loaded(WrongAnswer::None);
    run(&store, &expected, workload, batch).unwrap()
}

/// Reads requested one by one or together, scans, and writes.
fn totals(asked: &[Request]) -> (usize, usize, usize) {
    let mut totals = (0, 0, 0);
    for asked in asked {
        match asked {
            Request::Read(keys) => totals.0 += keys,
            Request::Scan => totals.1 += 1,
            Request::Write(_) => totals.2 += 1,
        }
    }
    totals
}

#[test]
fn batching_makes_the_same_operations_with_fewer_calls() {
    for workload in Workload::ALL {
        let single = asked(workload, 1);
        assert!(single.iter().all(|a| !matches!(a, Request::Read(2..))));
        for batch in [7, 64, 3000] {
            let batched = asked(workload, batch);
            if workload.inserts() {
                // The set of known records changes from batch to batch, and the drawn records
                // change with it.
                let (reads, scans, writes) = totals(&batched);
                assert_eq!(reads + scans + writes, 2000, "{workload:?} {batch}");
                continue;
            }
            assert_eq!(totals(&single), totals(&batched), "{workload:?} {batch}");
            // The writes are the same, in the same order.
            let writes = |asked: &[Request]| {
                let writes = asked.iter().filter(|a| matches!(a, Request::Write(_)));
                writes.cloned().collect::<Vec<_>>()
            };
            assert_eq!(writes(&single), writes(&batched));
        }
    }
}

#[test]
fn all_reads_of_a_batch_without_writes_are_one_call() {
    let calls = asked(Workload::C, 64);
    let mut expected = vec![Request::Read(64); 2000 / 64];
    expected.push(Request::Read(2000 % 64));
    assert_eq!(calls, expected);
}

#[test]
fn a_batch_with_few_writes_is_cut_only_where_a_read_follows_a_write_of_its_record() {
    let reads = |workload| {
        let asked = asked(workload, 64);
        asked
            .iter()
            .filter(|a| matches!(a, Request::Read(_)))
            .count()
    };
    let batches = 2000usize.div_ceil(64);
    // Reads never request what their own batch inserts.
    assert_eq!(reads(Workload::D), batches);
    let b = reads(Workload::B);
    assert!((batches + 1..3 * batches).contains(&b), "{b}");
    let f = reads(Workload::F);
    assert!((b..1000).contains(&f), "{f}");
}

#[test]
fn wrong_answers_are_found() {
    for (lie, workload, word) in [
        (WrongAnswer::Stale, Workload::A, "was found instead of"),
        (WrongAnswer::Mixed, Workload::C, "wrong answer for record"),
        (WrongAnswer::Gap, Workload::E, "wrong answer for a scan"),
        (WrongAnswer::Short, Workload::E, "wrong answer for a scan"),
    ] {
        let (store, expected) = loaded(lie);
        let error = run(&store, &expected, workload, 16).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(word), "{lie:?}: {error}");
    }
}

#[test]
fn a_missing_record_is_found_without_a_check_too() {
    let (store, expected) = loaded(WrongAnswer::None);
    store.map.lock().unwrap().clear();
    let operations = Requests::new(Workload::C, RECORDS, RECORDS).operations(9);
    let mut client = Client::new(&store, "", operations, &expected, false).unwrap();
    let error = client.run(10, 5).unwrap_err().to_string();
    assert!(error.contains("0 of 5"), "{error}");
}

#[test]
fn concurrent_clients_find_no_wrong_value() {
    let (store, expected) = loaded(WrongAnswer::None);
    for workload in Workload::ALL {
        let requests = Requests::new(workload, RECORDS, RECORDS + 2000);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let operations = requests.operations(thread);
                let (store, expected) = (&store, &expected);
                scope.spawn(move || {
                    let client = Client::new(store, "", operations, expected, true);
                    client.unwrap().run(300, 16).unwrap();
                });
            }
        });
    }
}
