//! Saved tables are portable between the CPU and the kernels, and are rejected if damaged.

use crate::{Order, contents, on_shim, rows_of, small};
use forerun_gpu::table::{Candidates, GpuEvictStrategy, GpuTable, TableError, TableOptions, Width};

fn filled() -> GpuTable {
    let mut table = GpuTable::on_cpu(small(Width::W32, Candidates::Two, 4)).unwrap();
    let keys: Vec<u64> = (0..40).chain([u64::MAX]).collect();
    table
        .insert_or_assign(&keys, &rows_of(&keys, 0, 16), Some(&keys))
        .unwrap();
    table
}

#[test]
fn a_saved_table_moves_between_cpu_and_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let mut table = filled();
    let expected = contents(&mut table);
    table.save(&first).unwrap();
    let other = small(Width::W128, Candidates::One, 1);
    if let Some(mut kernels) = on_shim(Order::Seeded(3), other) {
        assert_eq!(kernels.load(&first).unwrap(), 41);
        assert_eq!(contents(&mut kernels), expected);
        kernels.save(&second).unwrap();
        let mut back = GpuTable::on_cpu(*table.options()).unwrap();
        assert_eq!(back.load(&second).unwrap(), 41);
        assert_eq!(contents(&mut back), expected);
    }
}

#[test]
fn every_damaged_byte_and_every_cut_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    filled().save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let load = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let mut table = GpuTable::on_cpu(small(Width::W32, Candidates::Two, 4)).unwrap();
        table.load(&path)
    };
    assert_eq!(load(&bytes).unwrap(), 41);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        let said = load(&damaged).unwrap_err();
        assert!(matches!(said, TableError::File { .. }), "byte {at}: {said}");
        let cut = load(&bytes[..at]).unwrap_err();
        assert!(matches!(cut, TableError::File { .. }), "cut at {at}: {cut}");
    }
}

#[test]
fn a_file_of_another_kind_of_table_is_refused_with_both_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    filled().save(&path).unwrap();
    let options = TableOptions::new(100, 16).evict_strategy(GpuEvictStrategy::Lfu);
    let said = GpuTable::on_cpu(options).unwrap().load(&path).unwrap_err();
    assert!(
        said.to_string()
            .contains("Some(Customized); this table has 16 bytes, Lfu"),
        "{said}"
    );
    assert!(matches!(
        filled().load(&folder.path().join("none")),
        Err(TableError::Io { .. })
    ));
}
