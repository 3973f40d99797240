//! The six studies: the question of each, and the cells that answer it.
//!
//! They are Forerun's own. The paper that inspired the first five (SimdHT-Bench, Shankar, Lu and
//! Panda, IISWC 2019) also made case studies; its list is not public.

use super::contender::{FIND_BATCH, GET};
use super::keys::Skew;
use super::run_turn::UpdateKind;
use super::sweep::{Axis, Operation, Sweep};
use crate::threads::Cores;
use forerun_studies::designs::Lookup;

/// A study.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// Its number, from 1; `None` for custom cells.
    pub number: Option<u8>,
    /// Its subject.
    pub title: String,
    /// The question that it answers.
    pub question: String,
    /// The measured cells.
    pub sweeps: Vec<Sweep>,
}

/// How many studies there are.
pub const STUDIES: u8 = 6;

/// A size that exceeds the caches of today's machines, and that leaves space for a table of every
/// design at once.
const BEYOND_CACHES: usize = 256 << 20;

/// A size that fits into the second-level cache of today's machines.
const IN_CACHE: usize = 256 << 10;

impl Study {
    /// The study with that number, in full, or with small tables and short lists for a quick run.
    pub fn numbered(number: u8, quick: bool) -> Option<Study> {
        let (title, question, mut sweeps) = match number {
            1 => size(),
            2 => load(),
            3 => skew(),
            4 => batch_and_width(),
            5 => threads_and_updates(),
            6 => writes(),
            _ => return None,
        };
        if quick {
            sweeps.iter_mut().for_each(shorten);
        }
        Some(Study {
            number: Some(number),
            title: title.to_owned(),
            question: question.to_owned(),
            sweeps,
        })
    }
}

/// The strategies with those names. For designs that support it, also the lookup of a vector of
/// keys, one per lane, which they choose themselves only where it is the fastest.
fn strategies(names: &[&str]) -> Vec<String> {
    let lanes = [Lookup::Vertical.name()];
    names
        .iter()
        .chain(&lanes)
        .map(|name| (*name).to_owned())
        .collect()
}

type Parts = (&'static str, &'static str, Vec<Sweep>);

fn size() -> Parts {
    let sizes = [14, 16, 18, 20, 22, 24, 26, 28, 30, 31].map(|bits| 1 << bits);
    let sweep = Sweep {
        axis: Axis::Size,
        sizes: sizes.to_vec(),
        strategies: strategies(&[GET, FIND_BATCH]),
        ..Sweep::cell()
    };
    (
        "Table size",
        "At which table size do batches and vector instructions become faster, from L1 to far \
         beyond the last-level cache?",
        vec![sweep],
    )
}

fn load() -> Parts {
    let sweep = Sweep {
        axis: Axis::LoadFactor,
        sizes: vec![BEYOND_CACHES],
        load_factors: vec![0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95],
        hit_rates: vec![1.0, 0.5, 0.0],
        strategies: strategies(&[FIND_BATCH]),
        ..Sweep::cell()
    };
    (
        "Load factor and hit rate",
        "How full may a table be, and what do lookups of absent keys cost?",
        vec![sweep],
    )
}

fn skew() -> Parts {
    let zipf = [0.6, 0.8, 0.99, 1.2].map(Skew::Zipf);
    let sweep = Sweep {
        axis: Axis::Skew,
        sizes: vec![BEYOND_CACHES],
        skews: [&[Skew::Uniform][..], &zipf].concat(),
        ..Sweep::cell()
    };
    (
        "Skew",
        "When some keys are requested far more often than others, the caches hold them: what is \
         left for a batch to overlap?",
        vec![sweep],
    )
}

fn batch_and_width() -> Parts {
    let sizes = vec![IN_CACHE, BEYOND_CACHES];
    let batches = Sweep {
        axis: Axis::Batch,
        sizes: sizes.clone(),
        batches: vec![1, 2, 4, 8, 16, 32, 64, 128, 256, 1024],
        strategies: strategies(&[FIND_BATCH]),
        ..Sweep::cell()
    };
    let widths = Sweep {
        axis: Axis::Width,
        sizes,
        widths: vec![(4, 4), (4, 8), (8, 4), (8, 8)],
        strategies: strategies(&[FIND_BATCH]),
        ..Sweep::cell()
    };
    // There are only 65,536 keys of two bytes, and half of them are kept to be absent.
    let narrow = Sweep {
        sizes: vec![16 << 10, 128 << 10],
        widths: vec![(2, 4), (2, 8), (4, 4), (8, 8)],
        ..widths.clone()
    };
    (
        "Batch and widths",
        "How large must a batch be, and how much do narrow keys and values gain?",
        vec![batches, widths, narrow],
    )
}

