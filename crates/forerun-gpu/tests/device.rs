//! Tests that need a device. On a machine without one, each operation must report that with a typed
//! error, and the tests check this.

#[path = "testing/race.rs"]
mod race;

use forerun_gpu::gather::{
    BATCH_ROW_BYTES_MIN, CopyQueue, CopySpec, DeviceCopyOptions, Direction, GatherError, IndexType,
    Layers, Operand, PairsAt, QueuedCopy, QueuedPairs, Request, RowCopy, RowLayout, Side, cpu,
};
use forerun_gpu::gather::{DevicePairs, copy_within_device, gather, scatter};
use forerun_gpu::table::{
    Bags, Candidates, Condition, DeviceBatch, GpuEvictStrategy, GpuTable, LookupMode, Operation,
    PooledBatch, PooledDtype, Pooling, PoolingOptions, RawBatch, RowFormat, Status, StreamTable,
    TableError, TableOptions, Width,
};
use forerun_gpu::{
    DeviceBuffer, Event, Gpu, GpuError, Graph, HostMemory, Piece, PinnedBuffer, Registered, Stream,
    Transfer,
};
use std::collections::BTreeMap;

/// The device. If there is none, checks that this is reported, and returns `None`.
fn gpu() -> Option<Gpu> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            assert!(error.is_absent(), "{error}");
            assert_eq!(Gpu::open(0).unwrap_err(), error);
            assert!(Gpu::count().is_err() || Gpu::count() == Ok(0));
            None
        }
    }
}

fn indices(list: &[i32]) -> Vec<u8> {
    list.iter().flat_map(|index| index.to_ne_bytes()).collect()
}

/// All keys of a launch are in one bucket, so every lane of every warp wants the same lock.
#[test]
fn a_storm_on_one_bucket_ends_at_every_width() -> Result<(), TableError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    for width in Width::ALL {
        let options = TableOptions::new(u64::from(width.slots()), 16)
            .width(width)
            .candidates(Candidates::One);
        let mut table = GpuTable::on_gpu(&gpu, options)?;
        let keys: Vec<u64> = (0..1 << 16).map(|i| i % 8).collect();
        let status = table.insert_or_assign(&keys, &vec![1; keys.len() * 16], None)?;
        let inserted = status.iter().filter(|status| **status == Status::Inserted);
        assert_eq!(inserted.count(), 8, "{width:?}");
        assert_eq!(table.erase_if(&Condition::ALL)?, 8, "{width:?}");
    }
    Ok(())
}

#[test]
fn lookups_run_beside_writers() -> Result<(), TableError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    race::lookups_beside_writers(&mut GpuTable::on_gpu(&gpu, race::options())?, 1000);
    Ok(())
}

#[test]
fn memory_goes_to_the_device_and_back() -> Result<(), GpuError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let bytes: Vec<u8> = (0..10_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let device = DeviceBuffer::from_slice(&gpu, &bytes)?;
    assert_eq!(device.to_vec()?, bytes);
    device.fill(3)?;
    device.write(5000, &[1, 2])?;
    let mut part = [0; 4];
    device.read(4999, &mut part)?;
    assert_eq!(part, [3, 1, 2, 3]);
    assert!(matches!(
        device.write(9999, &[0, 0]),
        Err(GpuError::OutOfBounds { .. })
    ));

    let mut host = PinnedBuffer::new(&gpu, 10_000)?;
    assert!(host.as_slice().iter().all(|&byte| byte == 0));
    host.as_mut_slice().copy_from_slice(&bytes);
    let stream = Stream::new(&gpu)?;
    let (start, end) = (Event::new(&gpu)?, Event::new(&gpu)?);
    let piece = |host_offset, device_offset, len| Piece {
        host_offset,
        device_offset,
        len,
    };
    let there = Transfer::to_device(&host, &device, piece(0, 0, 10_000))?;
    gpu.scope(|scope| {
        stream.record(&start)?;
        scope.enqueue(&stream, &there)?;
        stream.record(&end)
    })?;
    assert!(end.is_complete()? && end.elapsed_since(&start)?.as_nanos() > 0);
    host.as_mut_slice().fill(0);
    let back = Transfer::to_host(&device, &mut host, piece(0, 0, 10_000))?;
    gpu.scope(|scope| scope.enqueue(&stream, &back))?;
    assert_eq!(host.as_slice(), bytes);
    assert!(Transfer::to_device(&host, &device, piece(1, 0, 10_000)).is_err());
    Ok(())
}

