//! The answers of a `multi_get`, in memory that the caller keeps and reuses.
//!
//! ```text
//!   slots   | found 0..5 | missing | found 5..9 | failed |      one per key, in the order of the keys
//!   bytes   |v v v v v|v v v v|                                 the values, in the order they were found
//! ```

use std::ops::Range;

use crate::{Error, Result};

/// The answers of one batch: for each key, in the order of the keys, a value, nothing, or an error.
///
/// The values are in one buffer that is reused from batch to batch, so a warm batch allocates
/// nothing.
///
/// ```
/// use forerun_db::{Db, Options, Values};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// db.put(b"paris", b"48.85,2.35")?;
/// let mut values = Values::new();
/// db.multi_get(&["paris", "atlantis"], &mut values)?;
/// assert_eq!(values.get(0)?, Some(&b"48.85,2.35"[..]));
/// assert_eq!(values.get(1)?, None);
/// assert_eq!(values.found(), 1);
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Values {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
    found: usize,
    /// Positions still to be looked up, passed from one source to the next. Kept for its memory.
    missing: Vec<u32>,
}

#[derive(Clone, Debug)]
enum Slot {
    Missing,
    Found(Range<usize>),
    Failed(Box<Error>),
}

impl Values {
    /// No answers, and no memory allocated yet.
    pub fn new() -> Values {
        Values::default()
    }

    /// The number of keys answered.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the batch was empty.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of keys whose value was found.
    pub fn found(&self) -> usize {
        self.found
    }

    /// Returns the value of the key at `position`, or `None` if the key is not there.
    ///
    /// ```
    /// use forerun_db::{Db, Error, Options, Values};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// let mut values = Values::new();
    /// db.multi_get(&["atlantis"], &mut values)?;
    /// assert_eq!(values.get(0)?, None);
    /// assert!(matches!(values.get(1), Err(Error::NoSuchPosition { position: 1, len: 1 })));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error for this one key; other keys of the batch may have values.
    /// [`Error::NoSuchPosition`] if the batch had no such position. Errors are returned by value,
    /// so `?` converts them to any error type that can be made from [`Error`].
    pub fn get(&self, position: usize) -> Result<Option<&[u8]>> {
        match self.slots.get(position) {
            None => Err(Error::NoSuchPosition {
                position,
                len: self.slots.len(),
            }),
            Some(Slot::Missing) => Ok(None),
            Some(Slot::Found(range)) => Ok(Some(&self.bytes[range.clone()])),
            Some(Slot::Failed(error)) => Err(Error::clone(error)),
        }
    }

    /// The answers, in the order of the keys.
    ///
    /// ```
    /// use forerun_db::{Db, Options, Values};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put("paris", "48.85,2.35")?;
    /// let mut values = Values::new();
    /// db.multi_get(&["atlantis", "paris"], &mut values)?;
    /// for (key, value) in ["atlantis", "paris"].into_iter().zip(values.iter()) {
    ///     println!("{key}: {:?}", value?);
    /// }
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Result<Option<&[u8]>>> {
        (0..self.slots.len()).map(|position| self.get(position))
    }

    /// Removes the answers but keeps the memory.
    pub fn clear(&mut self) {
        self.reset(0);
    }

    /// The bytes of memory held, used or not.
    pub fn capacity_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.slots.capacity() * size_of::<Slot>()
            + self.missing.capacity() * size_of::<u32>()
    }

    /// Copies the answers: a value, or `None` for a key that is not there, in the order of the
    /// keys.
    ///
    /// ```
    /// use forerun_db::{Db, Options, Values};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put("oslo", "59.91,10.75")?;
    /// let mut values = Values::new();
    /// db.multi_get(&["lyon", "oslo"], &mut values)?;
    /// assert_eq!(values.to_vec()?, [None, Some(b"59.91,10.75".to_vec())]);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first error of a key.
    pub fn to_vec(&self) -> Result<Vec<Option<Vec<u8>>>> {
        let owned = |answer: Result<Option<&[u8]>>| Ok(answer?.map(<[u8]>::to_vec));
        self.iter().map(owned).collect()
    }

    /// Makes room for `len` answers, all of them "missing" until set.
    pub(crate) fn reset(&mut self, len: usize) {
        self.bytes.clear();
        self.slots.clear();
        self.slots.resize(len, Slot::Missing);
        self.found = 0;
    }

    /// Lends the memory for positions, empty.
    pub(crate) fn take_missing(&mut self) -> Vec<u32> {
        let mut missing = std::mem::take(&mut self.missing);
        missing.clear();
        missing
    }

    /// Takes back the memory that [`take_missing`](Self::take_missing) lent.
    pub(crate) fn keep_missing(&mut self, missing: Vec<u32>) {
        self.missing = missing;
    }

    /// Sets the answer at `position`, once.
    #[inline]
    pub(crate) fn set_found(&mut self, position: usize, value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.slots[position] = Slot::Found(start..self.bytes.len());
        self.found += 1;
    }

    /// Sets the answer at `position` to a failure.
    #[cold]
    pub(crate) fn set_failed(&mut self, position: usize, error: Error) {
        self.slots[position] = Slot::Failed(Box::new(error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_at_their_positions_in_any_completion_order() {
        let mut values = Values::new();
        values.reset(4);
        values.set_found(2, b"two");
        values.set_failed(3, Error::Closed);
        values.set_found(0, b"");
        assert_eq!((values.len(), values.found()), (4, 2));
        assert_eq!(values.get(0).unwrap(), Some(&b""[..]));
        assert_eq!(values.get(1).unwrap(), None);
        assert_eq!(values.get(2).unwrap(), Some(&b"two"[..]));
        assert!(matches!(values.get(3), Err(Error::Closed)));
        assert!(matches!(
            values.get(4),
            Err(Error::NoSuchPosition {
                position: 4,
                len: 4
            })
        ));
        assert_eq!(values.iter().filter(Result::is_err).count(), 1);
    }

    #[test]
    fn an_answer_that_failed_converts_to_any_error_type() {
        fn first(
            values: &Values,
        ) -> Result<Option<Vec<u8>>, Box<dyn std::error::Error + Send + Sync>> {
            Ok(values.get(0)?.map(<[u8]>::to_vec))
        }
        let mut values = Values::new();
        values.reset(1);
        values.set_failed(0, Error::Closed);
        let error = first(&values).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(Error::Closed)));
    }

    #[test]
    fn a_second_batch_sees_nothing_of_the_first_and_takes_no_new_memory() {
        let mut values = Values::new();
        values.reset(3);
        values.set_found(1, &[7; 100]);
        let capacity_bytes = values.capacity_bytes();
        values.reset(2);
        assert_eq!(
            (values.len(), values.found(), values.get(1).unwrap()),
            (2, 0, None)
        );
        values.set_found(1, &[8; 100]);
        assert_eq!(values.capacity_bytes(), capacity_bytes);
        values.clear();
        assert!(values.is_empty());
    }
}
