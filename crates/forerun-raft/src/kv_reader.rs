//! Reads of the state machine's entries on this node.

use std::sync::{Arc, PoisonError, RwLock};

use forerun_db::{Error, Keyspace, Result, Values};

/// The keyspace with the entries, which changes when a snapshot is installed.
#[derive(Clone, Debug)]
pub(crate) struct CurrentKeyspace {
    keyspace: Arc<RwLock<Keyspace>>,
}

impl CurrentKeyspace {
    pub(crate) fn new(keyspace: Keyspace) -> CurrentKeyspace {
        CurrentKeyspace {
            keyspace: Arc::new(RwLock::new(keyspace)),
        }
    }

    pub(crate) fn get(&self) -> Keyspace {
        let keyspace = self.keyspace.read();
        keyspace.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces it, and returns the former one.
    pub(crate) fn replace(&self, by: Keyspace) -> Keyspace {
        let mut keyspace = self
            .keyspace
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut keyspace, by)
    }
}

/// Reads what this node has applied. Clones are cheap, and any number of threads may read.
///
/// A read alone may return an old state: the node may be behind, or cut off. For a linearizable
/// read, call `Raft::ensure_linearizable` on the leader first. A batch sees one state: it contains
/// each [`Request`](crate::Request) as a whole or not at all.
///
/// ```no_run
/// # use forerun_db::Values;
/// # use forerun_raft::{KvReader, TypeConfig};
/// async fn towns(
///     raft: &openraft::Raft<TypeConfig>,
///     reader: &KvReader,
/// ) -> Result<Vec<Option<Vec<u8>>>, Box<dyn std::error::Error>> {
///     raft.ensure_linearizable().await?;
///     let mut values = Values::new();
///     reader.multi_get(&["FR/Lyon", "NO/Oslo"], &mut values)?;
///     Ok(values.to_vec()?)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct KvReader {
    current: CurrentKeyspace,
}

impl KvReader {
    pub(crate) fn new(current: CurrentKeyspace) -> KvReader {
        KvReader { current }
    }

    /// Returns a copy of the value of `key`.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let key = key.as_ref();
        self.read(|keyspace| keyspace.get(key))
    }

    /// Looks up all `keys` at once. The answers replace the content of `values`, in the order of
    /// the keys.
    ///
    /// # Errors
    /// The errors of [`Keyspace::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<()> {
        self.read(|keyspace| keyspace.multi_get(keys, values))
    }

    /// Calls `read` with the keyspace that has the entries, for scans. If an installed snapshot has
    /// replaced the keyspace in the meantime, calls it again with the new one.
    ///
    /// Only read from it. What is written past Raft is on this node only.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn read<T>(&self, mut read: impl FnMut(&Keyspace) -> Result<T>) -> Result<T> {
        loop {
            let keyspace = self.current.get();
            match read(&keyspace) {
                Err(Error::KeyspaceDropped { .. }) if self.current.get().id() != keyspace.id() => {}
                result => return result,
            }
        }
    }
}
