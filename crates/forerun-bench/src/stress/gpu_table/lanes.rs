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
    Answers, Batch, DeviceBatch, Element, GpuTable, Lookup, Operation, Status, TableCommand,
    TableError,
};
use forerun::gpu::{DeviceBuffer, Gpu, GpuError, Stream};

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
    Contains(Lookup),
}

impl Work {
    fn operation(self) -> Option<Operation> {
        match self {
            Work::Insert => Some(Operation::InsertOrAssign),
            Work::FindOrInsert => Some(Operation::FindOrInsert),
            Work::Add => Some(Operation::AccumulateOrAssign(Element::I64)),
            Work::Erase => Some(Operation::Erase),
            Work::Find | Work::Contains(_) => None,
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

/// A job's result: a status for each key, and a row for each if it returns rows.
#[derive(Default)]
pub struct Answer {
    pub status: Vec<Status>,
    pub rows: Vec<u8>,
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
    let mut said = Answer {
        status: vec![Status::Absent; n],
        rows: Vec::new(),
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
                _ => Lookup::ByLoad,
            };
            let table = table.read().unwrap_or_else(PoisonError::into_inner);
            table.lookup(lookup, &job.keys, answers)?;
        }
    }
    Ok(said)
}

/// A job's arrays in the device's memory.
struct Arrays {
    keys: DeviceBuffer,
    rows: DeviceBuffer,
    flags: DeviceBuffer,
    rows_out: DeviceBuffer,
    status: DeviceBuffer,
}

impl Arrays {
    fn of(gpu: &Gpu, job: &Job, row_bytes: usize) -> Result<Arrays, GpuError> {
        let n = job.keys.len();
        let keys: Vec<u8> = job.keys.iter().flat_map(|key| key.to_ne_bytes()).collect();
        let out = if job.work.gives_rows() {
            n * row_bytes
        } else {
            0
        };
        Ok(Arrays {
            keys: DeviceBuffer::from_slice(gpu, &keys)?,
            rows: DeviceBuffer::from_slice(gpu, &job.rows)?,
            flags: DeviceBuffer::from_slice(gpu, &vec![1; n])?,
            rows_out: DeviceBuffer::from_slice(gpu, &vec![0; out])?,
            status: DeviceBuffer::from_slice(gpu, &vec![0; n])?,
        })
    }

    fn command<'a>(
        &'a self,
        table: &'a GpuTable,
        job: &Job,
    ) -> Result<TableCommand<'a>, TableError> {
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
            (None, _) => table.lookup_command(Lookup::ByLoad, &batch, true),
        }
    }

    fn answer(&self) -> Result<Answer, GpuError> {
        let status = self.status.to_vec()?.into_iter().map(Status::of).collect();
        Ok(Answer {
            status,
            rows: self.rows_out.to_vec()?,
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
