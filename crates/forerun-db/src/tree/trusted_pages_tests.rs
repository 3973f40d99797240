//! Lookups that trust pages which have changed since they were verified.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::cache::{PageCache, VerifyChecksums, pin};
use crate::comparator::KeyOrder;
use crate::io::ReadBackend;
use crate::io::fault::FaultIo;
use crate::run::cursor::RunCursor;
use crate::testing::runs::{cache, orders, run};
use crate::testing::version_list::held;
use crate::versions::VersionCursor;

const KEYS: usize = 600;

/// Whether keys have a long common prefix, with which no record is read alone.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Keys {
    Short,
    Long,
}

impl Keys {
    fn key(self, number: usize) -> Vec<u8> {
        let prefix = match self {
            Keys::Short => "key",
            Keys::Long => "a key with a long prefix",
        };
        format!("{prefix} {number:05}").into_bytes()
    }
}

fn value(number: usize) -> Vec<u8> {
    format!("value {number} ")
        .repeat(1 + number % 29 * 4)
        .into_bytes()
}

/// A run that the system has in memory, with a cache for few of its pages.
fn cached_run(
    io: &FaultIo,
    cache: &Arc<PageCache>,
    order: &KeyOrder,
    number: u64,
    keys: Keys,
) -> Arc<Run> {
    let versions: Vec<_> = (0..KEYS)
        .map(|n| held(&keys.key(n), n as u64 + 1, Some(&value(n))))
        .collect();
    io.set_cached_percent(100);
    run(io, Path::new("/"), number, order, cache, &versions)
}

fn context(cache: &Arc<PageCache>, verify_checksums: VerifyChecksums) -> ReadContext {
    ReadContext {
        cache: Arc::clone(cache),
        backend: ReadBackend::Auto,
        verify_checksums,
    }
}

/// How many lookups of all keys find another value than the right one. All others find it, or an
/// error that says that the file is corrupt.
fn wrong_answers(tree: &Levels, context: &ReadContext, keys: Keys) -> usize {
    let keys: Vec<_> = (0..KEYS).map(|n| keys.key(n)).collect();
    let keys: Vec<_> = keys.iter().map(|key| SearchKey::new(key, 10_000)).collect();
    let mut wrong = 0;
    let mut take = |number: usize, found: Result<Found<'_>>| match found {
        Ok(found) => wrong += usize::from(found != Found::Value(&value(number))),
        Err(error) => assert!(error.to_string().contains("is corrupt at"), "{error}"),
    };
    multi_get(tree, &keys, context, &mut take);
    for (number, key) in keys.iter().enumerate().step_by(3) {
        if let Err(error) = get(tree, *key, context, |found| take(number, Ok(found))) {
            take(number, Err(error));
        }
    }
    wrong
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn changed_pages_are_wrong_at_worst(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<[u8; 3]>()), 1..40),
        number in 1_u64..5,
        is_reverse in any::<bool>(),
        keys in prop_oneof![Just(Keys::Short), Just(Keys::Long)],
    ) {
        let order = &orders()[usize::from(is_reverse)];
        let (io, cache) = (FaultIo::new(), cache(4));
        let run = cached_run(&io, &cache, order, number, keys);
        let (path, pages) = (run.path().to_owned(), run.pages_range());
        let tree = Levels::with_runs(order.clone(), [(0, Arc::clone(&run))]);
        let once = context(&cache, VerifyChecksums::Once);
        prop_assert_eq!(wrong_answers(&tree, &once, keys), 0);
        for (at, bytes) in damage {
            let at = pages.start as usize + at.index((pages.end - pages.start) as usize - 3);
            io.overwrite(&path, at, &bytes);
        }
        let wrong = wrong_answers(&tree, &once, keys);
        prop_assert!(wrong == 0 || !is_reverse, "a comparator sees only what was verified");
        let always = context(&cache, VerifyChecksums::Always);
        prop_assert_eq!(wrong_answers(&tree, &always, keys), 0);
        // What is written to another run is verified too.
        let mut cursor = RunCursor::past_cache(&run);
        let mut rows = 0;
        let mut moved = cursor.seek_first();
        while moved.is_ok() && let Some(version) = cursor.at() {
            let number = if is_reverse { KEYS - 1 - rows } else { rows };
            prop_assert_eq!(version.key, &keys.key(number)[..]);
            prop_assert_eq!(version.value, &value(number)[..]);
            rows += 1;
            moved = cursor.next();
        }
        prop_assert!(rows == KEYS || moved.is_err());
    }
}

