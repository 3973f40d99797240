//! Sends rows through a staging ring to CPU memory, and to a device's memory if there is one.

use forerun_gpu::gather::{Delivery, Destination, GatherError, StagingRing, StagingShape};
use forerun_gpu::{DeviceBuffer, Gpu, GpuError};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The device. If there is none, checks that this is reported, and returns `None`.
fn gpu() -> Option<Gpu> {
    Gpu::open(0)
        .inspect_err(|error| assert!(error.is_absent(), "{error}"))
        .ok()
}

fn row(shape: StagingShape, stamp: usize) -> Vec<u8> {
    let byte = |at| (stamp * 31 + at * 7) as u8;
    (0..shape.row_bytes).map(byte).collect()
}

/// Sends rows to the places of `order`, in runs whose lengths cycle through `runs`.
fn put_all(
    delivery: &mut Delivery<'_>,
    order: &[u64],
    runs: &[usize],
    stamp: usize,
) -> Result<(), GpuError> {
    let shape = delivery.shape();
    let (mut rest, mut runs) = (order, runs.iter().cycle());
    while !rest.is_empty() {
        let wanted = runs.next().map_or(1, |run| 1 + run % shape.piece_rows);
        let wanted = wanted.min(rest.len());
        let reserved = delivery.reserve(wanted)?;
        assert!(
            reserved.len() >= wanted * shape.row_bytes && reserved.len() % shape.row_bytes == 0
        );
        let (places, others) = rest.split_at(wanted);
        for (place, to) in places
            .iter()
            .zip(reserved.chunks_exact_mut(shape.row_bytes))
        {
            to.copy_from_slice(&row(shape, stamp + *place as usize));
        }
        delivery.commit(places)?;
        rest = others;
    }
    Ok(())
}

