//! Checks that pooled lookups give the same bits as the CPU's, in every format and at every width.

use super::keys::key_of;
use anyhow::{Context, Result, ensure};
use forerun_gpu::table::{
    Bags, GpuEvictStrategy, GpuTable, PooledDtype, Pooling, PoolingOptions, RowFormat,
    TableOptions, Width,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const ENTRIES: u64 = 1000;

/// Returns the number of pooled rows that were compared.
pub(super) fn run(make: &dyn Fn(TableOptions) -> Result<GpuTable>) -> Result<u64> {
    let mut rows = 0;
    for width in Width::ALL {
        for format in RowFormat::ALL {
            // One part of a row, several, and values that do not fill their last word.
            for dim in [8, 127, 300] {
                let options = TableOptions::new(4 * ENTRIES, format.row_bytes(dim))
                    .width(width)
                    .evict_strategy(GpuEvictStrategy::Customized);
                rows += compare(make, options, format, dim)
                    .with_context(|| format!("rows of {dim} {format}, {width:?}"))?;
            }
        }
    }
    Ok(rows)
}

fn compare(
    make: &dyn Fn(TableOptions) -> Result<GpuTable>,
    options: TableOptions,
    format: RowFormat,
    dim: u64,
) -> Result<u64> {
    let (mut theirs, mut ours) = (make(options)?, GpuTable::on_cpu(options)?);
    let mut random = SmallRng::seed_from_u64(dim);
    let keys: Vec<u64> = (0..ENTRIES).map(key_of).collect();
    let mut rows = vec![0; (ENTRIES * options.row_bytes) as usize];
    random.fill(&mut rows[..]);
    for table in [&mut theirs, &mut ours] {
        table.insert_or_assign(&keys, &rows, None)?;
    }
    let lengths = [0, 1, 2, 31, 32, 33, 100, 0];
    let mut offsets = vec![0];
    for length in lengths {
        offsets.push(offsets[offsets.len() - 1] + length);
    }
    let last = offsets[offsets.len() - 1];
    // A tenth of them is absent.
    let keys: Vec<u64> = (0..last)
        .map(|_| key_of(random.random_range(0..ENTRIES * 10 / 9)))
        .collect();
    let weights: Vec<f32> = keys
        .iter()
        .map(|_| random.random_range(-2.0..2.0))
        .collect();
    let mut compared = 0;
    for bags in [
        Bags::new(&keys, &offsets),
        Bags::new(&keys, &offsets).with_weights(&weights),
    ] {
        for pooling in Pooling::ALL {
            for output in PooledDtype::ALL {
                let options = PoolingOptions::new(format).pooling(pooling).output(output);
                let bytes = bags.len() * dim as usize * output.bytes() as usize;
                let pool = |table: &GpuTable| -> Result<(Vec<u8>, Vec<u32>)> {
                    let (mut rows, mut found) = (vec![7; bytes], vec![7; bags.len()]);
                    table.find_pooled(&bags, &options, &mut rows, &mut found)?;
                    Ok((rows, found))
                };
                ensure!(
                    pool(&theirs)? == pool(&ours)?,
                    "{options:?} pools to something else"
                );
                compared += bags.len() as u64;
            }
        }
    }
    Ok(compared)
}
