//! Tests how the crate calls the driver, with a fake driver that needs no device.

#![cfg(target_os = "linux")]

#[path = "testing/fake_calls.rs"]
mod fake_calls;
#[path = "testing/fake_driver.rs"]
mod fake_driver;

use fake_calls::{calls, current, enter, faults, modules, registered};
use fake_driver::has_fake_driver;
use forerun_gpu::gather::{
    CopySpec, DeviceCopyOptions, DevicePairs, IndexType, Layers, RowLayout, gather,
};
use forerun_gpu::table::{GpuTable, TableOptions};
use forerun_gpu::{
    DeviceBuffer, Event, Gpu, GpuError, Graph, HostMemory, Pages, Piece, PinnedBuffer, Stream,
    Transfer,
};

/// Everything that this crate does with a device, drops included.
fn use_everything(gpu: &Gpu) -> Result<(), GpuError> {
    gpu.synchronize()?;
    let mut host = PinnedBuffer::new(gpu, 64 * 16)?;
    let device = DeviceBuffer::from_slice(gpu, &[1; 64 * 16])?;
    device.fill(2)?;
    assert_eq!(device.to_vec()?, [2; 64 * 16]);
    let (stream, urgent) = (Stream::new(gpu)?, Stream::high_priority(gpu)?);
    let (start, end) = (Event::new(gpu)?, Event::new(gpu)?);
    stream.record(&start)?;
    stream.record(&end)?;
    urgent.wait(&end)?;
    assert!(end.is_complete()?);
    end.elapsed_since(&start)?;
    let piece = Piece {
        host_offset: 0,
        device_offset: 0,
        len: 64,
    };
    let back = Transfer::to_host(&device, &mut host, piece)?;
    gpu.scope(|scope| scope.enqueue(&stream, &back))?;
    drop(back);
    let indices = DeviceBuffer::from_slice(gpu, &[0; 16])?;
    let pairs = DevicePairs::interleaved(&indices, 0, IndexType::I32, &[2, 2])?;
    let copy = gather(
        &host,
        &device,
        &CopySpec::dense(64, 16, 16),
        &pairs,
        &DeviceCopyOptions::default(),
    )?;
    let graph = Graph::capture(&stream, &[&copy])?;
    gpu.scope(|scope| {
        scope.enqueue(&stream, &copy)?;
        scope.enqueue(&stream, &graph)
    })?;
    let options = TableOptions::new(256, 16);
    let table = GpuTable::on_gpu(gpu, options).expect("the fake driver has memory");
    table.size().expect("it is read");
    Ok(())
}

