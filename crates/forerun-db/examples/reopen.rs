//! The cost of starting an iterator again: open, seek, a few entries, drop.
//!
//! ```sh
//! cargo run --release -p forerun-db --example reopen
//! ```
//!
//! Each line is the median of five rounds, in nanoseconds per scan; all pages are in memory. With
//! several threads, all of them scan the same keyspace.

use std::hint::black_box;
use std::time::Instant;

use forerun_db::{Db, Iter, Options, TreeOptions};

const KEYS: u64 = 200_000;
const SCANS: u64 = 20_000;
const ROUNDS: usize = 5;

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// Scrambles a number.
fn mixed(i: u64) -> u64 {
    let i = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (i ^ i >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

/// Nanoseconds per scan of this many entries, in threads that do the same.
fn measure(threads: u64, entries: usize, scan: impl Fn(u64) -> Iter + Sync) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS as u64)
        .map(|round| {
            let begun = Instant::now();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let scan = &scan;
                    scope.spawn(move || {
                        for i in 0..SCANS {
                            let mut iter = scan(mixed(i + (thread + round * threads) * SCANS));
                            for _ in 0..entries {
                                black_box(iter.next_entry().ok().flatten().is_some());
                            }
                        }
                    });
                }
            });
            begun.elapsed().as_nanos() as f64 / SCANS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() -> forerun_db::Result<()> {
    let dir = std::env::temp_dir().join(format!("forerun-reopen-{}", std::process::id()));
    let options = Options::default()
        // Runs stay as they were flushed: four runs, and a memtable.
        .tree(TreeOptions::default().level0_runs(8));
    let db = Db::open(&dir, options)?;
    for run in 0..5 {
        for i in (run..KEYS).step_by(5) {
            db.put(&key(i), &[run as u8; 64])?;
        }
        if run < 4 {
            db.flush()?;
        }
    }
    let several = keyspaces(&db)?;
    println!(
        "{:>8} {:>8} {:>14} {:>24}",
        "threads", "entries", "own keyspace", "one of 6, at random"
    );
    for threads in [1, 2] {
        for entries in [0, 1, 10] {
            let own = measure(threads, entries, |i| db.range(key(i % KEYS)..));
            let other = measure(threads, entries, |i| several.scan(i));
            println!("{threads:>8} {entries:>8} {own:>14.0} {other:>24.0}");
        }
    }
    drop(several);
    db.close()?;
    let _ = std::fs::remove_dir_all(dir);
    Ok(())
}

/// Small keyspaces.
struct Several(Vec<forerun_db::Keyspace>);

fn keyspaces(db: &Db) -> forerun_db::Result<Several> {
    let names = (0..6).map(|i| format!("keyspace {i}"));
    let keyspaces = names.map(|name| db.keyspace(&name));
    let several = Several(keyspaces.collect::<Result<_, _>>()?);
    for (i, keyspace) in several.0.iter().enumerate() {
        for entry in 0..1000 {
            keyspace.put(&key(entry), &[i as u8; 64])?;
        }
    }
    db.flush()?;
    Ok(several)
}

impl Several {
    fn scan(&self, i: u64) -> Iter {
        self.0[(i % 6) as usize].range(key(i / 6 % 1000)..)
    }
}
