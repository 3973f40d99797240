//! openraft's own tests of a storage.

use forerun_db::{Db, Options};
use forerun_raft::{LogStore, StateMachine, TypeConfig, open};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{AnyError, StorageError, StorageIOError};
use tempfile::TempDir;

struct InTemporaryDirectory;

type Log = LogStore<TypeConfig>;
type Machine = StateMachine<TypeConfig>;

impl StoreBuilder<TypeConfig, Log, Machine, TempDir> for InTemporaryDirectory {
    async fn build(&self) -> Result<(TempDir, Log, Machine), StorageError<u64>> {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(directory.path().join("store"), Options::default()).unwrap();
        let opened = open::<TypeConfig>(&db);
        let (log, machine) =
            opened.map_err(|error| StorageIOError::write(AnyError::new(&error)))?;
        Ok((directory, log, machine))
    }
}

#[test]
fn the_acceptance_suite_of_openraft_passes() {
    Suite::test_all(InTemporaryDirectory).unwrap();
}
