//! Writes runs of every shape and reads them back, and injects every fault on the way.

use std::path::Path;

use forerun_core::Pages;
use proptest::prelude::*;

use super::compression_tests::{compressions, similar, zstd};
use super::indexed_record::IndexedRecord;
use super::lookup::Found;
use super::page::{Page, PageKind};
use super::page_tests::{Entry, entries, orders, sorted};
use super::reader::Run;
use super::record_index::RecordAddress;
use super::{Compression, PageSearch, Probe, RunMeta, RunOptions, RunWriter, SearchKey, filter};
use crate::cache::driver::PageSource;
use crate::cache::{CacheOptions, PageCache, pin};
use crate::comparator::{Bytewise, Comparator, KeyOrder};
use crate::io::fault::{EIO, ENOSPC, Fault, FaultIo};
use crate::io::{Io, OpenMode};
use crate::testing::cases;
use crate::versions::{Kind, SEQUENCE_MAX, Version};
use crate::{Error, Result};

pub(super) const PATH: &str = "/run-000007.run";

pub(super) fn name(order: &KeyOrder) -> String {
    match order {
        KeyOrder::Bytewise => Bytewise.name().to_owned(),
        KeyOrder::Custom(comparator) => comparator.name().to_owned(),
    }
}

pub(super) fn write(
    io: &FaultIo,
    order: &KeyOrder,
    options: RunOptions,
    entries: &[Entry],
) -> Result<RunMeta> {
    let mut writer = RunWriter::create(io, Path::new(PATH), order, &name(order), options)?;
    for entry in entries {
        writer.add(version(entry))?;
    }
    writer.finish()
}

pub(super) fn version(entry: &Entry) -> Version<'_> {
    Version {
        key: &entry.key,
        sequence: entry.sequence,
        kind: match entry.value {
            Some(_) => Kind::Value,
            None => Kind::Deletion,
        },
        value: entry.value.as_deref().unwrap_or_default(),
    }
}

pub(super) fn open(io: &FaultIo, order: &KeyOrder) -> Result<Run> {
    Run::open(
        io,
        Path::new(PATH),
        7,
        order.clone(),
        &crate::testing::small_cache::small_cache(),
    )
}

/// All pages of a run, by number.
fn pages(run: &Run) -> Result<Vec<Vec<u8>>> {
    let mut pages = vec![Vec::new(); run.meta().pages() as usize];
    let root = pages.len() - 1;
    pages[root] = run.root().bytes().to_vec();
    let mut stored = Vec::new();
    for above in (0..pages.len()).rev() {
        let above = pages[above].clone();
        let above = Page::new(&above);
        assert!(above.rows() > 0, "each page has one above it");
        if above.kind() == PageKind::Internal {
            for row in 0..above.rows() {
                let (child, location) = above.child(row);
                assert_eq!(child, above.child_number(row));
                let mut page = Vec::new();
                run.read_page(child, location, &mut stored, &mut page)?;
                let before = std::mem::replace(&mut pages[child as usize], page);
                assert!(before.is_empty(), "and no other");
            }
        }
    }
    Ok(pages)
}

/// All versions of a run, in order.
pub(super) fn read(run: &Run) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for page in pages(run)? {
        let page = Page::new(&page);
        page.verify_order(run.order()).expect("in order");
        if page.kind() == PageKind::Internal {
            continue;
        }
        for row in 0..page.rows() {
            let mut key = Vec::new();
            page.key_into(row, &mut key);
            let value = (page.version_kind(row) == Kind::Value).then(|| page.value(row).to_vec());
            entries.push(Entry {
                key,
                sequence: page.sequence(row),
                value,
            });
        }
    }
    Ok(entries)
}

/// The result of a lookup that descends from the root.
fn find(run: &Run, pages: &[Vec<u8>], key: &[u8], sequence: u64, by: PageSearch) -> Option<Entry> {
    let mut page = run.root();
    while page.kind() == PageKind::Internal {
        let row = by.child(page, run.order(), key, sequence);
        page = Page::new(&pages[page.child_number(row) as usize]);
    }
    let row = by.find(page, run.order(), key, sequence)?;
    let mut found = Vec::new();
    page.key_into(row, &mut found);
    Some(Entry {
        key: found,
        sequence: page.sequence(row),
        value: (page.version_kind(row) == Kind::Value).then(|| page.value(row).to_vec()),
    })
}

