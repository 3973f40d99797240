//! Bytes waiting to be sent, with a limit.
//!
//! ```text
//!   bytes   [ sent | composed, not yet sent ............................................ ]
//!                  start        ^ large.at                ^ large.at
//!                               a large value goes here   another one
//! ```
//!
//! Sessions compose replies into one buffer. A large value is not copied: a separate queue holds a
//! reference to the value and its position. The reference keeps the value alive until it is sent.
//! If an answer waits for its reader, its large values are counted, or copied into the buffer.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::ops::Range;

use forerun_cache::SharedValue;

use crate::waiting_values::WaitingValue;

/// The output counts as full when this many bytes wait to be sent.
const FULL_BYTES: usize = 64 << 10;

/// A buffer that has grown beyond this size is freed once it is empty.
const KEEP_BYTES: usize = 256 << 10;

/// A buffer of twice this size is small enough to keep.
const PARKED_BYTES_MIN: usize = 1 << 10;

struct Large {
    /// Its position: the value goes before byte `at` of `bytes`.
    at: usize,
    /// Its part in the limit of such values, if the answer has had to wait. Before `value`, because
    /// it must be dropped first.
    waiting: Option<WaitingValue>,
    value: SharedValue,
    /// Bytes of the value that are already sent.
    sent: usize,
}

/// The sending side of a connection. A [`Session`](crate::Session) composes replies into it. The
/// caller writes [`slices`](Self::slices) to a socket and calls [`advance`](Self::advance) with the
/// number of bytes written.
#[derive(Default)]
pub struct Output {
    bytes: Vec<u8>,
    start: usize,
    large: VecDeque<Large>,
    large_bytes: usize,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("len", &self.len()).finish()
    }
}

