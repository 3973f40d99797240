//! Settings: the published record's, with one parameter changed by each study.
//!
//! ```text
//!   host rows, `slots` of them              the batch: requests x rows pairs        device rows, `slots` of them
//!   |  |  |##|  |  |##|##|  |  ...          (host row, i) in a gather               |##|##|##|##|  |  |  ...
//!          random places                    (i, host row) in a scatter               0  1  2  3 ...
//! ```

use super::args::Args;
use super::gather_study::{IndexOrder, MultiprocessorLimit, Study};
use anyhow::{Result, ensure};
use forerun_gpu::gather::{CopySpec, Direction, RowLayout};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngCore, SeedableRng};

/// One thing to measure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) study: Study,
    pub(super) direction: Direction,
    pub(super) requests: usize,
    pub(super) rows_per_request: usize,
    /// Rows on each side.
    pub(super) slots: usize,
    pub(super) row_bytes: usize,
    pub(super) order: IndexOrder,
    /// Bytes before the host's row 0.
    pub(super) offset: usize,
    pub(super) cap: Option<MultiprocessorLimit>,
}

impl Setting {
    /// The published record's setting: 128 requests of 2,048 rows of 656 bytes, from 300,000.
    pub(super) fn seed(args: &Args) -> Setting {
        let quick = args.output.quick;
        Setting {
            study: Study::Seed,
            direction: Direction::Gather,
            requests: args.requests.unwrap_or(if quick { 4 } else { 128 }),
            rows_per_request: args.rows.unwrap_or(if quick { 33 } else { 2048 }),
            slots: args.slots.unwrap_or(if quick { 300 } else { 300_000 }),
            row_bytes: args.row_bytes.first().copied().unwrap_or(656),
            order: IndexOrder::Repeated,
            offset: 0,
            cap: None,
        }
    }

    /// The settings of a study.
    pub(super) fn of(study: Study, args: &Args) -> Result<Vec<Setting>> {
        fn or<T: Clone>(list: &[T], default: &[T]) -> Vec<T> {
            if list.is_empty() { default } else { list }.to_vec()
        }
        let quick = args.output.quick;
        let seed = Setting {
            study,
            ..Setting::seed(args)
        };
        let unique = Setting {
            order: IndexOrder::Unique,
            ..seed.clone()
        };
        let caps = || {
            let all = [1, 2, 4, 8, 16]
                .map(MultiprocessorLimit::At)
                .into_iter()
                .chain([MultiprocessorLimit::All]);
            let all: Vec<MultiprocessorLimit> = if quick {
                vec![MultiprocessorLimit::At(2), MultiprocessorLimit::All]
            } else {
                all.collect()
            };
            or(&args.multiprocessors, &all)
        };
        let settings: Vec<Setting> = match study {
            Study::Seed => vec![seed],
            Study::Indices => or(
                &args.indices,
                &[IndexOrder::Unique, IndexOrder::Repeated, IndexOrder::Sorted],
            )
            .into_iter()
            .map(|order| Setting {
                order,
                ..seed.clone()
            })
            .collect(),
            Study::RowBytes => {
                let sizes = [
                    64, 128, 256, 512, 576, 584, 640, 656, 1024, 1152, 2048, 4096,
                ];
                let sizes = if quick { &[64, 584, 656][..] } else { &sizes };
                // Each size copies the same number of bytes, so the number of rows is inversely
                // proportional to the size.
                let scaled = |n: usize, row_bytes: usize| (n * 656 / row_bytes.max(1)).max(1);
                let setting = |row_bytes| Setting {
                    row_bytes,
                    slots: scaled(unique.slots, row_bytes),
                    rows_per_request: scaled(unique.rows_per_request, row_bytes),
                    ..unique.clone()
                };
                or(&args.row_bytes, sizes)
                    .into_iter()
                    .map(setting)
                    .collect()
            }
            Study::Direction => [Direction::Gather, Direction::Scatter]
                .map(|direction| Setting {
                    direction,
                    ..unique
                })
                .to_vec(),
            Study::Offset => or(&args.offset, &[0, 16, 48, 8, 4, 1])
                .into_iter()
                .map(|offset| Setting {
                    offset,
                    ..unique.clone()
                })
                .collect(),
            Study::Multiprocessors | Study::MatrixProduct => caps()
                .into_iter()
                .map(|cap| Setting {
                    cap: Some(cap),
                    ..unique.clone()
                })
                .collect(),
        };
        settings.iter().try_for_each(Setting::check)?;
        Ok(settings)
    }

