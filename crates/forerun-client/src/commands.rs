//! The calls of a client.

use crate::conversation::Answer;
use crate::error::{Error, Failure};
use crate::expiry::Expiry;
use crate::new_value::NewValue;
use crate::protocol::compose::{Command, LookupKind, StoreMode};
use crate::ring_client::Client;
use crate::values::{Report, Sink, Unanswered, Value, ValueBuf, Values};

/// The result of [`Client::cas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CasResult {
    /// The value was stored.
    Stored,
    /// The item has another version.
    Exists,
    /// There is no such item.
    NotFound,
}

/// The answer for a single key.
#[derive(Debug, Default)]
struct One {
    value: Option<ValueBuf>,
    unanswered: Option<Unanswered>,
}

impl Sink for One {
    fn hit(&mut self, _: usize, value: Value<'_>) {
        self.value = Some(value.to_owned());
    }

    fn unanswered(&mut self, _: usize, why: Unanswered) {
        self.unanswered = Some(why);
    }
}

impl Client {
    /// The value of a key, without its version. `None` if the server does not have it.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::Server`], [`Error::Oversized`], [`Error::Interrupted`],
    /// [`Error::Forked`]. A program that treats a server that fails as a cache miss calls
    /// `get(key).unwrap_or(None)`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueBuf>, Error> {
        self.look_up_one(key.as_ref(), LookupKind::default())
    }

    /// The value of a key with its version, for [`cas`](Client::cas).
    ///
    /// # Errors
    /// The same as for [`get`](Client::get).
    pub fn gets(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueBuf>, Error> {
        let (cas, touch) = (true, None);
        self.look_up_one(key.as_ref(), LookupKind { cas, touch })
    }

    /// The value of a key with its version. The item gets a new expiry.
    ///
    /// # Errors
    /// The same as for [`get`](Client::get).
    pub fn gat(&self, key: impl AsRef<[u8]>, expiry: Expiry) -> Result<Option<ValueBuf>, Error> {
        let (cas, touch) = (true, Some(expiry.seconds()));
        self.look_up_one(key.as_ref(), LookupKind { cas, touch })
    }

    fn look_up_one(&self, key: &[u8], kind: LookupKind) -> Result<Option<ValueBuf>, Error> {
        let mut one = One::default();
        self.check_batch(&[key])?;
        let mut report = self.look_up(&[key], kind, &mut one)?;
        if let Some(failed) = report.failures.pop()
            && one.value.is_none()
        {
            return Err(Error::Server {
                server: failed.server,
                failure: failed.failure,
            });
        }
        match one.unanswered {
            Some(Unanswered::Oversized { bytes }) => {
                let limit = self.max_value_bytes();
                Err(Error::Oversized { bytes, limit })
            }
            _ => Ok(one.value),
        }
    }

    /// The values of many keys: one round trip to all servers at once. Keys may repeat.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::TooManyKeys`], [`Error::Forked`], [`Error::Interrupted`]. A server
    /// that fails is not an error: the keys that it has are
    /// [`Lookup::Unanswered`](crate::Lookup::Unanswered), and
    /// [`get_many_into`](Client::get_many_into) reports why.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Values, Error> {
        let mut values = Values::new();
        self.get_many_into(keys, &mut values)?;
        Ok(values)
    }

    /// [`get_many`](Client::get_many) into memory that is reused. `values` has the values in the
    /// order of `keys`.
    ///
    /// # Errors
    /// The same as for [`get_many`](Client::get_many). `values` is then unchanged, unless the call
    /// was interrupted.
    pub fn get_many_into<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        values: &mut Values,
    ) -> Result<Report, Error> {
        self.check_batch(keys)?;
        values.reset(keys.len());
        self.look_up(keys, LookupKind::default(), values)
    }

    /// [`get_many`](Client::get_many) into a sink, which gets each value as it arrives.
    ///
    /// ```no_run
    /// # use forerun_client::{Client, ClientOptions, ServerAddress};
    /// # let servers = [ServerAddress::tcp("localhost", 11211)];
    /// # let client = Client::new(servers, ClientOptions::default())?;
    /// let mut rows = [[0_u8; 4]; 2];
    /// client.get_many_with(&["a", "b"], &mut |index: usize, value: forerun_client::Value<'_>| {
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
    pub fn get_many_with<K: AsRef<[u8]>, S: Sink>(
        &self,
        keys: &[K],
        sink: &mut S,
    ) -> Result<Report, Error> {
        self.check_batch(keys)?;
        self.look_up(keys, LookupKind::default(), sink)
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
        match self.store(StoreMode::Set, key.as_ref(), value.into())? {
            Answer::Done => Ok(()),
            answer => Err(self.unexpected(key.as_ref(), &answer)),
        }
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
        self.store_if(StoreMode::Add, key.as_ref(), value.into())
    }

    /// Stores a value if the key has one. Returns whether it did.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn replace<'v>(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<NewValue<'v>>,
    ) -> Result<bool, Error> {
        self.store_if(StoreMode::Replace, key.as_ref(), value.into())
    }

    /// Appends to the value of a key, which keeps its flags and its expiry. Returns whether the
    /// key has one.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn append(&self, key: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.store_if(StoreMode::Append, key.as_ref(), NewValue::new(&data))
    }

    /// Puts bytes before the value of a key, which keeps its flags and its expiry. Returns whether
    /// the key has one.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn prepend(&self, key: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.store_if(StoreMode::Prepend, key.as_ref(), NewValue::new(&data))
    }

    /// Stores a value if the item has this version.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn cas<'v>(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<NewValue<'v>>,
        version: u64,
    ) -> Result<CasResult, Error> {
        match self.store(StoreMode::Cas(version), key.as_ref(), value.into())? {
            Answer::Done => Ok(CasResult::Stored),
            Answer::Exists => Ok(CasResult::Exists),
            Answer::NotFound => Ok(CasResult::NotFound),
            answer => Err(self.unexpected(key.as_ref(), &answer)),
        }
    }

    /// Deletes a key. Returns whether it had a value.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.found(&Command::Delete, key.as_ref())
    }

    /// Gives the item of a key a new expiry. Returns whether there is one.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn touch(&self, key: impl AsRef<[u8]>, expiry: Expiry) -> Result<bool, Error> {
        self.found(&Command::Touch(expiry.seconds()), key.as_ref())
    }

    /// Adds to the decimal number that a key has as its value, modulo 2^64. Returns the sum, or
    /// `None` if the key has no value.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn incr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        self.count(&Command::Add(delta), key.as_ref())
    }

    /// Subtracts from the decimal number that a key has as its value; the result is at least 0.
    /// Returns it, or `None` if the key has no value.
    #[allow(clippy::missing_errors_doc, reason = "see add")]
    pub fn decr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        self.count(&Command::Subtract(delta), key.as_ref())
    }

    fn store(&self, mode: StoreMode, key: &[u8], value: NewValue<'_>) -> Result<Answer, Error> {
        let command = Command::Store {
            mode,
            value: value.data,
            flags: value.flags,
            expiry: value.expiry.seconds(),
        };
        self.command(&command, key)
    }

    fn store_if(&self, mode: StoreMode, key: &[u8], value: NewValue<'_>) -> Result<bool, Error> {
        match self.store(mode, key, value)? {
            Answer::Done => Ok(true),
            Answer::NotStored => Ok(false),
            answer => Err(self.unexpected(key, &answer)),
        }
    }

    fn found(&self, command: &Command<'_>, key: &[u8]) -> Result<bool, Error> {
        match self.command(command, key)? {
            Answer::Done => Ok(true),
            Answer::NotFound => Ok(false),
            answer => Err(self.unexpected(key, &answer)),
        }
    }

    fn count(&self, command: &Command<'_>, key: &[u8]) -> Result<Option<u64>, Error> {
        match self.command(command, key)? {
            Answer::Number(number) => Ok(Some(number)),
            Answer::NotFound => Ok(None),
            answer => Err(self.unexpected(key, &answer)),
        }
    }

    fn unexpected(&self, key: &[u8], answer: &Answer) -> Error {
        let what = format!("{answer:?} is not an answer to this command");
        Error::Server {
            server: self.servers()[self.server_of(key)].to_string(),
            failure: Failure::Malformed(what),
        }
    }
}
