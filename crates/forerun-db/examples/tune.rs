//! Scratch measurement.
use forerun_db::memtable::*;
use forerun_db::{Op, Values};
use std::time::Instant;
fn mix(i: u64) -> u64 {
    let mut z = i.wrapping_mul(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d049bb133111eb);
    z ^ z >> 31
}
fn key(i: u64) -> [u8; 16] {
    let mut k = [b'0'; 16];
    k[..8].copy_from_slice(&mix(i).to_be_bytes());
    k
}
fn main() {
    let n: u64 = std::env::args()
        .nth(1)
        .map_or(2_000_000, |a| a.parse().unwrap());
    let table = MemTable::new(MemTableConfig {
        limit_bytes: 2 << 30,
        ..Default::default()
    })
    .unwrap();
    let t = Instant::now();
    for i in 0..n {
        let k = key(i);
        table
            .prepare(
                [Op::Put {
                    key: &k,
                    value: &[7; 100],
                }]
                .into_iter(),
            )
            .unwrap()
            .publish(i + 1);
    }
    println!(
        "insert {:.0} ns  {:?}",
        t.elapsed().as_nanos() as f64 / n as f64,
        table.stats()
    );
    let mut seed = 1;
    let mut values = Values::new();
    if let Ok(strategy) = std::env::var("ONLY") {
        for _ in 0..400 {
            let keys: Vec<_> = (0..64)
                .map(|_| {
                    seed += 1;
                    key(mix(seed) % n)
                })
                .collect();
            table.multi_get_values(&keys, u64::MAX >> 8, strategy.parse().unwrap(), &mut values);
        }
        return;
    }
    if std::env::var("INSERT").is_ok() {
        let table2 = MemTable::new(MemTableConfig {
            limit_bytes: 2 << 30,
            ..Default::default()
        })
        .unwrap();
        let t = Instant::now();
        let ks: Vec<_> = (0..n).map(key).collect();
        for c in (0..n as usize).step_by(100) {
            table2
                .prepare(ks[c..c + 100].iter().map(|k| Op::Put {
                    key: k,
                    value: &[7; 100],
                }))
                .unwrap()
                .publish(c as u64 + 1);
        }
        println!(
            "insert by 100 {:.0} ns",
            t.elapsed().as_nanos() as f64 / n as f64
        );
    }
    let nocopy = std::env::var("NOCOPY").is_ok();
    let batches: Vec<usize> = std::env::var("B")
        .map_or(vec![1usize, 2, 4, 8, 16, 32, 64, 256, 1024], |b| {
            b.split(',').map(|x| x.parse().unwrap()).collect()
        });
    let strategies: Vec<Strategy> = std::env::var("S").map_or(Strategy::ALL.to_vec(), |b| {
        b.split(',').map(|x| x.parse().unwrap()).collect()
    });
    for batch in batches {
        let mut all = vec![vec![]; strategies.len()];
        for _ in 0..7 {
            for (s, &strategy) in strategies.iter().enumerate() {
                let mut spent = 0.0;
                let rounds = 60_000 / batch;
                for _ in 0..rounds {
                    let keys: Vec<_> = (0..batch)
                        .map(|_| {
                            seed += 1;
                            key(mix(seed) % n)
                        })
                        .collect();
                    let mut found = 0;
                    let t = Instant::now();
                    if nocopy {
                        table.multi_get(&keys, u64::MAX >> 8, strategy, |_, v| {
                            found += matches!(v, Ok(Lookup::Value(_))) as usize
                        });
                    } else {
                        table.multi_get_values(&keys, u64::MAX >> 8, strategy, &mut values);
                        found = values.found();
                    }
                    spent += t.elapsed().as_nanos() as f64;
                    assert_eq!(found, batch);
                }
                all[s].push(spent / (rounds * batch) as f64);
            }
        }
        let best: Vec<f64> = all
            .iter_mut()
            .map(|a| {
                a.sort_by(f64::total_cmp);
                a[3]
            })
            .collect();
        print!("batch {batch:5}:");
        for (s, b) in strategies.iter().zip(&best) {
            print!("  {s} {b:.0} ({:.2}x)", best[0] / b);
        }
        println!();
    }
}
