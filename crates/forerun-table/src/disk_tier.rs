//! The tier on disk: rows in a [`Db`].
//!
//! ```text
//!   key                             value
//!   8 bytes, big-endian             the row's bytes, then its score if scores are custom (8 bytes, little-endian)
//!   "forerun.table"                 a description of the rows (docs/internals/format-other.md)
//! ```
//!
//! Big-endian keys sort in numeric order, so numbers near each other are on one page.

use crate::evict_strategy::EvictStrategy;
use crate::row_count::RowCount;
use crate::{Dtype, Error, Result, RowType};
use forerun_db::{Access, Db, Durability, Keyspace, Snapshot, Values, WriteBatch};

/// The key of the description of the store's rows.
const DESCRIPTION_KEY: &[u8] = b"forerun.table";

const VERSION: u8 = 1;

/// A key as the store holds it.
pub(crate) type StoreKey = [u8; 8];

/// Rows on disk.
#[derive(Debug)]
pub(crate) struct Store {
    db: Db,
    format: Format,
    /// The memtable's size limit: at this size it is flushed to a file.
    memtable_bytes: usize,
    row_count: RowCount,
}

/// The layout of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    row_bytes: usize,
    has_scores: bool,
}

/// Rows to write.
#[derive(Debug)]
pub(crate) struct Rows {
    keys: Vec<u64>,
    batch: WriteBatch,
    /// The row followed by its score.
    value: Vec<u8>,
    /// Entries of other keyspaces.
    others: u64,
}

impl Rows {
    /// Adds an entry of another keyspace of the store.
    pub(crate) fn put_elsewhere(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.batch.keyspace(keyspace).put(key, value)?;
        self.others += 1;
        Ok(())
    }

    /// Adds the removal of a row.
    pub(crate) fn remove(&mut self, key: u64) -> Result<()> {
        self.batch.delete(&key.to_be_bytes())?;
        self.keys.push(key);
        Ok(())
    }
}

impl Store {
    /// Opens a table in a store that is new or already holds rows of this type.
    pub(crate) fn open(db: Db, row: RowType, strategy: EvictStrategy) -> Result<Store> {
        if let Some(ttl) = db.default_keyspace().ttl() {
            return Err(Error::StoreTtl { ttl });
        }
        let has_scores = strategy.is_custom();
        let description = describe(row, has_scores);
        match db.get(DESCRIPTION_KEY)? {
            Some(found) if found == description => {}
            Some(found) => {
                return Err(Error::OtherTable {
                    path: db.path().display().to_string(),
                    row,
                    reason: read_description(&found),
                });
            }
            None => {
                if let Some(entry) = db.iter().next() {
                    entry?;
                    return Err(Error::OtherTable {
                        path: db.path().display().to_string(),
                        row,
                        reason: "it has entries and no description of rows".to_owned(),
                    });
                }
                if db.access() == Access::ReadOnly {
                    return Err(Error::OtherTable {
                        path: db.path().display().to_string(),
                        row,
                        reason: "the store is empty".to_owned(),
                    });
                }
                db.put(DESCRIPTION_KEY, &description)?;
            }
        }
        let format = Format {
            row_bytes: row.bytes(),
            has_scores,
        };
        let memtable_bytes = db.stats().memtable.limit_bytes;
        Ok(Store {
            db,
            format,
            memtable_bytes,
            row_count: RowCount::default(),
        })
    }

    /// The underlying store.
    pub(crate) fn db(&self) -> &Db {
        &self.db
    }

    /// Whether the store may not be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.db.access() == Access::ReadOnly
    }

    /// Refuses changes of a store that was opened read-only.
    pub(crate) fn check_access(&self) -> Result<()> {
        if self.is_read_only() {
            Err(Error::Store(forerun_db::Error::ReadOnly {
                path: self.db.path().to_owned(),
            }))
        } else {
            Ok(())
        }
    }

    /// The layout of the values.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Looks up keys. [`Format::row`] reads the answers.
    pub(crate) fn find(&self, keys: &[StoreKey], values: &mut Values) -> Result<()> {
        Ok(self.db.multi_get(keys, values)?)
    }

    /// An empty batch of rows.
    pub(crate) fn rows(&self) -> Rows {
        Rows {
            keys: Vec::new(),
            batch: WriteBatch::new(),
            value: Vec::new(),
            others: 0,
        }
    }

    /// Adds a row to a batch.
    pub(crate) fn add(&self, rows: &mut Rows, key: u64, row: &[u8], score: u64) -> Result<()> {
        let value = self.format.join(row, score, &mut rows.value);
        rows.batch.put(&key.to_be_bytes(), value)?;
        rows.keys.push(key);
        Ok(())
    }

    /// Writes a batch of rows: all or none. The caller holds the locks of their keys, as for all
    /// writes.
    pub(crate) fn write(&self, rows: &Rows) -> Result<()> {
        if !rows.batch.is_empty() {
            self.db.write(&rows.batch, Durability::Buffered)?;
            let keys = rows.keys.iter().copied();
            let operations = rows.keys.len() as u64 + rows.others;
            self.row_count.note(keys, operations);
        }
        Ok(())
    }

    /// The last count of the rows.
    pub(crate) fn row_count(&self) -> &RowCount {
        &self.row_count
    }

    /// Whether this many rows justify the files and the flush of an ingestion: at least half a
    /// memtable.
    pub(crate) fn is_worth_ingesting(&self, rows: usize) -> bool {
        let bytes = rows.saturating_mul(size_of::<StoreKey>() + self.format.row_bytes);
        bytes >= self.memtable_bytes / 2
    }

    /// Starts an ingestion. Rows must follow in ascending key order.
    pub(crate) fn ingest(&self) -> Ingestion<'_> {
        Ingestion {
            store: self,
            ingestion: self.db.ingest(),
            format: self.format,
            value: Vec::new(),
        }
    }
}

