//! The entry points of the fuzz targets.

mod binary_fuzz;
mod multi_get_fuzz;
mod play;
mod resp_fuzz;
mod session_fuzz;
mod snapshot_fuzz;

pub use binary_fuzz::fuzz_binary;
pub use multi_get_fuzz::fuzz_multi_get;
pub use resp_fuzz::fuzz_resp;
pub use session_fuzz::fuzz_session;
pub use snapshot_fuzz::fuzz_snapshot;
