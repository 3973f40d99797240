//! SGLang's tables: random requests that grow, on the CPU and on the kernels, against the plain
//! reference.

use crate::reference::Reference;
use crate::shim_pool::{Arrays, expect_teams_clear};
use crate::shim_process::ShimProcess;
use crate::{bytes_of, cases};
use forerun_gpu::gather::IndexType;
use forerun_gpu::hot_pool::params::{HotPoolParams, POLICY_LRU, TEAM_BYTES};
use forerun_gpu::hot_pool::{Eviction, HotPoolError, PlannedCopy, SwapIn, Tensor};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngCore, SeedableRng};

const PAGE: usize = 2;

/// The arrays of a server, as SGLang allocates them.
struct Server {
    requests: usize,
    hot: usize,
    context: usize,
    top_k: usize,
    item: usize,
    tokens: Vec<i32>,
    locs: Vec<i32>,
    lru: Vec<i16>,
    host_locs: Vec<i64>,
    host: Vec<u8>,
    device: Vec<u8>,
}

impl Server {
    fn draw(random: &mut SmallRng) -> Server {
        let requests = random.random_range(1..=3);
        let top_k = random.random_range(1..=8);
        let hot = top_k + random.random_range(0..=8);
        let context = hot * 3;
        let item = [8, 16, 24, 656][random.random_range(0..4)];
        let columns = hot + PAGE;
        let mut locs: Vec<i32> = (0..(requests * columns) as i32).collect();
        locs.shuffle(random);
        let mut host_locs: Vec<i64> = (0..(requests * context) as i64).collect();
        host_locs.shuffle(random);
        let mut host = vec![0; requests * context * item];
        random.fill_bytes(&mut host);
        Server {
            requests,
            hot,
            context,
            top_k,
            item,
            tokens: vec![-1; requests * columns],
            locs,
            lru: (0..requests).flat_map(|_| 0..hot as i16).collect(),
            host_locs,
            host,
            device: vec![0; requests * columns * item],
        }
    }

    fn columns(&self) -> usize {
        self.hot + PAGE
    }
}

fn matrix<T>(elements: &[T], columns: usize) -> Tensor {
    Tensor {
        address: elements.as_ptr() as u64,
        rows: (elements.len() / columns) as u64,
        columns: columns as u64,
        step: columns as u64,
    }
}

/// A step of a batch: its requests, lengths and tokens, and the answers and the plan.
struct Step {
    requests: Vec<i64>,
    lengths: Vec<i32>,
    top_k: Vec<i32>,
    out: Vec<i32>,
    src: Vec<i64>,
    dst: Vec<i32>,
    counts: Vec<i32>,
    real: i32,
}

impl Step {
    fn swap_in(&mut self, server: &mut Server) -> SwapIn {
        let (columns, top_k) = (server.columns(), server.top_k);
        let batch = self.requests.len() as u64;
        SwapIn {
            top_k_tokens: matrix(&self.top_k, top_k),
            device_buffer_tokens: Tensor {
                address: server.tokens.as_mut_ptr() as u64,
                ..matrix(&server.tokens, columns)
            },
            host_cache_locs: matrix(&server.host_locs, server.context),
            device_buffer_locs: matrix(&server.locs, columns),
            top_k_device_locs: Tensor {
                address: self.out.as_mut_ptr() as u64,
                ..matrix(&self.out, top_k)
            },
            req_pool_indices: (
                Tensor::vector(self.requests.as_ptr() as u64, batch),
                IndexType::I64,
            ),
            seq_lens: (
                Tensor::vector(self.lengths.as_ptr() as u64, batch),
                IndexType::I32,
            ),
            lru_slots: Tensor {
                address: server.lru.as_mut_ptr() as u64,
                ..matrix(&server.lru, server.hot)
            },
            hot_buffer_size: server.hot as u64,
            copy: self.planned(server),
        }
    }

