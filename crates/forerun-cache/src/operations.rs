//! What can be asked of a cache, each as a decision on the item that is there.

use crate::blocks::record::{CLAIMED, FETCHED, Record, STALE};
use crate::budget::Charge;
use crate::cache::Cache;
use crate::evict::RemovalCause;
use crate::index::place::Place;
use crate::item::Item;
use crate::options::{Error, ITEM_OVERHEAD_BYTES, MAX_KEY_BYTES};
use crate::page_runs::AllocError;
use crate::reclaim::Need;
use crate::request::{
    Arithmetic, Counted, Delete, Deleted, Direction, Expiry, Invalidate, Mode, Store, Stored, Value,
};
use crate::value::{Buffered, LargeValue, ValueBuffer};
use crate::write::{Decision, NewBody, NewItem, OnShortage, Operation, Outcome};
use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

impl Cache {
    /// Stores an item, if its conditions hold.
    pub fn store(&self, store: Store<'_>) -> Stored {
        if self.is_forked() {
            return Stored::Forked;
        }
        let value = match store.value {
            Value::Buffer(ValueBuffer {
                bytes: Buffered::Large(value),
                ..
            }) => Source::Large(Arc::new(value)),
            Value::Buffer(buffer) => Source::Buffer(buffer),
            Value::Bytes(bytes) => Source::Bytes([bytes]),
            Value::Parts(parts) => Source::Parts(parts),
        };
        if !is_key(store.key) || self.is_too_large(store.key, value.len()) {
            return Stored::TooLarge;
        }
        let request = StoreOperation {
            cache: self,
            value,
            store: Store {
                value: Value::Bytes(&[]),
                ..store
            },
        };
        match self.update(request.store.key, &request) {
            Outcome::Answer(answer) => answer,
            Outcome::Written { cas } => Stored::Stored { cas },
            Outcome::OutOfMemory => Stored::OutOfMemory,
        }
    }

    /// Room for a value of `len_bytes`, to be filled piece by piece and then stored.
    ///
    /// # Errors
    /// [`Error::ValueTooLarge`] above [`CacheOptions::max_item_bytes`](crate::CacheOptions::max_item_bytes); [`Error::Full`]
    /// if nothing makes room; [`Error::Memory`] if the system gives none.
    pub fn value_buffer(&self, len_bytes: usize) -> Result<ValueBuffer, Error> {
        self.check_process()?;
        let max_item_bytes = self.options().max_item_bytes;
        if len_bytes.saturating_add(ITEM_OVERHEAD_BYTES) > max_item_bytes {
            return Err(Error::ValueTooLarge {
                len_bytes,
                max_item_bytes,
            });
        }
        // With any key, the item has to fit.
        let is_small =
            len_bytes + MAX_KEY_BYTES + ITEM_OVERHEAD_BYTES <= self.blocks.item_bytes_max();
        loop {
            let (made, need) = if is_small {
                let charge = Charge::new(&self.budget, len_bytes).ok_or(AllocError::Limit);
                let small = charge.map(|charge| Buffered::Small(vec![0; len_bytes].into(), charge));
                (small, Need::Bytes(len_bytes))
            } else {
                let large = LargeValue::zeroed(&self.runs, len_bytes).map(Buffered::Large);
                (large, Need::Large(len_bytes))
            };
            match made {
                Ok(buffered) => return Ok(ValueBuffer::new(buffered)),
                Err(AllocError::System(error)) => return Err(error.into()),
                Err(AllocError::Limit) if self.make_room(need) => {}
                Err(AllocError::Limit) => return Err(Error::Full { len_bytes }),
            }
        }
    }

