//! `Client`: byte strings on several memcached servers.

mod arguments;
mod outcome;
mod pending_call;
mod row_sink;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use forerun::client::{CasResult, ClientOptions, Error, Lookups, NewValue};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::background_call::run_long;
use crate::engine_handle::drop_detached;
use crate::errors::{client_exception, closed, invalid, is_forked};
use crate::interrupt;
use crate::keys::{Batch, Bytes};
use crate::new_objects::{bytes, collected, list_of_bytes};
use crate::numeric_arguments;
use crate::rows::{Rows, expect_no_found};
use crate::stats;
use crate::store_options::Size;
pub(crate) use pending_call::{ClientCalls, PendingCall};

use arguments::{TlsFiles, expiry};
use outcome::{check_answered, check_cleared, check_written, unanswered_of};
use row_sink::RowSink;

/// The default of `max_value_bytes`.
const VALUE_BYTES_MAX: Size = Size(16 << 20);
/// What a terminal shows while a call waits.
const WAITING: &str = "waiting for servers";

/// A client of several memcached servers: a batch is one round trip to all of them at once.
///
/// `servers`: addresses such as "10.0.1.1", "10.0.1.1:11211", "10.0.1.1:11211:3" (with a weight) or
/// "/run/memcached.sock". `ring`: how keys are placed: "ketama" (as libmemcached with weights, and
/// twemproxy with md5), "ketama_unweighted" (libmemcached's default hash), "ketama_fnv1a_64"
/// (twemproxy's default) or "rendezvous" (pymemcache). `protocol`: "classic"; "meta", which sends
/// keys of any bytes; or "multi_get", which sends lookups in binary, to Forerun's servers only.
/// `timeout_ms`: the time limit of a call. A server that fails `failures_to_eject` calls in a row
/// is left out for `retry_interval_ms`; its keys fail meanwhile, or move to the other servers with
/// `ejected_keys="move"`. `on_failure`: whether lookups of keys whose server failed "raise", or
/// count as a "miss". `resolve_interval_ms`: how often the servers' names are resolved again.
/// `idle_timeout_ms`: after how long unused connections are closed. `failed_deletes_max`: how many
/// keys whose deletes failed are kept, to be deleted when their server answers again.
/// `max_value_bytes`: the longest value that is accepted. `user` and `password`: sent first on each
/// connection. `tls_ca_file`: switches TLS on; the file of the authorities.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Client {
    /// `None` once it is closed. Running calls keep their connections until they return.
    client: RwLock<Option<Arc<forerun::client::Client>>>,
    ring: String,
    misses_on_failure: bool,
}

impl Client {
    /// The client, unless it is closed or of another process.
    fn open(&self) -> PyResult<Arc<forerun::client::Client>> {
        let client = self.client.read();
        let client = client.unwrap_or_else(PoisonError::into_inner);
        let client = client.clone().ok_or_else(|| closed("client"))?;
        client.check_process().map_err(client_exception)?;
        Ok(client)
    }

