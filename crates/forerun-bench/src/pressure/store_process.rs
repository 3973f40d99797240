//! The process with the store: fills it, then looks up keys until it is ended.

use super::children::{Said, await_parent};
use crate::engine::{self, Engine, StoreLocation, StoreRequirements};
use crate::skew::Skew;
use crate::store_engine::DbEngine;
use crate::workload::{Dataset, Queries};
use anyhow::{Result, ensure};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const KEY_BYTES: usize = 16;

/// Keys that are drawn at a time.
const DRAWN: usize = 1 << 16;

/// Entries of a write.
const WRITTEN: usize = 100;

/// How often it says how many keys it has found.
const INTERVAL: Duration = Duration::from_millis(50);

/// What the process does.
#[derive(clap::Args, Clone, Debug)]
pub struct LookupsArgs {
    /// Directory for the store.
    #[arg(long)]
    dir: PathBuf,
    /// The directory whose files simulate the system's limits.
    #[arg(long)]
    system_root: Option<PathBuf>,
    #[arg(long)]
    data: u64,
    #[arg(long)]
    value_bytes: usize,
    #[arg(long)]
    batch: usize,
    #[arg(long)]
    access: Skew,
}

pub(super) fn run(args: &LookupsArgs) -> Result<()> {
    await_parent()?;
    if let Some(root) = &args.system_root {
        forerun_core::memory_study::read_below(root.clone());
    }
    let record_bytes = (KEY_BYTES + args.value_bytes) as u64;
    let data = Dataset::new(
        (args.data / record_bytes).max(1),
        KEY_BYTES,
        0,
        args.value_bytes,
    )?;
    let mut requirements = StoreRequirements::of(&data, 0);
    requirements.place = StoreLocation {
        parent: Some(args.dir.clone()),
        // What sizes itself is what is tested.
        cache_bytes: None,
    };
    let store = DbEngine.open(&requirements)?;
    let mut said = Said::default();
    let all = 0..data.keys();
    let mut lost = Ok(());
    engine::load(&mut *store.writer()?, &data, all, WRITTEN, |done| {
        said.filled_bytes = done * record_bytes;
        if lost.is_ok() {
            lost = said.say();
        }
    })?;
    lost?;
    store.wait_idle()?;
    said.is_ready = true;
    said.say()?;
    let mut reader = store.reader(&DbEngine.batched())?;
    let (mut say_at, mut expected) = (Instant::now(), Vec::new());
    for seed in 0.. {
        let queries = Queries::new(&data, 1.0, args.access, DRAWN, seed);
        for batch in queries.keys().chunks(args.batch.max(1)) {
            let found = reader.read(batch)?;
            ensure!(
                found == batch.len(),
                "{found} of {} keys were found",
                batch.len()
            );
            // One of each batch is compared, which is cheap beside looking up all.
            let at = seed as usize % batch.len();
            expected.clear();
            data.value(data.index_of(batch[at])?, &mut expected);
            ensure!(
                reader.value(at) == Some(&expected),
                "the value of {:02x?} is wrong",
                batch[at]
            );
            said.keys += found as u64;
            if Instant::now() >= say_at {
                said.say()?;
                say_at = Instant::now() + INTERVAL;
            }
        }
    }
    Ok(())
}