#[test]
fn a_page_of_garbage_is_corrupt() {
    let order = &orders()[0];
    for (number, keys) in [(1, Keys::Short), (2, Keys::Short), (2, Keys::Long)] {
        let (io, cache) = (FaultIo::new(), cache(4));
        let run = cached_run(&io, &cache, order, number, keys);
        let tree = Levels::with_runs(order.clone(), [(0, Arc::clone(&run))]);
        let once = context(&cache, VerifyChecksums::Once);
        assert_eq!(wrong_answers(&tree, &once, keys), 0);
        let pages = run.pages_range();
        let garbage = vec![0xa5; (pages.end - pages.start) as usize];
        io.overwrite(run.path(), pages.start as usize, &garbage);
        assert_eq!(wrong_answers(&tree, &once, keys), 0, "every lookup fails");
    }
}

/// A key is not found to be missing by a leaf that was verified before it changed.
#[test]
fn an_absent_key_is_looked_for_in_a_verified_page() {
    let order = &orders()[0];
    for (number, keys) in [(2, Keys::Short), (2, Keys::Long), (1, Keys::Short)] {
        let (io, cache) = (FaultIo::new(), cache(12));
        let run = cached_run(&io, &cache, order, number, keys);
        let tree = Levels::with_runs(order.clone(), [(0, Arc::clone(&run))]);
        let once = context(&cache, VerifyChecksums::Once);
        for _ in 0..2 {
            assert_eq!(wrong_answers(&tree, &once, keys), 0);
        }
        let bytes = io.read(run.path()).unwrap();
        let pages = run.pages_range();
        // Changes the last digits of keys.
        for at in pages.start as usize..pages.end as usize - 8 {
            if bytes[at..].starts_with(b"value ") && at > 0 {
                io.overwrite(run.path(), at - 1, b"#");
            }
        }
        for n in (0..KEYS).map(|at| at * 13 % KEYS) {
            let key = keys.key(n);
            let found = get(&tree, SearchKey::new(&key, 10_000), &once, |found| {
                found == Found::Missing
            });
            assert!(!found.unwrap_or(false), "{n} is reported as missing");
        }
    }
}

/// Nor is it found to be deleted.
#[test]
fn a_deletion_is_looked_for_in_a_verified_page() {
    let order = &orders()[0];
    for number in [1, 2] {
        let (io, cache) = (FaultIo::new(), cache(12));
        let run = cached_run(&io, &cache, order, number, Keys::Short);
        let tree = Levels::with_runs(order.clone(), [(0, Arc::clone(&run))]);
        let once = context(&cache, VerifyChecksums::Once);
        for _ in 0..2 {
            assert_eq!(wrong_answers(&tree, &once, Keys::Short), 0);
        }
        let bytes = io.read(run.path()).unwrap();
        let (pages, mut flipped) = (run.pages_range(), 0);
        // A record is a tag of eight bytes, a length of four, the key's suffix and the value.
        for value_at in pages.start as usize + 20..pages.end as usize - 8 {
            for suffix_len in 1..=6 {
                let tag_at = value_at - suffix_len - 12;
                let is_value = bytes[tag_at] == (suffix_len as u8) << 1 | 1;
                if is_value && bytes[tag_at + 7] == 0 && bytes[value_at..].starts_with(b"value ") {
                    io.overwrite(run.path(), tag_at, &[bytes[tag_at] ^ 1]);
                    flipped += 1;
                }
            }
        }
        for n in (0..KEYS).map(|at| at * 13 % KEYS) {
            let key = Keys::Short.key(n);
            let found = get(&tree, SearchKey::new(&key, 10_000), &once, |found| {
                found == Found::Deleted
            });
            assert!(!found.unwrap_or(false), "{n} is reported as deleted");
        }
        assert!(
            number == 1 || flipped > KEYS / 2,
            "{flipped} records changed"
        );
    }
}