#[test]
fn plain_addresses_are_located_by_the_driver() -> Result<(), GpuError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let mut host = PinnedBuffer::new(&gpu, 656 * 100)?;
    host.as_mut_slice()[656 * 42..656 * 43].fill(9);
    let device = DeviceBuffer::from_slice(&gpu, &[0; 656 * 10])?;
    let pairs = DeviceBuffer::from_slice(&gpu, &indices(&[42, 3]))?;
    let good = Request {
        direction: Direction::Gather,
        spec: CopySpec::dense(656, 100, 10),
        host: host.address(),
        device: device.address(),
        pairs: PairsAt::interleaved(pairs.address(), IndexType::I32, &[1, 2])?,
        count: None,
        map: None,
        out_of_range: None,
    };
    // SAFETY: everything lives until the end of the test.
    let prepare = |request: &Request| unsafe { RowCopy::from_request(&gpu, request) };
    let stream = Stream::new(&gpu)?;
    let copy = prepare(&good)?;
    gpu.scope(|scope| scope.enqueue(&stream, &copy))?;
    let mut row = [0; 656];
    device.read(656 * 3, &mut row)?;
    assert_eq!(row, [9; 656]);

    let refused = |change: &dyn Fn(&mut Request)| {
        let mut request = good.clone();
        change(&mut request);
        match prepare(&request) {
            Err(GpuError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    };
    let ordinary = vec![0u8; 656 * 100];
    let part = Operand::Rows(Side::Host);
    assert_eq!(
        refused(&|r| r.host = ordinary.as_ptr() as u64),
        GatherError::NotPinned {
            part,
            address: ordinary.as_ptr() as u64
        }
    );
    assert!(matches!(
        refused(&|r| r.host = device.address()),
        GatherError::WrongMemory { .. }
    ));
    assert!(matches!(
        refused(&|r| r.device = host.address()),
        GatherError::WrongMemory { .. }
    ));
    assert!(matches!(
        refused(&|r| r.spec.device.rows = 1 << 40),
        GatherError::PastEnd { .. }
    ));
    let mut memory = vec![5u8; 656 * 100];
    let registered = Registered::new(&gpu, &mut memory)?;
    let request = Request {
        host: registered.address(),
        ..good.clone()
    };
    let copy = prepare(&request)?;
    gpu.scope(|scope| scope.enqueue(&stream, &copy))?;
    device.read(656 * 3, &mut row)?;
    assert_eq!(row, [5; 656]);
    Ok(())
}

#[test]
fn rows_move_within_the_device() -> Result<(), GpuError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let bytes: Vec<u8> = (0..40 * 24).map(|i| (i * 7 % 251) as u8).collect();
    let (source, destination) = (
        DeviceBuffer::from_slice(&gpu, &bytes)?,
        DeviceBuffer::from_slice(&gpu, &[9; 24 * 8])?,
    );
    let list = DeviceBuffer::from_slice(&gpu, &indices(&[39, 0, -1, 1, 5, 7]))?;
    let pairs = DevicePairs::interleaved(&list, 0, IndexType::I32, &[3, 2])?;
    let spec = CopySpec::dense(24, 40, 8);
    let options = DeviceCopyOptions::default();
    let copy = copy_within_device(&source, &destination, &spec, &pairs, &options)?;
    let stream = Stream::new(&gpu)?;
    gpu.scope(|scope| scope.enqueue(&stream, &copy))?;
    drop(copy);
    let mut expected = vec![9; 24 * 8];
    expected[..24].copy_from_slice(&bytes[39 * 24..]);
    expected[7 * 24..].copy_from_slice(&bytes[5 * 24..][..24]);
    assert_eq!(destination.to_vec()?, expected);
    // The halves of one buffer are apart, but a row is not copied onto its own rows.
    let halves = CopySpec::dense(24, 20, 20).device(RowLayout::dense(20, 24).offset_bytes(20 * 24));
    copy_within_device(&source, &source, &halves, &pairs, &options)?;
    let same = CopySpec::dense(24, 40, 40);
    let refused = copy_within_device(&source, &source, &same, &pairs, &options).unwrap_err();
    assert!(
        matches!(refused, GpuError::Refused(GatherError::Overlap { .. })),
        "{refused}"
    );
    Ok(())
}

