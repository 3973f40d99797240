//! Random programs: batches of requests, plans replayed in a second layer, tables emptied.

use crate::reference::Reference;
use crate::shim_pool::{Arrays, add_plan, counters, expect_teams_clear, kernel};
use crate::shim_process::ShimProcess;
use crate::{bytes_of, cases};
use forerun_gpu::gather::{Layers, RowLayout};
use forerun_gpu::hot_pool::params::{HotPoolParams, POLICY_CLOCK, POLICY_LRU};
use forerun_gpu::hot_pool::{Eviction, HotPool, HotPoolBatch, HotPoolCounts, HotPoolOptions};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, RngCore, SeedableRng};

/// The shape of a program. Rows of both layers are in one array on each side.
#[derive(Debug)]
struct Shape {
    row_bytes: usize,
    slots: usize,
    positions: usize,
    requests: usize,
    count: usize,
    eviction: Eviction,
    host_pad: usize,
    host_count: usize,
    /// The host row of each position of each table, unless positions are host rows.
    host_rows: Option<Vec<i64>>,
}

impl Shape {
    fn draw(random: &mut SmallRng) -> Shape {
        let row_bytes = *[1, 4, 8, 12, 16, 20, 40, 48, 136, 656]
            .choose(random)
            .unwrap();
        let slots = random.random_range(1..=40);
        let positions = random.random_range(slots / 2 + 1..=slots * 4 + 2);
        let requests = random.random_range(1..=3);
        let host_count = positions + random.random_range(0..4) - random.random_range(0..2);
        let host_rows = random.random_bool(0.5).then(|| {
            let row = |random: &mut SmallRng| match random.random_range(0..16) {
                0 => -1,
                1 => host_count as i64,
                _ => random.random_range(0..host_count.max(1)) as i64,
            };
            (0..requests * positions).map(|_| row(random)).collect()
        });
        Shape {
            row_bytes,
            slots,
            positions,
            requests,
            count: random.random_range(1..=slots),
            eviction: *[Eviction::Lru, Eviction::Clock].choose(random).unwrap(),
            host_pad: random.random_range(0..3) * 4,
            host_count,
            host_rows,
        }
    }

    fn host_stride(&self) -> usize {
        self.row_bytes + self.host_pad
    }
    fn host_layer(&self) -> usize {
        self.host_count * self.host_stride() + 16
    }
    fn device_layer(&self) -> usize {
        self.requests * self.slots * self.row_bytes + 16
    }

    fn options(&self) -> HotPoolOptions {
        let layers = |bytes: usize| Layers::Step {
            bytes: bytes as u64,
        };
        let device_rows = (self.requests * self.slots) as u64;
        let host = RowLayout::dense(self.host_count as u64, self.host_stride() as u64);
        let device = RowLayout::dense(device_rows, self.row_bytes as u64);
        HotPoolOptions::new(
            self.row_bytes as u64,
            self.slots as u32,
            self.positions as u32,
        )
        .requests(self.requests as u32)
        .count(self.count as u32)
        .layers(2)
        .layers_per_table(2)
        .eviction(self.eviction)
        .host(host.layers(layers(self.host_layer())))
        .device(device.layers(layers(self.device_layer())))
    }

    fn host_row(&self, table: usize, position: u32) -> Option<u64> {
        let row = match &self.host_rows {
            None => i64::from(position),
            Some(rows) => rows[table * self.positions + position as usize],
        };
        u64::try_from(row)
            .ok()
            .filter(|&row| row < self.host_count as u64)
    }

    fn draw_positions(&self, random: &mut SmallRng) -> Vec<i32> {
        let hot = random.random_range(1..=self.positions as i32);
        let position = |random: &mut SmallRng| match random.random_range(0..20) {
            0 => -1,
            1 => *[-2, i32::MIN, i32::MAX, self.positions as i32]
                .choose(random)
                .unwrap(),
            2..=5 => random.random_range(0..self.positions as i32),
            _ => random.random_range(0..hot),
        };
        (0..self.count).map(|_| position(random)).collect()
    }
}

