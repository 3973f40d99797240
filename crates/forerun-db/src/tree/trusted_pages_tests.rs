//! Lookups that trust pages which have changed since they were verified.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::cache::{PageCache, VerifyChecksums};
use crate::comparator::KeyOrder;
use crate::io::ReadBackend;
use crate::io::fault::FaultIo;
use crate::run::cursor::RunCursor;
use crate::testing::runs::{cache, key, orders, run};
use crate::testing::version_list::held;
use crate::versions::VersionCursor;

const KEYS: usize = 600;

fn value(number: usize) -> Vec<u8> {
    format!("value {number} ")
        .repeat(1 + number % 7)
        .into_bytes()
}

/// A run that the system has in memory, with a cache for few of its pages.
fn cached_run(io: &FaultIo, cache: &Arc<PageCache>, order: &KeyOrder, number: u64) -> Arc<Run> {
    let versions: Vec<_> = (0..KEYS)
        .map(|n| held(&key(n), n as u64 + 1, Some(&value(n))))
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
fn wrong_answers(tree: &Levels, context: &ReadContext) -> usize {
    let keys: Vec<_> = (0..KEYS).map(key).collect();
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
    ) {
        let order = &orders()[usize::from(is_reverse)];
        let (io, cache) = (FaultIo::new(), cache(4));
        let run = cached_run(&io, &cache, order, number);
        let (path, pages) = (run.path().to_owned(), run.pages_range());
        let tree = Levels::with_runs(order.clone(), [(0, Arc::clone(&run))]);
        let once = context(&cache, VerifyChecksums::Once);
        prop_assert_eq!(wrong_answers(&tree, &once), 0);
        for (at, bytes) in damage {
            let at = pages.start as usize + at.index((pages.end - pages.start) as usize - 3);
            io.overwrite(&path, at, &bytes);
        }
        let wrong = wrong_answers(&tree, &once);
        prop_assert!(wrong == 0 || !is_reverse, "a comparator sees only what was verified");
        let always = context(&cache, VerifyChecksums::Always);
        prop_assert_eq!(wrong_answers(&tree, &always), 0);
        // What is written to another run is verified too.
        let mut cursor = RunCursor::past_cache(&run);
        let mut rows = 0;
        let mut moved = cursor.seek_first();
        while moved.is_ok() && let Some(version) = cursor.at() {
            let number = if is_reverse { KEYS - 1 - rows } else { rows };
            prop_assert_eq!(version.key, &key(number)[..]);
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
    for number in [1, 2] {
        let (io, cache) = (FaultIo::new(), cache(4));
        let run = cached_run(&io, &cache, order, number);
        let tree = Levels::with_runs(order.clone(), [(0, Arc::clone(&run))]);
        let once = context(&cache, VerifyChecksums::Once);
        assert_eq!(wrong_answers(&tree, &once), 0);
        let pages = run.pages_range();
        let garbage = vec![0xa5; (pages.end - pages.start) as usize];
        io.overwrite(run.path(), pages.start as usize, &garbage);
        assert_eq!(wrong_answers(&tree, &once), 0, "every lookup fails");
    }
}
