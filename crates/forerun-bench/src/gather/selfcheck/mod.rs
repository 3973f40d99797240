//! Checks that the GPU copies the same bytes as the CPU, with every kernel and every form of
//! request, byte by byte.
//!
//! ```text
//!   for each version and unit, both directions, each case below:
//!       host, device, map <- patterns              the same on the CPU's side
//!       launch                                     the CPU's copy
//!       compare host, device, map, counter and the bytes around them
//! ```

mod case;
mod device_case;
mod within_device;

use anyhow::{Context, Result, ensure};
use case::{Case, Missing, PLAIN, cases, pattern};
use device_case::{DeviceCase, bytes_of};
use forerun_gpu::gather::{
    AccessWidth, CopySpec, DeviceCopyOptions, DeviceMap, DevicePairs, DeviceWord, Direction,
    IndexType, KernelChoice, KernelVersion, MapUpdate, gather, scatter, units_of,
};
use forerun_gpu::study::MatrixProduct;
use forerun_gpu::{
    Command, DeviceBuffer, Gpu, Graph, HostMemory, PinnedBuffer, Registered, Stream,
};
use forerun_measure::progress::Progress;

/// Launches a copy, directly or through a graph, and waits.
fn launch(gpu: &Gpu, stream: &Stream, command: &dyn Command) -> Result<()> {
    Ok(gpu.scope(|scope| scope.enqueue(stream, command))?)
}

/// The kernels that fit a case: all units of all versions that the device can run.
fn choices(gpu: &Gpu, case: &Case) -> Vec<KernelChoice> {
    let page_bytes = case.pages().map_or(0, |pages| pages.bytes);
    let fits = |unit: AccessWidth| {
        let all = [
            case.row_bytes,
            case.offset,
            case.gap,
            page_bytes,
            case.layer_bytes(),
        ];
        all.iter().all(|bytes| bytes % unit.bytes() == 0)
    };
    let mut choices = Vec::new();
    for version in KernelVersion::ALL {
        let bulk = version == KernelVersion::V6;
        let old = bulk && gpu.info().compute_capability < (9, 0);
        let capped = case.multiprocessors.is_some() && !version.can_be_capped();
        if old || capped {
            continue;
        }
        for unit in units_of(version).into_iter().filter(|unit| fits(*unit)) {
            let choice = KernelChoice::default().version(version).unit(unit);
            choices.push(choice.multiprocessors(case.multiprocessors));
        }
    }
    choices.push(KernelChoice::default().multiprocessors(case.multiprocessors));
    choices
}

/// Runs all checks, and describes what was checked.
pub(super) fn run(gpu: &Gpu, progress: &Progress) -> Result<Vec<String>> {
    let stream = Stream::new(gpu)?;
    let mut lines = Vec::new();
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
    lines.push(format!("{copies} copies like the CPU's, every byte"));
    for direction in [Direction::Gather, Direction::Scatter] {
        for version in KernelVersion::ALL {
            let choice = KernelChoice::default().version(version);
            if version == KernelVersion::V6 && gpu.info().compute_capability < (9, 0) {
                lines.push(format!(
                    "{version} left out: the device does not support it"
                ));
                continue;
            }
            let what = || format!("a graph of {direction} by {version}");
            replays += graph(gpu, &stream, direction, choice).with_context(what)?;
        }
    }
    lines.push(format!(
        "{replays} replays of captured graphs with changed indices and counts"
    ));
    let within = within_device::run(gpu, &stream).context("copies within the device")?;
    lines.push(format!("{within} copies within the device"));
    registered(gpu, &stream).context("registered memory")?;
    lines.push("a gather from memory that the caller registered".into());
    lines.push(far(gpu, &stream).context("offsets past 2^31")?);
    product(gpu, &stream).context("the matrix product")?;
    lines.push("the matrix product, compared with the CPU's".into());
    Ok(lines)
}

fn one(
    gpu: &Gpu,
    stream: &Stream,
    case: &Case,
    direction: Direction,
    choice: KernelChoice,
) -> Result<()> {
    let mut case_on_device = DeviceCase::new(gpu, case, direction)?;
    let copy = case_on_device.prepare(choice)?;
    launch(gpu, stream, &copy)?;
    drop(copy);
    let out_of_range = case_on_device.expect(case.count.map(|(_, count)| count))?;
    case_on_device.compare(out_of_range)
}

/// Checks a graph that is captured once and replayed with other indices and counts. The comparison
/// happens at the end, when the graph has returned the host's memory; the map and the counter show
/// what each replay copied.
fn graph(gpu: &Gpu, stream: &Stream, direction: Direction, choice: KernelChoice) -> Result<u64> {
    let case = Case {
        count: Some((IndexType::I32, 0)),
        pairs: 200,
        missing: Missing::Some,
        map: Some((IndexType::I32, MapUpdate::Set)),
        layers: 2,
        ..PLAIN
    };
    let mut case_on_device = DeviceCase::new(gpu, &case, direction)?;
    let rounds = [(11, 0), (12, 200), (13, 7), (14, 33), (15, 500), (16, -3)];
    let lists: Vec<Vec<(i64, i64)>> = rounds.iter().map(|&(seed, _)| case.indices(seed)).collect();
    replay(gpu, stream, &mut case_on_device, choice, &rounds, &lists)?;
    Ok(rounds.len() as u64)
}

