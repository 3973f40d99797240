//! Hashes: values with fields. `resp::hash_value` has their bytes.

use forerun_cache::{ComputeOp, ComputePut, Item, ItemKind};

use crate::resp::command_spec::Command;
use crate::resp::error_texts as texts;
use crate::resp::hash_value::{HASH_BYTES_MAX, Hash, PAIR_OVERHEAD_BYTES};
use crate::resp::integers::{parse_cursor, parse_i64};
use crate::resp::long_double::LongDouble;
use crate::resp::reply;

use super::call::{Call, Refusal, hash_of};
use super::key_listing;
use super::number_commands::float_sum;
use super::string_commands::in_place_of;

/// The new bytes of a hash. Without a field, the key goes.
///
/// # Errors
/// They are too many.
fn changed(old: Option<&Item<'_>>, bytes: Vec<u8>) -> Result<ComputeOp<'static>, Refusal> {
    Ok(match (old, bytes.len()) {
        (_, 0) => ComputeOp::Remove,
        // A hash that an earlier server has stored may be longer, and become shorter.
        (old, len) if len > HASH_BYTES_MAX.max(old.map_or(0, |old| old.value().len())) => {
            return Err(texts::STRING_TOO_LARGE);
        }
        (Some(_), _) => in_place_of(old, bytes),
        (None, _) => ComputeOp::Put(ComputePut {
            kind: ItemKind::Hash,
            ..ComputePut::new(bytes)
        }),
    })
}

/// The hash of an item.
fn fields_of<'g>(old: Option<&Item<'g>>) -> Result<Hash<'g>, Refusal> {
    Ok(Hash::new(hash_of(old)?.unwrap_or_default()))
}

impl Call<'_, '_> {
    /// `HSET key field value …` and `HMSET`.
    pub(super) fn hset(&mut self) -> Result<(), Refusal> {
        let pairs = self.arguments[2..].chunks_exact(2);
        if !pairs.remainder().is_empty() {
            return Err(match self.spec.command {
                Command::Hmset => "ERR wrong number of arguments for 'hmset' command",
                _ => "ERR wrong number of arguments for 'hset' command",
            });
        }
        let bytes = |pair: &[&[u8]]| pair[0].len() + pair[1].len() + PAIR_OVERHEAD_BYTES;
        let bytes_max = self
            .context
            .cache
            .options()
            .max_item_bytes
            .min(HASH_BYTES_MAX);
        if pairs.clone().map(bytes).sum::<usize>() > bytes_max {
            self.context.counters.store_too_large.add(1);
            return Err(texts::STRING_TOO_LARGE);
        }
        let pairs: Vec<(&[u8], &[u8])> = pairs.map(|pair| (pair[0], pair[1])).collect();
        self.context.counters.cmd_set.add(1);
        let new = self.update(self.argument(1), |old| {
            let (bytes, new) = fields_of(old)?.with(&pairs);
            Ok((changed(old, bytes)?, new))
        })?;
        match self.spec.command {
            Command::Hmset => self.ok(),
            _ => self.count(new),
        }
        Ok(())
    }

    /// `HSETNX key field value`.
    pub(super) fn hsetnx(&mut self) -> Result<(), Refusal> {
        let pair = (self.argument(2), self.argument(3));
        self.context.counters.cmd_set.add(1);
        let is_new = self.update(self.argument(1), |old| {
            let hash = fields_of(old)?;
            Ok(match hash.get(pair.0) {
                Some(_) => (ComputeOp::Keep, false),
                None => (changed(old, hash.with(&[pair]).0)?, true),
            })
        })?;
        self.number(is_new.into());
        Ok(())
    }

    /// `HDEL key field …`.
    pub(super) fn hdel(&mut self) -> Result<(), Refusal> {
        let fields = &self.arguments[2..];
        let removed = self.update(self.argument(1), |old| {
            let (bytes, removed) = fields_of(old)?.without(fields);
            Ok(match removed {
                0 => (ComputeOp::Keep, 0),
                _ => (changed(old, bytes)?, removed),
            })
        })?;
        self.count_deletion(removed > 0);
        self.count(removed);
        Ok(())
    }

