//! One run by itself, all of its pages in memory: for measurements.

use std::path::Path;
use std::sync::Arc;

use forerun_core::{interleave, suspend};

use super::page::{LINE_BYTES, Page, PageKind};
use super::reader::Run;
use super::search::{self, Step};
use super::{RowSearch, RunOptions, RunWriter};
use crate::comparator::{Comparator, KeyOrder};
use crate::io::OsIo;
use crate::versions::{Kind, MAX_SEQUENCE, Version};
use crate::{Result, Values};

/// A run whose pages are all in memory.
pub struct OneRun {
    run: Run,
    bytes: Vec<u8>,
    start: usize,
    stride: usize,
}

impl OneRun {
    /// Writes a run of what `fill` gives, in order, and opens it.
    pub fn build(
        path: &Path,
        comparator: Arc<dyn Comparator>,
        options: RunOptions,
        fill: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<OneRun> {
        let name = comparator.name().to_owned();
        let order = KeyOrder::new(comparator);
        let mut writer = RunWriter::create(&OsIo, path, &order, &name, options)?;
        fill(&mut |key, value| {
            writer.add(Version {
                key,
                sequence: 1,
                kind: Kind::Value,
                value,
            })
        })?;
        writer.finish()?;
        let cache = Arc::new(crate::cache::PageCache);
        let run = Run::open(&OsIo, path, 1, order, &cache)?;
        let pages = run.meta().pages() as usize;
        let stride = (run.meta().page_bytes as usize).next_multiple_of(LINE_BYTES);
        let mut bytes = vec![0u8; pages * stride + LINE_BYTES];
        let start = bytes.as_ptr().align_offset(LINE_BYTES);
        let mut stored = Vec::new();
        let mut page = Vec::new();
        let mut level = vec![run.root().bytes().to_vec()];
        let mut number = pages - 1;
        bytes[start + number * stride..][..level[0].len()].copy_from_slice(&level[0]);
        while !level.is_empty() {
            let mut next = Vec::new();
            for above in &level {
                let above = Page::new(above);
                if above.kind() == PageKind::Leaf {
                    continue;
                }
                for row in 0..above.rows() {
                    let (child, location) = above.child(row);
                    run.read_page(location, &mut stored, &mut page)?;
                    number = child as usize;
                    bytes[start + number * stride..][..page.len()].copy_from_slice(&page);
                    if Page::new(&page).kind() == PageKind::Internal {
                        next.push(page.clone());
                    }
                }
            }
            level = next;
        }
        Ok(OneRun {
            run,
            bytes,
            start,
            stride,
        })
    }

    /// What there is to tell.
    pub fn facts(&self) -> String {
        let meta = self.run.meta();
        format!(
            "{} entries, {} leaves, {} internal pages, {} bytes, root {} rows",
            meta.entries,
            meta.leaf_pages,
            meta.internal_pages,
            meta.file_bytes,
            self.run.root().rows()
        )
    }

    #[inline(always)]
    fn page(&self, number: u32) -> &[u8] {
        let at = self.start + number as usize * self.stride;
        &self.bytes[at..at + self.stride]
    }

    /// One.
    #[inline]
    pub fn get(&self, key: &[u8], search: RowSearch) -> Option<&[u8]> {
        let order = self.run.order();
        let mut page = self.run.root();
        while page.kind() == PageKind::Internal {
            let row = search::child(page, order, key, MAX_SEQUENCE, search);
            page = Page::new(self.page(page.child_number(row)));
        }
        let row = search::find(page, order, key, MAX_SEQUENCE, search)?;
        Some(page.value(row))
    }

    /// Many.
    pub fn multi_get<'v>(
        &'v self,
        keys: &[&[u8]],
        search: RowSearch,
        mut sink: impl FnMut(usize, Option<&'v [u8]>),
    ) {
        interleave::<24, _>(
            keys.iter().map(|key| self.find(key, search)),
            |position, value| sink(position, value),
        );
    }

    /// Many, copied.
    pub fn multi_get_values(&self, keys: &[&[u8]], search: RowSearch, values: &mut Values) {
        values.reset(keys.len());
        self.multi_get(keys, search, |position, value| {
            if let Some(value) = value {
                values.set_found(position, value)
            }
        });
    }

    /// One after the other, copied.
    pub fn get_values(&self, keys: &[&[u8]], search: RowSearch, values: &mut Values) {
        values.reset(keys.len());
        for (position, key) in keys.iter().enumerate() {
            if let Some(value) = self.get(key, search) {
                values.set_found(position, value)
            }
        }
    }

    async fn find<'v>(&'v self, key: &[u8], search: RowSearch) -> Option<&'v [u8]> {
        let order = self.run.order();
        let mut page = self.run.root();
        while page.kind() == PageKind::Internal {
            let row = search::child(page, order, key, MAX_SEQUENCE, search);
            let bytes = self.page(page.child_number(row));
            Page::prefetch_start(bytes);
            suspend().await;
            page = Page::new(bytes);
        }
        if search != RowSearch::Heads {
            let row = search::find(page, order, key, MAX_SEQUENCE, search)?;
            return Some(page.value(row));
        }
        let Step::Group(group) = search::group_of(page, order, key) else {
            return None;
        };
        page.prefetch_group(group.index);
        suspend().await;
        let tied = search::tied(page, key, group);
        if tied.is_empty() {
            return None;
        }
        page.prefetch_record(tied.start);
        suspend().await;
        let row = search::find_among(page, order, key, MAX_SEQUENCE, tied)?;
        Some(page.value(row))
    }
}
