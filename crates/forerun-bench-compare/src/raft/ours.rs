//! `forerun-raft` on a store with its default options.

use std::path::Path;

use anyhow::Result;
use forerun_db::{Db, Options, Values};
use forerun_raft::{KvReader, LogStore, StateMachine, TypeConfig};
use openraft::storage::{RaftLogStorageExt, RaftStateMachine};
use tokio::runtime::{Builder, Runtime};

use super::node::{Entry, KEY_BYTES, Node};

pub struct Forerun {
    db: Db,
    log: LogStore<TypeConfig>,
    machine: StateMachine<TypeConfig>,
    reader: KvReader,
    values: Values,
    runtime: Runtime,
}

impl Forerun {
    pub fn open(directory: &Path) -> Result<Forerun> {
        let db = Db::open(directory, Options::default())?;
        let (log, machine) = forerun_raft::open(&db)?;
        Ok(Forerun {
            db,
            log,
            reader: machine.reader(),
            machine,
            values: Values::default(),
            runtime: Builder::new_current_thread().build()?,
        })
    }
}

impl Node for Forerun {
    fn name(&self) -> &str {
        "forerun"
    }

    fn durability(&self, case: &str) -> &'static str {
        match case {
            "append" => "synced",
            "apply" => "not synced",
            _ => "",
        }
    }

    fn append(&mut self, entries: Vec<Entry>) -> Result<()> {
        Ok(self.runtime.block_on(self.log.blocking_append(entries))?)
    }

    fn apply(&mut self, entries: Vec<Entry>) -> Result<()> {
        self.runtime.block_on(self.machine.apply(entries))?;
        Ok(())
    }

    fn compact(&mut self) -> Result<()> {
        Ok(self.db.compact()?)
    }

    fn multi_get(&mut self, keys: &[[u8; KEY_BYTES]]) -> Result<usize> {
        self.reader.multi_get(keys, &mut self.values)?;
        Ok(self.values.found())
    }
}