/// What a scan finds to be damaged, lookups do not trust.
#[test]
fn a_page_that_failed_a_scan_is_not_trusted() {
    let order = &orders()[0];
    let keys = Keys::Short;
    let (io, cache) = (FaultIo::new(), cache(12));
    let run = cached_run(&io, &cache, order, 2, keys);
    let tree = Levels::with_runs(order.clone(), [(0, Arc::clone(&run))]);
    let once = context(&cache, VerifyChecksums::Once);
    for _ in 0..2 {
        assert_eq!(wrong_answers(&tree, &once, keys), 0);
    }
    let is_verified = |page_no: &u32| run.slots().verified().opening_of(*page_no).is_some();
    let leaves = 0..run.meta().leaf_pages;
    assert!(leaves.clone().filter(is_verified).count() > 10);
    assert!(is_verified(&0));
    // A scan would use the page in the cache.
    let is_cached = || run.slots().get(0, usize::MAX, &pin()).is_some();
    for n in (KEYS / 2..KEYS).cycle().take(1000 * KEYS) {
        if !is_cached() {
            break;
        }
        let key = keys.key(n);
        get(&tree, SearchKey::new(&key, 10_000), &once, |_| ()).unwrap();
    }
    assert!(!is_cached());
    io.overwrite(
        run.path(),
        run.pages_range().start as usize + 100,
        &[0xa5; 3],
    );
    assert!(RunCursor::past_cache(&run).seek_first().is_err());
    assert!(!is_verified(&0));
}

#[test]
fn a_record_of_a_verified_leaf_is_read_alone() {
    let order = &orders()[0];
    let keys = Keys::Short;
    // Run 2 is not compressed and has an index.
    let (io, cache) = (FaultIo::new(), cache(12));
    let run = cached_run(&io, &cache, order, 2, keys);
    assert!(run.index().is_some() && run.meta().internal_pages > 0);
    let tree = Levels::with_runs(order.clone(), [(0, Arc::clone(&run))]);
    let once = context(&cache, VerifyChecksums::Once);
    for _ in 0..2 {
        assert_eq!(wrong_answers(&tree, &once, keys), 0);
    }
    let (mut alone, mut longer) = (0, 0);
    // A leaf is wanted again when its ghost entry is old.
    for n in (0..KEYS).map(|at| at * 13 % KEYS) {
        let key = keys.key(n);
        let (before, calls) = (cache.stats(), io.calls());
        let found = get(&tree, SearchKey::new(&key, 10_000), &once, |found| {
            assert_eq!(found, Found::Value(&value(n)));
        });
        found.unwrap();
        let after = cache.stats();
        if (after.hits, after.misses) == (before.hits, before.misses + 1) {
            alone += 1;
            longer += usize::from(io.calls() - calls > 1);
        }
    }
    assert!(alone > KEYS / 2, "{alone} records");
    assert!(longer > 0, "some are longer than the average");
    // An older reader does not see them, and a later one finds them expired.
    for n in [3, 4] {
        let key = keys.key(n);
        let old = get(&tree, SearchKey::new(&key, n as u64), &once, |found| {
            found == Found::Missing
        });
        assert!(old.unwrap());
        let mut late = SearchKey::new(&key, 10_000);
        late.expired_sequence = n as u64 + 1;
        let gone = get(&tree, late, &once, |found| found == Found::Deleted);
        assert!(gone.unwrap());
    }
    let absent = get(
        &tree,
        SearchKey::new(b"key 00003x", 10_000),
        &once,
        |found| found == Found::Missing,
    );
    assert!(absent.unwrap());
}
