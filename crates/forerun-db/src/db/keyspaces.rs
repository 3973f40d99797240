//! The set of keyspaces, and what new ones are made with.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use super::keyspace_data::KeyspaceData;
use crate::run::lookup::ReadContext;
use crate::tree::catalog::Catalog;

pub(super) struct Keyspaces {
    /// Identifies the open store. No two open stores of a process have the same number.
    pub(super) store: u64,
    /// The store's own keyspace.
    pub(super) own: Arc<KeyspaceData>,
    set: ArcSwap<KeyspaceSet>,
    pub(super) reading: ReadContext,
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

    /// Shows another set. It changes only under the lock of the catalog, as the manifest does.
    pub(super) fn replace(&self, _catalog: &mut Catalog, set: KeyspaceSet) {
        self.set.store(Arc::new(set));
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

    /// Returns the set with another keyspace, which has a greater number.
    pub(super) fn with(&self, keyspace: &Arc<KeyspaceData>) -> KeyspaceSet {
        KeyspaceSet::new(self.iter().chain([keyspace]).cloned())
    }

    /// Returns the set without this keyspace.
    pub(super) fn without(&self, id: u32) -> KeyspaceSet {
        KeyspaceSet::new(self.iter().filter(|keyspace| keyspace.id() != id).cloned())
    }
}
