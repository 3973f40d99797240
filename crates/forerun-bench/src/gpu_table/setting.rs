//! Settings: the published record's, with one parameter changed by each study.
//!
//! ```text
//!   inserted       key_of(0), key_of(1), ...        until the table has the requested load
//!   requested      a sample of them, spread evenly over the insertions, and keys never inserted
//! ```

use super::args::Args;
use super::operation::{Op, OpVariant};
use super::table_study::{Buckets, Study};
use crate::output::or;
use crate::skew::Skew;
use anyhow::{Result, ensure};
use forerun_gpu::table::{GpuEvictStrategy, LookupMode, TableOptions, Width};

/// The variants that a study measures in each setting.
pub(super) fn variants_of(study: Study, args: &Args, setting: &Setting) -> Vec<OpVariant> {
    let ops: &[Op] = match study {
        Study::Seed => &[Op::FindPtr, Op::Find, Op::Contains],
        Study::Operations => &Op::ALL,
        Study::Buckets => &[Op::FindPtr, Op::InsertOrAssign],
        Study::Dim => &[Op::FindPtr, Op::Find, Op::FindPooled, Op::InsertOrAssign],
        Study::Bags => &[Op::FindPtr, Op::Find, Op::FindPooled],
        Study::HitRate => &[Op::FindPtr, Op::Find],
        Study::Batch => &[Op::FindPtr, Op::Find, Op::InsertOrAssign],
        Study::Skew => &[Op::FindPtr, Op::Find, Op::FindAndUpdate],
    };
    let lookups: &[LookupMode] = match study {
        Study::Seed | Study::Buckets => &LookupMode::ALL,
        Study::Operations => &[LookupMode::ByLoad],
        _ => &[LookupMode::ByLoad, LookupMode::Thread, LookupMode::SeedRule],
    };
    let mut variants = Vec::new();
    for op in or(&args.op, ops) {
        if op.pools() && setting.dim == 0 {
            // There is nothing to sum.
            continue;
        }
        if op != Op::FindPtr {
            variants.push(OpVariant::of(op));
            continue;
        }
        for lookup in or(&args.lookup, lookups) {
            // The pipeline exists for one width only; without it, HierarchicalKV's rule is one
            // thread per key.
            if setting.buckets.width == Width::W128 || lookup != LookupMode::Pipeline {
                variants.push(OpVariant { op, lookup });
            }
        }
    }
    variants
}

/// One table, and the requests to it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) study: Study,
    pub(super) slots: u64,
    pub(super) buckets: Buckets,
    /// 4-byte numbers per row.
    pub(super) dim: u64,
    /// Entries per slot.
    pub(super) load: f64,
    pub(super) hit_rate: f64,
    pub(super) batch: usize,
    pub(super) skew: Skew,
    /// Keys per bag of a pooled lookup.
    pub(super) bag_keys: usize,
    /// Minimum keys per turn, if a call has fewer.
    pub(super) turn_keys: usize,
}

impl Setting {
    /// The published record's setting, or a small one if there is no GPU.
    pub(super) fn seed(args: &Args, on_gpu: bool) -> Setting {
        let (slots, batch) = match (args.output.quick, on_gpu) {
            (true, _) => (1 << 12, 1 << 8),
            (false, true) => (128 << 20, 1 << 20),
            (false, false) => (1 << 20, 1 << 16),
        };
        Setting {
            study: Study::Seed,
            slots: args.slots.unwrap_or(slots),
            buckets: args.buckets.first().copied().unwrap_or(Buckets::DEFAULT),
            dim: args.dim.first().copied().unwrap_or(8),
            load: args.load.first().copied().unwrap_or(0.5),
            hit_rate: args.hit_rate.first().copied().unwrap_or(0.6),
            batch: args.batch.first().copied().unwrap_or(batch),
            skew: Skew::Uniform,
            bag_keys: args.bag.first().copied().unwrap_or(32),
            turn_keys: if args.output.quick { 0 } else { 1 << 16 },
        }
    }

