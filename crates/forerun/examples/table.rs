//! Embeddings that are larger than memory: the table keeps the most used rows in memory and the
//! others in a store on disk.
//!
//! ```sh
//! cargo run --release -p forerun --example table
//! ```

use forerun::table::{Dtype, Table, Update};

const DIM: usize = 32;
const ROWS: u64 = 50_000;
const BATCH: usize = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let table = Table::builder(Dtype::F32, DIM as u32)
        .host_capacity(5_000)
        .path(directory.path().join("embeddings"))
        .open()?;

    // Rows are bytes, one row after the other.
    let keys: Vec<u64> = (0..ROWS).collect();
    for keys in keys.chunks(BATCH) {
        table.insert(keys, &rows_of(keys, |key| key as f32))?;
    }

    // Half of the lookups go to a hundredth of the rows, which the table soon has in memory.
    let mut rows = vec![0; BATCH * DIM * 4];
    let mut found = vec![false; BATCH];
    for round in 0..100_u64 {
        let keys = skewed(round);
        table.find(&keys, &mut rows, &mut found)?;
    }
    let counts = table.stats().counts;
    println!(
        "{} rows found in memory, {} in the store; {} promoted",
        counts.host_hits, counts.store_hits, counts.promoted_rows
    );

    // A gradient step: the rows of this batch are updated in place.
    let keys = skewed(0);
    let gradients = rows_of(&keys, |_| -0.5);
    let updated = table.update(&keys, &gradients, Update::Add, &mut found)?;
    println!("{updated} rows updated");

    table.close()?;
    Ok(())
}

fn rows_of(keys: &[u64], element: impl Fn(u64) -> f32) -> Vec<u8> {
    let row = |&key: &u64| std::iter::repeat_n(element(key).to_le_bytes(), DIM);
    keys.iter().flat_map(row).flatten().collect()
}

fn skewed(round: u64) -> Vec<u64> {
    let key = |n: u64| {
        let hash = (round * BATCH as u64 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        match n % 2 {
            0 => hash % (ROWS / 100),
            _ => hash % ROWS,
        }
    };
    (0..BATCH as u64).map(key).collect()
}
