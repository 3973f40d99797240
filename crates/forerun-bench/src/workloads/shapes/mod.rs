//! The shapes, each with its clients.

pub(super) mod hot_keyspace;
pub(super) mod nightly_load;
pub(super) mod overwrite;
pub(super) mod queue;
pub(super) mod range_deletes;
pub(super) mod time_series;
