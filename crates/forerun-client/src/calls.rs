//! The calls of a client, for callers that block and for event loops.

use std::ops::Deref;

use crate::conversation::Answer;
use crate::error::{Error, Failure};
use crate::expiry::Expiration;
use crate::new_value::NewValue;
use crate::protocol::compose::{Command, LookupKind, StoreMode};
use crate::ring_client::Client;
use crate::values::{Lookups, Report, ServerFailure, Sink, Unanswered, Value, ValueBuf};
use crate::wait::Wait;
use crate::write_report::WriteReport;

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

/// The calls of a client, as futures for [`Client::start`]. Each does the same as the call of
/// [`Client`] with the same name.
#[derive(Clone, Debug)]
pub struct Calls<C, W> {
    client: C,
    wait: W,
}

impl<C: Deref<Target = Client>, W: Wait> Calls<C, W> {
    pub(crate) fn new(client: C, wait: W) -> Calls<C, W> {
        Calls { client, wait }
    }

    /// [`Client::get`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueBuf>, Error> {
        self.look_up_one(key.as_ref(), LookupKind::default()).await
    }

    /// [`Client::gets`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn gets(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueBuf>, Error> {
        let (cas, touch) = (true, None);
        self.look_up_one(key.as_ref(), LookupKind { cas, touch })
            .await
    }

    /// [`Client::gat`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn gat(
        &self,
        key: impl AsRef<[u8]>,
        expiry: Expiration,
    ) -> Result<Option<ValueBuf>, Error> {
        let (cas, touch) = (true, Some(expiry.seconds()));
        self.look_up_one(key.as_ref(), LookupKind { cas, touch })
            .await
    }

    /// [`Client::set_many`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn set_many<K: AsRef<[u8]>>(
        &self,
        entries: &[(K, NewValue<'_>)],
    ) -> Result<WriteReport, Error> {
        self.client.store_all(entries, &self.wait).await
    }

    /// [`Client::delete_many`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<WriteReport, Error> {
        self.client.delete_all(keys, &self.wait).await
    }

    /// [`Client::flush_all`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn flush_all(&self) -> Result<Vec<ServerFailure>, Error> {
        self.client.flush(&self.wait).await
    }

    async fn look_up_one(&self, key: &[u8], kind: LookupKind) -> Result<Option<ValueBuf>, Error> {
        let mut one = One::default();
        self.client.check_batch(&[key])?;
        let mut report = self
            .client
            .look_up(&[key], kind, &mut one, &self.wait)
            .await?;
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
                let limit = self.client.max_value_bytes();
                Err(Error::Oversized { bytes, limit })
            }
            _ => Ok(one.value),
        }
    }

    /// [`Client::get_many`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Lookups, Error> {
        let mut values = Lookups::new();
        self.multi_get(keys, &mut values).await?;
        Ok(values)
    }

    /// [`Client::multi_get`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        values: &mut Lookups,
    ) -> Result<Report, Error> {
        self.client.check_batch(keys)?;
        values.reset(keys.len());
        self.client
            .look_up(keys, LookupKind::default(), values, &self.wait)
            .await
    }

    /// [`Client::multi_get_with`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn multi_get_with<K: AsRef<[u8]>, S: Sink>(
        &self,
        keys: &[K],
        sink: &mut S,
    ) -> Result<Report, Error> {
        self.client.check_batch(keys)?;
        self.client
            .look_up(keys, LookupKind::default(), sink, &self.wait)
            .await
    }

    /// [`Client::set`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn set<'v>(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<NewValue<'v>>,
    ) -> Result<(), Error> {
        match self
            .store(StoreMode::Set, key.as_ref(), value.into())
            .await?
        {
            Answer::Done => Ok(()),
            answer => Err(self.unexpected(key.as_ref(), &answer)),
        }
    }

    /// [`Client::add`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn add<'v>(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<NewValue<'v>>,
    ) -> Result<bool, Error> {
        self.store_if(StoreMode::Add, key.as_ref(), value.into())
            .await
    }

    /// [`Client::replace`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn replace<'v>(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<NewValue<'v>>,
    ) -> Result<bool, Error> {
        self.store_if(StoreMode::Replace, key.as_ref(), value.into())
            .await
    }

    /// [`Client::append`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn append(
        &self,
        key: impl AsRef<[u8]>,
        data: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        self.store_if(StoreMode::Append, key.as_ref(), NewValue::new(&data))
            .await
    }

    /// [`Client::prepend`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn prepend(
        &self,
        key: impl AsRef<[u8]>,
        data: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        self.store_if(StoreMode::Prepend, key.as_ref(), NewValue::new(&data))
            .await
    }

    /// [`Client::cas`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn cas<'v>(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<NewValue<'v>>,
        version: u64,
    ) -> Result<CasResult, Error> {
        match self
            .store(StoreMode::Cas(version), key.as_ref(), value.into())
            .await?
        {
            Answer::Done => Ok(CasResult::Stored),
            Answer::Exists => Ok(CasResult::Exists),
            Answer::NotFound => Ok(CasResult::NotFound),
            answer => Err(self.unexpected(key.as_ref(), &answer)),
        }
    }

    /// [`Client::delete`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.found(&Command::Delete, key.as_ref()).await
    }

    /// [`Client::touch`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn touch(&self, key: impl AsRef<[u8]>, expiry: Expiration) -> Result<bool, Error> {
        self.found(&Command::Touch(expiry.seconds()), key.as_ref())
            .await
    }

    /// [`Client::incr`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn incr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        self.count(&Command::Add(delta), key.as_ref()).await
    }

    /// [`Client::decr`].
    #[allow(clippy::missing_errors_doc, reason = "see there")]
    pub async fn decr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        self.count(&Command::Subtract(delta), key.as_ref()).await
    }

    async fn store(
        &self,
        mode: StoreMode,
        key: &[u8],
        value: NewValue<'_>,
    ) -> Result<Answer, Error> {
        let command = Command::Store {
            mode,
            value: value.data,
            flags: value.flags,
            expiry: value.expiry.seconds(),
        };
        self.client.command(&command, key, &self.wait).await
    }

    async fn store_if(
        &self,
        mode: StoreMode,
        key: &[u8],
        value: NewValue<'_>,
    ) -> Result<bool, Error> {
        match self.store(mode, key, value).await? {
            Answer::Done => Ok(true),
            Answer::NotStored => Ok(false),
            answer => Err(self.unexpected(key, &answer)),
        }
    }

    async fn found(&self, command: &Command<'_>, key: &[u8]) -> Result<bool, Error> {
        match self.client.command(command, key, &self.wait).await? {
            Answer::Done => Ok(true),
            Answer::NotFound => Ok(false),
            answer => Err(self.unexpected(key, &answer)),
        }
    }

    async fn count(&self, command: &Command<'_>, key: &[u8]) -> Result<Option<u64>, Error> {
        match self.client.command(command, key, &self.wait).await? {
            Answer::Number(number) => Ok(Some(number)),
            Answer::NotFound => Ok(None),
            answer => Err(self.unexpected(key, &answer)),
        }
    }

    fn unexpected(&self, key: &[u8], answer: &Answer) -> Error {
        let what = format!("{answer:?} is not an answer to this command");
        Error::Server {
            server: self.client.servers()[self.client.server_of(key)].to_string(),
            failure: Failure::Malformed(what),
        }
    }
}