pub(super) fn check(order: &KeyOrder, options: RunOptions, entries: &[Entry]) {
    let io = FaultIo::new();
    let written = write(&io, order, options, entries).expect("written");
    let run = open(&io, order).expect("opened");
    let meta = run.meta();
    assert_eq!(*meta, written);
    assert_eq!(meta.entries, entries.len() as u64);
    let deletions = entries.iter().filter(|e| e.value.is_none()).count();
    assert_eq!(meta.deletions, deletions as u64);
    let smallest = entries.iter().map(|e| e.sequence).min();
    let largest = entries.iter().map(|e| e.sequence).max();
    assert_eq!(Some(meta.smallest_sequence), smallest);
    assert_eq!(Some(meta.largest_sequence), largest);
    assert_eq!(Some(&meta.smallest), entries.first().map(|e| &e.key));
    assert_eq!(Some(&meta.largest), entries.last().map(|e| &e.key));
    assert_eq!(meta.file_bytes, io.read(PATH).expect("there").len() as u64);
    assert_eq!(read(&run).expect("read"), entries);

    let pages = pages(&run).expect("read");
    let limit = options.page_limit_bytes();
    for page in pages.iter().map(|page| Page::new(page)) {
        let least = if page.kind() == PageKind::Leaf { 1 } else { 2 };
        assert!(page.bytes().len() <= limit || page.rows() <= least);
    }
    for (at, entry) in entries.iter().enumerate() {
        assert_ne!(run.probe(filter::hash(&entry.key), &pin()), Probe::Absent);
        // Only some targets, to save time: this version exactly, an older view, a newer one, and a
        // neighboring key.
        let mut beside = entry.key.clone();
        beside.push(at as u8);
        for (key, sequence) in [
            (&entry.key, entry.sequence),
            (&entry.key, entry.sequence.saturating_sub(1)),
            (&entry.key, SEQUENCE_MAX),
            (&beside, SEQUENCE_MAX),
        ] {
            let row = entries.partition_point(|e| e.compare(order, key, sequence).is_lt());
            let same = |e: &&Entry| order.compare(&e.key, key).is_eq();
            let expected = entries.get(row).filter(same).cloned();
            for by in PageSearch::ALL {
                assert_eq!(
                    find(&run, &pages, key, sequence, by),
                    expected,
                    "{key:?} @{sequence} by {by}"
                );
            }
            if let Probe::At(place) = run.probe(filter::hash(key), &pin()) {
                let leaf = &pages[place.page as usize];
                let target = SearchKey::new(key, sequence);
                let found = indexed(&run, leaf, place, &target);
                // Everything up to the reader's `expired_sequence`, 0, has expired.
                let live = |entry: &Entry| entry.sequence > 0;
                let value = expected
                    .as_ref()
                    .map(|entry| entry.value.as_deref().filter(|_| live(entry)));
                match found {
                    None => {}
                    Some(Found::Value(found)) => assert_eq!(value, Some(Some(found))),
                    Some(_) => assert_eq!(value, Some(None)),
                }
            }
        }
    }
}

/// What the record at an address answers, whether its leaf has a head or not.
fn indexed<'g>(
    run: &'g Run,
    leaf: &'g [u8],
    address: RecordAddress,
    target: &SearchKey<'_>,
) -> Option<Found<'g>> {
    let with = |head| IndexedRecord::in_leaf(run, leaf, head, address).find(target);
    let found = with(0);
    assert_eq!(with(PageSource::head(run, leaf)), found);
    found
}

pub(super) fn options(page_bytes: usize, compression: Compression) -> RunOptions {
    RunOptions {
        page_bytes,
        compression,
        ..RunOptions::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 12 } else { 200 }))]

    #[test]
    fn a_run_gives_back_what_was_put_in(
        entries in entries(400), compression in compressions(), page_bytes in 0..10_000_usize,
    ) {
        for order in orders() {
            check(&order, options(page_bytes, compression), &sorted(entries.clone(), &order));
        }
    }
}

pub(super) fn numbered(count: u32, value: impl Fn(u32) -> Vec<u8>) -> Vec<Entry> {
    let entry = |n: u32| Entry {
        key: format!("user:{n:08}").into_bytes(),
        sequence: u64::from(n % 7),
        value: Some(value(n)),
    };
    (0..count).map(entry).collect()
}

