//! What can be opened, and the messages about what cannot.

mod common;

use common::find;
use forerun_db::{Db, Options};
use forerun_table::{DeviceChoice, Dtype, Error, Moves, Overflow, Score, Table, Writes};
use std::sync::Arc;

fn refusal(opened: Result<Table, Error>) -> String {
    opened.unwrap_err().to_string()
}

#[test]
fn what_is_not_possible_is_refused_by_name() {
    let builder = || Table::builder(Dtype::F32, 4);
    let no_rows = refusal(Table::builder(Dtype::F32, 0).open());
    assert!(no_rows.contains("0 x float32"), "{no_rows}");
    let too_long = refusal(Table::builder(Dtype::F64, u32::MAX).open());
    assert!(too_long.contains("1048576"), "{too_long}");
    assert!(refusal(builder().host_capacity(0).open()).contains("minimum"));
    assert!(refusal(builder().host_capacity(usize::MAX).open()).contains("maximum"));
    assert!(refusal(builder().host_bytes(100).open()).contains("minimum"));
    assert!(refusal(builder().writes(Writes::Back).open()).contains("path"));
    let directory = tempfile::tempdir().unwrap();
    let both = builder().path(directory.path()).overflow(Overflow::Refuse);
    assert!(refusal(both.open()).contains("overflow"));
    let nowhere = builder()
        .device_capacity(10)
        .device(DeviceChoice::Gpu(10_000));
    assert!(matches!(
        nowhere.open(),
        Err(Error::NoDevice { rows: 10, .. })
    ));
    let too_many = builder()
        .device_capacity(usize::MAX)
        .device(DeviceChoice::Cpu);
    assert!(refusal(too_many.open()).contains("slots"));
    let without = builder().open().unwrap();
    let no_tier = without.find_ptr(&[1]).unwrap_err().to_string();
    assert!(no_tier.contains("device capacity"), "{no_tier}");
}

#[test]
fn batches_whose_parts_do_not_fit_are_refused_and_nothing_is_done() {
    let table = Table::builder(Dtype::F32, 4).open().unwrap();
    let wrong = [
        table.insert(&[1, 2], &[0; 31]).unwrap_err(),
        table.find(&[1], &mut [0; 17], &mut [false]).unwrap_err(),
        table.find(&[1], &mut [0; 16], &mut []).unwrap_err(),
        table.contains(&[1], &mut [false; 2]).unwrap_err(),
    ];
    for error in wrong {
        assert!(matches!(error, Error::Length { .. }), "{error}");
    }
    assert!(matches!(
        table.insert_with_scores(&[1], &[0; 16], &[1]),
        Err(Error::Conflict(_))
    ));
    assert_eq!(table.host_len(), 0);
    assert_eq!(table.find(&[], &mut [], &mut []).unwrap(), 0);
    assert!(matches!(table.snapshot(), Err(Error::NoStore { .. })));
}

#[test]
fn a_store_of_other_rows_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let table = Table::builder(Dtype::F32, 4).path(&path).open().unwrap();
    table.insert(&[1], &[1; 16]).unwrap();
    table.close().unwrap();
    let other = refusal(Table::builder(Dtype::F32, 5).path(&path).open());
    assert!(other.contains("4 x float32"), "{other}");
    let scored = Table::builder(Dtype::F32, 4)
        .path(&path)
        .score(Score::Custom);
    assert!(refusal(scored.open()).contains("without scores"));
    let table = Table::builder(Dtype::F32, 4).path(&path).open().unwrap();
    assert_eq!(find(&table, &[1])[0].as_ref().unwrap(), &Some(vec![1; 16]));
    drop(table);

    let path = directory.path().join("other");
    let db = Db::open(&path, Options::default()).unwrap();
    db.put(b"town", b"Bern").unwrap();
    let foreign = refusal(Table::builder(Dtype::F32, 4).db(db.clone()).open());
    assert!(foreign.contains("no description"), "{foreign}");
    assert_eq!(db.iter().count(), 1);
}

#[test]
fn a_value_that_is_no_row_fails_its_key_alone() {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path().join("rows"), Options::default()).unwrap();
    let table = Table::builder(Dtype::U8, 4).db(db.clone()).open().unwrap();
    table.import_rows(&[1, 2], b"one.two.").unwrap();
    db.put(&1u64.to_be_bytes(), b"longer than a row").unwrap();
    let answers = find(&table, &[1, 2]);
    assert!(matches!(
        answers[0],
        Err(Error::BadRow {
            key: 1,
            len_bytes: 17,
            ..
        })
    ));
    assert_eq!(answers[1].as_ref().unwrap(), &Some(b"two.".to_vec()));
}

