//! Pages filled with their own numbers, in files that count calls and fail on demand.

use std::path::Path;

use forerun_core::{interleave_with, suspend};

use super::super::driver::{PageSource, Reads};
use super::super::*;
use crate::cache::driver::{PageChecks, PageLocation};
use crate::io::fault::FaultIo;
use crate::io::{Io, IoFile, OpenMode, OsIo, ReadBackend};

pub(super) const PAGE: usize = 2048;

/// A source of pages. The bytes of each page are its number.
pub(super) struct Numbered {
    pub(super) file: Box<dyn IoFile>,
    pub(super) slots: PageSlots,
    /// Length and offset of each page.
    pub(super) lens: Vec<usize>,
    pub(super) offsets: Vec<u64>,
    /// The first page that is not a leaf.
    pub(super) leaf_pages: u32,
}

/// Bytes before each page in the file, for its number.
pub(super) const HEAD: usize = 8;

pub(super) fn contents(lens: &[usize]) -> (Vec<u8>, Vec<u64>) {
    let mut bytes = Vec::new();
    let mut offsets = Vec::new();
    for (number, len) in lens.iter().enumerate() {
        offsets.push(bytes.len() as u64);
        bytes.extend_from_slice(&(number as u64).to_le_bytes());
        bytes.resize(bytes.len() + len, number as u8);
    }
    (bytes, offsets)
}

impl Numbered {
    pub(super) fn new(cache: &Arc<PageCache>, file: Box<dyn IoFile>, lens: Vec<usize>) -> Self {
        let offsets = contents(&lens).1;
        Numbered {
            file,
            slots: PageSlots::new(cache, lens.len()),
            lens,
            offsets,
            leaf_pages: u32::MAX,
        }
    }

    pub(super) fn modelled(io: &FaultIo, cache: &Arc<PageCache>, lens: Vec<usize>) -> Self {
        io.write("/pages", &contents(&lens).0);
        let file = io.open("/pages".as_ref(), OpenMode::Read).unwrap();
        Numbered::new(cache, file, lens)
    }

    pub(super) fn real(dir: &Path, cache: &Arc<PageCache>, lens: Vec<usize>) -> Self {
        std::fs::write(dir.join("pages"), contents(&lens).0).unwrap();
        let file = OsIo.open(&dir.join("pages"), OpenMode::Read).unwrap();
        Numbered::new(cache, file, lens)
    }

    pub(super) fn location(&self, page_no: u32) -> PageLocation {
        let len = self.lens[page_no as usize];
        PageLocation {
            offset: self.offsets[page_no as usize],
            stored_len: (HEAD + len) as u32,
            raw_len: len as u32,
        }
    }

    pub(super) fn is_page(&self, page_no: u32, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.lens[page_no as usize]);
        let own = bytes.iter().all(|byte| *byte == page_no as u8);
        assert!(own, "page {page_no} is {:?}…", &bytes[..8]);
    }
}

impl PageSource for Numbered {
    fn file(&self) -> &dyn IoFile {
        &*self.file
    }
    fn path(&self) -> &Path {
        Path::new("/pages")
    }
    fn slots(&self) -> &PageSlots {
        &self.slots
    }
    fn check_location(&self, _: PageLocation) -> Result<()> {
        Ok(())
    }
    fn is_leaf(&self, page_no: u32) -> bool {
        page_no < self.leaf_pages
    }
    fn may_be_trusted(&self) -> bool {
        true
    }
    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }
    fn head(&self, page: &[u8]) -> u64 {
        head_of(page[0])
    }
    fn note_leaf(&self, _: u32, _: PageLocation, _: &[u8]) {}
    fn note_missing_leaf(&self, _: u32, _: PageLocation, _: &[u8]) {}
    fn is_raw(&self, _: PageLocation) -> bool {
        false
    }
    fn check_raw(&self, _: PageChecks, _: PageLocation, _: &[u8]) -> Result<(), &'static str> {
        Err("its number comes first")
    }
    fn unstore(
        &self,
        checks: PageChecks,
        location: PageLocation,
        stored: &[u8],
        into: &mut [u8],
    ) -> Result<(), &'static str> {
        let (head, page) = stored.split_first_chunk::<HEAD>().ok_or("short")?;
        let number = u64::from_le_bytes(*head) as usize;
        if self.offsets.get(number) != Some(&location.offset) {
            return Err("another page");
        }
        if checks == PageChecks::Full && page.iter().any(|byte| *byte != number as u8) {
            return Err("torn");
        }
        into.copy_from_slice(page);
        Ok(())
    }
}