    fn is_closed(&self) -> bool {
        let client = self.client.read();
        client.unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Runs a call that waits for servers. Other Python threads run, and Ctrl-C ends the wait.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&forerun::client::Client) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let client = self.open()?;
        interrupt::detach(py, WAITING, || call(&client)).map_err(client_exception)
    }

    /// The same for a lookup of one key.
    fn look_up<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&forerun::client::Client) -> Result<Option<T>, Error> + Send,
    ) -> PyResult<Option<T>> {
        let misses = self.misses_on_failure;
        self.ask(py, |client| match call(client) {
            Err(Error::Server { .. } | Error::Oversized { .. }) if misses => Ok(None),
            answer => answer,
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let client = self.client.get_mut();
        drop_detached(client.unwrap_or_else(PoisonError::into_inner).take());
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(
        signature = (
            servers,
            *,
            ring="ketama",
            protocol="classic",
            timeout_ms=1000,
            failures_to_eject=2,
            retry_interval_ms=2000,
            ejected_keys="fail",
            on_failure="raise",
            resolve_interval_ms=30_000,
            idle_timeout_ms=10_000,
            failed_deletes_max=0,
            max_value_bytes=VALUE_BYTES_MAX,
            user=None,
            password=None,
            tls_ca_file=None,
            tls_server_name=None,
            tls_cert_file=None,
            tls_key_file=None,
            ucx_token_file=None,
        ),
        text_signature = "(servers, *, ring='ketama', protocol='classic', timeout_ms=1000, \
            failures_to_eject=2, retry_interval_ms=2000, ejected_keys='fail', \
            on_failure='raise', resolve_interval_ms=30000, idle_timeout_ms=10000, \
            failed_deletes_max=0, max_value_bytes=16777216, user=None, password=None, \
            tls_ca_file=None, tls_server_name=None, tls_cert_file=None, tls_key_file=None, \
            ucx_token_file=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        servers: &Bound<'_, PyAny>,
        ring: &str,
        protocol: &str,
        #[pyo3(from_py_with = numeric_arguments::timeout_ms)] timeout_ms: u64,
        #[pyo3(from_py_with = numeric_arguments::failures_to_eject)] failures_to_eject: u32,
        #[pyo3(from_py_with = numeric_arguments::retry_interval_ms)] retry_interval_ms: u64,
        ejected_keys: &str,
        on_failure: &str,
        #[pyo3(from_py_with = numeric_arguments::resolve_interval_ms)] resolve_interval_ms: u64,
        #[pyo3(from_py_with = numeric_arguments::idle_timeout_ms)] idle_timeout_ms: u64,
        #[pyo3(from_py_with = numeric_arguments::failed_deletes_max)] failed_deletes_max: usize,
        max_value_bytes: Size,
        user: Option<String>,
        password: Option<String>,
        tls_ca_file: Option<PathBuf>,
        tls_server_name: Option<String>,
        tls_cert_file: Option<PathBuf>,
        tls_key_file: Option<PathBuf>,
        ucx_token_file: Option<PathBuf>,
    ) -> PyResult<Client> {
        let servers = arguments::servers(servers)?;
        let tls = arguments::tls(TlsFiles {
            authorities: tls_ca_file,
            server_name: tls_server_name,
            certificate: tls_cert_file,
            key: tls_key_file,
        })?;
        let options = ClientOptions::default()
            .placement(arguments::placement(ring)?)
            .protocol(arguments::protocol(protocol)?)
            .timeout(Duration::from_millis(timeout_ms))
            .failures_to_eject(failures_to_eject)
            .retry_interval(Duration::from_millis(retry_interval_ms))
            .ejected_keys(arguments::ejected_keys(ejected_keys)?)
            .resolve_interval(Duration::from_millis(resolve_interval_ms))
            .idle_timeout(Duration::from_millis(idle_timeout_ms))
            .failed_deletes_max(failed_deletes_max)
            .max_value_bytes(max_value_bytes.0)
            .credentials(arguments::credentials(user, password)?)
            .tls(tls)
            .ucx_token_file(ucx_token_file);
        let misses_on_failure = arguments::misses_on_failure(on_failure)?;
        let new = move || forerun::client::Client::new(servers, options);
        let client = run_long(py, "resolving the names of servers", new)?;
        let mut client = client.map_err(client_exception)?;
        client.interrupt_if(interrupt::is_raised);
        Ok(Client {
            client: RwLock::new(Some(Arc::new(client))),
            ring: ring.to_owned(),
            misses_on_failure,
        })
    }

    /// Returns the value of a key, or `default` if the key is missing.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = Bytes::new(key, "key")?;
        let found = self.look_up(py, |client| client.get(&key))?;
        match found {
            Some(value) => Ok(Some(bytes(py, &value.data)?.into_any())),
            None => Ok(default),
        }
    }

    /// Returns the value of a key and its version, for `compare_and_set`; `None` if the key is
    /// missing.
    fn gets<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        let key = Bytes::new(key, "key")?;
        let found = self.look_up(py, |client| client.gets(&key))?;
        found
            .map(|value| Ok((bytes(py, &value.data)?, value.cas.unwrap_or(0))))
            .transpose()
    }

    /// Returns the value of a key and makes it expire after `ttl_seconds`, or never if that is
    /// `None`; `None` if the key is missing.
    #[pyo3(signature = (key, ttl_seconds=None))]
    fn get_and_touch<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let key = Bytes::new(key, "key")?;
        let found = self.look_up(py, |client| client.gat(&key, expiry(ttl_seconds)))?;
        found.map(|value| bytes(py, &value.data)).transpose()
    }

    /// Looks up a batch of keys on all servers at once: returns a list of their values, in order,
    /// with `None` for each missing key.
    ///
    /// With `out`, an array of any type whose rows have as many bytes as each value, it copies the
    /// values into the rows instead and returns which keys were found, as an array of bool
    /// (`found`, if that is given). Rows of missing keys keep their content.
    ///
    /// Raises `PartialError` with the positions of the keys whose server failed, unless the client
    /// counts them as missing (`on_failure="miss"`). `out` and `found` then have all other answers.
    #[pyo3(signature = (keys, *, out=None, found=None))]
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        found: Option<Bound<'py, PyArray1<bool>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = Batch::keys(keys)?;
        let keys = keys.slices()?;
        if let Some(out) = out {
            let mut rows = Rows::new(keys.len(), out, found)?;
            let mut sink = RowSink::new(&mut rows)?;
            let report = self.ask(py, |client| client.multi_get_with(&keys, &mut sink))?;
            let unanswered = sink.into_unanswered()?;
            check_answered(&report, unanswered, keys.len(), self.misses_on_failure)?;
            return Ok(rows.into_found().into_any());
        }
        expect_no_found(found.as_ref())?;
        let mut values = Lookups::new();
        let report = self.ask(py, |client| client.multi_get(&keys, &mut values))?;
        let unanswered = unanswered_of(&values, &report);
        check_answered(&report, unanswered, keys.len(), self.misses_on_failure)?;
        let found = values.iter().map(|value| value.map(|value| value.data));
        Ok(list_of_bytes(py, values.len(), found)?.into_any())
    }

    /// Stores a value. With `ttl_seconds` it expires after that time.
    #[pyo3(signature = (key, value, *, ttl_seconds=None))]
    fn set(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<()> {
        let (key, value) = (Bytes::new(key, "key")?, Bytes::new(value, "value")?);
        let value = NewValue::new(&value).expiry(expiry(ttl_seconds));
        self.ask(py, |client| client.set(&key, value))
    }

    /// Stores a value if the key is missing. Returns whether it did.
    #[pyo3(signature = (key, value, *, ttl_seconds=None))]
    fn add(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<bool> {
        let (key, value) = (Bytes::new(key, "key")?, Bytes::new(value, "value")?);
        let value = NewValue::new(&value).expiry(expiry(ttl_seconds));
        self.ask(py, |client| client.add(&key, value))
    }

    /// Stores a value if the key exists. Returns whether it did.
    #[pyo3(signature = (key, value, *, ttl_seconds=None))]
    fn replace(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<bool> {
        let (key, value) = (Bytes::new(key, "key")?, Bytes::new(value, "value")?);
        let value = NewValue::new(&value).expiry(expiry(ttl_seconds));
        self.ask(py, |client| client.replace(&key, value))
    }

    /// Appends to the value of a key, which keeps its time to live. Returns whether the key exists.
    fn append(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (key, value) = (Bytes::new(key, "key")?, Bytes::new(value, "value")?);
        self.ask(py, |client| client.append(&key, &value))
    }

    /// Puts bytes before the value of a key, which keeps its time to live. Returns whether the key
    /// exists.
    fn prepend(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (key, value) = (Bytes::new(key, "key")?, Bytes::new(value, "value")?);
        self.ask(py, |client| client.prepend(&key, &value))
    }

    /// Stores a value if the key still has this version (from `gets`). Returns whether it did.
    #[pyo3(signature = (key, value, version, *, ttl_seconds=None))]
    fn compare_and_set(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::version)] version: u64,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<bool> {
        let (key, value) = (Bytes::new(key, "key")?, Bytes::new(value, "value")?);
        let value = NewValue::new(&value).expiry(expiry(ttl_seconds));
        let stored = self.ask(py, |client| client.cas(&key, value, version))?;
        Ok(stored == CasResult::Stored)
    }

    /// Stores many values on all servers at once. `keys` and `values` have the same forms as in
    /// `Db.put_many`. Raises `PartialError` with the positions of the keys that were not stored.
    #[pyo3(signature = (keys, values, *, ttl_seconds=None))]
    fn set_many(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<()> {
        let (keys, values) = (Batch::keys(keys)?, Batch::values(values)?);
        let pairs = Batch::pairs(&keys, &values)?;
        let expiry = expiry(ttl_seconds);
        let entry = |(key, value)| (key, NewValue::new(value).expiry(expiry));
        let entries: Vec<(&[u8], NewValue<'_>)> = collected(pairs.into_iter().map(entry))?;
        let report = self.ask(py, |client| client.set_many(&entries))?;
        check_written(report, entries.len())
    }

    /// Deletes a key. Returns whether it existed.
    fn delete(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = Bytes::new(key, "key")?;
        self.ask(py, |client| client.delete(&key))
    }

    /// Deletes many keys on all servers at once. Returns how many existed. Raises `PartialError`
    /// with the positions of the keys whose server failed.
    fn delete_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys = Batch::keys(keys)?;
        let keys = keys.slices()?;
        let report = self.ask(py, |client| client.delete_many(&keys))?;
        let deleted = report.done;
        check_written(report, keys.len())?;
        Ok(deleted)
    }

    /// Makes an entry expire after `ttl_seconds`, or never if it is `None`. Returns whether the key
    /// exists.
    #[pyo3(signature = (key, ttl_seconds=None))]
    fn touch(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::ttl_seconds)] ttl_seconds: Option<u32>,
    ) -> PyResult<bool> {
        let key = Bytes::new(key, "key")?;
        self.ask(py, |client| client.touch(&key, expiry(ttl_seconds)))
    }

    /// Adds to a decimal number and returns the sum, modulo 2**64, or `None` if the key is missing.
    #[pyo3(signature = (key, delta=1))]
    fn increment(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::delta)] delta: u64,
    ) -> PyResult<Option<u64>> {
        let key = Bytes::new(key, "key")?;
        self.ask(py, |client| client.incr(&key, delta))
    }

    /// Subtracts from a decimal number, down to 0, and returns the difference, or `None` if the key
    /// is missing.
    #[pyo3(signature = (key, delta=1))]
    fn decrement(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numeric_arguments::delta)] delta: u64,
    ) -> PyResult<Option<u64>> {
        let key = Bytes::new(key, "key")?;
        self.ask(py, |client| client.decr(&key, delta))
    }

    /// Deletes all entries of all servers.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        check_cleared(&self.ask(py, |client| client.flush_all())?)
    }

    /// The servers' addresses.
    #[getter]
    fn servers(&self) -> PyResult<Vec<String>> {
        let client = self.open()?;
        Ok(client.servers().iter().map(ToString::to_string).collect())
    }

    /// Returns the address of the server that has a key while no server is left out.
    fn server_of(&self, key: &Bound<'_, PyAny>) -> PyResult<String> {
        let (client, key) = (self.open()?, Bytes::new(key, "key")?);
        Ok(client.servers()[client.server_of(&key)].to_string())
    }

    /// Returns what this client has counted, as a dict.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats::dict(py, &self.open()?.stats())
    }

    /// Closes the connections. Every later call raises `ClosedError`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed() {
            return Ok(());
        }
        self.open()?;
        let client = self.client.write();
        let client = client.unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(client));
        Ok(())
    }

    /// Whether the client is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    fn __enter__(slf: Bound<'_, Client>) -> Bound<'_, Client> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        // A fork that leaves the block leaves the client to its parent.
        match self.close(py) {
            Err(error) if is_forked(py, &error) => Ok(()),
            closed => closed,
        }
    }

    fn __repr__(&self) -> String {
        match self.servers() {
            Ok(servers) => format!("forerun.Client(servers={servers:?}, ring={:?})", self.ring),
            Err(_) if self.is_closed() => "forerun.Client(closed)".to_owned(),
            // A forked child cannot use its parent's client.
            Err(_) => "forerun.Client(of another process)".to_owned(),
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "a client has connections of this process and cannot be pickled: make one in the other \
             process",
        ))
    }
}
