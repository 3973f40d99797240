//! Does the GPU copy what the processor copies? Every kernel, every form of request, every byte.
//!
//! ```text
//!   for each version and unit, both directions, each case below:
//!       host, device, map <- patterns              the same on the processor's side
//!       launch                                     the processor's copy
//!       compare host, device, map, counter, with the bytes around them
//! ```

use crate::progress::Progress;
use anyhow::{Context, Result, ensure};
use forerun_gpu::gather::cpu::{self, How, Indices, Pairs};
use forerun_gpu::gather::{
    Absent, DeviceMap, DevicePairs, DeviceWord, Direction, Extras, Integer, KernelChoice, Layers,
    Layout, MapUpdate, RowCopy, Spec, Unit, Version, gather, scatter, units_of,
};
use forerun_gpu::{
    Command, DeviceBuffer, Gpu, Graph, HostMemory, MatrixProduct, PinnedBuffer, Registered, Stream,
};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngCore, SeedableRng};

/// Which of the sources are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    None,
    Some,
    All,
}

/// A form of request.
#[derive(Clone, Debug)]
struct Case {
    row_bytes: u64,
    /// Pairs of a layer that there is room for.
    pairs: usize,
    /// Pairs that the count on the device tells, if there is one.
    count: Option<(Integer, i64)>,
    missing: Missing,
    offset: u64,
    gap: u64,
    layers: u32,
    by_table: bool,
    integer: Integer,
    interleaved: bool,
    by_layer: bool,
    absent: Absent,
    map: Option<(Integer, MapUpdate)>,
    /// Neighbouring rows, so that there are runs.
    runs: bool,
    multiprocessors: Option<u32>,
}

const PLAIN: Case = Case {
    row_bytes: 656,
    pairs: 100,
    count: None,
    missing: Missing::None,
    offset: 0,
    gap: 0,
    layers: 1,
    by_table: false,
    integer: Integer::I32,
    interleaved: true,
    by_layer: false,
    absent: Absent::Skip,
    map: None,
    runs: false,
    multiprocessors: None,
};

