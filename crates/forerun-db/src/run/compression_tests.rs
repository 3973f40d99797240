//! Dictionaries: when a run has one, what it saves, and what becomes of a damaged one.

use std::path::Path;
use std::sync::Arc;

use forerun_core::Pages;
use forerun_core::sync::SIMULATED;
use proptest::prelude::*;

use super::codec::{Codec, Dictionary, decompress};
use super::cursor::RunCursor;
use super::file_tests::{PATH, check, name, numbered, open, options, version, write};
use super::page_tests::Entry;
use super::stored::checksum;
use super::{Compression, RunWriter, ZstdOptions, filter};
use crate::Error;
use crate::cache::{CacheOptions, PageCache};
use crate::comparator::KeyOrder;
use crate::io::fault::FaultIo;
use crate::testing::small_cache::small_cache;
use crate::versions::VersionCursor;

pub(super) fn zstd(level: i32, max_dict_bytes: usize) -> Compression {
    Compression::Zstd(ZstdOptions {
        level,
        max_dict_bytes,
    })
}

pub(super) fn compressions() -> impl Strategy<Value = Compression> {
    let dictionaries = prop_oneof![Just(0), Just(256), 256..20_000_usize];
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Lz4),
        (1..6, dictionaries).prop_map(|(level, bytes)| zstd(level, bytes)),
    ]
}

/// Entries of 25 kinds. Those of one kind have most of their bytes in common, and come in different
/// small pages.
pub(super) fn similar(count: u32) -> Vec<Entry> {
    numbered(count, |n| {
        let words = (0..40).map(|at| filter::hash(&[(n % 25) as u8, at]));
        let mut value: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        value.extend(n.to_le_bytes());
        value
    })
}

#[test]
fn a_dictionary_is_kept_if_it_saves_more_than_it_takes() {
    let order = KeyOrder::Bytewise;
    let written = |compression, entries: &[Entry]| {
        let io = FaultIo::new();
        let meta = write(&io, &order, options(4096, compression), entries).unwrap();
        check(&order, options(4096, compression), entries);
        let run = open(&io, &order).unwrap();
        assert_eq!(io.read(PATH).unwrap()[8], meta.version() as u8);
        (
            meta.version(),
            run.dictionary_stored_bytes(),
            meta.file_bytes,
        )
    };
    let many = similar(2000);
    let (version, none, without) = written(zstd(3, 0), &many);
    assert_eq!((version, none), (3, 0));
    let (version, dictionary, with) = written(zstd(3, 16 << 10), &many);
    assert!(version == 3 && (1000..=16 << 10).contains(&dictionary));
    assert!(with < without * 3 / 4, "{with} with, {without} without");
    // Too few pages for the trainer, which wants five, and for what a dictionary takes.
    for few in [1, 20, 40] {
        let (version, dictionary, _) = written(zstd(3, 16 << 10), &many[..few]);
        assert_eq!((version, dictionary), (3, 0), "{few} entries");
    }
    let (version, dictionary, _) = written(Compression::Lz4, &many);
    assert_eq!((version, dictionary), (2, 0), "every release reads it");
}

#[test]
fn a_writer_holds_no_more_leaves_than_it_needs_for_the_dictionary() {
    let io = FaultIo::new();
    let (order, path) = (KeyOrder::Bytewise, Path::new(PATH));
    let options = options(4096, zstd(1, 256));
    let mut writer = RunWriter::create(&io, path, &order, &name(&order), options).unwrap();
    let mut held = 0;
    for entry in &similar(400) {
        writer.add(version(entry)).unwrap();
        if writer.written_bytes() == 32 {
            held += entry.key.len() + entry.value.as_ref().map_or(0, Vec::len);
        }
    }
    assert!((15_000..=256 * 100 + 4096).contains(&held), "{held}");
    writer.finish().unwrap();
}

#[test]
fn a_dictionary_is_trained_only_if_the_budget_has_room_for_the_trainer() {
    let (io, order) = (FaultIo::new(), KeyOrder::Bytewise);
    let (path, options) = (Path::new(PATH), options(4096, zstd(3, 16 << 10)));
    let dictionary_bytes = |cache: &Arc<PageCache>| {
        let mut writer = RunWriter::create(&io, path, &order, &name(&order), options).unwrap();
        writer.limit_dictionary(cache, &Arc::default());
        for entry in &similar(2000) {
            writer.add(version(entry)).unwrap();
        }
        writer.finish().unwrap();
        open(&io, &order).unwrap().dictionary_stored_bytes()
    };
    let large = PageCache::new(CacheOptions {
        capacity_bytes: 32 << 20,
        page_bytes: 16 << 10,
        pages: Pages::Small,
    });
    assert!(dictionary_bytes(&large.unwrap()) >= 1000);
    if !SIMULATED {
        // The trainer of a simulated store is said to take little.
        assert_eq!(dictionary_bytes(&small_cache()), 0, "it takes 12 MiB");
    }
}

#[test]
fn a_dictionary_of_other_bytes_or_length_is_an_error_even_with_a_right_checksum() {
    let order = KeyOrder::Bytewise;
    let (io, entries) = (FaultIo::new(), similar(300));
    write(&io, &order, options(4096, zstd(3, 2048)), &entries).unwrap();
    let good = io.read(PATH).unwrap();
    let run = open(&io, &order).unwrap();
    let (salt, len) = (run.salt(), run.dictionary_stored_bytes());
    assert!(len > 256);
    for at in (0..len).step_by(7) {
        let mut bad = good.clone();
        bad[32 + at] ^= 0x55;
        let sum = checksum(salt, 32, &bad[32..32 + len + 1]);
        bad[32 + len + 1..][..8].copy_from_slice(&sum.to_le_bytes());
        io.write(PATH, &bad);
        // It may be another dictionary, with which pages mean something else.
        let walked = open(&io, &order).and_then(|run| {
            let mut cursor = RunCursor::past_cache(&run);
            cursor.seek_first()?;
            while cursor.at().is_some() {
                cursor.next()?;
            }
            Ok(())
        });
        match walked {
            Ok(()) | Err(Error::CorruptFile { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert!(Dictionary::decode(&vec![1; (128 << 10) + 1]).is_err());
    // What begins like a dictionary and is none is damage, not lack of memory.
    let begun = [&[0x37, 0xa4, 0x30, 0xec][..], &[0xff; 60]].concat();
    assert!(Dictionary::decode(&begun).is_err());
}

proptest! {
    #[test]
    fn arbitrary_bytes_decompress_within_the_page_or_not_at_all(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        dictionary in prop::collection::vec(any::<u8>(), 0..300),
        len in 0..2000_usize,
    ) {
        let dictionary = Dictionary::decode(&dictionary).unwrap();
        let frame = [&[0x28, 0xb5, 0x2f, 0xfd][..], &bytes].concat();
        for (codec, bytes) in [(Codec::Lz4, &bytes), (Codec::Zstd, &bytes), (Codec::Zstd, &frame)] {
            let mut page = vec![7; len + 1];
            // It is either the whole page or an error, and never more than the page.
            let _ = decompress(codec, bytes, dictionary.as_ref(), &mut page[..len]);
            prop_assert_eq!(page[len], 7);
        }
    }
}