fn threads_and_updates() -> Parts {
    let cores = Cores::available().count();
    let powers = std::iter::successors(Some(1), |threads| Some(threads * 2));
    let mut threads: Vec<usize> = powers.take_while(|threads| *threads < cores).collect();
    threads.push(cores);
    let scaling = Sweep {
        axis: Axis::Threads,
        sizes: vec![BEYOND_CACHES],
        threads,
        ..Sweep::cell()
    };
    // One core is reserved for the updater.
    let beside = Sweep {
        axis: Axis::Updates,
        threads: vec![cores.saturating_sub(1).max(1)],
        updates: vec![0.0, 0.05, 0.5],
        update_kinds: vec![UpdateKind::Upsert, UpdateKind::Churn],
        ..scaling.clone()
    };
    (
        "Threads and updates",
        "Does a second thread double the rate, and how far does the read rate drop while another \
         thread updates?",
        vec![scaling, beside],
    )
}

fn writes() -> Parts {
    let sweep = Sweep {
        operation: Operation::Write,
        axis: Axis::Batch,
        sizes: vec![IN_CACHE, BEYOND_CACHES],
        batches: vec![1, 8, 64, 1024],
        ..Sweep::cell()
    };
    (
        "Insertions and removals",
        "What does a batch gain when it writes, and which design is fastest to change?",
        vec![sweep],
    )
}

/// Uses small tables and short lists; each axis keeps two entries.
fn shorten(sweep: &mut Sweep) {
    let fewer = |len: usize| len.min(2);
    sweep.sizes.truncate(fewer(sweep.sizes.len()));
    for (at, size) in sweep.sizes.iter_mut().enumerate() {
        *size = (8 << 10) << at;
    }
    let middle = sweep.load_factors.len() / 2;
    if middle > 0 {
        sweep.load_factors = vec![sweep.load_factors[middle], 0.95];
    }
    sweep.hit_rates.truncate(fewer(sweep.hit_rates.len()));
    sweep.skews.truncate(fewer(sweep.skews.len()));
    if sweep.batches.len() > 1 {
        sweep.batches = vec![1, 32];
    }
    sweep.widths.truncate(fewer(sweep.widths.len()));
    sweep.threads.truncate(fewer(sweep.threads.len()));
    sweep.updates.truncate(fewer(sweep.updates.len()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_six_studies_and_each_sweeps_its_axis() {
        for number in 1..=STUDIES {
            for quick in [false, true] {
                let study = Study::numbered(number, quick).expect("a study");
                assert!(!study.title.is_empty() && study.question.ends_with('?'));
                let cells: usize = study.sweeps.iter().map(|sweep| sweep.cells().len()).sum();
                assert!(cells >= 1);
                let largest = study.sweeps.iter().flat_map(|sweep| &sweep.sizes).max();
                assert!(!quick || largest.is_some_and(|size| *size <= 64 << 10));
            }
        }
        assert_eq!(Study::numbered(0, false), None);
        assert_eq!(Study::numbered(STUDIES + 1, false), None);
    }

    #[test]
    fn covers_every_promised_range() {
        let sweeps: Vec<Sweep> = (1..=STUDIES)
            .flat_map(|number| Study::numbered(number, false).expect("a study").sweeps)
            .collect();
        let sizes = || sweeps.iter().flat_map(|sweep| &sweep.sizes);
        assert_eq!(sizes().min(), Some(&(16 << 10)));
        assert_eq!(sizes().max(), Some(&(2 << 30)));
        let batches = || sweeps.iter().flat_map(|sweep| &sweep.batches);
        assert_eq!((batches().min(), batches().max()), (Some(&1), Some(&1024)));
        assert!(sweeps.iter().any(|sweep| sweep.updates == [0.0, 0.05, 0.5]));
        assert!(sweeps.iter().any(|sweep| sweep.widths.len() == 4));
        assert!(
            sweeps
                .iter()
                .any(|sweep| sweep.skews.contains(&Skew::Zipf(1.2)))
        );
        assert!(
            sweeps
                .iter()
                .any(|sweep| sweep.load_factors.contains(&0.95))
        );
    }
}