impl Output {
    /// Creates an empty output without a buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory used by the buffer, without large values that are shared.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Bytes that wait to be sent.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start + self.large_bytes
    }

    /// Whether no bytes wait to be sent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether 64 KiB or more wait to be sent. A session composes no more replies until some are
    /// sent.
    pub fn is_full(&self) -> bool {
        self.len() >= FULL_BYTES
    }

    /// Fills `slices` with the bytes to send, in order, and returns the number of slices used. One
    /// slice suffices unless large values wait.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.slices_up_to(usize::MAX, slices)
    }

    /// Like [`slices`](Self::slices), with at most `bytes_max` bytes.
    pub(crate) fn slices_up_to<'a>(
        &'a self,
        bytes_max: usize,
        slices: &mut [IoSlice<'a>],
    ) -> usize {
        let mut count = 0;
        let mut left = bytes_max;
        let mut at = self.start;
        let mut large = self.large.iter();
        let mut put = |bytes: &'a [u8]| {
            if bytes.is_empty() {
                return true;
            }
            match slices.get_mut(count) {
                Some(slice) if left > 0 => {
                    let bytes = &bytes[..bytes.len().min(left)];
                    *slice = IoSlice::new(bytes);
                    left -= bytes.len();
                    count += 1;
                    true
                }
                _ => false,
            }
        };
        loop {
            let next = large.next();
            let until = next.map_or(self.bytes.len(), |large| large.at);
            if !put(&self.bytes[at..until]) {
                break;
            }
            at = until;
            let Some(large) = next else { break };
            if !put(&large.value[large.sent..]) {
                break;
            }
        }
        count
    }

    /// The large value whose bytes come next, and the range of them to send, of at most `bytes_max`
    /// bytes.
    pub(crate) fn next_value(&self, bytes_max: usize) -> Option<(&SharedValue, Range<usize>)> {
        let large = self.large.front().filter(|large| large.at == self.start)?;
        let end = large.value.len().min(large.sent.saturating_add(bytes_max));
        (large.sent < end).then_some((&large.value, large.sent..end))
    }

    /// Bytes to send before the next large value.
    pub(crate) fn bytes_before_value(&self) -> usize {
        let large = self.large.front();
        large.map_or(self.bytes.len(), |large| large.at) - self.start
    }

    /// Removes `count` sent bytes from the front.
    pub fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let until = self
                .large
                .front()
                .map_or(self.bytes.len(), |large| large.at);
            let step = count.min(until - self.start);
            self.start += step;
            count -= step;
            if count == 0 {
                break;
            }
            let Some(large) = self.large.front_mut() else {
                break;
            };
            let step = count.min(large.value.len() - large.sent);
            large.sent += step;
            self.large_bytes -= step;
            count -= step;
            if large.sent == large.value.len() {
                self.large.pop_front();
            }
        }
        if self.is_empty() {
            self.large.clear();
            self.bytes.clear();
            self.start = 0;
            if self.bytes.capacity() > KEEP_BYTES {
                self.bytes = Vec::new();
            }
        } else if self.start >= FULL_BYTES.max(self.bytes.len() - self.start) {
            // A copied value may be long. No byte is moved for which none was sent.
            self.drop_sent();
        }
    }

    /// Frees most of the unused memory of the buffer, for a connection whose reader is slow.
    pub(crate) fn park(&mut self) {
        let wait = self.bytes.len() - self.start;
        if self.bytes.capacity() > 2 * wait.max(PARKED_BYTES_MIN) {
            self.drop_sent();
            self.bytes.shrink_to(wait);
        }
    }

    /// Whether large values wait that are shared.
    pub(crate) fn has_values(&self) -> bool {
        !self.large.is_empty()
    }

    /// Counts the large values that are not counted yet by `add`. Returns the bytes to be sent of
    /// those that it refuses.
    pub(crate) fn count_values(
        &mut self,
        mut add: impl FnMut(&SharedValue) -> Option<WaitingValue>,
    ) -> usize {
        let mut refused_bytes = 0;
        for large in &mut self.large {
            if large.waiting.is_none() {
                large.waiting = add(&large.value);
            }
            if large.waiting.is_none() {
                refused_bytes += large.value.len() - large.sent;
            }
        }
        refused_bytes
    }

    /// Copies what is left of the large values that are not counted, and gives up their shares.
    pub(crate) fn copy_uncounted_values(&mut self) {
        let mut bytes = Vec::new();
        let mut at = self.start;
        for mut large in std::mem::take(&mut self.large) {
            bytes.extend_from_slice(&self.bytes[at..large.at]);
            at = large.at;
            if large.waiting.is_some() {
                large.at = bytes.len();
                self.large.push_back(large);
            } else {
                let rest = &large.value[large.sent..];
                bytes.extend_from_slice(rest);
                self.large_bytes -= rest.len();
            }
        }
        bytes.extend_from_slice(&self.bytes[at..]);
        self.bytes = bytes;
        self.start = 0;
    }

    /// Removes sent bytes from the buffer.
    fn drop_sent(&mut self) {
        self.bytes.drain(..self.start);
        for large in &mut self.large {
            large.at -= self.start;
        }
        self.start = 0;
    }

    /// The buffer for replies. Callers only append to it.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a value without copying it.
    pub(crate) fn push_large(&mut self, value: SharedValue) {
        self.large_bytes += value.len();
        self.large.push_back(Large {
            at: self.bytes.len(),
            waiting: None,
            value,
            sent: 0,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forerun_cache::{Cache, CacheOptions, Store};

    use super::*;
    use crate::waiting_values::WaitingValues;

    /// A value shared with a cache.
    fn shared(byte: u8, len: usize) -> SharedValue {
        let cache = Cache::new(CacheOptions::default()).expect("valid options");
        let _ = cache.store(Store::set(b"key", vec![byte; len].as_slice()));
        let guard = cache.pin();
        guard
            .get(b"key")
            .and_then(|item| item.to_shared())
            .expect("a large value")
    }

    /// Sends everything in pieces of `step` bytes.
    fn send(output: &mut Output, step: usize) -> Vec<u8> {
        let mut sent = Vec::new();
        while !output.is_empty() {
            let mut slices = [IoSlice::new(&[]), IoSlice::new(&[])];
            let count = output.slices(&mut slices);
            assert!(count > 0);
            let all: Vec<u8> = slices[..count]
                .iter()
                .flat_map(|slice| slice.iter().copied())
                .collect();
            let piece = &all[..all.len().min(step)];
            match output.next_value(step) {
                Some((value, range)) => assert!(piece.starts_with(&value[range])),
                None => assert!(output.bytes_before_value() > 0),
            }
            let mut short = [IoSlice::new(&[]), IoSlice::new(&[])];
            let count = output.slices_up_to(step, &mut short);
            let short = short[..count].iter().flat_map(|slice| slice.iter());
            assert!(short.eq(piece));
            sent.extend_from_slice(piece);
            output.advance(piece.len());
            output.park();
            assert!(
                output.bytes.capacity() <= 2 * output.len().max(PARKED_BYTES_MIN)
                    || output.is_empty()
            );
        }
        sent
    }

    #[test]
    fn large_values_go_where_they_were_put_however_slowly_they_are_sent() {
        for step in [997, 10_007, 1_000_000] {
            let mut output = Output::new();
            let mut expected = Vec::new();
            for round in 0..8_u8 {
                let text = vec![round; usize::from(round) * 200];
                output.bytes_mut().extend_from_slice(&text);
                expected.extend_from_slice(&text);
                if round % 3 != 0 {
                    let value = shared(round + 100, 300_000 + usize::from(round));
                    expected.extend_from_slice(&value);
                    output.push_large(value);
                }
            }
            assert_eq!(output.len(), expected.len());
            assert!(send(&mut output, step) == expected, "step {step}");
            assert!(output.large.is_empty());
        }
    }

    #[test]
    fn values_that_are_copied_while_they_are_sent_stay_where_they_were() {
        let values = Arc::new(WaitingValues::default());
        for step in [997, 200_000, 301_000] {
            let mut output = Output::new();
            let mut expected = Vec::new();
            for byte in 0..4 {
                let value = shared(byte, 300_000);
                output.bytes_mut().extend_from_slice(b"VALUE\r\n");
                expected.extend_from_slice(b"VALUE\r\n");
                expected.extend_from_slice(&value);
                output.push_large(value);
            }
            output.advance(step);
            // There is room for one.
            let waiting = output.large.len();
            let refused_bytes = output.count_values(|value| values.add(value, 300_000));
            assert_eq!(values.bytes(), 300_000);
            assert_eq!(refused_bytes, 300_000 * (waiting - 1), "step {step}");
            output.copy_uncounted_values();
            assert_eq!(output.large.len(), 1);
            assert_eq!(output.len(), expected.len() - step);
            assert!(send(&mut output, 70_001) == expected[step..], "step {step}");
            assert_eq!(values.bytes(), 0);
        }
    }

    #[test]
    fn bytes_that_wait_are_moved_in_proportion_to_those_that_are_sent() {
        const PIECE_BYTES: usize = 100_000;
        let mut output = Output::new();
        for byte in 0..20 {
            output.push_large(shared(byte, 300_000));
        }
        // There is no room for the values, so they are copied.
        output.count_values(|_| None);
        output.copy_uncounted_values();
        let (mut sent, mut moved) = (0, 0);
        while !output.is_empty() {
            let (start, piece) = (output.start, output.len().min(PIECE_BYTES));
            output.advance(piece);
            output.park();
            sent += piece;
            if output.start != start + piece {
                moved += output.len();
            }
        }
        assert_eq!(sent, 6_000_000);
        // As many when the buffer's front is dropped, and as many when its memory is freed.
        assert!(moved <= 2 * sent, "{moved} bytes were moved");
    }

    #[test]
    fn output_is_full_at_64_kib_including_large_values() {
        let mut output = Output::new();
        output.bytes_mut().extend_from_slice(&[b'a'; 1 << 10]);
        assert!(!output.is_full());
        output.push_large(shared(b'b', 300_000));
        assert!(output.is_full());
        output.advance(1 << 10);
        output.advance(250_000);
        assert!(!output.is_full());
    }
}
