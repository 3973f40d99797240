//! Batches of lookups in a cache. The values are copied, so that they can be used after the guard
//! on the cache is gone.

use forerun::cache::Cache;

/// The values of a batch, concatenated.
#[derive(Default)]
pub(crate) struct FoundValues {
    bytes: Vec<u8>,
    /// The end of each value, and whether its key was found.
    ends: Vec<(usize, bool)>,
}

impl FoundValues {
    /// Looks up a batch.
    pub(crate) fn of(cache: &Cache, keys: &[&[u8]]) -> FoundValues {
        let guard = cache.pin();
        let mut items = vec![None; keys.len()];
        let looked_up = guard.multi_get(keys, &mut items);
        debug_assert!(looked_up.is_ok(), "there are as many items as keys");
        let mut values = FoundValues::default();
        for item in items {
            let value = item.map(|item| item.value());
            values.bytes.extend_from_slice(value.unwrap_or_default());
            values.ends.push((values.bytes.len(), value.is_some()));
        }
        values
    }

    /// The value of each key, in order; `None` if the key is missing.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|&(end, _)| end));
        let spans = starts.zip(&self.ends);
        spans.map(|(start, &(end, is_found))| is_found.then(|| &self.bytes[start..end]))
    }
}
