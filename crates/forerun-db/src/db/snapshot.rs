//! The store as it was at one moment.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use super::Open;
use super::iter::Iter;
use super::snapshots::Moment;
use super::view::View;
use crate::memtable::Strategy;
use crate::{Result, Values};

/// The store as it was when [`Db::snapshot`](crate::Db::snapshot) was called, whatever is written
/// since. As long as it lives, what it sees is kept, on disk too.
///
/// ```
/// use forerun_db::{Db, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// db.put(b"key", b"old")?;
/// let before = db.snapshot();
/// db.put(b"key", b"new")?;
/// assert_eq!(before.get(b"key")?.as_deref(), Some(&b"old"[..]));
/// # Ok::<(), forerun_db::Error>(())
/// ```
pub struct Snapshot {
    open: Arc<Open>,
    moment: Moment,
}

impl Snapshot {
    pub(super) fn new(open: Arc<Open>) -> Snapshot {
        let moment = open.inner.snapshots.add(|| open.inner.now());
        Snapshot { open, moment }
    }

    /// Sequence number of the last operation it sees.
    pub fn sequence(&self) -> u64 {
        self.moment.sequence
    }

    /// As [`Db::get`](crate::Db::get), at this moment.
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.view().get(key)
    }

    /// As [`Db::multi_get`](crate::Db::multi_get), at this moment.
    ///
    /// # Errors
    /// As there.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<()> {
        self.multi_get_with(keys, Strategy::Auto, values)
    }

    /// As [`Db::multi_get_with`](crate::Db::multi_get_with), at this moment.
    ///
    /// # Errors
    /// As there.
    pub fn multi_get_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        strategy: Strategy,
        values: &mut Values,
    ) -> Result<()> {
        self.view().multi_get(keys, strategy, values);
        Ok(())
    }

    /// As [`Db::iter`](crate::Db::iter), at this moment.
    pub fn iter(&self) -> Iter {
        self.view().iter(Bound::Unbounded, Bound::Unbounded)
    }

    /// As [`Db::range`](crate::Db::range), at this moment.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Iter {
        self.view().range(range)
    }

    /// As [`Db::prefix`](crate::Db::prefix), at this moment.
    pub fn prefix(&self, prefix: &[u8]) -> Iter {
        self.view().prefix(prefix)
    }

    fn view(&self) -> View<'_> {
        View::as_of(&self.open.inner, self.moment)
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Snapshot {
        self.open.inner.snapshots.add_again(self.moment);
        Snapshot {
            open: Arc::clone(&self.open),
            moment: self.moment,
        }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.open.inner.snapshots.remove(self.moment);
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("sequence", &self.moment.sequence)
            .finish_non_exhaustive()
    }
}
