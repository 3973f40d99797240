//! Lookups in trees of runs, against a linear search.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use forerun_core::interleave_with;
use proptest::prelude::*;

use super::*;
use crate::cache::{PageCache, VerifyChecksums};
use crate::comparator::KeyOrder;
use crate::io::fault::{EIO, Fault, FaultIo};
use crate::io::{Io, OsIo, ReadBackend};
use crate::testing::runs::{answer, cache, key, orders, run, sorted};
use crate::testing::version_list::{Held, held};

/// The number of the first run of a tree, and from each to the next. A run has an index unless its
/// number is a multiple of four.
type Numbers = (u64, u64);

/// Most runs have an index.
const INDEXED: Numbers = (1, 1);

/// No run has one.
const UNINDEXED: Numbers = (100, 4);

/// A tree of versions given in the order of writing. The oldest are in disjoint runs on level 1,
/// the others in runs on level 0, from one index in `cuts` to the next.
fn levels(
    io: &dyn Io,
    dir: &Path,
    order: &KeyOrder,
    cache: &Arc<PageCache>,
    versions: &[Held],
    cuts: &[usize],
    (first, step): Numbers,
) -> Levels {
    let mut runs = Vec::new();
    let mut numbers = (first..).step_by(step as usize);
    let mut from = 0;
    for (at, &to) in cuts.iter().chain([&versions.len()]).enumerate() {
        let part = &versions[from..to.max(from)];
        from = to.max(from);
        if part.is_empty() {
            continue;
        }
        if at > 0 {
            let number = numbers.next().unwrap();
            runs.push((0, run(io, dir, number, order, cache, part)));
            continue;
        }
        // Cuts between keys into three parts.
        let part = sorted(order, part);
        let mut rest = &part[..];
        for more in [2, 1, 0] {
            let mut cut = rest.len() / (more + 1);
            while cut < rest.len() && cut > 0 && rest[cut].key == rest[cut - 1].key {
                cut += 1;
            }
            let (these, others) = rest.split_at(cut);
            rest = others;
            if !these.is_empty() {
                let number = numbers.next().unwrap();
                runs.push((1, run(io, dir, number, order, cache, these)));
            }
        }
        assert!(rest.is_empty());
    }
    Levels::with_runs(order.clone(), runs)
}

type Answer = Option<Option<Vec<u8>>>;

fn owned(found: Found<'_>) -> Answer {
    match found {
        Found::Value(value) => Some(Some(value.to_vec())),
        Found::Deleted => Some(None),
        Found::Missing => None,
    }
}

fn context(cache: &Arc<PageCache>, backend: ReadBackend) -> ReadContext {
    ReadContext {
        cache: Arc::clone(cache),
        backend,
        verify_checksums: VerifyChecksums::Once,
    }
}