#[test]
fn a_full_table_that_refuses_takes_what_replaces_and_nothing_new() {
    let table = Table::builder(Dtype::U8, 4)
        .host_capacity(2)
        .overflow(Overflow::Refuse)
        .moves(Moves::Caller)
        .open()
        .unwrap();
    table.insert(&[1, 2], b"one.two.").unwrap();
    let Err(Error::Keys(failures)) = table.insert(&[3, 2, 4], b"thr.TWO.for.") else {
        panic!("the table has no space for two more")
    };
    assert_eq!((failures.len(), failures.served()), (2, 1));
    let failed: Vec<(usize, u64)> = failures.iter().map(|(at, key, _)| (at, key)).collect();
    assert_eq!(failed, [(0, 3), (2, 4)]);
    assert!(failures.to_string().contains("2 keys failed"), "{failures}");
    assert_eq!(
        find(&table, &[2])[0].as_ref().unwrap(),
        &Some(b"TWO.".to_vec())
    );
    table.erase(&[1]).unwrap();
    table.insert(&[3], b"thr.").unwrap();
}

#[test]
fn a_closed_table_says_so_through_every_handle() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let table = Table::builder(Dtype::U8, 4).path(&path).open().unwrap();
    let other = table.clone();
    table.close().unwrap();
    assert!(matches!(
        other.find(&[1], &mut [0; 4], &mut [false]),
        Err(Error::Closed)
    ));
    assert!(matches!(other.insert(&[1], &[0; 4]), Err(Error::Closed)));
    other.wait_idle();
    // Another table can open the store while the handle lives.
    Table::builder(Dtype::U8, 4).path(&path).open().unwrap();
}

#[test]
fn bytes_of_the_host_tier_are_a_bound() {
    for bytes in [200_000, 10 << 20, 300 << 20] {
        for (dtype, dim) in [(Dtype::F32, 64), (Dtype::U8, 5), (Dtype::F64, 300)] {
            let table = Table::builder(dtype, dim).host_bytes(bytes).open();
            let Ok(table) = table else {
                assert!(
                    bytes == 200_000 && dim == 300,
                    "{bytes} for {dim} x {dtype}"
                );
                continue;
            };
            let told = table.stats().host_bytes as usize;
            // The index consists of whole segments, so its size may differ by a few hundredths.
            assert!(
                told <= bytes + bytes / 16,
                "{told} of {bytes} for {dim} x {dtype}"
            );
            assert!(told >= bytes / 2, "{told} of {bytes} for {dim} x {dtype}");
        }
    }
}

#[test]
fn a_checkpoint_is_a_table_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("rows"), directory.path().join("copy"));
    let table = Table::builder(Dtype::U8, 4)
        .path(path)
        .writes(Writes::Back)
        .open()
        .unwrap();
    table.insert(&[1, 2], b"one.two.").unwrap();
    table.checkpoint(&copy).unwrap();
    table.erase(&[1]).unwrap();
    let copy = Table::builder(Dtype::U8, 4).path(copy).open().unwrap();
    assert_eq!(copy.count().unwrap(), 2);
    assert_eq!(
        find(&copy, &[1])[0].as_ref().unwrap(),
        &Some(b"one.".to_vec())
    );
}

#[test]
fn an_evicting_sink_may_be_shared_with_whatever_takes_the_rows() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let table = Table::builder(Dtype::U8, 1)
        .host_capacity(1)
        .moves(Moves::Caller)
        .overflow(Overflow::Callback(Arc::new(move |keys, rows| {
            let _ = sender.send((keys.to_vec(), rows.to_vec()));
        })))
        .open()
        .unwrap();
    for key in 0..5 {
        table.insert(&[key], &[key as u8]).unwrap();
    }
    drop(table);
    let handed: Vec<(Vec<u64>, Vec<u8>)> = receiver.iter().collect();
    assert_eq!(handed.len(), 4);
    assert!(
        handed
            .iter()
            .all(|(keys, rows)| keys[0] == u64::from(rows[0]))
    );
}
