#![deny(unsafe_code)]
#![allow(
    missing_docs,
    reason = "documented for Python, in forerun/_forerun.pyi"
)]
//! The Python package's extension module.
//!
//! ```text
//!   forerun/__init__.py   the names of the package: these classes, and the errors
//!   forerun/errors.py     the exceptions
//!   forerun._forerun      this: handles on the engine, arrays in and out
//! ```
//!
//! Everything that may wait (for memory, the disk, a lock) runs while other Python threads run.
//! Arrays are used in place, and keys and values that are `bytes` are not copied either.

mod arrays;
mod at_exit;
mod background_call;
mod backup_results;
mod backups;
mod batch;
mod borrows;
mod cache;
mod cache_handle;
mod cache_items;
mod cache_lookup;
mod cache_stores;
mod client;
mod copy_progress;
#[allow(unsafe_code, reason = "a GPU's tensor is an address")]
mod cuda;
mod db;
#[allow(unsafe_code, reason = "memory for DLPack's C structure")]
mod device_array;
mod device_rows;
#[allow(unsafe_code, reason = "DLPack hands over a C structure")]
mod dlpack;
mod engine_handle;
mod errors;
mod events;
mod export;
mod gather;
#[allow(unsafe_code, reason = "the arrays of a call are addresses")]
mod gpu_table;
mod host_rows;
mod hot_pool;
mod hot_pool_arguments;
#[allow(unsafe_code, reason = "a GPU's tensor is an address")]
mod hot_pool_cuda;
#[allow(
    unsafe_code,
    reason = "the memory of other libraries is given by address"
)]
mod hot_pool_tables;
#[allow(unsafe_code, reason = "a stream of other libraries is a handle")]
mod in_flight;
mod interrupt;
mod items;
mod key_range;
mod keys;
mod keyspace;
mod measure;
#[allow(
    unsafe_code,
    reason = "functions of C whose errors PyO3 and the numpy crate ignore"
)]
mod new_objects;
mod numbers;
mod numeric_arguments;
mod pairs;
#[allow(unsafe_code, reason = "functions of C that end a thread")]
mod python_calls;
mod read_source;
mod reader;
mod row_copy;
mod rows;
mod shard_batch;
mod snapshot;
mod spinner;
mod stats;
mod store_options;
mod table;
#[allow(
    unsafe_code,
    reason = "the memory of PyTorch's tensors is given by address"
)]
mod transfer;
mod versions;
mod views;

/// The module `forerun._forerun`.
// Nothing was tested with an interpreter that has no lock.
#[pyo3::pymodule(name = "_forerun", gil_used = true)]
mod module {
    #[pymodule_export]
    use crate::backup_results::{Backup, BackupList, BackupVerifyReport, RemovedBackups};
    #[pymodule_export]
    use crate::backups::Backups;
    #[pymodule_export]
    use crate::batch::WriteBatch;
    #[pymodule_export]
    use crate::cache::Cache;
    #[pymodule_export]
    use crate::cache_items::CacheItems;
    #[pymodule_export]
    use crate::client::{Client, ClientCalls, PendingCall};
    #[pymodule_export]
    use crate::db::Db;
    #[pymodule_export]
    use crate::device_array::DeviceArray;
    #[pymodule_export]
    use crate::export::{Export, TableItems};
    #[pymodule_export]
    use crate::gather::{CopyCounts, device_info, gather, out_of_range_count, scatter};
    #[pymodule_export]
    use crate::host_rows::HostRows;
    #[pymodule_export]
    use crate::hot_pool::{HotPlan, HotPool, HotPoolCounts};
    #[pymodule_export]
    use crate::items::Items;
    #[pymodule_export]
    use crate::keyspace::Keyspace;
    #[pymodule_export]
    use crate::reader::Reader;
    #[pymodule_export]
    use crate::row_copy::RowCopy;
    #[pymodule_export]
    use crate::snapshot::SnapshotView;
    #[pymodule_export]
    use crate::table::Table;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyAnyMethods as _;

        crate::new_objects::import_numpy(module.py())?;

        // For the package's benchmark. It is not in `__all__`.
        let find_seconds = pyo3::wrap_pyfunction!(crate::measure::_find_seconds, module)?;
        module.setattr("_find_seconds", find_seconds)?;
        // For `forerun.kvcacheio`.
        let transfer_rows = pyo3::wrap_pyfunction!(crate::transfer::_transfer_rows, module)?;
        module.setattr("_transfer_rows", transfer_rows)?;
        // For `forerun.gpu_table`.
        let gpu_table = module.py().get_type::<crate::gpu_table::GpuTable>();
        module.setattr("_GpuTable", gpu_table)?;
        // For `forerun.hisparse`.
        let swap_in = pyo3::wrap_pyfunction!(crate::hot_pool_tables::_swap_in, module)?;
        module.setattr("_swap_in", swap_in)?;
        let copy_planned = pyo3::wrap_pyfunction!(crate::hot_pool_tables::_copy_planned, module)?;
        module.setattr("_copy_planned", copy_planned)?;
        // For forerun.ray.
        let batch = module.py().get_type::<crate::shard_batch::ShardBatch>();
        module.setattr("_ShardBatch", batch)?;
        let buckets = pyo3::wrap_pyfunction!(crate::shard_batch::_buckets, module)?;
        module.setattr("_buckets", buckets)?;
        let size_bytes = pyo3::wrap_pyfunction!(crate::store_options::_size_bytes, module)?;
        module.setattr("_size_bytes", size_bytes)?;
        crate::at_exit::register(module)
    }

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
