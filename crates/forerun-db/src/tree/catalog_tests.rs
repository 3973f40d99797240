//! Changes that a catalog rejects, and the state on disk after a panic in the middle of a change.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::Error;
use crate::io::Io;
use crate::io::fault::FaultIo;
use crate::testing::tree_fixture::{DIR, Fixture, open, open_on};
use crate::tree::catalog::run_files;

/// Panics when a directory is synced: the new manifest is renamed, and its writer never learns it.
#[derive(Debug)]
struct PanickingIo(FaultIo);

impl Io for PanickingIo {
    crate::forward_io!(this => this.0; open, list, create_dir, rename, remove, boot_id);

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        panic!("{} is not synced", dir.display());
    }
}

#[test]
fn a_name_that_exists_is_not_created_again() {
    let mut store = Fixture::new(false);
    let order = store.order.clone();
    let mut create = |name| store.catalog.create(name, store.comparator, &order, 0);
    assert_eq!(create("users").unwrap(), 1);
    for name in ["users", ""] {
        let error = create(name).unwrap_err();
        assert!(matches!(error, Error::KeyspaceExists { .. }), "{error}");
    }
    assert_eq!(create("events").unwrap(), 2);
    open(&store.io, &store.order, &store.cache).unwrap();
}

#[test]
fn a_panic_after_the_rename_keeps_the_runs_of_the_new_manifest() {
    let mut store = Fixture::new(false);
    let panicking = Arc::new(PanickingIo(store.io.clone()));
    store.catalog = open_on(panicking, &store.order, &store.cache).unwrap();
    store.write(1, Some(10));
    let before = run_files(&store.io, Path::new(DIR)).unwrap();
    catch_unwind(AssertUnwindSafe(|| store.flush())).unwrap_err();
    let after = run_files(&store.io, Path::new(DIR)).unwrap();
    assert_eq!(after.len(), before.len() + 1);
    let opened = open(&store.io, &store.order, &store.cache).unwrap();
    assert_eq!(opened.snapshot().runs.len(), after.len());
}
