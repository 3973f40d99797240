//! Checks that a GPU gives the same answers as the CPU, for every kernel, width and operation.
//!
//! ```text
//!   a table with slots      random batches of distinct keys: every answer, every row, every score
//!   a full one              one candidate and scores that all differ: each bucket keeps its greatest, in any order
//!   on streams              counts computed on the device, scans, a clear, replayed graphs
//! ```

use super::keys::{key_of, rows_of};
use super::pooled_check;
use anyhow::{Context, Result, ensure};
use forerun_gpu::table::{
    Answers, Batch, Candidates, Condition, DeviceBatch, Element, Entries, EntryBuffers,
    GpuEvictStrategy, GpuTable, LookupMode, Operation, Scan, Status, TableOptions, Width,
};
use forerun_gpu::{Command, DeviceBuffer, Gpu, Graph, Stream};
use forerun_measure::progress::Progress;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

const ROW_BYTES: u64 = 48;

type Make<'a> = &'a dyn Fn(TableOptions) -> Result<GpuTable>;

/// Runs all checks on a GPU, and describes what was checked.
pub(super) fn run(gpu: &Gpu, progress: &Progress) -> Result<Vec<String>> {
    let mut lines = compare(&|options| Ok(GpuTable::on_gpu(gpu, options)?), progress)?;
    lines.push(on_streams(gpu).context("operations on streams")?);
    Ok(lines)
}

fn form(width: Width, candidates: Candidates, slots: u64) -> TableOptions {
    TableOptions::new(slots, ROW_BYTES)
        .width(width)
        .candidates(candidates)
        .evict_strategy(GpuEvictStrategy::Customized)
}

/// Compares tables made by `make` with the CPU's table.
fn compare(make: Make<'_>, progress: &Progress) -> Result<Vec<String>> {
    let bar = progress.steps("checking", 2 * Width::ALL.len() as u64 + 5);
    let mut answers = 0;
    for width in Width::ALL {
        for candidates in [Candidates::One, Candidates::Two] {
            let options = form(width, candidates, 1 << 13);
            answers += with_free_slots(make, options).with_context(|| format!("{options:?}"))?;
            bar.step();
        }
    }
    let mut lines = vec![format!(
        "{answers} answers in tables with free slots, like the CPU's"
    )];
    answers = 0;
    for element in [Element::F32, Element::F64] {
        answers += sums(make, element).with_context(|| format!("sums of {element:?}"))?;
    }
    lines.push(format!("{answers} sums of fractions, to the bit"));
    let mut kept = 0;
    for width in Width::ALL {
        let options = form(width, Candidates::One, 1 << 11);
        kept += full(make, options).with_context(|| format!("{options:?}"))?;
        bar.step();
    }
    lines.push(format!(
        "{kept} entries that full tables kept, and all that they evicted"
    ));
    let pooled = pooled_check::run(make).context("pooled lookups")?;
    bar.step();
    lines.push(format!("{pooled} pooled rows, to the bit"));
    Ok(lines)
}

/// The whole contents, by key.
fn contents(table: &mut GpuTable) -> Result<BTreeMap<u64, (u64, Vec<u8>)>> {
    let mut all = BTreeMap::new();
    let bytes = table.options().row_bytes as usize;
    table.for_each(|entries| {
        for (i, key) in entries.keys.iter().enumerate() {
            let row = entries.rows[i * bytes..][..bytes].to_vec();
            let before = all.insert(*key, (entries.scores[i], row));
            ensure!(before.is_none(), "key {key} is there twice");
        }
        Ok(())
    })?;
    let size = table.size()?;
    ensure!(
        size == all.len() as u64,
        "{} entries, but a size of {size}",
        all.len()
    );
    Ok(all)
}

/// The answers of an operation.
#[derive(Debug, PartialEq)]
struct Results {
    rows: Vec<u8>,
    scores: Vec<u64>,
    status: Vec<Status>,
}

fn apply(table: &mut GpuTable, operation: Operation, batch: &Batch<'_>) -> Result<Results> {
    let n = batch.keys.len();
    let mut results = Results {
        rows: vec![7; n * ROW_BYTES as usize],
        scores: vec![7; n],
        status: vec![Status::Absent; n],
    };
    let answers = Answers {
        rows: Some(&mut results.rows),
        scores: Some(&mut results.scores),
        status: Some(&mut results.status),
        ..Answers::default()
    };
    table.apply(operation, batch, answers)?;
    Ok(results)
}

