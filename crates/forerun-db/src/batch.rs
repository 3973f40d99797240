//! A batch of writes that is applied whole or not at all (to be written; `Op` is what the memtable takes).

/// One write of a batch, borrowed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Sets `key` to `value`.
    Put {
        /// The key's bytes.
        key: &'a [u8],
        /// The value's bytes.
        value: &'a [u8],
    },
    /// Removes `key`.
    Delete {
        /// The key's bytes.
        key: &'a [u8],
    },
}
