//! Pooled lookups return the same as `find` and a plain loop, whichever tiers have the rows.

use forerun_table::{
    Bags, DeviceChoice, Dtype, Error, PooledDtype, Pooling, PoolingOptions, RowFormat, Table,
};
use half::{bf16, f16};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const DIM: usize = 17;

/// Numbers that are not sums of few powers of two, so that the order of additions shows.
fn value(key: u64, at: usize) -> f32 {
    ((key * 7 + at as u64) as f32).sin() * 100.0
}

/// A row in a format, and its values.
fn row(format: RowFormat, key: u64) -> (Vec<u8>, Vec<f32>) {
    let values: Vec<f32> = (0..DIM).map(|at| value(key, at)).collect();
    let each = |of: fn(f32) -> Vec<u8>| values.iter().copied().flat_map(of).collect();
    match format {
        RowFormat::F32 => (each(|v| v.to_le_bytes().to_vec()), values),
        RowFormat::F16 => (
            each(|v| f16::from_f32(v).to_le_bytes().to_vec()),
            values.iter().map(|v| f16::from_f32(*v).to_f32()).collect(),
        ),
        RowFormat::Bf16 => (
            each(|v| bf16::from_f32(v).to_le_bytes().to_vec()),
            values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect(),
        ),
        RowFormat::QInt8Rowwise => {
            let scale = 100.0 / 127.0 + key as f32 / 64.0;
            let quantized: Vec<i8> = values.iter().map(|v| (v / scale) as i8).collect();
            let mut row: Vec<u8> = quantized.iter().map(|q| *q as u8).collect();
            row.extend(scale.to_le_bytes());
            (
                row,
                quantized.iter().map(|q| f32::from(*q) * scale).collect(),
            )
        }
        _ => {
            let (scale, bias) = (200.0 / 255.0 + key as f32 / 64.0, -100.0 - key as f32 / 3.0);
            let quantized: Vec<u8> = values.iter().map(|v| ((v - bias) / scale) as u8).collect();
            let mut row = quantized.clone();
            row.extend(scale.to_le_bytes());
            row.extend(bias.to_le_bytes());
            (
                row,
                quantized
                    .iter()
                    .map(|q| f32::from(*q) * scale + bias)
                    .collect(),
            )
        }
    }
}

fn dtype(format: RowFormat) -> Dtype {
    match format {
        RowFormat::F32 => Dtype::F32,
        RowFormat::F16 => Dtype::F16,
        RowFormat::Bf16 => Dtype::Bf16,
        RowFormat::QInt8Rowwise => Dtype::I8,
        _ => Dtype::U8,
    }
}

/// Tables of these rows: in memory, over a store, and with a device tier.
fn tables(format: RowFormat, directory: &Path) -> Vec<Table> {
    let dim = DIM as u32 + format.parameter_bytes() as u32;
    let builder = || Table::builder(dtype(format), dim);
    let on_disk = builder()
        .host_capacity(64)
        .path(directory.join(format.name()));
    let behind_device = builder().device_capacity(100).device(DeviceChoice::Cpu);
    vec![
        builder().open().unwrap(),
        on_disk.open().unwrap(),
        behind_device.open().unwrap(),
    ]
}

#[test]
fn pooled_rows_are_the_sums_of_found_rows_in_every_tier() {
    let directory = tempfile::tempdir().unwrap();
    let keys: Vec<u64> = (0..3000).map(|at: u64| at * at % 700).collect();
    let weights: Vec<f32> = (0..3000).map(|at| (at % 11) as f32 / 3.0 - 1.0).collect();
    let offsets = [0, 0, 1, 40, 40, 1700, 2999, 3000];
    for format in RowFormat::ALL {
        for table in tables(format, directory.path()) {
            for key in (0..700).filter(|key| key % 3 != 0) {
                table.insert(&[key], &row(format, key).0).unwrap();
            }
            for weighted in [false, true] {
                for pooling in Pooling::ALL {
                    let mut bags = Bags::new(&keys, &offsets);
                    if weighted {
                        bags = bags.with_weights(&weights);
                    }
                    let options = PoolingOptions::new(format).pooling(pooling);
                    check(&table, &bags, &options);
                }
            }
        }
    }
}