#[test]
fn a_tree_of_several_levels_is_walked_by_every_search() {
    // Long keys whose separators keep most bytes, so that internal pages have few rows.
    let mut entries = numbered(300, |n| vec![n as u8; 40]);
    for entry in &mut entries {
        entry.key.splice(0..0, [b'p'; 1500]);
        entry.key.extend([b's'; 300]);
    }
    for order in orders() {
        let entries = sorted(entries.clone(), &order);
        check(&order, options(4096, Compression::None), &entries);
        let io = FaultIo::new();
        let meta = write(&io, &order, options(4096, Compression::Lz4), &entries).unwrap();
        assert!(
            meta.internal_pages > 4 || matches!(order, KeyOrder::Bytewise),
            "{meta:?}"
        );
    }
}

#[test]
fn separators_as_long_as_keys_can_be_still_end_in_one_root() {
    let entry = |n: u8| Entry {
        key: [vec![7; crate::KEY_BYTES_MAX - 1], vec![n]].concat(),
        sequence: 3,
        value: Some(vec![n; 10]),
    };
    let entries: Vec<Entry> = (0..20).map(entry).collect();
    check(
        &KeyOrder::Bytewise,
        options(4096, Compression::None),
        &entries,
    );
}

#[test]
fn versions_of_one_key_may_fill_many_pages() {
    let version = |n: u64| Entry {
        key: b"the key".to_vec(),
        sequence: 5000 - n,
        value: (!n.is_multiple_of(11)).then(|| vec![n as u8; 60]),
    };
    let mut entries: Vec<Entry> = (0..600).map(version).collect();
    let other = |key: &[u8]| Entry {
        key: key.to_vec(),
        sequence: 9,
        value: Some(b"other".to_vec()),
    };
    entries.insert(0, other(b""));
    entries.insert(1, other(b"tha"));
    entries.push(other(b"the keys"));
    for order in orders() {
        check(
            &order,
            options(4096, Compression::None),
            &sorted(entries.clone(), &order),
        );
    }
}

#[test]
fn a_value_larger_than_a_page_has_one_of_its_own() {
    let entries = numbered(9, |n| {
        vec![n as u8; [10, 100_000, 3_000_000][n as usize % 3]]
    });
    // Zstandard would expand one byte to more than a reader accepts.
    for compression in [
        Compression::None,
        Compression::Lz4,
        zstd(3, 0),
        zstd(3, 4096),
    ] {
        check(&KeyOrder::Bytewise, options(16_384, compression), &entries);
    }
}

#[test]
fn compression_is_kept_where_it_saves_something() {
    let size = |compression, value: fn(u32) -> Vec<u8>| {
        let io = FaultIo::new();
        let entries = numbered(500, value);
        let meta = write(
            &io,
            &KeyOrder::Bytewise,
            options(16_384, compression),
            &entries,
        );
        meta.unwrap().file_bytes
    };
    let same = |_| vec![3; 100];
    assert!(size(Compression::Lz4, same) * 3 < size(Compression::None, same));
    assert!(size(zstd(3, 0), same) * 3 < size(Compression::None, same));
    let random = |n: u32| {
        (0..100)
            .map(|i| filter::hash(&[n, i].map(u32::to_le_bytes).concat()) as u8)
            .collect()
    };
    assert!(size(Compression::Lz4, random) <= size(Compression::None, random));
    // An empty dictionary, and a field that says so.
    assert!(size(zstd(3, 4096), random) <= size(Compression::None, random) + 13);
}

#[test]
fn what_is_out_of_order_or_too_long_is_refused_and_the_rest_taken() {
    let io = FaultIo::new();
    let order = KeyOrder::Bytewise;
    let path = Path::new(PATH);
    let mut writer =
        RunWriter::create(&io, path, &order, &name(&order), RunOptions::default()).unwrap();
    let mut add = |key: &[u8], sequence| {
        writer.add(Version {
            key,
            sequence,
            kind: Kind::Value,
            value: b"v",
        })
    };
    add(b"b", 5).unwrap();
    for (key, sequence) in [(b"a", 1), (b"b", 5), (b"b", 6), (b"c", SEQUENCE_MAX + 1)] {
        let refused = add(key, sequence).unwrap_err();
        assert!(matches!(refused, Error::OutOfOrder { .. }), "{refused}");
    }
    let long = vec![b'x'; crate::KEY_BYTES_MAX + 1];
    assert!(matches!(add(&long, 1), Err(Error::KeyTooLong { .. })));
    add(b"b", 4).unwrap();
    add(b"c", 9).unwrap();
    assert_eq!((writer.entries(), writer.finish().unwrap().entries), (3, 3));
    assert_eq!(read(&open(&io, &order).unwrap()).unwrap().len(), 3);

    let empty = RunWriter::create(&io, path, &order, &name(&order), RunOptions::default()).unwrap();
    assert!(matches!(empty.finish(), Err(Error::EmptyRun { .. })));
    assert!(matches!(open(&io, &order), Err(Error::CorruptFile { .. })));
}