/// Every corner once, and some together.
fn cases() -> Vec<Case> {
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
        for integer in [Integer::I32, Integer::I64] {
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
                    map: Some((Integer::I32, MapUpdate::Set)),
                    ..PLAIN
                });
            }
        }
    }
    for integer in [Integer::I32, Integer::I64] {
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
    /// Rows on either side.
    fn rows(&self) -> u64 {
        (self.pairs as u64 * 2).max(16)
    }

    fn layout(&self, offset_bytes: u64) -> Layout {
        let stride_bytes = self.row_bytes + self.gap;
        let layer = self.rows() * stride_bytes + 32;
        let layers = if self.by_table {
            // Backwards.
            let offsets = (0..u64::from(self.layers)).rev().map(|at| at * layer);
            Layers::Table {
                offsets_bytes: offsets.collect(),
            }
        } else {
            Layers::Step { bytes: layer }
        };
        Layout {
            offset_bytes,
            rows: self.rows(),
            stride_bytes,
            layers,
        }
    }

    fn spec(&self, kernel: KernelChoice) -> Spec {
        Spec {
            row_bytes: self.row_bytes,
            layers: self.layers,
            host: self.layout(self.offset),
            device: self.layout(0),
            absent: self.absent,
            kernel,
        }
    }

    /// Bytes of a side, with a guard behind.
    fn side_bytes(&self) -> usize {
        let layer = self.rows() * (self.row_bytes + self.gap) + 32;
        (self.offset + u64::from(self.layers) * layer) as usize + 512
    }

    /// Source and destination indices, layer after layer.
    fn indices(&self, seed: u64) -> Vec<(i64, i64)> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let rows = self.rows() as i64;
        let layers = if self.by_layer { self.layers } else { 1 };
        let mut list = Vec::new();
        for _ in 0..layers {
            let start = rng.random_range(0..rows / 2);
            // With a map no host row may come twice: its entry would be unspecified.
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

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// What the device needs of a case, and what the processor made of it.
struct Both<'a> {
    case: &'a Case,
    direction: Direction,
    list: Vec<(i64, i64)>,
    host: PinnedBuffer,
    device: DeviceBuffer,
    sources: DeviceBuffer,
    destinations: DeviceBuffer,
    count: DeviceBuffer,
    map: DeviceBuffer,
    out_of_range: DeviceBuffer,
    wanted_host: Vec<u8>,
    wanted_device: Vec<u8>,
    wanted_map: Vec<i64>,
}

/// Integers as the device has them.
fn bytes_of(integer: Integer, list: &[i64]) -> Vec<u8> {
    match integer {
        Integer::I32 => list
            .iter()
            .flat_map(|&i| (i as i32).to_ne_bytes())
            .collect(),
        Integer::I64 => list.iter().flat_map(|i| i.to_ne_bytes()).collect(),
    }
}

impl<'a> Both<'a> {
    fn new(gpu: &Gpu, case: &'a Case, direction: Direction) -> Result<Both<'a>> {
        let len = case.side_bytes();
        let (wanted_host, wanted_device) = (pattern(len, 1), pattern(len, 2));
        let mut host = PinnedBuffer::new(gpu, len)?;
        host.as_mut_slice().copy_from_slice(&wanted_host);
        let entries = case.rows() as usize * case.layers as usize;
        let wanted_map = vec![-7i64; entries];
        let map_integer = case.map.map_or(Integer::I32, |(integer, _)| integer);
        let lists = case.pairs * case.layers as usize;
        let mut both = Both {
            case,
            direction,
            list: Vec::new(),
            host,
            device: DeviceBuffer::of(gpu, &wanted_device)?,
            sources: DeviceBuffer::new(gpu, (lists * 16).max(16))?,
            destinations: DeviceBuffer::new(gpu, (lists * 8).max(16))?,
            count: DeviceBuffer::new(gpu, 8)?,
            map: DeviceBuffer::of(gpu, &bytes_of(map_integer, &wanted_map))?,
            out_of_range: DeviceBuffer::of(gpu, &[0; 8])?,
            wanted_host,
            wanted_device,
            wanted_map,
        };
        both.change(3, case.count.map(|(_, count)| count))?;
        Ok(both)
    }

    /// Other indices, and another count.
    fn change(&mut self, seed: u64, count: Option<i64>) -> Result<()> {
        let case = self.case;
        self.list = case.indices(seed);
        let sources: Vec<i64> = self.list.iter().map(|pair| pair.0).collect();
        let destinations: Vec<i64> = self.list.iter().map(|pair| pair.1).collect();
        if case.interleaved {
            let flat: Vec<i64> = self.list.iter().flat_map(|&(s, d)| [s, d]).collect();
            self.sources.write(0, &bytes_of(case.integer, &flat))?;
        } else {
            self.sources.write(0, &bytes_of(case.integer, &sources))?;
            self.destinations
                .write(0, &bytes_of(case.integer, &destinations))?;
        }
        if let (Some((integer, _)), Some(count)) = (case.count, count) {
            self.count.write(0, &bytes_of(integer, &[count]))?;
        }
        Ok(())
    }

    /// The copy on the device.
    fn prepare(&mut self, kernel: KernelChoice) -> Result<RowCopy<'_>> {
        let case = self.case;
        let spec = case.spec(kernel);
        let (pairs, count) = (case.pairs as u64, case.count);
        let step = if case.by_layer { pairs } else { 0 };
        let at = if case.interleaved {
            let shape = [pairs, 2];
            DevicePairs::interleaved(&self.sources, 0, case.integer, &shape)?
                .by_layer(pairs, step * 2)
        } else {
            // The buffers have room for the widest indices of all layers.
            let (sources, destinations) = (&self.sources, &self.destinations);
            DevicePairs::arrays(case.integer, pairs, (sources, 0), (destinations, 0))
                .by_layer(pairs, step)
        };
        let extras = Extras {
            count: count.map(|(integer, _)| DeviceWord {
                buffer: &self.count,
                offset_bytes: 0,
                integer,
            }),
            map: case.map.map(|(integer, update)| DeviceMap {
                buffer: &self.map,
                integer,
                slots: case.rows(),
                layer_step: case.rows(),
                update,
            }),
            out_of_range: Some(&self.out_of_range),
        };
        Ok(match self.direction {
            Direction::Gather => gather(&self.host, &self.device, &spec, &at, &extras)?,
            Direction::Scatter => scatter(&self.device, &mut self.host, &spec, &at, &extras)?,
        })
    }

    /// The same copy on the processor; gives the indices out of range.
    fn expect(&mut self, count: Option<i64>) -> Result<u64> {
        let case = self.case;
        let sources: Vec<i64> = self.list.iter().map(|pair| pair.0).collect();
        let destinations: Vec<i64> = self.list.iter().map(|pair| pair.1).collect();
        let pairs = Pairs::split(Indices::I64(&sources), Indices::I64(&destinations))?;
        let step = if case.by_layer { case.pairs } else { 0 };
        let pairs = pairs.by_layer(case.pairs, step);
        let extras = cpu::Extras {
            count,
            map: case.map.map(|(_, update)| cpu::Map {
                entries: cpu::MapEntries::I64(&mut self.wanted_map),
                slots: case.rows(),
                layer_step: case.rows(),
                update,
            }),
            how: How::default(),
        };
        let spec = case.spec(KernelChoice::default());
        let (host, device) = (&mut self.wanted_host, &mut self.wanted_device);
        let copied = match self.direction {
            Direction::Gather => cpu::gather(host, device, &spec, &pairs, extras)?,
            Direction::Scatter => cpu::scatter(device, host, &spec, &pairs, extras)?,
        };
        Ok(copied.out_of_range)
    }

    /// Compares all that the copy may have touched.
    fn compare(&self, out_of_range: u64) -> Result<()> {
        let first = |ours: &[u8], wanted: &[u8]| ours.iter().zip(wanted).position(|(a, b)| a != b);
        let device = self.device.to_vec()?;
        if let Some(at) = first(&device, &self.wanted_device) {
            anyhow::bail!("byte {at} of the device is not what the processor's copy leaves");
        }
        if let Some(at) = first(self.host.as_slice(), &self.wanted_host) {
            anyhow::bail!("byte {at} of the host is not what the processor's copy leaves");
        }
        let integer = self.case.map.map_or(Integer::I32, |(integer, _)| integer);
        let map = self.map.to_vec()?;
        ensure!(
            map == bytes_of(integer, &self.wanted_map),
            "the slot map is not what the processor's copy leaves"
        );
        let mut counted = [0; 8];
        self.out_of_range.read(0, &mut counted)?;
        let counted = u64::from_ne_bytes(counted);
        ensure!(
            counted == out_of_range,
            "{counted} indices out of range were counted instead of {out_of_range}"
        );
        Ok(())
    }
}

/// Launches a copy, directly or by a graph, and waits.
fn launch(gpu: &Gpu, stream: &Stream, command: &dyn Command) -> Result<()> {
    Ok(gpu.scope(|scope| scope.put(stream, command))?)
}

/// The kernels that fit a case: all units of all versions that the device can run.
fn choices(gpu: &Gpu, case: &Case) -> Vec<KernelChoice> {
    let steps = case.rows() * (case.row_bytes + case.gap) + 32;
    let fits = |unit: Unit| {
        let all = [case.row_bytes, case.offset, case.gap, steps];
        all.iter().all(|bytes| bytes % unit.bytes() == 0)
    };
    let mut choices = Vec::new();
    for version in Version::ALL {
        let bulk = matches!(version, Version::V6Row | Version::V6Runs);
        let old = bulk && gpu.info().compute_capability < (9, 0);
        let capped = case.multiprocessors.is_some() && !version.can_be_capped();
        if old || capped {
            continue;
        }
        for unit in units_of(version).into_iter().filter(|unit| fits(*unit)) {
            choices.push(KernelChoice {
                version: Some(version),
                unit: Some(unit),
                multiprocessors: case.multiprocessors,
            });
        }
    }
    choices.push(KernelChoice {
        multiprocessors: case.multiprocessors,
        ..KernelChoice::default()
    });
    choices
}

/// Runs all; gives what was checked, in words.
pub(super) fn run(gpu: &Gpu, progress: &Progress) -> Result<Vec<String>> {
    let stream = Stream::new(gpu)?;
    let mut told = Vec::new();
    let cases = cases();
    let bar = progress.steps("checking", cases.len() as u64);
    let (mut copies, mut replays) = (0u64, 0u64);
    for case in &cases {
        for direction in [Direction::Gather, Direction::Scatter] {
            for choice in choices(gpu, case) {
                let what = || format!("{direction} by {choice:?} of {case:?}");
                one(gpu, &stream, case, direction, choice).with_context(what)?;
                copies += 1;
            }
        }
        bar.step();
    }
    told.push(format!("{copies} copies like the processor's, every byte"));
    for direction in [Direction::Gather, Direction::Scatter] {
        for version in Version::ALL {
            let choice = KernelChoice {
                version: Some(version),
                ..KernelChoice::default()
            };
            if matches!(version, Version::V6Row | Version::V6Runs)
                && gpu.info().compute_capability < (9, 0)
            {
                told.push(format!("{version} left out: the device is too old for it"));
                continue;
            }
            let what = || format!("a graph of {direction} by {version}");
            replays += graph(gpu, &stream, direction, choice).with_context(what)?;
        }
    }
    told.push(format!(
        "{replays} replays of captured graphs with changed indices and counts"
    ));
    registered(gpu, &stream).context("registered memory")?;
    told.push("a gather from registered memory of the caller's".into());
    told.push(far(gpu, &stream).context("offsets past 2^31")?);
    product(gpu, &stream).context("the matrix product")?;
    told.push("the matrix product against the processor's".into());
    Ok(told)
}

fn one(
    gpu: &Gpu,
    stream: &Stream,
    case: &Case,
    direction: Direction,
    choice: KernelChoice,
) -> Result<()> {
    let mut both = Both::new(gpu, case, direction)?;
    let copy = both.prepare(choice)?;
    launch(gpu, stream, &copy)?;
    drop(copy);
    let out_of_range = both.expect(case.count.map(|(_, count)| count))?;
    both.compare(out_of_range)
}

/// Captured once, replayed with other indices and counts; compared at the end, when the graph has
/// given the host's memory back. What every replay copies shows in the map and in the counter.
fn graph(gpu: &Gpu, stream: &Stream, direction: Direction, choice: KernelChoice) -> Result<u64> {
    let case = Case {
        count: Some((Integer::I32, 0)),
        pairs: 200,
        missing: Missing::Some,
        map: Some((Integer::I32, MapUpdate::Set)),
        layers: 2,
        ..PLAIN
    };
    let mut both = Both::new(gpu, &case, direction)?;
    let rounds = [(11, 0), (12, 200), (13, 7), (14, 33), (15, 500), (16, -3)];
    let lists: Vec<Vec<(i64, i64)>> = rounds.iter().map(|&(seed, _)| case.indices(seed)).collect();
    replay(gpu, stream, &mut both, choice, &rounds, &lists)?;
    Ok(rounds.len() as u64)
}

fn replay(
    gpu: &Gpu,
    stream: &Stream,
    both: &mut Both<'_>,
    choice: KernelChoice,
    rounds: &[(u64, i64)],
    lists: &[Vec<(i64, i64)>],
) -> Result<()> {
    let spec = both.case.spec(choice);
    let pairs = both.case.pairs as u64;
    let at = DevicePairs::interleaved(&both.sources, 0, both.case.integer, &[pairs, 2])?;
    let extras = Extras {
        count: Some(DeviceWord {
            buffer: &both.count,
            offset_bytes: 0,
            integer: Integer::I32,
        }),
        map: Some(DeviceMap {
            buffer: &both.map,
            integer: Integer::I32,
            slots: both.case.rows(),
            layer_step: both.case.rows(),
            update: MapUpdate::Set,
        }),
        out_of_range: Some(&both.out_of_range),
    };
    let copy = match both.direction {
        Direction::Gather => gather(&both.host, &both.device, &spec, &at, &extras)?,
        Direction::Scatter => scatter(&both.device, &mut both.host, &spec, &at, &extras)?,
    };
    {
        let graph = Graph::capture(stream, &[&copy])?;
        for (list, &(_, count)) in lists.iter().zip(rounds) {
            let flat: Vec<i64> = list.iter().flat_map(|&(s, d)| [s, d]).collect();
            both.sources.write(0, &bytes_of(Integer::I32, &flat))?;
            both.count.write(0, &bytes_of(Integer::I32, &[count]))?;
            launch(gpu, stream, &graph)?;
        }
    }
    drop(copy);
    let mut out_of_range = 0;
    for (list, &(_, count)) in lists.iter().zip(rounds) {
        both.list.clone_from(list);
        out_of_range += both.expect(Some(count))?;
    }
    both.compare(out_of_range)
}

/// Memory of the caller's.
fn registered(gpu: &Gpu, stream: &Stream) -> Result<()> {
    let mut host = pattern(656 * 100, 5);
    let wanted = host[656 * 42..656 * 43].to_vec();
    let registered = Registered::new(gpu, &mut host)?;
    let device = DeviceBuffer::new(gpu, 656)?;
    let pairs = DeviceBuffer::of(gpu, &bytes_of(Integer::I64, &[42, 0]))?;
    let pairs = DevicePairs::interleaved(&pairs, 0, Integer::I64, &[1, 2])?;
    let spec = Spec::dense(656, registered.len() as u64 / 656, 1);
    let copy = gather(&registered, &device, &spec, &pairs, &Extras::default())?;
    launch(gpu, stream, &copy)?;
    ensure!(device.to_vec()? == wanted, "the row differs");
    Ok(())
}

/// Rows whose byte offsets do not fit 31, nor 32 bits.
fn far(gpu: &Gpu, stream: &Stream) -> Result<String> {
    let rows = (5u64 << 30) / 656;
    let len = (rows * 656) as usize;
    let (Ok(mut host), Ok(device)) = (PinnedBuffer::new(gpu, len), DeviceBuffer::new(gpu, len))
    else {
        return Ok("offsets past 2^31 left out: no room for 5 GiB on both sides".into());
    };
    let ours: Vec<i64> = [
        0,
        (1 << 31) / 656,
        (1 << 31) / 656 + 1,
        (1 << 32) / 656,
        rows as i64 - 1,
    ]
    .into();
    for (seed, &row) in ours.iter().enumerate() {
        let row = row as usize * 656;
        host.as_mut_slice()[row..row + 656].copy_from_slice(&pattern(656, seed as u64));
    }
    // Each row to another one's place.
    let flat: Vec<i64> = (0..ours.len())
        .flat_map(|i| [ours[i], ours[ours.len() - 1 - i]])
        .collect();
    let indices = DeviceBuffer::of(gpu, &bytes_of(Integer::I32, &flat))?;
    let shape = [ours.len() as u64, 2];
    let mut versions = 0;
    for version in Version::ALL {
        if matches!(version, Version::V6Row | Version::V6Runs)
            && gpu.info().compute_capability < (9, 0)
        {
            continue;
        }
        device.fill(0)?;
        let mut spec = Spec::dense(656, rows, rows);
        spec.kernel.version = Some(version);
        let pairs = DevicePairs::interleaved(&indices, 0, Integer::I32, &shape)?;
        let copy = gather(&host, &device, &spec, &pairs, &Extras::default())?;
        launch(gpu, stream, &copy)?;
        for (seed, pair) in flat.chunks_exact(2).enumerate() {
            let mut row = vec![0; 656];
            device.read(pair[1] as u64 * 656, &mut row)?;
            ensure!(
                row == pattern(656, seed as u64),
                "{version}: row {}",
                pair[1]
            );
        }
        versions += 1;
    }
    Ok(format!("byte offsets past 2^32 by {versions} versions"))
}

/// A product whose sums are exact.
fn product(gpu: &Gpu, stream: &Stream) -> Result<()> {
    const N: usize = 192;
    let number = |seed: usize, i: usize| ((i * 7 + seed) % 5) as f32 - 2.0;
    let numbers = |seed: usize| -> Vec<f32> { (0..N * N).map(|i| number(seed, i)).collect() };
    let bytes = |list: &[f32]| -> Vec<u8> { list.iter().flat_map(|x| x.to_ne_bytes()).collect() };
    let (left, right) = (numbers(1), numbers(3));
    let a = DeviceBuffer::of(gpu, &bytes(&left))?;
    let b = DeviceBuffer::of(gpu, &bytes(&right))?;
    let c = DeviceBuffer::new(gpu, N * N * 4)?;
    launch(gpu, stream, &MatrixProduct::new(&a, &b, &c, N as u32)?)?;
    let mut wanted = vec![0f32; N * N];
    for (i, row) in wanted.chunks_exact_mut(N).enumerate() {
        for (j, sum) in row.iter_mut().enumerate() {
            *sum = (0..N).map(|k| left[i * N + k] * right[k * N + j]).sum();
        }
    }
    ensure!(c.to_vec()? == bytes(&wanted), "the product differs");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_one_that_the_processor_copies() {
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
                cpu::Extras::default(),
            );
            let copied = copied.unwrap();
            let expected = case.pairs > 0 && case.missing != Missing::All;
            assert_eq!(copied.rows > 0, expected, "{case:?}");
        }
    }
}
