//! What unit tests share, and the entry points of the fuzz targets.

pub mod fuzz;
#[cfg(test)]
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod runs;
#[cfg(test)]
pub(crate) mod small_cache;
#[cfg(test)]
pub(crate) mod tree_fixture;
#[cfg(test)]
pub(crate) mod version_list;
