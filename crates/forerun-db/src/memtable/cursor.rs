//! Cursors over a memtable.
//!
//! ```text
//!   Cursor          a 7 │     │ b 4 │ c 6 │       what a snapshot sees: one version of each key
//!   TableVersions   a 7 │ a 3 │ b 4 │ c 6 │ c 5   all versions, the newest of a key first
//! ```

use super::memory_checks::{Checked, Paranoid, Trusting};
use super::node::Node;
use super::{MemTable, MemoryChecks, corrupt_entry, skip_list_cursor, with_checks};
use crate::Result;
use crate::cache::driver::Reads;
use crate::run::interleaved_seek::InterleavedSeek;
use crate::versions::{Entry, SeekTarget, SkipDeleted, Version, VersionCursor, VisibleEntries};

/// A cursor over the entries that a snapshot sees. It needs no lock and sees none of the writes
/// that come after its snapshot. It lends the entry at its position.
///
/// ```
/// use forerun_db::Op;
/// use forerun_db::memtable::{MemTable, MemTableConfig};
///
/// let table = MemTable::new(MemTableConfig::default())?;
/// let writes = [Op::Put { key: b"bee", value: b"1" }, Op::Put { key: b"ant", value: b"2" }];
/// table.prepare(writes.into_iter())?.publish(1);
///
/// let mut cursor = table.cursor(2);
/// assert_eq!(cursor.seek_first()?.map(|entry| entry.key), Some(&b"ant"[..]));
/// assert_eq!(cursor.next()?.map(|entry| entry.key), Some(&b"bee"[..]));
/// assert_eq!(cursor.next()?, None);
/// # Ok::<(), forerun_db::Error>(())
/// ```
///
/// All moves can fail with [`Error::CorruptEntry`](crate::Error::CorruptEntry), with
/// [`MemoryChecks::Paranoid`] only. Then the cursor has no position, as after the last entry.
pub struct Cursor<'a>(VisibleEntries<TableVersions<'a>>);

impl<'a> Cursor<'a> {
    pub(super) fn new(table: &'a MemTable, snapshot: u64) -> Self {
        let order = table.list.order().clone();
        Cursor(VisibleEntries::new(table.versions(), order, snapshot))
    }
}

impl Cursor<'_> {
    /// Goes to the first entry.
    pub fn seek_first(&mut self) -> Result<Option<Entry<'_>>> {
        self.0.seek_first()
    }

    /// Goes to the last entry.
    pub fn seek_last(&mut self) -> Result<Option<Entry<'_>>> {
        self.0.seek_last()
    }

    /// Goes to the first entry whose key is at or after `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<Option<Entry<'_>>> {
        self.0.seek(key)
    }

    /// Goes to the first entry whose key is after `key`.
    pub fn seek_after(&mut self, key: &[u8]) -> Result<Option<Entry<'_>>> {
        self.0.seek_after(key)
    }

    /// Goes to the last entry whose key is before `key`.
    pub fn seek_before(&mut self, key: &[u8]) -> Result<Option<Entry<'_>>> {
        self.0.seek_before(key)
    }

    /// Goes to the next entry, or to the first if the cursor has no position.
    #[expect(
        clippy::should_implement_trait,
        reason = "a cursor moves both ways and lends its entry"
    )]
    pub fn next(&mut self) -> Result<Option<Entry<'_>>> {
        self.0.next()
    }

    /// Goes to the previous entry, or to the last if the cursor has no position.
    pub fn prev(&mut self) -> Result<Option<Entry<'_>>> {
        self.0.prev()
    }
}

/// A cursor over all versions in a table.
///
/// Nodes are linked forward only, so a step backward takes a search. A search therefore finds
/// several nodes at once. Versions that are added between them meanwhile are not seen; they are too
/// new for any reader that came before.
pub(crate) struct TableVersions<'a> {
    table: &'a MemTable,
    at: Option<Node<'a>>,
    /// Moving backward: the nodes before `at`, in order, as far as the last search found them.
    before: Vec<Node<'a>>,
    /// Moving backward: the level from which the next search returns nodes. It rises with each
    /// search, so that one step costs little more than a search and many steps cost few.
    reach: usize,
}

impl<'a> TableVersions<'a> {
    pub(super) fn new(table: &'a MemTable) -> Self {
        TableVersions {
            table,
            at: None,
            before: Vec::new(),
            reach: 0,
        }
    }

    fn go(&mut self, to: Checked<Option<Node<'a>>>) -> Result<()> {
        self.before.clear();
        self.reach = 0;
        self.at = None;
        self.at = to.map_err(corrupt_entry)?;
        Ok(())
    }
}

impl InterleavedSeek for TableVersions<'_> {
    /// Of a memtable it is only known whether it is empty.
    fn seek_by_bounds(&mut self, _to: SeekTarget<'_>) -> bool {
        self.at = None;
        skip_list_cursor::is_empty(&self.table.list)
    }

    /// Awaits each node before it reads it.
    async fn search_interleaved<'s, 'g>(
        &'s mut self,
        _reads: &'s Reads<'g>,
        to: SeekTarget<'s>,
    ) -> Result<()>
    where
        Self: 'g,
    {
        self.at = None;
        let list = &self.table.list;
        let found = with_checks!(self.table, V => skip_list_cursor::neighbor::<V>(list, to).await);
        self.go(found)
    }
}

impl SkipDeleted for TableVersions<'_> {}

impl VersionCursor for TableVersions<'_> {
    fn seek_first(&mut self) -> Result<()> {
        let list = &self.table.list;
        self.go(with_checks!(self.table, V => skip_list_cursor::first::<V>(list)))
    }

    fn seek_last(&mut self) -> Result<()> {
        let list = &self.table.list;
        self.go(with_checks!(self.table, V => skip_list_cursor::last::<V>(list)))
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        let list = &self.table.list;
        self.go(with_checks!(self.table, V => skip_list_cursor::from::<V>(list, key, sequence)))
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        let list = &self.table.list;
        self.go(with_checks!(self.table, V => skip_list_cursor::before::<V>(list, key, sequence)))
    }

    fn next(&mut self) -> Result<()> {
        let list = &self.table.list;
        match self.at {
            Some(node) => {
                self.go(with_checks!(self.table, V => skip_list_cursor::step::<V>(list, node)))
            }
            None => Ok(()),
        }
    }

    fn prev(&mut self) -> Result<()> {
        let Some(node) = self.at else {
            return Ok(());
        };
        if self.before.is_empty() {
            self.at = None;
            let (list, position) = (&self.table.list, (node.key(), node.sequence()));
            let (level, before) = (self.reach, &mut self.before);
            // Searches record the levels up to this one, from the skip-list index or from the top.
            self.reach = (level + 1).min(list.shape().index_level);
            with_checks!(self.table, V => {
                skip_list_cursor::several_before::<V>(list, position, level, before)
            })
            .map_err(corrupt_entry)?;
        }
        self.at = self.before.pop();
        Ok(())
    }

    #[inline(always)]
    fn at(&self) -> Option<Version<'_>> {
        self.at.map(|node| Version {
            key: node.key(),
            sequence: node.sequence(),
            kind: node.kind(),
            value: node.value(),
        })
    }

    fn is_newest_of_key(&self) -> bool {
        let (Some(at), Some(before)) = (self.at, self.before.last()) else {
            return false;
        };
        let order = self.table.list.order();
        order.compare(before.key(), at.key()).is_ne()
    }

    fn reset(&mut self) {
        self.at = None;
        self.before.clear();
        self.reach = 0;
    }
}
