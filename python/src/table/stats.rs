//! A table's metrics for Python.

use forerun::machine::format_size;
use forerun::table::{DeviceStats, TableStats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::Table;
use crate::stats;

pub(super) fn dict<'py>(py: Python<'py>, table: &TableStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = stats::dict(py, table)?;
    // What follows from several metrics is a method in Rust.
    dict.set_item("memory_bytes", table.memory_bytes())?;
    dict.set_item("found_bytes", table.found_bytes())?;
    dict.set_item("moved_bytes", table.moved_bytes())?;
    Ok(dict)
}

/// The device of a table's device tier, by name.
pub(super) fn device(device: DeviceStats) -> String {
    match device.failure {
        None if device.is_gpu => device.name,
        None => "cpu".to_owned(),
        Some(failure) => format!("{}, disabled after a failure: {failure}", device.name),
    }
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
fn shown(stats: &TableStats, limit: Option<MemoryLimit>) -> Vec<String> {
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

/// A table with its limits and the rows in its tiers, as the constructor writes it.
pub(super) fn repr(table: &Table, py: Python<'_>) -> String {
    let (dim, dtype) = (table.dim, table.dtype.name());
    let mut parts = vec![format!("dim={dim}"), format!("dtype={dtype:?}")];
    if let Some(path) = &table.path {
        parts.push(format!("path={path:?}"));
    }
    match table.open() {
        Ok(open) => {
            let stats = py.detach(|| open.stats());
            parts.extend(shown(&stats, table.limit));
        }
        Err(_) if table.is_closed() => parts.push("closed".to_owned()),
        // A forked child cannot use its parent's table.
        Err(_) => parts.push("of another process".to_owned()),
    }
    format!("forerun.Table({})", parts.join(", "))
}
