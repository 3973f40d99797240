//! The keyspaces `kv`, `kv.2`, `kv.3`, …, of which one has the state machine's entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_db::{Db, Keyspace};

use crate::records::KV;
use crate::{Error, Result};

/// The first one.
pub(crate) const FIRST: &str = "kv";

pub(crate) struct KvKeyspaces {
    db: Db,
    current: String,
    /// The number of the one that was created last.
    last: Arc<AtomicU64>,
}

impl KvKeyspaces {
    /// Drops all of them but the current one: what a crash has left of a snapshot that was
    /// received, or of the entries that one has replaced.
    pub(crate) fn open(db: &Db, current: String) -> Result<KvKeyspaces> {
        let Some(last) = number(&current) else {
            return Err(Error::BadRecord {
                keyspace: "meta".to_owned(),
                record: KV.to_owned(),
                reason: format!("{current:?} is not a keyspace of the state machine"),
            });
        };
        for name in db.keyspaces() {
            if is_of_kv(&name) && name != current {
                db.drop_keyspace(&name)?;
            }
        }
        Ok(KvKeyspaces {
            db: db.clone(),
            current,
            last: Arc::new(AtomicU64::new(last)),
        })
    }

    /// The one that had the entries when the store was opened.
    pub(crate) fn current(&self) -> Result<Keyspace> {
        self.db
            .find_keyspace(&self.current)
            .ok_or_else(|| Error::BadRecord {
                keyspace: "meta".to_owned(),
                record: KV.to_owned(),
                reason: format!("the keyspace {:?} is missing", self.current),
            })
    }

    /// Creates a new one.
    pub(crate) fn create(&self) -> Result<Keyspace> {
        // Relaxed: the numbers only have to differ.
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(self.db.keyspace(&format!("{FIRST}.{number}"))?)
    }
}

/// Whether a keyspace is one of these.
pub(crate) fn is_of_kv(name: &str) -> bool {
    number(name).is_some()
}

/// The number of a keyspace; `None` if it is not one of these.
fn number(name: &str) -> Option<u64> {
    let rest = name.strip_prefix(FIRST)?;
    if rest.is_empty() {
        return Some(1);
    }
    let number = rest.strip_prefix('.')?.parse().ok()?;
    // The same number may be written in several ways; only one of them is ours.
    (number > 1 && rest[1..] == u64::to_string(&number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_given_here_have_a_number() {
        assert_eq!(number("kv"), Some(1));
        assert_eq!(number("kv.2"), Some(2));
        assert_eq!(number("kv.17"), Some(17));
        for other in [
            "", "k", "kv.", "kv.1", "kv.02", "kv.+2", "kv.x", "kv2", "users",
        ] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
