//! The bytes that a side's rows occupy, and layers of a destination that share bytes.
//!
//! ```text
//!   apart = 1 row:    |row 0|row 1|row 2|              layer 1's row 0 is layer 0's row 1: they overlap
//!                           |row 0|row 1|row 2|
//!   between rows:     |row 0|     |row 1|     |        they do not overlap
//!                           |row 0|     |row 1|
//! ```

use super::request::{RowLayout, RowPages};
use crate::gather_error::{GatherError, Operand, Side};

/// The maximum number of rows in pages. The kernels divide row numbers in 32 bits.
const PAGED_ROWS_MAX: u64 = 1 << 32;

/// The rows of each layer.
pub(super) struct Rows {
    row_bytes: u64,
    stride_bytes: u64,
    rows: u64,
    pages: Option<RowPages>,
    /// From a layer's row 0 to the end of its last row.
    pub(super) extent_bytes: u64,
}

impl Rows {
    /// Checks a layout's rows and pages.
    pub(super) fn new(side: Side, layout: &RowLayout, row_bytes: u64) -> Result<Rows, GatherError> {
        let too_large = || GatherError::TooLarge {
            part: Operand::Rows(side),
        };
        let rows = layout.rows;
        let together = layout.pages.map_or(rows, |pages| pages.rows.into());
        if rows > 0 && together > 1 && layout.stride_bytes < row_bytes {
            return Err(GatherError::RowPastStride {
                side,
                row_bytes,
                stride_bytes: layout.stride_bytes,
            });
        }
        let mut checked = Rows {
            row_bytes,
            stride_bytes: layout.stride_bytes,
            rows,
            pages: layout.pages,
            extent_bytes: 0,
        };
        if let Some(pages) = layout.pages {
            if together == 0 || !rows.is_multiple_of(together) {
                return Err(GatherError::PartialPage {
                    side,
                    rows,
                    page_rows: pages.rows,
                });
            }
            if rows > PAGED_ROWS_MAX {
                return Err(GatherError::PagedRowsBeyond {
                    side,
                    rows,
                    max: PAGED_ROWS_MAX,
                });
            }
        }
        if rows == 0 {
            return Ok(checked);
        }
        let of_page = (together - 1)
            .checked_mul(layout.stride_bytes)
            .and_then(|bytes| bytes.checked_add(row_bytes))
            .ok_or_else(too_large)?;
        checked.extent_bytes = of_page;
        if let Some(pages) = layout.pages.filter(|_| rows > together) {
            if of_page > pages.bytes {
                return Err(GatherError::RowsPastPage {
                    side,
                    bytes: of_page,
                    page_bytes: pages.bytes,
                });
            }
            let before = (rows / together - 1).checked_mul(pages.bytes);
            let extent = before.and_then(|bytes| bytes.checked_add(of_page));
            checked.extent_bytes = extent.ok_or_else(too_large)?;
        }
        Ok(checked)
    }

    /// The pages, if there are several.
    fn several_pages(&self) -> Option<RowPages> {
        self.pages.filter(|pages| self.rows > pages.rows.into())
    }

    /// The rows of one page, or all of them if there are no pages.
    fn page(&self) -> Rows {
        let rows = self.pages.map_or(self.rows, |pages| pages.rows.into());
        Rows {
            row_bytes: self.row_bytes,
            stride_bytes: self.stride_bytes,
            rows,
            pages: None,
            extent_bytes: (rows - 1) * self.stride_bytes + self.row_bytes,
        }
    }

    /// Whether two layers at this distance overlap.
    fn meet(&self, apart: u64) -> bool {
        if apart >= self.extent_bytes {
            return false;
        }
        if let Some(pages) = self.several_pages() {
            let (page, count) = (self.page(), self.rows / u64::from(pages.rows));
            // The page that begins before, and the next one if it exists.
            let (pages_on, past) = (apart / pages.bytes, apart % pages.bytes);
            return page.meet(past) || (pages_on + 1 < count && page.meet(pages.bytes - past));
        }
        if self.rows == 1 {
            return apart < self.row_bytes;
        }
        let past = apart % self.stride_bytes;
        // The previous row, and the next one if it exists.
        let rows_on = apart / self.stride_bytes;
        past < self.row_bytes
            || (rows_on + 1 < self.rows && self.stride_bytes - past < self.row_bytes)
    }

    /// The first two overlapping layers, given `layers` layers at a fixed step.
    pub(super) fn overlap_at_stride(&self, step: u64, layers: u32) -> Option<(u32, u32)> {
        let near = (1..layers).take_while(|layer| {
            // Layers far enough from the first are far enough from each other.
            step == 0 || u64::from(layer - 1) * step < self.extent_bytes
        });
        let meets = |layer: &u32| self.meet(u64::from(*layer) * step);
        near.into_iter().find(meets).map(|layer| (0, layer))
    }

    /// Two overlapping layers, given the addresses of each layer's row 0.
    pub(super) fn overlap_of(&self, starts: &[u64]) -> Option<(u32, u32)> {
        let mut order: Vec<u32> = (0..starts.len() as u32).collect();
        let start = |layer: u32| starts[layer as usize];
        order.sort_by_key(|&layer| start(layer));
        // Runs of layers that overlap the previous one.
        for near in order.chunk_by(|&low, &high| start(high) - start(low) < self.extent_bytes) {
            if near.len() == 1 || self.are_spaced_apart(near.iter().map(|&layer| start(layer))) {
                continue;
            }
            for (at, &low) in near.iter().enumerate() {
                for &high in &near[at + 1..] {
                    let apart = start(high) - start(low);
                    if apart >= self.extent_bytes {
                        break;
                    }
                    if self.meet(apart) {
                        return Some((low.min(high), low.max(high)));
                    }
                }
            }
        }
        None
    }

