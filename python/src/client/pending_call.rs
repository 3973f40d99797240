//! Calls of a client that an asyncio event loop drives: `forerun.aio`.
//!
//! ```text
//!   ClientCalls.multi_get(keys) ──> PendingCall ── fileno ──> the loop watches it
//!                                    ^  advance when it is readable, or its time is up ─┘
//!                                    └─ result: what the call of `Client` returns or raises
//! ```
//!
//! No call waits, and no thread is used. The arguments are copied, because the caller may change
//! them before the call has ended.

use std::future::Future;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};

use forerun::client::{
    Calls, CasResult, Error, EventLoop, Lookups, NewValue, Pending, Report, ServerFailure, Sink,
    WriteReport,
};
use numpy::PyArray1;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use super::Client;
use super::arguments::expiry;
use super::outcome::{check_answered, check_cleared, check_written, unanswered_of};
use super::row_sink::RowSink;
use crate::errors::{client_exception, closed, invalid, system_error};
use crate::keys::{Batch, Bytes};
use crate::new_objects::{bytes, copy_of, list_of_bytes, with_room_for};
use crate::numeric_arguments;
use crate::rows::Rows;

type Shared = Arc<forerun::client::Client>;

/// What a call returns.
enum Reply {
    Nothing,
    Flag(bool),
    Number(Option<u64>),
    Value(Option<Vec<u8>>),
    Versioned(Option<(Vec<u8>, u64)>),
    Many(Lookups, Report),
    Written(WriteReport, usize),
    Deleted(WriteReport, usize),
    Cleared(Vec<ServerFailure>),
}

enum State {
    Waits(Pending<Result<Reply, Error>>),
    HasEnded(Result<Reply, Error>),
    /// Its result was taken, or it was cancelled.
    IsOver,
}

/// A call that an event loop drives.
#[pyclass(module = "forerun")]
pub(crate) struct PendingCall {
    /// Behind a lock only because Python objects must be `Sync`.
    state: Mutex<State>,
    client: Shared,
    misses_on_failure: bool,
}

impl PendingCall {
    fn state(&mut self) -> &mut State {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PendingCall {
    /// The descriptor to watch: readable when the call can continue.
    fn fileno(&mut self) -> PyResult<i32> {
        match self.state() {
            State::Waits(pending) => Ok(pending.as_fd().as_raw_fd()),
            _ => Err(closed("call")),
        }
    }

    /// The seconds after which the call must be advanced.
    fn timeout_seconds(&mut self) -> f64 {
        match self.state() {
            State::Waits(pending) => pending.timeout().as_secs_f64(),
            _ => 0.0,
        }
    }

    /// Continues the call without waiting. Returns whether it has ended.
    fn advance(&mut self) -> PyResult<bool> {
        self.client.check_process().map_err(client_exception)?;
        let state = self.state();
        if let State::Waits(pending) = state
            && let Some(result) = pending.advance()
        {
            *state = State::HasEnded(result);
        }
        Ok(!matches!(state, State::Waits(_)))
    }

    /// Ends the call: connections on which it expects answers are closed.
    fn cancel(&mut self) {
        *self.state() = State::IsOver;
    }

    /// Returns what the call returned, once. `out` and `found` are those of `multi_get`.
    #[pyo3(signature = (out=None, found=None))]
    fn result<'py>(
        &mut self,
        py: Python<'py>,
        out: Option<&Bound<'py, PyAny>>,
        found: Option<Bound<'py, PyArray1<bool>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let misses = self.misses_on_failure;
        let state = self.state();
        if let State::Waits(_) = state {
            return Err(invalid("the call has not ended"));
        }
        let State::HasEnded(result) = std::mem::replace(state, State::IsOver) else {
            return Err(closed("call"));
        };
        let reply = match result {
            Err(Error::Interrupted) => return Err(closed("call")),
            result => result.map_err(client_exception)?,
        };
        match reply {
            Reply::Nothing => Ok(py.None().into_bound(py)),
            Reply::Flag(flag) => flag.into_bound_py_any(py),
            Reply::Number(number) => number.into_bound_py_any(py),
            Reply::Value(value) => value
                .map(|value| bytes(py, &value))
                .transpose()?
                .into_bound_py_any(py),
            Reply::Versioned(found) => found
                .map(|(value, version)| PyResult::Ok((bytes(py, &value)?, version)))
                .transpose()?
                .into_bound_py_any(py),
            Reply::Written(report, keys) => {
                check_written(report, keys)?;
                Ok(py.None().into_bound(py))
            }
            Reply::Deleted(report, keys) => {
                let deleted = report.done;
                check_written(report, keys)?;
                deleted.into_bound_py_any(py)
            }
            Reply::Cleared(failures) => {
                check_cleared(&failures)?;
                Ok(py.None().into_bound(py))
            }
            Reply::Many(values, report) => {
                let unanswered = unanswered_of(&values, &report);
                if let Some(out) = out {
                    let mut rows = Rows::new(values.len(), out, found)?;
                    let mut sink = RowSink::new(&mut rows)?;
                    for (index, value) in values.iter().enumerate() {
                        if let Some(value) = value {
                            sink.hit(index, value);
                        }
                    }
                    sink.into_unanswered()?;
                    check_answered(&report, unanswered, values.len(), misses)?;
                    return Ok(rows.into_found().into_any());
                }
                check_answered(&report, unanswered, values.len(), misses)?;
                let found = values.iter().map(|value| value.map(|value| value.data));
                Ok(list_of_bytes(py, values.len(), found)?.into_any())
            }
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid("a call has connections and cannot be pickled"))
    }
}

/// Starts calls of a client for an event loop.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct ClientCalls {
    client: Py<Client>,
}

