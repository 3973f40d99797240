//! The host's rows over a store: held rows stay, others are evicted, and failures hold nothing.

use forerun_gpu::hot_pool::{AcquireError, HostRows, HotPoolError, RowStore};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Rows of two bytes for keys below 100; counts its batches.
#[derive(Default)]
struct Store {
    batches: RefCell<Vec<Vec<u64>>>,
    fails: Cell<bool>,
}

#[derive(Debug, thiserror::Error)]
#[error("no disk")]
struct NoDisk;

fn row_of(key: u64) -> [u8; 2] {
    [key as u8, (key * 7) as u8]
}

impl RowStore for Store {
    type Error = NoDisk;

    fn find_rows(&self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<(), NoDisk> {
        self.batches.borrow_mut().push(keys.to_vec());
        if self.fails.get() {
            return Err(NoDisk);
        }
        for (at, &key) in keys.iter().enumerate() {
            found[at] = key < 100;
            rows[at * 2..][..2].copy_from_slice(&row_of(key));
        }
        Ok(())
    }
}

#[test]
fn missing_rows_are_fetched_in_one_batch_and_held_rows_stay() {
    let store = Store::default();
    let mut host = HostRows::new(4, 2);
    let mut memory = [0; 8];
    let mut first = [0; 3];
    assert_eq!(
        host.acquire(&[5, 9, 5], &mut memory, &store, &mut first)
            .unwrap(),
        2
    );
    assert_eq!(*store.batches.borrow(), [vec![5, 9]]);
    assert_eq!((first[0], host.held()), (first[2], 2));
    let mut second = [0; 3];
    assert_eq!(
        host.acquire(&[9, 1, 2], &mut memory, &store, &mut second)
            .unwrap(),
        2
    );
    assert_eq!(second[0], first[1]);
    let refused = host.acquire(&[3], &mut memory, &store, &mut [0]);
    let full = HotPoolError::HostFull {
        needed: 1,
        free: 0,
        rows: 4,
    };
    assert!(matches!(refused, Err(AcquireError::Pool(error)) if error == full));
    // Key 5 was acquired twice.
    host.release(&[first[0]]).unwrap();
    assert!(host.acquire(&[3], &mut memory, &store, &mut [0]).is_err());
    host.release(&[first[0]]).unwrap();
    assert_eq!(
        host.acquire(&[3], &mut memory, &store, &mut [0]).unwrap(),
        1
    );
    let error = host.release(&[second[0], 77]).unwrap_err();
    assert_eq!(error, HotPoolError::NotInUse { row: 77 });
    assert_eq!(host.held(), 4);
}

#[test]
fn after_a_failure_nothing_is_held() {
    let store = Store::default();
    let mut host = HostRows::new(4, 2);
    let mut memory = [0; 8];
    host.acquire(&[1], &mut memory, &store, &mut [0]).unwrap();
    let lacking = host.acquire(&[2, 1, 500], &mut memory, &store, &mut [0; 3]);
    let text = lacking.unwrap_err().to_string();
    assert_eq!(
        text,
        "the store has no row for key 500, at position 2 of the batch"
    );
    store.fails.set(true);
    let failed = host.acquire(&[3, 1], &mut memory, &store, &mut [0; 2]);
    assert_eq!(failed.unwrap_err().to_string(), "the store failed: no disk");
    assert_eq!(host.held(), 1);
    let short = host.acquire(&[1], &mut memory[..7], &store, &mut [0]);
    assert!(short.unwrap_err().to_string().contains("7 bytes"));
    assert_eq!(host.held(), 1);
}

#[test]
fn held_rows_always_have_their_keys_bytes() {
    let random = &mut SmallRng::seed_from_u64(3);
    let store = Store::default();
    let (mut host, mut memory) = (HostRows::new(16, 2), [0; 32]);
    let mut held: Vec<(Vec<u64>, Vec<i64>)> = Vec::new();
    let (mut refused, mut fetched) = (0, 0);
    for _ in 0..2000 {
        if held.len() > 3 || random.random_bool(0.3) && !held.is_empty() {
            let (_, rows) = held.swap_remove(random.random_range(0..held.len()));
            host.release(&rows).unwrap();
        }
        let keys: Vec<u64> = (0..random.random_range(1..8))
            .map(|_| random.random_range(0..40))
            .collect();
        let mut rows = vec![0; keys.len()];
        match host.acquire(&keys, &mut memory, &store, &mut rows) {
            Ok(more) => {
                fetched += more;
                held.push((keys, rows));
            }
            Err(_) => refused += 1,
        }
        let mut different = HashMap::new();
        for (key, row) in held.iter().flat_map(|(keys, rows)| keys.iter().zip(rows)) {
            assert_eq!(memory[*row as usize * 2..][..2], row_of(*key));
            assert_eq!(*different.entry(*key).or_insert(*row), *row);
        }
        assert_eq!(host.held(), different.len() as u64);
    }
    assert!(
        refused > 10 && fetched > 1000,
        "{refused} refused, {fetched} fetched"
    );
}