/// The kernels' pool.
struct KernelPool<'a> {
    arrays: Arrays<'a>,
    params: HotPoolParams,
    positions: u64,
    rows_out: u64,
    requests: u64,
    batch: u64,
}

impl<'a> KernelPool<'a> {
    fn new(process: &'a ShimProcess, shape: &Shape, host: &[u8], device: &[u8]) -> Self {
        let mut arrays = Arrays::new(process);
        let (slots, tables) = (shape.slots, shape.requests);
        let entries = tables * shape.count;
        let mut p = HotPoolParams {
            keys: arrays.array(&vec![0; tables * slots * 4]),
            keys_step: slots as u64,
            host: arrays.array(host),
            device: arrays.array(device),
            host_stride_bytes: shape.host_stride() as u64,
            device_stride_bytes: shape.row_bytes as u64,
            host_layer_bytes: shape.host_layer() as u64,
            device_layer_bytes: shape.device_layer() as u64,
            row_bytes: shape.row_bytes as u64,
            host_row_limit: shape.host_count as u64,
            device_row_limit: (tables * slots) as u64,
            positions_step: shape.count as u64,
            rows_out_step: shape.count as u64,
            batch: tables as u32,
            count: shape.count as u32,
            slots: slots as u32,
            position_limit: shape.positions as u32,
            tables: tables as u32,
            layers: 1,
            request_bytes: 4,
            hash_bits: (2 * shape.count).next_power_of_two().trailing_zeros(),
            team: 1,
            ..HotPoolParams::default()
        };
        let all = [
            p.row_bytes,
            p.host_stride_bytes,
            p.host_layer_bytes,
            p.device_layer_bytes,
        ];
        let bits = all.into_iter().fold(0, |bits, bytes| bits | bytes);
        p.unit = [16, 8, 4, 1]
            .into_iter()
            .find(|unit| bits % unit == 0)
            .unwrap() as u32;
        if let Some(rows) = &shape.host_rows {
            p.host_rows = arrays.array(&bytes_of!(rows));
            p.host_rows_step = shape.positions as u64;
        }
        match shape.eviction {
            Eviction::Lru => {
                p.policy = POLICY_LRU;
                p.order = arrays.array(&vec![0; tables * slots * 2]);
                p.order_step = slots as u64;
            }
            Eviction::Clock => {
                p.policy = POLICY_CLOCK;
                p.map = arrays.array(&vec![0; tables * shape.positions * 4]);
                p.map_step = shape.positions as u64;
                p.used = arrays.array(&vec![1; tables * slots * 4]);
                p.clocks = arrays.array(&vec![1; tables * 8]);
            }
        }
        add_plan(&mut arrays, &mut p, tables as u32, shape.count as u32);
        let pool = KernelPool {
            positions: arrays.array(&vec![0; entries * 4]),
            rows_out: arrays.array(&vec![0; entries * 4]),
            requests: arrays.array(&vec![0; tables * 4]),
            batch: arrays.array(&[0; 4]),
            arrays,
            params: p,
        };
        // Every table begins empty.
        pool.arrays.launch("hot_pool_clear", tables as u32, &p, 1);
        pool
    }

