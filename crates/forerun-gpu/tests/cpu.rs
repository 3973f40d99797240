//! Compares the CPU's copy with a plain loop, for every form of request.

use forerun_gpu::gather::cpu::{
    self, CopyCounts, CopyOptions, CpuOptions, Indices, Map, MapEntries, Pairs,
};
use forerun_gpu::gather::{
    Absent, CopySpec, CountAt, Direction, GatherError, IndexType, KnownMemory, Layers, MapUpdate,
    MemoryType, PairsAt, Request, RowLayout, RowPages, Side,
};
use proptest::prelude::*;
use std::num::NonZeroUsize;

/// One copy to test.
#[derive(Clone, Debug)]
struct Trial {
    direction: Direction,
    spec: CopySpec,
    pairs: Vec<(i64, i64)>,
    wide: bool,
    interleaved: bool,
    by_layer: bool,
    count: Option<i64>,
    map: Option<(bool, MapUpdate, bool)>,
    cpu: CpuOptions,
    slack: usize,
}

/// Bytes that a side needs.
fn side_bytes(spec: &CopySpec, layout: &RowLayout) -> usize {
    let rows = row_offset(layout, layout.rows.saturating_sub(1)) + spec.row_bytes;
    let last = match &layout.layers {
        Layers::Step { bytes } => u64::from(spec.layers - 1) * bytes,
        Layers::Table { offsets_bytes } => *offsets_bytes.iter().max().unwrap(),
    };
    (layout.offset_bytes + last + rows) as usize
}

fn row_offset(layout: &RowLayout, row: u64) -> u64 {
    match layout.pages {
        None => row * layout.stride_bytes,
        Some(RowPages { rows, bytes }) => {
            row / u64::from(rows) * bytes + row % u64::from(rows) * layout.stride_bytes
        }
    }
}

