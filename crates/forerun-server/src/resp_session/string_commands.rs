//! Strings that are read and changed in one step.

use forerun_cache::{ComputeOp, ComputePut, Item, ValuePart};

use crate::resp::error_texts as texts;
use crate::resp::parse::BULK_BYTES_MAX;

use super::call::{Call, OldValue, Refusal, string_of};

/// A new value that keeps the old item's time and flags.
pub(super) fn in_place_of<'v>(
    old: Option<&Item<'_>>,
    value: impl Into<forerun_cache::ComputeValue<'v>>,
) -> ComputeOp<'v> {
    let mut put = ComputePut::new(value);
    if let Some(old) = old {
        put.expiry = old.expiry();
        put.flags = old.flags();
        put.kind = old.kind();
    }
    ComputeOp::Put(put)
}

impl Call<'_, '_> {
    /// `APPEND key value`.
    pub(super) fn append(&mut self) -> Result<(), Refusal> {
        self.context.counters.cmd_set.add(1);
        let value = self.argument(2);
        let len = self.update(self.argument(1), |old| {
            let len = string_of(old)?.map_or(0, <[u8]>::len) + value.len();
            let parts = vec![ValuePart::Old(0..usize::MAX), ValuePart::Bytes(value)];
            Ok((in_place_of(old, parts), len))
        })?;
        self.count(len);
        Ok(())
    }

    /// `SETRANGE key offset value`.
    pub(super) fn setrange(&mut self) -> Result<(), Refusal> {
        let value = self.argument(3);
        let offset = usize::try_from(self.integer(2)?).map_err(|_| texts::OFFSET_RANGE)?;
        let end = offset.saturating_add(value.len());
        let is_too_large =
            end > BULK_BYTES_MAX || end > self.context.cache.options().max_item_bytes;
        self.context.counters.cmd_set.add(1);
        // Zeros up to the offset, of which those behind the old value are used.
        let zeros = if is_too_large || value.is_empty() {
            Vec::new()
        } else {
            vec![0; offset]
        };
        let len = self.update(self.argument(1), |old| {
            let old_len = string_of(old)?.map_or(0, <[u8]>::len);
            if value.is_empty() {
                return Ok((ComputeOp::Keep, old_len));
            }
            if is_too_large {
                return Err(texts::STRING_TOO_LARGE);
            }
            let parts = vec![
                ValuePart::Old(0..offset),
                ValuePart::Bytes(zeros.get(old_len..).unwrap_or_default()),
                ValuePart::Bytes(value),
                ValuePart::Old(end..usize::MAX),
            ];
            Ok((in_place_of(old, parts), old_len.max(end)))
        })?;
        self.count(len);
        Ok(())
    }

    /// `GETDEL key`.
    pub(super) fn getdel(&mut self) -> Result<(), Refusal> {
        let value = self.update(self.argument(1), |old| {
            let value = string_of(old)?.and(old).map(OldValue::of);
            Ok((ComputeOp::Remove, value))
        })?;
        self.count_deletion(value.is_some());
        self.old_value(value);
        Ok(())
    }

    /// `DELIFEQ key value`.
    pub(super) fn delifeq(&mut self) -> Result<(), Refusal> {
        let is_deleted = self.delete_if_equal(self.argument(1), self.argument(2))? == Some(true);
        self.number(is_deleted.into());
        Ok(())
    }

    /// Deletes a key if its string is `value`. Returns whether it was, or `None` without an item.
    pub(super) fn delete_if_equal(
        &mut self,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<bool>, Refusal> {
        let is_equal = self.update(key, |old| {
            let is_equal = string_of(old)?.map(|old| old == value);
            let op = match is_equal {
                Some(true) => ComputeOp::Remove,
                _ => ComputeOp::Keep,
            };
            Ok((op, is_equal))
        })?;
        self.count_deletion(is_equal == Some(true));
        Ok(is_equal)
    }

    pub(super) fn count_deletion(&self, is_hit: bool) {
        let counters = self.context.counters;
        if is_hit {
            counters.delete_hits.add(1)
        } else {
            counters.delete_misses.add(1)
        }
    }
}
