//! The first leaves of a run, held back until a dictionary has been trained from them.

use super::codec::{Codec, Compressor};
use super::compression::ZstdOptions;
use crate::Result;

/// Leaves that wait for the dictionary. `T` is what belongs to a leaf.
pub(super) struct HeldLeaves<T> {
    options: ZstdOptions,
    limit_bytes: usize,
    /// The leaves, one after the other.
    bytes: Vec<u8>,
    lens: Vec<usize>,
    with: Vec<T>,
}

impl<T> HeldLeaves<T> {
    /// For the first leaves of a run with these options. Without a dictionary, none fits.
    pub(super) fn new(options: ZstdOptions) -> HeldLeaves<T> {
        HeldLeaves {
            options,
            limit_bytes: options.sample_bytes(),
            bytes: Vec::new(),
            lens: Vec::new(),
            with: Vec::new(),
        }
    }

    /// Whether there is room for a leaf.
    pub(super) fn fits(&self, leaf: &[u8]) -> bool {
        self.bytes.len() + leaf.len() <= self.limit_bytes
    }

    pub(super) fn add(&mut self, leaf: &[u8], with: T) {
        self.bytes.extend_from_slice(leaf);
        self.lens.push(leaf.len());
        self.with.push(with);
    }

    /// Trains a dictionary. It is empty if there are too few leaves, or if it would save less than
    /// it takes.
    pub(super) fn train(&self) -> Result<Vec<u8>> {
        if self.lens.is_empty() {
            return Ok(Vec::new());
        }
        let mut dictionary = vec![0; self.options.max_dict_bytes];
        let trained = zstd_safe::train_from_buffer(&mut dictionary[..], &self.bytes, &self.lens);
        dictionary.truncate(trained.unwrap_or(0));
        if !dictionary.is_empty() {
            let with = self.compressed_bytes(&dictionary)?;
            let without = self.compressed_bytes(&[])?;
            if with.saturating_add(dictionary.len()) >= without {
                dictionary.clear();
            }
        }
        Ok(dictionary)
    }

    pub(super) fn options(&self) -> ZstdOptions {
        self.options
    }

    /// Calls `store` with each leaf and what belongs to it, in order.
    pub(super) fn release(self, mut store: impl FnMut(&[u8], T) -> Result<()>) -> Result<()> {
        let mut rest = &self.bytes[..];
        for (len, with) in self.lens.iter().zip(self.with) {
            let leaf = rest.split_off(..*len).unwrap_or_default();
            store(leaf, with)?;
        }
        Ok(())
    }

    /// Bytes that the leaves take with a dictionary.
    fn compressed_bytes(&self, dictionary: &[u8]) -> Result<usize> {
        let mut compressor = Compressor::with_dictionary(self.options, dictionary)?;
        let (mut packed, mut sum, mut rest) = (Vec::new(), 0, &self.bytes[..]);
        for len in &self.lens {
            let leaf = rest.split_off(..*len).unwrap_or_default();
            packed.clear();
            sum += match compressor.compress(leaf, &mut packed) {
                Codec::Raw => leaf.len(),
                Codec::Lz4 | Codec::Zstd => packed.len(),
            };
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::filter::hash;

    #[test]
    fn the_trainer_refuses_fewer_leaves_than_the_options_provide_for() {
        let word = |leaf: usize, at: usize| hash(&[(leaf % 2) as u8, (at % 200) as u8]);
        let leaf = |leaf: usize| (0..512).flat_map(move |at| word(leaf, at).to_le_bytes());
        for leaves in [ZstdOptions::LEAVES_MIN - 1, ZstdOptions::LEAVES_MIN] {
            let bytes: Vec<u8> = (0..leaves).flat_map(leaf).collect();
            let mut dictionary = [0; 2048];
            let lens = vec![4096; leaves];
            let trained = zstd_safe::train_from_buffer(&mut dictionary[..], &bytes, &lens);
            assert_eq!(
                trained.is_ok(),
                leaves == ZstdOptions::LEAVES_MIN,
                "{leaves}"
            );
        }
    }
}