/// Many calls in flight, each with indices that are gone when the copy runs, and layers that need a
/// table; rows for a kernel and for the copy engine.
#[test]
fn queued_copies_are_right_though_no_call_waits() -> Result<(), GpuError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let queue = CopyQueue::new(&gpu)?;
    let stream = Stream::new(&gpu)?;
    for row_bytes in [656, BATCH_ROW_BYTES_MIN] {
        let (rows, layers) = (64u64, 5u64);
        let bytes = (row_bytes * rows * layers) as usize;
        let mut host = PinnedBuffer::new(&gpu, bytes)?;
        let pattern = host.as_mut_slice().iter_mut().enumerate();
        pattern.for_each(|(at, byte)| *byte = (at * 31 / 7) as u8);
        let device = DeviceBuffer::from_slice(&gpu, &vec![0; bytes])?;
        let back = PinnedBuffer::new(&gpu, bytes)?;
        let order = [0, 3, 1, 4, 2].map(|layer| layer * row_bytes * rows);
        let layout = RowLayout::dense(rows, row_bytes).layers(Layers::Table {
            offsets_bytes: order.to_vec(),
        });
        let enqueue = |direction, host: &PinnedBuffer, pair: [i64; 2]| {
            let pairs = cpu::Pairs::interleaved(cpu::Indices::I64(&pair))?;
            let request = Request {
                direction,
                spec: CopySpec::dense(row_bytes, 0, 0)
                    .layers(layers as u32)
                    .host(layout.clone())
                    .device(layout.clone()),
                host: host.address(),
                device: device.address(),
                pairs: PairsAt::interleaved(0, IndexType::I64, &[0, 2])?,
                count: None,
                map: None,
                out_of_range: None,
            };
            let copy = QueuedCopy {
                request,
                within_device: false,
                pairs: QueuedPairs::Copied(pairs),
                kept: None,
            };
            // SAFETY: all buffers outlive the wait below, and nothing reads them before it.
            unsafe { queue.enqueue(&stream, copy) }
        };
        for row in 0..rows as i64 {
            let place = (row * 13 + 5) % rows as i64;
            enqueue(Direction::Gather, &host, [row, place])?;
            enqueue(Direction::Scatter, &back, [place, rows as i64 - 1 - row])?;
        }
        enqueue(Direction::Gather, &host, [rows as i64, 0])?;
        stream.synchronize()?;
        let at = |layer: u64, row: u64| ((layer * rows + row) * row_bytes) as usize;
        for (layer, row) in (0..layers).flat_map(|layer| (0..rows).map(move |row| (layer, row))) {
            let there = &back.as_slice()[at(layer, rows - 1 - row)..][..row_bytes as usize];
            assert_eq!(
                there,
                &host.as_slice()[at(layer, row)..][..row_bytes as usize]
            );
        }
    }
    assert_eq!(queue.out_of_range()?, 2 * 5);
    Ok(())
}

#[test]
fn a_captured_copy_reads_the_indices_of_each_replay() -> Result<(), GpuError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let mut host = PinnedBuffer::new(&gpu, 16 * 4)?;
    for (row, bytes) in host.as_mut_slice().chunks_exact_mut(16).enumerate() {
        bytes.fill(row as u8 + 1);
    }
    let device = DeviceBuffer::from_slice(&gpu, &[0; 16])?;
    let list = DeviceBuffer::from_slice(&gpu, &indices(&[0, 0]))?;
    let pairs = DevicePairs::interleaved(&list, 0, IndexType::I32, &[1, 2])?;
    let spec = CopySpec::dense(16, 4, 1);
    let copy = gather(&host, &device, &spec, &pairs, &DeviceCopyOptions::default())?;
    let stream = Stream::new(&gpu)?;
    let graph = Graph::capture(&stream, &[&copy])?;
    assert_eq!(device.to_vec()?, [0; 16]); // nothing has run
    for row in [2, 0, 3] {
        list.write(0, &indices(&[row, 0]))?;
        gpu.scope(|scope| scope.enqueue(&stream, &graph))?;
        assert_eq!(device.to_vec()?, [row as u8 + 1; 16]);
    }
    Ok(())
}

