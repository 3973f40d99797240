//! A single run with all pages in the cache, for measurements.

use forerun_core::size::counted;
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use forerun_core::{Pages, block_on_with, interleave_with};

use crate::cache::driver::Reads;
use crate::cache::{self, CacheOptions, PageCache, VerifyChecksums};
use crate::comparator::{Comparator, KeyOrder};
use crate::io::{OsIo, ReadBackend};
use crate::run::lookup::{Found, ReadContext, find_in};
use crate::run::plain_lookup::find_by;
use crate::run::{PageSearch, Probe, Run, RunOptions, RunWriter, SearchKey};
use crate::tree::levels::Levels;
use crate::tree::lookup::{self, BLOCK_KEYS, CHUNK_KEYS, IN_FLIGHT};
use crate::versions::{Kind, SEQUENCE_MAX, Version};
use crate::{Error, Result, Values};

/// A single run. A store looks up keys in its runs the same way.
pub struct OneRun {
    levels: Levels,
    run: Arc<Run>,
    cache: Arc<PageCache>,
    reading: ReadContext,
}

/// How a lookup finds its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLookup {
    /// By the run's index; what that cannot answer, by the default search.
    Index,
    /// By a search through the pages from the root.
    Pages(PageSearch),
}

/// Adds an entry, in order.
pub type Add<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

impl OneRun {
    /// Writes a run of the entries that `fill` adds, in order, and opens it.
    ///
    /// # Errors
    /// Errors of writing or reading the run, and those of `fill`.
    pub fn build(
        path: &Path,
        comparator: Arc<dyn Comparator>,
        options: RunOptions,
        fill: impl FnOnce(Add<'_>) -> Result<()>,
    ) -> Result<OneRun> {
        let name = comparator.name().to_owned();
        let order = KeyOrder::new(comparator);
        let mut writer = RunWriter::create(&OsIo, path, &order, &name, options)?;
        // The first key of each leaf.
        let mut firsts = Vec::new();
        fill(&mut |key, value| {
            let leaves = writer.leaves();
            writer.add(Version {
                key,
                sequence: 1,
                kind: Kind::Value,
                value,
            })?;
            if firsts.is_empty() || writer.leaves() > leaves {
                firsts.push(key.to_vec());
            }
            Ok(())
        })?;
        let meta = writer.finish()?;
        // All pages at full size, plus as much again for larger pages and for the cache's free
        // frames.
        let page_bytes = options.page_limit_bytes();
        let all_bytes = meta.pages() as usize * (page_bytes + 128) + meta.raw_bytes as usize;
        let cache = PageCache::new(CacheOptions {
            capacity_bytes: all_bytes + (64 << 20),
            page_bytes,
            pages: Pages::Huge,
        })?;
        let run = Arc::new(Run::open(&OsIo, path, 1, order.clone(), &cache)?);
        let levels = Levels::with_runs(order, [(1, Arc::clone(&run))]);
        let reading = ReadContext {
            cache: Arc::clone(&cache),
            backend: ReadBackend::Auto,
            verify_checksums: VerifyChecksums::default(),
        };
        let one = OneRun {
            levels,
            run,
            cache,
            reading,
        };
        one.read_all(&firsts)?;
        Ok(one)
    }

    /// Reads every page into the cache, by looking up one key of each leaf.
    fn read_all(&self, keys: &[Vec<u8>]) -> Result<()> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut values = Values::new();
        for keys in keys.chunks(1024) {
            self.multi_get_values(keys, RunLookup::Pages(PageSearch::default()), &mut values);
            for value in values.iter() {
                value?;
            }
        }
        Ok(())
    }

    /// A description for people.
    pub fn facts(&self) -> String {
        let meta = self.run.meta();
        format!(
            "{} and {}, {} bytes in the file; cache: {}",
            counted(meta.leaf_pages, "leaf page"),
            counted(meta.internal_pages, "internal page"),
            meta.file_bytes,
            self.cache.stats()
        )
    }

