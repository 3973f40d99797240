//! Memory that a page is read into, before it is published.

use super::PageCache;
use super::frames::FreeFrame;
use super::heap_page::HeapPage;

/// A frame that belongs to its owner alone. Dropping it frees it.
pub(super) struct OwnedFrame<'c> {
    cache: &'c PageCache,
    /// `Some` until it is published.
    free_frame: Option<FreeFrame>,
}

impl<'c> OwnedFrame<'c> {
    pub(super) fn new(cache: &'c PageCache, free_frame: FreeFrame) -> Self {
        OwnedFrame {
            cache,
            free_frame: Some(free_frame),
        }
    }

    /// Takes the frame out, to publish it.
    pub(super) fn into_free_frame(mut self) -> FreeFrame {
        self.free_frame
            .take()
            .expect("an owned frame is published once")
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.free_frame {
            Some(free_frame) => self.cache.frames.free_frame_bytes(free_frame),
            None => &mut [],
        }
    }
}

impl Drop for OwnedFrame<'_> {
    fn drop(&mut self) {
        if let Some(free_frame) = self.free_frame.take() {
            let mut state = self.cache.lock();
            let bytes = self.cache.frames.stride_bytes();
            self.cache.put_back(&mut state, free_frame, bytes);
        }
    }
}

/// A page that was read, in the place it was read to.
pub(super) enum ReadBuffer<'c> {
    Frame(OwnedFrame<'c>),
    Heap(HeapPage),
}

impl ReadBuffer<'_> {
    /// All that it has room for.
    pub(super) fn room(&mut self) -> &mut [u8] {
        match self {
            ReadBuffer::Frame(frame) => frame.bytes_mut(),
            ReadBuffer::Heap(page) => page.bytes_mut(),
        }
    }

    /// The first `len` bytes, which the page fills.
    pub(super) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.room()[..len]
    }
}
