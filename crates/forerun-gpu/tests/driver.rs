//! Tests how the crate calls the driver, with a fake driver that needs no device.

#![cfg(target_os = "linux")]

#[path = "testing/fake_driver.rs"]
mod fake_driver;

use cudarc::driver::sys;
use fake_driver::has_fake_driver;
use forerun_gpu::gather::{
    CopySpec, DeviceCopyOptions, DevicePairs, IndexType, KernelVersion, RowCopy, gather,
};
use forerun_gpu::table::{DeviceBatch, GpuTable, Lookup, TableError, TableOptions};
use forerun_gpu::{
    DeviceBuffer, Event, Gpu, GpuError, Graph, Piece, PinnedBuffer, Stream, Transfer,
};

/// The copies, launches and waits since the last call, in order.
fn calls() -> String {
    type Calls = extern "C" fn() -> *const std::ffi::c_char;
    // SAFETY: the fake driver is loaded, has this function, and returns a string that ends with a
    // zero and stays until the next call.
    let text = unsafe {
        let calls = sys::culib().get::<Calls>(b"fakeCalls").unwrap();
        std::ffi::CStr::from_ptr(calls())
    };
    text.to_str().unwrap().trim_end().to_owned()
}

/// The context that is current on this thread, null for none.
fn current() -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: the fake driver is loaded and writes one handle.
    let result = unsafe { sys::cuCtxGetCurrent(&mut context) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    context
}

/// Makes the context of a device current on this thread, as another library would.
fn enter(device: i32) -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: the fake driver is loaded; it writes one handle, which stays valid.
    unsafe {
        sys::cuDevicePrimaryCtxRetain(&mut context, device);
        sys::cuCtxSetCurrent(context);
    }
    assert_eq!(current(), context);
    context
}

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
fn a_smaller_copy_leaves_a_larger_one_its_shared_memory() {
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
        spec.kernel.version = Some(KernelVersion::V6);
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
    // The first call loads the kernels and allocates.
    table.find(&keys, &mut rows).unwrap();
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
fn the_pipeline_is_refused_beside_writers() {
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
    for lookup in Lookup::ALL {
        let is_pipeline = matches!(lookup, Lookup::Pipeline | Lookup::SeedRule);
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