fn check(table: &Table, bags: &Bags<'_>, options: &PoolingOptions) {
    let mut rows = vec![9; bags.len() * DIM * 4];
    let mut found = vec![9; bags.len()];
    let hits = table
        .find_pooled(bags, options, &mut rows, &mut found)
        .unwrap();
    let mut sums = Vec::new();
    for (bag, found) in found.iter().enumerate() {
        let there = |at: &usize| !bags.keys[*at].is_multiple_of(3);
        assert_eq!(*found as usize, bags.range(bag).filter(there).count());
        let mut sum = [0_f32; DIM];
        let mut divisor = 0_f32;
        for at in bags.range(bag) {
            divisor += bags.weight(at);
            if there(&at) {
                let values = row(options.format, bags.keys[at]).1;
                for (sum, value) in sum.iter_mut().zip(values) {
                    *sum += value * bags.weight(at);
                }
            }
        }
        let mean = options.pooling == Pooling::Mean;
        sums.extend(sum.map(|sum| {
            if !mean {
                sum
            } else if divisor == 0.0 {
                0.0
            } else {
                sum / divisor
            }
        }));
    }
    let pooled: Vec<f32> = rows
        .as_chunks()
        .0
        .iter()
        .map(|v| f32::from_le_bytes(*v))
        .collect();
    assert_eq!(pooled, sums, "{options:?}, {:?}", table.row());
    assert_eq!(
        hits,
        found.iter().map(|found| *found as usize).sum::<usize>()
    );
    let half = options.output(PooledDtype::Bf16);
    let mut rows = vec![9; bags.len() * DIM * 2];
    table
        .find_pooled(bags, &half, &mut rows, &mut found)
        .unwrap();
    let expected: Vec<u8> = sums
        .iter()
        .flat_map(|sum| bf16::from_f32(*sum).to_le_bytes())
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn a_long_pooled_lookup_can_be_interrupted() {
    let asked = Arc::new(AtomicUsize::new(0));
    let table = Table::builder(Dtype::F32, 1024).interrupt_if({
        let asked = asked.clone();
        move || asked.fetch_add(1, Ordering::Relaxed) >= 2
    });
    let table = table.open().unwrap();
    // It asks after every 64 MiB of rows: 16,384 keys.
    let (keys, offsets) = (vec![1; 80_000], [0, 80_000]);
    let (mut rows, mut found) = (vec![0; 4096], [0]);
    let options = PoolingOptions::new(RowFormat::F32);
    let pooled = table.find_pooled(&Bags::new(&keys, &offsets), &options, &mut rows, &mut found);
    assert!(matches!(pooled, Err(Error::Interrupted)), "{pooled:?}");
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[test]
fn a_format_of_other_rows_and_wrong_lengths_are_refused() {
    let table = Table::builder(Dtype::F32, 2).open().unwrap();
    let (mut rows, mut found) = ([9; 8], [9]);
    let bags = Bags::new(&[1], &[0, 1]);
    let mut ask = |bags: &Bags<'_>, format| {
        let options = PoolingOptions::new(format);
        table
            .find_pooled(bags, &options, &mut rows, &mut found)
            .unwrap_err()
    };
    // It has the right number of bytes, but not the right type.
    let error = ask(&bags, RowFormat::F16);
    assert!(matches!(error, Error::RowFormat { .. }));
    assert_eq!(
        error.to_string(),
        "rows of 2 x float32 are not rows of float16"
    );
    let error = ask(&Bags::new(&[1, 2], &[0, 1]), RowFormat::F32);
    assert!(matches!(error, Error::Pooling(_)));
    assert_eq!((rows, found), ([9; 8], [9]));
}
