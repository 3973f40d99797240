//! Rows on their way to the host tier.

use crate::key_locks::Version;

/// Why rows are promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A lookup found them in the store.
    Found,
    /// They were prefetched: no score keeps them out.
    Prefetched,
    /// The device evicted them.
    #[cfg(feature = "gpu")]
    Device,
}

impl Origin {
    /// Whether the rows come from the store.
    pub(crate) fn is_from_store(self) -> bool {
        match self {
            Origin::Found | Origin::Prefetched => true,
            #[cfg(feature = "gpu")]
            Origin::Device => false,
        }
    }
}

/// Rows to be promoted to the host tier. The store has all of them.
#[derive(Debug)]
pub(crate) struct PromotionBatch {
    pub(crate) entries: Vec<PromotedRow>,
    pub(crate) rows: Vec<u8>,
    origin: Origin,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PromotedRow {
    pub(crate) key: u64,
    pub(crate) version: Version,
    pub(crate) score: u64,
    pub(crate) uses: u16,
}

impl PromotionBatch {
    pub(crate) fn of(origin: Origin) -> PromotionBatch {
        PromotionBatch {
            entries: Vec::new(),
            rows: Vec::new(),
            origin,
        }
    }

    pub(crate) fn push(&mut self, key: u64, version: Version, row: &[u8], score: u64, uses: u16) {
        self.entries.push(PromotedRow {
            key,
            version,
            score,
            uses,
        });
        self.rows.extend_from_slice(row);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