    /// Removes an item.
    pub fn delete(&self, delete: Delete<'_>) -> Deleted {
        if self.is_forked() {
            return Deleted::Forked;
        }
        let hash = self.hasher.hash(delete.key);
        let deleted = {
            let pinned = self.epochs.pin();
            let mut locked = self.index.lock(&pinned, hash);
            let matches = |item| self.record(&pinned, item).key() == delete.key;
            let Some((slot_ref, item)) = locked.segment().find(Place::new(hash), matches) else {
                return Deleted::NotFound;
            };
            let record = self.record(&pinned, item);
            // Under the lock, so that it is no earlier than that of the item's writer.
            let is_gone = record.is_gone(self.moment());
            if !is_gone && differs(delete.compare_cas, record) {
                return Deleted::Exists;
            }
            let cause = if is_gone {
                RemovalCause::Expired
            } else {
                RemovalCause::Removed
            };
            self.unlink(&pinned, &mut locked, slot_ref, item, cause);
            !is_gone
        };
        if self.limbo.waiting_bytes() > 0 {
            self.collect();
        }
        if deleted {
            Deleted::Deleted
        } else {
            Deleted::NotFound
        }
    }

    /// Marks an item as stale, or empties it, and keeps it.
    pub fn invalidate(&self, invalidate: Invalidate<'_>) -> Deleted {
        if self.is_forked() {
            return Deleted::Forked;
        }
        match self.update(invalidate.key, &invalidate) {
            Outcome::Answer(answer) => answer,
            Outcome::Written { .. } => Deleted::Deleted,
            Outcome::OutOfMemory => Deleted::OutOfMemory,
        }
    }

    /// Gives an item a new expiry, and tells whether there is one.
    pub fn touch(&self, key: &[u8], expiry: Expiry) -> bool {
        if self.is_forked() {
            return false;
        }
        let expiry = expiry.to_word();
        match self.touch_in_place(key, expiry, false) {
            Some(is_there) => is_there,
            None => match self.update(key, &TouchOperation { expiry }) {
                Outcome::Answer(Missing) => false,
                Outcome::Written { .. } => true,
                // It lies among others that expire at another time, then.
                Outcome::OutOfMemory => self.touch_in_place(key, expiry, true).unwrap_or(false),
            },
        }
    }

    /// `None`: it belongs to other items, unless it may lie `anywhere`.
    fn touch_in_place(&self, key: &[u8], expiry: u32, anywhere: bool) -> Option<bool> {
        let hash = self.hasher.hash(key);
        let pinned = self.epochs.pin();
        let locked = self.index.lock(&pinned, hash);
        let matches = |item| self.record(&pinned, item).key() == key;
        let Some((_, item)) = locked.segment().find(Place::new(hash), matches) else {
            return Some(false);
        };
        let record = self.record(&pinned, item);
        if record.is_gone(self.moment()) {
            return Some(false);
        }
        let (class, _) = self.blocks.class_and_queue(item);
        // What expires at once may lie anywhere: nobody waits for it.
        let stays = anywhere
            || class == self.blocks.class(expiry, self.now())
            || (expiry != 0 && expiry <= self.now());
        stays.then(|| {
            self.blocks.extend(item, expiry);
            record.set_expiry(expiry);
            true
        })
    }

    /// Adds to, or subtracts from, a value that is a number.
    pub fn arithmetic(&self, arithmetic: Arithmetic<'_>) -> Counted {
        if self.is_forked() {
            return Counted::Forked;
        }
        if !is_key(arithmetic.key) {
            return Counted::NotFound;
        }
        let request = ArithmeticOperation {
            arithmetic,
            sum: Cell::default(),
        };
        match self.update(arithmetic.key, &request) {
            Outcome::Answer(answer) => answer,
            Outcome::Written { cas } => {
                let sum = request.sum.get();
                Counted::Counted {
                    value: sum.value,
                    cas,
                    expiry: Expiry::from_word(sum.expiry),
                    is_new: sum.is_new,
                }
            }
            Outcome::OutOfMemory => Counted::OutOfMemory,
        }
    }

    /// Claims an item, to bring a new value: `true` for one caller only, until the item is stored or invalidated again. The
    /// others see it in [`Item::is_claimed`] and use what there is.
    pub fn claim(&self, item: &Item<'_>) -> bool {
        if self.is_forked() {
            return false;
        }
        let hash = self.hasher.hash(item.key());
        let pinned = self.epochs.pin();
        // Under the lock, so that the item is not being copied.
        let locked = self.index.lock(&pinned, hash);
        let matches = |at| self.record(&pinned, at).key() == item.key();
        let found = locked.segment().find(Place::new(hash), matches);
        found.is_some_and(|(_, at)| {
            let record = self.record(&pinned, at);
            record.cas() == item.cas() && record.mark(CLAIMED) & CLAIMED == 0
        })
    }