fn find(table: &GpuTable, lookup: LookupMode, keys: &[u64]) -> Result<Results> {
    let n = keys.len();
    let mut results = Results {
        rows: vec![7; n * ROW_BYTES as usize],
        scores: vec![7; n],
        status: vec![Status::Refused; n],
    };
    let answers = Answers {
        rows: Some(&mut results.rows),
        scores: Some(&mut results.scores),
        ..Answers::default()
    };
    table.lookup(lookup, keys, answers)?;
    let (mut pointers, mut slots) = (vec![7; n], vec![7; n]);
    let answers = Answers {
        status: Some(&mut results.status),
        pointers: Some(&mut pointers),
        slots: Some(&mut slots),
        ..Answers::default()
    };
    table.lookup(lookup, keys, answers)?;
    for (i, key) in keys.iter().enumerate() {
        let found = results.status[i] == Status::Found;
        ensure!(
            found == (pointers[i] != 0) && found == (slots[i] != u64::MAX),
            "{lookup:?}: key {key} is found and not found"
        );
    }
    for i in (0..n).step_by(97).filter(|i| slots[*i] != u64::MAX) {
        let row = &results.rows[i * ROW_BYTES as usize..][..ROW_BYTES as usize];
        ensure!(
            table.row(slots[i])? == row,
            "{lookup:?}: a slot of another key"
        );
    }
    Ok(results)
}

/// Keys are distinct within a batch, and nothing is evicted, so the answers follow from the keys
/// alone.
fn with_free_slots(make: Make<'_>, options: TableOptions) -> Result<u64> {
    let (mut theirs, mut ours) = (make(options)?, GpuTable::on_cpu(options)?);
    let mut random = SmallRng::seed_from_u64(u64::from(options.width.slots()));
    // A narrow bucket with one candidate is full long before the table is.
    // key_of(0) is 0, which follows.
    let mut keys: Vec<u64> = (1..options.capacity / 8).map(key_of).collect();
    keys.extend([0, u64::MAX, u64::MAX - 1, u64::MAX - 2, u64::MAX - 3]);
    let operations = [
        Operation::InsertOrAssign,
        Operation::FindOrInsert,
        Operation::AccumulateOrAssign(Element::I32),
        Operation::AccumulateOrAssign(Element::I64),
        Operation::Assign,
        Operation::AssignRows,
        Operation::AssignScores,
        Operation::FindAndUpdate,
        Operation::Lock,
        Operation::Erase,
        Operation::Unlock,
        Operation::Erase,
        Operation::Restore,
    ];
    let mut answers = 0;
    for round in 0..3 {
        for operation in operations {
            keys.shuffle(&mut random);
            let some = &keys[..keys.len() / 2];
            let scores: Vec<u64> = some
                .iter()
                .map(|_| random.random_range(0..1 << 40))
                .collect();
            let flags: Vec<u8> = some.iter().map(|_| random.random_range(0..2)).collect();
            let rows = rows_of(some, ROW_BYTES);
            let batch = Batch {
                keys: some,
                rows: Some(&rows),
                scores: Some(&scores),
                flags: Some(&flags),
                epoch: round,
            };
            let results = apply(&mut theirs, operation, &batch)?;
            ensure!(
                results == apply(&mut ours, operation, &batch)?,
                "{operation:?} answers otherwise"
            );
            answers += 3 * some.len() as u64;
        }
        let mut asked = keys.clone();
        asked.extend((0..500).map(|i| key_of(1 << 41 | i)));
        for lookup in LookupMode::ALL {
            if lookup == LookupMode::Pipeline && options.width != Width::W128 {
                continue;
            }
            let results = find(&theirs, lookup, &asked)?;
            ensure!(
                results == find(&ours, lookup, &asked)?,
                "{lookup:?} answers otherwise"
            );
            answers += 3 * asked.len() as u64;
        }
        let mut rows = vec![0; asked.len() * ROW_BYTES as usize];
        let mut missed = [
            theirs.find_missed(&asked, &mut rows)?,
            ours.find_missed(&asked, &mut rows)?,
        ];
        missed
            .iter_mut()
            .for_each(|entries| entries.positions.sort_unstable());
        ensure!(
            missed[0].positions == missed[1].positions,
            "other keys are missed"
        );
        let some = Condition {
            scores: 0..=1 << 38,
            key_mask: 1,
            key_value: 1,
        };
        let (there, here) = (theirs.size_if(&some)?, ours.size_if(&some)?);
        ensure!(
            there == here,
            "{there} entries meet a condition, and {here} here"
        );
        let (there, here) = (theirs.erase_if(&some)?, ours.erase_if(&some)?);
        ensure!(there == here, "{there} entries are erased, and {here} here");
        ensure!(
            contents(&mut theirs)? == contents(&mut ours)?,
            "other entries after {round} rounds"
        );
    }
    theirs.clear()?;
    ensure!(
        contents(&mut theirs)?.is_empty(),
        "a cleared table still has entries"
    );
    Ok(answers)
}

