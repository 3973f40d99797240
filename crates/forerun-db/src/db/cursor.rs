//! The state of an iterator: a cursor for each end, and the super version that they read.
//!
//! A cursor is made for one iteration and then reused: see [`CursorPool`].

use std::sync::Arc;

use self_cell::self_cell;

use super::cursor_pool::CursorPool;
use super::keyspace_data::KeyspaceData;
use super::live_versions::LiveVersions;
use super::snapshots::ReadPoint;
use super::super_version::SuperVersion;
use crate::Result;
use crate::comparator::KeyOrder;
use crate::versions::{Entry, VisibleEntries};

/// A cursor over more memtables, runs and levels than this is not pooled, since it holds a page or
/// more for each.
const SOURCES_MAX: usize = 24;

/// The cursors of both ends of an iteration.
pub(super) struct Cursor {
    cursors: OwnedCursorPair,
    read_point: ReadPoint,
    keyspace: Arc<CursorKeyspace>,
}

/// The keyspace of a cursor. All threads share the keyspace's reference count; only the owner of
/// the cursor uses this one.
struct CursorKeyspace(Arc<KeyspaceData>);

/// The two cursors. The one for the back is made when it is first needed.
struct CursorPair<'a> {
    front: End<'a>,
    back: Option<End<'a>>,
}

/// The cursor at one end.
pub(super) type End<'a> = VisibleEntries<LiveVersions<'a>>;

self_cell! {
    /// Cursors, with the super version they read.
    struct OwnedCursorPair {
        owner: Arc<SuperVersion>,
        #[covariant]
        dependent: CursorPair,
    }
}

impl Cursor {
    /// Opens a cursor that is not positioned yet.
    pub(super) fn open(
        keyspace: &Arc<KeyspaceData>,
        version: &Arc<SuperVersion>,
        read_point: ReadPoint,
    ) -> Box<Cursor> {
        if let Some(mut pooled) = keyspace.cursors.take()
            && Arc::ptr_eq(pooled.cursors.borrow_owner(), version)
        {
            pooled.reopen(read_point);
            return pooled;
        }
        let order = keyspace.order();
        let cursors = OwnedCursorPair::new(Arc::clone(version), |version| CursorPair {
            front: end(version, order, read_point),
            back: None,
        });
        Box::new(Cursor {
            cursors,
            read_point,
            keyspace: Arc::new(CursorKeyspace(Arc::clone(keyspace))),
        })
    }

    fn reopen(&mut self, read_point: ReadPoint) {
        self.read_point = read_point;
        self.cursors.with_dependent_mut(|_, cursors| {
            let back = cursors.back.as_mut();
            for end in [Some(&mut cursors.front), back].into_iter().flatten() {
                end.reopen(read_point.sequence);
                end.versions_mut().reopen(read_point);
            }
        });
    }

    /// Returns the cursor to the pool, if it is worth keeping.
    pub(super) fn recycle(mut self: Box<Self>) {
        let is_small = self.cursors.with_dependent_mut(|_, cursors| {
            let is_small = cursors.front.versions_mut().sources() <= SOURCES_MAX;
            if is_small {
                let back = cursors.back.as_mut();
                let cursors = [Some(&mut cursors.front), back].into_iter().flatten();
                cursors.for_each(VisibleEntries::reset);
            }
            is_small
        });
        if is_small {
            let keyspace = Arc::clone(&self.keyspace);
            CursorPool::put(&keyspace.0, self);
        }
    }

    /// The order of its keys.
    pub(super) fn order(&self) -> &KeyOrder {
        self.keyspace.0.order()
    }

    /// Identifies the super version among those alive at the same time.
    pub(super) fn super_version_address(&self) -> *const SuperVersion {
        Arc::as_ptr(self.cursors.borrow_owner())
    }

    /// Moves the front cursor.
    #[inline]
    pub(super) fn move_front(&mut self, to: impl FnOnce(&mut End<'_>) -> Result<()>) -> Result<()> {
        self.cursors
            .with_dependent_mut(|_, cursors| to(&mut cursors.front))
    }

    /// Moves the back cursor.
    #[inline]
    pub(super) fn move_back(&mut self, to: impl FnOnce(&mut End<'_>) -> Result<()>) -> Result<()> {
        let (order, read_point) = (self.keyspace.0.order(), self.read_point);
        self.cursors.with_dependent_mut(|version, cursors| {
            let back = cursors
                .back
                .get_or_insert_with(|| end(version, order, read_point));
            to(back)
        })
    }

    /// Whether the front cursor is on an entry.
    #[inline]
    pub(super) fn has_front(&self) -> bool {
        self.cursors.borrow_dependent().front.is_positioned()
    }

    /// Whether the back cursor is on an entry.
    #[inline]
    pub(super) fn has_back(&self) -> bool {
        let back = self.cursors.borrow_dependent().back.as_ref();
        back.is_some_and(VisibleEntries::is_positioned)
    }

    /// The entry at the front cursor.
    #[inline]
    pub(super) fn front(&self) -> Option<Entry<'_>> {
        self.cursors.borrow_dependent().front.entry()
    }

    /// The entry at the back cursor.
    #[inline]
    pub(super) fn back(&self) -> Option<Entry<'_>> {
        self.cursors.borrow_dependent().back.as_ref()?.entry()
    }
}

fn end<'a>(version: &'a SuperVersion, order: &KeyOrder, read_point: ReadPoint) -> End<'a> {
    let versions = LiveVersions::new(version, order, read_point);
    VisibleEntries::new(versions, order.clone(), read_point.sequence)
}