impl ClientCalls {
    fn start<F>(&self, call: impl FnOnce(Calls<Shared, EventLoop>) -> F) -> PyResult<PendingCall>
    where
        F: Future<Output = Result<Reply, Error>> + Send + 'static,
    {
        let client = self.client.get().open()?;
        let pending = client.start(call).map_err(|error| system_error(&error))?;
        Ok(PendingCall {
            state: Mutex::new(State::Waits(pending)),
            client,
            misses_on_failure: self.client.get().misses_on_failure,
        })
    }

    /// The same for a lookup of one key.
    fn look_up<F>(&self, call: impl FnOnce(Calls<Shared, EventLoop>) -> F) -> PyResult<PendingCall>
    where
        F: Future<Output = Result<Reply, Error>> + Send + 'static,
    {
        let misses = self.client.get().misses_on_failure;
        self.start(|calls| {
            let call = call(calls);
            async move {
                match call.await {
                    Err(Error::Server { .. } | Error::Oversized { .. }) if misses => {
                        Ok(Reply::Value(None))
                    }
                    reply => reply,
                }
            }
        })
    }
}

fn bytes_of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<u8>> {
    copy_of(Bytes::new(object, what)?.as_ref())
}

/// Copies of keys or values, in one buffer.
struct Copied {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Copied {
    fn of(slices: &[&[u8]]) -> PyResult<Copied> {
        let mut ends = with_room_for(slices.len())?;
        let mut bytes = with_room_for(slices.iter().map(|slice| slice.len()).sum())?;
        for slice in slices {
            bytes.extend_from_slice(slice);
            ends.push(bytes.len());
        }
        Ok(Copied { bytes, ends })
    }

    fn slices(&self) -> Vec<&[u8]> {
        let begins = std::iter::once(&0).chain(&self.ends);
        let parts = begins.zip(&self.ends);
        parts
            .map(|(begin, end)| &self.bytes[*begin..*end])
            .collect()
    }
}

#[pymethods]
impl ClientCalls {
    #[new]
    fn new(client: Py<Client>) -> ClientCalls {
        ClientCalls { client }
    }

    fn get(&self, key: &Bound<'_, PyAny>) -> PyResult<PendingCall> {
        let key = bytes_of(key, "key")?;
        self.look_up(move |calls| async move {
            let found = calls.get(&key).await?;
            Ok(Reply::Value(found.map(|value| value.data)))
        })
    }

    fn gets(&self, key: &Bound<'_, PyAny>) -> PyResult<PendingCall> {
        let key = bytes_of(key, "key")?;
        self.look_up(move |calls| async move {
            let found = calls.gets(&key).await?;
            Ok(Reply::Versioned(
                found.map(|value| (value.data, value.cas.unwrap_or(0))),
            ))
        })
    }

