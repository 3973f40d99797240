//! Finds layers of a destination that share bytes, for consecutive and for interleaved layers.
//!
//! ```text
//!   apart = 1 row:    |row 0|row 1|row 2|              layer 1's row 0 is layer 0's row 1: they overlap
//!                           |row 0|row 1|row 2|
//!   between rows:     |row 0|     |row 1|     |        they do not overlap
//!                           |row 0|     |row 1|
//! ```

/// The rows of each layer.
pub(super) struct Rows {
    pub(super) row_bytes: u64,
    pub(super) stride_bytes: u64,
    pub(super) rows: u64,
    /// From a layer's row 0 to the end of its last row.
    pub(super) extent_bytes: u64,
}

impl Rows {
    /// Whether two layers at this distance overlap.
    fn meet(&self, apart: u64) -> bool {
        if apart >= self.extent_bytes {
            return false;
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
        for (at, &low) in order.iter().enumerate() {
            for &high in &order[at + 1..] {
                let apart = start(high) - start(low);
                if apart >= self.extent_bytes {
                    break;
                }
                if self.meet(apart) {
                    return Some((low.min(high), low.max(high)));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares every byte of every row with those of every other layer.
    fn share_bytes(rows: &Rows, starts: &[u64]) -> bool {
        let mut taken = std::collections::HashSet::new();
        let row = |start: u64, row: u64| start + row * rows.stride_bytes;
        let bytes = starts.iter().flat_map(|&start| {
            (0..rows.rows).flat_map(move |r| row(start, r)..row(start, r) + rows.row_bytes)
        });
        let bytes: Vec<u64> = bytes.collect();
        !bytes.into_iter().all(|byte| taken.insert(byte))
    }

    #[test]
    fn layers_overlap_exactly_if_they_share_a_byte() {
        let (mut met, mut apart) = (0, 0);
        for (row_bytes, stride_bytes, count) in [(3, 3, 4), (3, 8, 4), (2, 7, 1), (1, 5, 3)] {
            let rows = Rows {
                row_bytes,
                stride_bytes,
                rows: count,
                extent_bytes: (count - 1) * stride_bytes + row_bytes,
            };
            for step in 0..40 {
                for layers in 1..5u32 {
                    let starts: Vec<u64> = (0..u64::from(layers)).map(|l| 100 + l * step).collect();
                    let shared = share_bytes(&rows, &starts);
                    assert_eq!(rows.overlap_at_stride(step, layers).is_some(), shared);
                    assert_eq!(rows.overlap_of(&starts).is_some(), shared);
                    *if shared { &mut met } else { &mut apart } += 1;
                }
            }
        }
        assert!(met > 50 && apart > 50, "{met} {apart}");
    }
}
