//! `SET` and its older forms.
//!
//! ```text
//!   MSETEX numkeys key value … [NX | XX] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]
//!   SET key value [NX | XX | IFEQ old] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]      in any order
//! ```
//!
//! What needs nothing of the old item is a store. The rest reads and writes in one step
//! (`Call::update`). A value that was received into the cache's own memory can only be stored, so
//! its command runs alone if it needs the old item.

use forerun_cache::{
    Cache, ComputeOp, ComputePut, Expiry, ITEM_OVERHEAD_BYTES, Item, ItemKind, Store, StoreMode,
    StoreValue, ValueBuffer,
};

use crate::resp::arguments::LargeArgument;
use crate::resp::command_spec::Command;
use crate::resp::error_texts as texts;

use super::call::{Call, OldValue, Refusal, string_of};
use super::expiry_commands::{TimeUnit, positive_time};

/// When a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition<'a> {
    Always,
    /// `NX`.
    Missing,
    /// `XX`.
    Present,
    /// `IFEQ`: the old value is this one.
    Equal(&'a [u8]),
}

/// When the new item expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewExpiry {
    At(Expiry),
    /// `KEEPTTL`.
    Kept,
}

/// The options of `SET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SetOptions<'a> {
    condition: Condition<'a>,
    expiry: NewExpiry,
    /// `GET`: the reply is the old value.
    returns_old: bool,
}

impl Condition<'_> {
    /// Whether it holds for this item.
    ///
    /// # Errors
    /// The item has no string to compare.
    fn holds(self, old: Option<&Item<'_>>) -> Result<bool, Refusal> {
        Ok(match self {
            Condition::Always => true,
            Condition::Missing => old.is_none(),
            Condition::Present => old.is_some(),
            Condition::Equal(value) => string_of(old)? == Some(value),
        })
    }
}

impl NewExpiry {
    fn over(self, old: Option<&Item<'_>>) -> Expiry {
        match self {
            NewExpiry::At(expiry) => expiry,
            NewExpiry::Kept => old.map_or(Expiry::Never, Item::expiry),
        }
    }
}

impl SetOptions<'_> {
    /// Whether the old item decides something that a store does not know of.
    fn needs_old(&self) -> bool {
        self.returns_old
            || self.expiry == NewExpiry::Kept
            || matches!(self.condition, Condition::Equal(_))
    }
}

/// Whether no other worker may execute a command meanwhile.
pub(super) fn runs_alone(call: &Call<'_, '_>) -> bool {
    let is_large = matches!(call.large, Some(LargeArgument::Value(_)));
    is_large
        && match call.spec.command {
            Command::Getset => true,
            Command::Set => set_options(call).is_ok_and(|options| options.needs_old()),
            _ => false,
        }
}

/// Reads the options of `SET`.
///
/// # Errors
/// As [`options`].
fn set_options<'a>(call: &Call<'a, '_>) -> Result<SetOptions<'a>, Refusal> {
    options(call, call.arguments.get(3..).unwrap_or_default())
}

/// Reads options.
///
/// # Errors
/// An option is unknown or contradicts another one, or a time is invalid.
fn options<'a>(call: &Call<'a, '_>, words: &[&'a [u8]]) -> Result<SetOptions<'a>, Refusal> {
    let mut options = SetOptions {
        condition: Condition::Always,
        expiry: NewExpiry::At(Expiry::Never),
        returns_old: false,
    };
    let mut time: Option<(TimeUnit, &[u8])> = None;
    let mut rest = words;
    while let [word, behind @ ..] = rest {
        rest = behind;
        let is_kept = options.expiry == NewExpiry::Kept;
        let condition = match (word.to_ascii_lowercase().as_slice(), behind) {
            (b"nx", _) => Condition::Missing,
            (b"xx", _) => Condition::Present,
            (b"ifeq", [value, behind @ ..]) => {
                rest = behind;
                Condition::Equal(value)
            }
            (b"get", _) => {
                options.returns_old = true;
                continue;
            }
            (b"keepttl", _) if time.is_none() => {
                options.expiry = NewExpiry::Kept;
                continue;
            }
            (_, [number, behind @ ..]) if !is_kept => {
                let unit = TimeUnit::of_option(word).ok_or(texts::SYNTAX)?;
                // The same option may be repeated. The last number counts.
                if time.is_some_and(|(earlier, _)| earlier != unit) {
                    return Err(texts::SYNTAX);
                }
                time = Some((unit, *number));
                rest = behind;
                continue;
            }
            _ => return Err(texts::SYNTAX),
        };
        if options.condition != Condition::Always && options.condition != condition {
            return Err(texts::SYNTAX);
        }
        options.condition = condition;
    }
    if let Some((unit, number)) = time {
        options.expiry = NewExpiry::At(positive_time(call, unit, number)?);
    }
    Ok(options)
}