fn row_start(layout: &RowLayout, layer: u64, row: u64) -> usize {
    let layer = match &layout.layers {
        Layers::Step { bytes } => layer * bytes,
        Layers::Table { offsets_bytes } => offsets_bytes[layer as usize],
    };
    (layout.offset_bytes + layer + row_offset(layout, row)) as usize
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let byte = |i: usize| ((i as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..len).map(byte).collect()
}

/// The pairs of one layer.
fn layer_pairs(trial: &Trial, layer: u64) -> Vec<(i64, i64)> {
    let mut pairs = trial.pairs.clone();
    if trial.by_layer && !pairs.is_empty() {
        let len = pairs.len();
        pairs.rotate_left(layer as usize % len);
    }
    pairs
}

/// The result that the trial must produce.
fn expected(trial: &Trial, source: &[u8], destination: &mut [u8], map: &mut [i64]) -> CopyCounts {
    let spec = &trial.spec;
    let (from, to) = match trial.direction {
        Direction::Gather => (&spec.host, &spec.device),
        Direction::Scatter => (&spec.device, &spec.host),
    };
    let mut copied = CopyCounts::default();
    for layer in 0..u64::from(spec.layers) {
        let pairs = layer_pairs(trial, layer);
        let used = trial
            .count
            .map_or(pairs.len(), |n| (n.max(0) as usize).min(pairs.len()));
        for &(s, d) in &pairs[..used] {
            let source_row = u64::try_from(s).ok().filter(|&s| s < from.rows);
            let destination_row = u64::try_from(d).ok().filter(|&d| d < to.rows);
            copied.out_of_range += u64::from(source_row.is_none() && s != -1);
            copied.out_of_range += u64::from(destination_row.is_none() && d != -1);
            let len = spec.row_bytes as usize;
            match (source_row, destination_row) {
                (Some(s), Some(d)) => {
                    let (at, end) = (row_start(from, layer, s), row_start(to, layer, d));
                    destination[end..end + len].copy_from_slice(&source[at..at + len]);
                    copied.rows += 1;
                    if let Some((shared, update, _)) = trial.map {
                        let (host, device) = match trial.direction {
                            Direction::Gather => (s, d),
                            Direction::Scatter => (d, s),
                        };
                        let first = if shared { 0 } else { layer * spec.host.rows };
                        map[(first + host) as usize] = match update {
                            MapUpdate::Set => device as i64,
                            MapUpdate::Clear => -1,
                        };
                    }
                }
                (None, Some(d)) if spec.absent == Absent::Zero => {
                    let end = row_start(to, layer, d);
                    destination[end..end + len].fill(0);
                    copied.zeroed += 1;
                }
                _ => copied.skipped += 1,
            }
        }
    }
    copied
}

fn run(trial: &Trial) {
    let spec = &trial.spec;
    let host_bytes = side_bytes(spec, &spec.host) + trial.slack;
    let device_bytes = side_bytes(spec, &spec.device) + trial.slack;
    let (source_bytes, destination_bytes) = match trial.direction {
        Direction::Gather => (host_bytes, device_bytes),
        Direction::Scatter => (device_bytes, host_bytes),
    };
    let source = pattern(source_bytes, 1);
    let mut destination = pattern(destination_bytes, 2);
    let maps = if trial.map.is_some_and(|(shared, ..)| shared) {
        1
    } else {
        spec.layers as usize
    };
    let mut map = vec![-7i64; maps * spec.host.rows as usize];
    let mut wanted = destination.clone();
    let mut wanted_map = map.clone();
    let wanted_copied = expected(trial, &source, &mut wanted, &mut wanted_map);

    let layers = if trial.by_layer { spec.layers } else { 1 };
    let lists: Vec<(i64, i64)> = (0..layers.into())
        .flat_map(|l| layer_pairs(trial, l))
        .collect();
    let flat: Vec<i64> = lists.iter().flat_map(|&(s, d)| [s, d]).collect();
    let sources: Vec<i64> = lists.iter().map(|pair| pair.0).collect();
    let destinations: Vec<i64> = lists.iter().map(|pair| pair.1).collect();
    let narrow = |wide: &[i64]| -> Vec<i32> { wide.iter().map(|&i| i as i32).collect() };
    let (flat4, sources4, destinations4) = (narrow(&flat), narrow(&sources), narrow(&destinations));
    let pairs = match (trial.interleaved, trial.wide) {
        (true, true) => Pairs::interleaved(Indices::I64(&flat)),
        (true, false) => Pairs::interleaved(Indices::I32(&flat4)),
        (false, true) => Pairs::split(Indices::I64(&sources), Indices::I64(&destinations)),
        (false, false) => Pairs::split(Indices::I32(&sources4), Indices::I32(&destinations4)),
    };
    let mut pairs = pairs.unwrap();
    if trial.by_layer {
        let step = trial.pairs.len() * if trial.interleaved { 2 } else { 1 };
        pairs = pairs.by_layer(trial.pairs.len(), step);
    }
    let mut map4 = narrow(&map);
    let maintained = trial.map.map(|(shared, update, wide)| Map {
        entries: if wide {
            MapEntries::I64(&mut map)
        } else {
            MapEntries::I32(&mut map4)
        },
        slots: spec.host.rows,
        layer_step: if shared { 0 } else { spec.host.rows },
        update,
    });
    let options = CopyOptions::default()
        .count(trial.count)
        .cpu(trial.cpu)
        .map(maintained);
    let copied = match trial.direction {
        Direction::Gather => cpu::gather(&source, &mut destination, spec, &pairs, options),
        Direction::Scatter => cpu::scatter(&source, &mut destination, spec, &pairs, options),
    };
    assert_eq!(copied, Ok(wanted_copied), "{trial:?}");
    // Every byte, including those between and around the rows.
    assert!(destination == wanted, "{trial:?}");
    match trial.map {
        Some((.., false)) => assert_eq!(map4, narrow(&wanted_map), "{trial:?}"),
        _ => assert_eq!(map, wanted_map, "{trial:?}"),
    }
}

fn layout(row_bytes: u64, layers: u32) -> impl Strategy<Value = RowLayout> {
    let offset = prop_oneof![Just(0u64), Just(16), Just(48), 0..70u64];
    let sizes = (1..40u64, 0..40u64, 1..6u32);
    (sizes, offset, 0..5u8, 0..50u64).prop_map(
        move |((rows, gap, page_rows), offset_bytes, form, more)| {
            let stride = row_bytes + gap;
            let paged_rows = rows.next_multiple_of(page_rows.into());
            // RowPages of one layer, or pages that hold the rows of all layers.
            let pages_of = |stride: u64| RowPages {
                rows: page_rows,
                bytes: u64::from(page_rows) * stride + more,
            };
            match form {
                3 => {
                    let pages = pages_of(stride);
                    let layer = paged_rows / u64::from(page_rows) * pages.bytes;
                    return RowLayout::dense(paged_rows, stride)
                        .offset_bytes(offset_bytes)
                        .layers(Layers::Step { bytes: layer })
                        .pages(pages);
                }
                4 => {
                    let offsets = (0..u64::from(layers)).rev().map(|layer| layer * stride);
                    let stride = stride * u64::from(layers);
                    return RowLayout::dense(paged_rows, stride)
                        .offset_bytes(offset_bytes)
                        .layers(Layers::Table {
                            offsets_bytes: offsets.collect(),
                        })
                        .pages(pages_of(stride));
                }
                _ => {}
            }
            let extent = rows * stride + more;
            let (stride_bytes, layers) = match form {
                // Consecutive layers.
                0 => (stride, Layers::Step { bytes: extent }),
                // The layers of a row next to each other.
                1 => (stride * u64::from(layers), Layers::Step { bytes: stride }),
                // A table of layers in reverse order.
                _ => {
                    let offsets = (0..u64::from(layers)).rev().map(|layer| layer * extent);
                    let offsets_bytes = offsets.collect();
                    (stride, Layers::Table { offsets_bytes })
                }
            };
            RowLayout::dense(rows, stride_bytes)
                .offset_bytes(offset_bytes)
                .layers(layers)
        },
    )
}

fn trial() -> impl Strategy<Value = Trial> {
    let row_bytes = prop_oneof![
        Just(1u64),
        Just(7),
        Just(8),
        Just(13),
        Just(16),
        Just(64),
        Just(584),
        Just(656),
        1..300u64
    ];
    (row_bytes, 1..4u32)
        .prop_flat_map(|(row_bytes, layers)| {
            let sides = (layout(row_bytes, layers), layout(row_bytes, layers));
            (Just((row_bytes, layers)), sides)
        })
        .prop_flat_map(|((row_bytes, layers), (host, device))| {
            // Mostly existing rows, some missing ones, and -1.
            let index = prop_oneof![8 => 0..40i64, 1 => Just(-1i64), 1 =>
                    prop::sample::select(vec![-2, 45, i64::from(i32::MIN), i64::from(i32::MAX)])];
            let pairs = prop::collection::vec((index.clone(), index), 0..70);
            let flags = (
                any::<bool>(),
                any::<bool>(),
                any::<bool>(),
                any::<bool>(),
                any::<bool>(),
            );
            let count = prop::option::of(prop_oneof![-3..80i64, Just(i64::MAX)]);
            let map = prop::option::of((any::<bool>(), any::<bool>(), any::<bool>()));
            let how = (0..9usize, 1..4usize);
            (
                Just((row_bytes, layers, host, device)),
                pairs,
                flags,
                count,
                map,
                how,
                0..100usize,
            )
        })
        .prop_map(
            |((row_bytes, layers, host, device), pairs, flags, count, map, how, slack)| Trial {
                direction: if flags.0 {
                    Direction::Gather
                } else {
                    Direction::Scatter
                },
                spec: CopySpec::dense(row_bytes, 0, 0)
                    .layers(layers)
                    .host(host)
                    .device(device)
                    .absent(if flags.1 { Absent::Skip } else { Absent::Zero }),
                pairs,
                wide: flags.2,
                interleaved: flags.3,
                by_layer: flags.4,
                count,
                map: map.map(|(shared, set, wide)| {
                    let update = if set {
                        MapUpdate::Set
                    } else {
                        MapUpdate::Clear
                    };
                    (shared, update, wide)
                }),
                cpu: CpuOptions::default()
                    .prefetch_distance(how.0.checked_sub(1))
                    .threads(NonZeroUsize::new(how.1).unwrap()),
                slack,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_copy_matches_the_plain_loop(trial in trial()) {
        run(&trial);
    }
}

/// The sizes and counts at which the kernels change their code path.
#[test]
fn every_row_size_and_count_at_a_corner_is_copied() {
    for row_bytes in [1, 7, 8, 13, 16, 576, 584, 640, 656, 1152] {
        for count in [0, 1, 31, 32, 33, 2048] {
            for absent_every in [usize::MAX, 3, 1] {
                let pair = |i: usize| {
                    let source = if absent_every != usize::MAX && i.is_multiple_of(absent_every) {
                        -1
                    } else {
                        (i * 7 % 50) as i64
                    };
                    (source, i as i64)
                };
                run(&Trial {
                    direction: Direction::Gather,
                    spec: CopySpec::dense(row_bytes, 50, 2048),
                    pairs: (0..count).map(pair).collect(),
                    wide: false,
                    interleaved: true,
                    by_layer: false,
                    count: None,
                    map: None,
                    cpu: CpuOptions::default(),
                    slack: 64,
                });
            }
        }
    }
}

#[test]
fn pairs_with_one_destination_are_made_in_their_order_by_any_number_of_threads() {
    for threads in 1..5 {
        run(&Trial {
            direction: Direction::Scatter,
            spec: CopySpec::dense(24, 300, 300),
            pairs: (0..3000).map(|i| (i % 300, i * i % 290)).collect(),
            wide: true,
            interleaved: false,
            by_layer: false,
            count: Some(2900),
            map: Some((true, MapUpdate::Set, false)),
            cpu: CpuOptions::default()
                .prefetch_distance(2)
                .threads(NonZeroUsize::new(threads).unwrap()),
            slack: 0,
        });
    }
}

#[test]
fn one_request_copies_layers_of_separate_allocations() {
    let (row_bytes, rows) = (24u64, 40u64);
    let layer = |seed| pattern((rows * row_bytes) as usize, seed);
    let sources: Vec<Vec<u8>> = (0..5).map(layer).collect();
    // Two allocations with the layers of each row next to each other.
    let mut pools = [layer(10).repeat(3), layer(11).repeat(2)];
    let mut wanted = pools.clone();
    let pairs: Vec<(i64, i64)> = (0..60).map(|i| (i * 7 % 40, i * 3 % 41 - 1)).collect();
    for &(s, d) in pairs.iter().take(50).filter(|pair| pair.1 >= 0) {
        for (layer, source) in sources.iter().enumerate() {
            let (pool, layers, layer) = if layer < 3 {
                (0, 3, layer)
            } else {
                (1, 2, layer - 3)
            };
            let at = (d as usize * layers + layer) * row_bytes as usize;
            let from = s as usize * row_bytes as usize;
            wanted[pool][at..at + 24].copy_from_slice(&source[from..from + 24]);
        }
    }

    let starts: Vec<u64> = sources
        .iter()
        .map(|source| source.as_ptr() as u64)
        .collect();
    let indices: Vec<i64> = pairs.iter().flat_map(|&(s, d)| [s, d]).collect();
    let (count, counter) = ([50i32], [0u64]);
    // The rows of a pool are as far apart as its layers take, so each pool has its own request.
    for (pool, layers, first) in [(0, 3u64, 0), (1, 2, 3)] {
        let base = pools[pool].as_mut_ptr() as u64;
        let (at, count_at) = (indices.as_ptr() as u64, count.as_ptr() as u64);
        let counter_at = counter.as_ptr() as u64;
        let mut memory = KnownMemory::default();
        let mut add = |at: u64, len: u64| memory.add(at, len, MemoryType::Pageable, at);
        starts.iter().for_each(|&at| add(at, rows * row_bytes));
        add(base, pools[pool].len() as u64);
        add(at, 60 * 16);
        add(count_at, 4);
        add(counter_at, 8);
        let mut request = Request {
            direction: Direction::Gather,
            spec: CopySpec::dense(row_bytes, 0, 0)
                .layers(layers as u32)
                .host(RowLayout::dense(rows, row_bytes).layers(Layers::Table {
                    offsets_bytes: starts[first..first + layers as usize].to_vec(),
                }))
                .device(
                    RowLayout::dense(rows, row_bytes * layers)
                        .layers(Layers::Step { bytes: row_bytes }),
                ),
            host: 0,
            device: base,
            pairs: PairsAt::interleaved(at, IndexType::I64, &[60, 2]).unwrap(),
            count: Some(CountAt {
                address: count_at,
                integer: IndexType::I32,
            }),
            map: None,
            out_of_range: None,
        };
        let threads = CpuOptions::default().threads(NonZeroUsize::new(pool + 1).unwrap());
        // SAFETY: all memory of the list outlives the call, and nothing else refers to it.
        let copied = unsafe { cpu::copy_request(&request, &memory, threads) }.unwrap();
        assert_eq!(copied.rows + copied.skipped, 50 * layers);

        request.out_of_range = Some(counter_at);
        // SAFETY: as above.
        let refused = unsafe { cpu::copy_request(&request, &memory, threads) };
        assert_eq!(refused, Err(GatherError::OnlyOnDevice));
        request.out_of_range = None;
        request.spec.host.rows += 1;
        // SAFETY: as above.
        let refused = unsafe { cpu::copy_request(&request, &memory, threads) }.unwrap_err();
        assert!(matches!(refused, GatherError::PastEnd { .. }), "{refused}");
    }
    assert!(pools == wanted);
}

#[test]
fn invalid_requests_are_refused_as_on_the_gpu() {
    let (host, mut device) = (vec![0u8; 100], vec![0u8; 40]);
    let list = [0i32, 1, 5, 3];
    let pairs = Pairs::interleaved(Indices::I32(&list)).unwrap();
    let mut go = |spec: &CopySpec| {
        let refused = cpu::gather(&host, &mut device, spec, &pairs, CopyOptions::default());
        refused
            .map(|copied| copied.rows)
            .map_err(|refusal| refusal.to_string())
    };
    assert_eq!(go(&CopySpec::dense(10, 10, 4)), Ok(2));
    assert!(
        go(&CopySpec::dense(10, 10, 5))
            .unwrap_err()
            .contains("device rows: they end at")
    );
    assert!(
        go(&CopySpec::dense(0, 10, 4))
            .unwrap_err()
            .contains("rows of 0 bytes")
    );
    let mut short = CopySpec::dense(10, 10, 4);
    short.host.stride_bytes = 9;
    assert!(go(&short).unwrap_err().contains("past their stride of 9"));

    let mut map = vec![0i32; 9];
    let options = CopyOptions::default().map(Map {
        entries: MapEntries::I32(&mut map),
        slots: 10,
        layer_step: 0,
        update: MapUpdate::Set,
    });
    let spec = CopySpec::dense(10, 10, 4);
    let refused = cpu::gather(&host, &mut device, &spec, &pairs, options).unwrap_err();
    assert!(
        refused.to_string().contains("the slot map: they end at"),
        "{refused}"
    );

    let odd = Pairs::interleaved(Indices::I32(&list[..3])).unwrap_err();
    assert_eq!(odd, GatherError::WrongShape { shape: vec![3] });
    let long = Pairs::split(Indices::I32(&list), Indices::I32(&list[1..])).unwrap_err();
    assert!(matches!(long, GatherError::LengthsDiffer { .. }));
    let mixed = Pairs::split(Indices::I32(&list), Indices::I64(&[0; 4])).unwrap_err();
    assert!(mixed.to_string().contains("i32 or i64"), "{mixed}");
    let too_many = pairs.by_layer(3, 0);
    let refused = cpu::gather(&host, &mut device, &spec, &too_many, CopyOptions::default());
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("indices: they end at")
    );
}

#[test]
fn indices_that_the_host_can_see_are_checked_on_request() {
    let spec = CopySpec::dense(10, 10, 4);
    let check = |list: &[i64], direction| {
        let pairs = Pairs::interleaved(Indices::I64(list)).unwrap();
        pairs.check_range(direction, &spec)
    };
    assert_eq!(check(&[9, 3, -1, -1], Direction::Gather), Ok(()));
    assert_eq!(
        check(&[9, 3, 10, 0], Direction::Gather),
        Err(GatherError::IndexOutOfRange {
            pair: 1,
            side: Side::Host,
            index: 10,
            rows: 10
        })
    );
    let reported = check(&[9, 3], Direction::Scatter).unwrap_err().to_string();
    assert!(
        reported.contains("pair 0: 9 is not a device row; there are 4"),
        "{reported}"
    );
    assert!(check(&[0, -2], Direction::Gather).is_err());
}

#[test]
fn short_rows_are_prefetched_further_ahead() {
    let ahead = [1, 64, 256, 656, 1 << 30].map(cpu::default_prefetch_distance);
    assert_eq!(ahead, [16, 16, 8, 4, 4]);
}
