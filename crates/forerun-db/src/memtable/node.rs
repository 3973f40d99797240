//! One entry of the memtable and its tower, as they are laid out in the arena.
//!
//! ```text
//!            tower, one link a level             header        entry
//!   ┌ ─ ─ ─ ┬──────────────────────────────┬─────────────┬───────────────────────────┬ ─ ─ ─ ─ ─ ┐
//!    lengths│ link h-1 │ … │ link 1 │ link 0 │ tag │ lens  │ key, padded to 8 │ value   │ checksum
//!   └ ─ ─ ─ ┴──────────────────────────────┴─────────────┴───────────────────────────┴ ─ ─ ─ ─ ─ ┘
//!       8                                   ▲     8     4
//!                                           Node points here, aligned to 8
//!
//!   link      prefix (8) | pointer to the next node's header (8)
//!   tag       sequence number (56 bits) | tower height (7) | kind (1: a value, 0: a deletion)
//!   lens      bytes of the key (12 bits) | of the value (20); all ones: too long for that
//!   lengths   32 bits each; only where lens does not say them
//!   checksum  CRC32C of header and entry; only where the table was made with `MemoryChecks::Paranoid`
//! ```
//!
//! **The prefix beside the pointer** lets a search pass over a node without reading it. It never
//! exceeds the comparator's prefix of the key behind the pointer, so if it is larger than the
//! prefix sought, the next key is larger as well. Keys are only ever added between two nodes, so
//! the key behind a link can only become smaller. This keeps the bound valid without a double-width
//! exchange: a writer first lowers the prefix, then swings the pointer. A reader that meets the
//! lowered prefix with the old pointer reads one node that it could have skipped.

use std::cmp::Ordering as KeyOrdering;
use std::marker::PhantomData;
use std::ptr::NonNull;

use forerun_core::CACHE_LINE_BYTES;
use forerun_core::arch::prefetch_read;
use forerun_core::sync::modelled::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::arena::Arena;
use super::entry_lens::{Lens, LongLens};
use super::list_shape::Placement;
use crate::comparator::KeyOrder;
use crate::versions::{Kind, ReadPoint, SEQUENCE_MAX};

/// The tallest tower. Half the nodes of each level are on the next, so this suffices for more nodes
/// than memory holds.
pub(super) const HEIGHT_MAX: usize = if cfg!(loom) { 3 } else { 24 };

/// One level of a tower: a pointer to the next node, and a lower bound of its key's prefix.
#[repr(C)]
pub(super) struct Link {
    prefix: AtomicU64,
    next: AtomicPtr<Header>,
}

/// A link as a reader found it. `prefix` is a lower bound for `next`; for the end of the list it is
/// the maximum until a writer lowers it.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) next: Option<Node<'a>>,
    pub(super) prefix: u64,
}

