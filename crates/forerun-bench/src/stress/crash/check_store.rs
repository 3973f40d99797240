//! Checks the contents of the store of a killed child.

use std::path::Path;

use anyhow::Context;
use forerun::{Create, Db, Values};

use super::super::script::{self, Model};
use super::opening::Opening;
use super::operation::Operation;
use super::{ChildReport, Counters, OperationCounts};
use forerun_cli::exit::CheckFailed;
use forerun_cli::output::Named;

/// The required contents of a thread's keys, and the number of writes that lead to them.
#[derive(Clone, Default)]
pub struct Expected {
    /// The contents after these writes.
    pub model: Model,
    /// The number of writes.
    pub writes: u64,
}

/// Opens the store of a killed child and compares the values of each thread's keys with the
/// expected ones.
pub fn check(
    path: &Path,
    opening: &Opening,
    seed: u64,
    expected: &mut [Expected],
    acknowledged: &[u64],
    operated: &[OperationCounts],
    counters: &mut Counters,
) -> anyhow::Result<()> {
    let db = opening.open(path, Create::IfMissing).map_err(|error| {
        anyhow::Error::new(CheckFailed(format!(
            "the store does not open after a kill: {error}"
        )))
    })?;
    let mut entries = 0;
    for (thread, (expected, &acknowledged)) in expected.iter_mut().zip(acknowledged).enumerate() {
        for n in expected.writes..acknowledged {
            script::write(seed, thread, n).apply(&mut expected.model);
        }
        counters.acknowledged += acknowledged - expected.writes;
        expected.writes = acknowledged;
        let found: Model = db
            .prefix(&script::prefix(thread))
            .collect::<Result<_, _>>()?;
        if found != expected.model {
            // The unfinished write may have succeeded, but only as a whole. Nothing else may
            // differ.
            let under_way = script::write(seed, thread, acknowledged);
            let mut with_it = expected.model.clone();
            under_way.apply(&mut with_it);
            if found != with_it {
                return Err(
                    CheckFailed(difference(thread, acknowledged, &found, &expected.model)).into(),
                );
            }
            *expected = Expected {
                model: with_it,
                writes: acknowledged + 1,
            };
            counters.under_way_applied += 1;
        }
        check_lookups(&db, thread, &expected.model)?;
        entries += expected.model.len();
    }
    let all = db.iter().count();
    if all != entries {
        return Err(CheckFailed(format!(
            "a scan finds {all} entries, but the threads have {entries} keys"
        ))
        .into());
    }
    for of in operated {
        of.operation.check_store(&db, of.begun, of.done)?;
    }
    db.close().context("cannot close the store")
}

/// Opens the copies that a killed child made of its store. Each thread's keys must hold what they
/// held at some time after the copy was begun. `expected` is what they held before the child
/// started.
pub fn check_copies(
    path: &Path,
    opening: &Opening,
    seed: u64,
    operation: Operation,
    expected: &[Expected],
    report: &ChildReport,
) -> anyhow::Result<()> {
    let number = |of: &Option<super::OperationBegin>| of.as_ref().map(|mark| mark.number);
    let (begun, done) = (number(&report.begun), number(&report.done));
    operation.check_copies(path, opening, begun, done, |copy, is_done| {
        let mark = if is_done { &report.done } else { &report.begun };
        let Some(mark) = mark else {
            return Ok(());
        };
        let mut entries = 0;
        for (thread, expected) in expected.iter().enumerate() {
            let found: Model = copy
                .prefix(&script::prefix(thread))
                .collect::<Result<_, _>>()?;
            let mut model = expected.model.clone();
            let (from, to) = (mark.writes[thread], report.next[thread]);
            for n in expected.writes..from {
                script::write(seed, thread, n).apply(&mut model);
            }
            // The unfinished write at the end may be included too.
            let mut is_found = found == model;
            for n in from..=to {
                script::write(seed, thread, n).apply(&mut model);
                is_found = is_found || found == model;
            }
            if !is_found {
                return Err(CheckFailed(format!(
                    "the {operation} {} holds keys of thread {thread} as the store never held them \
                     after {from} to {to} writes",
                    mark.number
                ))
                .into());
            }
            entries += found.len();
        }
        if copy.iter().count() == entries {
            Ok(())
        } else {
            Err(CheckFailed(format!("the {operation} holds other keys")).into())
        }
    })
}

