//! The child: it writes until it is killed, and acknowledges each finished write.

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, anyhow};
use forerun::{Db, WriteBatch};

use super::super::script;
use super::options;
use crate::exit::Outcome;

/// Runs the child: writes from the given numbers on until it is killed.
pub fn write(dir: &Path, seed: u64, from: &[u64]) -> anyhow::Result<Outcome> {
    let db = Db::open(dir, options()).context("cannot open the store")?;
    acknowledge("open")?;
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
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
        writers.into_iter().try_for_each(|writer| {
            writer
                .join()
                .map_err(|_| anyhow!("a writing thread panicked"))?
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

/// Says one line, by one call. Fails once the parent is gone, which ends a child that was left alone.
fn acknowledge(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .context("cannot acknowledge")
}
