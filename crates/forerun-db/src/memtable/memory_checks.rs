//! What a search verifies in the nodes that it visits.

use super::node::Node;
use super::skip_list::SkipList;

/// Whether a memtable verifies the entries that it reads.
///
/// ```
/// use forerun_db::{Db, MemoryChecks, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default().checks(MemoryChecks::Paranoid))?;
/// db.put("paris", "48.85,2.35")?;
/// assert!(db.get("paris")?.is_some()); // an entry that changed in memory would be an error
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum MemoryChecks {
    /// Memory is trusted.
    #[default]
    Off,
    /// Every entry carries a checksum. Every node that a lookup or a cursor visits has its checksum
    /// and its order verified, even where the prefix beside the pointer would have decided the step
    /// without reading the node. RocksDB calls this `paranoid_memory_checks`.
    Paranoid,
}

/// A node whose contents cannot be what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Corrupt {
    pub(super) key: Vec<u8>,
    pub(super) reason: &'static str,
}

/// The result of visiting nodes. The error is boxed because it is rare and the state of a suspended
/// lookup should stay small.
pub(super) type Checked<T> = Result<T, Box<Corrupt>>;

/// The checks of one search, chosen at compile time so that a trusting search does not even test
/// for them.
pub(super) trait Visit {
    /// Whether a node must be read even when the prefix beside the pointer decides the step.
    const READS_ALL: bool;

    /// Called for each node that was reached from `before`, before anything in it is used.
    fn visit(list: &SkipList, before: Node<'_>, node: Node<'_>) -> Checked<()>;
}

/// Checks nothing.
pub(super) struct Trusting;

impl Visit for Trusting {
    const READS_ALL: bool = false;

    #[inline(always)]
    fn visit(_: &SkipList, _: Node<'_>, _: Node<'_>) -> Checked<()> {
        Ok(())
    }
}

/// Checks everything that can be checked.
pub(super) struct Paranoid;

impl Visit for Paranoid {
    const READS_ALL: bool = true;

    fn visit(list: &SkipList, before: Node<'_>, node: Node<'_>) -> Checked<()> {
        if let Err(reason) = node.verify(list.arena()) {
            // The key or its length may be what is broken, so the error shows as much of the key as
            // can be read.
            let key = node.readable_key(list.arena()).to_vec();
            return Err(Box::new(Corrupt { key, reason }));
        }
        let in_order = before == list.head()
            || list
                .order()
                .compare(before.key(), node.key())
                .then_with(|| node.sequence().cmp(&before.sequence()))
                .is_lt();
        if in_order {
            Ok(())
        } else {
            Err(Box::new(Corrupt {
                key: node.key().to_vec(),
                reason: "it does not sort after the entry before it",
            }))
        }
    }
}
