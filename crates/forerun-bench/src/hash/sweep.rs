//! A sweep: a list for each dimension. Every combination of their values is a cell.

use super::keys::Skew;
use super::run_turn::UpdateKind;
use forerun_core::arch::Isa;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Lookups of batches.
    Lookup,
    /// Removals and insertions of batches, on one thread.
    Write,
}

/// Lists whose combinations are the cells, and the variants to measure each cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// What is measured in each cell. Of the lists, writes use sizes, widths, load factors, batches
    /// and designs.
    pub operation: Operation,
    /// The dimension to plot over.
    pub axis: Axis,
    /// Slots times the bytes of a key and a value.
    pub sizes: Vec<usize>,
    /// Bytes of a key, 2, 4 or 8, and of a value, 4 or 8.
    pub widths: Vec<(usize, usize)>,
    /// Entries over slots.
    pub load_factors: Vec<f64>,
    /// Shares of present keys among the requested ones.
    pub hit_rates: Vec<f64>,
    /// Which present keys are requested.
    pub skews: Vec<Skew>,
    /// Keys per batch.
    pub batches: Vec<usize>,
    /// Lookup threads.
    pub threads: Vec<usize>,
    /// Shares of updates, made by an additional thread; cells with updates are measured for designs
    /// that support concurrent readers.
    pub updates: Vec<f64>,
    /// The kinds of updates.
    pub update_kinds: Vec<UpdateKind>,
    /// Designs by name; empty for all.
    pub designs: Vec<String>,
    /// Strategies by name.
    pub strategies: Vec<String>,
    /// Instruction sets; a design is measured with those that it has code for.
    pub isas: Vec<Isa>,
}

/// A dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Lookups, insertions or removals.
    Operation,
    /// The table's size.
    Size,
    /// Bytes of keys and values.
    Width,
    /// The load factor.
    LoadFactor,
    /// The hit rate.
    HitRate,
    /// The skew.
    Skew,
    /// Keys per batch.
    Batch,
    /// Threads.
    Threads,
    /// The share of updates.
    Updates,
}

impl Axis {
    /// All dimensions, in the order of the tables' columns.
    pub const ALL: [Axis; 9] = [
        Axis::Operation,
        Axis::Size,
        Axis::Width,
        Axis::LoadFactor,
        Axis::HitRate,
        Axis::Skew,
        Axis::Batch,
        Axis::Threads,
        Axis::Updates,
    ];
}

/// One combination of the parameters that can change while the tables stay the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) hit_rate: f64,
    pub(super) skew: Skew,
    pub(super) batch: usize,
    pub(super) threads: usize,
    pub(super) updates: f64,
    pub(super) update_kind: UpdateKind,
}

impl Sweep {
    /// A cell with sensible defaults, which custom lists then replace.
    pub fn cell() -> Sweep {
        Sweep {
            operation: Operation::Lookup,
            axis: Axis::Size,
            sizes: vec![64 << 20],
            widths: vec![(8, 8)],
            load_factors: vec![0.7],
            hit_rates: vec![1.0],
            skews: vec![Skew::Uniform],
            batches: vec![64],
            threads: vec![1],
            updates: vec![0.0],
            update_kinds: vec![UpdateKind::Upsert],
            designs: Vec::new(),
            strategies: vec![
                super::contender::GET.into(),
                super::contender::FIND_BATCH.into(),
            ],
            isas: default_isas(),
        }
    }

    /// The first dimension with more than one entry, or the size.
    pub(super) fn longest_axis(&self) -> Axis {
        let several = |axis: &Axis| match axis {
            Axis::Operation => false,
            Axis::Size => self.sizes.len() > 1,
            Axis::Width => self.widths.len() > 1,
            Axis::LoadFactor => self.load_factors.len() > 1,
            Axis::HitRate => self.hit_rates.len() > 1,
            Axis::Skew => self.skews.len() > 1,
            Axis::Batch => self.batches.len() > 1,
            Axis::Threads => self.threads.len() > 1,
            Axis::Updates => self.updates.len() > 1,
        };
        Axis::ALL.into_iter().find(several).unwrap_or(Axis::Size)
    }

    /// The cells of one table; cells that are compared are adjacent.
    pub(super) fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &hit_rate in &self.hit_rates {
            for &skew in &self.skews {
                for &batch in &self.batches {
                    for &threads in &self.threads {
                        for &updates in &self.updates {
                            // Without updates there is no kind of update.
                            let kinds = match updates {
                                0.0 => &self.update_kinds[..1],
                                _ => &self.update_kinds[..],
                            };
                            cells.extend(kinds.iter().map(|&update_kind| Cell {
                                hit_rate,
                                skew,
                                batch,
                                threads,
                                updates,
                                update_kind,
                            }));
                        }
                    }
                }
            }
        }
        cells
    }
}

/// The active set and plain code, or only plain code if that is active.
pub(super) fn default_isas() -> Vec<Isa> {
    let mut isas = vec![forerun_core::arch::isa(), Isa::Scalar];
    isas.dedup();
    isas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_a_cell_and_no_updates_are_of_one_kind() {
        let sweep = Sweep {
            batches: vec![1, 8],
            threads: vec![1, 2],
            updates: vec![0.0, 0.05],
            update_kinds: vec![UpdateKind::Upsert, UpdateKind::Churn],
            ..Sweep::cell()
        };
        assert_eq!(sweep.cells().len(), 2 * 2 * 3);
        assert_eq!(sweep.longest_axis(), Axis::Batch);
        assert_eq!(Sweep::cell().cells().len(), 1);
    }
}