impl<'a> Call<'a, '_> {
    /// `SET`.
    pub(super) fn set(&mut self) -> Result<(), Refusal> {
        let options = set_options(self)?;
        self.set_with(2, options)
    }

    /// `SETNX key value`.
    pub(super) fn setnx(&mut self) -> Result<(), Refusal> {
        let value = self.value(2);
        let is_stored = self.store(self.argument(1), value, Expiry::Never, StoreMode::Add)?;
        self.number(is_stored.into());
        Ok(())
    }

    /// `SETEX key seconds value` and `PSETEX key milliseconds value`.
    pub(super) fn setex(&mut self) -> Result<(), Refusal> {
        let unit = match self.spec.command {
            Command::Psetex => TimeUnit::MS,
            _ => TimeUnit::SECONDS,
        };
        let expiry = positive_time(self, unit, self.argument(2))?;
        let value = self.value(3);
        self.store(self.argument(1), value, expiry, StoreMode::Set)?;
        self.ok();
        Ok(())
    }

    /// `GETSET key value`.
    pub(super) fn getset(&mut self) -> Result<(), Refusal> {
        self.set_with(
            2,
            SetOptions {
                condition: Condition::Always,
                expiry: NewExpiry::At(Expiry::Never),
                returns_old: true,
            },
        )
    }

    /// `MSET key value …`.
    pub(super) fn mset(&mut self) -> Result<(), Refusal> {
        let pairs = self.checked_pairs()?;
        self.set_pairs(pairs)?;
        self.ok();
        Ok(())
    }

    /// Stores pairs that were checked.
    pub(super) fn set_pairs(&mut self, pairs: &[&'a [u8]]) -> Result<(), Refusal> {
        self.store_pairs(pairs, NewExpiry::At(Expiry::Never))
    }

    /// The pairs of `MSET`, none of which would be refused unless it is for lack of memory.
    pub(super) fn checked_pairs(&mut self) -> Result<&'a [&'a [u8]], Refusal> {
        let pairs = self.pairs()?;
        self.check_pairs(pairs)?;
        Ok(pairs)
    }

    /// `MSETNX key value …`. Runs alone.
    pub(super) fn msetnx(&mut self) -> Result<(), Refusal> {
        let pairs = self.pairs()?;
        self.store_pairs_if(pairs, Condition::Missing, NewExpiry::At(Expiry::Never))
    }

    /// `MSETEX numkeys key value … [options]`. Runs alone.
    pub(super) fn msetex(&mut self) -> Result<(), Refusal> {
        let count = self.integer(1).ok().filter(|count| *count > 0);
        let count = count.and_then(|count| i32::try_from(count).ok());
        let count = count.ok_or(texts::NUMKEYS_INVALID)? as usize;
        let behind = self.arguments.get(2..).unwrap_or_default();
        let (pairs, words) = behind
            .split_at_checked(2 * count)
            .ok_or("ERR wrong number of key-value pairs")?;
        let options = options(self, words)?;
        if options.returns_old || matches!(options.condition, Condition::Equal(_)) {
            return Err(texts::SYNTAX);
        }
        self.store_pairs_if(pairs, options.condition, options.expiry)
    }

    /// Stores pairs if a condition holds for all of their keys, and answers whether it did. The
    /// command runs alone.
    fn store_pairs_if(
        &mut self,
        pairs: &[&'a [u8]],
        condition: Condition<'_>,
        expiry: NewExpiry,
    ) -> Result<(), Refusal> {
        self.check_pairs(pairs)?;
        let keys = pairs.iter().step_by(2);
        // A warm-up learns of the writes before the items are looked at.
        keys.clone()
            .for_each(|key| _ = self.cache_for_write(&self.stored_key(key)));
        let mut holds = true;
        for key in keys.clone() {
            let guard = self.context.cache.pin();
            holds &= condition.holds(guard.peek(self.stored_key(key)).as_ref())?;
        }
        if holds && let Err(refusal) = self.store_pairs(pairs, expiry) {
            if condition == Condition::Missing {
                // None of them existed, so none stays.
                for key in keys {
                    self.context.cache.delete(&self.stored_key(key));
                }
            }
            return Err(refusal);
        }
        self.number(holds.into());
        Ok(())
    }

    /// The pairs of `MSET` and `MSETNX`.
    pub(super) fn pairs(&self) -> Result<&'a [&'a [u8]], Refusal> {
        match (self.arguments.len() % 2, self.spec.command) {
            (1, _) => Ok(&self.arguments[1..]),
            (_, Command::Msetnx) => Err("ERR wrong number of arguments for 'msetnx' command"),
            _ => Err("ERR wrong number of arguments for 'mset' command"),
        }
    }

    /// Refuses pairs of which one would be refused, unless it is for lack of memory.
    fn check_pairs(&mut self, pairs: &[&[u8]]) -> Result<(), Refusal> {
        let cache = self.context.cache;
        let item_bytes_max = cache.options().max_item_bytes;
        for pair in pairs.chunks_exact(2) {
            let key_bytes = self.stored_key(pair[0]).len();
            if key_bytes > cache.key_bytes_max() {
                return Err(texts::KEY_TOO_LONG);
            }
            if key_bytes + pair[1].len() + ITEM_OVERHEAD_BYTES > item_bytes_max {
                self.context.counters.store_too_large.add(1);
                return Err(texts::STRING_TOO_LARGE);
            }
        }
        Ok(())
    }

    fn store_pairs(&mut self, pairs: &[&'a [u8]], expiry: NewExpiry) -> Result<(), Refusal> {
        for pairs in pairs.chunks(2 * Cache::PREFETCH_KEYS) {
            let mut keys = [&[][..]; Cache::PREFETCH_KEYS];
            for (key, pair) in keys.iter_mut().zip(pairs.chunks_exact(2)) {
                *key = pair[0];
            }
            self.prefetch(&keys[..pairs.len() / 2]);
            for pair in pairs.chunks_exact(2) {
                self.store_pair(pair[0], pair[1], expiry)?;
            }
        }
        Ok(())
    }

    fn store_pair(
        &mut self,
        key: &[u8],
        value: &'a [u8],
        expiry: NewExpiry,
    ) -> Result<(), Refusal> {
        self.context.work_bytes += key.len() + value.len();
        if let NewExpiry::At(expiry) = expiry {
            let value = StoreValue::Bytes(value);
            return self.store(key, value, expiry, StoreMode::Set).map(drop);
        }
        self.context.counters.cmd_set.add(1);
        self.update(key, |old| {
            let put = ComputePut {
                expiry: expiry.over(old),
                ..ComputePut::new(value)
            };
            Ok((ComputeOp::Put(put), ()))
        })
    }

    /// The value, which is an argument or has arrived outside of them.
    fn value(&mut self, index: usize) -> StoreValue<'a> {
        match self.large.take() {
            Some(LargeArgument::Value(buffer)) => StoreValue::Buffer(buffer),
            _ => StoreValue::Bytes(self.argument(index)),
        }
    }

    /// Stores a string. Returns whether the condition of the mode held.
    ///
    /// # Errors
    /// The cache refuses it.
    pub(super) fn store(
        &mut self,
        key: &[u8],
        value: StoreValue<'_>,
        expiry: Expiry,
        mode: StoreMode,
    ) -> Result<bool, Refusal> {
        self.context.counters.cmd_set.add(1);
        let key = self.stored_key(key);
        let stored = self.cache_for_write(&key).store(Store {
            expiry,
            mode,
            value,
            ..Store::set(&*key, &[])
        });
        self.check_stored(&key, stored)
    }

    fn set_with(&mut self, index: usize, options: SetOptions<'_>) -> Result<(), Refusal> {
        let key = self.argument(1);
        let mode = match options.condition {
            Condition::Missing => StoreMode::Add,
            Condition::Present => StoreMode::Replace,
            Condition::Always | Condition::Equal(_) => StoreMode::Set,
        };
        let (is_stored, old) = match (options.needs_old(), options.expiry, self.large.take()) {
            (false, NewExpiry::At(expiry), large) => {
                self.large = large;
                let value = self.value(index);
                (self.store(key, value, expiry, mode)?, None)
            }
            (_, _, Some(LargeArgument::Value(buffer))) => {
                self.set_buffer_alone(key, buffer, options)?
            }
            _ => {
                self.context.counters.cmd_set.add(1);
                let value = self.argument(index);
                self.update(key, |old| {
                    let before = returned(old, options)?;
                    if !options.condition.holds(old)? {
                        return Ok((ComputeOp::Keep, (false, before)));
                    }
                    let expiry = options.expiry.over(old);
                    let put = ComputePut {
                        expiry,
                        ..ComputePut::new(value)
                    };
                    Ok((ComputeOp::Put(put), (true, before)))
                })?
            }
        };
        match (options.returns_old, is_stored) {
            (true, _) => self.old_value(old),
            (false, true) => self.ok(),
            (false, false) => self.nil(),
        }
        Ok(())
    }

    /// Stores a value that is in the cache's memory already, while no other command runs.
    fn set_buffer_alone(
        &mut self,
        key: &[u8],
        buffer: ValueBuffer,
        options: SetOptions<'_>,
    ) -> Result<(bool, Option<OldValue>), Refusal> {
        let stored_key = self.stored_key(key);
        let cache: &Cache = self.cache_for_write(&stored_key);
        let (old, holds, expiry) = {
            let guard = cache.pin();
            let item = guard.peek(&*stored_key);
            let item = item.as_ref();
            let holds = options.condition.holds(item)?;
            (returned(item, options)?, holds, options.expiry.over(item))
        };
        let value = StoreValue::Buffer(buffer);
        let is_stored = holds && self.store(key, value, expiry, StoreMode::Set)?;
        Ok((is_stored, old))
    }
}

/// The old value, if the reply has it.
///
/// # Errors
/// It is not a string.
fn returned(old: Option<&Item<'_>>, options: SetOptions<'_>) -> Result<Option<OldValue>, Refusal> {
    match old {
        Some(old) if options.returns_old && old.kind() == ItemKind::String => {
            Ok(Some(OldValue::of(old)))
        }
        Some(_) if options.returns_old => Err(texts::WRONG_TYPE),
        _ => Ok(None),
    }
}
