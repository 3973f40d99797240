//! The entry points of the fuzz targets.

mod session_fuzz;
mod snapshot_fuzz;

pub use session_fuzz::fuzz_session;
pub use snapshot_fuzz::fuzz_snapshot;
