//! The shapes, each with its clients.

mod hot_keyspace;
mod nightly_load;
mod overwrite;
mod queue;
mod range_deletes;
mod time_series;

use super::opened_store::{Measured, OpenedStore};
use super::shape::Shape;
use anyhow::Result;

/// Loads the store and runs its shape.
///
/// # Errors
/// A failed call of the store, or a wrong answer.
pub(super) fn run(opened: &OpenedStore<'_>) -> Result<Measured> {
    match opened.shape {
        Shape::HotKeyspace => hot_keyspace::run(opened),
        Shape::NightlyLoad => nightly_load::run(opened),
        Shape::Queue => queue::run(opened),
        Shape::RangeDeletes => range_deletes::run(opened),
        Shape::TimeSeries => time_series::run(opened),
        Shape::Overwrite => overwrite::run(opened),
    }
}
