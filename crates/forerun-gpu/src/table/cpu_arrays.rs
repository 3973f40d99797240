//! Batches by address in a table on the CPU: the arrays are in ordinary memory.
//!
//! ```text
//!   address ─ not null, aligned ─▶ slice ─▶ Batch, Answers ─ the table on the CPU
//!   rows that are also output, scores that are also output: copied first, because the table reads them later
//! ```

use super::batch::{Answers, Batch, Condition, Entries, LookupMode, Operation, Status};
use super::batch_arrays::{ArrayUse, RawBatch, RawEntries, RawPooledBatch};
use super::error::TableError;
use super::gpu_table::GpuTable;
use super::table_command::Scan;
use forerun_core::pooling::{Bags, PoolingOptions};
use std::borrow::Cow;
use std::ops::Range;

/// The elements at an address.
///
/// # Safety
/// There must be that many, which nothing writes for as long as the slice lives. `T` must be valid
/// with any bits.
unsafe fn read<'a, T>(address: u64, count: u64, what: &'static str) -> Result<&'a [T], TableError> {
    match checked::<T>(address, count, what)? {
        None => Ok(&[]),
        // SAFETY: the address is aligned and not null; the caller guarantees the elements.
        Some(count) => Ok(unsafe { std::slice::from_raw_parts(address as *const T, count) }),
    }
}

/// The elements at an address, to be written. Memory that another language allocates counts as
/// initialised.
///
/// # Safety
/// There must be that many, which nothing else uses for as long as the slice lives. `T` must be
/// valid with any bits.
unsafe fn write<'a, T>(
    address: u64,
    count: u64,
    what: &'static str,
) -> Result<&'a mut [T], TableError> {
    match checked::<T>(address, count, what)? {
        None => Ok(&mut []),
        // SAFETY: the address is aligned and not null; the caller guarantees the elements.
        Some(count) => Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut T, count) }),
    }
}

/// The number of elements, `None` if there are none, whose address then does not matter.
fn checked<T>(address: u64, count: u64, what: &'static str) -> Result<Option<usize>, TableError> {
    if count == 0 {
        return Ok(None);
    }
    let needs = ArrayUse::elements(what, count, size_of::<T>() as u64);
    needs.expect_address(address)?;
    let out_of_memory = TableError::OutOfMemory {
        bytes: needs.bytes,
        what,
    };
    // No array is longer than that.
    if needs.bytes > isize::MAX as u64 {
        return Err(out_of_memory);
    }
    Ok(Some(count as usize))
}

/// The number of keys: the count in memory, at most the batch's.
///
/// # Safety
/// A count must be there, if there is an address.
unsafe fn keys_in(count: u64, count_at: Option<u64>) -> Result<u64, TableError> {
    let Some(address) = count_at else {
        return Ok(count);
    };
    // SAFETY: the caller guarantees it.
    let at = unsafe { read::<u64>(address, 1, "the number of keys") }?;
    Ok(at[0].min(count))
}

/// Input that may be the same memory as output of this many elements at `output`; then it is
/// copied.
fn apart<'a, T: Clone>(input: &'a [T], output: Option<u64>) -> Cow<'a, [T]> {
    let start = input.as_ptr() as u64;
    let bytes = size_of_val(input) as u64;
    let overlaps =
        output.is_some_and(|output| output < start + bytes && start < output.saturating_add(bytes));
    if overlaps {
        Cow::Owned(input.to_vec())
    } else {
        Cow::Borrowed(input)
    }
}

