//! The operations by their names: each a batch, an [`Operation`] or a [`Lookup`], and what comes
//! back.

use super::batch::{Answers, Batch, Element, Entries, Lookup, Operation, Status, check_rows_len};
use super::error::TableError;
use super::gpu_table::{GpuTable, RowsTo};
use crate::{DeviceSlice, GpuError};

impl GpuTable {
    fn apply_status(
        &mut self,
        operation: Operation,
        batch: &Batch<'_>,
    ) -> Result<Vec<Status>, TableError> {
        let mut status = vec![Status::Absent; batch.keys.len()];
        let answers = Answers {
            status: Some(&mut status),
            ..Answers::default()
        };
        self.apply(operation, batch, answers)?;
        Ok(status)
    }

    /// Puts rows in, over those that are there; where a key's buckets are full, in place of their
    /// least score, unless the newcomer's is less. Of a key that comes several times, one of the
    /// rows stays, whole.
    ///
    /// `scores` are what [`Policy::Custom`](super::Policy::Custom) and the counting policies take.
    ///
    /// # Errors
    /// As [`GpuTable::apply`].
    pub fn insert_or_assign(
        &mut self,
        keys: &[u64],
        rows: &[u8],
        scores: Option<&[u64]>,
    ) -> Result<Vec<Status>, TableError> {
        let batch = Batch {
            scores,
            ..Batch::rows(keys, rows)
        };
        self.apply_status(Operation::InsertOrAssign, &batch)
    }

    /// As [`GpuTable::insert_or_assign`], and gives what the table does not keep: entries that made
    /// room, and newcomers that found none.
    ///
    /// # Errors
    /// As [`GpuTable::apply`].
    pub fn insert_and_evict(
        &mut self,
        keys: &[u64],
        rows: &[u8],
        scores: Option<&[u64]>,
    ) -> Result<Entries, TableError> {
        let batch = Batch {
            scores,
            ..Batch::rows(keys, rows)
        };
        self.apply(Operation::InsertAndEvict, &batch, Answers::default())
    }

    /// The rows of keys that are there, into `rows`; those that are not are put in with what `rows`
    /// holds for them.
    ///
    /// # Errors
    /// As [`GpuTable::apply`].
    pub fn find_or_insert(
        &mut self,
        keys: &[u64],
        rows: &mut [u8],
        scores: Option<&[u64]>,
    ) -> Result<Vec<Status>, TableError> {
        let given = rows.to_vec();
        let batch = Batch {
            scores,
            ..Batch::rows(keys, &given)
        };
        let mut status = vec![Status::Absent; keys.len()];
        let answers = Answers {
            rows: Some(rows),
            status: Some(&mut status),
            ..Answers::default()
        };
        self.apply(Operation::FindOrInsert, &batch, answers)?;
        Ok(status)
    }

    /// The addresses of the keys' rows; keys that are not there are put in with rows of zeros. 0:
    /// it found no place.
    ///
    /// # Errors
    /// As [`GpuTable::apply`].
    pub fn find_or_insert_ptr(
        &mut self,
        keys: &[u64],
        scores: Option<&[u64]>,
    ) -> Result<(Vec<u64>, Vec<Status>), TableError> {
        let batch = Batch {
            scores,
            ..Batch::of(keys)
        };
        let (mut pointers, mut status) = (vec![0; keys.len()], vec![Status::Absent; keys.len()]);
        let answers = Answers {
            pointers: Some(&mut pointers),
            status: Some(&mut status),
            ..Answers::default()
        };
        self.apply(Operation::FindOrInsert, &batch, answers)?;
        Ok((pointers, status))
    }

    /// Adds rows to those of keys whose flag is not 0, if they are there; puts in keys whose flag
    /// is 0, if they are not.
    ///
    /// # Errors
    /// As [`GpuTable::apply`]; rows that are not made of whole elements.
    pub fn accumulate_or_assign(
        &mut self,
        element: Element,
        keys: &[u64],
        rows: &[u8],
        flags: &[u8],
        scores: Option<&[u64]>,
    ) -> Result<Vec<Status>, TableError> {
        let batch = Batch {
            scores,
            flags: Some(flags),
            ..Batch::rows(keys, rows)
        };
        self.apply_status(Operation::AccumulateOrAssign(element), &batch)
    }

    /// Rows, and scores by the policy, of keys that are there.
    ///
    /// # Errors
    /// As [`GpuTable::apply`].
    pub fn assign(
        &mut self,
        keys: &[u64],
        rows: &[u8],
        scores: Option<&[u64]>,
    ) -> Result<Vec<Status>, TableError> {
        let batch = Batch {
            scores,
            ..Batch::rows(keys, rows)
        };
        self.apply_status(Operation::Assign, &batch)
    }

    /// Scores, by the policy, of keys that are there.
    ///
    /// # Errors
    /// As [`GpuTable::apply`].
    pub fn assign_scores(
        &mut self,
        keys: &[u64],
        scores: Option<&[u64]>,
    ) -> Result<Vec<Status>, TableError> {
        let batch = Batch {
            scores,
            ..Batch::of(keys)
        };
        self.apply_status(Operation::AssignScores, &batch)
    }

