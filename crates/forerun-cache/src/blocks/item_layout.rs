//! The layout of an item in a block.
//!
//! ```text
//!   0      8                                              16         20      24     26        28    bytes
//!   | cas  | second, ms, marks, kind, value len (item_word) | accessed | flags | tags | key len | key | value | 0 … |
//!                                                                                         large: | 0 … | share |
//!
//!   tags    15..5        4       3..0
//!         | generation | large | frequency |
//! ```
//!
//! An item begins and ends at a multiple of eight bytes. Once it is published, its bytes do not
//! change until the block is reused, except in three atomic fields: the deadline and the marks, the
//! time of the last access, and the access frequency. The generation is the flush count at the time
//! of the store. A large value is stored in a page run, and the item owns a share of that run;
//! `value len` is then 8.

#![allow(
    unsafe_code,
    reason = "the bytes of blocks are read and written as items"
)]

use super::item_word::{FETCHED, ItemWord, SharedWord, VALUE_LEN_MAX};
use super::{BLOCK_BYTES_MAX, ITEM_SHARE};
use crate::expiry::Deadline;
use crate::generation::{Generation, Moment};
use crate::index::item_bucket::ItemRef;
use crate::item_kind::ItemKind;
use crate::ms_clock::MsClock;
use crate::options::{ITEM_OVERHEAD_BYTES, KEY_BYTES_MAX};
use crate::value::LargeValue;
use forerun_core::arch::{CACHE_LINE_BYTES, prefetch_read};
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};

/// The fields before the key.
#[repr(C)]
struct Header {
    cas: u64,
    word: SharedWord,
    accessed: AtomicU32,
    flags: u32,
    tags: AtomicU16,
    key_len: u16,
    /// Pads the header to the size of the shortest item, whose key has up to four bytes.
    key: [u8; 4],
}

const KEY_OFFSET: usize = offset_of!(Header, key);
const _: () = assert!(size_of::<Header>() == KEY_OFFSET + 4 && KEY_OFFSET <= ITEM_OVERHEAD_BYTES);
const _: () = assert!(
    BLOCK_BYTES_MAX / ITEM_SHARE - KEY_OFFSET <= VALUE_LEN_MAX
        && KEY_BYTES_MAX == u16::MAX as usize,
    "the lengths of what a block takes fit their fields"
);

/// The maximum frequency. It also masks the frequency bits of the tags.
const FREQUENCY_MAX: u16 = 15;
/// The value is in a page run.
const LARGE: u16 = 16;
/// Position of the generation bits.
const GENERATION_SHIFT: u32 = 5;
const _: () = assert!(GENERATION_SHIFT + Generation::BITS == u16::BITS);

/// A copy of the `tags` field for readers that need several of its parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tags(u16);

impl Tags {
    fn new(generation: Generation, is_large: bool, frequency: u8) -> Tags {
        let large = if is_large { LARGE } else { 0 };
        Tags(generation.0 << GENERATION_SHIFT | large | u16::from(frequency))
    }

    #[inline(always)]
    fn generation(self) -> Generation {
        Generation(self.0 >> GENERATION_SHIFT)
    }

    #[inline(always)]
    fn is_large(self) -> bool {
        self.0 & LARGE != 0
    }

    #[inline(always)]
    fn frequency(self) -> u16 {
        self.0 & FREQUENCY_MAX
    }
}

/// Whether an item is visible at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Visibility {
    Live(Tags),
    Expired,
    Flushed,
}

/// The fields that an access changes, with their values before the access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    pub(crate) accessed: u32,
    pub(crate) was_fetched: bool,
}

/// Bytes of an item in its block. A large value counts as a pointer, which may follow a gap of up
/// to seven bytes; rounding the sum up once covers both.
#[inline(always)]
pub(crate) fn size_bytes(key_len: usize, value_len: usize) -> usize {
    (KEY_OFFSET + key_len + value_len).next_multiple_of(ItemRef::UNIT_BYTES)
}

/// The longest key of an item of at most so many bytes, whose value may be a large one.
pub(crate) fn key_bytes_max(item_bytes: usize) -> usize {
    let item_bytes = item_bytes / ItemRef::UNIT_BYTES * ItemRef::UNIT_BYTES;
    (item_bytes - KEY_OFFSET - size_of::<*const LargeValue>()).min(KEY_BYTES_MAX)
}

