//! Errors as a program meets them: under `?`, in `anyhow`, on another thread.

use forerun::prelude::*;
use forerun::{Create, DbError};

/// Opens a store with a name that is too long for every file system.
fn open_too_long_a_name() -> anyhow::Result<Db> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("x".repeat(300));
    Ok(Db::open(path, Options::default())?)
}

#[test]
fn a_chain_of_causes_names_each_of_them_once() {
    let error = open_too_long_a_name().unwrap_err();
    let system = match error.downcast_ref() {
        Some(DbError::Io { cause, .. }) => cause.to_string(),
        other => panic!("{other:?}"),
    };
    let chain = format!("{error:#}");
    assert_eq!(chain.matches(&system).count(), 1, "{chain}");
    assert_eq!(error.to_string(), chain);
}

#[test]
fn an_error_outlives_its_subject() {
    let error = std::thread::spawn(|| {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::default().create(Create::Never);
        Db::open(directory.path().join("missing"), options).unwrap_err()
    });
    let boxed: Box<dyn std::error::Error + Send + Sync> = error.join().unwrap().into();
    assert!(boxed.to_string().contains("missing"), "{boxed}");
}

#[test]
fn the_common_error_takes_the_errors_of_all_parts() {
    fn cache() -> forerun::Result<()> {
        forerun::cache::Cache::new(forerun::cache::CacheOptions::default().memory_limit_bytes(1))?;
        Ok(())
    }
    fn table() -> forerun::Result<()> {
        let table = Table::builder(Dtype::F32, 4).open()?;
        table.typed::<[f64; 4]>()?;
        Ok(())
    }
    fn store() -> forerun::Result<()> {
        let options = Options::default().create(Create::Never);
        Db::open(tempfile::tempdir().unwrap().path().join("missing"), options)?;
        Ok(())
    }
    let messages = [cache(), table(), store()].map(|result| result.unwrap_err().to_string());
    for (message, part) in messages.iter().zip(["memory limit", "row", "missing"]) {
        assert!(message.contains(part), "{message}");
    }
}