#[test]
fn a_scatter_is_complete_when_its_scope_ends() -> Result<(), GpuError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let mut host = PinnedBuffer::new(&gpu, 24 * 8)?;
    let device = DeviceBuffer::from_slice(&gpu, &[7; 24])?;
    let list = DeviceBuffer::from_slice(&gpu, &indices(&[0, 5]))?;
    let pairs = DevicePairs::interleaved(&list, 0, IndexType::I32, &[1, 2])?;
    let spec = CopySpec::dense(24, 8, 1);
    let copy = scatter(
        &device,
        &mut host,
        &spec,
        &pairs,
        &DeviceCopyOptions::default(),
    )?;
    assert_eq!(copy.plan().unit.bytes(), 8);
    let stream = Stream::high_priority(&gpu)?;
    gpu.scope(|scope| scope.enqueue(&stream, &copy))?;
    drop(copy);
    let wanted: Vec<u8> = (0..24 * 8)
        .map(|i| if i / 24 == 5 { 7 } else { 0 })
        .collect();
    assert_eq!(host.as_slice(), wanted);
    Ok(())
}

#[cfg(feature = "study")]
#[test]
fn a_matrix_product_is_refused_where_it_does_not_fit() -> Result<(), GpuError> {
    use forerun_gpu::Command;
    use forerun_gpu::study::MatrixProduct;

    let Some(gpu) = gpu() else { return Ok(()) };
    let small = DeviceBuffer::new(&gpu, MatrixProduct::matrix_bytes(64))?;
    let product = MatrixProduct::new(&small, &small, &small, 64)?;
    assert!(product.gpu().is(&gpu));
    assert!(MatrixProduct::new(&small, &small, &small, 65).is_err());
    assert!(MatrixProduct::new(&small, &small, &small, 128).is_err());
    Ok(())
}

fn words(list: impl IntoIterator<Item = u64>) -> Vec<u8> {
    list.into_iter().flat_map(u64::to_ne_bytes).collect()
}

#[test]
fn a_device_table_finds_inserted_keys() -> Result<(), TableError> {
    let options = TableOptions::new(1 << 14, 24);
    let keys: Vec<u64> = (0..10_000u64).map(|i| u64::MAX - i * 3).collect();
    let rows: Vec<u8> = keys
        .iter()
        .flat_map(|key| key.to_ne_bytes().repeat(3))
        .collect();
    let Some(gpu) = gpu() else {
        // The CPU replaces it.
        let table = GpuTable::open(options)?;
        assert!(table.gpu().is_none());
        return Ok(());
    };
    let mut table = GpuTable::on_gpu(&gpu, options)?;
    table.insert_or_assign(&keys, &rows, None)?;
    assert_eq!(table.size()?, 10_000);
    let mut found = vec![0; rows.len()];
    assert!(
        table
            .find(&keys, &mut found)?
            .into_iter()
            .all(|there| there)
    );
    assert_eq!(found, rows);
    assert_eq!(table.contains(&[5, keys[7]])?, [false, true]);

    // The same rows on the device.
    let buffer = DeviceBuffer::new(&gpu, 8 + rows.len())?;
    let part = buffer.slice(8..buffer.len())?;
    assert!(table.find_missed_on_device(&keys, &part)?.is_empty());
    buffer.read(8, &mut found)?;
    assert_eq!(found, rows);
    let refused = table.find_missed_on_device(&keys[1..], &part).unwrap_err();
    assert!(matches!(refused, TableError::Length { .. }), "{refused}");
    Ok(())
}

/// Everything that a table has, by key.
fn entries_of(table: &mut GpuTable) -> Result<BTreeMap<u64, (u64, Vec<u8>)>, TableError> {
    let row_bytes = table.options().row_bytes as usize;
    let mut all = BTreeMap::new();
    table.for_each(|entries| {
        let rows = entries.rows.chunks_exact(row_bytes);
        for ((key, score), row) in entries.keys.iter().zip(&entries.scores).zip(rows) {
            assert!(all.insert(*key, (*score, row.to_vec())).is_none());
        }
        Ok::<(), TableError>(())
    })?;
    Ok(all)
}

