//! Tests the memory orders that the table's kernels rely on, on a device. Without one, nothing
//! runs.

use forerun_gpu::study::LitmusTest;
use forerun_gpu::{Gpu, GpuError};

#[test]
fn no_reader_sees_what_the_orders_forbid() -> Result<(), GpuError> {
    let gpu = match Gpu::open(0) {
        Err(error) if error.is_absent() => {
            eprintln!("litmus tests: {error}: NOT RUN");
            return Ok(());
        }
        opened => opened?,
    };
    for test in LitmusTest::ALL {
        let seen = test.run(&gpu, true, 1 << 18, 100)?;
        let without = test.run(&gpu, false, 1 << 18, 100)?;
        // Not every device shows this outcome, so the test does not require it.
        eprintln!("{test:?}: {seen:?}; without the orders: {without:?}");
        assert_eq!(seen.forbidden, 0, "{test:?}: {seen:?}");
        let cells = 100 << 18;
        let all = seen.nothing + seen.all + seen.active;
        assert_eq!(all, cells, "{test:?}: {seen:?}");
        // The writers and the readers must have run at the same time.
        let met = seen.nothing + seen.active != 0 && seen.all != 0;
        assert!(met, "{test:?}: {seen:?}");
    }
    Ok(())
}
