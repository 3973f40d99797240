//! The set of keyspaces, and what new ones are made with.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use forerun_core::sync::time;

use super::keyspace_data::KeyspaceData;
use crate::clock::Expiry;
use crate::comparator::KeyOrder;
use crate::run::lookup::ReadContext;
use crate::tree::catalog::Catalog;
use crate::{Error, KeyspaceOptions, Result};

/// Bounds on how often to look for expired entries, which is every 1/16 of the time to live.
const EXPIRY_CHECK_INTERVAL_MIN: Duration = Duration::from_secs(1);
const EXPIRY_CHECK_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// A worker that waits to retry a compaction sleeps at least this long.
const COMPACTION_RETRY_MIN: Duration = Duration::from_millis(50);

pub(super) struct Keyspaces {
    /// Identifies the open store. No two open stores of a process have the same number.
    pub(super) store: u64,
    /// The store's own keyspace.
    pub(super) own: Arc<KeyspaceData>,
    /// Changes only under the lock of the catalog, as the manifest does.
    set: ArcSwap<KeyspaceSet>,
    reading: ReadContext,
}

impl Keyspaces {
    pub(super) fn new(
        store: u64,
        own: Arc<KeyspaceData>,
        set: KeyspaceSet,
        reading: ReadContext,
    ) -> Keyspaces {
        Keyspaces {
            store,
            own,
            set: ArcSwap::from_pointee(set),
            reading,
        }
    }

    pub(super) fn load(&self) -> Guard<Arc<KeyspaceSet>> {
        self.set.load()
    }

    pub(super) fn load_full(&self) -> Arc<KeyspaceSet> {
        self.set.load_full()
    }

    /// Creates a keyspace whose name is not in use. It is durable, and not visible yet.
    ///
    /// The caller has asked the comparator for its name: a panic here would leave a keyspace in the
    /// manifest that this process does not know.
    pub(super) fn create(
        &self,
        catalog: &mut Catalog,
        name: &str,
        comparator_name: &str,
        options: KeyspaceOptions,
    ) -> Result<Arc<KeyspaceData>> {
        let order = KeyOrder::new(Arc::clone(&options.comparator));
        let id = catalog.create(name, comparator_name, &order, options.ttl_s())?;
        let Some(runs) = catalog.runs_of(id) else {
            return Err(Error::Closed);
        };
        let reading = self.reading.clone();
        let keyspace = KeyspaceData::new(
            self.store,
            id,
            name,
            comparator_name,
            options,
            runs,
            reading,
        );
        Ok(Arc::new(keyspace))
    }

    /// Makes a new keyspace visible.
    pub(super) fn add(&self, _catalog: &mut Catalog, keyspace: &Arc<KeyspaceData>) {
        self.set.store(Arc::new(self.set.load().with(keyspace)));
    }

    /// Drops a keyspace, which is durable before it is visible.
    pub(super) fn remove(&self, catalog: &mut Catalog, keyspace: &KeyspaceData) -> Result<()> {
        let id = keyspace.id();
        catalog.drop_keyspace(id)?;
        self.set.store(Arc::new(self.set.load().without(id)));
        keyspace.show_dropped();
        Ok(())
    }
}

/// The keyspaces of a store. Immutable: a new set replaces the old one.
#[derive(Clone, Default)]
pub(super) struct KeyspaceSet {
    // Dropped before `by_id`, so that the last references are dropped in the order of `by_id` and
    // not of the hashes.
    by_name: HashMap<Box<str>, Arc<KeyspaceData>>,
    /// Ascending by number; the store's own is the first.
    by_id: Vec<Arc<KeyspaceData>>,
}

impl KeyspaceSet {
    pub(super) fn new(keyspaces: impl IntoIterator<Item = Arc<KeyspaceData>>) -> KeyspaceSet {
        let by_id: Vec<_> = keyspaces.into_iter().collect();
        let name = |keyspace: &Arc<KeyspaceData>| (keyspace.name().into(), Arc::clone(keyspace));
        KeyspaceSet {
            by_name: by_id.iter().map(name).collect(),
            by_id,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<KeyspaceData>> {
        self.by_id.iter()
    }

    pub(super) fn by_id(&self, id: u32) -> Option<&Arc<KeyspaceData>> {
        let index = self
            .by_id
            .binary_search_by(|keyspace| keyspace.id().cmp(&id))
            .ok()?;
        Some(&self.by_id[index])
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Arc<KeyspaceData>> {
        self.by_name.get(name)
    }

    /// These keyspaces.
    ///
    /// # Errors
    /// [`Error::KeyspaceDropped`].
    pub(super) fn by_ids(&self, ids: &[u32]) -> Result<Vec<Arc<KeyspaceData>>> {
        let by_id = |id: &u32| {
            self.by_id(*id).cloned().ok_or(Error::KeyspaceDropped {
                name: format!("number {id}"),
            })
        };
        ids.iter().map(by_id).collect()
    }

    /// Returns the set with another keyspace, which has a greater number.
    fn with(&self, keyspace: &Arc<KeyspaceData>) -> KeyspaceSet {
        KeyspaceSet::new(self.iter().chain([keyspace]).cloned())
    }

    /// Returns the set without this keyspace.
    fn without(&self, id: u32) -> KeyspaceSet {
        KeyspaceSet::new(self.iter().filter(|keyspace| keyspace.id() != id).cloned())
    }

    /// How soon a failed compaction is to be retried that was not yet due when its thread `looked`
    /// for work. What was due then and did not begin waits for what runs, which ends with an event.
    /// `is_due` returns whether a keyspace is to be compacted.
    pub(super) fn compaction_retry(
        &self,
        looked: Instant,
        is_due: impl Fn(&KeyspaceData) -> bool,
    ) -> Option<Duration> {
        let failing = self.iter().filter(|of| of.is_compaction_failing());
        let next = failing.filter(|of| is_due(of)).filter_map(|keyspace| {
            let retries = keyspace.compaction_retries().into_iter();
            retries.filter(|at| *at > looked).min()
        });
        let wait = next.min()?.saturating_duration_since(time::now());
        Some(wait.max(COMPACTION_RETRY_MIN))
    }

    /// How often to look for expired entries, if any entries expire.
    pub(super) fn expiry_check_interval(&self) -> Option<Duration> {
        let ttl = self.iter().filter_map(|keyspace| keyspace.expiry.as_ref());
        let shortest = Duration::from_secs(ttl.map(Expiry::ttl).min()?);
        Some((shortest / 16).clamp(EXPIRY_CHECK_INTERVAL_MIN, EXPIRY_CHECK_INTERVAL_MAX))
    }
}