    #[pyo3(signature = (key, ttl_seconds))]
    fn get_and_touch(
        &self,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<PendingCall> {
        let key = bytes_of(key, "key")?;
        self.look_up(move |calls| async move {
            let found = calls.gat(&key, expiry(ttl_seconds)).await?;
            Ok(Reply::Value(found.map(|value| value.data)))
        })
    }

    fn multi_get(&self, keys: &Bound<'_, PyAny>) -> PyResult<PendingCall> {
        let keys = Copied::of(&Batch::keys(keys)?.slices()?)?;
        self.start(move |calls| async move {
            let mut values = Lookups::new();
            let report = calls.multi_get(&keys.slices(), &mut values).await?;
            Ok(Reply::Many(values, report))
        })
    }

    #[pyo3(signature = (key, value, ttl_seconds))]
    fn set(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<PendingCall> {
        let (key, value) = (bytes_of(key, "key")?, bytes_of(value, "value")?);
        self.start(move |calls| async move {
            let value = NewValue::new(&value).expiry(expiry(ttl_seconds));
            calls.set(&key, value).await?;
            Ok(Reply::Nothing)
        })
    }

    #[pyo3(signature = (key, value, ttl_seconds))]
    fn add(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<PendingCall> {
        let (key, value) = (bytes_of(key, "key")?, bytes_of(value, "value")?);
        self.start(move |calls| async move {
            let value = NewValue::new(&value).expiry(expiry(ttl_seconds));
            calls.add(&key, value).await.map(Reply::Flag)
        })
    }

    #[pyo3(signature = (key, value, ttl_seconds))]
    fn replace(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<PendingCall> {
        let (key, value) = (bytes_of(key, "key")?, bytes_of(value, "value")?);
        self.start(move |calls| async move {
            let value = NewValue::new(&value).expiry(expiry(ttl_seconds));
            calls.replace(&key, value).await.map(Reply::Flag)
        })
    }

    fn append(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<PendingCall> {
        let (key, value) = (bytes_of(key, "key")?, bytes_of(value, "value")?);
        self.start(move |calls| async move { calls.append(&key, &value).await.map(Reply::Flag) })
    }

    fn prepend(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<PendingCall> {
        let (key, value) = (bytes_of(key, "key")?, bytes_of(value, "value")?);
        self.start(move |calls| async move { calls.prepend(&key, &value).await.map(Reply::Flag) })
    }

    #[pyo3(signature = (key, value, version, ttl_seconds))]
    fn compare_and_set(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::version)] version: u64,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<PendingCall> {
        let (key, value) = (bytes_of(key, "key")?, bytes_of(value, "value")?);
        self.start(move |calls| async move {
            let value = NewValue::new(&value).expiry(expiry(ttl_seconds));
            let stored = calls.cas(&key, value, version).await?;
            Ok(Reply::Flag(stored == CasResult::Stored))
        })
    }

    #[pyo3(signature = (keys, values, ttl_seconds))]
    fn set_many(
        &self,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<PendingCall> {
        let (keys, values) = (Batch::keys(keys)?, Batch::values(values)?);
        Batch::expect_pairs(&keys, &values)?;
        let keys = Copied::of(&keys.slices()?)?;
        let values = Copied::of(&values.slices()?)?;
        self.start(move |calls| async move {
            let expiry = expiry(ttl_seconds);
            let entry = |(key, value)| (key, NewValue::new(value).expiry(expiry));
            let pairs = keys.slices().into_iter().zip(values.slices());
            let entries: Vec<(&[u8], NewValue<'_>)> = pairs.map(entry).collect();
            let report = calls.set_many(&entries).await?;
            Ok(Reply::Written(report, entries.len()))
        })
    }

    fn delete(&self, key: &Bound<'_, PyAny>) -> PyResult<PendingCall> {
        let key = bytes_of(key, "key")?;
        self.start(move |calls| async move { calls.delete(&key).await.map(Reply::Flag) })
    }

    fn delete_many(&self, keys: &Bound<'_, PyAny>) -> PyResult<PendingCall> {
        let keys = Copied::of(&Batch::keys(keys)?.slices()?)?;
        self.start(move |calls| async move {
            let keys = keys.slices();
            let report = calls.delete_many(&keys).await?;
            Ok(Reply::Deleted(report, keys.len()))
        })
    }

    #[pyo3(signature = (key, ttl_seconds))]
    fn touch(
        &self,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<PendingCall> {
        let key = bytes_of(key, "key")?;
        self.start(move |calls| async move {
            let touched = calls.touch(&key, expiry(ttl_seconds)).await;
            touched.map(Reply::Flag)
        })
    }

    fn increment(
        &self,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::delta)] delta: u64,
    ) -> PyResult<PendingCall> {
        let key = bytes_of(key, "key")?;
        self.start(move |calls| async move { calls.incr(&key, delta).await.map(Reply::Number) })
    }

    fn decrement(
        &self,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::delta)] delta: u64,
    ) -> PyResult<PendingCall> {
        let key = bytes_of(key, "key")?;
        self.start(move |calls| async move { calls.decr(&key, delta).await.map(Reply::Number) })
    }

    fn clear(&self) -> PyResult<PendingCall> {
        self.start(move |calls| async move { calls.flush_all().await.map(Reply::Cleared) })
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid("a client has connections and cannot be pickled"))
    }
}
