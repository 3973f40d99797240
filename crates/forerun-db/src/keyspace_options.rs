//! How a keyspace is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forerun_core::setters;

use crate::comparator::{Bytewise, Comparator};
use crate::run::RunOptions;
use crate::tree_options::TreeOptions;
use crate::{Error, KEYSPACE_NAME_BYTES_MAX, Result};

/// The options of a keyspace: its order, the shape of its runs, how long its entries live.
///
/// The store remembers the name of the comparator and the time to live. The rest applies until the
/// store is closed, as with [`Options`](crate::Options).
///
/// ```
/// use forerun_db::{Db, KeyspaceOptions, Options};
/// use std::time::Duration;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let sessions = KeyspaceOptions::default().ttl(Duration::from_secs(3600));
/// let options = Options::default().keyspace("sessions", sessions);
/// let db = Db::open(path, options)?;
/// db.keyspace("sessions")?.put(b"4711", b"paris")?;
/// assert_eq!(db.get(b"4711")?, None);
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct KeyspaceOptions {
    /// The order of keys. A keyspace keeps the one that it was created with. Default: [`Bytewise`].
    ///
    /// It is not serialized; deserialized options have the default.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub comparator: Arc<dyn Comparator>,
    /// How its runs are written. Default: as in [`RunOptions`].
    pub run: RunOptions,
    /// The shape of its tree of runs. If its level 0 exceeds these limits, its writes are slowed
    /// down or wait. The write rate is not taken from here but from
    /// [`Options::tree`](crate::Options::tree).
    pub tree: TreeOptions,
    /// How long its entries live; see [`Options::ttl`](crate::Options::ttl). Default: none. An
    /// existing keyspace keeps the time to live that it was created with; in a new one, entries
    /// never expire.
    pub ttl: Option<Duration>,
}

impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        KeyspaceOptions {
            comparator: Arc::new(Bytewise),
            run: RunOptions::default(),
            tree: TreeOptions::default(),
            ttl: None,
        }
    }
}

impl fmt::Debug for KeyspaceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyspaceOptions")
            .field("comparator", &self.comparator.name())
            .field("run", &self.run)
            .field("tree", &self.tree)
            .field("ttl", &self.ttl)
            .finish()
    }
}

setters! {
    KeyspaceOptions {
        comparator: Arc<dyn Comparator>,
        run: RunOptions,
        tree: TreeOptions,
    } into {
        ttl: Option<Duration>,
    }
}

impl KeyspaceOptions {
    /// Refuses contradictory options.
    pub(crate) fn check(&self) -> Result<()> {
        check_ttl(self.ttl)?;
        self.run.check()?;
        self.tree.check(&self.run)
    }

    /// How the runs of a level are written.
    pub(crate) fn run_at(&self, level: usize) -> RunOptions {
        let of_level = self.tree.compression_per_level.get(level);
        let of_level = of_level.copied().flatten();
        RunOptions {
            compression: of_level.unwrap_or(self.run.compression),
            ..self.run
        }
    }

    /// The same options with the time to live of an existing keyspace, in seconds, 0 for none.
    /// Fails if they ask for another one.
    pub(crate) fn with_stored_ttl(self, keyspace: &str, ttl: u64) -> Result<KeyspaceOptions> {
        let stored = (ttl > 0).then(|| Duration::from_secs(ttl));
        match self.ttl {
            Some(given) if Some(given) != stored => Err(Error::KeyspaceTtl {
                keyspace: keyspace.to_owned(),
                stored,
                given,
            }),
            _ => Ok(KeyspaceOptions {
                ttl: stored,
                ..self
            }),
        }
    }

    /// The time to live in seconds; 0 if entries never expire.
    pub(crate) fn ttl_s(&self) -> u64 {
        self.ttl.map_or(0, |ttl| ttl.as_secs())
    }
}

pub(crate) fn check_ttl(ttl: Option<Duration>) -> Result<()> {
    match ttl {
        Some(ttl) if ttl.subsec_nanos() != 0 || ttl.is_zero() => Err(Error::BadOption {
            option: "ttl",
            reason: format!("{ttl:?} is not a whole number of seconds, at least 1"),
        }),
        _ => Ok(()),
    }
}

/// Refuses names that only the store's own keyspace may have.
pub(crate) fn check_keyspace_name(name: &str) -> Result<()> {
    match name.len() {
        0 => Err(Error::KeyspaceName {
            name: name.to_owned(),
            reason: "only the store's own keyspace has an empty name".into(),
        }),
        len if len > KEYSPACE_NAME_BYTES_MAX => Err(Error::KeyspaceName {
            name: name.to_owned(),
            reason: format!("it has {len} bytes; at most {KEYSPACE_NAME_BYTES_MAX} are allowed"),
        }),
        _ => Ok(()),
    }
}
