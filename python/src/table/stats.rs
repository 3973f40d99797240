//! A table's metrics for Python.

use forerun::format_size;
use forerun::table::Stats;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::stats;

pub(super) fn dict<'py>(py: Python<'py>, table: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = stats::dict(py, table)?;
    // What follows from several metrics is a method in Rust.
    dict.set_item("memory_bytes", table.memory_bytes())?;
    dict.set_item("found_bytes", table.found_bytes())?;
    dict.set_item("moved_bytes", table.moved_bytes())?;
    Ok(dict)
}

/// What limits a table's memory.
#[derive(Clone, Copy)]
pub(super) enum MemoryLimit {
    /// The argument `memory`, in bytes.
    Budget(u64),
    /// The limits of its parts, whose sum is the table's.
    Parts,
}

/// The metrics of a table's `repr`: its memory and capacity if they are limited, and what its tiers
/// hold.
pub(super) fn shown(stats: &Stats, limit: Option<MemoryLimit>) -> Vec<String> {
    let mut shown = Vec::new();
    if let Some(limit) = limit {
        let bytes = match limit {
            MemoryLimit::Budget(bytes) => bytes,
            MemoryLimit::Parts => stats.memory_limit_bytes,
        };
        shown.push(format!("memory={:?}", format_size(bytes)));
        shown.push(format!("host_capacity={}", stats.host_capacity_rows));
    }
    shown.push(format!("host_rows={}", stats.host_rows));
    if let Some(device) = &stats.device {
        let name = if device.is_gpu { &device.name } else { "cpu" };
        shown.push(format!("device={name:?}"));
        shown.push(format!("device_rows={}", device.rows));
    }
    shown
}