impl Link {
    fn end() -> Link {
        Link {
            prefix: AtomicU64::new(u64::MAX),
            next: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Reads the link: the pointer first, then the prefix, so that the prefix bounds this very
    /// pointer. (In between, the key behind the link can only have become smaller, and the prefix
    /// with it.)
    #[inline(always)]
    pub(super) fn load(&self) -> Seen<'_> {
        // Acquire: pairs with the release in `swing`, so that the node's bytes and its own links
        // are visible; it also keeps the prefix load after this one.
        let next = self.next.load(Ordering::Acquire);
        // Relaxed: the prefix is a bound on its own. A reader that must see a node (one inserted
        // before this search started) also sees the lowered prefix, by coherence: the prefix was
        // lowered before the insertion ended.
        let prefix = self.prefix.load(Ordering::Relaxed);
        Seen {
            next: NonNull::new(next).map(|header| Node {
                header,
                arena: PhantomData,
            }),
            prefix,
        }
    }

    /// Sets a link of a node that is not yet in the list at that level.
    pub(super) fn aim(&self, seen: Seen<'_>) {
        // Relaxed, both: the release in `swing` makes the node reachable at this level.
        self.prefix.store(seen.prefix, Ordering::Relaxed);
        self.next.store(as_ptr(seen.next), Ordering::Relaxed);
    }

    /// Puts `node` between this link's owner and `after`. Returns false if something else follows
    /// the owner by now.
    pub(super) fn swing(&self, after: Option<Node<'_>>, node: Node<'_>, prefix: u64) -> bool {
        // The bound is lowered first. Relaxed: the exchange below releases it with the node;
        // whoever reads it earlier reads a bound that already holds. A failed exchange leaves it
        // lower than necessary, but never wrong.
        self.prefix.fetch_min(prefix, Ordering::Relaxed);
        // Release: publishes the node's bytes and the link set in it. Relaxed on failure: the
        // caller reads again.
        self.next
            .compare_exchange(
                as_ptr(after),
                as_ptr(Some(node)),
                Ordering::Release,
                Ordering::Relaxed,
            )
            .is_ok()
    }
}

fn as_ptr(node: Option<Node<'_>>) -> *mut Header {
    node.map_or(std::ptr::null_mut(), |node| node.header.as_ptr())
}

/// The fixed part of a node. Packed, so that the key follows without a gap.
#[repr(C, packed(4))]
pub(super) struct Header {
    tag: u64,
    lens: u32,
}

const HEADER_BYTES: usize = size_of::<Header>();
const LINK_BYTES: usize = size_of::<Link>();
const CHECKSUM_BYTES: usize = size_of::<u32>();
/// The arena gives out multiples of this, so that every header is aligned.
pub(super) const ALIGN_BYTES: usize = align_of::<Link>();

/// How many bytes after the header [`Node::prefetch_rest`] prefetches.
pub(super) const REST_BYTES: usize = 2 * CACHE_LINE_BYTES;

/// How many bytes of a key [`Node::prefetch_key`] prefetches.
const SHORT_KEY_BYTES: usize = 32;

/// The links that [`Node::levels_past`] examines: one cache line of them.
const PAST_AT_ONCE: usize = 4;

const HEIGHT_SHIFT: u32 = 1;
const HEIGHT_MASK: u64 = 0x7f;
const SEQUENCE_SHIFT: u32 = 8;
const _: () = assert!(SEQUENCE_MAX == u64::MAX >> SEQUENCE_SHIFT);

/// Whether nodes carry a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seal {
    None,
    Checksum,
}

/// What a node will hold, before it has a place.
#[derive(Clone, Copy)]
pub(super) struct Draft<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) kind: Kind,
    pub(super) height: usize,
    pub(super) seal: Seal,
}

impl Draft<'_> {
    fn lens(&self) -> Lens {
        Lens {
            key: self.key.len(),
            value: self.value.len(),
        }
    }

    /// The bytes before the tower.
    fn long_lens_bytes(&self) -> usize {
        if self.lens().packed() == Lens::LONG {
            size_of::<LongLens>()
        } else {
            0
        }
    }

    /// The bytes before the header.
    fn tower_bytes(&self) -> usize {
        self.long_lens_bytes() + self.height * LINK_BYTES
    }

    /// Where the node starts if the arena is in use up to `offset`: immediately, unless it is to be
    /// aligned and that would split what a search reads together over two cache lines.
    ///
    /// In a node of one or two levels, as most are, that is its links, its header and the first
    /// eight bytes of its key. Aligning them costs some 14 bytes a node and saves a third of the
    /// cache lines that a search reads.
    pub(super) fn start(&self, offset: usize, placement: Placement) -> usize {
        let hot_links = self.height.min(2) * LINK_BYTES;
        let hot_bytes = hot_links + HEADER_BYTES + 8;
        let hot_start = offset + self.tower_bytes() - hot_links;
        let room = CACHE_LINE_BYTES - hot_start % CACHE_LINE_BYTES;
        if room >= hot_bytes || placement == Placement::Packed {
            offset
        } else {
            offset + room
        }
    }

    /// The bytes that the node takes in the arena from its start.
    pub(super) fn size_bytes(&self) -> usize {
        let seal_bytes = if self.seal == Seal::Checksum {
            CHECKSUM_BYTES
        } else {
            0
        };
        let entry = HEADER_BYTES + self.key.len().max(8) + self.value.len() + seal_bytes;
        self.tower_bytes() + entry.next_multiple_of(ALIGN_BYTES)
    }

    /// Writes the node to `place`. It has no sequence number yet and is in no list.
    ///
    /// # Safety
    /// `place` must be aligned to `ALIGN_BYTES`, the start of `self.size_bytes()` writable bytes of
    /// `arena` that nobody else reads or writes. The lengths of key and value must fit into 32
    /// bits.
    pub(super) unsafe fn write<'a>(&self, _arena: &'a Arena, place: NonNull<u8>) -> Node<'a> {
        debug_assert!((1..=HEIGHT_MAX).contains(&self.height));
        let lens = self.lens().packed();
        // SAFETY: the lengths, the tower, the header and the entry follow each other within
        // `size_bytes`; all parts are aligned because lengths and tower are multiples of
        // `ALIGN_BYTES`; nobody else uses the bytes.
        unsafe {
            if lens == Lens::LONG {
                let long: LongLens = [self.key.len() as u32, self.value.len() as u32];
                place.cast::<LongLens>().write(long);
            }
            let tower = place.add(self.long_lens_bytes()).cast::<Link>();
            for level in 0..self.height {
                tower.add(level).write(Link::end());
            }
            let header = place.add(self.tower_bytes()).cast::<Header>();
            header.write(Header {
                tag: (self.height as u64) << HEIGHT_SHIFT | self.kind as u64,
                lens,
            });
            let key = header.add(1).cast::<u8>();
            if self.key.len() < 8 {
                key.cast::<[u8; 8]>().write([0; 8]);
            }
            key.copy_from_nonoverlapping(NonNull::from(self.key).cast(), self.key.len());
            let value = key.add(self.key.len().max(8));
            value.copy_from_nonoverlapping(NonNull::from(self.value).cast(), self.value.len());
            Node {
                header,
                arena: PhantomData,
            }
        }
    }
}

