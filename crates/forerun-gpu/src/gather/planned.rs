//! A request that was checked, and its kernel, before its tables of layers have a place.
//!
//! ```text
//!   request ── check ──> Checked ── plan, kernel ──> Planned ── place_tables ──> ready to launch
//! ```

use super::known_memory::Locate;
use super::launch_checks::{Checked, Target, check};
use super::params::GatherParams;
use super::plan::{Plan, plan};
use super::request::Request;
use crate::driver::{Kernel, Launch, Stream};
use crate::{Gpu, GpuError};

/// A copy on a device. Tables that have no place yet must be placed before the launch.
pub(super) struct Planned {
    gpu: Gpu,
    /// `None` if there is nothing to do.
    kernel: Option<Kernel>,
    pub(super) params: GatherParams,
    pub(super) plan: Plan,
    /// Row 0 of each layer, unless the layers are equally far apart.
    source_table: Vec<u64>,
    /// The same of the destination.
    destination_table: Vec<u64>,
}

impl Planned {
    pub(super) fn new(
        gpu: &Gpu,
        request: &Request,
        memory: &dyn Locate,
        target: Target,
    ) -> Result<Planned, GpuError> {
        let checked = check(request, memory, target)?;
        Planned::of_checked(gpu, request, checked)
    }

    /// Chooses the kernel of a request that was checked.
    pub(super) fn of_checked(
        gpu: &Gpu,
        request: &Request,
        checked: Checked,
    ) -> Result<Planned, GpuError> {
        let work = checked.work(request);
        let plan = plan(&work, &request.spec.kernel, gpu.info())?;
        let kernel = match plan.blocks {
            0 => None,
            _ => Some(gpu.kernel(plan.kernel)?),
        };
        if let Some(kernel) = kernel.filter(|_| plan.shared_bytes > 48 << 10) {
            let _current = gpu.bind()?;
            kernel.allow_shared(gpu.shared_bytes_max()?)?;
        }
        let mut params = checked.params;
        params.stage_bytes = plan.stage_bytes;
        let mut source_table = checked.source_table;
        if let Some(step) = even_step(&source_table) {
            (params.source, params.source_layer_bytes) = (source_table[0], step);
            source_table.clear();
        }
        let mut destination_table = checked.destination_table;
        if let Some(step) = even_step(&destination_table) {
            (params.destination, params.destination_layer_bytes) = (destination_table[0], step);
            destination_table.clear();
        }
        Ok(Planned {
            gpu: gpu.clone(),
            kernel,
            params,
            plan,
            source_table,
            destination_table,
        })
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Whether there is nothing to launch.
    pub(super) fn is_empty(&self) -> bool {
        self.kernel.is_none()
    }

    /// Bytes of the tables that need a place.
    pub(super) fn table_bytes(&self) -> usize {
        size_of_val(&self.source_table[..]) + size_of_val(&self.destination_table[..])
    }

    /// Gives each table its place. `place` returns the address at which the device reads it.
    pub(super) fn place_tables<E>(
        &mut self,
        mut place: impl FnMut(&[u64]) -> Result<u64, E>,
    ) -> Result<(), E> {
        if !self.source_table.is_empty() {
            self.params.source_table = place(&self.source_table)?;
        }
        if !self.destination_table.is_empty() {
            self.params.destination_table = place(&self.destination_table)?;
        }
        Ok(())
    }

    /// Enqueues the launch.
    ///
    /// # Safety
    /// The rules of [`Command::enqueue`](crate::Command::enqueue) for all memory of the request and
    /// of the tables, which must have been placed.
    pub(super) unsafe fn launch(&self, stream: &Stream) -> Result<(), GpuError> {
        let Some(kernel) = self.kernel else {
            return Ok(());
        };
        let launch = Launch {
            blocks: self.plan.blocks,
            threads: self.plan.threads,
            shared_bytes: self.plan.shared_bytes,
        };
        // SAFETY: the argument has the kernel's layout, which both sides assert, and comes from
        // `check`, which verified the place of everything it refers to. The kernel touches nothing
        // else, whatever the indices are. The caller guarantees that the memory exists.
        unsafe { kernel.launch(stream, launch, &self.params) }
    }
}

/// The step from each address to the next, if it is the same for all. Such layers need no table;
/// the keys and the values of one layer never do.
fn even_step(addresses: &[u64]) -> Option<i64> {
    let (&first, rest) = addresses.split_first()?;
    let step = rest.first().map_or(0, |second| second.wrapping_sub(first));
    let is_even = |pair: &[u64]| pair[1].wrapping_sub(pair[0]) == step;
    addresses.windows(2).all(is_even).then_some(step as i64)
}

#[cfg(test)]
mod tests {
    use super::even_step;

    #[test]
    fn layers_at_equal_distances_need_no_table() {
        assert_eq!(even_step(&[]), None);
        assert_eq!(even_step(&[7]), Some(0));
        assert_eq!(even_step(&[100, 30]), Some(-70));
        assert_eq!(even_step(&[30, 100, 170]), Some(70));
        assert_eq!(even_step(&[30, 100, 171]), None);
    }
}
