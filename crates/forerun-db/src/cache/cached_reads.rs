//! Reads of pages that the system has in memory.
//!
//! ```text
//!   to be cached   ──> frame ─ verify ─ publish               uncompressed: read straight to there
//!   not yet        ──> scratch ─ verify once per opening ─ lend to this batch
//! ```
//!
//! What enters the cache is always verified. Only a lookup trusts a page that was verified before,
//! and only while it is neither cached nor read by itself from the device. A page is verified again
//! if the system does not have it, if any check of it has failed, or if it lacks what a lookup
//! wanted. A trusted page that has changed since may give a wrong value; a search of it ends all
//! the same.

use super::driver::{PageChecks, PageLocation, PageSource, Reads};
use super::heap_page::HeapPage;
use super::slots::Published;
use super::{ScratchPage, VerifyChecksums, scratch};
use crate::io::reads::cached::{is_attempt_due, is_worth_an_attempt, read_cached};
use crate::{Error, Result};

/// Reads of parts of a verified page.
pub(crate) struct PartOfPage<'s> {
    source: &'s dyn PageSource,
    page_no: u32,
    /// For which the page is verified.
    opening: u64,
    /// See [`PageSlots::note_wanted`](super::PageSlots::note_wanted).
    last_ghost: u64,
}

impl PartOfPage<'_> {
    /// Fills `buffer` from `offset` of the file. `None`: the system does not have it in memory.
    pub(crate) fn fill(&self, buffer: &mut [u8], offset: u64) -> Option<()> {
        let is_read = read_cached(self.source.file(), buffer, offset);
        if !is_read {
            self.distrust();
        }
        is_read.then_some(())
    }

    /// Notes that the parts were not what the lookup expected: the page is to be verified before
    /// anything is concluded from that.
    pub(crate) fn distrust(&self) {
        self.source.slots().verified().remove(self.page_no);
    }

    /// Whether everything was read from the file that was verified. Ask after the last read.
    pub(crate) fn is_verified(&self) -> bool {
        self.source.file().openings() == self.opening
    }

    /// Notes that the parts are what the lookup wanted.
    pub(crate) fn note_wanted(&self) {
        let slots = self.source.slots();
        slots.note_wanted(self.page_no, self.last_ghost);
    }
}

