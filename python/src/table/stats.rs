//! A table's figures for Python.

use forerun::format_size;
use forerun::table::Stats;
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(super) fn figures(py: Python<'_>, stats: Stats) -> PyResult<Bound<'_, PyDict>> {
    let figures = PyDict::new(py);
    let (device, store) = (stats.device.as_ref(), stats.store.as_ref());
    for (name, figure) in [
        ("find_batches", stats.counts.find_batches),
        ("find_keys", stats.counts.find_keys),
        ("device_hits", stats.counts.device_hits),
        ("host_hits", stats.counts.host_hits),
        ("store_hits", stats.counts.store_hits),
        ("misses", stats.counts.misses),
        ("failed_keys", stats.counts.failed_keys),
        ("written_rows", stats.counts.written_rows),
        ("promoted_rows", stats.counts.promoted_rows),
        ("demoted_rows", stats.counts.demoted_rows),
        ("device_promoted_rows", stats.counts.device_promoted_rows),
        ("device_demoted_rows", stats.counts.device_demoted_rows),
        ("device_rows", device.map_or(0, |device| device.rows)),
        (
            "device_capacity_rows",
            device.map_or(0, |device| device.capacity_rows),
        ),
        ("host_rows", stats.host_rows),
        ("host_capacity_rows", stats.host_capacity_rows),
        ("host_bytes", stats.host_bytes),
        ("host_used_bytes", stats.host_used_bytes),
        ("memory_bytes", stats.memory_bytes()),
        ("memory_limit_bytes", stats.memory_limit_bytes),
        (
            "cache_used_bytes",
            store.map_or(0, |store| store.cache.used_bytes as u64),
        ),
        (
            "cache_limit_bytes",
            store.map_or(0, |store| store.cache.capacity_bytes as u64),
        ),
        (
            "memtables_used_bytes",
            store.map_or(0, |store| store.memtables_used_bytes as u64),
        ),
        (
            "memtables_limit_bytes",
            store.map_or(0, |store| store.memtables_limit_bytes as u64),
        ),
        ("found_bytes", stats.found_bytes()),
        ("moved_bytes", stats.moved_bytes()),
        ("find_p50_ns", stats.find.p50_ns),
        ("find_p99_ns", stats.find.p99_ns),
    ] {
        figures.set_item(name, figure)?;
    }
    Ok(figures)
}

/// The figures of a table's `repr`: its memory and capacity if they are limited, and what its tiers
/// hold.
pub(super) fn shown(stats: &Stats, has_limit: bool) -> Vec<String> {
    let mut shown = Vec::new();
    if has_limit {
        let limit = format_size(stats.memory_limit_bytes);
        shown.push(format!("memory={limit:?}"));
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
