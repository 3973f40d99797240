//! Concurrent lanes of work on one table: streams of a GPU, or threads for a table on the CPU.
//!
//! ```text
//!   lane 0   | job | job | job |          jobs of a lane run in order; jobs of different lanes are unordered
//!   lane 1   | job | job | job |          on the CPU a job that writes has the table to itself
//! ```

use std::sync::{PoisonError, RwLock};
use std::thread;

use anyhow::{anyhow, ensure};
use forerun::gpu::table::{
    Answers, Bags, Batch, DeviceBatch, Element, GpuTable, LookupMode, Operation, PooledBatch,
    Status, TableCommand, TableError,
};
use forerun::gpu::{DeviceBuffer, Gpu, GpuError, Stream};

use super::pooled_bags::{self, BAG_KEYS, POOLED_BYTES};

/// The work of a job on its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Inserts its rows, replacing existing ones.
    Insert,
    /// Inserts the rows of absent keys, and returns the existing rows of the others.
    FindOrInsert,
    /// Adds its rows, of u64, to the existing ones.
    Add,
    /// Removes keys.
    Erase,
    /// Copies rows out while others write.
    Find,
    /// Returns which keys are present, by this kind of lookup.
    Contains(LookupMode),
    /// Sums the rows of bags of keys while others write.
    FindPooled,
}

impl Work {
    fn operation(self) -> Option<Operation> {
        match self {
            Work::Insert => Some(Operation::InsertOrAssign),
            Work::FindOrInsert => Some(Operation::FindOrInsert),
            Work::Add => Some(Operation::AccumulateOrAssign(Element::I64)),
            Work::Erase => Some(Operation::Erase),
            Work::Find | Work::Contains(_) | Work::FindPooled => None,
        }
    }

    fn takes_rows(self) -> bool {
        matches!(self, Work::Insert | Work::FindOrInsert | Work::Add)
    }

    fn gives_rows(self) -> bool {
        matches!(self, Work::Find | Work::FindOrInsert)
    }
}

/// One call: keys, and a row for each if it takes rows.
pub struct Job {
    pub work: Work,
    pub keys: Vec<u64>,
    pub rows: Vec<u8>,
}

/// A job's result: a status for each key, and a row for each if it returns rows. If it sums rows,
/// it has a row and a count for each bag instead.
#[derive(Default)]
pub struct Answer {
    pub status: Vec<Status>,
    pub rows: Vec<u8>,
    pub counts: Vec<u32>,
}

/// Runs all lanes concurrently; the answers are arranged like the jobs.
pub fn run(table: &mut GpuTable, lanes: &[Vec<Job>]) -> anyhow::Result<Vec<Vec<Answer>>> {
    match table.gpu().cloned() {
        Some(gpu) => on_streams(&gpu, table, lanes),
        None => on_threads(table, lanes),
    }
}

fn on_threads(table: &mut GpuTable, lanes: &[Vec<Job>]) -> anyhow::Result<Vec<Vec<Answer>>> {
    let table = RwLock::new(table);
    thread::scope(|scope| {
        let work = |lane: &[Job]| -> Result<Vec<Answer>, TableError> {
            lane.iter().map(|job| one(&table, job)).collect()
        };
        let started: Vec<_> = lanes
            .iter()
            .map(|lane| scope.spawn(move || work(lane)))
            .collect();
        let ended = started.into_iter().map(|lane| lane.join());
        ended
            .map(|lane| Ok(lane.map_err(|_| anyhow!("a lane panicked"))??))
            .collect()
    })
}

fn one(table: &RwLock<&mut GpuTable>, job: &Job) -> Result<Answer, TableError> {
    let n = job.keys.len();
    if job.work == Work::FindPooled {
        return pool(table, job);
    }
    let mut said = Answer {
        status: vec![Status::Absent; n],
        ..Answer::default()
    };
    let row_bytes = table
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .options()
        .row_bytes as usize;
    if job.work.gives_rows() {
        said.rows = vec![0; n * row_bytes];
    }
    let answers = Answers {
        rows: job.work.gives_rows().then_some(&mut said.rows[..]),
        status: Some(&mut said.status),
        ..Answers::default()
    };
    let flags = vec![1; n];
    match (job.work.operation(), job.work) {
        (Some(operation), work) => {
            let batch = Batch {
                keys: &job.keys,
                rows: work.takes_rows().then_some(&job.rows[..]),
                flags: (work == Work::Add).then_some(&flags[..]),
                ..Batch::default()
            };
            // A lane that panicked ends the run anyway.
            let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
            table.apply(operation, &batch, answers)?;
        }
        (None, work) => {
            let lookup = match work {
                Work::Contains(lookup) => lookup,
                _ => LookupMode::ByLoad,
            };
            let table = table.read().unwrap_or_else(PoisonError::into_inner);
            table.lookup(lookup, &job.keys, answers)?;
        }
    }
    Ok(said)
}

fn pool(table: &RwLock<&mut GpuTable>, job: &Job) -> Result<Answer, TableError> {
    let (offsets, weights) = pooled_bags::offsets_and_weights(job.keys.len());
    let bags = Bags::new(&job.keys, &offsets).with_weights(&weights);
    let mut said = Answer {
        status: Vec::new(),
        rows: vec![0; bags.len() * POOLED_BYTES],
        counts: vec![0; bags.len()],
    };
    let table = table.read().unwrap_or_else(PoisonError::into_inner);
    let options = pooled_bags::options();
    table.find_pooled(&bags, &options, &mut said.rows, &mut said.counts)?;
    Ok(said)
}

