//! The child: it writes until it is killed, and acknowledges each finished write. An additional
//! thread may repeat an operation concurrently. Now and then a thread looks up all of its keys as a
//! batch: what it has just written must be there.

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, anyhow};
use forerun::{Create, Db, WriteBatch};

use super::super::script::{self, Model};
use super::check_store::check_lookups;
use super::opening::Opening;
use super::operation::Operation;
use forerun_cli::exit::Outcome;

/// A thread looks up its keys after one write in so many.
const CHECKED_WRITES: u64 = 8;

/// Runs the child: writes from the given numbers on, and repeats an operation from its number on,
/// until it is killed.
pub fn write(
    dir: &Path,
    opening: &Opening,
    seed: u64,
    from: &[u64],
    operation: Option<(Operation, u64)>,
) -> anyhow::Result<Outcome> {
    let db = opening
        .open(dir, Create::IfMissing)
        .context("cannot open the store")?;
    acknowledge("open")?;
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        let operating = operation.map(|(operation, first)| {
            let (db, stopped) = (&db, &stopped);
            scope.spawn(move || {
                let ended = operation.repeat(db, dir, first, acknowledge);
                stopped.store(true, Ordering::Relaxed); // a wish to end; orders nothing
                ended
            })
        });
        let writers: Vec<_> = from
            .iter()
            .enumerate()
            .map(|(thread, &first)| {
                let (db, stopped) = (&db, &stopped);
                scope.spawn(move || {
                    let written = write_on(db, seed, thread, first, stopped);
                    stopped.store(true, Ordering::Relaxed); // a wish to end; orders nothing
                    written
                })
            })
            .collect();
        writers.into_iter().chain(operating).try_for_each(|writer| {
            writer
                .join()
                .map_err(|_| anyhow!("a thread of the child panicked"))?
        })
    })?;
    Ok(Outcome::Done)
}

fn write_on(
    db: &Db,
    seed: u64,
    thread: usize,
    first: u64,
    stopped: &AtomicBool,
) -> anyhow::Result<()> {
    let mut batch = WriteBatch::new();
    let mut model = Model::new();
    for n in 0..first {
        script::write(seed, thread, n).apply(&mut model);
    }
    for n in first.. {
        if stopped.load(Ordering::Relaxed) {
            break;
        }
        let write = script::write(seed, thread, n);
        write.perform(db, &mut batch)?;
        acknowledge(&format!("{thread} {n}"))?;
        write.apply(&mut model);
        if n % CHECKED_WRITES == 0 {
            check_lookups(db, thread, &model)?;
        }
    }
    Ok(())
}

/// Reports one line with one call. Fails once the parent is gone, which ends an orphaned child.
fn acknowledge(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .context("cannot acknowledge")
}
