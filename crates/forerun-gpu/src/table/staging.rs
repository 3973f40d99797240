//! The layout of the staging memory through which batches go to a device and come back.

use super::params::TableOp;

/// One piece of memory divided into parts, each aligned to 256 bytes.
#[derive(Default)]
pub(super) struct Layout {
    pub(super) bytes: u64,
}

impl Layout {
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        let at = self.bytes;
        self.bytes = self.bytes.saturating_add(bytes).next_multiple_of(256);
        at
    }

    /// Places a part if it is wanted at all; otherwise [`Layout::place`] gives 0.
    pub(super) fn take_if(&mut self, wanted: bool, bytes: u64) -> Option<u64> {
        wanted.then(|| self.take(bytes))
    }

    pub(super) fn place(base: u64, at: Option<u64>) -> u64 {
        at.map_or(0, |at| base + at)
    }
}

/// Staging memory for output entries.
pub(super) struct EntryLayout {
    at: Option<[u64; 5]>,
}

impl EntryLayout {
    pub(super) fn take(
        layout: &mut Layout,
        wanted: bool,
        entries: u64,
        row_bytes: u64,
    ) -> EntryLayout {
        let lengths = [
            8,
            entries * 8,
            entries * row_bytes,
            entries * 8,
            entries * 8,
        ];
        EntryLayout {
            at: wanted.then(|| lengths.map(|bytes| layout.take(bytes))),
        }
    }

    pub(super) fn enter(&self, base: u64, op: &mut TableOp) {
        if let Some([count, keys, rows, scores, places]) = self.at {
            op.out_count = base + count;
            op.out_keys = base + keys;
            op.out_rows = if op.table.row_bytes == 0 {
                0
            } else {
                base + rows
            };
            op.out_scores = base + scores;
            op.out_places = base + places;
        }
    }
}
