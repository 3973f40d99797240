//! Batches of lookups in a cache. The values are copied, so that they can be used after the guard
//! on the cache is gone.

use std::collections::TryReserveError;

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
    pub(crate) fn of(cache: &Cache, keys: &[&[u8]]) -> Result<FoundValues, TryReserveError> {
        let guard = cache.pin();
        let mut items = Vec::new();
        items.try_reserve_exact(keys.len())?;
        items.resize(keys.len(), None);
        let looked_up = guard.multi_get(keys, &mut items);
        debug_assert!(looked_up.is_ok(), "there are as many items as keys");
        let mut values = FoundValues::default();
        values.ends.try_reserve_exact(keys.len())?;
        for item in items {
            let value = item.map(|item| item.value());
            let bytes = value.unwrap_or_default();
            values.bytes.try_reserve(bytes.len())?;
            values.bytes.extend_from_slice(bytes);
            values.ends.push((values.bytes.len(), value.is_some()));
        }
        Ok(values)
    }

    /// The value of each key, in order; `None` if the key is missing.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|&(end, _)| end));
        let spans = starts.zip(&self.ends);
        spans.map(|(start, &(end, is_found))| is_found.then(|| &self.bytes[start..end]))
    }
}