/// The answers of a batch of `n` keys, in its own memory.
///
/// # Safety
/// The batch's output arrays must have `n` elements each that nothing else uses meanwhile.
unsafe fn answers<'a>(batch: &RawBatch, n: u64, row_bytes: u64) -> Result<Answers<'a>, TableError> {
    let words = |address: Option<u64>, what| {
        address
            // SAFETY: the caller guarantees the elements, and every word is a u64.
            .map(|address| unsafe { write::<u64>(address, n, what) })
            .transpose()
    };
    let row_bytes = n.saturating_mul(row_bytes);
    let rows = match batch.rows_out {
        // SAFETY: as above, for bytes.
        Some(address) => Some(unsafe { write::<u8>(address, row_bytes, "the row output") }?),
        None => None,
    };
    let status = match batch.status_out {
        Some(address) => {
            // SAFETY: as above.
            let bytes = unsafe { write::<u8>(address, n, "the status output") }?;
            bytes.fill(Status::Absent as u8);
            let (start, len) = (bytes.as_mut_ptr().cast::<Status>(), bytes.len());
            // SAFETY: `Status` is one byte, and all of these are `Status::Absent`. The slice of
            // bytes is not used any more.
            Some(unsafe { std::slice::from_raw_parts_mut(start, len) })
        }
        None => None,
    };
    Ok(Answers {
        rows,
        scores: words(batch.scores_out, "the score output")?,
        slots: words(batch.slots_out, "the slot output")?,
        pointers: words(batch.pointers_out, "the pointer output")?,
        status,
    })
}

/// Appends entries to the caller's arrays, of which each has room for `max` more, and adds their
/// number to its count.
///
/// # Safety
/// As for [`answers`].
unsafe fn give(
    entries: &Entries,
    out: &RawEntries,
    max: u64,
    row_bytes: u64,
) -> Result<(), TableError> {
    // SAFETY: the caller guarantees the count.
    let count = unsafe { write::<u64>(out.count, 1, "the entry output's count") }?;
    let first = count[0];
    count[0] = first.saturating_add(entries.len() as u64);
    // What has no room is counted.
    let n = (entries.len() as u64).min(max) as usize;
    if n == 0 {
        return Ok(());
    }
    let words = [
        (Some(out.keys), &entries.keys, "the entry output's keys"),
        (out.scores, &entries.scores, "the entry output's scores"),
        (
            out.positions,
            &entries.positions,
            "the entry output's positions",
        ),
    ];
    for (address, from, what) in words {
        if let Some(address) = address
            && !from.is_empty()
        {
            // SAFETY: the caller guarantees `max` elements, and these are not beyond.
            let to = unsafe { write::<u64>(address + first * 8, n as u64, what) }?;
            to.copy_from_slice(&from[..n]);
        }
    }
    if let Some(address) = out.rows
        && !entries.rows.is_empty()
    {
        let (at, len) = (address + first * row_bytes, n as u64 * row_bytes);
        // SAFETY: as above, for rows.
        let to = unsafe { write::<u8>(at, len, "the entry output's rows") }?;
        to.copy_from_slice(&entries.rows[..len as usize]);
    }
    Ok(())
}

/// Calls for tables on the CPU. Those whose arrays are elsewhere are refused.
///
/// # Safety
/// All of them need arrays of the lengths that the batch's fields require, which nothing writes
/// meanwhile and, where they are output, nothing else reads. `rows_out` may be `rows`, and
/// `scores_out` may be `scores`.
impl GpuTable {
    pub(super) unsafe fn apply_here(
        &mut self,
        operation: Operation,
        batch: &RawBatch,
    ) -> Result<(), TableError> {
        self.expect_arrays(operation, batch)?;
        let row_bytes = self.options().row_bytes;
        // SAFETY: the caller guarantees the arrays. Those that may also be output are copied before
        // the output is borrowed.
        let (keys, rows, scores, flags) = unsafe {
            let n = keys_in(batch.count, batch.count_at)?;
            let keys = read::<u64>(batch.keys, n, "the keys")?;
            let bytes = n.saturating_mul(row_bytes);
            let rows = match batch.rows {
                Some(rows) => Some(apart(read::<u8>(rows, bytes, "the rows")?, batch.rows_out)),
                None => None,
            };
            let scores = match batch.scores {
                Some(scores) => {
                    let scores = read::<u64>(scores, n, "the scores")?;
                    Some(apart(scores, batch.scores_out))
                }
                None => None,
            };
            let flags = match batch.flags {
                Some(flags) => Some(read::<u8>(flags, n, "the flags")?),
                None => None,
            };
            (keys, rows, scores, flags)
        };
        let given = Batch {
            keys,
            rows: rows.as_deref(),
            scores: scores.as_deref(),
            flags,
            epoch: batch.epoch,
        };
        // SAFETY: the caller guarantees the arrays.
        let answers = unsafe { answers(batch, keys.len() as u64, row_bytes) }?;
        let rest = self.apply(operation, &given, answers)?;
        match &batch.entries_out {
            // SAFETY: as above; the answers are not borrowed any more.
            Some(out) => unsafe { give(&rest, out, batch.count, row_bytes) },
            None => Ok(()),
        }
    }

