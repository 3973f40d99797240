//! The page at which a cursor is positioned: held in the cache, or copied.
//!
//! ```text
//!   in the cache   held there, if the cache has a permit for it    │ frame │ <── cursor
//!                  else copied                                     │ frame │ ··> │ buffer │ <── cursor
//!   else           read through the cache, or past it, and copied
//! ```

use forerun_core::block_on_with;

use super::page::Page;
use super::reader::Run;
use super::stored::PageLocation;
use crate::Result;
use crate::cache::driver::Reads;
use crate::cache::{self, HeldPage, HoldPermit};
use crate::io::ReadBackend;

/// Bytes of a page buffer that a cursor keeps when it is reused, or moves to a page that needs less
/// than a quarter of them.
const KEPT_PAGE_BYTES: usize = 64 << 10;

/// A page, held in the cache or copied.
#[derive(Default)]
pub(super) struct LoadedPage<'r> {
    /// `None` if this is no page.
    number: Option<u32>,
    held: Option<HeldPage<'r>>,
    /// The page, if it is not held.
    copy: Vec<u8>,
    /// Kept as long as the cursor lives, unless permits are scarce when it is put away. Declared
    /// after the page that it permits to hold.
    permit: Option<HoldPermit<'r>>,
}

impl<'r> LoadedPage<'r> {
    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.held {
            Some(held) => held.bytes(),
            None => &self.copy,
        }
    }

    #[inline(always)]
    pub(super) fn page(&self) -> Page<'_> {
        Page::new(self.bytes())
    }

    /// The page's number.
    pub(super) fn number(&self) -> Option<u32> {
        self.number
    }

    /// Makes this no page.
    pub(super) fn clear(&mut self) {
        self.number = None;
        self.held = None;
    }

    /// Lets the cache have its page back, and frees memory that is not worth keeping.
    pub(super) fn reset(&mut self) {
        if self.held.is_some() {
            self.clear();
        }
        if self.permit.as_ref().is_some_and(HoldPermit::is_scarce) {
            self.permit = None;
        }
        if self.copy.capacity() > KEPT_PAGE_BYTES {
            self.clear();
            self.copy = Vec::new();
        }
    }

    /// Frees the buffer if it is much too large for a page of `len` bytes. Then this is no page.
    pub(super) fn trim_buffer(&mut self, len: usize) {
        if self.copy.capacity() > KEPT_PAGE_BYTES.max(len.saturating_mul(4)) {
            self.number = None;
            self.copy = Vec::new();
        }
    }

    /// Copies a page.
    pub(super) fn copy_from(&mut self, number: u32, bytes: &[u8]) {
        self.clear();
        self.trim_buffer(bytes.len());
        self.copy.clear();
        self.copy.extend_from_slice(bytes);
        self.number = Some(number);
    }

    /// Lets `fill` write a page of `len` bytes. After an error this is no page.
    pub(super) fn fill(
        &mut self,
        number: u32,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        self.clear();
        fill(&mut self.copy)?;
        self.number = Some(number);
        Ok(())
    }

    /// Takes a page of `len` bytes from the cache. Returns whether it is resident; if not, this is
    /// no page. With `usize::MAX`, takes the rest of the page's frame too: the caller need not know
    /// the page's length. The caller counts the hit.
    pub(super) fn take_resident(&mut self, run: &'r Run, number: u32, len: usize) -> bool {
        self.clear();
        let slots = run.slots();
        if self.permit.is_none() {
            self.permit = slots.cache().hold_permit();
        }
        if let Some(permit) = &self.permit {
            self.held = slots.hold(number, len, permit);
        }
        if self.held.is_some() {
            self.trim_buffer(0);
        } else {
            let pin = cache::pin();
            let Some(bytes) = slots.get(number, len, &pin) else {
                return false;
            };
            self.trim_buffer(bytes.len());
            self.copy.clear();
            self.copy.extend_from_slice(bytes);
        }
        self.number = Some(number);
        true
    }

    /// Bytes of the buffer.
    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> usize {
        self.copy.capacity()
    }

    /// Loads a page through the cache, unless this already is that page.
    pub(super) fn load(&mut self, run: &'r Run, number: u32, location: PageLocation) -> Result<()> {
        if self.number == Some(number) {
            return Ok(());
        }
        if self.take_resident(run, number, location.raw_len as usize) {
            run.slots().cache().count(1, 0);
            return Ok(());
        }
        let pin = cache::pin();
        let reads = Reads::new(run.slots().cache(), &pin, ReadBackend::Sync);
        let bytes = block_on_with(&reads, reads.page(run, number, location))?;
        self.copy_from(number, bytes);
        Ok(())
    }
}

impl std::fmt::Debug for LoadedPage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedPage")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
