//! A read-modify-write of one item, which no other thread interrupts.

use crate::blocks::item_layout::{Record, len_of};
use crate::cache::Cache;
use crate::compute_op::{ComputeOp, ComputePut, ComputeResult, ComputeValue};
use crate::expiry::Deadline;
use crate::item::Item;
use crate::value::SharedValue;
use crate::write::{Decision, InPlace, NewBody, NewItem, Operation, Outcome, Touched};
use std::borrow::Cow;
use std::cell::RefCell;
use std::marker::PhantomData;

/// A value is shared by an item and the one that is about to replace it.
const ITEMS_PER_VALUE_MAX: usize = 2;

impl Cache {
    /// Reads the item of a key and replaces, removes or keeps it, as `decide` says: one step to all
    /// other threads.
    ///
    /// `decide` is called again if another thread has changed the item in the meantime, or if the
    /// item was evicted in the meantime; the last call counts. Others are evicted first to make
    /// room for the new item. `decide` must return soon and must not use the cache, because a lock
    /// may be held. The new item counts as read once more than the old one; otherwise, a
    /// computation leaves no trace of a read.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, ComputeOp, ComputePut, ComputeResult, ValuePart};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let append = |suffix: &[u8]| {
    ///     cache.compute("log", |old| {
    ///         let parts = vec![ValuePart::Old(0..usize::MAX), ValuePart::Bytes(suffix)];
    ///         ComputeOp::Put(match old {
    ///             Some(old) => ComputePut { expiry: old.expiry(), ..ComputePut::new(parts) },
    ///             None => ComputePut::new(suffix),
    ///         })
    ///     })
    /// };
    /// assert!(matches!(append(b"one "), ComputeResult::Stored { .. }));
    /// assert!(matches!(append(b"two"), ComputeResult::Stored { .. }));
    /// assert_eq!(cache.get("log").as_deref(), Some(&b"one two"[..]));
    /// let removed = cache.compute("log", |_| ComputeOp::Remove);
    /// assert_eq!(removed, ComputeResult::Removed);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn compute<'a>(
        &self,
        key: impl AsRef<[u8]>,
        decide: impl FnMut(Option<&Item<'_>>) -> ComputeOp<'a>,
    ) -> ComputeResult {
        if self.is_forked() {
            return ComputeResult::Forked;
        }
        let key = key.as_ref();
        if !self.is_key(key) {
            return ComputeResult::InvalidKey;
        }
        let operation = ComputeOperation {
            cache: self,
            key,
            decide: RefCell::new(decide),
            borrowed: PhantomData,
        };
        match self.update(key, &operation) {
            Outcome::Answer(Done::Touched(touched)) => {
                self.finish_touch(key, touched);
                ComputeResult::Touched
            }
            Outcome::Answer(Done::Removed) => {
                self.collect_waiting();
                ComputeResult::Removed
            }
            Outcome::Answer(Done::Nothing(result)) => result,
            Outcome::Written { cas } => ComputeResult::Stored { cas },
            Outcome::OutOfMemory => ComputeResult::OutOfMemory,
        }
    }
}

/// What was done, if nothing was written.
enum Done {
    Nothing(ComputeResult),
    Removed,
    Touched(Touched),
}

/// [`Cache::compute`].
struct ComputeOperation<'c, 'a, F> {
    cache: &'c Cache,
    key: &'c [u8],
    decide: RefCell<F>,
    /// What the decisions borrow outlives the operation.
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a, F> Operation for ComputeOperation<'_, 'a, F>
where
    F: FnMut(Option<&Item<'_>>) -> ComputeOp<'a>,
{
    type Answer = Done;

    /// Two decisions about the same item may differ.
    const IS_REPEATABLE: bool = false;

    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, Done> {
        let item = found.map(Item::untouched);
        let op = (self.decide.borrow_mut())(item.as_ref());
        match (op, found) {
            (ComputeOp::Put(put), found) => self.put(put, found),
            (ComputeOp::Keep, _) | (_, None) => {
                Decision::Answer(Done::Nothing(ComputeResult::Kept))
            }
            (ComputeOp::Remove, Some(_)) => Decision::Change(InPlace::Remove(Done::Removed)),
            (ComputeOp::Expire(expiry), Some(_)) => {
                let deadline = Deadline::of(expiry, self.cache.now());
                Decision::Change(InPlace::Expire(deadline, Done::Touched))
            }
        }
    }
}

impl<'a, F> ComputeOperation<'_, 'a, F> {
    fn put<'x>(&'x self, put: ComputePut<'a>, found: Option<Record<'x>>) -> Decision<'x, Done> {
        let value = match put.value {
            ComputeValue::Bytes(bytes) => NewBody::Bytes(bytes),
            ComputeValue::Owned(bytes) => NewBody::Owned(bytes),
            ComputeValue::Parts(parts) => {
                let old = found.map_or(&[][..], Record::value);
                let parts = parts.iter().map(|part| part.resolve(old));
                NewBody::Parts(Cow::Owned(parts.collect()))
            }
            // Each item counts the value's bytes as its own, so that many items of one value would
            // count as more than the memory that their eviction frees.
            ComputeValue::Shared(SharedValue(value))
                if value.is_in(&self.cache.runs) && value.items() < ITEMS_PER_VALUE_MAX =>
            {
                NewBody::Large(value)
            }
            ComputeValue::Shared(SharedValue(value)) => NewBody::Copied(value),
        };
        let len = match &value {
            NewBody::Bytes(bytes) => bytes.len(),
            NewBody::Owned(bytes) => bytes.len(),
            NewBody::Parts(parts) => len_of(parts),
            NewBody::Large(value) | NewBody::Copied(value) => value.bytes().len(),
        };
        if self.cache.is_too_large(self.key, len) {
            return Decision::Answer(Done::Nothing(ComputeResult::TooLarge));
        }
        Decision::Write(NewItem {
            value,
            flags: put.flags,
            kind: put.kind,
            deadline: Deadline::of(put.expiry, self.cache.now()),
            marks: 0,
            cas: None,
            is_unconditional: false,
        })
    }
}