    fn resolve(&self, requests: &[i32], positions: &[i32], seed: u64) -> Vec<i32> {
        let mut p = self.params;
        (p.positions, p.rows_out) = (self.positions, self.rows_out);
        (p.requests, p.batch_at) = (self.requests, self.batch);
        p.team = 1 + (seed / 5 % 3) as u32;
        self.arrays.write(self.positions, &bytes_of!(positions));
        self.arrays.write(self.requests, &bytes_of!(requests));
        self.arrays
            .write(self.batch, &(requests.len() as i32).to_ne_bytes());
        self.arrays.launch(kernel(&p), p.batch * p.team, &p, seed);
        expect_teams_clear(&self.arrays, &p);
        // What was recorded is fetched in the second layer.
        p.host += p.host_layer_bytes;
        p.device += p.device_layer_bytes;
        let blocks = 1 + (seed % 3) as u32;
        self.arrays.launch("hot_pool_replay", blocks, &p, seed ^ 77);
        let words = self.arrays.read(self.rows_out);
        let words = words.chunks_exact(4).take(positions.len());
        words
            .map(|word| i32::from_ne_bytes(word.try_into().unwrap()))
            .collect()
    }

    fn clear(&self, request: i32, seed: u64) {
        let mut p = self.params;
        (p.requests, p.batch) = (self.requests, 1);
        self.arrays.write(self.requests, &request.to_ne_bytes());
        self.arrays.launch("hot_pool_clear", 1, &p, seed);
    }

    fn sections(&self) -> [Vec<u8>; 4] {
        let p = &self.params;
        let second = [p.order, p.map][p.policy as usize];
        let read = |address| match address {
            0 => Vec::new(),
            address => self.arrays.read(address),
        };
        [p.keys, second, p.used, p.clocks].map(read)
    }
}

fn run(seed: u64, process: Option<&ShimProcess>) -> HotPoolCounts {
    let random = &mut SmallRng::seed_from_u64(seed);
    let shape = Shape::draw(random);
    let mut host = vec![0; 2 * shape.host_layer()];
    random.fill_bytes(&mut host);
    let mut device = vec![0xee; 2 * shape.device_layer()];
    let mut expected = device.clone();
    let kernels = process.map(|process| KernelPool::new(process, &shape, &host, &device));
    let mut pool = HotPool::new(shape.options()).unwrap();
    let mut plan = pool.new_plan().unwrap();
    let mut tables = vec![Reference::new(shape.eviction, shape.slots); shape.requests];
    let mut counts = HotPoolCounts::default();
    for step in 0..random.random_range(1..7) {
        let at = || format!("seed {seed}, step {step}: {shape:?}");
        if random.random_range(0..8) == 0 {
            let request = random.random_range(0..shape.requests as i32);
            pool.clear(&[request]).unwrap();
            tables[request as usize] = Reference::new(shape.eviction, shape.slots);
            if let Some(kernels) = &kernels {
                kernels.clear(request, seed * 31 + step);
            }
            continue;
        }
        let mut requests: Vec<i32> = (0..shape.requests as i32).collect();
        requests.shuffle(random);
        requests.truncate(random.random_range(1..=shape.requests));
        let positions: Vec<i32> = requests
            .iter()
            .flat_map(|_| shape.draw_positions(random))
            .collect();

        let mut answers = Vec::new();
        for (&request, positions) in requests.iter().zip(positions.chunks(shape.count)) {
            let table = request as usize;
            let host_row = |position: u32| {
                ((position as usize) < shape.positions)
                    .then(|| shape.host_row(table, position))
                    .flatten()
            };
            let outcome = tables[table].resolve(positions, None, host_row);
            let row = |slot: &Option<usize>| slot.map_or(-1, |s| (table * shape.slots + s) as i32);
            answers.extend(outcome.slots.iter().map(row));
            counts.hits += outcome.hits;
            counts.misses += outcome.fetched.len() as u64;
            counts.absent += outcome.absent;
            for (host_row, slot) in outcome.fetched {
                for layer in 0..2 {
                    let row = table * shape.slots + slot;
                    let to = layer * shape.device_layer() + row * shape.row_bytes;
                    let from = layer * shape.host_layer() + host_row as usize * shape.host_stride();
                    expected[to..to + shape.row_bytes]
                        .copy_from_slice(&host[from..from + shape.row_bytes]);
                }
            }
        }

        let mut out = vec![-7; positions.len()];
        let mut batch = HotPoolBatch::new(0, &requests, &positions);
        if let Some(rows) = &shape.host_rows {
            batch = batch.host_rows(rows);
        }
        pool.resolve_and_record(&batch, &host, &mut device, &mut out, &mut plan)
            .unwrap();
        pool.replay(&mut plan, 1..2, &host, &mut device).unwrap();
        assert_eq!(out, answers, "the CPU's answers, {}", at());
        assert!(device == expected, "the CPU's rows, {}", at());
        assert_eq!(pool.counts(), counts, "{}", at());
        if let Some(kernels) = &kernels {
            let out = kernels.resolve(&requests, &positions, seed * 31 + step);
            assert_eq!(out, answers, "the kernel's answers, {}", at());
        }
    }
    let sections = pool.state_sections().unwrap();
    expect_tables(&sections, &tables, &shape);
    if let Some(kernels) = &kernels {
        assert!(
            kernels.sections() == sections,
            "the tables differ, seed {seed}: {shape:?}"
        );
        let rows = kernels.arrays.read(kernels.params.device);
        assert!(
            rows == expected,
            "the kernel's rows, seed {seed}: {shape:?}"
        );
        let counted = counters(&kernels.arrays, &kernels.params);
        assert_eq!(
            counted,
            [counts.hits, counts.misses, counts.absent],
            "{seed}: {shape:?}"
        );
    }
    counts
}

