//! Finds the kind of memory at an address: asks the driver, or searches a list of buffers.

use crate::gather_error::GatherError;
use crate::memory_type::{MemoryType, PointerAttributes};
use std::cell::RefCell;

/// A source of locations: the driver, or a list of buffers.
pub trait Locate {
    /// The memory at `address`. Unknown memory is pageable.
    ///
    /// # Errors
    /// [`GatherError::Unknown`] if there is no answer.
    fn locate(&self, address: u64) -> Result<PointerAttributes, GatherError>;
}

/// A list of buffers.
#[derive(Clone, Debug, Default)]
pub struct KnownMemory {
    /// Ascending by address, then by length.
    ranges: Vec<(u64, u64, MemoryType, u64)>,
}

impl KnownMemory {
    /// Adds `len` bytes at `address`, with `device_address` as the device's address.
    pub fn add(&mut self, address: u64, len: u64, memory: MemoryType, device_address: u64) {
        let before = self
            .ranges
            .partition_point(|&(start, length, ..)| (start, length) < (address, len));
        self.ranges
            .insert(before, (address, len, memory, device_address));
    }
}

impl Locate for KnownMemory {
    fn locate(&self, address: u64) -> Result<PointerAttributes, GatherError> {
        // The end counts as inside, because an empty part of a buffer may be there.
        let inside = |&&(start, len, ..): &&(u64, u64, MemoryType, u64)| address - start <= len;
        // Where one buffer ends and another starts, take the one that starts.
        let after = self.ranges.partition_point(|range| range.0 <= address);
        let best = self.ranges[..after].iter().rev().find(inside);
        Ok(match best {
            Some(&(start, len, memory, device)) => PointerAttributes {
                memory,
                device_address: device + (address - start),
                range: Some((start, len)),
                is_piece: false,
            },
            None => PointerAttributes {
                memory: MemoryType::Pageable,
                device_address: address,
                range: None,
                is_piece: false,
            },
        })
    }
}

/// Answers from a list of buffers, otherwise from another source, which is asked once about each
/// range of memory. It is for one request: memory may change between requests.
pub struct LocatedRanges<'a> {
    known: &'a KnownMemory,
    source: &'a dyn Locate,
    /// Ranges that the source has reported, ascending, each with the attributes of its first byte.
    /// Pieces that follow each other are one range, so that a walk over many is short the next
    /// time.
    found: RefCell<Vec<PointerAttributes>>,
}

impl<'a> LocatedRanges<'a> {
    /// Nothing is found yet.
    pub fn new(known: &'a KnownMemory, source: &'a dyn Locate) -> LocatedRanges<'a> {
        LocatedRanges {
            known,
            source,
            found: RefCell::default(),
        }
    }
}

impl Locate for LocatedRanges<'_> {
    fn locate(&self, address: u64) -> Result<PointerAttributes, GatherError> {
        let known = self.known.locate(address)?;
        if known
            .range
            .is_some_and(|(start, len)| address - start < len)
        {
            return Ok(known);
        }
        let mut found = self.found.borrow_mut();
        let start_of = |at: &PointerAttributes| at.range.map_or(0, |(start, _)| start);
        let after = found.partition_point(|at| start_of(at) <= address);
        if let Some(at) = after.checked_sub(1).and_then(|at| found.get(at))
            && let Some((start, len)) = at.range
            && address - start < len
        {
            let device_address = at.device_address + (address - start);
            return Ok(PointerAttributes {
                device_address,
                ..*at
            });
        }
        let located = self.source.locate(address)?;
        if let Some((start, len)) = located.range {
            let device_address = located.device_address.wrapping_sub(address - start);
            let first = PointerAttributes {
                device_address,
                ..located
            };
            let before = after.checked_sub(1).and_then(|at| found.get_mut(at));
            match before.filter(|before| is_continued(before, &first)) {
                Some(before) => before.range = before.range.map(|(start, of)| (start, of + len)),
                None => found.insert(after, first),
            }
        }
        Ok(located)
    }
}

/// Whether both ranges are pieces of the same device's memory, and the second one begins where the
/// first one ends.
fn is_continued(first: &PointerAttributes, second: &PointerAttributes) -> bool {
    let (Some((start, len)), Some((next, _))) = (first.range, second.range) else {
        return false;
    };
    let are_pieces = first.is_piece && second.is_piece;
    are_pieces && first.memory == second.memory && start.checked_add(len) == Some(next)
}

