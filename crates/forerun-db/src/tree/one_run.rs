//! A single run with all pages in the cache, for measurements.

use forerun_core::size::counted;
use std::path::Path;
use std::sync::Arc;

use forerun_core::Pages;

use crate::cache::{CacheOptions, PageCache};
use crate::comparator::{Comparator, KeyOrder};
use crate::io::{OsIo, ReadBackend};
use crate::run::lookup::{Found, ReadContext};
use crate::run::{PageSearch, Run, RunOptions, RunWriter, SearchKey};
use crate::tree::levels::Levels;
use crate::tree::lookup;
use crate::versions::{Kind, SEQUENCE_MAX, Version};
use crate::{Result, Values};

/// A single run. A store looks up keys in its runs the same way.
pub struct OneRun {
    levels: Levels,
    run: Arc<Run>,
    cache: Arc<PageCache>,
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
        let one = OneRun { levels, run, cache };
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
        let context = self.context(how);
        values.reset(keys.len());
        for (position, key) in keys.iter().enumerate() {
            let key = SearchKey::new(key, SEQUENCE_MAX);
            let got = lookup::get(&self.levels, key, &context, |found| {
                if let Found::Value(value) = found {
                    values.set_found(position, value);
                }
            });
            if let Err(error) = got {
                values.set_failed(position, error);
            }
        }
    }

    /// Looks keys up as a batch, and copies the values found.
    pub fn multi_get_values(&self, keys: &[&[u8]], how: RunLookup, values: &mut Values) {
        let context = self.context(how);
        values.reset(keys.len());
        let keys: Vec<SearchKey<'_>> = keys
            .iter()
            .map(|key| SearchKey::new(key, SEQUENCE_MAX))
            .collect();
        lookup::multi_get(
            &self.levels,
            &keys,
            &context,
            |position, found| match found {
                Ok(Found::Value(value)) => values.set_found(position, value),
                Ok(Found::Deleted | Found::Missing) => {}
                Err(error) => values.set_failed(position, error),
            },
        );
    }

    fn context(&self, how: RunLookup) -> ReadContext {
        let (search, use_index) = match how {
            RunLookup::Index => (PageSearch::default(), true),
            RunLookup::Pages(search) => (search, false),
        };
        ReadContext {
            cache: Arc::clone(&self.cache),
            backend: ReadBackend::Auto,
            search,
            use_index,
        }
    }
}
