//! Writes that are applied once: see `forerun::table::Write`.

use std::time::Duration;

use forerun::table::{Update, Write, WriteId};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::Table;
use crate::errors::{invalid, table_exception, unknown};
use crate::interrupt;
use crate::new_objects::collected;
use crate::numbers::Numbers;

/// Sequence, keys, flags of the keys that are applied, keys of all writes of the client.
pub(super) type AppliedParts<'py> = (u64, usize, Bound<'py, PyArray1<u8>>, u64);

fn client_of(client: &Bound<'_, PyBytes>) -> PyResult<u128> {
    let bytes = client.as_bytes().as_array();
    let bytes = bytes.ok_or_else(|| invalid("`client` must have 16 bytes"))?;
    Ok(u128::from_be_bytes(*bytes))
}

fn flags<'py>(py: Python<'py>, found: &[bool]) -> Bound<'py, PyArray1<u8>> {
    PyArray1::from_iter(py, found.iter().map(|&found| u8::from(found)))
}

pub(super) fn write<'py>(
    table: &Table,
    client: &Bound<'py, PyBytes>,
    sequence: u64,
    op: &str,
    keys: &Bound<'py, PyAny>,
    rows: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let py = client.py();
    let client = client_of(client)?;
    let id = WriteId { client, sequence };
    let (open, keys) = (table.open()?, Numbers::new(keys)?);
    let mut found = collected(std::iter::repeat_n(false, keys.len()))?;
    match (op, rows) {
        ("erase", None) => {
            let keys = keys.as_slice()?;
            let erase = || open.write_once(id, keys, Write::Erase, &mut found);
            interrupt::detach(py, "erasing rows", erase).map_err(table_exception)?;
        }
        ("insert" | "assign" | "add_at", Some(rows)) => {
            table.with_rows(&keys, rows, |keys, rows| {
                let write = match op {
                    "insert" => Write::Insert(rows),
                    "assign" => Write::Update(rows, Update::Assign),
                    _ => Write::Update(rows, Update::Add),
                };
                open.write_once(id, keys, write, &mut found)
            })?;
        }
        ("insert" | "assign" | "add_at", None) => {
            return Err(invalid(format!("`rows` is missing: {op} needs rows")));
        }
        ("erase", Some(_)) => return Err(invalid("`rows` is superfluous: erase takes none")),
        (other, _) => return Err(unknown("op", other, "insert, assign, add_at, erase")),
    }
    Ok(flags(py, &found))
}

pub(super) fn applied<'py>(
    table: &Table,
    client: &Bound<'py, PyBytes>,
) -> PyResult<Option<AppliedParts<'py>>> {
    let py = client.py();
    let (open, client) = (table.open()?, client_of(client)?);
    let applied = py
        .detach(|| open.applied(client))
        .map_err(table_exception)?;
    Ok(applied.map(|applied| {
        let found = flags(py, &applied.found);
        (applied.sequence, applied.keys, found, applied.keys_in_all)
    }))
}

pub(super) fn forget(table: &Table, client: &Bound<'_, PyBytes>) -> PyResult<bool> {
    let (open, id) = (table.open()?, client_of(client)?);
    let forget = || open.forget_client(id);
    client.py().detach(forget).map_err(table_exception)
}

pub(super) fn forget_old(table: &Table, py: Python<'_>, seconds: u64) -> PyResult<usize> {
    let open = table.open()?;
    let forget = || open.forget_clients(Duration::from_secs(seconds));
    py.detach(forget).map_err(table_exception)
}