impl<'g> Reads<'g> {
    /// Reads a page if the system has it in memory; otherwise, or if the read fails, `None`: an
    /// ordinary read finds out.
    pub(super) fn read_cached(
        &self,
        source: &'g dyn PageSource,
        page_no: u32,
        location: PageLocation,
        may_trust: bool,
    ) -> Option<Result<Published<'g>>> {
        // Longer pages are not worth an attempt: the copy alone takes long.
        let fits_a_frame = location.raw_len as usize <= self.cache.frames.page_bytes();
        if !fits_a_frame || source.is_direct() || !is_worth_an_attempt() {
            return None;
        }
        let corrupt = |reason| Error::corrupt_file(source.path(), location.offset, reason);
        let slots = source.slots();
        let read = if !source.is_leaf(page_no) || slots.is_worth_caching(page_no, self.last_ghost())
        {
            self.read_to_cache(source, page_no, location)
        } else {
            self.read_to_scratch(source, page_no, location, may_trust)
        };
        if !matches!(read, Some(Ok(_))) {
            // It is damaged, or the device is to be read.
            slots.verified().remove(page_no);
        }
        read.map(|read| read.map_err(corrupt))
    }

    /// Reads a page and puts it into the cache.
    fn read_to_cache(
        &self,
        source: &'g dyn PageSource,
        page_no: u32,
        location: PageLocation,
    ) -> Option<Result<Published<'g>, &'static str>> {
        let (stored_len, raw_len) = (location.stored_len as usize, location.raw_len as usize);
        let (file, offset) = (source.file(), location.offset);
        let opening = file.openings();
        let mut page = self.cache.allocate(raw_len, self.pin)?;
        let checked = if source.is_raw(location) && page.room().len() >= stored_len {
            let stored = page.bytes_mut(stored_len);
            if !read_cached(file, stored, offset) {
                return None;
            }
            source
                .check_raw(PageChecks::Full, location, stored)
                .map(|()| self.note_leaf(source, page_no, location, &stored[..raw_len]))
        } else {
            let mut stored = self.scratch(stored_len)?;
            let is_read = read_cached(file, stored.bytes_mut(), offset);
            let page = page.bytes_mut(raw_len);
            let checked =
                is_read.then(|| source.unstore(PageChecks::Full, location, stored.bytes(), page));
            scratch::put_back([stored]);
            checked?.map(|()| self.note_leaf(source, page_no, location, page))
        };
        Some(checked.map(|()| {
            self.note_verified(source, page_no, opening);
            self.publish(source, page_no, raw_len, page)
        }))
    }

    /// Reads a page for this batch only.
    fn read_to_scratch(
        &self,
        source: &'g dyn PageSource,
        page_no: u32,
        location: PageLocation,
        may_trust: bool,
    ) -> Option<Result<Published<'g>, &'static str>> {
        let (stored_len, raw_len) = (location.stored_len as usize, location.raw_len as usize);
        let file = source.file();
        // Before the read: see `opening_of`.
        let verified = source
            .slots()
            .verified()
            .opening_of(page_no)
            .filter(|_| may_trust && self.trusts(source));
        let opening = file.openings();
        let mut stored = self.scratch(stored_len)?;
        if !read_cached(file, stored.bytes_mut(), location.offset) {
            scratch::put_back([stored]);
            return None;
        }
        let checks = match verified {
            Some(verified) if verified == file.openings() => PageChecks::LeafHeader,
            _ => PageChecks::Full,
        };
        let checked = if source.is_raw(location) {
            let checked = source.check_raw(checks, location, stored.bytes());
            stored.set_len(raw_len);
            checked.map(|()| stored)
        } else {
            let mut page = self.scratch(raw_len)?;
            let checked = source.unstore(checks, location, stored.bytes(), page.bytes_mut());
            scratch::put_back([stored]);
            checked.map(|()| page)
        };
        Some(checked.map(|page| {
            if checks == PageChecks::Full {
                self.note_leaf(source, page_no, location, page.bytes());
                self.note_verified(source, page_no, opening);
            } else {
                source.note_missing_leaf(page_no, location, page.bytes());
            }
            source.slots().note_wanted(page_no, self.last_ghost());
            Published::Uncached {
                bytes: self.pin.lend(page),
                is_trusted: checks == PageChecks::LeafHeader,
            }
        }))
    }

    /// Reads of parts of a page, if it was verified, is not to be cached, and the system may have
    /// it in memory.
    pub(crate) fn part_of_page<'s>(
        &self,
        source: &'s dyn PageSource,
        page_no: u32,
    ) -> Option<PartOfPage<'s>> {
        if !self.trusts(source) || !self.may_read_cached() {
            return None;
        }
        let opening = source.slots().verified().opening_of(page_no)?;
        let last_ghost = self.last_ghost();
        let is_wanted = !source.slots().is_worth_caching(page_no, last_ghost) && is_attempt_due();
        is_wanted.then_some(PartOfPage {
            source,
            page_no,
            opening,
            last_ghost,
        })
    }

    /// The last ghost entry before these reads noted theirs: two lookups of one batch do not make a
    /// page one that is wanted again.
    fn last_ghost(&self) -> u64 {
        let last = self.last_ghost_before.get();
        let last = last.unwrap_or_else(|| self.cache.ghosts.last());
        self.last_ghost_before.set(Some(last));
        last
    }

    /// A buffer for parts of pages.
    pub(crate) fn scratch_page(&self) -> ScratchPage {
        ScratchPage::new(self.cache.frames.stride_bytes())
    }

    fn scratch(&self, len: usize) -> Option<HeapPage> {
        scratch::take(len, self.cache.frames.stride_bytes())
    }

    /// Whether these reads trust pages that were verified before.
    fn trusts(&self, source: &dyn PageSource) -> bool {
        self.verify_checksums == VerifyChecksums::Once && source.may_be_trusted()
    }

    /// Notes a verified leaf's place, before it is noted that it has been verified.
    fn note_leaf(
        &self,
        source: &dyn PageSource,
        page_no: u32,
        location: PageLocation,
        page: &[u8],
    ) {
        if self.trusts(source) && source.is_leaf(page_no) {
            source.note_leaf(page_no, location, page);
        }
    }

    /// Notes that a page has been verified, if the file has not been opened again since it had been
    /// opened so often.
    fn note_verified(&self, source: &dyn PageSource, page_no: u32, opening: u64) {
        if self.trusts(source) && source.file().openings() == opening {
            source.slots().verified().add(page_no, opening);
        }
    }
}