/// A node in the arena, which outlives it.
///
/// Its bytes do not change once it is in the list; its links do, atomically.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Node<'a> {
    header: NonNull<Header>,
    arena: PhantomData<&'a Arena>,
}

// SAFETY: a node is a shared reference into the arena: what it reaches is immutable or atomic.
unsafe impl Send for Node<'_> {}
// SAFETY: as above.
unsafe impl Sync for Node<'_> {}

impl<'a> Node<'a> {
    pub(super) fn into_raw(self) -> NonNull<Header> {
        self.header
    }

    /// # Safety
    /// `header` must come from `into_raw`, and its arena must outlive `'a`.
    #[inline(always)]
    pub(super) unsafe fn from_raw(header: NonNull<Header>) -> Self {
        Node {
            header,
            arena: PhantomData,
        }
    }

    #[inline(always)]
    fn header(self) -> &'a Header {
        // SAFETY: a `Node` is made by `Draft::write` or read from a link that was given one, so the
        // header is initialised; it lives as long as the arena and is not written while the node is
        // shared.
        unsafe { self.header.as_ref() }
    }

    /// The link at `level`.
    ///
    /// # Safety
    /// `level` must be below the node's height. It is for every level at which the node was
    /// reached.
    #[inline(always)]
    pub(super) unsafe fn link(self, level: usize) -> &'a Link {
        // SAFETY: the tower grows down from the header, one initialised link a level up to the
        // height.
        unsafe { self.header.cast::<Link>().sub(level + 1).as_ref() }
    }

    /// Counts the levels from `level` down whose next keys are all larger, as far as prefixes show.
    /// The count is at most [`PAST_AT_ONCE`]; below level 0 it continues as if there were more
    /// levels.
    ///
    /// On the way down a tower the keys ahead only get nearer, so the levels to pass over come
    /// first and can be counted without a branch. How far a search descends is a coin toss at each
    /// level, and a branch predictor guesses it wrong half the time.
    ///
    /// # Safety
    /// As for [`link`](Self::link).
    #[inline(always)]
    pub(super) unsafe fn levels_past(self, level: usize, prefix: u64) -> usize {
        let mut past = 0;
        for step in 0..PAST_AT_ONCE {
            // SAFETY: no level above the given one is read.
            let link = unsafe { self.link(level.saturating_sub(step)) };
            // Relaxed: see `Link::load`. If a bound is lowered meanwhile, this passes over a node
            // that is still being inserted, on a level where no search depends on it.
            past += usize::from(link.prefix.load(Ordering::Relaxed) > prefix);
        }
        past
    }

    /// Prefetches the lines that a step on `level` reads: that of the link by which the search
    /// continues, and that where the key's prefix ends, which may begin in the header's. (Where
    /// nodes are aligned, these are mostly one line, and the CPU drops the second request.)
    #[inline(always)]
    pub(super) fn prefetch(self, level: usize) {
        let header = self.header.as_ptr();
        prefetch_read(header.cast::<Link>().wrapping_sub(level + 1));
        prefetch_read(header.cast::<u8>().wrapping_add(HEADER_BYTES + 7));
    }

    /// Prefetches the lines of the header and of a key of ordinary length.
    #[inline(always)]
    pub(super) fn prefetch_key(self) {
        let header = self.header.as_ptr().cast::<u8>();
        prefetch_read(header);
        prefetch_read(header.wrapping_add(HEADER_BYTES + SHORT_KEY_BYTES - 1));
    }

    /// Prefetches the lines after the header's: enough for a key and value of ordinary length.
    #[inline(always)]
    pub(super) fn prefetch_rest(self) {
        let header = self.header.as_ptr().cast::<u8>();
        for offset in (CACHE_LINE_BYTES..=REST_BYTES).step_by(CACHE_LINE_BYTES) {
            prefetch_read(header.wrapping_add(offset));
        }
    }

    #[inline(always)]
    fn key_start(self) -> NonNull<u8> {
        // SAFETY: the key follows the header in the same allocation.
        unsafe { self.header.add(1).cast() }
    }

    #[inline(always)]
    fn lens(self) -> Lens {
        match self.header().lens {
            Lens::LONG => self.long_lens(),
            lens => Lens::unpacked(lens),
        }
    }

    /// Where lengths are for which the header has no room.
    fn long_lens_place(self) -> *const LongLens {
        let tower = self.header.as_ptr().cast::<Link>();
        let tower = tower.wrapping_sub(self.height());
        tower.cast::<LongLens>().wrapping_sub(1)
    }

    #[cold]
    fn long_lens(self) -> Lens {
        // SAFETY: a node whose header does not say its lengths has them before its tower, as
        // `Draft::write` has laid it out; they do not change.
        let [key, value] = unsafe { self.long_lens_place().read() };
        Lens {
            key: key as usize,
            value: value as usize,
        }
    }

    /// The lengths of a node in which anything may be wrong; `None` if they are not in the arena.
    fn readable_lens(self, arena: &Arena) -> Option<Lens> {
        let is_long = self.header().lens == Lens::LONG;
        let place = self.long_lens_place().cast();
        (!is_long || arena.contains(place, size_of::<LongLens>())).then(|| self.lens())
    }

    /// The key of a node in which anything may be wrong; empty if it is not in the arena.
    pub(super) fn readable_key(self, arena: &Arena) -> &'a [u8] {
        match self.readable_lens(arena) {
            Some(lens) if arena.contains(self.address(), HEADER_BYTES + lens.key) => self.key(),
            _ => &[],
        }
    }

    #[inline(always)]
    fn value_start(self, lens: Lens) -> NonNull<u8> {
        // SAFETY: the value follows the padded key in the same allocation.
        unsafe { self.key_start().add(lens.key.max(8)) }
    }

    /// The user key.
    #[inline(always)]
    pub(super) fn key(self) -> &'a [u8] {
        // SAFETY: as many bytes were initialised there and do not change.
        unsafe { NonNull::slice_from_raw_parts(self.key_start(), self.lens().key).as_ref() }
    }

    /// The value; empty for a deletion.
    #[inline(always)]
    pub(super) fn value(self) -> &'a [u8] {
        let lens = self.lens();
        // SAFETY: as many bytes were initialised there and do not change.
        unsafe { NonNull::slice_from_raw_parts(self.value_start(lens), lens.value).as_ref() }
    }

    /// The first eight bytes of the padded key as a big-endian integer. This is the prefix under
    /// the default order, and reading it does not need the key's length.
    #[inline(always)]
    fn first_bytes(self) -> u64 {
        // SAFETY: keys are padded to eight bytes.
        u64::from_be_bytes(unsafe { self.key_start().cast::<[u8; 8]>().read() })
    }

    /// The sequence number of the write.
    #[inline(always)]
    pub(super) fn sequence(self) -> u64 {
        self.header().tag >> SEQUENCE_SHIFT
    }

    /// Value or deletion.
    #[inline(always)]
    pub(super) fn kind(self) -> Kind {
        if self.header().tag & 1 == 1 {
            Kind::Value
        } else {
            Kind::Deletion
        }
    }

    /// The height of the tower.
    pub(super) fn height(self) -> usize {
        (self.header().tag >> HEIGHT_SHIFT & HEIGHT_MASK) as usize
    }

    /// The address of the header, for prefetching or comparing.
    #[inline(always)]
    pub(super) fn address(self) -> *const u8 {
        self.header.as_ptr().cast()
    }

    /// Gives the node its sequence number and, if asked for, its checksum.
    ///
    /// # Safety
    /// The node must not be in a list yet, and no other thread may hold it.
    pub(super) unsafe fn number(self, sequence: u64, seal: Seal) {
        debug_assert!(sequence <= SEQUENCE_MAX);
        // SAFETY: the caller is alone with the node, so the header may be written.
        unsafe {
            let header = self.header.as_ptr();
            (*header).tag |= sequence << SEQUENCE_SHIFT;
        }
        if seal == Seal::Checksum {
            let checksum = self.checksum();
            // SAFETY: `Draft::size_bytes` left room for the checksum behind the value.
            unsafe {
                self.checksum_start(self.lens())
                    .cast::<[u8; 4]>()
                    .write(checksum.to_le_bytes())
            }
        }
    }

    fn checksum_start(self, lens: Lens) -> NonNull<u8> {
        // SAFETY: the checksum follows the value in the same allocation.
        unsafe { self.value_start(lens).add(lens.value) }
    }

    fn checksum(self) -> u32 {
        let (tag, lens) = (self.header().tag, self.lens());
        let mut checksum = crc32c::crc32c(&tag.to_le_bytes());
        checksum = crc32c::crc32c_append(checksum, &(lens.key as u32).to_le_bytes());
        checksum = crc32c::crc32c_append(checksum, &(lens.value as u32).to_le_bytes());
        // SAFETY: the key is padded to eight initialised bytes.
        let padded_key =
            unsafe { NonNull::slice_from_raw_parts(self.key_start(), lens.key.max(8)).as_ref() };
        checksum = crc32c::crc32c_append(checksum, padded_key);
        crc32c::crc32c_append(checksum, self.value())
    }

    /// Reports what is wrong with a sealed node, without trusting anything in it.
    pub(super) fn verify(self, arena: &Arena) -> Result<(), &'static str> {
        let is_within = |lens: &Lens| {
            let size_bytes = HEADER_BYTES + lens.key.max(8) + lens.value + CHECKSUM_BYTES;
            arena.contains(self.address(), size_bytes)
        };
        let Some(lens) = self.readable_lens(arena).filter(is_within) else {
            return Err("its lengths reach beyond the memtable");
        };
        // SAFETY: the four bytes lie within the arena, as was just checked.
        let stored = unsafe { self.checksum_start(lens).cast::<[u8; 4]>().read() };
        if u32::from_le_bytes(stored) == self.checksum() {
            Ok(())
        } else {
            Err("its checksum does not match")
        }
    }

    /// Compares the node with the position sought.
    #[inline(always)]
    pub(super) fn stands(self, order: &KeyOrder, target: &Target<'_>) -> Stands {
        if let KeyOrder::Bytewise = order {
            let first_bytes = self.first_bytes();
            if first_bytes != target.prefix {
                return if first_bytes < target.prefix {
                    Stands::Before
                } else {
                    Stands::Behind
                };
            }
        }
        match order.compare(self.key(), target.key) {
            KeyOrdering::Less => Stands::Before,
            // Newer versions come first.
            KeyOrdering::Equal if self.sequence() > target.sequence => Stands::Before,
            KeyOrdering::Equal => Stands::At,
            KeyOrdering::Greater => Stands::Behind,
        }
    }

    /// Whether the node is a version of this key.
    #[cfg(any(test, feature = "study"))]
    #[inline(always)]
    pub(super) fn has_key(self, order: &KeyOrder, key: &[u8]) -> bool {
        match order {
            KeyOrder::Bytewise => self.key() == key,
            KeyOrder::Custom(comparator) => comparator.compare(self.key(), key).is_eq(),
        }
    }
}

/// The position of a node relative to the position sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stands {
    /// Before it.
    Before,
    /// At it: a version of the key sought that the snapshot sees. There may be newer ones.
    At,
    /// Behind it, with another key.
    Behind,
}

/// A position in the list: the newest version of `key` that `sequence` sees.
#[derive(Clone, Copy)]
pub(super) struct Target<'k> {
    pub(super) key: &'k [u8],
    pub(super) prefix: u64,
    pub(super) sequence: u64,
    /// Entries with this sequence number or an older one have expired.
    pub(super) expired_sequence: u64,
}

impl<'k> Target<'k> {
    /// Fills arrays.
    pub(super) const NONE: Target<'static> = Target {
        key: &[],
        prefix: 0,
        sequence: 0,
        expired_sequence: 0,
    };

    #[inline(always)]
    pub(super) fn new(order: &KeyOrder, key: &'k [u8], read_point: ReadPoint) -> Self {
        Target {
            key,
            prefix: order.prefix(key),
            sequence: read_point.sequence,
            expired_sequence: read_point.expired_sequence,
        }
    }
}