pub(super) fn cache_of(frames: usize) -> Arc<PageCache> {
    PageCache::new(CacheOptions {
        capacity_bytes: frames * (PAGE + CACHE_LINE_BYTES),
        page_bytes: PAGE,
        pages: Pages::Small,
    })
    .unwrap()
}

/// The head of a page with this number.
fn head_of(page_no: u8) -> u64 {
    u64::from(page_no) << 40 | 1
}

/// Gets a page as a lookup does: from the cache or from the file.
pub(super) async fn page<'g>(
    reads: &Reads<'g>,
    source: &'g Numbered,
    page_no: u32,
) -> Result<&'g [u8]> {
    let location = source.location(page_no);
    let len = location.raw_len as usize;
    match reads.resident_with_head(&source.slots, page_no) {
        Some((bytes, head)) => {
            assert_eq!(head, head_of(page_no as u8));
            // The rest of the frame does not belong to the page.
            Ok(&bytes[..len])
        }
        None => reads.page(source, page_no, location).await,
    }
}

/// Gets and checks pages, 16 at a time, and returns the positions of those that failed.
pub(super) fn take_all(source: &Numbered, pages: &[u32], backend: ReadBackend) -> Vec<usize> {
    let mut failed = Vec::new();
    let mut first = 0;
    while first < pages.len() {
        let pin = pin();
        let reads = Reads::new(source.slots.cache(), &pin, backend);
        let mut begun = first;
        let lookups = std::iter::from_fn(|| {
            let page_no = *pages.get(begun)?;
            if begun > first && reads.should_end_batch() {
                return None;
            }
            begun += 1;
            let reads = &reads;
            Some(async move {
                let bytes = page(reads, source, page_no).await?;
                source.is_page(page_no, bytes);
                // It stays while others are evicted.
                suspend().await;
                suspend().await;
                source.is_page(page_no, bytes);
                Ok::<(), Error>(())
            })
        });
        interleave_with::<16, _, _>(&reads, lookups, |at, result| {
            if result.is_err() {
                failed.push(first + at);
            }
        });
        first = begun;
        let should_end_batch = reads.should_end_batch();
        drop(reads);
        drop(pin);
        if should_end_batch {
            reclaim();
        }
    }
    failed.sort_unstable();
    failed
}

/// Page numbers in random order.
pub(super) fn shuffled(count: u32, of: u32, seed: u64) -> Vec<u32> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            (state >> 33) as u32 % of
        })
        .collect()
}

/// Waits until every evicted frame is free. Readers of other tests may delay that.
pub(super) fn wait_idle(cache: &PageCache) {
    for _ in 0..20_000 {
        if cache.lock().waiting_bytes == 0 && cache.heap_page_bytes.load(Ordering::Relaxed) == 0 {
            return;
        }
        reclaim();
        std::thread::sleep(std::time::Duration::from_micros(500));
    }
    panic!("evicted frames did not become free: {:?}", cache.stats());
}

/// Gets pages so slowly that each finds a free frame.
pub(super) fn scan(source: &Numbered, pages: impl Iterator<Item = u32>) {
    let pages: Vec<_> = pages.collect();
    for part in pages.chunks(4) {
        wait_idle(source.slots.cache());
        take_all(source, part, ReadBackend::Sync);
    }
}
