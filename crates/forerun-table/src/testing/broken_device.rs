//! A device on which nothing runs, for tests.

use crate::device_tier::Device;
use crate::evict_strategy::EvictStrategy;
use crate::options::Policies;
use forerun_db::Background;
use forerun_gpu::table::params::TableOp;
use forerun_gpu::table::{Backend, BufferKind, GpuTable, TableError, TableLaunch, TableOptions};
use forerun_gpu::{Gpu, GpuError};
use std::sync::Arc;

struct Broken;

impl Backend for Broken {
    fn allocate(&self, _: u64, _: BufferKind) -> Result<u64, TableError> {
        Ok(4096)
    }
    fn free(&self, _: u64) {}
    fn write(&self, _: u64, _: &[u8]) -> Result<(), TableError> {
        Ok(())
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), TableError> {
        Ok(())
    }
    fn launch(&self, _: TableLaunch, _: &TableOp) -> Result<(), TableError> {
        Err(GpuError::NoDevice.into())
    }
    fn blocks_max(&self) -> u32 {
        1
    }
    fn gpu(&self) -> Option<&Gpu> {
        None
    }
}

/// A tier that fails at the first operation.
pub(crate) fn broken(row_bytes: u64) -> Device {
    tier_on(Arc::new(Broken), row_bytes)
}

/// A tier on this backend.
pub(crate) fn tier_on(backend: Arc<dyn Backend + Sync>, row_bytes: u64) -> Device {
    let options = TableOptions::new(100, row_bytes);
    let table = GpuTable::on(backend, options).expect("nothing is launched yet");
    Device::new(table, &policies()).expect("an admission filter is small")
}

/// Policies of a tier.
pub(crate) fn policies() -> Policies {
    Policies {
        evict_strategy: EvictStrategy::Lru,
        admission: Default::default(),
        promotion: Default::default(),
        writes: Default::default(),
        background: Background::Caller,
        when_full: Default::default(),
    }
}