/// A job's arrays in the device's memory.
struct Arrays {
    keys: DeviceBuffer,
    rows: DeviceBuffer,
    flags: DeviceBuffer,
    rows_out: DeviceBuffer,
    status: DeviceBuffer,
    pooled: Option<PooledArrays>,
}

/// Those of a job that sums rows.
struct PooledArrays {
    offsets: DeviceBuffer,
    weights: DeviceBuffer,
    counts: DeviceBuffer,
}

impl PooledArrays {
    fn of(gpu: &Gpu, keys: usize) -> Result<PooledArrays, GpuError> {
        let (offsets, weights) = pooled_bags::offsets_and_weights(keys);
        let offsets: Vec<u8> = offsets.iter().flat_map(|at| at.to_ne_bytes()).collect();
        let weights: Vec<u8> = weights.iter().flat_map(|by| by.to_ne_bytes()).collect();
        Ok(PooledArrays {
            offsets: DeviceBuffer::from_slice(gpu, &offsets)?,
            weights: DeviceBuffer::from_slice(gpu, &weights)?,
            counts: DeviceBuffer::from_slice(gpu, &vec![0; keys / BAG_KEYS * 4])?,
        })
    }
}

impl Arrays {
    fn of(gpu: &Gpu, job: &Job, row_bytes: usize) -> Result<Arrays, GpuError> {
        let n = job.keys.len();
        let keys: Vec<u8> = job.keys.iter().flat_map(|key| key.to_ne_bytes()).collect();
        let pools = job.work == Work::FindPooled;
        let out = if job.work.gives_rows() {
            n * row_bytes
        } else if pools {
            n / BAG_KEYS * POOLED_BYTES
        } else {
            0
        };
        Ok(Arrays {
            keys: DeviceBuffer::from_slice(gpu, &keys)?,
            rows: DeviceBuffer::from_slice(gpu, &job.rows)?,
            flags: DeviceBuffer::from_slice(gpu, &vec![1; n])?,
            rows_out: DeviceBuffer::from_slice(gpu, &vec![0; out])?,
            status: DeviceBuffer::from_slice(gpu, &vec![0; if pools { 0 } else { n }])?,
            pooled: if pools {
                Some(PooledArrays::of(gpu, n)?)
            } else {
                None
            },
        })
    }

    fn command<'a>(
        &'a self,
        table: &'a GpuTable,
        job: &Job,
    ) -> Result<TableCommand<'a>, TableError> {
        if let Some(arrays) = &self.pooled {
            let batch = PooledBatch {
                count: job.keys.len() as u64,
                count_at: None,
                keys: &self.keys,
                bags: (job.keys.len() / BAG_KEYS) as u64,
                offsets: &arrays.offsets,
                weights: Some(&arrays.weights),
                rows_out: &self.rows_out,
                found_out: Some(&arrays.counts),
                sums: None,
            };
            return table.pooled_command(&pooled_bags::options(), &batch, true);
        }
        let batch = DeviceBatch {
            rows: job.work.takes_rows().then_some(&self.rows),
            flags: (job.work == Work::Add).then_some(&self.flags),
            rows_out: job.work.gives_rows().then_some(&self.rows_out),
            status_out: Some(&self.status),
            ..DeviceBatch::new(&self.keys, job.keys.len() as u64)
        };
        match (job.work.operation(), job.work) {
            (Some(operation), _) => table.command(operation, &batch),
            (None, Work::Contains(lookup)) => table.lookup_command(lookup, &batch, true),
            (None, _) => table.lookup_command(LookupMode::ByLoad, &batch, true),
        }
    }

    fn answer(&self) -> Result<Answer, GpuError> {
        let status = self.status.to_vec()?.into_iter().map(Status::of).collect();
        let counts = match &self.pooled {
            Some(arrays) => arrays.counts.to_vec()?,
            None => Vec::new(),
        };
        let words = counts.as_chunks().0.iter();
        Ok(Answer {
            status,
            rows: self.rows_out.to_vec()?,
            counts: words.map(|word| u32::from_ne_bytes(*word)).collect(),
        })
    }
}

fn on_streams(gpu: &Gpu, table: &GpuTable, lanes: &[Vec<Job>]) -> anyhow::Result<Vec<Vec<Answer>>> {
    let row_bytes = table.options().row_bytes as usize;
    let arrays: Vec<Vec<Arrays>> = lanes
        .iter()
        .map(|lane| {
            lane.iter()
                .map(|job| Arrays::of(gpu, job, row_bytes))
                .collect()
        })
        .collect::<Result<_, GpuError>>()?;
    let mut commands = Vec::new();
    let mut streams = Vec::new();
    for (lane, arrays) in lanes.iter().zip(&arrays) {
        let lane = lane.iter().zip(arrays);
        commands.push(
            lane.map(|(job, arrays)| arrays.command(table, job))
                .collect::<Result<Vec<_>, _>>()?,
        );
        streams.push(Stream::new(gpu)?);
    }
    let max = commands.iter().map(Vec::len).max().unwrap_or(0);
    ensure!(max > 0, "a round without work");
    gpu.scope(|scope| {
        // In turn, so that the first jobs of all lanes start together.
        for turn in 0..max {
            for (lane, stream) in commands.iter().zip(&streams) {
                if let Some(command) = lane.get(turn) {
                    scope.enqueue(stream, command)?;
                }
            }
        }
        Ok::<(), GpuError>(())
    })?;
    drop(commands);
    let answers = arrays
        .iter()
        .map(|lane| lane.iter().map(Arrays::answer).collect());
    Ok(answers.collect::<Result<_, GpuError>>()?)
}