    /// Whether the positions of these layers between two rows keep them apart, however many rows
    /// they have. This is so for the layers of a page-first pool, which are too many for pairwise
    /// checks. `false` proves nothing.
    fn are_spaced_apart(&self, starts: impl Iterator<Item = u64>) -> bool {
        let stride = self.stride_bytes;
        let page_bytes = match self.several_pages() {
            // Every page begins at the same position between two rows.
            Some(pages) if stride != 0 && pages.bytes.is_multiple_of(stride) => pages.bytes,
            None if self.rows > 1 => stride,
            _ => return false,
        };
        let mut positions: Vec<(u64, u64)> = starts
            .map(|start| (start % stride, start % page_bytes))
            .collect();
        positions.sort_unstable();
        let groups = positions.chunk_by(|one, other| one.0 == other.0);
        let residues: Vec<u64> = groups.clone().map(|group| group[0].0).collect();
        let page_extent = self.page().extent_bytes;
        has_gaps(&residues, stride, self.row_bytes)
            && groups.into_iter().all(|group| {
                let in_page: Vec<u64> = group.iter().map(|position| position.1).collect();
                has_gaps(&in_page, page_bytes, page_extent)
            })
    }
}

/// Whether ascending positions on a circle of `period` bytes leave `len` bytes after each.
fn has_gaps(positions: &[u64], period: u64, len: u64) -> bool {
    let (Some(first), Some(last)) = (positions.first(), positions.last()) else {
        return true;
    };
    positions.len() == 1
        || (positions.windows(2).all(|pair| pair[1] - pair[0] >= len)
            && first + period - last >= len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(rows: &Rows, start: u64, row: u64) -> u64 {
        match rows.pages {
            None => start + row * rows.stride_bytes,
            Some(pages) => {
                let (page, row) = (row / u64::from(pages.rows), row % u64::from(pages.rows));
                start + page * pages.bytes + row * rows.stride_bytes
            }
        }
    }

    /// Compares every byte of every row with those of every other layer.
    fn share_bytes(rows: &Rows, starts: &[u64]) -> bool {
        let mut taken = std::collections::HashSet::new();
        let bytes = starts.iter().flat_map(|&start| {
            (0..rows.rows).flat_map(move |row| {
                let first = address(rows, start, row);
                first..first + rows.row_bytes
            })
        });
        let bytes: Vec<u64> = bytes.collect();
        !bytes.into_iter().all(|byte| taken.insert(byte))
    }

    fn rows(row_bytes: u64, stride_bytes: u64, count: u64, pages: Option<(u32, u64)>) -> Rows {
        let layout = RowLayout::dense(count, stride_bytes)
            .pages(pages.map(|(rows, bytes)| RowPages { rows, bytes }));
        Rows::new(Side::Device, &layout, row_bytes).unwrap()
    }

    #[test]
    fn layers_overlap_exactly_if_they_share_a_byte() {
        let (mut met, mut apart) = (0, 0);
        for (row_bytes, stride_bytes, count, pages) in [
            (3, 3, 4, None),
            (3, 8, 4, None),
            (2, 7, 1, None),
            (1, 5, 3, None),
            (2, 4, 6, Some((3, 12))),
            (2, 6, 6, Some((2, 24))),
            (2, 5, 6, Some((2, 17))),
            (3, 0, 4, Some((1, 7))),
            (3, 4, 2, Some((2, 0))),
        ] {
            let rows = rows(row_bytes, stride_bytes, count, pages);
            for step in 0..40 {
                for layers in 1..5u32 {
                    let starts: Vec<u64> = (0..u64::from(layers)).map(|l| 100 + l * step).collect();
                    let shared = share_bytes(&rows, &starts);
                    assert_eq!(rows.overlap_at_stride(step, layers).is_some(), shared);
                    assert_eq!(rows.overlap_of(&starts).is_some(), shared);
                    // Two pools whose layers lie between each other's rows or not.
                    let two = [starts.clone(), starts.iter().map(|s| s + 11).collect()].concat();
                    let shared = share_bytes(&rows, &two);
                    assert_eq!(rows.overlap_of(&two).is_some(), shared, "{two:?}");
                    *if shared { &mut met } else { &mut apart } += 1;
                }
            }
        }
        assert!(met > 100 && apart > 100, "{met} {apart}");
    }

    #[test]
    fn layers_of_a_pool_are_known_to_be_apart_by_their_spacing() {
        // A page-first pool of 80 layers, and one with pages of 16 rows, 8 heads and 80 layers.
        let page_first = rows(1024, 80 * 1024, 4096, None);
        assert!(page_first.are_spaced_apart((0..80).map(|layer| 64 + layer * 1024)));
        assert!(!page_first.are_spaced_apart((0..80).map(|layer| 64 + layer * 1023)));
        let page_head = rows(128, 80 * 128, 4096, Some((16, 8 * 16 * 80 * 128)));
        let start = |layer: u64| 64 + layer % 80 * 128 + layer / 80 * 16 * 80 * 128;
        assert!(page_head.are_spaced_apart((0..8 * 80).map(start)));
        let start = |layer: u64| 64 + layer % 80 * 128 + layer / 80 * 15 * 80 * 128;
        assert!(!page_head.are_spaced_apart((0..8 * 80).map(start)));
    }
}