#[test]
fn a_full_table_grows_on_the_device_and_keeps_every_entry() -> Result<(), TableError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    for (width, row_bytes) in [(Width::W128, 24), (Width::W16, 6)] {
        let options = TableOptions::new(1 << 16, row_bytes)
            .width(width)
            .evict_strategy(GpuEvictStrategy::Customized)
            .device_row_bytes_max(1 << 18);
        let mut table = GpuTable::on_gpu(&gpu, options)?;
        let mut first = 0;
        while table.size()? < table.capacity() {
            let keys: Vec<u64> = (first..first + (1 << 18)).collect();
            first += 1 << 18;
            let scores: Vec<u64> = keys.iter().map(|key| key * 7919 % 100_003).collect();
            let row = |key: &u64| {
                key.to_ne_bytes()
                    .into_iter()
                    .cycle()
                    .take(row_bytes as usize)
            };
            let rows: Vec<u8> = keys.iter().flat_map(row).collect();
            table.insert_or_assign(&keys, &rows, Some(&scores))?;
        }
        let before = entries_of(&mut table)?;
        let pinned: Vec<u64> = before.keys().copied().take(10).collect();
        assert_eq!(table.lock(&pinned)?, [Status::Found; 10]);
        table.set_max_capacity(1 << 20)?;
        table.reserve(table.capacity() + 1)?;
        assert!(entries_of(&mut table)? == before, "{width:?}");
        assert_eq!(table.erase(&pinned)?, [Status::Pinned; 10]);
    }
    Ok(())
}

#[test]
fn bags_in_device_memory_are_pooled_on_a_stream() -> Result<(), TableError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let dim = 300;
    let format = RowFormat::QUint8Rowwise;
    let options = TableOptions::new(1 << 12, format.row_bytes(dim));
    let (mut table, mut cpu) = (GpuTable::on_gpu(&gpu, options)?, GpuTable::on_cpu(options)?);
    let keys: Vec<u64> = (0..500).collect();
    let row = |key: u64| -> Vec<u8> {
        let parameters = [key as f32 / 7.0, -3.0].map(f32::to_le_bytes).concat();
        let values = (0..dim).map(|at| (key * 7 + at) as u8);
        values.chain(parameters).collect()
    };
    let rows: Vec<u8> = keys.iter().copied().flat_map(row).collect();
    for table in [&mut table, &mut cpu] {
        table.insert_or_assign(&keys, &rows, None)?;
    }
    let keys: Vec<u64> = (0..200).map(|at| at * at % 600).collect();
    let offsets = [0, 90, 90, 200];
    let pooling = PoolingOptions::new(format)
        .pooling(Pooling::Mean)
        .output(PooledDtype::F16);
    let (mut expected, mut expected_found) = (vec![0; 3 * dim as usize * 2], [0; 3]);
    let bags = Bags::new(&keys, &offsets);
    cpu.find_pooled(&bags, &pooling, &mut expected, &mut expected_found)?;

    let keys = DeviceBuffer::from_slice(&gpu, &words(keys))?;
    let offsets = DeviceBuffer::from_slice(&gpu, &words(offsets))?;
    let rows_out = DeviceBuffer::new(&gpu, expected.len())?;
    let found = DeviceBuffer::new(&gpu, 12)?;
    let sums = DeviceBuffer::new(&gpu, table.pooled_sums_bytes(&pooling, 3)? as usize)?;
    let batch = PooledBatch {
        count: 200,
        count_at: None,
        keys: &keys,
        bags: 3,
        offsets: &offsets,
        weights: None,
        rows_out: &rows_out,
        found_out: Some(&found),
        sums: Some(&sums),
    };
    let without = PooledBatch {
        sums: None,
        ..batch
    };
    let refused = table.pooled_command(&pooling, &without, false).unwrap_err();
    assert!(matches!(refused, TableError::Missing { .. }), "{refused}");
    let stream = Stream::new(&gpu)?;
    for concurrent_writers in [false, true] {
        let command = table.pooled_command(&pooling, &batch, concurrent_writers)?;
        gpu.scope(|scope| scope.enqueue(&stream, &command))?;
        assert_eq!(rows_out.to_vec()?, expected);
        let counts: Vec<u8> = expected_found
            .into_iter()
            .flat_map(u32::to_ne_bytes)
            .collect();
        assert_eq!(found.to_vec()?, counts);
        rows_out.fill(0)?;
    }
    Ok(())
}

