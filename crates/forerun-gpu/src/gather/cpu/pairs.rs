//! Pairs and slot maps in slices.

use crate::gather::request::{CopySpec, Direction, IndexType, MapUpdate, PairsAt};
use crate::gather_error::{GatherError, Side};

/// Indices in a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indices<'a> {
    /// Indices of four bytes.
    I32(&'a [i32]),
    /// Indices of eight bytes.
    I64(&'a [i64]),
}

impl Indices<'_> {
    pub(in crate::gather) fn integer(&self) -> IndexType {
        match self {
            Indices::I32(_) => IndexType::I32,
            Indices::I64(_) => IndexType::I64,
        }
    }

    pub(in crate::gather) fn len(&self) -> usize {
        match self {
            Indices::I32(slice) => slice.len(),
            Indices::I64(slice) => slice.len(),
        }
    }

    pub(in crate::gather) fn address(&self) -> u64 {
        match self {
            Indices::I32(slice) => slice.as_ptr() as u64,
            Indices::I64(slice) => slice.as_ptr() as u64,
        }
    }

    /// Writes the indices to the beginning of a buffer that has room for them.
    pub(in crate::gather) fn copy_to(&self, to: &mut [u8]) {
        match self {
            Indices::I32(slice) => copy_words(slice.iter().map(|index| index.to_ne_bytes()), to),
            Indices::I64(slice) => copy_words(slice.iter().map(|index| index.to_ne_bytes()), to),
        }
    }

    pub(super) fn get(&self, at: usize) -> Option<i64> {
        match self {
            Indices::I32(slice) => slice.get(at).map(|&index| i64::from(index)),
            Indices::I64(slice) => slice.get(at).copied(),
        }
    }
}

fn copy_words<const N: usize>(words: impl Iterator<Item = [u8; N]>, to: &mut [u8]) {
    let places = to.as_chunks_mut::<N>().0.iter_mut();
    places.zip(words).for_each(|(place, word)| *place = word);
}

/// Pairs of `(source row, destination row)` in slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairs<'a> {
    pub(super) source: Indices<'a>,
    pub(super) destination: Indices<'a>,
    /// Position of the first destination index.
    pub(super) skip: usize,
    pub(super) step: usize,
    pub(super) count: usize,
    pub(super) layer_step: usize,
}

impl<'a> Pairs<'a> {
    /// Source and destination indices in one slice: `[s, d, s, d, ...]`.
    ///
    /// # Errors
    /// [`GatherError::WrongShape`] if the length is odd.
    pub fn interleaved(indices: Indices<'a>) -> Result<Pairs<'a>, GatherError> {
        if !indices.len().is_multiple_of(2) {
            return Err(GatherError::WrongShape {
                shape: vec![indices.len() as u64],
            });
        }
        Ok(Pairs {
            source: indices,
            destination: indices,
            skip: 1,
            step: 2,
            count: indices.len() / 2,
            layer_step: 0,
        })
    }

    /// Source and destination indices in two slices.
    ///
    /// # Errors
    /// [`GatherError::LengthsDiffer`]; [`GatherError::WrongType`] if one has four bytes and the
    /// other eight.
    pub fn split(source: Indices<'a>, destination: Indices<'a>) -> Result<Pairs<'a>, GatherError> {
        if source.integer() != destination.integer() {
            return Err(GatherError::WrongType {
                given: "different types for source and destination".to_owned(),
            });
        }
        if source.len() != destination.len() {
            return Err(GatherError::LengthsDiffer {
                source_len: source.len() as u64,
                destination_len: destination.len() as u64,
            });
        }
        Ok(Pairs {
            source,
            destination,
            skip: 0,
            step: 1,
            count: source.len(),
            layer_step: 0,
        })
    }

    /// Gives each layer its own pairs, `layer_step` indices after those of the previous layer, with
    /// `count` pairs per layer.
    pub fn by_layer(mut self, count: usize, layer_step: usize) -> Pairs<'a> {
        self.count = count;
        self.layer_step = layer_step;
        self
    }

    /// Returns an error for the first index that is neither a row nor -1. The copy itself skips and
    /// counts such pairs, as on the GPU, where the host cannot check indices in advance.
    ///
    /// # Errors
    /// [`GatherError::IndexOutOfRange`].
    pub fn check_range(&self, direction: Direction, spec: &CopySpec) -> Result<(), GatherError> {
        let (source, destination) = match direction {
            Direction::Gather => (Side::Host, Side::Device),
            Direction::Scatter => (Side::Device, Side::Host),
        };
        let rows = |side| match side {
            Side::Host => spec.host.rows,
            Side::Device => spec.device.rows,
        };
        for layer in 0..spec.layers as usize {
            for pair in 0..self.count {
                let at = layer * self.layer_step + pair * self.step;
                let both = [
                    (source, self.source.get(at)),
                    (destination, self.destination.get(at + self.skip)),
                ];
                for (side, index) in both {
                    let Some(index) = index else { continue };
                    if index != -1 && index as u64 >= rows(side) {
                        return Err(GatherError::IndexOutOfRange {
                            pair: pair as u64,
                            side,
                            index,
                            rows: rows(side),
                        });
                    }
                }
            }
            if self.layer_step == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The slices that hold the indices: one if both are in one.
    pub(in crate::gather) fn slices(&self) -> (Indices<'a>, Option<Indices<'a>>) {
        let is_one = self.source.address() == self.destination.address() && self.skip != 0;
        (self.source, (!is_one).then_some(self.destination))
    }

    pub(in crate::gather) fn at(&self) -> PairsAt {
        let width = self.source.integer().bytes();
        PairsAt {
            source: self.source.address(),
            destination: self.destination.address() + self.skip as u64 * width,
            step: self.step as u64,
            integer: self.source.integer(),
            count: self.count as u64,
            layer_step: self.layer_step as u64,
        }
    }
}

/// A slot map in a slice, with one entry per host row.
#[derive(Debug)]
pub struct Map<'a> {
    /// The entries, layer 0 first.
    pub entries: MapEntries<'a>,
    /// Entries per layer.
    pub slots: u64,
    /// Entries from one layer's map to the next; 0 if all layers share one.
    pub layer_step: u64,
    /// The value that is written for each copied row.
    pub update: MapUpdate,
}

/// Entries of a slot map.
#[derive(Debug)]
pub enum MapEntries<'a> {
    /// Entries of four bytes.
    I32(&'a mut [i32]),
    /// Entries of eight bytes.
    I64(&'a mut [i64]),
}
