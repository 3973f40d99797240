//! Stores items, and provides the buffers for values that arrive in pieces.

use crate::blocks::item_layout::Record;
use crate::blocks::item_word::{CLAIMED, STALE};
use crate::budget::Charge;
use crate::cache::Cache;
use crate::expiry::Deadline;
use crate::options::{BUFFERED_KEY_BYTES, Error, ITEM_OVERHEAD_BYTES};
use crate::page_runs::AllocError;
use crate::reclaim::Shortage;
use crate::request::{Store, StoreMode, StoreResult, StoreValue};
use crate::value::LargeValue;
use crate::value_buffer::{Buffered, ValueBuffer};
use crate::write::{Decision, NewBody, NewItem, Operation, Outcome};
use std::borrow::Cow;
use std::sync::Arc;

/// All buffers together take at most one byte in this many of the limit.
const BUFFERS_SHARE: usize = 4;

impl Cache {
    /// Stores a value unconditionally. It never expires, unless it is stored by [`Cache::store`].
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, StoreResult};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// assert!(matches!(cache.set("CH/Bern", "46.948,7.447"), StoreResult::Stored { .. }));
    /// assert_eq!(cache.set(&vec![b'x'; 70_000], "0,0"), StoreResult::InvalidKey);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn set<'a, K>(&self, key: &'a K, value: impl Into<StoreValue<'a>>) -> StoreResult
    where
        K: AsRef<[u8]> + ?Sized,
    {
        self.store(Store::set(key, value))
    }

    /// Stores an item if its conditions hold.
    pub fn store(&self, store: Store<'_>) -> StoreResult {
        if self.is_forked() {
            return StoreResult::Forked;
        }
        let value = match store.value {
            StoreValue::Buffer(mut buffer) => {
                if buffer.complete(self).is_err() {
                    return StoreResult::OutOfMemory;
                }
                // A buffer of another cache is charged there, so its bytes are copied.
                let is_own = buffer.share.is_of(&self.budget);
                match buffer.bytes {
                    Buffered::Large(value) if is_own => Source::Large(Arc::new(value)),
                    _ => Source::Buffer(buffer),
                }
            }
            StoreValue::Bytes(bytes) => Source::Bytes(bytes),
            StoreValue::Parts(parts) => Source::Parts(parts),
        };
        if !self.is_key(store.key) {
            return StoreResult::InvalidKey;
        }
        if self.is_too_large(store.key, value.len()) {
            return StoreResult::TooLarge;
        }
        let request = StoreOperation {
            cache: self,
            value,
            store: Store {
                value: StoreValue::Bytes(&[]),
                ..store
            },
        };
        match self.update(request.store.key, &request) {
            Outcome::Answer(answer) => answer,
            Outcome::Written { cas } => StoreResult::Stored { cas },
            Outcome::OutOfMemory => StoreResult::OutOfMemory,
        }
    }

    /// Begins a value of `len_bytes` that arrives piece by piece and is then stored. The buffer
    /// takes memory as the bytes arrive: see [`ValueBuffer::put`].
    ///
    /// # Errors
    /// [`Error::ValueTooLarge`] above
    /// [`CacheOptions::max_item_bytes`](crate::CacheOptions::max_item_bytes); [`Error::Full`] if
    /// the cache is full and nothing can be evicted; [`Error::Memory`] if the system gives no
    /// address space.
    pub fn value_buffer(&self, len_bytes: usize) -> Result<ValueBuffer, Error> {
        self.check_process()?;
        let max_item_bytes = self.options().max_item_bytes;
        if len_bytes.saturating_add(ITEM_OVERHEAD_BYTES) > max_item_bytes {
            return Err(Error::ValueTooLarge {
                len_bytes,
                max_item_bytes,
            });
        }
        // The item should fit into a block with its key. If a longer key prevents that, the value
        // is copied.
        let is_small =
            len_bytes + BUFFERED_KEY_BYTES + ITEM_OVERHEAD_BYTES <= self.blocks.item_bytes_max();
        let bytes = loop {
            if is_small {
                break Buffered::Small(Vec::new(), Charge::new(&self.budget));
            }
            match LargeValue::reserved(&self.runs, len_bytes) {
                Ok(value) => break Buffered::Large(value),
                Err(AllocError::System(error)) => return Err(error.into()),
                Err(AllocError::Limit)
                    if self.reclaim(Shortage::Bytes(LargeValue::OVERHEAD_BYTES)) => {}
                Err(AllocError::Limit) => return Err(Error::Full { len_bytes }),
            }
        };
        Ok(ValueBuffer::new(bytes, len_bytes, &self.budget))
    }

    /// The memory that all [`ValueBuffer`]s together may take, in bytes: a quarter of the memory
    /// limit, or one value of the largest size if that is more.
    pub fn value_buffer_limit_bytes(&self) -> usize {
        let one_bytes = self.runs.charge_bytes(self.options().max_item_bytes);
        one_bytes.max(self.budget.limit_bytes() / BUFFERS_SHARE)
    }
}

