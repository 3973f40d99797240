//! LMDB as a peer of a table. It does not use the budget of rows: the system caches as much of the
//! file as it likes. Read-ahead is off, as LMDB's documentation recommends for files larger than
//! memory: random rows gain nothing from their neighbours.

use super::{Answers, each_batch};
use crate::lmdb::{map_bytes, unnamed};
use anyhow::{Context, Result};
use forerun_bench::table::contender::{
    Contender, Counters, Reader, StoreRequirements, TieredTable,
};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, PutFlags};

/// LMDB, rows in the file's mapping.
pub struct LmdbRows;

fn open(requirements: &StoreRequirements<'_>, flags: EnvFlags) -> Result<Env> {
    let bytes = map_bytes(requirements.keys.len(), requirements.row.bytes() + 8);
    let mut options = EnvOpenOptions::new();
    options.map_size(bytes).max_dbs(1);
    // SAFETY: LMDB maps the file, which must not be changed from elsewhere; it is in the bench's
    // own directory.
    let env = unsafe { options.flags(flags).open(requirements.dir) };
    env.context("opening LMDB")
}

impl Contender for LmdbRows {
    fn name(&self) -> &str {
        "lmdb"
    }

    fn policy(&self) -> String {
        "get".to_owned()
    }

    fn load(&self, requirements: &StoreRequirements<'_>, report: &dyn Fn(u64)) -> Result<()> {
        let env = open(requirements, EnvFlags::NO_SYNC)?;
        let database = unnamed(&env)?;
        each_batch(requirements, report, |entries| {
            let mut txn = env.write_txn()?;
            for (key, row) in entries {
                database.put_with_flags(&mut txn, PutFlags::APPEND, &key, row)?;
            }
            Ok(txn.commit()?)
        })?;
        Ok(env.force_sync()?)
    }

    fn open(&self, requirements: &StoreRequirements<'_>, _: u64) -> Result<Box<dyn TieredTable>> {
        Ok(Box::new(Rows(open(requirements, EnvFlags::NO_READ_AHEAD)?)))
    }
}

struct Rows(Env);

impl TieredTable for Rows {
    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(RowReader {
            env: &self.0,
            database: unnamed(&self.0)?,
        }))
    }

    fn fetch(&self, _: &[u64]) -> Result<()> {
        Ok(())
    }

    fn wait_idle(&self) {}

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

struct RowReader<'a> {
    env: &'a Env,
    database: Database<'a, Bytes, Bytes>,
}

impl Reader for RowReader<'_> {
    fn find(&mut self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<usize> {
        let mut answers = Answers::new(rows, found);
        let txn = self.env.read_txn()?;
        for (at, key) in keys.iter().enumerate() {
            answers.put(at, self.database.get(&txn, &key.to_be_bytes())?)?;
        }
        Ok(answers.hits)
    }
}
