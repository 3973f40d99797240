//! The entry point of a fuzz target.

mod session_fuzz;

pub use session_fuzz::fuzz_session;