const _: () = assert!(
    ItemRef::UNIT_BYTES == size_of::<*const LargeValue>()
        && KEY_OFFSET.next_multiple_of(ItemRef::UNIT_BYTES) == size_of::<Header>(),
    "a pointer takes one unit, and the shortest item has room for a header"
);

fn share_offset(key_len: usize) -> usize {
    (KEY_OFFSET + key_len).next_multiple_of(align_of::<*const LargeValue>())
}

/// The contents of a new item.
#[derive(Debug)]
pub(crate) struct NewRecord<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: NewValue<'a>,
    pub(crate) cas: u64,
    pub(crate) flags: u32,
    pub(crate) kind: ItemKind,
    pub(crate) deadline: Deadline,
    pub(crate) accessed: u32,
    pub(crate) marks: u8,
    pub(crate) frequency: u8,
    pub(crate) generation: Generation,
}

/// The value of a new item.
#[derive(Debug)]
pub(crate) enum NewValue<'a> {
    /// Several pieces, stored one after another.
    Parts(&'a [&'a [u8]]),
    /// A value in a page run.
    Large(&'a Arc<LargeValue>),
}

impl NewRecord<'_> {
    /// Bytes that the item takes in the block.
    pub(crate) fn size_bytes(&self) -> usize {
        match &self.value {
            NewValue::Parts(parts) => size_bytes(self.key.len(), len_of(parts)),
            NewValue::Large(_) => size_bytes(self.key.len(), size_of::<*const LargeValue>()),
        }
    }

    /// Writes the item. For a large value it writes only the pointer; the caller gives the item its
    /// share when it publishes the item.
    ///
    /// # Safety
    /// `start` is a multiple of eight. [`NewRecord::size_bytes`] bytes are writable there, and no
    /// other thread uses them.
    pub(super) unsafe fn write(&self, start: NonNull<u8>) {
        let (value_len, is_large) = match &self.value {
            NewValue::Parts(parts) => (len_of(parts), false),
            NewValue::Large(_) => (size_of::<*const LargeValue>(), true),
        };
        let header = Header {
            cas: self.cas,
            word: SharedWord::new(ItemWord::new(
                self.deadline,
                self.marks,
                self.kind,
                value_len,
            )),
            accessed: self.accessed.into(),
            flags: self.flags,
            tags: Tags::new(self.generation, is_large, self.frequency)
                .0
                .into(),
            key_len: self.key.len() as u16,
            key: [0; 4],
        };
        // SAFETY: the caller promises that the item's bytes are writable: a header (no item is
        // shorter), then the key from KEY_OFFSET on, then the parts. A share lies aligned after the
        // key, since `start` is a multiple of eight.
        unsafe {
            start.cast::<Header>().write(header);
            let mut end = start.add(KEY_OFFSET);
            let mut append = |bytes: &[u8]| {
                end.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
                end = end.add(bytes.len());
            };
            append(self.key);
            match &self.value {
                NewValue::Parts(parts) => parts.iter().for_each(|part| append(part)),
                NewValue::Large(value) => start
                    .add(share_offset(self.key.len()))
                    .cast::<*const LargeValue>()
                    .write(Arc::as_ptr(value)),
            }
        }
    }
}

pub(crate) fn len_of(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}

/// An item in a block that is not reused before `'g` ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'g> {
    start: NonNull<u8>,
    life: PhantomData<&'g [u8]>,
}

// SAFETY: a record is a shared reference to plain and atomic bytes, and possibly to a LargeValue,
// which is Sync.
unsafe impl Send for Record<'_> {}
// SAFETY: as above.
unsafe impl Sync for Record<'_> {}