    fn planned(&mut self, server: &mut Server) -> PlannedCopy {
        PlannedCopy {
            miss_src: Tensor {
                address: self.src.as_mut_ptr() as u64,
                ..matrix(&self.src, server.top_k)
            },
            miss_dst: Tensor {
                address: self.dst.as_mut_ptr() as u64,
                ..matrix(&self.dst, server.top_k)
            },
            miss_count: Tensor::vector(self.counts.as_mut_ptr() as u64, self.counts.len() as u64),
            num_real_reqs: std::ptr::from_ref(&self.real) as u64,
            host_cache: (server.host.as_ptr() as u64, server.host.len() as u64),
            device_buffer: (
                server.device.as_mut_ptr() as u64,
                server.device.len() as u64,
            ),
            item_size_bytes: server.item as u64,
        }
    }
}

/// Runs the step on the kernels, compares what it changes with the CPU's, and returns the answers.
fn expect_same_on_kernels(
    process: &ShimProcess,
    before: &Server,
    after: &Server,
    step: &Step,
    seed: u64,
) -> Vec<i32> {
    let mut arrays = Arrays::new(process);
    let (columns, batch) = (before.columns() as u64, step.requests.len());
    let p = HotPoolParams {
        positions: arrays.array(&bytes_of!(step.top_k)),
        rows_out: arrays.array(&vec![0; step.out.len() * 4]),
        requests: arrays.array(&bytes_of!(step.requests)),
        lengths: arrays.array(&bytes_of!(step.lengths)),
        batch_at: arrays.array(&step.real.to_ne_bytes()),
        keys: arrays.array(&bytes_of!(before.tokens)),
        order: arrays.array(&bytes_of!(before.lru)),
        device_rows: arrays.array(&bytes_of!(before.locs)),
        host_rows: arrays.array(&bytes_of!(before.host_locs)),
        host: arrays.array(&before.host),
        device: arrays.array(&before.device),
        plan_sources: arrays.array(&vec![0; step.src.len() * 8]),
        plan_destinations: arrays.array(&vec![0; step.dst.len() * 4]),
        plan_counts: arrays.array(&vec![0; batch * 4]),
        teams: arrays.array(&vec![0; batch * TEAM_BYTES as usize]),
        host_stride_bytes: before.item as u64,
        device_stride_bytes: before.item as u64,
        row_bytes: before.item as u64,
        host_row_limit: (before.requests * before.context) as u64,
        device_row_limit: before.requests as u64 * columns,
        positions_step: before.top_k as u64,
        rows_out_step: before.top_k as u64,
        keys_step: columns,
        order_step: before.hot as u64,
        host_rows_step: before.context as u64,
        plan_step: before.top_k as u64,
        batch: batch as u32,
        count: before.top_k as u32,
        slots: before.hot as u32,
        position_limit: before.context as u32,
        tables: before.requests as u32,
        request_bytes: 8,
        length_bytes: 4,
        unit: if before.item.is_multiple_of(16) {
            16
        } else {
            8
        },
        team: 1 + (seed % 2) as u32,
        hash_bits: (2 * before.top_k).next_power_of_two().trailing_zeros(),
        policy: POLICY_LRU,
        ..HotPoolParams::default()
    };
    arrays.launch("hot_pool_lru", p.batch * p.team, &p, seed);
    expect_teams_clear(&arrays, &p);
    for (address, expected, name) in [
        (p.keys, bytes_of!(after.tokens), "tokens"),
        (p.order, bytes_of!(after.lru), "order"),
        (p.device, after.device.clone(), "rows"),
        (p.plan_counts, bytes_of!(step.counts), "counts"),
    ] {
        assert!(
            arrays.read(address) == expected,
            "{name} differ, seed {seed}"
        );
    }
    let answers = arrays.read(p.rows_out);
    let answers = answers
        .chunks_exact(4)
        .take(step.real as usize * before.top_k);
    answers
        .map(|row| i32::from_ne_bytes(row.try_into().unwrap()))
        .collect()
}

