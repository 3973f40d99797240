//! Hashes: values with fields. `resp::hash_value` has their bytes.

use std::collections::HashSet;

use forerun_cache::{ComputeOp, ComputePut, Item, ItemKind};
use forerun_core::split_mix64;
use forerun_core::sync::random_seed;

use crate::resp::command_spec::Command;
use crate::resp::error_texts as texts;
use crate::resp::hash_value::{HASH_BYTES_MAX, Hash, PAIR_OVERHEAD_BYTES};
use crate::resp::integers::{parse_cursor, parse_i64};
use crate::resp::long_double::LongDouble;
use crate::resp::reply::{self, RespVersion};

use super::call::{Call, Refusal, hash_of};
use super::key_listing;
use super::number_commands::float_sum;
use super::read_answers::FIELDS_BYTES_MAX;
use super::string_commands::in_place_of;

/// What a field that `HRANDFIELD` repeats counts beside its own bytes.
pub(super) const REPEATED_FIELD_BYTES: usize = 16;

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

/// A field and its value.
type Pair<'g> = (&'g [u8], &'g [u8]);

/// Draws `count` different pairs. If it is negative, draws as many that may repeat, and adds their
/// bytes, as `bytes_of` counts them, to the work.
///
/// # Errors
/// Pairs that may repeat have more than `bytes_max` bytes.
fn drawn<'g>(
    mut pairs: Vec<Pair<'g>>,
    count: i64,
    bytes_max: usize,
    work_bytes: &mut usize,
    bytes_of: impl Fn(Pair<'g>) -> usize,
) -> Result<Vec<Pair<'g>>, Refusal> {
    let mut random = random_seed();
    let mut below = |end: usize| (split_mix64(&mut random) % end as u64) as usize;
    let len = pairs.len();
    if let Ok(count) = usize::try_from(count) {
        if count < len {
            for at in 0..count {
                pairs.swap(at, at + below(len - at));
            }
            pairs.truncate(count);
        }
        return Ok(pairs);
    }
    let (mut repeated, mut bytes) = (Vec::new(), 0);
    for _ in 0..count.unsigned_abs() {
        if len == 0 {
            break;
        }
        let pair = pairs[below(len)];
        let more = bytes_of(pair) + REPEATED_FIELD_BYTES;
        bytes += more;
        *work_bytes += more;
        if bytes > bytes_max {
            return Err(texts::FIELDS_TOO_LARGE);
        }
        repeated.push(pair);
    }
    Ok(repeated)
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

    /// `HGETDEL key FIELDS count field …`.
    pub(super) fn hgetdel(&mut self) -> Result<(), Refusal> {
        if !self.is_word(2, "fields") {
            return Err(texts::SYNTAX);
        }
        let fields = self.arguments.get(4..).unwrap_or_default();
        if usize::try_from(self.integer(3)?) != Ok(fields.len()) {
            return Err(texts::FIELDS_COUNT);
        }
        let protocol = self.protocol;
        let (values, removed) = self.update(self.argument(1), |old| {
            let hash = fields_of(old)?;
            let mut values = Vec::new();
            reply::push_array(&mut values, fields.len());
            // A field that is given twice is gone the second time.
            let mut seen = HashSet::new();
            for (field, value) in fields.iter().zip(hash.get_all(fields)) {
                let value = value.filter(|_| seen.insert(*field));
                protocol.push_bulk_or_nil(&mut values, value);
            }
            let (bytes, removed) = hash.without(fields);
            Ok(match removed {
                0 => (ComputeOp::Keep, (values, 0)),
                _ => (changed(old, bytes)?, (values, removed)),
            })
        })?;
        self.count_deletion(removed > 0);
        self.context.push(&values);
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

    /// `HRANDFIELD key [count [WITHVALUES]]`.
    pub(super) fn hrandfield(&mut self) -> Result<(), Refusal> {
        let (count, has_values) = match self.arguments.get(2..).unwrap_or_default() {
            [] => (None, false),
            [count, options @ ..] => {
                let count = parse_i64(count).ok_or(texts::NOT_INTEGER)?;
                if count == i64::MIN {
                    return Err("ERR value is out of range, value must between \
                                -9223372036854775807 and 9223372036854775807");
                }
                let has_values = match options {
                    [] => false,
                    [word] if word.eq_ignore_ascii_case(b"withvalues") => true,
                    _ => return Err(texts::SYNTAX),
                };
                if has_values && count.unsigned_abs() > i64::MAX.unsigned_abs() / 2 {
                    return Err("ERR value is out of range");
                }
                (Some(count), has_values)
            }
        };
        let guard = self.context.cache.pin();
        let item = guard.get(self.stored_key(self.argument(1)));
        let hash = fields_of(item.as_ref())?;
        let hash_bytes = item.map_or(0, |item| item.value().len());
        self.context.work_bytes += hash_bytes;
        let Some(count) = count else {
            let at = random_seed() % hash.len().max(1) as u64;
            match hash.iter().nth(at as usize) {
                Some((field, _)) => self.bulk(field),
                None => self.nil(),
            }
            return Ok(());
        };
        let bytes_max = hash_bytes.max(FIELDS_BYTES_MAX);
        let pairs: Vec<_> = hash.iter().collect();
        let work_bytes = &mut self.context.work_bytes;
        let pairs = drawn(pairs, count, bytes_max, work_bytes, |pair| {
            pair.0.len() + if has_values { pair.1.len() } else { 0 }
        })?;
        let are_nested = has_values && self.protocol == RespVersion::Resp3;
        let is_flat = has_values && !are_nested;
        self.array(pairs.len() * if is_flat { 2 } else { 1 });
        let out = self.out();
        for (field, value) in pairs {
            if are_nested {
                reply::push_array(out, 2);
            }
            reply::push_bulk(out, field);
            if has_values {
                reply::push_bulk(out, value);
            }
        }
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::test_client::{TestClient, converse};

    const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

    #[test]
    fn fields_are_returned_and_deleted_in_one_step() {
        let count = "-ERR numfields should be greater than 0 and match the provided number of \
                     fields";
        let mut client = TestClient::new();
        converse(
            &mut client,
            &[
                ("HSET h a 1 b 2 c 3", ":3"),
                ("EXPIRE h 100", ":1"),
                ("HGETDEL h FIELDS 2 a x", "*2|$1|1|$-1"),
                ("HGETDEL h fields 3 b b a", "*3|$1|2|$-1|$-1"),
                ("TTL h", ":100"),
                ("HGETALL h", "*2|$1|c|$1|3"),
                ("HGETDEL h FIELDS 1 a", "*1|$-1"),
                ("HGETDEL h FIELDS 2 c", count),
                ("HGETDEL h FIELDS 0 c", count),
                ("HGETDEL h FIELDS -1 c", count),
                (
                    "HGETDEL h FIELDS x c",
                    "-ERR value is not an integer or out of range",
                ),
                ("HGETDEL h FIELDS 1 c d", count),
                ("HGETDEL h FIELD 1 c", "-ERR syntax error"),
                ("HGETDEL h c FIELDS 1 c", "-ERR syntax error"),
                (
                    "HGETDEL h FIELDS 1",
                    "-ERR wrong number of arguments for 'hgetdel' command",
                ),
                ("HGETDEL h FIELDS 1 c", "*1|$1|3"),
                ("EXISTS h", ":0"),
                ("HGETDEL h FIELDS 2 c d", "*2|$-1|$-1"),
                ("SET s 1", "+OK"),
                ("HGETDEL s FIELDS 1 c", WRONG_TYPE),
            ],
        );
        client.ask("HELLO 3");
        assert_eq!(client.ask("HGETDEL h FIELDS 1 c"), "*1\r\n_");
    }

    #[test]
    fn random_fields_are_as_many_as_redis_returns() {
        let mut client = TestClient::new();
        let range = "-ERR value is out of range, value must between -9223372036854775807 and \
                     9223372036854775807";
        converse(
            &mut client,
            &[
                ("HRANDFIELD h", "$-1"),
                ("HRANDFIELD h 3", "*0"),
                ("HRANDFIELD h -3 WITHVALUES", "*0"),
                ("HSET h a 1", ":1"),
                ("HRANDFIELD h", "$1|a"),
                ("HRANDFIELD h 9", "*1|$1|a"),
                ("HRANDFIELD h 0", "*0"),
                ("HRANDFIELD h -2", "*2|$1|a|$1|a"),
                ("HRANDFIELD h -2 withvalues", "*4|$1|a|$1|1|$1|a|$1|1"),
                (
                    "HRANDFIELD h x",
                    "-ERR value is not an integer or out of range",
                ),
                ("HRANDFIELD h 1 x", "-ERR syntax error"),
                ("HRANDFIELD h 1 WITHVALUES x", "-ERR syntax error"),
                ("HRANDFIELD h -9223372036854775808", range),
                (
                    "HRANDFIELD h -9223372036854770000 WITHVALUES",
                    "-ERR value is out of range",
                ),
                (
                    "HRANDFIELD h -9223372036854775807",
                    "-ERR the answer repeats fields and is larger than this server allows",
                ),
                ("SET s 1", "+OK"),
                ("HRANDFIELD s", WRONG_TYPE),
                ("HRANDFIELD s 1", WRONG_TYPE),
            ],
        );
        client.ask("HELLO 3");
        converse(
            &mut client,
            &[
                ("HRANDFIELD h -2 WITHVALUES", "*2|*2|$1|a|$1|1|*2|$1|a|$1|1"),
                ("HRANDFIELD h 5", "*1|$1|a"),
                ("HRANDFIELD missing", "_"),
                ("HRANDFIELD missing 1 WITHVALUES", "*0"),
            ],
        );
    }

    #[test]
    fn each_field_is_drawn_and_none_twice_with_a_positive_count() {
        let mut client = TestClient::new();
        client.ask("HSET h a 1 b 2 c 3 d 4");
        let mut fields = |line: &str| {
            let answer = client.ask(line);
            let words = answer
                .split("\r\n")
                .filter(|word| !word.starts_with(['*', '$']));
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        for line in ["HRANDFIELD h", "HRANDFIELD h 2", "HRANDFIELD h -2"] {
            let mut seen = HashSet::new();
            // That one of four is missing has a probability of less than 10^-12.
            for _ in 0..100 {
                seen.extend(fields(line));
            }
            assert_eq!(seen.len(), 4, "{line}: {seen:?}");
        }
        for count in 1..=5 {
            let drawn = fields(&format!("HRANDFIELD h {count}"));
            let different: HashSet<&String> = drawn.iter().collect();
            assert_eq!((drawn.len(), different.len()), (count.min(4), count.min(4)));
        }
        assert_eq!(fields("HRANDFIELD h -50").len(), 50);
    }
}
