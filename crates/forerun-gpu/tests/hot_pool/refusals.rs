//! Calls that are refused before anything changes.

use forerun_gpu::gather::{Layers, RowLayout};
use forerun_gpu::hot_pool::{HotPool, HotPoolBatch, HotPoolError, HotPoolOptions};

fn pool() -> HotPool {
    HotPool::new(HotPoolOptions::new(8, 16, 50).requests(2).count(4)).unwrap()
}

/// The error of a batch, by its text.
fn refused(pool: &mut HotPool, batch: &HotPoolBatch<'_>, lengths: [usize; 3]) -> String {
    let [host, device, out] = lengths;
    let (host, mut device, mut out) = (vec![0; host], vec![0; device], vec![-7; out]);
    let before = pool.state_sections().unwrap();
    let error = pool
        .resolve(batch, &host, &mut device, &mut out)
        .unwrap_err();
    assert!(device.iter().all(|&byte| byte == 0) && out.iter().all(|&row| row == -7));
    assert!(pool.state_sections().unwrap() == before);
    error.to_string()
}

#[test]
fn each_mistake_is_named() {
    let pool = &mut pool();
    let lengths = [400, 256, 2];
    let two = [1, 2];
    for (batch, lengths, words) in [
        (
            HotPoolBatch::new(0, &[0, 2], &two),
            lengths,
            "`requests[1]` is 2, but there are 2 tables",
        ),
        (
            HotPoolBatch::new(0, &[0, -1], &two),
            lengths,
            "`requests[1]` is -1",
        ),
        (
            HotPoolBatch::new(0, &[1, 1], &two),
            lengths,
            "table 1 is named twice",
        ),
        (HotPoolBatch::new(1, &[0, 1], &two), lengths, "layer 1"),
        (
            HotPoolBatch::new(0, &[0, 1], &[1, 2, 3]),
            lengths,
            "3 elements of positions",
        ),
        (
            HotPoolBatch::new(0, &[0], &[1; 5]),
            [400, 256, 5],
            "is 5, but at most 4",
        ),
        (
            HotPoolBatch::new(0, &[0, 1], &two),
            [399, 256, 2],
            "`host` has 399 bytes",
        ),
        (
            HotPoolBatch::new(0, &[0, 1], &two),
            [400, 255, 2],
            "`device` has 255 bytes",
        ),
        (
            HotPoolBatch::new(0, &[0, 1], &two).host_rows(&[0; 99]),
            lengths,
            "`host_rows` has 792",
        ),
    ] {
        let text = refused(pool, &batch, lengths);
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(pool.counts(), Default::default());
}

#[test]
fn a_plan_belongs_to_a_pool_of_its_size_and_its_layers() {
    let mut pool = pool();
    let other = HotPool::new(HotPoolOptions::new(8, 16, 50)).unwrap();
    let mut plan = other.new_plan().unwrap();
    let (host, mut device, mut out) = (vec![0; 400], vec![0; 256], [0; 4]);
    let batch = HotPoolBatch::new(0, &[0, 1], &[1, 2, 3, 4]);
    let error = pool.resolve_and_record(&batch, &host, &mut device, &mut out, &mut plan);
    assert!(
        matches!(error, Err(HotPoolError::PlanTooSmall { plan_batch: 1, .. })),
        "{error:?}"
    );
    let mut plan = pool.new_plan().unwrap();
    let error = pool.replay(&mut plan, 0..2, &host, &mut device);
    assert!(
        matches!(error, Err(HotPoolError::NoSuchLayer { layer: 1, .. })),
        "{error:?}"
    );
    let table = Layers::Table {
        offsets_bytes: vec![0, 400],
    };
    let uneven = HotPoolOptions::new(8, 16, 50)
        .layers(2)
        .layers_per_table(2)
        .host(RowLayout::dense(50, 8).layers(table));
    let mut uneven = HotPool::new(uneven).unwrap();
    let mut plan = uneven.new_plan().unwrap();
    let error = uneven.replay(&mut plan, 0..2, &[0; 800], &mut device);
    assert_eq!(error, Err(HotPoolError::UnevenLayers));
    let one = uneven.replay(&mut plan, 1..2, &[0; 800], &mut device);
    assert_eq!(one, Ok(()));
}

#[test]
fn more_memory_than_there_is_is_refused() {
    let huge = HotPoolOptions::new(8, 1 << 15, i32::MAX as u32)
        .requests(1 << 16)
        .layers(1 << 20);
    assert!(matches!(
        HotPool::new(huge),
        Err(HotPoolError::OutOfMemory { .. })
    ));
}