/// The end of the memory around an address, for a span whose size the caller knows. Device memory
/// that was mapped piece by piece (`cuMemMap`, as PyTorch's expandable segments) may be reported
/// piece by piece, so whatever of the same device follows without a gap belongs to it, up to
/// `wanted`.
pub(super) fn end_of(
    memory: &dyn Locate,
    at: &PointerAttributes,
    range: (u64, u64),
    wanted: u64,
) -> Result<u64, GatherError> {
    let goes_on = matches!(at.memory, MemoryType::Device { .. });
    end_of_ranges(memory, at, range, wanted, |_| goes_on)
}

/// Like [`end_of`], for memory whose size nobody knows. An allocation of its own ends it: what
/// follows may be anybody's.
pub(super) fn end_of_pieces(
    memory: &dyn Locate,
    at: &PointerAttributes,
    range: (u64, u64),
    wanted: u64,
) -> Result<u64, GatherError> {
    end_of_ranges(memory, at, range, wanted, |next| {
        at.is_piece && next.is_piece
    })
}

fn end_of_ranges(
    memory: &dyn Locate,
    at: &PointerAttributes,
    (start, len): (u64, u64),
    wanted: u64,
    goes_on: impl Fn(&PointerAttributes) -> bool,
) -> Result<u64, GatherError> {
    let mut end = start.saturating_add(len);
    // The range itself is asked whether it may go on, before the driver is asked about the next.
    while end < wanted && goes_on(at) {
        let next = memory.locate(end)?;
        match next.range {
            // Of pieces that were found before, the first may be asked for together with others.
            Some((start, len))
                if start <= end
                    && start.saturating_add(len) > end
                    && next.memory == at.memory
                    && goes_on(&next) =>
            {
                end = start.saturating_add(len);
            }
            _ => break,
        }
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Counts the questions.
    struct Counted(KnownMemory, Cell<usize>);

    impl Locate for Counted {
        fn locate(&self, address: u64) -> Result<PointerAttributes, GatherError> {
            self.1.set(self.1.get() + 1);
            let at = self.0.locate(address)?;
            // What is mapped piece by piece.
            let is_piece = (0x1000..0x1200).contains(&address);
            Ok(PointerAttributes { is_piece, ..at })
        }
    }

    #[test]
    fn each_range_is_asked_for_once_and_answers_as_its_source_does() {
        let mut source = Counted(KnownMemory::default(), Cell::new(0));
        let device = MemoryType::Device { ordinal: 0 };
        source.0.add(0x1000, 0x100, device, 0x1000);
        source.0.add(0x1100, 0x100, device, 0x1100);
        source.0.add(0x9000, 0x100, MemoryType::Pinned, 0x200);
        let mut known = KnownMemory::default();
        known.add(0x5000, 8, MemoryType::Pinned, 0x7000);
        let ranges = LocatedRanges::new(&known, &source);
        for address in [0x10f0, 0x1000, 0x1100, 0x9010, 0x9000, 0x90ff] {
            let [found, direct] = [&ranges as &dyn Locate, &source.0].map(|memory| {
                let at = memory.locate(address).unwrap();
                (at.memory, at.device_address, at.range)
            });
            assert_eq!(found, direct);
        }
        // Both pieces of the device's memory.
        let at = ranges.locate(0x11ff).unwrap();
        assert_eq!(
            (at.range, at.device_address),
            (Some((0x1000, 0x200)), 0x11ff)
        );
        assert_eq!(end_of(&ranges, &at, (0x1000, 0x100), 0x1180), Ok(0x1200));
        assert_eq!(source.1.get(), 3);
        assert_eq!(ranges.locate(0x5004), known.locate(0x5004));
        assert_eq!(source.1.get(), 3);
        assert_eq!(ranges.locate(0x4000), source.0.locate(0x4000));
    }

    #[test]
    fn pieces_of_one_device_without_a_gap_are_one_memory() {
        let mut memory = KnownMemory::default();
        let device = MemoryType::Device { ordinal: 0 };
        memory.add(0x1000, 0x100, device, 0x1000);
        memory.add(0x1100, 0x100, device, 0x1100);
        memory.add(0x1200, 0x100, MemoryType::Device { ordinal: 1 }, 0x1200);
        memory.add(0x2000, 0x100, MemoryType::Pinned, 0x2000);
        memory.add(0x2100, 0x100, MemoryType::Pinned, 0x2100);
        let end = |start: u64, wanted: u64| {
            let at = memory.locate(start).unwrap();
            end_of(&memory, &at, at.range.unwrap(), wanted).unwrap()
        };
        assert_eq!(end(0x1010, 0x1080), 0x1100);
        assert_eq!(end(0x1010, 0x1180), 0x1200);
        assert_eq!(end(0x1010, 0x1280), 0x1200);
        assert_eq!(end(0x2010, 0x2180), 0x2100);
    }
}
