//! Named values beside the rows of a table.

use forerun_db::Access;
use forerun_table::{Builder, Dtype, Error, Table};
use std::path::Path;

fn builder(path: &Path) -> Builder {
    Table::builder(Dtype::U8, 4).path(path)
}

fn value(table: &Table, name: &str) -> Option<String> {
    let value = table.metadata(name).unwrap();
    value.map(|bytes| String::from_utf8(bytes).unwrap())
}

#[test]
fn named_values_are_in_the_store_and_its_checkpoints_but_not_among_the_rows() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("rows"), directory.path().join("copy"));
    let table = builder(&path).open().unwrap();
    assert_eq!(value(&table, "group"), None);
    table.put_metadata("group", b"first").unwrap();
    table.insert(&[1], b"one.").unwrap();
    table.put_metadata("group", b"second").unwrap();
    assert_eq!(value(&table, "other"), None);
    table.checkpoint(&copy).unwrap();
    table.put_metadata("group", b"third").unwrap();
    table.clone().close().unwrap();
    assert!(matches!(table.metadata("group"), Err(Error::Closed)));
    for (path, expected) in [(&path, "third"), (&copy, "second")] {
        let table = builder(path).open().unwrap();
        assert_eq!(value(&table, "group").as_deref(), Some(expected));
        assert_eq!(table.count().unwrap(), 1);
        let rows = table
            .export(10)
            .unwrap()
            .map(|batch| batch.unwrap().keys.len());
        assert_eq!(rows.sum::<usize>(), 1);
    }
}

#[test]
fn a_table_that_is_read_only_or_without_a_store_takes_no_named_values() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    builder(&path).open().unwrap().close().unwrap();
    let options = builder(&path).default_store_options();
    let options = options.access(Access::ReadOnly);
    let table = builder(&path).store_options(options).open().unwrap();
    assert_eq!(value(&table, "group"), None);
    let refused = table.put_metadata("group", b"first").unwrap_err();
    let is_read_only = matches!(&refused, Error::Store(forerun_db::Error::ReadOnly { .. }));
    assert!(is_read_only, "{refused}");
    let table = Table::builder(Dtype::U8, 4).open().unwrap();
    let refused = table.put_metadata("group", b"first").unwrap_err();
    assert!(matches!(&refused, Error::NoStore { .. }), "{refused}");
    assert!(matches!(
        table.metadata("group"),
        Err(Error::NoStore { .. })
    ));
}