#[test]
fn a_captured_lookup_sees_the_keys_and_the_table_of_each_replay() -> Result<(), TableError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let table = GpuTable::on_gpu(&gpu, TableOptions::new(1 << 12, 16))?;
    let stream = Stream::new(&gpu)?;
    let keys = DeviceBuffer::from_slice(&gpu, &words(0..100))?;
    let rows = DeviceBuffer::from_slice(&gpu, &[3; 1600])?;
    let status = DeviceBuffer::from_slice(&gpu, &[9; 100])?;
    let insert = DeviceBatch {
        rows: Some(&rows),
        ..DeviceBatch::new(&keys, 100)
    };
    let insert = table.command(Operation::InsertOrAssign, &insert)?;
    let find = DeviceBatch {
        status_out: Some(&status),
        ..DeviceBatch::new(&keys, 100)
    };
    let find = table.lookup_command(LookupMode::ByLoad, &find, true)?;
    let graph = Graph::capture(&stream, &[&find])?;
    let replay = || gpu.scope(|scope| scope.enqueue(&stream, &graph));
    replay()?;
    assert_eq!(status.to_vec()?, [0; 100]);
    gpu.scope(|scope| scope.enqueue(&stream, &insert))?;
    replay()?;
    assert_eq!(status.to_vec()?, [1; 100]);
    keys.write(0, &words(90..190))?;
    replay()?;
    assert_eq!(status.to_vec()?, [[1; 10].as_slice(), &[0; 90]].concat());
    Ok(())
}

/// Addresses of device memory and of pinned host memory, on the default stream and on another.
#[test]
fn operations_by_address_have_the_rows_of_those_by_slice() -> Result<(), TableError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let table = StreamTable::new(GpuTable::on_gpu(&gpu, TableOptions::new(1 << 12, 13))?);
    let keys: Vec<u64> = (0..1000).map(|i| u64::MAX - i * i).collect();
    let rows: Vec<u8> = (0..13 * 1000).map(|i| (i % 251) as u8).collect();
    let d_keys = DeviceBuffer::from_slice(&gpu, &words(keys.iter().copied()))?;
    // Rows that begin at an odd address.
    let mut h_rows = PinnedBuffer::new(&gpu, 13 * 1000 + 1)?;
    h_rows.as_mut_slice()[1..].copy_from_slice(&rows);
    let d_out = DeviceBuffer::from_slice(&gpu, &[9; 13 * 1000])?;
    let d_status = DeviceBuffer::from_slice(&gpu, &[9; 1000])?;
    let batch = RawBatch {
        rows: Some(h_rows.as_slice().as_ptr() as u64 + 1),
        rows_out: Some(d_out.address()),
        status_out: Some(d_status.address()),
        ..RawBatch::new(d_keys.address(), 1000)
    };
    let default_stream = std::ptr::null_mut();
    // SAFETY: the arrays have 1000 elements each and outlive the calls, whose work `size` and the
    // copies on the same stream wait for.
    unsafe {
        table.apply(Operation::InsertOrAssign, &batch, default_stream)?;
        assert_eq!(table.size(default_stream)?, 1000);
        table.lookup(LookupMode::ByLoad, &batch, true, default_stream)?;
        let mut out = vec![0; rows.len()];
        table.copy_out(d_out.address(), &mut out, default_stream)?;
        assert_eq!(out, rows);
        let pageable = RawBatch {
            keys: keys.as_ptr() as u64,
            ..batch
        };
        let refused = table.lookup(LookupMode::ByLoad, &pageable, true, default_stream);
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, TableError::Gpu(GpuError::WrongMemory { .. })),
            "{refused}"
        );
    }
    assert_eq!(d_status.to_vec()?, [1; 1000]);
    Ok(())
}