fn multi(tree: &Levels, keys: &[SearchKey<'_>], context: &ReadContext) -> Vec<Result<Answer>> {
    let mut answers: Vec<Option<Result<Answer>>> = keys.iter().map(|_| None).collect();
    multi_get(tree, keys, context, |position, found| {
        let before = answers[position].replace(found.map(owned));
        assert!(before.is_none(), "key {position} was answered twice");
    });
    answers.into_iter().map(Option::unwrap).collect()
}

/// Checks a batch, and each of its keys alone.
fn check(
    tree: &Levels,
    versions: &BTreeMap<Vec<u8>, Vec<Held>>,
    keys: &[SearchKey<'_>],
    context: &ReadContext,
) {
    let expected = |key: &SearchKey<'_>| {
        let of_key = versions.get(key.key).map_or(&[][..], Vec::as_slice);
        answer(tree.order(), of_key, key)
    };
    for (key, found) in keys.iter().zip(multi(tree, keys, context)) {
        assert_eq!(found.unwrap(), expected(key), "{:?}", key);
    }
    for key in keys.iter().take(20) {
        let found = get(tree, *key, context, owned).unwrap();
        assert_eq!(found, expected(key));
    }
}

fn by_key(versions: &[Held]) -> BTreeMap<Vec<u8>, Vec<Held>> {
    let mut map: BTreeMap<Vec<u8>, Vec<Held>> = BTreeMap::new();
    for version in versions {
        map.entry(version.key.clone())
            .or_default()
            .push(version.clone());
    }
    map
}

/// Versions in the order of writing, from key numbers and whether each is a deletion.
fn written(ops: &[(u16, bool)]) -> Vec<Held> {
    ops.iter()
        .enumerate()
        .map(|(at, &(number, deletes))| {
            let sequence = at as u64 + 1;
            let value = format!("{sequence} of {number}").repeat(1 + at % 9);
            held(
                &key(number.into()),
                sequence,
                (!deletes).then_some(value.as_bytes()),
            )
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_batch_finds_what_looking_at_everything_finds(
        ops in prop::collection::vec((0_u16..400, prop::bool::weighted(0.2)), 1..900),
        cuts in prop::collection::vec(0_usize..900, 0..5),
        wanted in prop::collection::vec((0_u16..420, 0_u64..1_000), 1..300),
        frames in prop_oneof![Just(1), Just(4), Just(30), Just(500)],
        real in any::<bool>(),
        reverse in any::<bool>(),
    ) {
        let versions = written(&ops);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| *cut.min(&versions.len())).collect();
        cuts.sort_unstable();
        let order = &orders()[usize::from(reverse)];
        let temporary = tempfile::tempdir().unwrap();
        let model = FaultIo::new();
        let (io, dir): (&dyn Io, &Path) = if real {
            (&OsIo, temporary.path())
        } else {
            (&model, "/".as_ref())
        };
        let cache = cache(frames);
        let map = by_key(&versions);
        let keys: Vec<_> = wanted.iter().map(|&(number, at)| (key(number.into()), at)).collect();
        let keys: Vec<_> = keys.iter().map(|(key, at)| SearchKey::new(key, *at)).collect();
        for numbers in [INDEXED, UNINDEXED] {
            let tree = levels(io, dir, order, &cache, &versions, &cuts, numbers);
            for backend in ReadBackend::ALL {
                check(&tree, &map, &keys, &context(&cache, backend));
            }
        }
    }
}

#[test]
fn an_index_leads_to_the_leaf_without_the_pages_above_it() {
    for order in &orders() {
        let io = FaultIo::new();
        let cache = cache(1_000);
        let versions: Vec<_> = (0..3_000)
            .map(|n| held(&key(n), n as u64 + 1, Some(&[n as u8; 200])))
            .collect();
        let tree = |number| {
            let run = run(&io, "/".as_ref(), number, order, &cache, &versions);
            assert!(run.index().is_some() == (number == 1) && run.meta().internal_pages > 1);
            Levels::with_runs(order.clone(), [(0, run)])
        };
        let (indexed, plain) = (tree(1), tree(4));
        let keys: Vec<_> = (0..3_000).map(key).collect();
        let keys: Vec<_> = keys.iter().map(|key| SearchKey::new(key, 10_000)).collect();
        let context = context(&cache, ReadBackend::Auto);
        let pages = |tree: &Levels, together: bool| {
            let before = cache.stats().hits;
            if together {
                drop(multi(tree, &keys, &context));
            } else {
                for key in &keys {
                    get(tree, *key, &context, owned).unwrap();
                }
            }
            cache.stats().hits - before
        };
        // The first batches read the pages.
        pages(&indexed, true);
        pages(&plain, true);
        for together in [true, false] {
            // A few keys have the tag of another one before them, and are searched for.
            assert!(pages(&indexed, together) < 3_150);
            assert!(pages(&plain, together) >= 6_000);
        }
    }
}

/// A tree whose runs each have three levels of pages.
fn deep(
    io: &FaultIo,
    cache: &Arc<PageCache>,
    order: &KeyOrder,
    numbers: Numbers,
) -> (Levels, Vec<Held>) {
    let mut versions: Vec<_> = (0..3_000)
        .map(|n| held(&key(n), n as u64 + 1, Some(format!("value {n}").as_bytes())))
        .collect();
    versions.extend((0..600).map(|n| {
        let value = format!("second {n}");
        let value = (n % 7 != 0).then_some(value.as_bytes());
        held(&key(n * 5 + 1), n as u64 + 3_001, value)
    }));
    let tree = levels(io, "/".as_ref(), order, cache, &versions, &[3_000], numbers);
    assert!(tree.runs().any(|(_, run)| run.meta().internal_pages > 1));
    (tree, versions)
}

#[test]
fn every_key_of_a_deep_tree_is_found_and_none_between() {
    for order in &orders() {
        let io = FaultIo::new();
        for (frames, numbers) in [
            (4, INDEXED),
            (1_000, INDEXED),
            (4, UNINDEXED),
            (1_000, UNINDEXED),
        ] {
            let cache = cache(frames);
            let (tree, versions) = deep(&io, &cache, order, numbers);
            let mut keys: Vec<_> = (0..3_000).map(key).collect();
            keys.extend((0..3_000).step_by(7).map(|n| [&key(n)[..], b"~"].concat()));
            keys.extend((0..3_000).step_by(11).map(|n| key(n)[..50].to_vec()));
            keys.extend([vec![], vec![0], vec![255; 300]]);
            let keys: Vec<_> = keys.iter().map(|key| SearchKey::new(key, 10_000)).collect();
            let context = context(&cache, ReadBackend::Auto);
            check(&tree, &by_key(&versions), &keys, &context);
        }
    }
}

#[test]
fn a_failure_at_any_read_fails_only_keys_of_that_page() {
    let order = &orders()[0];
    let io = FaultIo::new();
    let wanted: Vec<_> = (0..3_000).step_by(43).map(key).collect();
    let keys: Vec<_> = wanted
        .iter()
        .map(|key| SearchKey::new(key, 10_000))
        .collect();
    let (mut call, mut max) = (0, 0);
    loop {
        let cache = cache(1_000);
        let (tree, versions) = deep(&io, &cache, order, INDEXED);
        let map = by_key(&versions);
        let context = context(&cache, ReadBackend::Auto);
        let fault = io.calls() + call;
        io.fail_call(fault, Fault::Fail(EIO));
        let answers = multi(&tree, &keys, &context);
        if io.calls() <= fault {
            break;
        }
        let mut failed = 0;
        for (key, found) in keys.iter().zip(answers) {
            match found {
                Ok(found) => assert_eq!(found, answer(order, &map[key.key], key)),
                Err(error) => {
                    assert!(error.to_string().contains("cannot read"), "{error}");
                    failed += 1;
                }
            }
        }
        // A failed leaf affects few keys, a failed internal page many.
        assert!(
            (1..keys.len()).contains(&failed),
            "read {call}: {failed} keys"
        );
        max = max.max(failed);
        check(&tree, &map, &keys, &context);
        call += 1;
    }
    assert!(call > 50 && max > 3, "{call} reads, {max} keys");
}

#[test]
fn damage_is_an_error_or_changes_nothing() {
    let order = &orders()[0];
    let io = FaultIo::new();
    let versions: Vec<_> = (0..600)
        .map(|n| held(&key(n), n as u64 + 1, Some(b"v")))
        .collect();
    let clean = cache(100);
    let path = run(&io, "/".as_ref(), 1, order, &clean, &versions)
        .path()
        .to_owned();
    let bytes = io.read(&path).unwrap();
    let wanted: Vec<_> = (0..600).step_by(3).map(key).collect();
    let keys: Vec<_> = wanted
        .iter()
        .map(|key| SearchKey::new(key, 1_000))
        .collect();
    let mut damaged = 0;
    for at in (0..bytes.len()).step_by(211) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        io.write(&path, &bytes);
        let cache = cache(100);
        let Ok(run) = Run::open(&io, &path, 1, order.clone(), &cache) else {
            damaged += 1;
            continue;
        };
        let tree = Levels::with_runs(order.clone(), [(0, Arc::new(run))]);
        let context = context(&cache, ReadBackend::Auto);
        let mut errors = 0;
        for found in multi(&tree, &keys, &context) {
            match found {
                Ok(found) => assert_eq!(found, Some(Some(b"v".to_vec()))),
                Err(error) => {
                    assert!(
                        error.to_string().contains("is corrupt at offset"),
                        "{error}"
                    );
                    errors += 1;
                }
            }
        }
        assert!(errors < keys.len());
        damaged += usize::from(errors > 0);
    }
    assert!(damaged > 10);
}

#[test]
fn values_longer_than_a_page_are_found() {
    let order = &orders()[0];
    for frames in [4, 100] {
        let io = FaultIo::new();
        let cache = cache(frames);
        let long = |n: usize| vec![n as u8; 1_000 + 7_000 * (n % 3)];
        let versions: Vec<_> = (0..100)
            .map(|n| held(&key(n), n as u64 + 1, Some(&long(n))))
            .collect();
        let tree = levels(&io, "/".as_ref(), order, &cache, &versions, &[50], INDEXED);
        let wanted: Vec<_> = (0..110).chain(0..110).map(key).collect();
        let keys: Vec<_> = wanted
            .iter()
            .map(|key| SearchKey::new(key, 1_000))
            .collect();
        for backend in ReadBackend::ALL {
            let context = context(&cache, backend);
            check(&tree, &by_key(&versions), &keys, &context);
        }
    }
}

#[test]
fn a_waiting_lookup_is_small() {
    let io = FaultIo::new();
    let cache = cache(10);
    let run = run(
        &io,
        "/".as_ref(),
        1,
        &orders()[0],
        &cache,
        &[held(b"a", 1, Some(b"v"))],
    );
    let pin = cache::pin();
    let reads = Reads::new(&cache, &pin, ReadBackend::Sync);
    let runs = [&*run];
    let key = SearchKey::new(b"a", 1);
    let lookup = find_in(&runs, &key, &reads);
    let bytes = size_of_val(&lookup);
    println!(
        "{bytes} bytes per lookup, {} all in flight",
        bytes * IN_FLIGHT
    );
    assert!(bytes <= 224, "{bytes} bytes");
    interleave_with::<1, _, _>(&reads, [lookup], |_, found| {
        assert_eq!(found.unwrap(), Found::Value(b"v"));
    });
}
