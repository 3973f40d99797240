//! The values that a peer has found, copied into one buffer as Forerun's are.

/// The answers of one batch.
#[derive(Default)]
pub struct Copied {
    bytes: Vec<u8>,
    /// For each key, where its value ends in `bytes` (it begins where the previous one ends), and
    /// whether there is one.
    ends: Vec<(usize, bool)>,
    found: usize,
}

impl Copied {
    /// Forgets the answers but keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.found = 0;
    }

    /// Adds the answer of the next key.
    pub fn keep(&mut self, value: Option<&[u8]>) {
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.ends.push((self.bytes.len(), value.is_some()));
        self.found += usize::from(value.is_some());
    }

    /// How many keys were found.
    pub fn found(&self) -> usize {
        self.found
    }

    /// The value of the `at`-th key.
    pub fn get(&self, at: usize) -> Option<&[u8]> {
        let &(end, present) = self.ends.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before].0);
        present.then(|| &self.bytes[start..end])
    }
}