/// The source of a value.
#[derive(Debug)]
enum Source<'a> {
    Bytes(&'a [u8]),
    Parts(&'a [&'a [u8]]),
    Buffer(ValueBuffer),
    Large(Arc<LargeValue>),
}

impl Source<'_> {
    fn len(&self) -> usize {
        match self {
            Source::Bytes(bytes) => bytes.len(),
            Source::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
            Source::Buffer(buffer) => buffer.len(),
            Source::Large(value) => value.bytes().len(),
        }
    }

    /// The value for a new item.
    fn body(&self) -> NewBody<'_> {
        match self {
            Source::Bytes(bytes) => NewBody::Bytes(bytes),
            Source::Parts(parts) => NewBody::Parts(Cow::Borrowed(parts)),
            Source::Buffer(buffer) => NewBody::Bytes(buffer.bytes()),
            Source::Large(value) => NewBody::Large(Arc::clone(value)),
        }
    }

    /// The pieces of the value.
    fn parts(&self) -> Vec<&[u8]> {
        match self {
            Source::Bytes(bytes) => vec![bytes],
            Source::Parts(parts) => parts.to_vec(),
            Source::Buffer(buffer) => vec![buffer.bytes()],
            Source::Large(value) => vec![value.bytes()],
        }
    }
}

/// [`Cache::store`].
struct StoreOperation<'a> {
    cache: &'a Cache,
    store: Store<'a>,
    value: Source<'a>,
}

impl Operation for StoreOperation<'_> {
    type Answer = StoreResult;

    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, StoreResult> {
        let store = &self.store;
        let mut new = NewItem {
            value: self.value.body(),
            flags: store.flags,
            kind: store.kind,
            deadline: Deadline::of(store.expiry, self.cache.now()),
            marks: if store.claimed { CLAIMED } else { 0 },
            cas: store.new_cas,
            is_unconditional: store.mode == StoreMode::Set && store.compare_cas.is_none(),
        };
        let Some(old) = found else {
            return match (store.mode, store.vivify) {
                // There is no number to compare. Memcached continues as if none were given.
                (StoreMode::Append | StoreMode::Prepend, Some(expiry)) => {
                    new.deadline = Deadline::of(expiry, self.cache.now());
                    Decision::Write(new)
                }
                (StoreMode::Append | StoreMode::Prepend, None) => {
                    Decision::Answer(StoreResult::NotStored)
                }
                _ if store.compare_cas.is_some() => Decision::Answer(StoreResult::NotFound),
                (StoreMode::Set | StoreMode::Add, _) => Decision::Write(new),
                (StoreMode::Replace, _) => Decision::Answer(StoreResult::NotStored),
            };
        };
        if store.mode == StoreMode::Add {
            return Decision::Answer(StoreResult::NotStored);
        }
        if let Some(cas) = store.compare_cas
            && cas != old.cas()
        {
            if !(store.stale_if_older && cas < old.cas()) {
                return Decision::Answer(StoreResult::Exists);
            }
            new.deadline = old.deadline();
            new.marks = STALE | old.marks() & CLAIMED;
        }
        if matches!(store.mode, StoreMode::Append | StoreMode::Prepend) {
            let mut parts = self.value.parts();
            match store.mode {
                StoreMode::Append => parts.insert(0, old.value()),
                _ => parts.push(old.value()),
            }
            let len = self.value.len() + old.value().len();
            if self.cache.is_too_large(store.key, len) {
                return Decision::Answer(StoreResult::TooLarge);
            }
            new.value = NewBody::Parts(Cow::Owned(parts));
            new.flags = old.flags();
            new.deadline = old.deadline();
        }
        Decision::Write(new)
    }
}
