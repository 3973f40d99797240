//! The rows of a table, and which of them are requested.
//!
//! ```text
//!  uniform, zipf   rows 0..n           drawn; which row is popular is random
//!  trace           its numbers         in the order of the file, each thread from a different place on
//! ```

use crate::workload::{Shuffle, mix};
use anyhow::{Context, Result, ensure};
use forerun_table::RowType;
use lzma_rust2::XzReader;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Maximum bytes of a trace: a quarter of a billion reads.
const TRACE_BYTES_MAX: u64 = 1 << 30;

/// How rows are requested.
#[derive(Clone, Debug, PartialEq)]
pub enum Access {
    /// All rows equally often.
    Uniform,
    /// The r-th most popular one r to the power of -s times as often as the first.
    Zipf(f64),
    /// As recorded in a trace of a program.
    Trace(PathBuf),
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::Uniform => f.pad("uniform"),
            Access::Zipf(s) => f.pad(&format!("zipf:{s}")),
            Access::Trace(path) => {
                let name = path.file_name().unwrap_or(path.as_os_str());
                f.pad(&format!("trace:{}", name.to_string_lossy()))
            }
        }
    }
}

impl FromStr for Access {
    type Err = String;

    fn from_str(text: &str) -> Result<Access, String> {
        let exponent = |s: &str| s.parse().ok().filter(|s| (0.0..=10.0).contains(s));
        match text.trim().split_once(':') {
            None if text.trim() == "uniform" => Ok(Access::Uniform),
            Some(("zipf", s)) if exponent(s).is_some() => {
                Ok(exponent(s).map_or(Access::Uniform, Access::Zipf))
            }
            Some(("trace", path)) if !path.is_empty() => Ok(Access::Trace(path.into())),
            _ => Err(format!(
                "{text:?} is not an access pattern: write uniform, zipf:1 with an exponent from 0 \
                 to 10, or trace:FILE"
            )),
        }
    }
}

/// The keys of a table, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// The numbers below this.
    Dense(u64),
    /// These keys.
    Listed(Vec<u64>),
}

impl Keys {
    /// The number of keys.
    pub fn len(&self) -> u64 {
        match self {
            Keys::Dense(count) => *count,
            Keys::Listed(keys) => keys.len() as u64,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys at a range of positions.
    pub fn part(&self, from: u64, to: u64) -> Vec<u64> {
        match self {
            Keys::Dense(count) => (from..to.min(*count)).collect(),
            Keys::Listed(keys) => {
                let to = (to as usize).min(keys.len());
                keys[(from as usize).min(to)..to].to_vec()
            }
        }
    }
}

/// The keys of a table and the keys that each thread requests.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The keys in the table.
    pub keys: Keys,
    /// The requested keys.
    pub streams: Vec<Vec<u64>>,
}

impl Workload {
    /// Draws or reads the requests of `threads` threads, about `len` keys each; each thread replays
    /// the whole trace from its own offset.
    ///
    /// # Errors
    /// The error of the file, with its name.
    pub fn new(access: &Access, rows: u64, threads: usize, len: usize) -> Result<Workload> {
        let threads = 0..threads.max(1) as u64;
        if let Access::Trace(path) = access {
            let trace =
                read_trace(path).with_context(|| format!("the trace {}", path.display()))?;
            let mut keys = trace.clone();
            keys.sort_unstable();
            keys.dedup();
            let count = threads.end as usize;
            let from = |thread: u64| trace.len() / count * thread as usize;
            let streams = threads.map(|thread| {
                let (before, after) = trace.split_at(from(thread));
                [after, before].concat()
            });
            return Ok(Workload {
                keys: Keys::Listed(keys),
                streams: streams.collect(),
            });
        }
        let scatter = Shuffle::new(rows);
        let zipf = match access {
            Access::Zipf(exponent) => Some(Zipf::new(rows as f64, *exponent)?),
            Access::Uniform | Access::Trace(_) => None,
        };
        let streams = threads.map(|thread| {
            let mut rng = SmallRng::seed_from_u64(thread + 1);
            let draw = |_| match &zipf {
                None => rng.random_range(0..rows),
                // Ranks start at 1. The shuffle leaves 0 in place, so the first rank is moved away
                // from there.
                Some(zipf) => scatter.at((zipf.sample(&mut rng) as u64 + rows / 3) % rows),
            };
            (0..len).map(draw).collect()
        });
        Ok(Workload {
            keys: Keys::Dense(rows),
            streams: streams.collect(),
        })
    }
}

fn read_trace(path: &Path) -> Result<Vec<u64>> {
    let file = BufReader::new(File::open(path)?);
    let mut bytes = Vec::new();
    if path.extension().is_some_and(|extension| extension == "xz") {
        // A dictionary of 64 MiB is as large as the highest setting of xz itself uses.
        let reader = XzReader::new_mem_limit(file, true, 72 << 10);
        reader.take(TRACE_BYTES_MAX).read_to_end(&mut bytes)?;
    } else {
        file.take(TRACE_BYTES_MAX).read_to_end(&mut bytes)?;
    }
    let (reads, rest) = bytes.as_chunks::<4>();
    ensure!(!reads.is_empty(), "it contains no reads");
    ensure!(rest.is_empty(), "it ends in the middle of a 4-byte number");
    Ok(reads
        .iter()
        .map(|read| u32::from_be_bytes(*read).into())
        .collect())
}

/// Appends the row of a key: the key, then words that depend on key and position. No two rows are
/// alike, as with trained values, so no store can compress them.
pub fn push_row(key: u64, row: RowType, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + row.bytes(), 0);
    for (place, piece) in (0..).zip(out[start..].chunks_mut(WORD_BYTES)) {
        piece.copy_from_slice(&word(key, place)[..piece.len()]);
    }
}

