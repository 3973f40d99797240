//! Decodes a manifest's body and checks its invariants.

use std::collections::BTreeSet;

use super::{Keyspace, LEVELS, Manifest, RunRecord, is_keyspace_name};
use crate::clock::Mark;
use crate::sealed::{Bad, Reader};
use crate::versions::SEQUENCE_MAX;

/// Bytes of a run's record.
const RUN_BYTES: usize = 24;

pub(super) fn manifest(reader: &mut Reader<'_>) -> Result<Manifest, Bad> {
    let next_run = reader.u64()?;
    let first_segment = reader.u64()?;
    let flushed_sequence = reader.u64()?;
    if flushed_sequence > SEQUENCE_MAX {
        return Err(reader.bad("a sequence number is out of range"));
    }
    let next_keyspace = reader.u32()?;
    let marks = marks(reader, flushed_sequence)?;
    let count = reader.u32()?;
    let mut keyspaces: Vec<Keyspace> = Vec::new();
    let (mut numbers, mut names) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..count {
        let at = reader.at();
        let keyspace = keyspace(reader, next_run, flushed_sequence, &mut numbers)?;
        let is_in_order = match keyspaces.last() {
            None => keyspace.id == 0 && keyspace.name.is_empty(),
            Some(last) => last.id < keyspace.id && is_keyspace_name(&keyspace.name),
        };
        if !is_in_order || keyspace.id >= next_keyspace || !names.insert(keyspace.name.clone()) {
            return Err(Bad::Bytes {
                offset: at,
                reason: "a keyspace's id or name is out of order or duplicated",
            });
        }
        keyspaces.push(keyspace);
    }
    if keyspaces.is_empty() {
        Err(reader.bad("there is no keyspace"))
    } else {
        Ok(Manifest {
            next_run,
            first_segment,
            flushed_sequence,
            next_keyspace,
            marks,
            keyspaces,
        })
    }
}

/// When the entries in runs were written.
fn marks(reader: &mut Reader<'_>, flushed_sequence: u64) -> Result<Vec<Mark>, Bad> {
    let mut marks: Vec<Mark> = Vec::new();
    for _ in 0..reader.u32()? {
        let mark = Mark {
            second: reader.u64()?,
            first_sequence: reader.u64()?,
        };
        let is_next = marks.last().is_none_or(|last| {
            last.second < mark.second && last.first_sequence < mark.first_sequence
        });
        if !is_next || !(1..=flushed_sequence).contains(&mark.first_sequence) {
            return Err(
                reader.bad("a mark is out of order, or is for entries that are not in runs")
            );
        }
        marks.push(mark);
    }
    Ok(marks)
}

fn keyspace(
    reader: &mut Reader<'_>,
    next_run: u64,
    flushed_sequence: u64,
    numbers: &mut BTreeSet<u64>,
) -> Result<Keyspace, Bad> {
    let id = reader.u32()?;
    let name = reader.text()?.to_owned();
    let comparator = reader.text()?.to_owned();
    let mut levels: [Vec<RunRecord>; LEVELS] = Default::default();
    let mut range_runs = Vec::new();
    for runs in levels.iter_mut().chain([&mut range_runs]) {
        let count = reader.u32()? as usize;
        if count > reader.rest() / RUN_BYTES {
            return Err(reader.bad("a level claims more runs than the file can hold"));
        }
        runs.reserve_exact(count);
        for _ in 0..count {
            let run = RunRecord {
                number: reader.u64()?,
                bytes: reader.u64()?,
                checksum: reader.u64()?,
            };
            if run.number == 0 || run.number >= next_run || !numbers.insert(run.number) {
                return Err(reader.bad("a run's number is out of range or duplicated"));
            }
            runs.push(run);
        }
    }
    let expired_sequence = reader.u64()?;
    let ttl = reader.u64()?;
    if expired_sequence > flushed_sequence {
        return Err(reader.bad("more has expired than is in runs"));
    }
    Ok(Keyspace {
        id,
        name,
        comparator,
        levels,
        range_runs,
        expired_sequence,
        ttl,
    })
}
