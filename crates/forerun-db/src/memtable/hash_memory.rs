//! Lines of the hash index in the arena.
//!
//! ```text
//!   arena   │ nodes │ padding to a line │ line │ line │ … │ nodes
//!                                        ▲
//!                                        location: the offset in units of a line
//! ```

use std::ptr::NonNull;

use super::arena::{Arena, Full};
use super::hash_bucket::Line;
use super::node::ALIGN_BYTES;

/// Where lines start. Locations are counted in this unit.
const LINE_UNIT_BYTES: usize = align_of::<Line>();

/// The line at a location, which must be one of the arena's.
#[inline(always)]
pub(super) fn line_at(arena: &Arena, location: u32) -> NonNull<Line> {
    arena.at(location as usize * LINE_UNIT_BYTES).cast()
}

/// Takes memory for `lines` lines, which the caller must write, and returns the location of the
/// first one. It calls `may_take` first, which counts the memory if it agrees.
pub(super) fn take_lines(
    arena: &Arena,
    lines: usize,
    may_take: &dyn Fn(usize) -> bool,
) -> Result<u32, Full> {
    let len_bytes = lines * size_of::<Line>();
    let end_of = |start: usize| {
        start
            .next_multiple_of(LINE_UNIT_BYTES)
            .saturating_add(len_bytes)
    };
    // What is counted includes the padding in front.
    let counted_bytes = len_bytes + LINE_UNIT_BYTES - ALIGN_BYTES;
    if !may_take(counted_bytes) {
        return Err(Full {
            needed_bytes: len_bytes,
            used_bytes: arena.used_bytes(),
        });
    }
    let (start, taken_bytes) = arena.allocate_with(end_of)?;
    let first_bytes = arena.offset(start) + taken_bytes - len_bytes;
    Ok((first_bytes / LINE_UNIT_BYTES) as u32)
}