    fn is_too_large(&self, key: &[u8], value_bytes: usize) -> bool {
        let item_bytes = value_bytes.saturating_add(key.len() + ITEM_OVERHEAD_BYTES);
        item_bytes > self.options().max_item_bytes
    }
}

fn is_key(key: &[u8]) -> bool {
    (1..=MAX_KEY_BYTES).contains(&key.len())
}

fn differs(compare_cas: Option<u64>, record: Record<'_>) -> bool {
    compare_cas.is_some_and(|cas| cas != record.cas())
}

/// Where a value to be stored lies.
#[derive(Debug)]
enum Source<'a> {
    Bytes([&'a [u8]; 1]),
    Parts(&'a [&'a [u8]]),
    Buffer(ValueBuffer),
    Large(Arc<LargeValue>),
}

impl Source<'_> {
    fn len(&self) -> usize {
        match self {
            Source::Bytes([bytes]) => bytes.len(),
            Source::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
            Source::Buffer(buffer) => buffer.len(),
            Source::Large(value) => value.bytes().len(),
        }
    }

    /// The value as it is.
    fn body(&self) -> NewBody<'_> {
        match self {
            Source::Bytes(bytes) => NewBody::Parts(Cow::Borrowed(bytes)),
            Source::Parts(parts) => NewBody::Parts(Cow::Borrowed(parts)),
            Source::Buffer(buffer) => NewBody::Parts(Cow::Owned(vec![buffer.bytes()])),
            Source::Large(value) => NewBody::Large(Arc::clone(value)),
        }
    }

    /// The pieces of the value.
    fn parts(&self) -> Vec<&[u8]> {
        match self {
            Source::Bytes(bytes) => bytes.to_vec(),
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
    type Answer = Stored;

    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, Stored> {
        let store = &self.store;
        let mut new = NewItem {
            value: self.value.body(),
            flags: store.flags,
            expiry: store.expiry.to_word(),
            marks: if store.claimed { CLAIMED } else { 0 },
            cas: store.new_cas,
            is_unconditional: store.mode == Mode::Set && store.compare_cas.is_none(),
        };
        let Some(old) = found else {
            return match (store.mode, store.vivify) {
                _ if store.compare_cas.is_some() => Decision::Answer(Stored::NotFound),
                (Mode::Set | Mode::Add, _) => Decision::Write(new),
                (Mode::Append | Mode::Prepend, Some(expiry)) => {
                    new.expiry = expiry.to_word();
                    Decision::Write(new)
                }
                _ => Decision::Answer(Stored::NotStored),
            };
        };
        if store.mode == Mode::Add {
            return Decision::Answer(Stored::NotStored);
        }
        if let Some(cas) = store.compare_cas
            && cas != old.cas()
        {
            if !(store.stale_if_older && cas < old.cas()) {
                return Decision::Answer(Stored::Exists);
            }
            new.expiry = old.expiry();
            new.marks = STALE | old.marks() & CLAIMED;
        }
        if matches!(store.mode, Mode::Append | Mode::Prepend) {
            let mut parts = self.value.parts();
            match store.mode {
                Mode::Append => parts.insert(0, old.value()),
                _ => parts.push(old.value()),
            }
            let len = self.value.len() + old.value().len();
            if self.cache.is_too_large(store.key, len) {
                return Decision::Answer(Stored::TooLarge);
            }
            new.value = NewBody::Parts(Cow::Owned(parts));
            new.flags = old.flags();
            new.expiry = old.expiry();
        }
        Decision::Write(new)
    }
}

impl Operation for Invalidate<'_> {
    type Answer = Deleted;

    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, Deleted> {
        let Some(old) = found else {
            return Decision::Answer(Deleted::NotFound);
        };
        if differs(self.compare_cas, old) {
            return Decision::Answer(Deleted::Exists);
        }
        let mut new = rewritten(old);
        if self.drop_value {
            new.value = NewBody::Parts(Cow::Borrowed(&[]));
            new.flags = 0;
        }
        if self.mark_stale {
            // The next one who asks may claim it.
            new.marks = STALE | old.marks() & FETCHED;
        }
        new.expiry = self.expiry.map_or(new.expiry, Expiry::to_word);
        new.cas = self.new_cas;
        Decision::Write(new)
    }
}