fn run(seed: u64, process: Option<&ShimProcess>) -> [u64; 3] {
    let random = &mut SmallRng::seed_from_u64(seed);
    let mut server = Server::draw(random);
    let (columns, hot, item) = (server.columns(), server.hot, server.item);
    let mut tables = vec![Reference::new(Eviction::Lru, hot); server.requests];
    let mut lengths: Vec<usize> = (0..server.requests)
        .map(|_| random.random_range(1..hot + 3))
        .collect();
    let mut expected = server.device.clone();
    let [mut in_order, mut hits, mut misses] = [0; 3];
    for step_number in 0..6 {
        let mut batch: Vec<i64> = (0..server.requests as i64).collect();
        batch.shuffle(random);
        let real = random.random_range(1..=batch.len());
        let mut step = Step {
            lengths: batch.iter().map(|&r| lengths[r as usize] as i32).collect(),
            top_k: vec![-1; batch.len() * server.top_k],
            out: vec![-7; batch.len() * server.top_k],
            src: vec![0; batch.len() * server.top_k],
            dst: vec![0; batch.len() * server.top_k],
            counts: vec![0; batch.len()],
            real: real as i32,
            requests: batch.clone(),
        };
        for (&request, tokens) in batch.iter().zip(step.top_k.chunks_mut(server.top_k)) {
            let length = lengths[request as usize];
            let mut all: Vec<i32> = (0..length as i32).collect();
            all.shuffle(random);
            for (token, drawn) in tokens.iter_mut().zip(all) {
                *token = drawn;
            }
        }
        let mut answers = step.out.clone();
        for (entry, &request) in batch.iter().enumerate().take(real) {
            let request = request as usize;
            let places = entry * server.top_k..(entry + 1) * server.top_k;
            let length = lengths[request] as i64;
            let outcome =
                tables[request].resolve(&step.top_k[places.clone()], Some(length), |token| {
                    Some(server.host_locs[request * server.context + token as usize] as u64)
                });
            in_order += u64::from(length <= hot as i64);
            hits += outcome.hits;
            misses += outcome.fetched.len() as u64;
            for (answer, slot) in answers[places].iter_mut().zip(&outcome.slots) {
                *answer = slot.map_or(-1, |slot| server.locs[request * columns + slot]);
            }
            for (host_row, slot) in outcome.fetched {
                let to = server.locs[request * columns + slot] as usize * item;
                let from = host_row as usize * item;
                expected[to..to + item].copy_from_slice(&server.host[from..from + item]);
            }
        }
        let before = Server {
            tokens: server.tokens.clone(),
            locs: server.locs.clone(),
            lru: server.lru.clone(),
            host_locs: server.host_locs.clone(),
            host: server.host.clone(),
            device: server.device.clone(),
            ..server
        };
        let call = step.swap_in(&mut server);
        // SAFETY: the arrays are in `server` and `step`, which nothing uses during the call.
        unsafe { call.run_on_cpu() }.unwrap();
        let at = || format!("seed {seed}, step {step_number}");
        assert_eq!(step.out, answers, "{}", at());
        assert!(server.device == expected, "{}", at());
        let held = tables.iter().flat_map(|table| {
            let held = table
                .held
                .iter()
                .map(|held| held.map_or(-1, |held| held as i32));
            held.chain([-1; PAGE])
        });
        assert_eq!(server.tokens, held.collect::<Vec<_>>(), "{}", at());
        let order: Vec<i16> = tables
            .iter()
            .flat_map(|table| &table.order)
            .map(|&slot| slot as i16)
            .collect();
        assert_eq!(server.lru, order, "{}", at());
        if let Some(process) = process {
            let seed = seed * 7 + step_number;
            let given = expect_same_on_kernels(process, &before, &server, &step, seed);
            assert_eq!(given, answers[..given.len()], "{}", at());
        }
        // The plan alone fetches the same rows.
        let mut copied = before.device.clone();
        let planned = PlannedCopy {
            device_buffer: (copied.as_mut_ptr() as u64, copied.len() as u64),
            ..step.planned(&mut server)
        };
        // SAFETY: as above; `copied` is used by nothing else.
        unsafe { planned.run_on_cpu() }.unwrap();
        assert!(copied == expected, "{}", at());
        for length in &mut lengths {
            *length = (*length + random.random_range(0..4)).min(server.context);
        }
    }
    [in_order, hits, misses]
}

fn run_all(programs: u64, process: Option<&ShimProcess>) {
    let mut sums = [0; 3];
    for seed in 0..cases(programs) {
        for (sum, more) in sums.iter_mut().zip(run(seed, process)) {
            *sum += more;
        }
    }
    assert!(sums.iter().all(|&sum| sum > cases(programs)), "{sums:?}");
}