    /// Looks keys up one at a time and copies the values found.
    pub fn get_values(&self, keys: &[&[u8]], how: RunLookup, values: &mut Values) {
        values.reset(keys.len());
        for (position, key) in keys.iter().enumerate() {
            let key = SearchKey::new(key, SEQUENCE_MAX);
            let mut take = |found: Found<'_>| copy(Ok(found), position, values);
            let got = match how {
                RunLookup::Index => lookup::get(&self.levels, key, &self.reading, take),
                RunLookup::Pages(search) => self.search(&key, search, &mut take),
            };
            if let Err(error) = got {
                values.set_failed(position, error);
            }
        }
    }

    /// Looks keys up as a batch, and copies the values found.
    pub fn multi_get_values(&self, keys: &[&[u8]], how: RunLookup, values: &mut Values) {
        values.reset(keys.len());
        let keys: Vec<SearchKey<'_>> = keys
            .iter()
            .map(|key| SearchKey::new(key, SEQUENCE_MAX))
            .collect();
        let take = |position, found: Result<Found<'_>>| copy(found, position, values);
        match how {
            RunLookup::Index => lookup::multi_get(&self.levels, &keys, &self.reading, take),
            RunLookup::Pages(search) => self.search_all(&keys, search, take),
        }
    }

    /// How often the searches of pages for these keys suspend, all together: each time they wait
    /// for lines that they have prefetched.
    ///
    /// # Errors
    /// A failed search.
    pub fn count_suspensions(&self, keys: &[&[u8]], search: PageSearch) -> Result<u64> {
        let pin = cache::pin();
        let reads = Reads::new(&self.cache, &pin, ReadBackend::Auto);
        let runs = [&*self.run];
        let mut suspensions = 0;
        for key in keys {
            let key = SearchKey::new(key, SEQUENCE_MAX);
            let found = match search {
                PageSearch::KeyPrefixes => {
                    count_pending(&reads, find_in(&runs, &key, &reads), &mut suspensions)
                }
                search => {
                    let lookup = find_by(runs[0], &key, search, &reads);
                    count_pending(&reads, lookup, &mut suspensions)
                }
            };
            found.map_err(|error| *error)?;
        }
        Ok(suspensions)
    }

