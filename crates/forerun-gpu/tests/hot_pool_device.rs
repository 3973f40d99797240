//! Hot pools on a device, against the pool in host memory. On a machine without one, the error is
//! typed, and the tests check this.

use forerun_gpu::gather::{IndexType, Layers, RowLayout};
use forerun_gpu::hot_pool::{
    DeviceHotPool, DeviceHotPoolBatch, Eviction, HotPool, HotPoolBatch, HotPoolError,
    HotPoolOptions,
};
use forerun_gpu::{Command, DeviceBuffer, DeviceSlice, Gpu, Graph, PinnedBuffer, Stream};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

fn gpu() -> Option<Gpu> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            assert!(error.is_absent(), "{error}");
            None
        }
    }
}

fn bytes_of(integers: &[i32]) -> Vec<u8> {
    integers
        .iter()
        .flat_map(|integer| integer.to_ne_bytes())
        .collect()
}

const ROW_BYTES: usize = 656;
const SLOTS: usize = 4096;
const COUNT: usize = 2048;
const CONTEXT: usize = 16_384;
const REQUESTS: usize = 3;
const LAYERS: usize = 2;

fn options(eviction: Eviction) -> HotPoolOptions {
    let layers = |rows: usize| Layers::Step {
        bytes: (rows * ROW_BYTES) as u64,
    };
    let device_rows = REQUESTS * SLOTS;
    let host = RowLayout::dense(CONTEXT as u64, ROW_BYTES as u64);
    let device = RowLayout::dense(device_rows as u64, ROW_BYTES as u64);
    HotPoolOptions::new(ROW_BYTES as u64, SLOTS as u32, CONTEXT as u32)
        .requests(REQUESTS as u32)
        .layers(LAYERS as u32)
        .layers_per_table(LAYERS as u32)
        .eviction(eviction)
        .host(host.layers(layers(CONTEXT)))
        .device(device.layers(layers(device_rows)))
}

/// Steps of one graph, whose replays read other positions each time, with batches of one request,
/// for which several blocks work, and of all.
fn compare(gpu: &Gpu, eviction: Eviction, batch: usize) -> Result<(), HotPoolError> {
    let random = &mut SmallRng::seed_from_u64(batch as u64);
    let pool = DeviceHotPool::new(gpu, options(eviction))?;
    let mut twin = HotPool::new(options(eviction))?;
    let (mut plan, device_plan) = (twin.new_plan()?, pool.new_plan()?);
    let mut host = PinnedBuffer::new(gpu, LAYERS * CONTEXT * ROW_BYTES)?;
    random.fill_bytes(host.as_mut_slice());
    let rows = DeviceBuffer::new(gpu, LAYERS * REQUESTS * SLOTS * ROW_BYTES)?;
    rows.fill(0)?;
    let mut expected = vec![0; rows.len()];
    let positions = DeviceBuffer::new(gpu, REQUESTS * COUNT * 4)?;
    let out = DeviceBuffer::new(gpu, REQUESTS * COUNT * 4)?;
    let requests = DeviceBuffer::new(gpu, REQUESTS * 4)?;
    let batch_at = DeviceBuffer::from_slice(gpu, &(batch as i32).to_ne_bytes())?;
    let size = (REQUESTS as u32, COUNT as u32);
    let call = DeviceHotPoolBatch::new(0, size, DeviceSlice::from(&positions))
        .requests((DeviceSlice::from(&requests), IndexType::I32))
        .batch_at(DeviceSlice::from(&batch_at));
    let (rows_slice, out_slice) = (DeviceSlice::from(&rows), DeviceSlice::from(&out));
    let resolve = pool.resolve(&call, &host, &rows_slice, &out_slice, Some(&device_plan))?;
    let at = DeviceSlice::from(&batch_at);
    let replayed = (REQUESTS as u32, Some(&at));
    let replay = pool.replay(&device_plan, 1..2, replayed, &host, &rows_slice)?;
    let stream = Stream::new(gpu)?;
    let commands: [&dyn Command; 2] = [&resolve, &replay];
    let graph = Graph::capture(&stream, &commands)?;
    for step in 0..6 {
        let named: Vec<i32> = (0..batch)
            .map(|at| ((at + step) % REQUESTS) as i32)
            .collect();
        let asked: Vec<i32> = (0..batch * COUNT)
            .map(|_| random.random_range(-1..CONTEXT as i32 / 4 + 2000 * step as i32))
            .collect();
        positions.write(0, &bytes_of(&asked))?;
        requests.write(0, &bytes_of(&named))?;
        gpu.scope(|scope| scope.enqueue(&stream, &graph))?;
        let mut answers = vec![0; asked.len()];
        let call = HotPoolBatch::new(0, &named, &asked);
        twin.resolve_and_record(
            &call,
            host.as_slice(),
            &mut expected,
            &mut answers,
            &mut plan,
        )?;
        twin.replay(&mut plan, 1..2, host.as_slice(), &mut expected)?;
        let given = out.to_vec()?;
        assert!(
            given[..asked.len() * 4] == bytes_of(&answers),
            "step {step}: the answers differ"
        );
        assert!(rows.to_vec()? == expected, "step {step}: the rows differ");
        assert_eq!(pool.counts(&stream)?, twin.counts(), "step {step}");
    }
    Ok(())
}

#[test]
fn a_graphs_replays_do_what_the_pool_in_host_memory_does() -> Result<(), HotPoolError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    for eviction in [Eviction::Lru, Eviction::Clock] {
        for batch in [1, REQUESTS] {
            compare(&gpu, eviction, batch)?;
        }
    }
    Ok(())
}