#[test]
fn sglangs_tables_change_as_its_contract_says() {
    run_all(2000, None);
}

#[test]
fn the_kernels_change_sglangs_tables_alike() {
    let Some(process) = ShimProcess::start("hot_pool") else {
        return;
    };
    run_all(800, Some(&process));
}

/// A server's mistake: then there may be fewer slots to evict than tokens to load.
#[test]
fn a_token_in_every_slot_leaves_no_slot_for_others() {
    let random = &mut SmallRng::seed_from_u64(1);
    let drawn = std::iter::repeat_with(|| Server::draw(random)).find(|server| server.hot > 1);
    let mut server = drawn.unwrap();
    let (batch, hot, columns) = (server.requests, server.hot, server.columns());
    server.top_k = hot;
    server.tokens.fill(0);
    let mut step = Step {
        requests: (0..batch as i64).collect(),
        lengths: vec![hot as i32 + 2; batch],
        top_k: (0..batch).flat_map(|_| 0..hot as i32).collect(),
        out: vec![-7; batch * hot],
        src: vec![0; batch * hot],
        dst: vec![0; batch * hot],
        counts: vec![-7; batch],
        real: batch as i32,
    };
    let order = server.lru.clone();
    let call = step.swap_in(&mut server);
    // SAFETY: the arrays are in `server` and `step`, which nothing uses during the call.
    unsafe { call.run_on_cpu() }.unwrap();
    assert_eq!((&step.counts, &server.lru), (&vec![0; batch], &order));
    // Nothing but the answers has changed, so the kernels begin with the same tables.
    let kernels = ShimProcess::start("hot_pool");
    let given = kernels.map(|process| expect_same_on_kernels(&process, &server, &server, &step, 3));
    for answers in [Some(step.out.clone()), given].into_iter().flatten() {
        for (request, rows) in answers.chunks(hot).enumerate() {
            let slots = &server.locs[request * columns..][..hot];
            assert!(slots.contains(&rows[0]), "{rows:?}");
            assert!(rows[1..].iter().all(|&row| row == -1), "{rows:?}");
        }
    }
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let random = &mut SmallRng::seed_from_u64(1);
    let mut server = Server::draw(random);
    let batch = server.requests;
    let mut step = Step {
        requests: vec![0; batch],
        lengths: vec![1; batch],
        top_k: vec![-1; batch * server.top_k],
        out: vec![0; batch * server.top_k],
        src: vec![0; batch * server.top_k],
        dst: vec![0; batch * server.top_k],
        counts: vec![0; batch],
        real: batch as i32,
    };
    let good = step.swap_in(&mut server);
    let refused = |call: SwapIn| {
        // SAFETY: the arrays are alive, and shapes are only made smaller.
        unsafe { call.run_on_cpu() }.unwrap_err().to_string()
    };
    let hot = good.hot_buffer_size;
    for (call, words) in [
        (
            SwapIn {
                hot_buffer_size: 0,
                ..good
            },
            "hot_buffer_size",
        ),
        (
            SwapIn {
                hot_buffer_size: hot + PAGE as u64,
                ..good
            },
            "a slot of each table for the newest",
        ),
        (
            SwapIn {
                top_k_tokens: Tensor {
                    columns: hot + 1,
                    ..good.top_k_tokens
                },
                ..good
            },
            "positions, but its table has only",
        ),
        (
            SwapIn {
                lru_slots: Tensor {
                    columns: hot - 1,
                    ..good.lru_slots
                },
                ..good
            },
            "`lru_slots` has",
        ),
        (
            SwapIn {
                copy: PlannedCopy {
                    item_size_bytes: 0,
                    ..good.copy
                },
                ..good
            },
            "item_size_bytes",
        ),
    ] {
        let text = refused(call);
        assert!(text.contains(words), "{text}");
    }
    server.lru[0] = hot as i16;
    let call = step.swap_in(&mut server);
    // SAFETY: as above.
    let error = unsafe { call.run_on_cpu() }.unwrap_err();
    let slots = hot as u32;
    assert_eq!(error, HotPoolError::BadOrder { table: 0, slots });
}
