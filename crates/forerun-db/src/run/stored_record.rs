//! Reads the one record that a run's index has found, from the file, in a leaf that is not in
//! memory.
//!
//! ```text
//!   place ─> place of the leaf ─> file │ … │ tag │ value_len │ suffix │ value │ … │
//!                                          └──────── one short read ────────┘
//! ```
//!
//! The copy of a whole page costs several times what the system call does. So a record is read
//! alone if the leaf was verified before, is not compressed and should not enter the cache, and if
//! the system has it in memory. Everything else is left to a search through the pages.

use super::SearchKey;
use super::indexed_record::{Prefix, answer, record_len};
use super::leaf_places::LeafPlace;
use super::lookup::Found;
use super::page::{LEAF_RECORD_BYTES, LONG_TAG_SUFFIX};
use super::reader::Run;
use super::record_index::RecordAddress;
use crate::cache::ScratchPage;
use crate::cache::cached_reads::PartOfPage;
use crate::cache::driver::Reads;

/// The longest record that is read alone.
const RECORD_BYTES_MAX: usize = 4 << 10;

/// The record at an address that an index has found, in a leaf that is not in memory.
#[derive(Clone, Copy)]
pub(crate) struct StoredRecord<'g> {
    run: &'g Run,
    address: RecordAddress,
}

impl<'g> StoredRecord<'g> {
    /// The record at this address. Prefetches what [`find`](Self::find) needs to know of its leaf.
    /// `None` if the index does not know where the record begins.
    #[inline(always)]
    pub(crate) fn prefetched(run: &'g Run, address: RecordAddress) -> Option<StoredRecord<'g>> {
        if run.average_record_bytes() > RECORD_BYTES_MAX {
            return None;
        }
        run.leaf_places()?.prefetch(address.page);
        (address.offset > 0).then_some(StoredRecord { run, address })
    }

    /// The answer of the record, which is read into `buffer`. `None` if a search has to find it.
    pub(crate) fn find<'b>(
        self,
        key: &SearchKey<'_>,
        reads: &Reads<'_>,
        buffer: &'b mut ScratchPage,
    ) -> Option<Found<'b>> {
        let StoredRecord { run, address } = self;
        let part = reads.part_of_page(run, address.page)?;
        // Read after the page was found to be verified: its place was noted before that.
        let place = run.leaf_places()?.get(address.page)?;
        if key.key.len() >= place.prefix_len + LONG_TAG_SUFFIX {
            return None;
        }
        match read_record(address, place, &part, usual_bytes(run), buffer)? {
            Stored::Long => return None,
            Stored::Odd => {}
            Stored::Short => {
                let prefix = Prefix::Short(place.prefix_len, place.prefix);
                if let Some(Found::Value(value)) = answer(run, buffer.bytes(), prefix, key) {
                    part.is_verified().then_some(())?;
                    part.note_wanted();
                    reads.count_miss();
                    return Some(Found::Value(value));
                }
            }
        }
        // Damage may be why. The search that follows verifies the leaf.
        part.distrust();
        None
    }
}

/// Bytes of an average record, if they can be one.
fn usual_bytes(run: &Run) -> usize {
    run.average_record_bytes()
        .clamp(LEAF_RECORD_BYTES, RECORD_BYTES_MAX)
}

/// What is stored at an address.
enum Stored {
    /// A record that was read.
    Short,
    /// A record that is too long to be read alone.
    Long,
    /// No record that a leaf can have there.
    Odd,
}

/// Reads the record at an address. `None` if the system does not have it in memory.
fn read_record(
    address: RecordAddress,
    place: LeafPlace,
    part: &PartOfPage<'_>,
    usual: usize,
    buffer: &mut ScratchPage,
) -> Option<Stored> {
    let at = address.offset as usize;
    let room = place.raw_len.saturating_sub(at);
    if at < place.records_start || room < LEAF_RECORD_BYTES {
        return Some(Stored::Odd);
    }
    let offset = place.offset + at as u64;
    let len = usual.min(room);
    part.fill(buffer.bytes_mut(len)?, offset)?;
    let whole = match record_len(buffer.bytes()) {
        Some(whole) if whole <= room => whole,
        _ => return Some(Stored::Odd),
    };
    if whole > RECORD_BYTES_MAX {
        return Some(Stored::Long);
    }
    if whole > len {
        part.fill(buffer.bytes_mut(whole)?, offset)?;
    }
    Some(Stored::Short)
}
