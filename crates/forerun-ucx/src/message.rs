//! A message to be sent: a header, and parts that are copies or shared bytes.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use crate::sys::{self, IoVec};

/// The bytes of a header.
pub(crate) const HEADER_BYTES: usize = 16;

/// About what UCX 1.13 takes for a request.
const REQUEST_BYTES: usize = 384;

/// Bytes that several owners share. Sending them takes no copy.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A message to be sent.
#[derive(Default)]
pub(crate) struct Message {
    pub(crate) header: [u8; HEADER_BYTES],
    /// The bytes that are the message's own.
    own: Vec<u8>,
    parts: Vec<Part>,
    len_bytes: usize,
    /// Points to the parts while UCX sends them.
    iov: Vec<IoVec>,
}

enum Part {
    /// A range of the message's own bytes.
    Own(Range<usize>),
    Shared(SharedBytes, Range<usize>),
}

impl Message {
    /// The number of bytes after the header.
    pub(crate) fn len(&self) -> usize {
        self.len_bytes
    }

    /// Appends a copy of `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let begin = self.own.len();
        self.own.extend_from_slice(bytes);
        self.len_bytes += bytes.len();
        match self.parts.last_mut() {
            Some(Part::Own(range)) if range.end == begin => range.end = self.own.len(),
            _ => self.parts.push(Part::Own(begin..self.own.len())),
        }
    }

    /// Appends a range of shared bytes.
    pub(crate) fn push_shared(&mut self, bytes: SharedBytes, range: Range<usize>) {
        self.len_bytes += range.len();
        self.parts.push(Part::Shared(bytes, range));
    }

    /// Memory that the message itself and UCX's request for it take.
    pub(crate) fn memory_bytes(&self) -> usize {
        let parts_bytes = self.parts.capacity() * size_of::<Part>();
        let iov_bytes = self.iov.capacity() * size_of::<IoVec>();
        REQUEST_BYTES + size_of::<Message>() + self.own.capacity() + parts_bytes + iov_bytes
    }

    /// Makes the message empty and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.own.clear();
        self.parts.clear();
        self.iov.clear();
        self.len_bytes = 0;
    }

    /// The buffer, the count and the datatype that UCX gets. They are valid until the message is
    /// changed or dropped.
    pub(crate) fn payload(&mut self) -> (*const c_void, usize, u64) {
        self.iov.clear();
        for part in &self.parts {
            let bytes = match part {
                Part::Own(range) => &self.own[range.clone()],
                Part::Shared(bytes, range) => &(**bytes).as_ref()[range.clone()],
            };
            self.iov.push(IoVec {
                buffer: bytes.as_ptr().cast(),
                length: bytes.len(),
            });
        }
        match self.iov.as_slice() {
            [] => (ptr::null(), 0, sys::DATATYPE_BYTES),
            [one] => (one.buffer, one.length, sys::DATATYPE_BYTES),
            parts => (parts.as_ptr().cast(), parts.len(), sys::DATATYPE_IOV),
        }
    }
}
