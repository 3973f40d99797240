//! The load: a trace, or a mix with Zipf's popularity and ETC's sizes.

use super::args::Args;
use anyhow::{Context, Result, bail, ensure};
use lzma_rust2::XzReader;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Reads of the mix, by default.
const READS: usize = 5_000_000;

/// Keys in the order of their reads.
pub(super) struct Load {
    pub(super) name: String,
    pub(super) keys: Vec<u32>,
    scale: usize,
}

impl Load {
    pub(super) fn new(args: &Args) -> Result<Load> {
        ensure!(args.value_scale >= 1, "--value-scale must be at least 1");
        let (name, mut keys) = match &args.trace {
            Some(path) => {
                let name = path
                    .file_name()
                    .map_or_else(Default::default, |name| name.to_string_lossy().into_owned());
                (name, read(path)?)
            }
            None => {
                let keys = args.keys.unwrap_or(1_000_000).max(2);
                let mix = mix(keys, args.zipf, args.reads.unwrap_or(READS))?;
                (format!("zipf:{} of {keys}", args.zipf), mix)
            }
        };
        keys.truncate(args.reads.unwrap_or(usize::MAX));
        Ok(Load {
            name,
            keys,
            scale: args.value_scale,
        })
    }

    /// The bytes of a key, as long as ETC's keys, which have 31 bytes in the middle.
    pub(super) fn key(&self, n: u32) -> Vec<u8> {
        format!("trace/object/{n:010}/01234567").into_bytes()
    }

    /// The length of a key's value: generalised Pareto with location 15, scale 214.5 and shape
    /// 0.348 (Atikoglu et al., "Workload Analysis of a Large-Scale Key-Value Store", SIGMETRICS
    /// 2012), times the given scale.
    pub(super) fn value_len(&self, n: u32) -> usize {
        const LEN_MAX: f64 = 500_000.0;
        let share = SmallRng::seed_from_u64(n.into()).random::<f64>();
        let len = 15.0 + 214.5 * ((1.0 - share).powf(-0.348) - 1.0) / 0.348;
        (len * self.scale as f64).min(LEN_MAX) as usize
    }

    /// The number of distinct keys, and the bytes of keys and values, each counted once: the space
    /// needed to hold all of them.
    pub(super) fn footprint(&self) -> (usize, u64) {
        let mut distinct = self.keys.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let bytes = distinct
            .iter()
            .map(|&n| (self.value_len(n) + self.key(n).len()) as u64);
        (distinct.len(), bytes.sum())
    }
}

fn read(path: &Path) -> Result<Vec<u32>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut bytes = Vec::new();
    let mut reader = BufReader::new(file);
    if path.extension().is_some_and(|extension| extension == "xz") {
        XzReader::new(reader, true).read_to_end(&mut bytes)
    } else {
        reader.read_to_end(&mut bytes)
    }
    .with_context(|| format!("cannot read {}", path.display()))?;
    let (keys, rest) = bytes.as_chunks::<4>();
    if keys.is_empty() || !rest.is_empty() {
        bail!(
            "{} is not a trace of 4-byte keys: it has {}",
            path.display(),
            bytes.len()
        );
    }
    Ok(keys.iter().map(|&key| u32::from_be_bytes(key)).collect())
}

fn mix(keys: usize, exponent: f64, reads: usize) -> Result<Vec<u32>> {
    let zipf = Zipf::new(keys as f64, exponent).context("--zipf is above 0")?;
    let mut rng = SmallRng::seed_from_u64(5);
    Ok((0..reads).map(|_| zipf.sample(&mut rng) as u32).collect())
}
