//! Where the bytes of a run are, by key: RocksDB's key anchors.

use super::page::PageKind;
use super::reader::Run;

impl Run {
    /// Keys, ascending, and about how many bytes of the run begin at each: those of its root page,
    /// which is in memory.
    pub(crate) fn anchors(&self) -> Vec<(Vec<u8>, u64)> {
        let (root, bytes) = (self.root(), self.meta().file_bytes);
        let children = match root.kind() {
            PageKind::Internal => root.rows().max(1),
            PageKind::Leaf => 1,
        };
        let anchor = |row: usize| {
            let mut key = Vec::new();
            if row == 0 {
                // The root has no key for its first child.
                key.extend_from_slice(&self.meta().smallest);
            } else {
                root.key_into(row, &mut key);
            }
            (key, bytes / children as u64)
        };
        (0..children).map(anchor).collect()
    }
}