    /// `HINCRBY key field increment`.
    pub(super) fn hincrby(&mut self) -> Result<(), Refusal> {
        let (field, delta) = (self.argument(2), self.integer(3)?);
        self.context.counters.cmd_set.add(1);
        let number = self.update(self.argument(1), |old| {
            let hash = fields_of(old)?;
            let number = match hash.get(field) {
                Some(text) => parse_i64(text).ok_or(texts::HASH_NOT_INTEGER)?,
                None => 0,
            };
            let number = number.checked_add(delta).ok_or(texts::INCR_OVERFLOW)?;
            let (bytes, _) = hash.with(&[(field, number.to_string().as_bytes())]);
            Ok((changed(old, bytes)?, number))
        })?;
        self.number(number);
        Ok(())
    }

    /// `HINCRBYFLOAT key field increment`.
    pub(super) fn hincrbyfloat(&mut self) -> Result<(), Refusal> {
        let field = self.argument(2);
        let delta = LongDouble::parse(self.argument(3)).ok_or(texts::NOT_FLOAT)?;
        if !delta.is_finite() {
            return Err("ERR value is NaN or Infinity");
        }
        self.context.counters.cmd_set.add(1);
        let text = self.update(self.argument(1), |old| {
            let hash = fields_of(old)?;
            let text = float_sum(hash.get(field), delta, texts::HASH_NOT_FLOAT)?;
            let (bytes, _) = hash.with(&[(field, text.as_bytes())]);
            Ok((changed(old, bytes)?, text))
        })?;
        self.bulk(text.as_bytes());
        Ok(())
    }

    /// `HSCAN key cursor [MATCH pattern] [COUNT n] [NOVALUES]`. One page has all fields.
    pub(super) fn hscan(&mut self) -> Result<(), Refusal> {
        parse_cursor(self.argument(2)).ok_or(texts::INVALID_CURSOR)?;
        let guard = self.context.cache.pin();
        let item = guard.get(self.stored_key(self.argument(1)));
        let hash = fields_of(item.as_ref())?;
        self.context.work_bytes += item.map_or(0, |item| item.value().len());
        if item.is_none() {
            // As in Redis, the options of a missing key are not read.
            self.array(2);
            self.bulk(b"0");
            self.array(0);
            return Ok(());
        }
        let (mut pattern, mut has_values) = (None, true);
        let mut rest = self.arguments.get(3..).unwrap_or_default();
        while let [word, behind @ ..] = rest {
            rest = match (word.to_ascii_lowercase().as_slice(), behind) {
                (b"match", [given, behind @ ..]) => {
                    pattern = Some(key_listing::pattern(given)?);
                    behind
                }
                (b"count", [count, behind @ ..]) => match parse_i64(count) {
                    None => return Err(texts::NOT_INTEGER),
                    Some(..=0) => return Err(texts::SYNTAX),
                    Some(_) => behind,
                },
                (b"novalues", behind) => {
                    has_values = false;
                    behind
                }
                _ => return Err(texts::SYNTAX),
            };
        }
        let pattern = pattern.as_ref();
        let is_wanted = |field: &[u8]| pattern.is_none_or(|pattern| pattern.matches(field));
        let pairs: Vec<_> = hash.iter().filter(|(field, _)| is_wanted(field)).collect();
        self.array(2);
        self.bulk(b"0");
        self.array(pairs.len() * if has_values { 2 } else { 1 });
        let out = self.out();
        for (field, value) in pairs {
            reply::push_bulk(out, field);
            if has_values {
                reply::push_bulk(out, value);
            }
        }
        Ok(())
    }

    /// Sets fields and, unless it is `None`, the time of the whole hash.
    pub(super) fn set_fields(
        &mut self,
        key: &[u8],
        pairs: &[(&[u8], &[u8])],
        expiry: Option<forerun_cache::Expiry>,
    ) -> Result<(), Refusal> {
        self.context.counters.cmd_set.add(1);
        self.update(key, |old| {
            let mut op = changed(old, fields_of(old)?.with(pairs).0)?;
            if let (ComputeOp::Put(put), Some(expiry)) = (&mut op, expiry) {
                put.expiry = expiry;
            }
            Ok((op, ()))
        })
    }
}
