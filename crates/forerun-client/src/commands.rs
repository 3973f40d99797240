//! The blocking calls of a client.

use crate::calls::{Calls, CasResult};
use crate::error::Error;
use crate::expiry::Expiration;
use crate::new_value::NewValue;
use crate::ring_client::Client;
use crate::values::{Lookups, Report, ServerFailure, Sink, ValueBuf};
use crate::wait::{Block, block};
use crate::write_report::WriteReport;

impl Client {
    /// The calls, which wait in the calling thread.
    fn calls(&self) -> Calls<&Client, Block> {
        Calls::new(self, Block)
    }

    /// The value of a key, without its version. `None` if the server does not have it.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::Server`], [`Error::Oversized`], [`Error::Interrupted`],
    /// [`Error::Forked`]. To treat a failed server as a cache miss, call
    /// `get(key).unwrap_or(None)`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueBuf>, Error> {
        block(self.calls().get(key))
    }

    /// The value of a key with its version, for [`cas`](Client::cas).
    ///
    /// # Errors
    /// The same as for [`get`](Client::get).
    pub fn gets(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueBuf>, Error> {
        block(self.calls().gets(key))
    }

    /// The value of a key with its version. The item gets a new expiry.
    ///
    /// # Errors
    /// The same as for [`get`](Client::get).
    pub fn gat(
        &self,
        key: impl AsRef<[u8]>,
        expiry: Expiration,
    ) -> Result<Option<ValueBuf>, Error> {
        block(self.calls().gat(key, expiry))
    }

    /// The values of many keys, in one round trip to all servers. Keys may repeat.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::TooManyKeys`], [`Error::Forked`], [`Error::Interrupted`]. A failed
    /// server is not an error: its keys are [`Lookup::Unanswered`](crate::Lookup::Unanswered), and
    /// [`multi_get`](Client::multi_get) reports why.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Lookups, Error> {
        block(self.calls().get_many(keys))
    }

    /// Like [`get_many`](Client::get_many), but reuses the memory of `values`, which gets the
    /// values in the order of `keys`.
    ///
    /// # Errors
    /// The same as for [`get_many`](Client::get_many). `values` is then unchanged, unless the call
    /// was interrupted.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        values: &mut Lookups,
    ) -> Result<Report, Error> {
        block(self.calls().multi_get(keys, values))
    }

    /// Like [`get_many`](Client::get_many), but passes each value to a sink as it arrives.
    ///
    /// ```no_run
    /// # use forerun_client::{Client, ClientOptions, ServerAddress};
    /// # let servers = [ServerAddress::tcp("localhost", 11211)];
    /// # let client = Client::new(servers, ClientOptions::default())?;
    /// let mut rows = [[0_u8; 4]; 2];
    /// client.multi_get_with(&["a", "b"], &mut |index: usize, value: forerun_client::Value<'_>| {
    ///     if let Ok(row) = value.data.try_into() {
    ///         rows[index] = row;
    ///     }
    /// })?;
    /// # Ok::<(), forerun_client::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`get_many`](Client::get_many). The sink was not called, unless the call was
    /// interrupted.
    pub fn multi_get_with<K: AsRef<[u8]>, S: Sink>(
        &self,
        keys: &[K],
        sink: &mut S,
    ) -> Result<Report, Error> {
        block(self.calls().multi_get_with(keys, sink))
    }

    /// Stores a value.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::Server`], [`Error::Interrupted`], [`Error::Forked`].
    pub fn set<'v>(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<NewValue<'v>>,
    ) -> Result<(), Error> {
        block(self.calls().set(key, value))
    }

    /// Stores a value if the key has none. Returns whether it did.
    ///
    /// # Errors
    /// The same as for [`set`](Client::set). This applies to all following calls.
    pub fn add<'v>(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<NewValue<'v>>,
    ) -> Result<bool, Error> {
        block(self.calls().add(key, value))
    }

    /// Stores a value if the key has one. Returns whether it did.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn replace<'v>(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<NewValue<'v>>,
    ) -> Result<bool, Error> {
        block(self.calls().replace(key, value))
    }

    /// Appends to the value of a key, which keeps its flags and its expiry. Returns whether the
    /// key has one.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn append(&self, key: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Result<bool, Error> {
        block(self.calls().append(key, data))
    }

    /// Prepends to the value of a key, which keeps its flags and its expiry. Returns whether the
    /// key has one.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn prepend(&self, key: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Result<bool, Error> {
        block(self.calls().prepend(key, data))
    }

    /// Stores a value if the item has this version.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn cas<'v>(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<NewValue<'v>>,
        version: u64,
    ) -> Result<CasResult, Error> {
        block(self.calls().cas(key, value, version))
    }

    /// Deletes a key. Returns whether it had a value.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        block(self.calls().delete(key))
    }

    /// Gives the item of a key a new expiry. Returns whether the item exists.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn touch(&self, key: impl AsRef<[u8]>, expiry: Expiration) -> Result<bool, Error> {
        block(self.calls().touch(key, expiry))
    }

    /// Adds to the decimal number in a key's value, modulo 2^64. Returns the sum, or `None` if the
    /// key has no value.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn incr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        block(self.calls().incr(key, delta))
    }

    /// Subtracts from the decimal number in a key's value; the result is at least 0. Returns the
    /// result, or `None` if the key has no value.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn decr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        block(self.calls().decr(key, delta))
    }

    /// Stores many values, in one round trip to all servers. If a key repeats, its last value is
    /// stored last. The client composes all requests in memory before it waits for the first
    /// answer.
    ///
    /// ```no_run
    /// # use forerun_client::{Client, ClientOptions, NewValue, ServerAddress};
    /// # let servers = [ServerAddress::tcp("localhost", 11211)];
    /// # let client = Client::new(servers, ClientOptions::default())?;
    /// let entries = [("a", NewValue::new("1")), ("b", NewValue::new("2"))];
    /// let report = client.set_many(&entries)?;
    /// for (position, why) in &report.unwritten {
    ///     eprintln!("{}: {why:?}", entries[*position].0);
    /// }
    /// # Ok::<(), forerun_client::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::TooManyKeys`] and [`Error::Forked`]: nothing was sent.
    /// [`Error::Interrupted`]. A failed server is not an error: the report names it.
    pub fn set_many<K: AsRef<[u8]>>(
        &self,
        entries: &[(K, NewValue<'_>)],
    ) -> Result<WriteReport, Error> {
        block(self.calls().set_many(entries))
    }

    /// Deletes many keys, in one round trip to all servers.
    ///
    /// # Errors
    /// The same as for [`set_many`](Client::set_many).
    pub fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<WriteReport, Error> {
        block(self.calls().delete_many(keys))
    }

    /// Deletes all items of all servers, in one round trip.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Interrupted`]. A failed server is not an error: the result lists
    /// the servers that failed.
    pub fn flush_all(&self) -> Result<Vec<ServerFailure>, Error> {
        block(self.calls().flush_all())
    }
}
