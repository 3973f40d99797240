//! The command line of the bench `hash`, and the studies or cells that it selects.

use super::case_studies::{STUDIES, Study};
use super::keys::Skew;
use super::run_turn::UpdateKind;
use super::sweep::Sweep;
use crate::output::{Output, Threads, Timing, check_threads};
use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;
use forerun_core::arch::Isa;
use forerun_core::size::parse_size;
use forerun_measure::size::parse_share;

/// Which hash table wins: batched lookups by design, instruction set, size, load factor and more
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench hash --study 1 --report size.html
  forerun-bench hash --size 1GiB --load-factor 0.7,0.9 --hit-rate 1 --batch 64 --threads 1 \
  --strategy find
  forerun-bench hash --design table,memc3 --size 256KiB,1GiB --isa avx2,scalar --json

The studies: 1 table size, 2 load factor and hit rate, 3 skew, 4 batch and widths, 5 threads and \
updates, 6 batches of insertions and removals. Without --study or --all, every combination of the \
lists is measured; with a study, the lists replace the study's own.

A size counts slots: --size 1GiB of 8-byte keys and values is a table of 67,108,864 slots in every \
design, so all designs hold the same keys at the same load factor. The column \"B per entry\" \
shows how much memory each design takes for them.

\"lines\" is keys per second, divided by the random cache lines per second that the same number \
of threads read in the same rounds: 100% would be a lookup that costs one cache line from memory \
and nothing else. A table in the cache may exceed it.")]
pub struct Args {
    /// Studies to run, 1 to 6
    #[arg(long, value_name = "LIST", value_delimiter = ',',
        value_parser = RangedU64ValueParser::<u8>::new().range(1..=u64::from(STUDIES)))]
    pub study: Vec<u8>,

    /// Run all studies
    #[arg(long, conflicts_with = "study")]
    pub all: bool,

    /// Table size: slots times the bytes of a key and a value [default: 64MiB]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub size: Vec<usize>,

    /// Load factor: entries over slots, as 0.7 or 70% [default: 0.7]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_share)]
    pub load_factor: Vec<f64>,

    /// Share of the requested keys that are present [default: 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_share)]
    pub hit_rate: Vec<f64>,

    /// Which present keys are requested: uniform, or zipf:0.99 [default: uniform]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub skew: Vec<Skew>,

    /// Keys per batch [default: 64]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub batch: Vec<usize>,

    /// How many threads.
    #[command(flatten)]
    pub threads: Threads,

    /// Bytes per key, 2, 4 or 8 [default: 8]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_key_width)]
    pub key_bytes: Vec<usize>,

    /// Bytes per value, 4 or 8 [default: 8]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_width)]
    pub value_bytes: Vec<usize>,

    /// Designs, such as table (the production table) or memc3 [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub design: Vec<String>,

    /// How a batch is looked up: get, find, a design's own strategies, or all [default:
    /// get,find]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub strategy: Vec<String>,

    /// Instruction sets [default: the best of this machine, and scalar]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub isa: Vec<Isa>,

    /// Percentage of all operations that are updates, made by an additional thread [default: 0]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_percent)]
    pub updates: Vec<f64>,

    /// The kind of an update [default: upsert]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub update_kind: Vec<UpdateKind>,

    /// Memory that all tables may use at a time; tables that do not fit are measured one after the
    /// other
    #[arg(long, value_name = "BYTES", default_value = "5GiB", value_parser = parse_size)]
    pub memory: usize,

    /// How long a case is timed.
    #[command(flatten)]
    pub timing: Timing,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

fn parse_key_width(text: &str) -> Result<usize, String> {
    match text.trim() {
        "2" => Ok(2),
        text => parse_width(text),
    }
}

fn parse_width(text: &str) -> Result<usize, String> {
    match text.trim() {
        "4" => Ok(4),
        "8" => Ok(8),
        _ => Err(format!(
            "{text:?} is not a width: keys have 2, 4 or 8 bytes, values 4 or 8 bytes"
        )),
    }
}

/// Reads a percentage below 100, with or without the sign, as a share.
fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').parse::<f64>();
    match number {
        Ok(percent) if (0.0..100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!(
            "{text:?} is not a percentage of updates: write 5, or any number from 0 to below 100"
        )),
    }
}

impl Args {
    /// The selected studies, or a single one made of the lists.
    pub(super) fn studies(&self) -> Result<Vec<Study>> {
        let quick = self.output.quick;
        let numbers: Vec<u8> = if self.all {
            (1..=STUDIES).collect()
        } else {
            self.study.clone()
        };
        let mut studies: Vec<Study> = numbers
            .into_iter()
            .filter_map(|number| Study::numbered(number, quick))
            .collect();
        if studies.is_empty() {
            studies.push(Study {
                number: None,
                title: "Cells".to_owned(),
                question: String::new(),
                sweeps: vec![Sweep::cell()],
            });
            if quick {
                studies[0].sweeps[0].sizes = vec![64 << 10];
            }
        }
        for study in &mut studies {
            for sweep in &mut study.sweeps {
                self.put_over(sweep)?;
                if study.number.is_none() {
                    sweep.axis = sweep.longest_axis();
                }
            }
        }
        Ok(studies)
    }

    /// Replaces the lists that were given.
    fn put_over(&self, sweep: &mut Sweep) -> Result<()> {
        fn put<T: Clone>(list: &mut Vec<T>, given: &[T]) {
            if !given.is_empty() {
                *list = given.to_vec();
            }
        }
        put(&mut sweep.sizes, &self.size);
        put(&mut sweep.load_factors, &self.load_factor);
        put(&mut sweep.hit_rates, &self.hit_rate);
        put(&mut sweep.skews, &self.skew);
        put(&mut sweep.batches, &self.batch);
        put(&mut sweep.threads, &self.threads.threads);
        put(&mut sweep.designs, &self.design);
        put(&mut sweep.strategies, &self.strategy);
        put(&mut sweep.isas, &self.isa);
        put(&mut sweep.updates, &self.updates);
        put(&mut sweep.update_kinds, &self.update_kind);
        if !self.key_bytes.is_empty() || !self.value_bytes.is_empty() {
            let or_wide = |list: &[usize]| {
                if list.is_empty() {
                    vec![8]
                } else {
                    list.to_vec()
                }
            };
            let values = or_wide(&self.value_bytes);
            let pairs = |&key: &usize| {
                values
                    .iter()
                    .map(move |&value| (key, value))
                    .collect::<Vec<_>>()
            };
            sweep.widths = or_wide(&self.key_bytes).iter().flat_map(pairs).collect();
        }
        // A table is filled further from one load factor to the next.
        sweep.load_factors.sort_by(f64::total_cmp);
        sweep.load_factors.dedup();
        ensure!(
            !sweep.batches.contains(&0),
            "a batch needs at least one key"
        );
        check_threads(&sweep.threads)?;
        let unavailable = sweep.isas.iter().find(|isa| !isa.is_available());
        ensure!(
            unavailable.is_none(),
            "this machine does not run {}",
            unavailable.map(Isa::to_string).unwrap_or_default()
        );
        for (keys, values) in &sweep.widths {
            let smallest = sweep.sizes.iter().min().copied().unwrap_or_default();
            let entries = smallest / (keys + values);
            let least = sweep.load_factors.first().copied().unwrap_or_default();
            ensure!(
                entries as f64 * least >= 16.0,
                "a table of {smallest} bytes, filled to {least}, holds fewer than 16 entries: make \
                 it larger"
            );
        }
        Ok(())
    }
}
