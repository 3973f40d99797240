//! Steps that test limits: of memory, and of the disk.

use forerun_db::{Error, Keyspace, WriteBatch};

use super::client_thread::ClientThread;
use super::entries::{Key, KeyspaceRules};
use super::program::{Change, ChangeKind, StepKeyspace};
use super::simulation::{Outcome, STORE, violation};

/// Flushes that are attempted while no manifest can be written.
const TRIES: usize = 40;

/// The maximum number of runs that are already being written when the outage begins, by a
/// compaction, a flush of all keyspaces, and ingestions.
const RUNS_UNDER_WAY: usize = 30;

impl ClientThread<'_> {
    /// Writes a batch that no memtable can hold. The store must refuse it, whatever it contains.
    pub fn oversized(&mut self, keyspace: StepKeyspace, is_ranges: bool) -> Outcome {
        let Some((keyspace_id, keyspace)) = self.keyspace(keyspace) else {
            return Ok(());
        };
        let order = self.simulation.order(keyspace_id);
        let long = |last: u8| {
            let mut key: Key = vec![self.model.letter(); 1000];
            key.push(last);
            key
        };
        let mut bounds = [long(b'x'), long(b'y')];
        bounds.sort_by(|a, b| order.compare(a, b));
        match self.write_oversized(&keyspace, &bounds, is_ranges) {
            Ok(()) if self.is_alive() => violation(format!(
                "a batch larger than all memory for memtables was accepted{}",
                if is_ranges {
                    ", of range deletions"
                } else {
                    ""
                }
            )),
            Ok(()) | Err(Error::MemoryLimit { .. }) => Ok(()),
            Err(error) => self.allow_write(&error, "write more than there is memory for"),
        }
    }

    fn write_oversized(
        &self,
        keyspace: &Keyspace,
        [from, to]: &[Key; 2],
        is_ranges: bool,
    ) -> forerun_db::Result<()> {
        let mut batch = WriteBatch::new();
        while batch.encoded().len() <= self.simulation.options().memory_limit_bytes {
            let mut batch = batch.keyspace(keyspace);
            if is_ranges {
                batch.delete_range(from, to)?
            } else {
                batch.put(from, &[0; 4000])?
            }
        }
        let durability = self.simulation.program.store.durability;
        self.opened.db.write(&batch, durability).map(drop)
    }

    /// Makes all writes of the manifest fail for a while. However often a flush is attempted, the
    /// disk must not fill up.
    pub fn outage(&mut self) -> Outcome {
        let put = Change {
            keyspace: StepKeyspace::Shared(0),
            kind: ChangeKind::Put { key: 0, len: 40 },
        };
        self.write(&[put], None)?;
        let io = self.simulation.io();
        let runs = || {
            let files = self.simulation.files_in(STORE.as_ref());
            files.iter().filter(|name| name.ends_with(".run")).count()
        };
        let before = runs();
        io.begin_outage();
        let mut tried = Ok(());
        for _ in 0..TRIES {
            if let Err(error) = self.opened.db.flush() {
                tried = tried.and_then(|()| self.allow_write(&error, "flush"));
            }
        }
        let after = runs();
        io.end_outage();
        tried?;
        if after > before + RUNS_UNDER_WAY && self.is_alive() {
            violation(format!(
                "{TRIES} flushes that could not write a manifest left {after} runs, up from \
                 {before}"
            ))
        } else {
            Ok(())
        }
    }
}