#[test]
fn a_run_of_another_comparator_is_refused() {
    let io = FaultIo::new();
    write(
        &io,
        &KeyOrder::Bytewise,
        RunOptions::default(),
        &numbered(3, |_| vec![]),
    )
    .unwrap();
    let other = orders()[1].clone();
    assert!(matches!(
        open(&io, &other),
        Err(Error::ComparatorMismatch { .. })
    ));
}

#[test]
fn keys_that_are_equal_with_other_bytes_are_found_whatever_the_filter_would_say() {
    let order = orders()[2].clone();
    let io = FaultIo::new();
    let entries = sorted(numbered(200, |_| vec![1]), &order);
    write(&io, &order, RunOptions::default(), &entries).unwrap();
    let run = open(&io, &order).unwrap();
    let pages = pages(&run).unwrap();
    for entry in &entries {
        let key = entry.key.to_ascii_uppercase();
        assert_eq!(run.probe(filter::hash(&key), &pin()), Probe::Anywhere);
        let found = find(&run, &pages, &key, 100, PageSearch::KeyPrefixes);
        assert_eq!(found.as_ref(), Some(entry));
    }
}

#[test]
fn an_index_has_the_newest_version_of_each_key_and_older_ones_are_searched_for() {
    let order = KeyOrder::Bytewise;
    let io = FaultIo::new();
    let mut entries = Vec::new();
    for entry in numbered(500, |n| vec![n as u8; 30]) {
        for sequence in [9, 5] {
            entries.push(Entry {
                sequence,
                ..entry.clone()
            });
        }
    }
    write(&io, &order, options(4096, Compression::None), &entries).unwrap();
    let run = open(&io, &order).unwrap();
    let pages = pages(&run).unwrap();
    let index = run.read_index().unwrap().unwrap();
    assert_eq!(index.keys(), 500);
    let mut found = [0; 2];
    for entry in &entries {
        let Probe::At(place) = run.probe(filter::hash(&entry.key), &pin()) else {
            panic!("the index misses a key");
        };
        let leaf = &pages[place.page as usize];
        for (at, sequence) in [9, 8].into_iter().enumerate() {
            let target = SearchKey::new(&entry.key, sequence);
            if let Some(got) = indexed(&run, leaf, place, &target) {
                assert_eq!(got, Found::Value(entry.value.as_deref().unwrap()));
                found[at] += 1;
            }
        }
    }
    // Some keys share a tag with another one of their bucket.
    assert!(found[0] > 950 && found[1] == 0, "{found:?}");
}

#[test]
fn without_the_option_or_without_room_there_is_no_index() {
    let order = KeyOrder::Bytewise;
    let io = FaultIo::new();
    let entries = numbered(2000, |_| vec![7; 10]);
    let with_index = RunOptions::default();
    let indexed = write(&io, &order, with_index, &entries).unwrap();
    // A quarter of this cache is less than the index needs.
    let tiny = PageCache::new(CacheOptions {
        capacity_bytes: 40 << 10,
        page_bytes: 16 << 10,
        pages: Pages::Small,
    });
    let tiny = tiny.unwrap();
    let run = Run::open(&io, Path::new(PATH), 7, order.clone(), &tiny).unwrap();
    assert!(run.index_bytes() > 10 << 10 && run.index().is_none() && run.has_filter());
    let plain = write(&io, &order, with_index.index(false), &entries).unwrap();
    let run = open(&io, &order).unwrap();
    assert!(run.index_bytes() == 0 && run.index().is_none() && run.has_filter());
    assert_eq!(
        indexed.file_bytes - plain.file_bytes,
        2000_u64.div_ceil(9) * 64
    );
}

#[test]
fn the_place_of_a_leaf_verified_before_the_index_was_loaded_is_noted_later() {
    let order = KeyOrder::Bytewise;
    let io = FaultIo::new();
    let options = RunOptions::default().compression(Compression::None);
    let entries = numbered(300, |_| vec![7; 10]);
    write(&io, &order, options, &entries).unwrap();
    let cache = crate::testing::small_cache::small_cache();
    let run = Run::open_without_filter(&io, Path::new(PATH), 7, order, &cache).unwrap();
    // The only page is a leaf.
    let (leaf, location) = (run.root(), run.root_location());
    let note_missing = || PageSource::note_missing_leaf(&run, 0, location, leaf.bytes());
    run.note_leaf(0, location, leaf);
    note_missing();
    assert!(run.leaf_places().is_none(), "there is no index");
    run.load_filter().unwrap();
    note_missing();
    assert!(
        run.leaf_places()
            .is_some_and(|places| places.get(0).is_some())
    );
}

