//! Pages that a batch reads and does not keep. Each thread uses its buffers for them again:
//! allocating and clearing one costs as much as a read that the system answers from memory.

use std::cell::RefCell;

use super::heap_page::HeapPage;

/// Bytes of buffers that a thread keeps from one batch to the next. Nothing counts them.
const KEPT_BYTES: usize = 256 << 10;

#[derive(Default)]
struct Kept {
    pages: Vec<HeapPage>,
    bytes: usize,
}

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { pages: Vec::new(), bytes: 0 }) };
}

/// A page of `len` bytes with any contents; `None` if there is no memory. It has room for `usual`
/// bytes, so that it can be used again.
pub(super) fn take(len: usize, usual: usize) -> Option<HeapPage> {
    // A thread that is exiting may have no thread-local values any more.
    let kept = KEPT.try_with(|kept| {
        let kept = &mut *kept.borrow_mut();
        let page = kept.pages.pop()?;
        kept.bytes -= page.capacity();
        Some(page)
    });
    let is_long_enough = |page: &HeapPage| page.capacity() >= len;
    let mut page = match kept.ok().flatten().filter(is_long_enough) {
        Some(page) => page,
        None => HeapPage::new(len.max(usual))?,
    };
    page.set_len(len);
    Some(page)
}

/// Keeps pages for this thread's next batch, up to the limit. Frees those that are counted.
pub(super) fn put_back(pages: impl IntoIterator<Item = HeapPage>) {
    let _ = KEPT.try_with(|kept| {
        let kept = &mut *kept.borrow_mut();
        for page in pages {
            let bytes = kept.bytes + page.capacity();
            if !page.is_counted() && bytes <= KEPT_BYTES {
                kept.bytes = bytes;
                kept.pages.push(page);
            }
        }
    });
}

/// A buffer outside a batch's pages, taken from the thread when it is first used.
pub(crate) struct ScratchPage {
    page: Option<HeapPage>,
    usual: usize,
}

impl ScratchPage {
    pub(super) fn new(usual: usize) -> ScratchPage {
        ScratchPage { page: None, usual }
    }

    /// `len` bytes with any contents; `None` if there is no memory.
    pub(crate) fn bytes_mut(&mut self, len: usize) -> Option<&mut [u8]> {
        let page = match self.page.take().filter(|page| page.capacity() >= len) {
            Some(page) => page,
            None => take(len, self.usual)?,
        };
        let page = self.page.insert(page);
        page.set_len(len);
        Some(page.bytes_mut())
    }

    /// What was last written.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.page.as_ref().map_or(&[], HeapPage::bytes)
    }
}

impl Drop for ScratchPage {
    fn drop(&mut self) {
        // Most are never used.
        if let Some(page) = self.page.take() {
            put_back([page]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_a_few_buffers() {
        let page_bytes = KEPT_BYTES / 4;
        let pages: Vec<_> = (0..6).filter_map(|_| take(10, page_bytes)).collect();
        assert_eq!(pages.len(), 6);
        put_back(pages);
        let kept = KEPT.with_borrow(|kept| (kept.pages.len(), kept.bytes));
        assert_eq!(kept, (4, KEPT_BYTES));
        let again: Vec<_> = (0..4).filter_map(|_| take(100, 100)).collect();
        assert!(
            again
                .iter()
                .all(|page| page.capacity() == page_bytes && page.len() == 100)
        );
        assert!(again.iter().all(|page| page.bytes().len() == 100));
    }
}