    pub(super) unsafe fn lookup_here(
        &self,
        lookup: LookupMode,
        batch: &RawBatch,
    ) -> Result<(), TableError> {
        let row_bytes = self.options().row_bytes;
        // SAFETY: the caller guarantees the arrays.
        let (keys, answers) = unsafe {
            let n = keys_in(batch.count, batch.count_at)?;
            let keys = read::<u64>(batch.keys, n, "the keys")?;
            (keys, answers(batch, n, row_bytes)?)
        };
        let mut missed = Entries::default();
        match &batch.entries_out {
            None => self.lookup(lookup, keys, answers),
            Some(out) => {
                self.lookup_missed(keys, answers, &mut missed)?;
                // SAFETY: as above; the answers are not borrowed any more.
                unsafe { give(&missed, out, batch.count, row_bytes) }
            }
        }
    }

    pub(super) unsafe fn scan_here(
        &mut self,
        scan: Scan,
        slots: Range<u64>,
        condition: &Condition,
        out: &RawEntries,
    ) -> Result<(), TableError> {
        let row_bytes = self.options().row_bytes;
        let max = slots.end.saturating_sub(slots.start);
        let mut entries = Entries::default();
        let met = self.scan(scan.number(), slots, condition, &mut entries)?;
        if scan == Scan::Export {
            // SAFETY: the caller guarantees the arrays.
            return unsafe { give(&entries, out, max, row_bytes) };
        }
        // SAFETY: as above.
        let count = unsafe { write::<u64>(out.count, 1, "the entry output's count") }?;
        count[0] = count[0].saturating_add(met);
        Ok(())
    }

    pub(super) unsafe fn pool_here(
        &self,
        options: &PoolingOptions,
        batch: &RawPooledBatch,
    ) -> Result<(), TableError> {
        let dim = options.dim(self.options().row_bytes)?;
        let row_bytes = dim.saturating_mul(options.output.bytes());
        let offsets = batch.bags.saturating_add(1);
        // SAFETY: the caller guarantees the arrays.
        let (bags, rows_out, found_out) = unsafe {
            let n = keys_in(batch.count, batch.count_at)?;
            let bags = Bags {
                weights: match batch.weights {
                    Some(weights) => Some(read::<f32>(weights, n, "the weights")?),
                    None => None,
                },
                ..Bags::new(
                    read::<u64>(batch.keys, n, "the keys")?,
                    read::<u64>(batch.offsets, offsets, "the offsets")?,
                )
            };
            let bytes = batch.bags.saturating_mul(row_bytes);
            let rows_out = write::<u8>(batch.rows_out, bytes, "the pooled rows")?;
            let found_out = match batch.found_out {
                Some(found) => Some(write::<u32>(found, batch.bags, "the counts of found keys")?),
                None => None,
            };
            (bags, rows_out, found_out)
        };
        match found_out {
            Some(found) => self.find_pooled(&bags, options, rows_out, found),
            None => self.find_pooled(&bags, options, rows_out, &mut vec![0; bags.len()]),
        }
    }
}
