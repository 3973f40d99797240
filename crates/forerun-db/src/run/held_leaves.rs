//! The first leaves of a run, held back until a dictionary has been trained from them.

use super::codec::{Codec, Compressor};
use super::compression::ZstdOptions;
use crate::Result;

/// Bytes of leaves for each byte of the dictionary: a trainer has to see what repeats.
const SAMPLE_FACTOR: usize = 100;

/// The maximum bytes of leaves that a writer holds.
const SAMPLE_BYTES_MAX: usize = 4 << 20;

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
        let sample_bytes = options.max_dict_bytes.saturating_mul(SAMPLE_FACTOR);
        HeldLeaves {
            options,
            limit_bytes: sample_bytes.min(SAMPLE_BYTES_MAX),
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