/// Compares the tables with the reference.
fn expect_tables(sections: &[Vec<u8>; 4], tables: &[Reference], shape: &Shape) {
    let words = |section: usize| -> Vec<i32> {
        let words = sections[section].chunks_exact(4);
        words
            .map(|word| i32::from_ne_bytes(word.try_into().unwrap()))
            .collect()
    };
    let keys = tables.iter().flat_map(|table| &table.held);
    let keys: Vec<i32> = keys
        .map(|held| held.map_or(-1, |held| held as i32))
        .collect();
    assert_eq!(words(0), keys, "{shape:?}");
    if shape.eviction == Eviction::Lru {
        let order = tables.iter().flat_map(|table| &table.order);
        let order: Vec<u8> = order
            .flat_map(|&slot| (slot as u16).to_ne_bytes())
            .collect();
        assert_eq!(sections[1], order, "{shape:?}");
        return;
    }
    let used: Vec<i32> = tables
        .iter()
        .flat_map(|t| &t.used)
        .map(|&time| time as i32)
        .collect();
    assert_eq!(words(2), used, "{shape:?}");
    let clocks = tables
        .iter()
        .flat_map(|table| [table.hand as i32, table.time as i32]);
    assert_eq!(words(3), clocks.collect::<Vec<_>>(), "{shape:?}");
    let map = words(1);
    for (table, reference) in tables.iter().enumerate() {
        for position in 0..shape.positions {
            let slot = reference
                .held
                .iter()
                .position(|&held| held == Some(position as u32));
            let entry = map[table * shape.positions + position];
            assert_eq!(entry, slot.map_or(-1, |slot| slot as i32), "{shape:?}");
        }
    }
}

fn run_all(programs: u64, process: Option<&ShimProcess>) {
    let mut sum = HotPoolCounts::default();
    for seed in 0..cases(programs) {
        let counts = run(seed, process);
        sum.hits += counts.hits;
        sum.misses += counts.misses;
        sum.absent += counts.absent;
    }
    let least = cases(programs) * 5;
    assert!(
        sum.hits > least && sum.misses > least && sum.absent > least,
        "{sum:?}"
    );
}

#[test]
fn the_cpus_pool_is_the_plain_one() {
    run_all(10_000, None);
}

#[test]
fn the_kernels_do_the_same_bit_for_bit() {
    let Some(process) = ShimProcess::start("hot_pool") else {
        return;
    };
    run_all(10_000, Some(&process));
}
