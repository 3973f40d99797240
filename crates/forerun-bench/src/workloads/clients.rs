//! Clients that several shapes share: puts to, and reads of, random rows of one or more keyspaces.

use super::latencies::{Call, Kind, Latencies};
use super::rows::Rows;
use super::run::{Operations, Run};
use crate::engine::{Reader, Store, Writer};
use crate::workload::EntryBuffer;
use crate::ycsb::expected_versions::PendingWrite;
use anyhow::{Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Keys per `multi_get`.
pub(super) const READ_BATCH: usize = 64;

/// A keyspace and its rows.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub store: &'a dyn Store,
    pub rows: &'a Rows,
}

/// Overwrites random rows, `batch` per write, of each keyspace in turn.
///
/// # Errors
/// A failed write.
pub(super) fn put(
    run: &Run,
    targets: &[Target<'_>],
    batch: usize,
    per_second: Option<f64>,
    seed: u64,
) -> Result<Latencies> {
    let writers: Result<Vec<_>> = targets.iter().map(|target| target.store.writer()).collect();
    let client = Puts {
        targets,
        writers: writers?,
        next: 0,
        rng: SmallRng::seed_from_u64(seed),
        entries: vec![EntryBuffer::default(); batch],
    };
    let mut latencies = Latencies::new(Kind::Write, run.origin)?;
    run.repeat(per_second, &mut latencies, client)?;
    Ok(latencies)
}

struct Puts<'a> {
    targets: &'a [Target<'a>],
    writers: Vec<Box<dyn Writer + 'a>>,
    next: usize,
    rng: SmallRng,
    entries: Vec<EntryBuffer>,
}

impl Operations for Puts<'_> {
    /// The number of the keyspace, and the rows' versions.
    type Operation = (usize, Vec<PendingWrite>);

    fn prepare(&mut self) -> Result<Self::Operation> {
        let target = self.next;
        self.next = (target + 1) % self.targets.len();
        let rows = self.targets[target].rows;
        let begin = |entry| rows.begin(self.rng.random_range(0..rows.count()), entry);
        Ok((target, self.entries.iter_mut().map(begin).collect()))
    }

    fn call(&mut self, (target, _): &Self::Operation) -> Result<()> {
        match &self.entries[..] {
            [entry] => self.writers[*target].write(&entry.key, &entry.value),
            entries => self.writers[*target].write_many(entries),
        }
    }

    fn finish(
        &mut self,
        (target, writes): Self::Operation,
        _: Call,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let rows = self.targets[target].rows;
        latencies.keys += writes.len() as u64;
        latencies.put_bytes += writes.len() as u64 * rows.row_bytes();
        writes.into_iter().for_each(|write| rows.end(write));
        Ok(())
    }
}

/// Looks up [`READ_BATCH`] random rows per call, each time of a random keyspace, and checks the
/// answers.
///
/// # Errors
/// A failed read, or a wrong answer.
pub(super) fn read(
    run: &Run,
    targets: &[Target<'_>],
    strategy: &str,
    per_second: f64,
    seed: u64,
) -> Result<Latencies> {
    let readers = targets.iter().map(|target| target.store.reader(strategy));
    let client = Reads {
        targets,
        readers: readers.collect::<Result<_>>()?,
        rng: SmallRng::seed_from_u64(seed),
        scratch: Vec::new(),
    };
    let mut latencies = Latencies::new(Kind::Read, run.origin)?;
    run.repeat(Some(per_second), &mut latencies, client)?;
    Ok(latencies)
}

struct Reads<'a> {
    targets: &'a [Target<'a>],
    readers: Vec<Box<dyn Reader + 'a>>,
    rng: SmallRng,
    scratch: Vec<u8>,
}

/// A lookup of several rows.
struct Lookup {
    target: usize,
    rows: Vec<u64>,
    /// The oldest version that is right for each.
    oldest: Vec<u64>,
}

impl Operations for Reads<'_> {
    type Operation = Lookup;

    fn prepare(&mut self) -> Result<Lookup> {
        let target = self.rng.random_range(0..self.targets.len());
        let rows = self.targets[target].rows;
        let drawn = (0..READ_BATCH).map(|_| self.rng.random_range(0..rows.count()));
        let drawn: Vec<u64> = drawn.collect();
        // Writes may return until the lookup begins; then it finds a newer version than it must.
        let oldest = drawn.iter().map(|row| rows.oldest(*row)).collect();
        Ok(Lookup {
            target,
            rows: drawn,
            oldest,
        })
    }

    fn call(&mut self, lookup: &Lookup) -> Result<()> {
        let rows = self.targets[lookup.target].rows;
        let found = rows.read(&mut *self.readers[lookup.target], &lookup.rows)?;
        let asked = lookup.rows.len();
        ensure!(found == asked, "only {found} of {asked} rows were found");
        Ok(())
    }

    fn finish(&mut self, lookup: Lookup, _: Call, latencies: &mut Latencies) -> Result<()> {
        let rows = self.targets[lookup.target].rows;
        let reader = &self.readers[lookup.target];
        for (at, (&row, &oldest)) in lookup.rows.iter().zip(&lookup.oldest).enumerate() {
            rows.check(row, reader.value(at), oldest, &mut self.scratch)?;
        }
        latencies.keys += lookup.rows.len() as u64;
        Ok(())
    }
}