fn replay(
    gpu: &Gpu,
    stream: &Stream,
    case_on_device: &mut DeviceCase<'_>,
    choice: KernelChoice,
    rounds: &[(u64, i64)],
    lists: &[Vec<(i64, i64)>],
) -> Result<()> {
    let spec = case_on_device.case.spec(choice);
    let pairs = case_on_device.case.pairs as u64;
    let at = DevicePairs::interleaved(
        &case_on_device.sources,
        0,
        case_on_device.case.integer,
        &[pairs, 2],
    )?;
    let options = DeviceCopyOptions::default()
        .count(DeviceWord {
            buffer: &case_on_device.count,
            offset_bytes: 0,
            integer: IndexType::I32,
        })
        .map(DeviceMap {
            buffer: &case_on_device.map,
            integer: IndexType::I32,
            slots: case_on_device.case.rows(),
            layer_step: case_on_device.case.rows(),
            update: MapUpdate::Set,
        })
        .out_of_range(&case_on_device.out_of_range);
    let copy = match case_on_device.direction {
        Direction::Gather => gather(
            &case_on_device.host,
            &case_on_device.device,
            &spec,
            &at,
            &options,
        )?,
        Direction::Scatter => scatter(
            &case_on_device.device,
            &mut case_on_device.host,
            &spec,
            &at,
            &options,
        )?,
    };
    {
        let graph = Graph::capture(stream, &[&copy])?;
        for (list, &(_, count)) in lists.iter().zip(rounds) {
            let flat: Vec<i64> = list.iter().flat_map(|&(s, d)| [s, d]).collect();
            case_on_device
                .sources
                .write(0, &bytes_of(IndexType::I32, &flat))?;
            case_on_device
                .count
                .write(0, &bytes_of(IndexType::I32, &[count]))?;
            launch(gpu, stream, &graph)?;
        }
    }
    drop(copy);
    let mut out_of_range = 0;
    for (list, &(_, count)) in lists.iter().zip(rounds) {
        case_on_device.list.clone_from(list);
        out_of_range += case_on_device.expect(Some(count))?;
    }
    case_on_device.compare(out_of_range)
}

/// Checks copies from memory that the caller owns.
fn registered(gpu: &Gpu, stream: &Stream) -> Result<()> {
    let mut host = pattern(656 * 100, 5);
    let wanted = host[656 * 42..656 * 43].to_vec();
    let registered = Registered::new(gpu, &mut host)?;
    let device = DeviceBuffer::new(gpu, 656)?;
    let pairs = DeviceBuffer::from_slice(gpu, &bytes_of(IndexType::I64, &[42, 0]))?;
    let pairs = DevicePairs::interleaved(&pairs, 0, IndexType::I64, &[1, 2])?;
    let spec = CopySpec::dense(656, registered.len() as u64 / 656, 1);
    let copy = gather(
        &registered,
        &device,
        &spec,
        &pairs,
        &DeviceCopyOptions::default(),
    )?;
    launch(gpu, stream, &copy)?;
    ensure!(device.to_vec()? == wanted, "the row differs");
    Ok(())
}

/// Checks rows whose byte offsets do not fit into 31 or 32 bits.
fn far(gpu: &Gpu, stream: &Stream) -> Result<String> {
    let rows = (5u64 << 30) / 656;
    let len = (rows * 656) as usize;
    let (Ok(mut host), Ok(device)) = (PinnedBuffer::new(gpu, len), DeviceBuffer::new(gpu, len))
    else {
        return Ok("offsets past 2^31 skipped: host and device need 5 GiB each".into());
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
    // Moves each row to another one's place.
    let flat: Vec<i64> = (0..ours.len())
        .flat_map(|i| [ours[i], ours[ours.len() - 1 - i]])
        .collect();
    let indices = DeviceBuffer::from_slice(gpu, &bytes_of(IndexType::I32, &flat))?;
    let shape = [ours.len() as u64, 2];
    let mut versions = 0;
    for version in KernelVersion::ALL {
        if version == KernelVersion::V6 && gpu.info().compute_capability < (9, 0) {
            continue;
        }
        device.fill(0)?;
        let mut spec = CopySpec::dense(656, rows, rows);
        spec.kernel = spec.kernel.version(version);
        let pairs = DevicePairs::interleaved(&indices, 0, IndexType::I32, &shape)?;
        let copy = gather(&host, &device, &spec, &pairs, &DeviceCopyOptions::default())?;
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

/// Checks a matrix product whose sums are exact.
fn product(gpu: &Gpu, stream: &Stream) -> Result<()> {
    const N: usize = 192;
    let number = |seed: usize, i: usize| ((i * 7 + seed) % 5) as f32 - 2.0;
    let numbers = |seed: usize| -> Vec<f32> { (0..N * N).map(|i| number(seed, i)).collect() };
    let bytes = |list: &[f32]| -> Vec<u8> { list.iter().flat_map(|x| x.to_ne_bytes()).collect() };
    let (left, right) = (numbers(1), numbers(3));
    let a = DeviceBuffer::from_slice(gpu, &bytes(&left))?;
    let b = DeviceBuffer::from_slice(gpu, &bytes(&right))?;
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