#[test]
fn the_current_device_of_a_thread_stays_what_it_was() {
    if !has_fake_driver("the_current_device_of_a_thread_stays_what_it_was", &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    assert!(current().is_null(), "opening a device makes it current");
    use_everything(&gpu).unwrap();
    assert!(current().is_null());

    let other = enter(1);
    let gpu = Gpu::open(0).unwrap();
    assert_eq!(current(), other);
    use_everything(&gpu).unwrap();
    assert_eq!(current(), other);
    // Errors restore it, too.
    assert!(
        DeviceBuffer::from_slice(&gpu, &[1])
            .unwrap()
            .write(1, &[2])
            .is_err()
    );
    drop(gpu);
    assert_eq!(current(), other);
}

#[test]
fn a_device_loads_its_kernels_once_and_the_last_handle_unloads_them() {
    let name = "a_device_loads_its_kernels_once_and_the_last_handle_unloads_them";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let options = TableOptions::new(256, 16);
    let find = |gpu: &Gpu| {
        let table = GpuTable::on_gpu(gpu, options).unwrap();
        table.contains(&[1, 2, 3]).unwrap();
    };
    for _ in 0..3 {
        let first = Gpu::open(0).unwrap();
        assert_eq!(modules(), 0, "nothing is loaded before it is used");
        find(&first);
        let second = Gpu::open(0).unwrap();
        find(&second);
        let other = Gpu::open(1).unwrap();
        find(&other);
        assert_eq!(modules(), 2, "one for each device");
        drop(first);
        find(&second);
        drop((second, other));
        assert_eq!(modules(), 0);
    }
    assert_eq!(faults(), "");
}

#[test]
fn a_pinned_buffer_is_on_huge_pages_if_the_kernel_grants_them() {
    if !has_fake_driver(
        "a_pinned_buffer_is_on_huge_pages_if_the_kernel_grants_them",
        &[],
    ) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let len = 8 << 20;
    let mut buffer = PinnedBuffer::with_pages(&gpu, len, Pages::Huge).unwrap();
    assert_eq!((buffer.len(), buffer.address() % (2 << 20)), (len, 0));
    assert_eq!(buffer.device_address(), buffer.address());
    assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
    buffer.as_mut_slice()[len - 1] = 7;
    assert_eq!(buffer.as_slice()[len - 1], 7);
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let granted = setting.is_ok_and(|text| !text.contains("[never]"));
    let huge = buffer.huge_bytes();
    println!("{huge:?} of {len} bytes on huge pages");
    assert!(!granted || huge.is_some_and(|bytes| bytes <= len));
    drop(buffer);

    let small = PinnedBuffer::with_pages(&gpu, 100, Pages::Small).unwrap();
    assert_eq!((small.len(), small.huge_bytes()), (100, None));
    let empty = PinnedBuffer::with_pages(&gpu, 0, Pages::Huge).unwrap();
    assert!(empty.as_slice().is_empty());
    // The fake driver counts what is registered.
    assert_eq!(registered(), 1);
    drop(empty);
    assert_eq!(registered(), 0);
}

#[test]
fn keys_and_values_of_a_layer_need_no_table_on_the_device() {
    if !has_fake_driver(
        "keys_and_values_of_a_layer_need_no_table_on_the_device",
        &[],
    ) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    let host = PinnedBuffer::new(&gpu, 1 << 12).unwrap();
    let device = DeviceBuffer::new(&gpu, 1 << 12).unwrap();
    let indices = DeviceBuffer::from_slice(&gpu, &[0; 16]).unwrap();
    let of_copy = |offsets_bytes: Vec<u64>| {
        let layers = offsets_bytes.len() as u32;
        let layout = RowLayout::dense(8, 16).layers(Layers::Table { offsets_bytes });
        let spec = CopySpec::dense(16, 0, 0)
            .layers(layers)
            .host(layout.clone())
            .device(layout);
        let pairs = DevicePairs::interleaved(&indices, 0, IndexType::I32, &[2, 2]).unwrap();
        calls();
        let copy = gather(&host, &device, &spec, &pairs, &DeviceCopyOptions::default()).unwrap();
        gpu.scope(|scope| scope.enqueue(&stream, &copy)).unwrap();
        let calls = calls();
        let no_waits = calls.split_whitespace().filter(|call| *call != "wait");
        no_waits.collect::<Vec<_>>().join(" ")
    };
    let (even, uneven) = (of_copy(vec![1024, 128]), of_copy(vec![1024, 128, 512]));
    assert_eq!(even, "launch");
    assert_eq!(uneven, "in in launch");
}

#[cfg(feature = "study")]
#[test]
fn a_smaller_copy_leaves_a_larger_one_its_shared_memory() {
    use forerun_gpu::gather::{KernelVersion, RowCopy};

    if !has_fake_driver("a_smaller_copy_leaves_a_larger_one_its_shared_memory", &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    let host = PinnedBuffer::new(&gpu, 1 << 20).unwrap();
    let device = DeviceBuffer::new(&gpu, 1 << 20).unwrap();
    let indices = DeviceBuffer::from_slice(&gpu, &[0; 16]).unwrap();
    let copy = |row_bytes: u64| -> RowCopy<'_> {
        let mut spec = CopySpec::dense(row_bytes, 8, 8);
        spec.kernel = spec.kernel.version(KernelVersion::V6);
        let pairs = DevicePairs::interleaved(&indices, 0, IndexType::I32, &[2, 2]).unwrap();
        gather(&host, &device, &spec, &pairs, &DeviceCopyOptions::default()).unwrap()
    };
    let large = copy(1 << 11);
    let small = copy(48);
    let sizes = [&large, &small].map(|copy| copy.plan().shared_bytes);
    assert!(sizes[0] > sizes[1] && sizes[1] > 48 << 10, "{sizes:?}");
    assert_eq!(large.plan().kernel, small.plan().kernel);
    for copy in [&large, &small] {
        gpu.scope(|scope| scope.enqueue(&stream, copy)).unwrap();
    }
}

#[test]
fn a_host_batch_is_one_copy_in_one_launch_one_copy_out_and_one_wait() {
    if !has_fake_driver(
        "a_host_batch_is_one_copy_in_one_launch_one_copy_out_and_one_wait",
        &[],
    ) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let mut table = GpuTable::on_gpu(&gpu, TableOptions::new(4096, 16)).unwrap();
    let keys: Vec<u64> = (0..1024).collect();
    let mut rows = vec![7; 1024 * 16];
    // The first lookup and the first write load their kernels and allocate.
    table.find(&keys, &mut rows).unwrap();
    table.insert_or_assign(&keys, &rows, None).unwrap();
    for _ in 0..2 {
        calls();
        table.find(&keys, &mut rows).unwrap();
        assert_eq!(calls(), "in launch out wait");
    }
    // The fake driver runs no kernels, so no key was found, and the rows are unchanged.
    assert!(rows.iter().all(|byte| *byte == 7));
    table.find_ptr(&keys).unwrap();
    assert_eq!(calls(), "in launch out wait");
    table.contains(&keys).unwrap();
    assert_eq!(calls(), "in launch out wait");
    table.find_missed(&keys, &mut rows).unwrap();
    assert_eq!(calls(), "in launch out wait");
    table.insert_or_assign(&keys, &rows, None).unwrap();
    assert_eq!(calls(), "in launch out wait");
}

#[test]
fn a_table_grows_without_its_rows_passing_through_the_host() {
    let name = "a_table_grows_without_its_rows_passing_through_the_host";
    if !has_fake_driver(name, &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let options = TableOptions::new(4096, 16).max_capacity(1 << 16);
    let mut table = GpuTable::on_gpu(&gpu, options).unwrap();
    calls();
    table.reserve(8192).unwrap();
    let calls = calls();
    let no_waits = calls.split_whitespace().filter(|call| *call != "wait");
    let no_waits = no_waits.collect::<Vec<_>>().join(" ");
    // A count of zero, the export, the insertion.
    assert!(no_waits.contains("in launch launch"), "{calls}");
    // The number of pinned entries, and those of both tables' entries.
    assert_eq!(calls.matches("out").count(), 3, "{calls}");
}

#[cfg(feature = "study")]
#[test]
fn the_pipeline_is_refused_beside_writers() {
    use forerun_gpu::table::{DeviceBatch, LookupMode, TableError};

    if !has_fake_driver("the_pipeline_is_refused_beside_writers", &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let table = GpuTable::on_gpu(&gpu, TableOptions::new(4096, 16)).unwrap();
    let keys = DeviceBuffer::from_slice(&gpu, &[0; 64]).unwrap();
    let rows = DeviceBuffer::new(&gpu, 8 * 16).unwrap();
    let batch = DeviceBatch::new(&keys, 8);
    let with_rows = DeviceBatch {
        rows_out: Some(&rows),
        ..DeviceBatch::new(&keys, 8)
    };
    for lookup in LookupMode::ALL {
        let is_pipeline = !lookup.may_run_beside_writers();
        table.lookup_command(lookup, &batch, false).unwrap();
        // Lookups of rows always use tiles.
        table.lookup_command(lookup, &with_rows, true).unwrap();
        match table.lookup_command(lookup, &batch, true) {
            Ok(_) => assert!(!is_pipeline, "{lookup:?}"),
            Err(error @ TableError::BesideWriters { .. }) => {
                assert!(
                    is_pipeline && error.to_string().contains(lookup.name()),
                    "{error}"
                );
            }
            Err(error) => panic!("{error}"),
        }
    }
}
