//! The rates of a case, and its ratios to other cases of the same rounds.

use super::super::contender::{FIND_BATCH, GET};
use super::super::keys::Word;
use super::super::result_row::HashRow;
use super::super::sweep::Cell;
use super::super::table_group::GroupTable;
use super::case::{CaseKind, Variant};
use super::{Bench, MEMC3};
use forerun_core::arch::Isa;
use forerun_measure::harness::Outcome;

impl Bench<'_> {
    /// Sets a row's rates and ratios.
    pub(super) fn compare<K: Word, V: Word>(
        &self,
        row: &mut HashRow,
        rivals: &Rivals<'_>,
        tables: &[GroupTable<'_, K, V>],
    ) {
        let outcome = &rivals.outcomes[rivals.number];
        let (cell, variant) = (&rivals.cells[rivals.at], rivals.variant);
        row.common = std::mem::take(&mut row.common).with_rates(
            outcome.per_second(),
            outcome.per_second_min(),
            outcome.per_second_max(),
        );
        row.common.inserts_per_second = outcome.beside_per_second();
        row.common.roofline_share = rivals.lines(cell.threads);
        let same_cell = |other: &Cell| other == cell;
        let of = |name: &str| tables.iter().find(|table| table.contender.design() == name);
        row.common.speedup_vs_single = rivals.ratio(same_cell, |other| {
            (other.at, other.isa, other.strategy.as_str()) == (variant.at, variant.isa, GET)
        });
        row.speedup_vs_scalar = rivals.ratio(same_cell, |other| {
            (other.at, other.isa, &other.strategy) == (variant.at, Isa::Scalar, &variant.strategy)
        });
        row.speedup_vs_memc3 = of(MEMC3).and_then(|memc3| {
            let by = |strategy: &str| {
                rivals.ratio(same_cell, |other| {
                    other.at == memc3.at && other.strategy == strategy
                })
            };
            by(&variant.strategy).or_else(|| by(FIND_BATCH))
        });
        row.common.speedup_vs_peer = self.peer.as_ref().and_then(|(engine, strategy)| {
            let peer = |other: &Variant| {
                let table = tables.iter().find(|table| table.at == other.at);
                table.is_some_and(|table| table.contender.engine() == engine)
                    && other.strategy == *strategy
            };
            rivals.ratio(same_cell, peer)
        });
        let alone = Cell {
            threads: 1,
            ..*cell
        };
        if cell.threads > 1 {
            row.speedup_vs_one_thread =
                rivals.ratio(|other| *other == alone, |other| other == variant);
        }
        if cell.updates > 0.0 {
            let quiet = |other: &Cell| {
                let asked = Cell {
                    updates: 0.0,
                    update_kind: other.update_kind,
                    ..*cell
                };
                *other == asked
            };
            row.share_of_quiet = rivals.ratio(quiet, |other| other == variant);
        }
    }
}

/// The other cases that a case can be compared with.
pub(super) struct Rivals<'a> {
    pub(super) cells: &'a [Cell],
    pub(super) headings: &'a [CaseKind],
    pub(super) outcomes: &'a [Outcome],
    /// The case, its cell and its variant.
    pub(super) number: usize,
    pub(super) at: usize,
    pub(super) variant: &'a Variant,
}

impl Rivals<'_> {
    /// The speed relative to the first case that matches.
    fn ratio(
        &self,
        cell: impl Fn(&Cell) -> bool,
        variant: impl Fn(&Variant) -> bool,
    ) -> Option<f64> {
        let fits = |head: &CaseKind| match head {
            CaseKind::Lookup {
                cell: at,
                variant: other,
            } => cell(&self.cells[*at]) && variant(other),
            CaseKind::Lines { .. } => false,
        };
        let rival = self.headings.iter().position(fits)?;
        Some(self.outcomes[self.number].ratio_to(&self.outcomes[rival]))
    }

    /// The share of the random lines read in the same group.
    fn lines(&self, wanted: usize) -> Option<f64> {
        let outcome = &self.outcomes[self.number];
        let mut pairs = self.headings.iter().zip(self.outcomes);
        let (_, lines) = pairs.find(|(head, lines)| {
            lines.group == outcome.group
                && matches!(head, CaseKind::Lines { threads } if *threads == wanted)
        })?;
        Some(outcome.ratio_to(lines))
    }
}
