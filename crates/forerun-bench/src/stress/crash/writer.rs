//! The child: it writes until it is killed, and acknowledges each finished write. An additional
//! thread may repeat an operation concurrently.

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, anyhow};
use forerun::{Db, WriteBatch};

use super::super::script;
use super::operation::Operation;
use super::options;
use forerun_cli::exit::Outcome;

/// Runs the child: writes from the given numbers on, and repeats an operation from its number on,
/// until it is killed.
pub fn write(
    dir: &Path,
    seed: u64,
    from: &[u64],
    operation: Option<(Operation, u64)>,
) -> anyhow::Result<Outcome> {
    let db = Db::open(dir, options()).context("cannot open the store")?;
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
    for n in first.. {
        if stopped.load(Ordering::Relaxed) {
            break;
        }
        script::write(seed, thread, n).perform(db, &mut batch)?;
        acknowledge(&format!("{thread} {n}"))?;
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