impl<'g> Record<'g> {
    /// # Safety
    /// An item was written at `start`, that write happens before this call, and the item's bytes
    /// and value stay for `'g`.
    #[inline(always)]
    pub(super) unsafe fn new(start: NonNull<u8>) -> Record<'g> {
        Record {
            start,
            life: PhantomData,
        }
    }

    #[inline(always)]
    fn header(self) -> &'g Header {
        // SAFETY: the caller of `new` promised an item, which begins with a header.
        unsafe { self.start.cast().as_ref() }
    }

    #[inline(always)]
    fn bytes(self, offset: usize, len: usize) -> &'g [u8] {
        // SAFETY: the callers take offsets and lengths within the item from the header.
        unsafe { std::slice::from_raw_parts(self.start.add(offset).as_ptr(), len) }
    }

    #[inline(always)]
    pub(crate) fn key(self) -> &'g [u8] {
        self.bytes(KEY_OFFSET, self.header().key_len.into())
    }

    #[inline(always)]
    pub(crate) fn value(self) -> &'g [u8] {
        match self.share() {
            None => {
                let start = KEY_OFFSET + usize::from(self.header().key_len);
                self.bytes(start, self.word().value_len())
            }
            // SAFETY: the share behind the pointer is dropped only after every pin that could find
            // the item.
            Some(share) => unsafe { (*share).bytes() },
        }
    }

    #[inline(always)]
    fn share(self) -> Option<*const LargeValue> {
        self.tags().is_large().then(|| {
            let offset = share_offset(self.header().key_len.into());
            // SAFETY: a large item has an aligned pointer there.
            unsafe { self.start.add(offset).cast().read() }
        })
    }

    /// The large value, if the value is not small.
    pub(crate) fn large_value(self) -> Option<&'g LargeValue> {
        // SAFETY: as in `value`.
        self.share().map(|share| unsafe { &*share })
    }

    /// Bytes of the large value, or 0 if the value is small.
    pub(crate) fn large_len(self) -> usize {
        self.large_value().map_or(0, |value| value.bytes().len())
    }

    /// Another share of the large value.
    pub(crate) fn large(self) -> Option<Arc<LargeValue>> {
        self.share().map(|share| {
            // SAFETY: the pointer comes from an Arc, and the item owns a share for as long as it is
            // readable.
            unsafe {
                Arc::increment_strong_count(share);
                Arc::from_raw(share)
            }
        })
    }

    /// The item's own share, after the item was taken out of the index.
    ///
    /// # Safety
    /// The item was published. The caller has removed or replaced it (not moved it), calls this
    /// once, and drops the share after a grace period.
    pub(crate) unsafe fn take_large(self) -> Option<Arc<LargeValue>> {
        // SAFETY: publishing the item gave it this share, by `Arc::into_raw`.
        self.share().map(|share| unsafe { Arc::from_raw(share) })
    }

    pub(crate) fn cas(self) -> u64 {
        self.header().cas
    }

    pub(crate) fn flags(self) -> u32 {
        self.header().flags
    }

    // Relaxed, here and below: each field stands alone, and the header as a whole was published
    // with the slot.

    /// The deadline, the marks, the kind, and the length of the value in the block.
    #[inline(always)]
    pub(crate) fn word(self) -> ItemWord {
        self.header().word.load()
    }

    /// When the item expires.
    #[inline(always)]
    pub(crate) fn deadline(self) -> Deadline {
        self.word().deadline()
    }

    /// Changes when the item expires. The caller has locked the item's segment.
    pub(crate) fn set_deadline(self, deadline: Deadline) {
        self.header().word.set_deadline(deadline);
    }

    pub(crate) fn kind(self) -> ItemKind {
        self.word().kind()
    }

    #[inline(always)]
    fn tags(self) -> Tags {
        Tags(self.header().tags.load(Relaxed))
    }

    pub(crate) fn generation(self) -> Generation {
        self.tags().generation()
    }

    /// Whether the item is visible at a moment.
    #[inline(always)]
    pub(crate) fn visibility(self, moment: Moment<'_>) -> Visibility {
        let word = self.word();
        // 1..=now + 1 in one comparison: 0, which is never, wraps to the largest number.
        if word.second().wrapping_sub(1) <= moment.now
            && has_expired(word, moment.now, moment.clock)
        {
            return Visibility::Expired;
        }
        let tags = self.tags();
        if tags.generation() == moment.generation() {
            Visibility::Live(tags)
        } else {
            Visibility::Flushed
        }
    }

    /// Whether the item has expired or was flushed.
    #[inline(always)]
    pub(crate) fn is_gone(self, moment: Moment<'_>) -> bool {
        !matches!(self.visibility(moment), Visibility::Live(_))
    }

    pub(crate) fn marks(self) -> u8 {
        self.word().marks()
    }

    /// Sets marks and returns the previous ones.
    pub(crate) fn mark(self, marks: u8) -> u8 {
        self.header().word.mark(marks).marks()
    }

    pub(crate) fn frequency(self) -> u8 {
        self.tags().frequency() as u8
    }

    /// The frequency with one more access.
    pub(crate) fn frequency_after_access(self) -> u8 {
        (self.tags().frequency() + 1).min(FREQUENCY_MAX) as u8
    }

    /// Makes the item look as if it was read often.
    pub(crate) fn set_frequency_max(self) {
        // The other tags never change.
        self.header().tags.fetch_or(FREQUENCY_MAX, Relaxed);
    }

    pub(crate) fn accessed(self) -> u32 {
        self.header().accessed.load(Relaxed)
    }

    /// Records an access. A frequently read item is written at most once a second.
    #[inline(always)]
    pub(crate) fn access(self, tags: Tags, now: u32) -> Before {
        let header = self.header();
        if tags.frequency() < FREQUENCY_MAX {
            // Two threads may lose a count, which is approximate anyway. The other bits never
            // change.
            header.tags.store(tags.0 + 1, Relaxed);
        }
        let before = Before {
            accessed: self.accessed(),
            was_fetched: self.word().has_mark(FETCHED),
        };
        if before.accessed != now {
            header.accessed.store(now, Relaxed);
        }
        if !before.was_fetched {
            header.word.mark(FETCHED);
        }
        before
    }

    /// Bytes that the item takes in the block.
    #[inline(always)]
    pub(crate) fn size_bytes(self) -> usize {
        size_bytes(self.header().key_len.into(), self.word().value_len())
    }

    /// Prefetches the lines after the first two.
    #[inline(always)]
    pub(crate) fn prefetch_remaining_lines(self) {
        /// How many lines to prefetch. The hardware prefetcher takes over on longer values.
        const LINES: usize = 6;
        let mut line = 2 * CACHE_LINE_BYTES;
        let end = self.size_bytes().min(LINES * CACHE_LINE_BYTES);
        while line < end {
            prefetch_read(self.start.as_ptr().wrapping_add(line));
            line += CACHE_LINE_BYTES;
        }
    }
}

