//! The forms of requests to check: every corner case once, and some combinations.

use forerun_gpu::Pages;
use forerun_gpu::gather::{
    Absent, CopySpec, IndexType, KernelChoice, Layers, MapUpdate, RowLayout, RowPages,
};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngCore, SeedableRng};

/// Which of the sources are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    None,
    Some,
    All,
}

/// A form of request.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) row_bytes: u64,
    /// The layer's capacity in pairs.
    pub(super) pairs: usize,
    /// The number of pairs that the count on the device specifies, if there is a count.
    pub(super) count: Option<(IndexType, i64)>,
    pub(super) missing: Missing,
    pub(super) offset: u64,
    pub(super) gap: u64,
    /// Rows per page, with a gap between two pages.
    pub(super) page_rows: Option<u32>,
    pub(super) layers: u32,
    pub(super) by_table: bool,
    pub(super) integer: IndexType,
    pub(super) interleaved: bool,
    pub(super) by_layer: bool,
    pub(super) absent: Absent,
    pub(super) map: Option<(IndexType, MapUpdate)>,
    /// Neighbouring rows, so that there are runs.
    pub(super) runs: bool,
    pub(super) multiprocessors: Option<u32>,
    /// The memory pages of the host's rows.
    pub(super) memory_pages: Pages,
}

pub(super) const PLAIN: Case = Case {
    row_bytes: 656,
    pairs: 100,
    count: None,
    missing: Missing::None,
    offset: 0,
    gap: 0,
    page_rows: None,
    layers: 1,
    by_table: false,
    integer: IndexType::I32,
    interleaved: true,
    by_layer: false,
    absent: Absent::Skip,
    map: None,
    runs: false,
    multiprocessors: None,
    memory_pages: Pages::Small,
};

/// Bytes between two pages of rows.
const PAGE_GAP: u64 = 64;

/// Every corner case once, and some combinations.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for row_bytes in [
        1, 4, 8, 16, 48, 64, 128, 576, 584, 640, 656, 1152, 2048, 4096, 5000,
    ] {
        for offset in [0, 16, 48] {
            cases.push(Case {
                row_bytes,
                offset,
                missing: Missing::Some,
                ..PLAIN
            });
        }
    }
    for pairs in [0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 2048] {
        for missing in [Missing::None, Missing::Some, Missing::All] {
            let absent = if pairs % 2 == 0 {
                Absent::Zero
            } else {
                Absent::Skip
            };
            cases.push(Case {
                pairs,
                missing,
                absent,
                ..PLAIN
            });
        }
    }
    for count in [-1, 0, 1, 31, 33, 99, 100, 1 << 20] {
        for integer in [IndexType::I32, IndexType::I64] {
            cases.push(Case {
                count: Some((integer, count)),
                ..PLAIN
            });
        }
    }
    for layers in [2, 3, 61] {
        for by_table in [false, true] {
            for by_layer in [false, true] {
                cases.push(Case {
                    layers,
                    by_table,
                    by_layer,
                    pairs: 33,
                    gap: 16,
                    missing: Missing::Some,
                    map: Some((IndexType::I32, MapUpdate::Set)),
                    ..PLAIN
                });
            }
        }
    }
    for integer in [IndexType::I32, IndexType::I64] {
        for interleaved in [false, true] {
            for update in [MapUpdate::Set, MapUpdate::Clear] {
                cases.push(Case {
                    integer,
                    interleaved,
                    map: Some((integer, update)),
                    missing: Missing::Some,
                    absent: Absent::Zero,
                    ..PLAIN
                });
            }
        }
    }
    for row_bytes in [64, 640, 656, 1152] {
        for gap in [0, 16, 24, 112] {
            cases.push(Case {
                row_bytes,
                gap,
                runs: true,
                pairs: 300,
                missing: Missing::Some,
                ..PLAIN
            });
        }
    }
    for (row_bytes, page_rows) in [(656, 1), (656, 4), (64, 8), (13, 200)] {
        for (layers, by_table) in [(1, false), (5, false), (5, true)] {
            cases.push(Case {
                row_bytes,
                page_rows: Some(page_rows),
                layers,
                by_table,
                missing: Missing::Some,
                ..PLAIN
            });
        }
    }
    cases.push(Case {
        memory_pages: Pages::Huge,
        pairs: 10_000,
        ..PLAIN
    });
    for cap in [1, 2, 4, 8, 16, u32::MAX] {
        cases.push(Case {
            multiprocessors: Some(cap),
            pairs: 2048,
            ..PLAIN
        });
    }
    cases
}

impl Case {
    /// Rows on each side.
    pub(super) fn rows(&self) -> u64 {
        (self.pairs as u64 * 2).max(16)
    }