/// Fractions whose sums are exact in any order, for keys that occur several times in a batch.
fn sums(make: Make<'_>, element: Element) -> Result<u64> {
    let options = form(Width::W64, Candidates::Two, 1 << 10);
    let (mut theirs, mut ours) = (make(options)?, GpuTable::on_cpu(options)?);
    let row = |value: f64| -> Vec<u8> {
        match element {
            Element::F32 => (value as f32).to_ne_bytes().repeat(ROW_BYTES as usize / 4),
            _ => value.to_ne_bytes().repeat(ROW_BYTES as usize / 8),
        }
    };
    let keys: Vec<u64> = (0..200).map(key_of).collect();
    let start: Vec<u8> = (0..200).flat_map(|i| row(f64::from(i) * 0.25)).collect();
    let storm: Vec<u64> = (0..1000).map(|i| key_of(i * i % 211)).collect();
    let more: Vec<u8> = (0..1000)
        .flat_map(|i| row(f64::from(i % 64) * 0.5))
        .collect();
    for table in [&mut theirs, &mut ours] {
        table.insert_or_assign(&keys, &start, None)?;
        table.accumulate_or_assign(element, &storm, &more, &vec![1; storm.len()], None)?;
    }
    ensure!(contents(&mut theirs)? == contents(&mut ours)?, "other sums");
    Ok(2 * storm.len() as u64)
}

/// More entries than the table holds, including a batch larger than the table.
fn full(make: Make<'_>, options: TableOptions) -> Result<u64> {
    let (mut theirs, mut ours) = (make(options)?, GpuTable::on_cpu(options)?);
    let score = |key: u64| key >> 1;
    let mut inside: BTreeMap<u64, u64> = BTreeMap::new();
    for round in 0..4 {
        let n = theirs.capacity() * (1 + round % 2);
        let keys: Vec<u64> = (round * n..(round + 1) * n)
            .map(|i| key_of(i + (round << 32)))
            .collect();
        let scores: Vec<u64> = keys.iter().map(|key| score(*key)).collect();
        let rows = rows_of(&keys, ROW_BYTES);
        let given = theirs.insert_and_evict(&keys, &rows, Some(&scores))?;
        ours.insert_or_assign(&keys, &rows, Some(&scores))?;
        inside.extend(keys.iter().copied().zip(scores));
        for (i, key) in given.keys.iter().enumerate() {
            ensure!(
                inside.remove(key) == Some(given.scores[i]),
                "key {key} was evicted although it was not there"
            );
            let bytes = ROW_BYTES as usize;
            ensure!(
                given.rows[i * bytes..][..bytes] == rows_of(&[*key], ROW_BYTES),
                "key {key} was evicted with another row"
            );
        }
        let all = contents(&mut theirs)?;
        ensure!(all == contents(&mut ours)?, "other entries are kept");
        ensure!(
            all.keys().eq(inside.keys()),
            "an entry is neither kept nor evicted"
        );
    }
    Ok(inside.len() as u64)
}

