//! Threads publish keys and look them up at once, in every kind of memtable and by every search.

use crate::testing::search;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use forerun_core::Pages;
use forerun_db::memtable::{MemTable, MemTableConfig, MemoryChecks};
use forerun_db::{Op, Values};
use search::Search;

/// A snapshot that sees everything.
const ALL: u64 = u64::MAX >> 8;

fn table(hash_index: bool, checks: MemoryChecks) -> MemTable {
    let config = MemTableConfig::default()
        .limit_bytes(256 << 20)
        .checks(checks)
        .hash_index(hash_index)
        .pages(Pages::Small);
    MemTable::new(config).unwrap()
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> std::array::IntoIter<Op<'a>, 1> {
    [Op::Put { key, value }].into_iter()
}

/// A bijection on 64 bits, to scatter keys.
fn mix(i: u64) -> u64 {
    let z = (i ^ i >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// After a thread has published a key, any later batch of any thread that contains the key finds
/// it by every search, while towers grow and indexes are built: with a hash index, without one, and
/// with every visited entry verified. (The reviewers of RocksDB pull request 14428 asked for this
/// test.)
#[test]
fn a_published_key_is_found_by_every_later_batch_of_every_thread() {
    find_what_is_published(&table(true, MemoryChecks::Off), 20_000);
    find_what_is_published(&table(false, MemoryChecks::Off), 20_000);
    find_what_is_published(&table(false, MemoryChecks::Paranoid), 8_000);
}

fn find_what_is_published(table: &MemTable, key_count: u64) {
    const THREADS: u64 = 4;
    let sequences = AtomicU64::new(1);
    // The keys published so far, for the other threads to pick from: key number + 1, or 0.
    let published: Vec<AtomicU64> = (0..key_count).map(|_| AtomicU64::new(0)).collect();
    let count = AtomicUsize::new(0);
    let searches = Search::all();
    let work = |thread: u64| {
        let mut values = Values::new();
        for n in (thread..key_count).step_by(THREADS as usize) {
            let sequence = sequences.fetch_add(1, Ordering::Relaxed);
            let key = mix(n).to_be_bytes();
            table
                .prepare(put(&key, &n.to_le_bytes()))
                .unwrap()
                .publish(sequence);
            // Release and Acquire: "later" means that the publication happened before the batch.
            let slot = count.fetch_add(1, Ordering::AcqRel);
            published[slot].store(n + 1, Ordering::Release);
            let mut numbers = vec![n];
            for pick in 0..15 {
                let slot = mix(n * 16 + pick) as usize % (slot + 1);
                numbers.extend(published[slot].load(Ordering::Acquire).checked_sub(1));
            }
            let keys: Vec<_> = numbers.iter().map(|&n| mix(n).to_be_bytes()).collect();
            let search = searches[n as usize % searches.len()];
            search.multi_get_values(table, &keys, ALL, &mut values);
            for (number, value) in numbers.iter().zip(values.iter()) {
                let expected = Some(&number.to_le_bytes()[..]);
                assert_eq!(value.unwrap(), expected, "{search}, key {number}");
            }
        }
    };
    forerun_core::sync::thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    assert_eq!(table.stats().entries as u64, key_count);
    let mut cursor = table.cursor(ALL);
    let mut last = None;
    let mut entries = 0;
    while let Some(entry) = cursor.next().unwrap() {
        assert!(last.as_deref() < Some(entry.key));
        last = Some(entry.key.to_vec());
        entries += 1;
    }
    assert_eq!(entries, key_count);
}