/// Whether these bytes begin and end like the row of a key.
pub fn is_row(key: u64, row: &[u8]) -> bool {
    let mut pieces = (0..).zip(row.chunks(WORD_BYTES));
    let is_piece = |(place, piece): (u64, &[u8])| piece == &word(key, place)[..piece.len()];
    pieces.next().is_some_and(is_piece) && pieces.last().is_none_or(is_piece)
}

const WORD_BYTES: usize = 8;

/// The word of a row at a position, counted in words. The last one may be truncated.
fn word(key: u64, place: u64) -> [u8; WORD_BYTES] {
    match place {
        0 => key.to_le_bytes(),
        _ => mix(key.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_table::Dtype;

    #[test]
    fn accesses_round_trip_as_text() {
        for text in ["uniform", "zipf:1", "zipf:0.8", "trace:orm.trace.xz"] {
            assert_eq!(text.parse::<Access>().unwrap().to_string(), text);
        }
        for text in ["trace:", "zipf", "zipf:-1", "normal"] {
            assert!(text.parse::<Access>().unwrap_err().contains(text));
        }
    }

    #[test]
    fn a_stream_asks_for_rows_that_are_there() {
        for access in [Access::Uniform, Access::Zipf(1.0)] {
            let workload = Workload::new(&access, 1000, 2, 5000).unwrap();
            assert_eq!(workload.keys.len(), 1000);
            assert_ne!(workload.streams[0], workload.streams[1]);
            assert!(workload.streams.iter().flatten().all(|&key| key < 1000));
        }
    }

    #[test]
    fn each_thread_starts_a_trace_at_another_offset() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let bytes: Vec<u8> = [9u32, 7, 9, 1]
            .iter()
            .flat_map(|n| n.to_be_bytes())
            .collect();
        std::fs::write(&path, &bytes).unwrap();
        let workload = Workload::new(&Access::Trace(path.clone()), 5, 2, 1).unwrap();
        assert_eq!(workload.keys, Keys::Listed(vec![1, 7, 9]));
        assert_eq!(workload.keys.part(1, 9), [7, 9]);
        assert_eq!(workload.streams, [vec![9, 7, 9, 1], vec![9, 1, 9, 7]]);
        std::fs::write(&path, &bytes[..7]).unwrap();
        let error = Workload::new(&Access::Trace(path), 5, 1, 1).unwrap_err();
        assert!(
            format!("{error:#}").contains("ends in the middle"),
            "{error:#}"
        );
    }

    #[test]
    fn different_rows_are_distinguished() {
        for dim in [2, 3, 64] {
            let row = RowType::new(Dtype::F32, dim);
            let mut bytes = Vec::new();
            push_row(7, row, &mut bytes);
            push_row(8, row, &mut bytes);
            assert_eq!(bytes.len(), 2 * row.bytes());
            let (seven, eight) = bytes.split_at(row.bytes());
            assert!(is_row(7, seven) && is_row(8, eight));
            assert!(!is_row(7, eight) && !is_row(8, seven));
        }
    }
}