    /// The rows of keys into `rows`, and which were there; bytes of the others stay as they are.
    ///
    /// # Errors
    /// As [`GpuTable::lookup`].
    pub fn find(&self, keys: &[u64], rows: &mut [u8]) -> Result<Vec<bool>, TableError> {
        let mut status = vec![Status::Absent; keys.len()];
        let answers = Answers {
            rows: Some(rows),
            status: Some(&mut status),
            ..Answers::default()
        };
        self.lookup(Lookup::ByLoad, keys, answers)?;
        Ok(status.into_iter().map(Status::is_present).collect())
    }

    /// As [`GpuTable::find`], and gives the keys that are not there, with their places, in no
    /// order.
    ///
    /// # Errors
    /// As [`GpuTable::lookup`].
    pub fn find_missed(&self, keys: &[u64], rows: &mut [u8]) -> Result<Entries, TableError> {
        self.find_missed_to(keys, RowsTo::Host(rows))
    }

    /// As [`GpuTable::find_missed`]; the rows go from the device's memory to the device's memory,
    /// and are there when this returns. It does not wait for work of other streams on that memory:
    /// order that by events, or by a scope's end.
    ///
    /// # Errors
    /// [`GpuError::NoDevice`] for a table that is not on a GPU; memory of another device; bytes
    /// that are not those of a row a key; as [`GpuTable::lookup`].
    pub fn find_missed_on_device(
        &self,
        keys: &[u64],
        rows: &DeviceSlice<'_>,
    ) -> Result<Entries, TableError> {
        let gpu = self.gpu().ok_or(GpuError::NoDevice)?;
        gpu.expect(rows.gpu(), "the room for rows")?;
        check_rows_len(
            Some(rows.len()),
            self.options().row_bytes,
            keys.len() as u64,
        )?;
        // SAFETY: the slice has a row's bytes a key, on this table's device, and is borrowed until
        // the lookup is done.
        unsafe { self.find_missed_at(keys, rows.address()) }
    }

    /// [`GpuTable::find_missed_on_device`] on whatever runs the kernels.
    ///
    /// # Safety
    /// At this address the backend has room for a row a key.
    ///
    /// # Errors
    /// The same as those of [`find_missed`](Self::find_missed).
    #[doc(hidden)]
    pub unsafe fn find_missed_at(&self, keys: &[u64], address: u64) -> Result<Entries, TableError> {
        self.find_missed_to(keys, RowsTo::Device(address))
    }

    /// The addresses of the keys' rows as the device sees them; 0 for keys that are not there. Good
    /// until the entry is erased or evicted, or the table grows.
    ///
    /// # Errors
    /// As [`GpuTable::lookup`].
    pub fn find_ptr(&self, keys: &[u64]) -> Result<Vec<u64>, TableError> {
        let mut pointers = vec![0; keys.len()];
        let answers = Answers {
            pointers: Some(&mut pointers),
            ..Answers::default()
        };
        self.lookup(Lookup::ByLoad, keys, answers)?;
        Ok(pointers)
    }

    /// Which keys are there.
    ///
    /// # Errors
    /// As [`GpuTable::lookup`].
    pub fn contains(&self, keys: &[u64]) -> Result<Vec<bool>, TableError> {
        let mut status = vec![Status::Absent; keys.len()];
        let answers = Answers {
            status: Some(&mut status),
            ..Answers::default()
        };
        self.lookup(Lookup::ByLoad, keys, answers)?;
        Ok(status.into_iter().map(Status::is_present).collect())
    }

    /// As [`GpuTable::find`], and the scores of keys that are there follow the policy.
    ///
    /// # Errors
    /// As [`GpuTable::apply`].
    pub fn find_and_update(
        &mut self,
        keys: &[u64],
        rows: &mut [u8],
        scores: Option<&[u64]>,
    ) -> Result<Vec<Status>, TableError> {
        let batch = Batch {
            scores,
            ..Batch::of(keys)
        };
        let mut status = vec![Status::Absent; keys.len()];
        let answers = Answers {
            rows: Some(rows),
            status: Some(&mut status),
            ..Answers::default()
        };
        self.apply(Operation::FindAndUpdate, &batch, answers)?;
        Ok(status)
    }

    /// Pins entries: nothing changes, erases or evicts them until they are unlocked; lookups find
    /// them.
    ///
    /// # Errors
    /// As [`GpuTable::apply`].
    pub fn lock(&mut self, keys: &[u64]) -> Result<Vec<Status>, TableError> {
        self.apply_status(Operation::Lock, &Batch::of(keys))
    }

    /// Unpins them.
    ///
    /// # Errors
    /// As [`GpuTable::apply`].
    pub fn unlock(&mut self, keys: &[u64]) -> Result<Vec<Status>, TableError> {
        self.apply_status(Operation::Unlock, &Batch::of(keys))
    }

    /// Takes keys out.
    ///
    /// # Errors
    /// As [`GpuTable::apply`].
    pub fn erase(&mut self, keys: &[u64]) -> Result<Vec<Status>, TableError> {
        self.apply_status(Operation::Erase, &Batch::of(keys))
    }
}