/// Checks that the places in `order` have their rows and that nothing else has changed.
fn check(shape: StagingShape, order: &[u64], stamp: usize, rows: &[u8]) {
    for (place, row_there) in rows.chunks_exact(shape.row_bytes).enumerate() {
        if order.contains(&(place as u64)) {
            assert_eq!(row_there, row(shape, stamp + place), "place {place}");
        } else {
            assert!(row_there.iter().all(|&byte| byte == 0xa5), "place {place}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn every_row_arrives_at_its_position_for_any_piece_size(
        row_bytes in prop::sample::select(vec![1usize, 4, 7, 16, 100, 656]),
        piece_rows in 0usize..9,
        pieces in 0usize..5,
        order in Just((0..60u64).collect::<Vec<_>>()).prop_shuffle(),
        len in 0usize..=60,
        runs in prop::collection::vec(0usize..20, 1..6),
        offset in 0usize..3,
    ) {
        let shape = StagingShape { row_bytes, piece_rows, pieces };
        let order = &order[..len];
        let mut ring = StagingRing::on_cpu(shape).unwrap();
        let gpu = gpu();
        let mut on_gpu = gpu.as_ref().map(|gpu| StagingRing::on_gpu(gpu, shape).unwrap());
        // Several deliveries: rows left over from one must not appear in the next.
        for stamp in [0, 1000] {
            let mut rows = vec![0xa5; 60 * row_bytes];
            let to = &mut Destination::from(&mut rows[..]);
            ring.deliver(to, |delivery| put_all(delivery, order, &runs, stamp)).unwrap();
            check(ring.shape(), order, stamp, &rows);
            if let (Some(gpu), Some(ring)) = (&gpu, &mut on_gpu) {
                let filler = vec![0xa5; offset + rows.len()];
                let buffer = DeviceBuffer::from_slice(gpu, &filler).unwrap();
                let part = buffer.slice(offset..buffer.len()).unwrap();
                let to = &mut Destination::from(part);
                ring.deliver(to, |delivery| put_all(delivery, order, &runs, stamp)).unwrap();
                buffer.read(offset as u64, &mut rows).unwrap();
                check(ring.shape(), order, stamp, &rows);
            }
        }
    }
}

#[test]
fn a_delivery_that_fails_or_panics_leaves_the_ring_as_good_as_new() {
    let shape = StagingShape {
        row_bytes: 8,
        piece_rows: 2,
        pieces: 2,
    };
    let mut ring = StagingRing::on_cpu(shape).unwrap();
    let mut rows = [0xa5; 48];
    let mut to = Destination::from(&mut rows[..]);
    let failed = ring.deliver(&mut to, |delivery| {
        put_all(delivery, &[0, 1, 2], &[0], 0)?;
        Err::<(), _>(GpuError::NoDevice)
    });
    assert_eq!(failed, Err(GpuError::NoDevice));
    let panics = catch_unwind(AssertUnwindSafe(|| {
        ring.deliver(&mut to, |delivery| -> Result<(), GpuError> {
            put_all(delivery, &[3], &[0], 0)?;
            panic!("in the middle of it")
        })
    }));
    assert!(panics.is_err());
    ring.deliver(&mut to, |delivery| put_all(delivery, &[5, 0], &[0], 9))
        .unwrap();
    let order = [0, 5];
    for place in order {
        assert_eq!(rows[place * 8..][..8], row(shape, 9 + place));
    }
    // Rows that had not been sent when their delivery ended are never sent.
    assert!(rows[3 * 8..5 * 8].iter().all(|&byte| byte == 0xa5));
}

#[test]
fn oversized_batches_are_refused_before_any_copy() {
    let shape = StagingShape {
        row_bytes: 4,
        piece_rows: 3,
        pieces: 2,
    };
    let mut ring = StagingRing::on_cpu(shape).unwrap();
    let mut rows = [0xa5; 22];
    let mut to = Destination::from(&mut rows[..]);
    ring.deliver(&mut to, |delivery| {
        let error = delivery.reserve(4).unwrap_err().to_string();
        assert!(error.contains("buffer of 12 bytes"), "{error}");
        let error = delivery.commit(&[0, 1, 2, 3]).unwrap_err().to_string();
        assert!(error.contains("buffer of 12 bytes"), "{error}");
        // 22 bytes are five rows and two extra bytes.
        for place in [5, u64::MAX] {
            let error = delivery.commit(&[0, place]).unwrap_err();
            assert!(matches!(
                error,
                GpuError::OutOfBounds { buffer_len: 20, .. }
            ));
        }
        Ok::<_, GpuError>(())
    })
    .unwrap();
    assert_eq!(rows, [0xa5; 22]);
    let mut ring = StagingRing::on_cpu(StagingShape {
        row_bytes: 0,
        ..shape
    })
    .unwrap();
    let mut to = Destination::from(&mut rows[..]);
    let error = ring.deliver(&mut to, |delivery| delivery.commit(&[0]));
    assert_eq!(error, Err(GpuError::Refused(GatherError::NoBytes)));
    let huge = StagingShape {
        row_bytes: usize::MAX / 4,
        piece_rows: 3,
        pieces: 1,
    };
    let error = StagingRing::on_cpu(huge).unwrap_err();
    assert!(matches!(error, GpuError::OutOfMemory { .. }), "{error}");
}

#[test]
fn a_ring_serves_one_kind_of_memory() {
    let Some(gpu) = gpu() else { return };
    let shape = StagingShape::of(16);
    let buffer = DeviceBuffer::from_slice(&gpu, &[1; 16]).unwrap();
    let mut rows = [1; 16];
    let put = |delivery: &mut Delivery<'_>| put_all(delivery, &[0], &[0], 0);
    let mut ring = StagingRing::on_cpu(shape).unwrap();
    let refused = ring.deliver(&mut Destination::from(&buffer), put);
    assert!(matches!(
        refused,
        Err(GpuError::Refused(GatherError::WrongMemory { .. }))
    ));
    let mut ring = StagingRing::on_gpu(&gpu, shape).unwrap();
    let refused = ring.deliver(&mut Destination::from(&mut rows[..]), put);
    assert!(matches!(
        refused,
        Err(GpuError::Refused(GatherError::WrongMemory { .. }))
    ));
    assert_eq!((rows, buffer.to_vec().unwrap()), ([1; 16], vec![1; 16]));
}