/// A damaged file either fails with an error that names it and an offset in it, or the damage does
/// not matter.
fn damage(io: &FaultIo, order: &KeyOrder, expected: &[Entry]) -> Option<u64> {
    let read = open(io, order).and_then(|run| {
        let entries = read(&run)?;
        // Opening a run with a damaged index is not an error.
        let index = run.read_index();
        assert!(index.is_ok() || run.index().is_none(), "never believed");
        index.map(|_| entries)
    });
    match read {
        Ok(entries) => {
            assert_eq!(entries, expected, "never a wrong answer");
            None
        }
        Err(Error::CorruptFile { path, offset, .. }) => {
            assert_eq!(path, Path::new(PATH));
            Some(offset)
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_changed_byte_anywhere_is_found_and_named() {
    // Pages of both kinds, compressed and uncompressed.
    let noise = |n: u32| match n % 64 {
        0..32 => vec![n as u8; 60],
        _ => (0..60)
            .map(|i| filter::hash(&[n, i].map(u32::to_le_bytes).concat()) as u8)
            .collect(),
    };
    let entries = numbered(150, noise);
    let step = cases(3, 1) as usize;
    changed_bytes_are_found(options(4096, Compression::Lz4), &entries, step);
    changed_bytes_are_found(options(4096, zstd(3, 2048)), &similar(150), 11);
}

/// Changes every `step`th byte, and cuts the file there.
fn changed_bytes_are_found(options: RunOptions, entries: &[Entry], step: usize) {
    let order = KeyOrder::Bytewise;
    let io = FaultIo::new();
    let meta = write(&io, &order, options, entries).unwrap();
    assert!(meta.leaf_pages > 2 && meta.internal_pages == 1);
    let run = open(&io, &order).unwrap();
    let is_zstd = options.compression != Compression::Lz4;
    assert_eq!(run.dictionary_stored_bytes() > 0, is_zstd);
    drop(run);
    let good = io.read(PATH).unwrap();
    let file = io.open(Path::new(PATH), OpenMode::ReadWrite).unwrap();
    for (at, byte) in good.iter().enumerate().step_by(step) {
        let byte = byte ^ (1 << (at % 8));
        assert_eq!(file.write_at(&[byte], at as u64).unwrap(), 1);
        let named =
            damage(&io, &order, entries).unwrap_or_else(|| panic!("byte {at} was not missed"));
        // The damaged part begins at or before the byte and is no longer than a page. Or it is the
        // footer; then its salt differs from the header's.
        assert!(
            named <= at as u64 && (at as u64) < named + 4096 + 200,
            "byte {at}, named {named}"
        );
        assert_eq!(file.write_at(&[good[at]], at as u64).unwrap(), 1);
    }
    assert_eq!(damage(&io, &order, entries), None);
    for len in (0..good.len() as u64).step_by(step) {
        file.set_len(len).unwrap();
        assert!(damage(&io, &order, entries).is_some(), "cut to {len} bytes");
        file.write_at(&good[len as usize..], len).unwrap();
    }
}

#[test]
fn a_failure_at_any_call_is_reported_and_leaves_no_partial_run() {
    let order = KeyOrder::Bytewise;
    let entries = numbered(9000, |n| n.to_le_bytes().repeat(20));
    let attempt = |io: &FaultIo| {
        write(io, &order, options(4096, Compression::None), &entries)?;
        open(io, &order).and_then(|run| read(&run))
    };
    let counted = FaultIo::new();
    assert_eq!(attempt(&counted).unwrap(), entries);
    // Most calls read pages.
    let calls = counted.calls();
    for call in (0..30).chain((30..calls).step_by(cases(53, 17) as usize)) {
        for fault in [
            Fault::Fail(EIO),
            Fault::TornWrite(ENOSPC),
            Fault::ShortWrite,
        ] {
            let io = FaultIo::new();
            io.fail_call(call, fault);
            match attempt(&io) {
                Ok(read) => assert!(fault == Fault::ShortWrite && read == entries),
                Err(Error::Io { .. }) => assert!(fault != Fault::ShortWrite),
                Err(other) => panic!("call {call}: {other}"),
            }
        }
    }
}