/// Whether the deadline of an item has come that is due in this second of the clock or in the next.
/// The milliseconds may be in a later second already.
///
/// All that it takes fits into registers: a lookup that does not call it copies nothing for it.
#[cold]
#[inline(never)]
fn has_expired(word: ItemWord, now: u32, clock: &MsClock) -> bool {
    let deadline = word.deadline();
    match deadline {
        // Never. In the clock's last second, the comparison above lets it through.
        Deadline { second: 0, .. } => false,
        Deadline { second, ms: 0 } => second <= now,
        _ => deadline.second < now || deadline.in_ms() <= clock.ms(),
    }
}

/// Copies an item to another address, with a new frequency.
///
/// # Safety
/// `start` is a multiple of eight. [`Record::size_bytes`] bytes are writable there, and no other
/// thread uses them. The item's segment is locked, so that only its frequency, its access time and
/// its FETCHED mark may change during the copy.
pub(super) unsafe fn copy(record: Record<'_>, start: NonNull<u8>, frequency: u8) {
    let (header, tags) = (record.header(), record.tags());
    let copy = Header {
        cas: header.cas,
        word: SharedWord::new(record.word()),
        accessed: record.accessed().into(),
        flags: header.flags,
        tags: Tags::new(tags.generation(), tags.is_large(), frequency)
            .0
            .into(),
        key_len: header.key_len,
        key: [0; 4],
    };
    let len = record.size_bytes() - KEY_OFFSET;
    // SAFETY: the record has the item's bytes, the caller promises as many at `start`, and the two
    // do not overlap.
    unsafe {
        start.cast::<Header>().write(copy);
        start
            .add(KEY_OFFSET)
            .copy_from_nonoverlapping(record.start.add(KEY_OFFSET), len);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "item_layout_tests.rs"]
mod tests;