    pub(super) fn check(&self) -> Result<()> {
        let pairs = self.requests.checked_mul(self.rows_per_request);
        ensure!(
            pairs.is_some_and(|pairs| pairs > 0 && pairs <= self.slots),
            "{} requests of {} rows do not fit {} slots on the device",
            self.requests,
            self.rows_per_request,
            self.slots
        );
        ensure!(self.row_bytes > 0, "a row has at least one byte");
        ensure!(
            self.slots <= i32::MAX as usize,
            "{} slots do not fit i32 indices",
            self.slots
        );
        Ok(())
    }

    /// Pairs per batch.
    pub(super) fn pairs(&self) -> usize {
        self.requests * self.rows_per_request
    }

    /// Bytes that the batch copies.
    pub(super) fn bytes(&self) -> u64 {
        (self.pairs() * self.row_bytes) as u64
    }

    /// Bytes of the host's side.
    pub(super) fn host_bytes(&self) -> usize {
        self.offset + self.slots * self.row_bytes
    }

    /// Bytes of the device's side.
    pub(super) fn device_bytes(&self) -> usize {
        self.slots * self.row_bytes
    }

    /// The copy as the library's spec, with nothing chosen by name.
    pub(super) fn spec(&self) -> CopySpec {
        let (row_bytes, slots) = (self.row_bytes as u64, self.slots as u64);
        let host = RowLayout::dense(slots, row_bytes).offset_bytes(self.offset as u64);
        CopySpec::dense(row_bytes, slots, slots).host(host)
    }

    /// The host rows of the batch, in order.
    pub(super) fn host_rows(&self) -> Vec<i32> {
        let mut rng = SmallRng::seed_from_u64(0x726f_7773);
        let slots = self.slots as i32;
        if self.order == IndexOrder::Repeated {
            return (0..self.pairs())
                .map(|_| rng.random_range(0..slots))
                .collect();
        }
        let mut all: Vec<i32> = (0..slots).collect();
        let (drawn, _) = all.partial_shuffle(&mut rng, self.pairs());
        let mut drawn = drawn.to_vec();
        if self.order == IndexOrder::Sorted {
            drawn.sort_unstable();
        }
        drawn
    }

    /// The pairs `[source, destination, ...]` of the batch.
    pub(super) fn pair_list(&self) -> Vec<i32> {
        let rows = self.host_rows().into_iter().zip(0i32..);
        let pair = |(host, device)| match self.direction {
            Direction::Gather => [host, device],
            Direction::Scatter => [device, host],
        };
        rows.flat_map(pair).collect()
    }
}

/// The byte that fills destinations before a copy is checked.
pub(super) const POISON: u8 = 0xa5;

/// Fills a source with bytes that differ between rows.
pub(super) fn fill(bytes: &mut [u8]) {
    SmallRng::seed_from_u64(0x6279_7465).fill_bytes(bytes);
}

