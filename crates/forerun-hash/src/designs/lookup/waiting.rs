//! The keys of a batch that need a further bucket: a list that is appended to without a branch.
//!
//! ```text
//!   write always   index[len], cursor[len]        keep: len += more        more is 0 or 1
//! ```

/// Up to `N` keys, each by its index in the batch and its lookup's cursor. `N` is a power of two.
pub(super) struct Waiting<C, const N: usize> {
    len: usize,
    index: [u32; N],
    cursor: [C; N],
}

impl<C: Copy + Default, const N: usize> Waiting<C, N> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Waiting {
            len: 0,
            index: [0; N],
            cursor: [C::default(); N],
        }
    }

    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `more` keys find room.
    #[inline(always)]
    pub(super) fn has_room_for(&self, more: usize) -> bool {
        self.len + more <= N
    }

    /// Appends a key if `more`. The caller has seen to it that there is room: without, the list's start is lost.
    #[inline(always)]
    pub(super) fn push_if(&mut self, more: bool, index: usize, cursor: C) {
        debug_assert!(!more || self.len < N);
        // The remainder is a mask, and spares the check of the index.
        self.index[self.len % N] = index as u32;
        self.cursor[self.len % N] = cursor;
        self.len += usize::from(more);
    }

    /// The keys, in the order in which they came.
    #[inline(always)]
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut C)> {
        let indices = self.index.iter().map(|&index| index as usize);
        indices.zip(&mut self.cursor).take(self.len)
    }

    /// Shows each key, and keeps those for which `keep` says so.
    #[inline(always)]
    pub(super) fn retain_mut(&mut self, mut keep: impl FnMut(usize, &mut C) -> bool) {
        let len = self.len.min(N);
        self.len = 0;
        for at in 0..len {
            let (index, mut cursor) = (self.index[at] as usize, self.cursor[at]);
            let more = keep(index, &mut cursor);
            self.push_if(more, index, cursor);
        }
    }
}