    /// The settings of a study; those that share a table are adjacent.
    pub(super) fn of(study: Study, args: &Args, on_gpu: bool) -> Result<Vec<Setting>> {
        let quick = args.output.quick;
        let seed = Setting {
            study,
            ..Setting::seed(args, on_gpu)
        };
        let loads = args.loads();
        let with = |change: &dyn Fn(&mut Setting)| {
            let mut setting = seed.clone();
            change(&mut setting);
            setting
        };
        // Where a parameter other than the load changes, the load leaves some free slots.
        let load = args.load.first().copied().unwrap_or(0.75);
        let settings: Vec<Setting> = match study {
            Study::Seed | Study::Operations => {
                loads.iter().map(|&load| with(&|s| s.load = load)).collect()
            }
            Study::Buckets => {
                let default = ["1x128", "1x64", "2x128", "2x64", "1x32"].map(str::parse::<Buckets>);
                let default: Vec<Buckets> = default.into_iter().flatten().collect();
                let forms = or(&args.buckets, &default);
                let each = |form: &Buckets| {
                    let form = *form;
                    let change = |load: &f64| with(&|s| (s.buckets, s.load) = (form, *load));
                    loads.iter().map(change).collect::<Vec<_>>()
                };
                forms.iter().flat_map(each).collect()
            }
            Study::Dim => or(&args.dim, &[8, 32, 64])
                .into_iter()
                .map(|dim| with(&|s| (s.dim, s.load) = (dim, load)))
                .collect(),
            Study::HitRate => or(&args.hit_rate, &[0.0, 0.25, 0.6, 0.9, 1.0])
                .into_iter()
                .map(|rate| with(&|s| (s.hit_rate, s.load) = (rate, load)))
                .collect(),
            Study::Batch => {
                let all: Vec<usize> = if on_gpu {
                    (10..=22).step_by(2).map(|power| 1 << power).collect()
                } else {
                    (10..=18).step_by(2).map(|power| 1 << power).collect()
                };
                let all = if quick { vec![1 << 6, 1 << 8] } else { all };
                or(&args.batch, &all)
                    .into_iter()
                    .map(|batch| with(&|s| (s.batch, s.load) = (batch, load)))
                    .collect()
            }
            Study::Skew => or(
                &args.skew,
                &[Skew::Uniform, Skew::Zipf(0.99), Skew::Zipf(1.2)],
            )
            .into_iter()
            .map(|skew| with(&|s| (s.skew, s.load) = (skew, load)))
            .collect(),
            Study::Bags => or(&args.bag, &[1, 8, 32, 128, 1024])
                .into_iter()
                .map(|keys| with(&|s| (s.bag_keys, s.load) = (keys, load)))
                .collect(),
        };
        settings.iter().try_for_each(Setting::check)?;
        Ok(settings)
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.batch > 0, "a batch of no keys");
        ensure!(self.bag_keys > 0, "a bag of no keys");
        ensure!(self.load > 0.0, "a load of 0 leaves nothing to find");
        ensure!(
            self.slots >= 256,
            "{} slots are too few to measure: use at least 256",
            self.slots
        );
        Ok(())
    }

    pub(super) fn row_bytes(&self) -> u64 {
        self.dim * 4
    }

    /// Options for a table of this many slots that is otherwise like this one.
    pub(super) fn options(&self, slots: u64) -> TableOptions {
        TableOptions::new(slots, self.row_bytes())
            .width(self.buckets.width)
            .candidates(self.buckets.candidates)
            .evict_strategy(GpuEvictStrategy::Lru)
    }

    /// Whether the filled table of the other setting can be reused for this one.
    pub(super) fn shares_table(&self, other: &Setting) -> bool {
        (self.slots, self.buckets, self.dim) == (other.slots, other.buckets, other.dim)
            && self.load == other.load
    }

    /// Calls per turn. There are enough that the clock's resolution does not matter for a small
    /// batch.
    pub(super) fn calls(&self) -> usize {
        (self.turn_keys / self.batch).clamp(1, 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_the_published_setting_and_each_study_changes_one_thing() {
        let args = Args::default();
        let seed = Setting::seed(&args, true);
        assert_eq!((seed.slots, seed.batch, seed.dim), (128 << 20, 1 << 20, 8));
        assert_eq!((seed.hit_rate, args.loads()), (0.6, vec![0.5, 0.75, 1.0]));
        for study in Study::ALL {
            let settings = Setting::of(study, &args, true).unwrap();
            assert!(!settings.is_empty());
            for (at, setting) in settings.iter().enumerate() {
                assert!(!settings[..at].contains(setting), "{setting:?}");
                assert!(!variants_of(study, &args, setting).is_empty());
            }
        }
        let batches: Vec<usize> = Setting::of(Study::Batch, &args, true)
            .unwrap()
            .iter()
            .map(|s| s.batch)
            .collect();
        assert_eq!((batches[0], batches[batches.len() - 1]), (1 << 10, 1 << 22));
    }

    #[test]
    fn bucket_forms_round_trip_as_text() {
        for text in ["2x128", "1x64", "1x16"] {
            assert_eq!(text.parse::<Buckets>().unwrap().to_string(), text);
        }
        assert!("3x128".parse::<Buckets>().unwrap_err().contains("2x128"));
        assert!("2x100".parse::<Buckets>().is_err());
    }

    #[test]
    fn rows_without_numbers_are_not_summed() {
        let pooled = |dim| {
            let args = Args {
                dim: vec![dim],
                ..Args::default()
            };
            let variants = variants_of(Study::Operations, &args, &Setting::seed(&args, true));
            variants.iter().filter(|variant| variant.op.pools()).count()
        };
        assert_eq!((pooled(8), pooled(0)), (2, 0));
    }

    #[test]
    fn the_pipeline_is_skipped_unless_buckets_have_128_slots() {
        let of = |form: &str| {
            let args = Args {
                buckets: vec![form.parse().unwrap()],
                ..Args::default()
            };
            let variants = variants_of(Study::Seed, &args, &Setting::seed(&args, true));
            variants
                .iter()
                .filter(|variant| variant.lookup == LookupMode::Pipeline)
                .count()
        };
        assert_eq!((of("2x128"), of("1x64")), (1, 0));
    }
}