/// Compares every byte of a destination that was poisoned before the copy: copied rows with their
/// sources, everything else with the poison. Returns the number of bytes compared.
pub(super) fn verify(
    setting: &Setting,
    pairs: &[i32],
    source: &[u8],
    destination: &[u8],
) -> Result<u64> {
    let (row_bytes, offset) = (setting.row_bytes, setting.offset);
    let (source_offset, destination_offset) = match setting.direction {
        Direction::Gather => (offset, 0),
        Direction::Scatter => (0, offset),
    };
    let row = |bytes: usize, row: i32| bytes + row as usize * row_bytes;
    let mut copied = vec![false; setting.slots];
    for (at, pair) in pairs.chunks_exact(2).enumerate() {
        let (from, to) = (
            row(source_offset, pair[0]),
            row(destination_offset, pair[1]),
        );
        ensure!(
            source[from..from + row_bytes] == destination[to..to + row_bytes],
            "pair {at}: row {} was not copied to row {} unchanged",
            pair[0],
            pair[1]
        );
        copied[pair[1] as usize] = true;
    }
    let poisoned = |bytes: &[u8]| bytes.iter().all(|&byte| byte == POISON);
    ensure!(
        poisoned(&destination[..destination_offset]),
        "bytes before the first row were written"
    );
    for (slot, _) in copied.iter().enumerate().filter(|(_, copied)| !**copied) {
        let at = row(destination_offset, slot as i32);
        ensure!(
            poisoned(&destination[at..at + row_bytes]),
            "row {slot}, which nothing was copied to, was written"
        );
    }
    Ok(destination.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick() -> Args {
        let mut args = Args::default();
        args.output.quick = true;
        args
    }

    #[test]
    fn the_seed_is_the_published_setting_and_each_study_changes_one_thing() {
        let seed = Setting::seed(&Args::default());
        assert_eq!((seed.pairs(), seed.bytes()), (262_144, 164 << 20));
        let sizes = Setting::of(Study::RowBytes, &Args::default()).unwrap();
        for size in [576, 584, 640, 656, 1152] {
            assert!(sizes.iter().any(|setting| setting.row_bytes == size));
        }
        for study in Study::ALL {
            let settings = Setting::of(study, &quick()).unwrap();
            assert!(!settings.is_empty());
            for (at, setting) in settings.iter().enumerate() {
                assert!(!settings[..at].contains(setting), "{setting:?}");
            }
        }
    }

    #[test]
    fn orders_are_what_they_are_called() {
        let rows = |order| {
            let setting = Setting {
                order,
                ..Setting::seed(&quick())
            };
            setting.host_rows()
        };
        let distinct = |mut rows: Vec<i32>| {
            let len = rows.len();
            rows.sort_unstable();
            rows.dedup();
            rows.len() == len
        };
        assert!(distinct(rows(IndexOrder::Unique)) && !rows(IndexOrder::Unique).is_sorted());
        assert!(distinct(rows(IndexOrder::Sorted)) && rows(IndexOrder::Sorted).is_sorted());
        assert!(!distinct(rows(IndexOrder::Repeated)));
    }

    #[test]
    fn the_check_finds_a_wrong_byte_wherever_it_is() {
        let mut setting = Setting::seed(&quick());
        setting.offset = 16;
        setting.direction = Direction::Scatter;
        setting.order = IndexOrder::Unique;
        let pairs = setting.pair_list();
        let mut source = vec![0; setting.device_bytes()];
        fill(&mut source);
        let mut good = vec![POISON; setting.host_bytes()];
        for pair in pairs.chunks_exact(2) {
            let (from, to) = (pair[0] as usize * 656, 16 + pair[1] as usize * 656);
            good[to..to + 656].copy_from_slice(&source[from..from + 656]);
        }
        assert_eq!(
            verify(&setting, &pairs, &source, &good).unwrap(),
            16 + 300 * 656
        );
        for at in (0..good.len()).step_by(331) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(verify(&setting, &pairs, &source, &bad).is_err(), "{at}");
        }
    }

    #[test]
    fn impossible_settings_are_refused() {
        let mut args = quick();
        args.slots = Some(10);
        let error = Setting::of(Study::Seed, &args).unwrap_err().to_string();
        assert!(error.contains("do not fit 10 slots"), "{error}");
        assert!(
            "0".parse::<MultiprocessorLimit>().is_err()
                && "all".parse() == Ok(MultiprocessorLimit::All)
        );
    }
}