fn words(list: &[u64]) -> Vec<u8> {
    list.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn word(buffer: &DeviceBuffer) -> Result<u64> {
    let mut bytes = [0; 8];
    buffer.read(0, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The misses of one operation are the next one's batch, with counts that only the device knows;
/// also as a replayed graph.
fn on_streams(gpu: &Gpu) -> Result<String> {
    const N: usize = 3000;
    let options = form(Width::W128, Candidates::Two, 1 << 14);
    let mut table = GpuTable::on_gpu(gpu, options)?;
    let stream = Stream::new(gpu)?;
    let of = |bytes| DeviceBuffer::from_slice(gpu, &vec![0; bytes]);
    let (keys, rows) = (of(N * 8)?, of(N * ROW_BYTES as usize)?);
    let (count, missed, places) = (of(8)?, of(N * 8)?, of(N * 8)?);
    let (counted, status) = (of(8)?, of(N)?);
    let put = |command: &dyn Command| gpu.scope(|scope| scope.enqueue(&stream, command));
    {
        let find = DeviceBatch {
            entries_out: Some(EntryBuffers {
                count: &count,
                keys: &missed,
                rows: None,
                scores: None,
                positions: Some(&places),
            }),
            status_out: Some(&status),
            ..DeviceBatch::new(&keys, N as u64)
        };
        let insert = DeviceBatch {
            count_at: Some(&count),
            rows: Some(&rows),
            ..DeviceBatch::new(&missed, N as u64)
        };
        let find = table.lookup_command(LookupMode::ByLoad, &find, true)?;
        let insert = table.command(Operation::InsertOrAssign, &insert)?;
        let graph = Graph::capture(&stream, &[&find, &insert])?;
        for round in 0..4u64 {
            let batch: Vec<u64> = (0..N as u64).map(|i| key_of(round * 1000 + i)).collect();
            keys.write(0, &words(&batch))?;
            count.write(0, &[0; 8])?;
            put(&graph)?;
            let new = if round == 0 { N as u64 } else { 1000 };
            ensure!(
                word(&count)? == new,
                "{} keys missed of {new}",
                word(&count)?
            );
        }
        // Keys beyond the count must not be inserted.
        let none = DeviceBatch {
            count_at: Some(&counted),
            rows: Some(&rows),
            ..DeviceBatch::new(&keys, N as u64)
        };
        keys.write(
            0,
            &words(
                &(0..N as u64)
                    .map(|i| key_of(1 << 40 | i))
                    .collect::<Vec<_>>(),
            ),
        )?;
        counted.write(0, &7u64.to_ne_bytes())?;
        put(&table.command(Operation::InsertOrAssign, &none)?)?;
        counted.write(0, &[0; 8])?;
        let given = EntryBuffers {
            count: &counted,
            keys: &missed,
            rows: None,
            scores: None,
            positions: None,
        };
        put(&table.scan_command(Scan::Count, 0..u64::MAX, &Condition::ALL, &given)?)?;
        let size = word(&counted)?;
        ensure!(
            size == N as u64 + 3007 && size == table.size()?,
            "{size} entries counted"
        );
        counted.write(0, &[0; 8])?;
        put(&table.scan_command(Scan::Export, 0..N as u64, &Condition::ALL, &given)?)?;
        let exported = word(&counted)?;
        ensure!(
            exported > 0 && exported <= N as u64,
            "{exported} entries exported"
        );
        put(&table.clear_command()?)?;
    }
    ensure!(table.size()? == 0, "a cleared table still has entries");
    let mut left = Entries::default();
    table.export_batch(0..u64::MAX, &mut left)?;
    ensure!(
        left.is_empty(),
        "{} entries are left of a cleared table",
        left.len()
    );
    Ok("missed keys put in by a count that only the device knows, replayed as a graph; scans and a \
        clear on a stream".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_accepts_a_correct_table() {
        let lines = compare(
            &|options| Ok(GpuTable::on_cpu(options)?),
            &Progress::hidden(),
        )
        .unwrap();
        assert_eq!(lines.len(), 4, "{lines:?}");
    }

    #[test]
    fn the_check_finds_a_table_that_keeps_something_else() {
        let keeps_scores_by_time = |options: TableOptions| {
            Ok(GpuTable::on_cpu(
                options.evict_strategy(GpuEvictStrategy::Lru),
            )?)
        };
        let results = compare(&keeps_scores_by_time, &Progress::hidden()).unwrap_err();
        assert!(
            format!("{results:#}").contains("answers otherwise"),
            "{results:#}"
        );
        // It may not grow either.
        let forgets_most = |options: TableOptions| {
            let capacity = options.capacity / 8;
            Ok(GpuTable::on_cpu(
                options.capacity(capacity).max_capacity(capacity),
            )?)
        };
        assert!(compare(&forgets_most, &Progress::hidden()).is_err());
    }
}
