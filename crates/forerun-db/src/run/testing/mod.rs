//! The entry points of the fuzz targets. `crate::testing` has what unit tests share.

pub mod fuzz;
