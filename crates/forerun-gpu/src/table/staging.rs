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
    /// Their number, a u64.
    pub(super) count: u64,
    pub(super) keys: u64,
    pub(super) places: u64,
    pub(super) scores: Option<u64>,
    entries: u64,
    rows: Option<u64>,
}

impl EntryLayout {
    pub(super) fn take(layout: &mut Layout, entries: u64, with_scores: bool) -> EntryLayout {
        EntryLayout {
            count: layout.take(8),
            keys: layout.take(entries * 8),
            places: layout.take(entries * 8),
            scores: layout.take_if(with_scores, entries * 8),
            entries,
            rows: None,
        }
    }

    pub(super) fn take_rows(&mut self, layout: &mut Layout, row_bytes: u64) {
        self.rows = layout.take_if(row_bytes != 0, self.entries * row_bytes);
    }

    pub(super) fn enter(&self, base: u64, op: &mut TableOp) {
        op.out_count = base + self.count;
        op.out_keys = base + self.keys;
        op.out_places = base + self.places;
        op.out_scores = Layout::place(base, self.scores);
        op.out_rows = Layout::place(base, self.rows);
    }
}
