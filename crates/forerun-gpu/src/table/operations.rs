//! The named operations. Each combines a batch, an [`Operation`] or a [`LookupMode`], and its
//! result.

use super::batch::{
    Answers, Batch, Element, Entries, LookupMode, Operation, Status, check_rows_len,
};
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

    /// Inserts rows or replaces present ones. If a key's buckets are full, it replaces the entry
    /// with their lowest score, unless the new score is lower. If a key repeats, the table keeps
    /// one of its rows, never a mix.
    ///
    /// [`GpuEvictStrategy::Customized`](super::GpuEvictStrategy::Customized) and the counting
    /// strategies use `scores`.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`].
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

    /// Like [`GpuTable::insert_or_assign`], and returns the entries that the table does not keep:
    /// evicted ones and refused new ones.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`].
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

    /// Copies the rows of present keys into `rows`. Inserts absent keys with the content of `rows`.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`].
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

    /// The addresses of the keys' rows. Absent keys are inserted with rows of zeros. An address of
    /// 0 means that the key was refused.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`].
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

    /// Adds rows to those of present keys whose flag is not 0, and inserts absent keys whose flag
    /// is 0.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`]; rows do not consist of whole elements.
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

    /// Sets the rows of present keys, and their scores by the strategy.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`].
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

    /// Sets the scores of present keys by the strategy.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`].
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

    /// Copies the rows of keys into `rows` and returns which keys are present. The bytes of absent
    /// keys stay as they are, or become zeros if another stream removed the key during the lookup.
    ///
    /// # Errors
    /// Those of [`GpuTable::lookup`].
    pub fn find(&self, keys: &[u64], rows: &mut [u8]) -> Result<Vec<bool>, TableError> {
        let mut status = vec![Status::Absent; keys.len()];
        let answers = Answers {
            rows: Some(rows),
            status: Some(&mut status),
            ..Answers::default()
        };
        self.lookup(LookupMode::ByLoad, keys, answers)?;
        Ok(status.into_iter().map(Status::is_present).collect())
    }

    /// Like [`GpuTable::find`], but returns the missing keys with their positions, in no order.
    ///
    /// # Errors
    /// Those of [`GpuTable::lookup`].
    pub fn find_missed(&self, keys: &[u64], rows: &mut [u8]) -> Result<Entries, TableError> {
        self.find_missed_to(keys, RowsTo::Host(rows))
    }

    /// Like [`GpuTable::find_missed`], with rows copied from device memory to device memory. They
    /// are there when this returns. It does not wait for other streams' work on that memory: order
    /// that with events or the end of a scope.
    ///
    /// # Errors
    /// [`GpuError::NoDevice`] if the table is not on a GPU; the memory is on another device; its
    /// size is not one row per key; those of [`GpuTable::lookup`].
    pub fn find_missed_on_device(
        &self,
        keys: &[u64],
        rows: &DeviceSlice<'_>,
    ) -> Result<Entries, TableError> {
        let gpu = self.gpu().ok_or(GpuError::NoDevice)?;
        gpu.expect(rows.gpu(), "the row output")?;
        check_rows_len(
            Some(rows.len()),
            self.options().row_bytes,
            keys.len() as u64,
        )?;
        // SAFETY: the slice has the bytes of one row per key, is on this table's device, and is
        // borrowed until the lookup is done.
        unsafe { self.find_missed_at(keys, rows.address()) }
    }

    /// [`GpuTable::find_missed_on_device`] on any backend that runs the kernels. For tests.
    ///
    /// # Safety
    /// The backend must have space for one row per key at this address.
    ///
    /// # Errors
    /// The same as those of [`find_missed`](Self::find_missed).
    #[doc(hidden)]
    pub unsafe fn find_missed_at(&self, keys: &[u64], address: u64) -> Result<Entries, TableError> {
        self.find_missed_to(keys, RowsTo::Device(address))
    }

    /// The device addresses of the keys' rows, 0 for absent keys. They are valid until the entry is
    /// erased or evicted, or the table grows.
    ///
    /// # Errors
    /// Those of [`GpuTable::lookup`].
    pub fn find_ptr(&self, keys: &[u64]) -> Result<Vec<u64>, TableError> {
        let mut pointers = vec![0; keys.len()];
        let answers = Answers {
            pointers: Some(&mut pointers),
            ..Answers::default()
        };
        self.lookup(LookupMode::ByLoad, keys, answers)?;
        Ok(pointers)
    }

    /// Returns which keys are present.
    ///
    /// # Errors
    /// Those of [`GpuTable::lookup`].
    pub fn contains(&self, keys: &[u64]) -> Result<Vec<bool>, TableError> {
        let mut status = vec![Status::Absent; keys.len()];
        let answers = Answers {
            status: Some(&mut status),
            ..Answers::default()
        };
        self.lookup(LookupMode::ByLoad, keys, answers)?;
        Ok(status.into_iter().map(Status::is_present).collect())
    }

    /// Like [`GpuTable::find`], and updates the scores of present keys by the strategy.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`].
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

    /// The addresses of the rows of present keys, whose scores are updated by the strategy; 0 for
    /// absent keys. They are valid as long as those of [`GpuTable::find_ptr`].
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`].
    pub fn find_and_update_ptr(
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
        self.apply(Operation::FindAndUpdate, &batch, answers)?;
        Ok((pointers, status))
    }

    /// Pins entries: nothing changes, erases or evicts them until they are unlocked. Lookups find
    /// them.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`].
    pub fn lock(&mut self, keys: &[u64]) -> Result<Vec<Status>, TableError> {
        self.apply_status(Operation::Lock, &Batch::of(keys))
    }

    /// Unpins entries.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`].
    pub fn unlock(&mut self, keys: &[u64]) -> Result<Vec<Status>, TableError> {
        self.apply_status(Operation::Unlock, &Batch::of(keys))
    }

    /// Erases keys.
    ///
    /// # Errors
    /// Those of [`GpuTable::apply`].
    pub fn erase(&mut self, keys: &[u64]) -> Result<Vec<Status>, TableError> {
        self.apply_status(Operation::Erase, &Batch::of(keys))
    }
}
