//! The hot pool's kernels as a pool: each array is an allocation of its own, whose ends the
//! sanitizer guards.

use crate::bytes_of;
use crate::shim_process::{ShimLaunch, ShimProcess};
use forerun_gpu::hot_pool::params::{
    COUNTERS, HotPoolParams, POLICY_CLOCK, POLICY_LRU, TEAM_BYTES,
};

/// The arrays of a kernel's argument, with the bytes that they begin with.
pub struct Arrays<'a> {
    process: &'a ShimProcess,
    pub held: Vec<(u64, usize)>,
}

impl<'a> Arrays<'a> {
    pub fn new(process: &'a ShimProcess) -> Arrays<'a> {
        Arrays {
            process,
            held: Vec::new(),
        }
    }

    pub fn array(&mut self, bytes: &[u8]) -> u64 {
        let address = self.process.allocate(bytes.len().max(1) as u64, false);
        if !bytes.is_empty() {
            self.process.write(address, bytes);
        }
        self.held.push((address, bytes.len()));
        address
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.process.write(address, bytes);
        }
    }

    pub fn read(&self, address: u64) -> Vec<u8> {
        let held = self.held.iter().find(|(held, _)| *held == address);
        let mut bytes = vec![0; held.expect("an array").1];
        if !bytes.is_empty() {
            self.process.read(address, &mut bytes);
        }
        bytes
    }

    /// Launches a kernel that resolves, replays or clears.
    pub fn launch(&self, name: &str, blocks: u32, params: &HotPoolParams, seed: u64) {
        let threads = 32 << (seed % 2);
        let search = match params.policy {
            POLICY_LRU => (8 << params.hash_bits) + params.slots * 2,
            _ => 0,
        };
        let launch = ShimLaunch {
            threads,
            shared_bytes: search,
            resident: 1 + (seed / 2 % 4) as u32,
            seed,
        };
        let argument = params_bytes(params);
        let failure = self.process.launch(launch, &[(name, blocks, argument)]);
        assert!(
            failure.is_empty(),
            "{name}, {params:?}, seed {seed}: {failure}"
        );
    }
}

impl Drop for Arrays<'_> {
    fn drop(&mut self) {
        self.held
            .iter()
            .for_each(|(address, _)| self.process.free(*address));
    }
}

/// Adds a plan for a batch, teams and counters.
pub fn add_plan(arrays: &mut Arrays<'_>, p: &mut HotPoolParams, batch: u32, count: u32) {
    let (batch, count) = (batch as usize, count as usize);
    p.plan_sources = arrays.array(&vec![0xa5; batch * count * 8]);
    p.plan_destinations = arrays.array(&vec![0xa5; batch * count * 4]);
    p.plan_counts = arrays.array(&vec![0; batch * 4]);
    p.plan_step = count as u64;
    p.teams = arrays.array(&vec![0; batch * TEAM_BYTES as usize]);
    p.counters = arrays.array(&[0; COUNTERS * 8]);
}

/// The counters.
pub fn counters(arrays: &Arrays<'_>, p: &HotPoolParams) -> Vec<u64> {
    let bytes = arrays.read(p.counters);
    let words = bytes.chunks_exact(8);
    words
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        .collect()
}

/// Teams must be zeros after each launch.
pub fn expect_teams_clear(arrays: &Arrays<'_>, p: &HotPoolParams) {
    assert!(arrays.read(p.teams).iter().all(|&byte| byte == 0), "{p:?}");
}

pub fn kernel(p: &HotPoolParams) -> &'static str {
    match p.policy {
        POLICY_CLOCK => "hot_pool_clock",
        _ => "hot_pool_lru",
    }
}

fn params_bytes(p: &HotPoolParams) -> Vec<u8> {
    let words = [
        p.positions,
        p.rows_out,
        p.requests,
        p.lengths,
        p.batch_at,
        p.keys,
        p.order,
        p.map,
        p.used,
        p.clocks,
        p.device_rows,
        p.host_rows,
        p.host,
        p.device,
        p.plan_sources,
        p.plan_destinations,
        p.plan_counts,
        p.teams,
        p.counters,
        p.host_stride_bytes,
        p.device_stride_bytes,
        p.host_layer_bytes,
        p.device_layer_bytes,
        p.row_bytes,
        p.host_row_limit,
        p.device_row_limit,
        p.positions_step,
        p.rows_out_step,
        p.keys_step,
        p.order_step,
        p.map_step,
        p.host_rows_step,
        p.plan_step,
    ];
    let halves = [
        p.batch,
        p.count,
        p.slots,
        p.position_limit,
        p.tables,
        p.layers,
        p.request_bytes,
        p.length_bytes,
        p.unit,
        p.team,
        p.hash_bits,
        p.policy,
    ];
    let bytes = [bytes_of!(words), bytes_of!(halves)].concat();
    assert_eq!(bytes.len(), size_of::<HotPoolParams>());
    bytes
}
