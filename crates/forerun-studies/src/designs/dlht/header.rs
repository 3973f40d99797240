//! A bucket's header: which slots of its chain hold an entry, and the further lines of the chain.
//!
//! ```text
//!   127          100   …   46          19  18                   3  2      0
//!   | link 3          | … | link 0       | occupied, in the links | here  |        a link: 27 bits, 0 is none
//! ```

/// Slots in a bucket itself, beside its header.
pub(super) const SLOTS: usize = 3;
/// Slots in each further line of a chain.
pub(super) const LINK_SLOTS: usize = 4;
/// Further lines of a chain.
pub(super) const LINKS: usize = 4;
/// The most further lines of a table: their numbers and "none" fit a link.
pub(super) const LINE_MAX: u32 = (1 << LINK_BITS) - 1;

/// Slots of the longest chain.
pub(super) const CHAIN_SLOTS: usize = SLOTS + LINKS * LINK_SLOTS;
const LINK_BITS: usize = 27;

const _: () = assert!(CHAIN_SLOTS + LINKS * LINK_BITS <= 128);

/// A header. Zero is an empty bucket without links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Header(u128);

impl Header {
    /// A further line of the chain, if there is that many.
    #[inline(always)]
    pub(super) fn link(self, nth: usize) -> Option<u32> {
        let link = (self.0 >> (CHAIN_SLOTS + nth * LINK_BITS)) as u32 & LINE_MAX;
        (nth < LINKS).then(|| link.checked_sub(1)).flatten()
    }

    /// The number of further lines.
    pub(super) fn links(self) -> usize {
        let has = |&nth: &usize| self.link(nth).is_some();
        (0..LINKS).take_while(has).count()
    }

    pub(super) fn set_link(&mut self, nth: usize, line: u32) {
        self.0 |= u128::from(line + 1) << (CHAIN_SLOTS + nth * LINK_BITS);
    }

    /// Takes the last line off the chain if it has no entry.
    pub(super) fn unlink_empty(&mut self) -> Option<u32> {
        let last = self.links().checked_sub(1)?;
        let line = self.link(last).filter(|_| self.in_link(last) == 0)?;
        self.0 &= !(u128::from(LINE_MAX) << (CHAIN_SLOTS + last * LINK_BITS));
        Some(line)
    }

    /// The occupied slots of the bucket: a bit for each.
    #[inline(always)]
    pub(super) fn here(self) -> u32 {
        self.0 as u32 & ((1 << SLOTS) - 1)
    }

    /// The occupied slots of a further line.
    #[inline(always)]
    pub(super) fn in_link(self, nth: usize) -> u32 {
        self.0 as u32 >> (SLOTS + nth * LINK_SLOTS) & ((1 << LINK_SLOTS) - 1)
    }

    /// The first free slot of the chain, counted through its lines.
    pub(super) fn free_slot(self) -> usize {
        (!self.0).trailing_zeros().min(CHAIN_SLOTS as u32) as usize
    }

    pub(super) fn set_occupied(&mut self, slot: usize, occupied: bool) {
        self.0 = self.0 & !(1 << slot) | u128::from(occupied) << slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_links_do_not_touch_each_other() {
        let mut header = Header::default();
        for nth in 0..LINKS {
            assert_eq!((header.link(nth), header.links()), (None, nth));
            header.set_link(nth, LINE_MAX - 1 - nth as u32);
        }
        for slot in 0..CHAIN_SLOTS {
            assert_eq!(header.free_slot(), slot);
            header.set_occupied(slot, true);
        }
        assert_eq!((header.here(), header.free_slot()), (0b111, CHAIN_SLOTS));
        for nth in 0..LINKS {
            assert_eq!(header.in_link(nth), 0b1111);
            assert_eq!(header.link(nth), Some(LINE_MAX - 1 - nth as u32));
        }
        assert_eq!(header.link(LINKS), None);
        header.set_occupied(SLOTS + 1, false);
        assert_eq!((header.free_slot(), header.in_link(0)), (4, 0b1101));
        for nth in (0..LINKS).rev() {
            for slot in SLOTS + nth * LINK_SLOTS..SLOTS + (nth + 1) * LINK_SLOTS {
                assert_eq!(header.unlink_empty(), None);
                header.set_occupied(slot, false);
            }
            assert_eq!(header.unlink_empty(), Some(LINE_MAX - 1 - nth as u32));
            assert_eq!(header.links(), nth);
        }
        assert_eq!((header.unlink_empty(), header.here()), (None, 0b111));
    }
}
