//! What unit tests share.

pub(crate) mod runs;
pub(crate) mod small_cache;
pub(crate) mod tree_fixture;
pub(crate) mod version_list;