/// An ingestion: its rows become visible all at once.
pub(crate) struct Ingestion<'s> {
    store: &'s Store,
    ingestion: forerun_db::Ingestion,
    format: Format,
    /// The row followed by its score.
    value: Vec<u8>,
}

impl Ingestion<'_> {
    /// Adds a row. Its key must be above the last one.
    pub(crate) fn add(&mut self, key: u64, row: &[u8], score: u64) -> Result<()> {
        let value = self.format.join(row, score, &mut self.value);
        Ok(self.ingestion.add(&key.to_be_bytes(), value)?)
    }

    /// Makes all rows, which have these keys, visible and durable, or none.
    pub(crate) fn commit(self, keys: &[u64]) -> Result<()> {
        self.ingestion.commit()?;
        self.store.row_count.note(keys.iter().copied(), 1);
        Ok(())
    }
}

impl Format {
    /// Whether a score follows each row.
    pub(crate) fn has_scores(self) -> bool {
        self.has_scores
    }

    /// The value for a row and its score. It is built in `value` if it holds both.
    fn join<'v>(self, row: &'v [u8], score: u64, value: &'v mut Vec<u8>) -> &'v [u8] {
        if !self.has_scores {
            return row;
        }
        value.clear();
        value.extend_from_slice(row);
        value.extend_from_slice(&score.to_le_bytes());
        value
    }

    /// The row and score at a position of the answer.
    pub(crate) fn row(
        self,
        values: &Values,
        position: usize,
        key: u64,
    ) -> Result<Option<(&[u8], u64)>> {
        match values.get(position) {
            Ok(None) => Ok(None),
            Ok(Some(value)) => self.split(key, value).map(Some),
            Err(error) => Err(error.into()),
        }
    }

    /// Splits a value into row and score.
    pub(crate) fn split(self, key: u64, value: &[u8]) -> Result<(&[u8], u64)> {
        let score_bytes = if self.has_scores { 8 } else { 0 };
        let needed_bytes = self.row_bytes + score_bytes;
        if value.len() != needed_bytes {
            return Err(Error::BadRow {
                key,
                len_bytes: value.len(),
                needed_bytes,
            });
        }
        let (row, score) = value.split_at(self.row_bytes);
        let score = score
            .as_array()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Ok((row, score))
    }
}

/// The rows in a snapshot's entries: key, row, score.
pub(crate) fn rows_of(
    snapshot: &Snapshot,
    format: Format,
) -> impl Iterator<Item = Result<(u64, Vec<u8>, u64)>> + Send + use<> {
    snapshot.iter().filter_map(move |entry| match entry {
        Err(error) => Some(Err(error.into())),
        Ok((key, mut value)) => {
            // The description is the only key that is not a number.
            let key = u64::from_be_bytes(*key.as_array()?);
            Some(
                format
                    .split(key, &value)
                    .map(|(_, score)| score)
                    .map(|score| {
                        value.truncate(format.row_bytes);
                        (key, value, score)
                    }),
            )
        }
    })
}

/// Encodes the description of the rows: version, element code, whether scores follow, dimension.
fn describe(row: RowType, has_scores: bool) -> [u8; 8] {
    let [a, b, c, d] = row.dim.to_le_bytes();
    [
        VERSION,
        row.dtype.code(),
        u8::from(has_scores),
        0,
        a,
        b,
        c,
        d,
    ]
}

fn read_description(bytes: &[u8]) -> String {
    match *bytes {
        [VERSION, code, scores @ (0 | 1), 0, a, b, c, d] => match Dtype::from_code(code) {
            Some(dtype) => {
                let row = RowType::new(dtype, u32::from_le_bytes([a, b, c, d]));
                let scores = if scores == 1 { "with" } else { "without" };
                format!("it holds rows of {row} {scores} scores")
            }
            None => format!("it holds rows of an unknown element type, number {code}"),
        },
        [version, ..] if version > VERSION => {
            format!("it has format version {version}, and this release reads up to {VERSION}")
        }
        _ => "its description is damaged".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_description_contains_every_relevant_fact() {
        let row = RowType::new(Dtype::Bf16, 4096);
        let text = read_description(&describe(row, true));
        assert_eq!(text, "it holds rows of 4096 x bfloat16 with scores");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_decode_to_some_description(bytes: Vec<u8>) {
            prop_assert!(!read_description(&bytes).is_empty());
        }

        #[test]
        fn values_of_any_length_are_rows_or_rejected(
            value: Vec<u8>, row_bytes in 1usize..40, has_scores: bool,
        ) {
            let format = Format { row_bytes, has_scores };
            let fits = value.len() == row_bytes + if has_scores { 8 } else { 0 };
            match format.split(7, &value) {
                Ok((row, _)) => prop_assert!(fits && row == &value[..row_bytes]),
                Err(error) => prop_assert!(!fits && error.to_string().contains("key 7")),
            }
        }
    }
}
