//! The states of all blocks, in memory that is taken from the system only as blocks are used.

use super::block_state::Meta;
use forerun_core::{Pages, Region, RegionError};
use std::ops::Deref;

/// A slice of [`Meta`], initially all zero.
#[derive(Debug)]
pub(super) struct Metas {
    region: Region,
    len: usize,
}

impl Metas {
    pub(super) fn new(len: usize) -> Result<Metas, RegionError> {
        let len_bytes = len * size_of::<Meta>();
        Ok(Metas {
            region: Region::new(len_bytes, Pages::Small)?,
            len,
        })
    }
}

const _: () = assert!(
    align_of::<Meta>() <= forerun_core::region::ALIGN_BYTES_MIN && !std::mem::needs_drop::<Meta>()
);

impl Deref for Metas {
    type Target = [Meta];

    #[inline(always)]
    fn deref(&self) -> &[Meta] {
        // SAFETY: the region has this many zeroed bytes, aligned for a Meta as asserted above. A
        // Meta consists of atomic integers, for which zero is valid. Only this function gives the
        // bytes out, as shared references that borrow the region.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr().cast(), self.len) }
    }
}
