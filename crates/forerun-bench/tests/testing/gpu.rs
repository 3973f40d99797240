//! Shared code of the tests of the GPU benches.

use forerun_gpu::Gpu;

/// Whether this machine has a GPU. A GPU that cannot be used fails the test.
pub fn has_gpu() -> bool {
    match Gpu::open(0) {
        Ok(_) => true,
        Err(error) => {
            assert!(error.is_absent(), "{error}");
            false
        }
    }
}