    /// Finds a key by a search of pages. The index only rules it out.
    fn search(
        &self,
        key: &SearchKey<'_>,
        search: PageSearch,
        take: impl FnOnce(Found<'_>),
    ) -> Result<()> {
        let run = &*self.run;
        let pin = cache::pin();
        run.prefetch_probe(key.hash, &pin);
        let reads = Reads::new(&self.cache, &pin, ReadBackend::Auto);
        let found = match search {
            _ if run.probe(key.hash, &pin) == Probe::Absent => Ok(Found::Missing),
            PageSearch::KeyPrefixes => block_on_with(&reads, find_in(&[run], key, &reads)),
            search => block_on_with(&reads, find_by(run, key, search, &reads)),
        };
        take(found.map_err(|error| *error)?);
        Ok(())
    }

    /// [`search`](Self::search) for a batch, with as many keys in a block and lookups in flight as
    /// in a store.
    fn search_all(
        &self,
        keys: &[SearchKey<'_>],
        search: PageSearch,
        mut take: impl FnMut(usize, Result<Found<'_>>),
    ) {
        let run = &*self.run;
        let runs = [run];
        let mut positions = Vec::with_capacity(CHUNK_KEYS);
        for (chunk, chunk_keys) in keys.chunks(CHUNK_KEYS).enumerate() {
            positions.clear();
            let pin = cache::pin();
            let first = chunk * CHUNK_KEYS;
            for (block, block_keys) in chunk_keys.chunks(BLOCK_KEYS).enumerate() {
                for key in block_keys {
                    run.prefetch_probe(key.hash, &pin);
                }
                for (at, key) in block_keys.iter().enumerate() {
                    let position = first + block * BLOCK_KEYS + at;
                    if run.probe(key.hash, &pin) == Probe::Absent {
                        take(position, Ok(Found::Missing));
                    } else {
                        positions.push(position);
                    }
                }
            }
            let reads = Reads::new(&self.cache, &pin, ReadBackend::Auto);
            let wanted = positions.iter().map(|&position| &keys[position]);
            let answer = |at: usize, found: Result<Found<'_>, Box<Error>>| {
                take(positions[at], found.map_err(|error| *error));
            };
            if search == PageSearch::KeyPrefixes {
                let lookups = wanted.map(|key| find_in(&runs, key, &reads));
                interleave_with::<IN_FLIGHT, _, _>(&reads, lookups, answer);
            } else {
                let lookups = wanted.map(|key| find_by(run, key, search, &reads));
                interleave_with::<IN_FLIGHT, _, _>(&reads, lookups, answer);
            }
        }
    }
}

/// Runs a lookup to its end, and counts how often it is pending.
fn count_pending<F: Future>(reads: &Reads<'_>, lookup: F, pending: &mut u64) -> F::Output {
    let mut lookup = pin!(lookup);
    let counted = poll_fn(|context| {
        let polled = lookup.as_mut().poll(context);
        *pending += u64::from(polled.is_pending());
        polled
    });
    block_on_with(reads, counted)
}

fn copy(found: Result<Found<'_>>, position: usize, values: &mut Values) {
    match found {
        Ok(Found::Value(value)) => values.set_found(position, value),
        Ok(Found::Deleted | Found::Missing) => {}
        Err(error) => values.set_failed(position, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytewise, ReverseBytewise};

    #[test]
    fn every_lookup_finds_every_key_and_none_between() {
        const KEYS: u32 = 3_000;
        let key = |number: u32| format!("a prefix of all keys {number:06}").into_bytes();
        let orders: [Arc<dyn Comparator>; 2] = [Arc::new(Bytewise), Arc::new(ReverseBytewise)];
        for comparator in orders {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("one.run");
            let mut numbers: Vec<u32> = (0..KEYS).map(|number| 2 * number).collect();
            if comparator.compare(b"a", b"b").is_gt() {
                numbers.reverse();
            }
            let options = RunOptions::default().page_bytes(RunOptions::PAGE_BYTES_MIN);
            let run = OneRun::build(&path, comparator, options, |add| {
                (numbers.iter()).try_for_each(|&number| add(&key(number), &number.to_le_bytes()))
            })
            .unwrap();
            let wanted: Vec<_> = (0..2 * KEYS + 2)
                .map(|n| n * 379 % (2 * KEYS + 2))
                .collect();
            let keys: Vec<_> = wanted.iter().map(|&number| key(number)).collect();
            let keys: Vec<_> = keys.iter().map(Vec::as_slice).collect();
            let mut values = Values::new();
            let mut check = |how: RunLookup, is_batch: bool| {
                if is_batch {
                    run.multi_get_values(&keys, how, &mut values)
                } else {
                    run.get_values(&keys, how, &mut values)
                }
                for (&number, value) in wanted.iter().zip(values.iter()) {
                    let is_there = number % 2 == 0 && number < 2 * KEYS;
                    let expected = is_there.then(|| number.to_le_bytes());
                    let expected = expected.as_ref().map(|value| &value[..]);
                    assert_eq!(value.unwrap(), expected, "{how:?}, {number}");
                }
            };
            for is_batch in [false, true] {
                check(RunLookup::Index, is_batch);
                for search in PageSearch::ALL {
                    check(RunLookup::Pages(search), is_batch);
                }
            }
            // Every search waits for the leaf, and none for more than a few lines of each page.
            for search in PageSearch::ALL {
                let suspensions = run.count_suspensions(&keys, search).unwrap();
                let per_key = suspensions as f64 / keys.len() as f64;
                assert!((1.0..30.0).contains(&per_key), "{search}: {per_key}");
            }
        }
    }
}
