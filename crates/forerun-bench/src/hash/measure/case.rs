//! The individual measurements: the cases of a sweep, and which of them are compared.

use super::super::contender::{Contender, FIND_BATCH};
use super::super::keys::Word;
use super::super::sweep::{Cell, Sweep};
use anyhow::{Result, bail};
use forerun_core::arch::Isa;

/// A way to look up a batch: a strategy of a contender, given by its position in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) at: usize,
    pub(super) isa: Isa,
    pub(super) strategy: String,
}

/// The subject of a case.
pub(super) enum CaseKind {
    /// Random lines, read by this many threads.
    Lines { threads: usize },
    /// Lookups: the cell's position in the sweep, and the variant.
    Lookup { cell: usize, variant: Variant },
}

/// The strategy name that stands for all strategies of a design.
const ALL: &str = "all";

/// Rejects names of designs and strategies that no contender has.
///
/// # Errors
/// The first unknown name, with the known ones.
pub(in super::super) fn check_names<K: Word, V: Word>(
    sweep: &Sweep,
    contenders: &[&dyn Contender<K, V>],
) -> Result<()> {
    let designs: Vec<String> = contenders.iter().map(|one| one.design()).collect();
    let mut strategies = vec![ALL.to_owned()];
    for name in contenders.iter().flat_map(|one| one.strategies()) {
        if !strategies.contains(&name) {
            strategies.push(name);
        }
    }
    let known = [
        ("design", &sweep.designs, designs),
        ("strategy", &sweep.strategies, strategies),
    ];
    for (what, asked, known) in known {
        if let Some(unknown) = asked.iter().find(|name| !known.contains(name)) {
            bail!(
                "unknown {what} {unknown:?}; available: {}",
                known.join(", ")
            );
        }
    }
    Ok(())
}

/// The variants of a contender that a sweep measures. If it lacks an instruction set or a strategy,
/// the nearest one is used.
pub(super) fn variants<K: Word, V: Word>(
    sweep: &Sweep,
    at: usize,
    contender: &dyn Contender<K, V>,
) -> Vec<Variant> {
    let (isas, strategies) = (contender.isas(), contender.strategies());
    let every = sweep.strategies.iter().any(|name| name == ALL);
    let mut chosen: Vec<&String> = strategies
        .iter()
        .filter(|name| every || sweep.strategies.contains(name))
        .collect();
    if chosen.is_empty() {
        let batch = strategies.iter().find(|name| *name == FIND_BATCH);
        chosen.extend(batch.or(strategies.first()));
    }
    let mut sets: Vec<Isa> = sweep
        .isas
        .iter()
        .filter(|isa| isas.contains(isa))
        .copied()
        .collect();
    if sets.is_empty() {
        sets.extend(isas.first());
    }
    let variant = |isa: Isa| {
        let variant = move |strategy: &&String| Variant {
            at,
            isa,
            strategy: (*strategy).clone(),
        };
        chosen.iter().map(variant).collect::<Vec<Variant>>()
    };
    sets.into_iter().flat_map(variant).collect()
}

/// Cells of the same hit rate, skew and batch are measured next to each other; returns the number
/// of the first such cell.
pub(super) fn group(cells: &[Cell], at: usize) -> usize {
    let shape = |cell: &Cell| (cell.hit_rate, cell.skew, cell.batch);
    let first = cells
        .iter()
        .position(|cell| shape(cell) == shape(&cells[at]));
    first.unwrap_or(at)
}

/// Where random lines are read: after which cell and by how many threads, once per group and number
/// of threads.
pub(super) fn probes(cells: &[Cell]) -> Vec<(usize, usize)> {
    let mut probes: Vec<(usize, usize)> = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        let known = |&(other, threads): &(usize, usize)| {
            group(cells, other) == group(cells, at) && threads == cell.threads
        };
        if !probes.iter().any(known) {
            probes.push((at, cell.threads));
        }
    }
    probes
}