/// The item as it is, to be changed in something.
fn rewritten(old: Record<'_>) -> NewItem<'_> {
    NewItem {
        value: match old.large() {
            Some(value) => NewBody::Large(value),
            None => NewBody::Parts(Cow::Owned(vec![old.value()])),
        },
        flags: old.flags(),
        expiry: old.expiry(),
        marks: old.marks(),
        cas: Some(old.cas()),
        is_unconditional: false,
    }
}

/// [`Cache::touch`], to a place among others.
struct TouchOperation {
    expiry: u32,
}

/// There is no item.
struct Missing;

impl Operation for TouchOperation {
    type Answer = Missing;

    /// The item stays where it is, rather than be evicted to make room for itself.
    const ON_SHORTAGE: OnShortage = OnShortage::GiveUp;

    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, Missing> {
        match found {
            None => Decision::Answer(Missing),
            Some(old) => Decision::Write(NewItem {
                expiry: self.expiry,
                ..rewritten(old)
            }),
        }
    }
}

/// [`Cache::arithmetic`].
struct ArithmeticOperation<'a> {
    arithmetic: Arithmetic<'a>,
    /// What the last decision came to.
    sum: Cell<Sum>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    value: u64,
    expiry: u32,
    is_new: bool,
}

impl Operation for ArithmeticOperation<'_> {
    type Answer = Counted;

    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, Counted> {
        let Arithmetic {
            delta,
            direction,
            compare_cas,
            new_cas,
            expiry,
            initial,
            ..
        } = self.arithmetic;
        let Some(old) = found else {
            let Some((value, expiry)) = initial else {
                return Decision::Answer(Counted::NotFound);
            };
            let expiry = expiry.to_word();
            self.sum.set(Sum {
                value,
                expiry,
                is_new: true,
            });
            return Decision::Write(NewItem {
                value: NewBody::Owned(value.to_string().into_bytes()),
                flags: 0,
                expiry,
                marks: 0,
                cas: new_cas,
                is_unconditional: false,
            });
        };
        // An empty value is no number whatever its version; memcached looks at the two in this order.
        if old.value().is_empty() {
            return Decision::Answer(Counted::NotANumber);
        }
        if differs(compare_cas, old) {
            return Decision::Answer(Counted::Exists);
        }
        let Some(number) = number(old.value()) else {
            return Decision::Answer(Counted::NotANumber);
        };
        let value = match direction {
            Direction::Increment => number.wrapping_add(delta),
            Direction::Decrement => number.saturating_sub(delta),
        };
        let mut digits = value.to_string().into_bytes();
        // Not by a width of `format!`, which panics above 65,535.
        digits.resize(digits.len().max(old.value().len()), b' ');
        // As in memcached, which changes a number in place only where it gets no longer: otherwise nobody has fetched the new one.
        let kept = if digits.len() > old.value().len() {
            !FETCHED
        } else {
            u8::MAX
        };
        let new = NewItem {
            value: NewBody::Owned(digits),
            expiry: expiry.map_or(old.expiry(), Expiry::to_word),
            cas: new_cas,
            marks: old.marks() & kept,
            ..rewritten(old)
        };
        self.sum.set(Sum {
            value,
            expiry: new.expiry,
            is_new: false,
        });
        Decision::Write(new)
    }
}

/// A value as a number, as memcached reads it, by C's `strtoull`: white space and a plus sign may come before the digits, and
/// white space must come behind them where anything does, whatever follows.
fn number(value: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'\x0b';
    let start = value.iter().position(|byte| !is_space(byte))?;
    let value = &value[start..];
    let value = value.strip_prefix(b"+").unwrap_or(value);
    let len = value
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let (digits, behind) = value.split_at(len);
    if !behind.first().is_none_or(is_space) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