/// Looks up all keys of a thread as one batch, including the removed ones.
pub fn check_lookups(db: &Db, thread: usize, model: &Model) -> anyhow::Result<()> {
    let keys: Vec<Vec<u8>> = (0..script::KEYS)
        .map(|number| script::key(thread, number))
        .collect();
    let mut values = Values::new();
    db.multi_get(&keys, &mut values)?;
    for (at, key) in keys.iter().enumerate() {
        if values.get(at)? != model.get(key).map(Vec::as_slice) {
            return Err(CheckFailed(format!(
                "a batch of lookups gives a wrong answer for key {}",
                Named(key)
            ))
            .into());
        }
    }
    Ok(())
}

fn difference(thread: usize, acknowledged: u64, found: &Model, expected: &Model) -> String {
    let keys = found
        .keys()
        .chain(expected.keys())
        .find(|&key| found.get(key) != expected.get(key));
    let what = keys.map_or(String::new(), |key| {
        match (found.get(key), expected.get(key)) {
            (None, _) => format!("key {} is lost", Named(key)),
            (_, None) => format!("key {} was removed but is back", Named(key)),
            _ => format!("key {} has another value", Named(key)),
        }
    });
    format!("after {acknowledged} acknowledged writes of thread {thread}: {what}")
}

#[cfg(test)]
mod tests {
    use super::super::Requested;
    use super::*;
    use forerun::WriteBatch;

    /// The check must be able to fail. The test makes a store wrong in each possible way, and the
    /// check must notice it.
    #[test]
    fn lost_partial_and_resurrected_writes_are_detected() {
        const SEED: u64 = 3;
        let opening = Opening::draw(SEED, 0, &Requested::default());
        let writes: Vec<_> = (0..400).map(|n| script::write(SEED, 0, n)).collect();
        let verdict = |acknowledged: u64, change: &dyn Fn(&Db)| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("store");
            let db = opening.open(&path, Create::IfMissing).unwrap();
            let mut batch = WriteBatch::new();
            for write in &writes[..300] {
                write.fill(&mut batch).unwrap();
                db.write(&batch, forerun::Durability::Buffered).unwrap();
            }
            change(&db);
            db.close().unwrap();
            let mut expected = [Expected::default()];
            check(
                &path,
                &opening,
                SEED,
                &mut expected,
                &[acknowledged],
                &[],
                &mut Counters::default(),
            )
        };
        let nothing: &dyn Fn(&Db) = &|_| {};
        verdict(300, nothing).unwrap();
        verdict(299, nothing).unwrap();
        verdict(301, nothing).expect_err("an acknowledged write is lost");
        verdict(298, nothing).expect_err("two writes are there that were never acknowledged");
        let mut model = Model::new();
        writes[..300]
            .iter()
            .for_each(|write| write.apply(&mut model));
        let (present, _) = model.first_key_value().unwrap();
        verdict(300, &|db| db.delete(present).unwrap()).expect_err("an old write is lost");
        let absent = (0..script::KEYS)
            .map(|n| script::key(0, n))
            .find(|key| !model.contains_key(key))
            .unwrap();
        verdict(300, &|db| db.put(&absent, b"back").unwrap()).expect_err("a removed key is back");
        // The first half of the next write with several operations that differs from both none and
        // all of them.
        let (at, half) = writes
            .iter()
            .enumerate()
            .skip(300)
            .find(|(_, write)| write.ops.len() > 3)
            .unwrap();
        assert!(at >= 300);
        verdict(300, &|db| {
            for write in &writes[300..at] {
                let mut batch = WriteBatch::new();
                write.fill(&mut batch).unwrap();
                db.write(&batch, forerun::Durability::Buffered).unwrap();
            }
            db.put(&half.ops[0].0, b"half").unwrap();
        })
        .expect_err("half a write is there");
        verdict(300, &|db| db.put(b"stray", b"").unwrap())
            .expect_err("a key of no thread is there");
    }
}