    fn stride_bytes(&self) -> u64 {
        self.row_bytes + self.gap
    }

    /// The rows' pages, if there are any.
    pub(super) fn pages(&self) -> Option<RowPages> {
        self.page_rows.map(|rows| RowPages {
            rows,
            bytes: u64::from(rows) * self.stride_bytes() + PAGE_GAP,
        })
    }

    /// Bytes from one layer to the next.
    pub(super) fn layer_bytes(&self) -> u64 {
        let rows = match self.pages() {
            None => self.rows() * self.stride_bytes(),
            Some(pages) => self.rows() / u64::from(pages.rows) * pages.bytes,
        };
        rows + 32
    }

    pub(super) fn layout(&self, offset_bytes: u64) -> RowLayout {
        let layer = self.layer_bytes();
        let layers = if self.by_table {
            // In reverse order.
            let offsets = (0..u64::from(self.layers)).rev().map(|at| at * layer);
            Layers::Table {
                offsets_bytes: offsets.collect(),
            }
        } else {
            Layers::Step { bytes: layer }
        };
        RowLayout::dense(self.rows(), self.stride_bytes())
            .offset_bytes(offset_bytes)
            .layers(layers)
            .pages(self.pages())
    }

    pub(super) fn spec(&self, kernel: KernelChoice) -> CopySpec {
        CopySpec::dense(self.row_bytes, 0, 0)
            .layers(self.layers)
            .host(self.layout(self.offset))
            .device(self.layout(0))
            .absent(self.absent)
            .kernel(kernel)
    }

    /// Bytes of a side, with a guard after them.
    pub(super) fn side_bytes(&self) -> usize {
        (self.offset + u64::from(self.layers) * self.layer_bytes()) as usize + 512
    }

    /// Source and destination indices, layer after layer.
    pub(super) fn indices(&self, seed: u64) -> Vec<(i64, i64)> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let rows = self.rows() as i64;
        let layers = if self.by_layer { self.layers } else { 1 };
        let mut list = Vec::new();
        for _ in 0..layers {
            let start = rng.random_range(0..rows / 2);
            // With a map no host row may occur twice: its entry would be unspecified.
            let mut distinct: Vec<i64> = (0..rows).collect();
            distinct.shuffle(&mut rng);
            let destination = |i: i64| {
                if self.runs {
                    start + i
                } else {
                    (start + i * 2 + 1) % rows
                }
            };
            for i in 0..self.pairs as i64 {
                let mut source = match self.map {
                    Some(_) => distinct[i as usize],
                    None => rng.random_range(0..rows),
                };
                if self.runs && i % 7 != 0 {
                    source = list.last().map_or(0, |&(s, _): &(i64, i64)| (s + 1) % rows);
                }
                let wrong = [-1, -1, -2, rows, i64::from(i32::MAX)];
                match self.missing {
                    Missing::All => source = wrong[i as usize % wrong.len()],
                    Missing::Some if i % 5 == 3 => source = wrong[i as usize / 5 % wrong.len()],
                    _ => {}
                }
                let mut destination = destination(i) % rows;
                if self.missing == Missing::Some && i % 11 == 9 {
                    destination = wrong[i as usize / 11 % wrong.len()];
                }
                list.push((source, destination));
            }
        }
        list
    }
}

pub(super) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
#[cfg(test)]
mod tests {
    use super::*;
    use forerun_gpu::gather::cpu::{self, Indices, Pairs};

    #[test]
    fn every_case_is_one_that_the_cpu_copies() {
        for case in cases() {
            let list = case.indices(3);
            let mut destinations: Vec<i64> = list.iter().map(|pair| pair.1).collect();
            if !case.by_layer {
                destinations.retain(|&row| row >= 0 && row < case.rows() as i64);
                let len = destinations.len();
                destinations.sort_unstable();
                destinations.dedup();
                // Two pairs with one destination would leave it unspecified.
                assert_eq!(destinations.len(), len, "{case:?}");
            }
            let sources: Vec<i64> = list.iter().map(|pair| pair.0).collect();
            let destinations: Vec<i64> = list.iter().map(|pair| pair.1).collect();
            let pairs = Pairs::split(Indices::I64(&sources), Indices::I64(&destinations)).unwrap();
            let step = if case.by_layer { case.pairs } else { 0 };
            let host = vec![0; case.side_bytes()];
            let mut device = vec![0; case.side_bytes()];
            let copied = cpu::gather(
                &host,
                &mut device,
                &case.spec(KernelChoice::default()),
                &pairs.by_layer(case.pairs, step),
                cpu::CopyOptions::default(),
            );
            let copied = copied.unwrap();
            let expected = case.pairs > 0 && case.missing != Missing::All;
            assert_eq!(copied.rows > 0, expected, "{case:?}");
        }
    }
}
