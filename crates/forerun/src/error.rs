//! One error for programs that use several parts.

/// Why a call of any part failed. Each part has an error of its own, which `?` converts to this
/// one.
///
/// ```
/// use forerun::prelude::*;
///
/// fn answer() -> Result<(), forerun::Error> {
/// #   let directory = tempfile::tempdir().expect("a temporary directory can be made");
/// #   let path = directory.path().join("towns");
///     let db = Db::open(&path, Options::default())?;
///     # #[cfg(feature = "cache")]
///     let cache = Cache::new(CacheOptions::default())?;
///     # #[cfg(feature = "table")]
///     let table = Table::builder(Dtype::F32, 4).open()?;
///     Ok(())
/// }
/// # answer().unwrap();
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Of a store.
    #[error(transparent)]
    Db(#[from] forerun_db::Error),
    /// Of a cache.
    #[cfg(feature = "cache")]
    #[error(transparent)]
    Cache(#[from] forerun_cache::Error),
    /// Of a table.
    #[cfg(feature = "table")]
    #[error(transparent)]
    Table(#[from] forerun_table::Error),
    /// Of a client.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Client(#[from] forerun_client::Error),
    /// Of a hash table.
    #[error(transparent)]
    Hash(#[from] forerun_hash::Error),
}

/// The result of a function that uses several parts.
pub type Result<T, E = Error> = std::result::Result<T, E>;
