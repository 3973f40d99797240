//! Times to live: their arguments in all commands, and the commands that change them.
//!
//! ```text
//!   client   seconds or milliseconds, from now or since 1970
//!   cache    Expiry::AtMs: the millisecond of the cache's clock after the last of the item
//! ```

use forerun_cache::{ComputeOp, Expiry, Item};

use crate::resp::command_spec::Command;
use crate::resp::error_texts as texts;
use crate::resp::integers::parse_i64;

use super::call::{Call, OldValue, Refusal, string_of};

/// The unit of a time, and where it counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeUnit {
    is_ms: bool,
    is_absolute: bool,
}

impl TimeUnit {
    pub(super) const SECONDS: TimeUnit = TimeUnit {
        is_ms: false,
        is_absolute: false,
    };
    pub(super) const MS: TimeUnit = TimeUnit {
        is_ms: true,
        is_absolute: false,
    };

    /// The unit of an option: `EX`, `PX`, `EXAT` or `PXAT`, in any case.
    pub(super) fn of_option(word: &[u8]) -> Option<TimeUnit> {
        let (is_ms, is_absolute) = match word.to_ascii_lowercase().as_slice() {
            b"ex" => (false, false),
            b"px" => (true, false),
            b"exat" => (false, true),
            b"pxat" => (true, true),
            _ => return None,
        };
        Some(TimeUnit { is_ms, is_absolute })
    }

    /// The time in milliseconds since 1970. `None`: it is beyond 2^63.
    fn unix_ms(self, number: i64, now_unix_ms: i64) -> Option<i64> {
        let ms = if self.is_ms {
            number
        } else {
            number.checked_mul(1000)?
        };
        if self.is_absolute {
            Some(ms)
        } else {
            ms.checked_add(now_unix_ms)
        }
    }
}

/// The names of the commands whose times are refused by name.
const NAMES: [(&str, Refusal); 9] = [
    ("set", "ERR invalid expire time in 'set' command"),
    ("setex", "ERR invalid expire time in 'setex' command"),
    ("psetex", "ERR invalid expire time in 'psetex' command"),
    ("msetex", "ERR invalid expire time in 'msetex' command"),
    ("getex", "ERR invalid expire time in 'getex' command"),
    ("expire", "ERR invalid expire time in 'expire' command"),
    ("pexpire", "ERR invalid expire time in 'pexpire' command"),
    ("expireat", "ERR invalid expire time in 'expireat' command"),
    (
        "pexpireat",
        "ERR invalid expire time in 'pexpireat' command",
    ),
];

fn invalid(call: &Call<'_, '_>) -> Refusal {
    let named = NAMES.iter().find(|(name, _)| *name == call.spec.name);
    named.map_or("ERR invalid expire time", |(_, refusal)| refusal)
}

/// The time of an option, which must be positive. One that has passed expires the item at once.
///
/// # Errors
/// It is not a number, or not a valid time.
pub(super) fn positive_time(
    call: &Call<'_, '_>,
    unit: TimeUnit,
    number: &[u8],
) -> Result<Expiry, Refusal> {
    let number = parse_i64(number).ok_or(texts::NOT_INTEGER)?;
    let shared = call.context.shared;
    let unix_ms = (number > 0).then(|| unit.unix_ms(number, shared.unix_now_ms()));
    let unix_ms = unix_ms.flatten().ok_or_else(|| invalid(call))?;
    Ok(shared.expiry_after_unix_ms(unix_ms))
}

/// The condition of `EXPIRE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Condition {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Condition {
    /// Reads `NX`, `XX`, `GT` and `LT`.
    fn parse(words: &[&[u8]]) -> Result<Condition, Vec<u8>> {
        let mut condition = Condition::default();
        for word in words {
            match word.to_ascii_lowercase().as_slice() {
                b"nx" => condition.nx = true,
                b"xx" => condition.xx = true,
                b"gt" => condition.gt = true,
                b"lt" => condition.lt = true,
                _ => {
                    let mut text = b"ERR Unsupported option ".to_vec();
                    text.extend_from_slice(&word[..word.len().min(128)]);
                    return Err(text);
                }
            }
        }
        match condition {
            Condition {
                nx: true,
                xx,
                gt,
                lt,
            } if xx || gt || lt => Err(texts::EXPIRE_NX.as_bytes().to_vec()),
            Condition {
                gt: true, lt: true, ..
            } => Err(texts::EXPIRE_GT_LT.as_bytes().to_vec()),
            condition => Ok(condition),
        }
    }

    /// Whether an item that expires at `old_ms` gets the time `new_ms`. Never counts as infinite.
    fn holds(self, old_ms: Option<u64>, new_ms: u64) -> bool {
        let Condition { nx, xx, gt, lt } = self;
        !(nx && old_ms.is_some()
            || xx && old_ms.is_none()
            || gt && old_ms.is_none_or(|old_ms| new_ms <= old_ms)
            || lt && old_ms.is_some_and(|old_ms| new_ms >= old_ms))
    }
}

impl Call<'_, '_> {
    /// `EXPIRE`, `PEXPIRE`, `EXPIREAT` and `PEXPIREAT`.
    pub(super) fn expire(&mut self) {
        let condition = Condition::parse(self.arguments.get(3..).unwrap_or_default());
        let unit = TimeUnit {
            is_ms: matches!(self.spec.command, Command::Pexpire | Command::Pexpireat),
            is_absolute: matches!(self.spec.command, Command::Expireat | Command::Pexpireat),
        };
        match condition {
            Err(text) => self.error(text),
            Ok(condition) => self.answer(|call| {
                let number = call.integer(2)?;
                let is_set = call.expire_key(number, unit, condition)?;
                call.number(is_set.into());
                Ok(())
            }),
        }
    }

    fn expire_key(
        &mut self,
        number: i64,
        unit: TimeUnit,
        condition: Condition,
    ) -> Result<bool, Refusal> {
        let shared = self.context.shared;
        let unix_ms = unit.unix_ms(number, shared.unix_now_ms());
        let unix_ms = unix_ms.ok_or_else(|| invalid(self))?;
        let expiry = shared.expiry_after_unix_ms(unix_ms);
        let (new_ms, now_ms) = (expiry.ms(0).unwrap_or(0), self.context.cache.now_ms());
        let is_set = self.update(self.argument(1), |old| match old {
            Some(old) if condition.holds(old.expiry_ms(), new_ms) => {
                let op = if new_ms <= now_ms {
                    ComputeOp::Remove
                } else {
                    ComputeOp::Expire(expiry)
                };
                Ok((op, true))
            }
            _ => Ok((ComputeOp::Keep, false)),
        })?;
        self.count_touch(is_set);
        Ok(is_set)
    }

    /// `PERSIST key`.
    pub(super) fn persist(&mut self) -> Result<(), Refusal> {
        let is_set = self.update(self.argument(1), |old| {
            match old.and_then(Item::expiry_ms) {
                Some(_) => Ok((ComputeOp::Expire(Expiry::Never), true)),
                None => Ok((ComputeOp::Keep, false)),
            }
        })?;
        self.count_touch(is_set);
        self.number(is_set.into());
        Ok(())
    }

    /// `GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]`.
    pub(super) fn getex(&mut self) -> Result<(), Refusal> {
        let (mut time, mut persists): (Option<(TimeUnit, &[u8])>, _) = (None, false);
        let mut rest = self.arguments.get(2..).unwrap_or_default();
        while let [word, behind @ ..] = rest {
            rest = match behind {
                behind if word.eq_ignore_ascii_case(b"persist") && time.is_none() => {
                    persists = true;
                    behind
                }
                [number, behind @ ..] if !persists => {
                    let unit = TimeUnit::of_option(word).ok_or(texts::SYNTAX)?;
                    // The same option may be repeated. The last number counts.
                    if time.is_some_and(|(earlier, _)| earlier != unit) {
                        return Err(texts::SYNTAX);
                    }
                    time = Some((unit, *number));
                    behind
                }
                _ => return Err(texts::SYNTAX),
            };
        }
        let expiry = match time {
            Some((unit, number)) => positive_time(self, unit, number).map(Some),
            None => Ok(persists.then_some(Expiry::Never)),
        };
        let key = self.argument(1);
        let now_ms = self.context.cache.now_ms();
        let stored_key = self.stored_key(key);
        let cache = self.cache_for_write(&stored_key);
        // The cache learns that the item is in use.
        let is_hit = cache.pin().get(&*stored_key).is_some();
        let value = self.update(key, |old| {
            let value = string_of(old)?.and(old).map(OldValue::of);
            // As in Redis, the time of a missing key is not read.
            let expiry = if old.is_some() { expiry? } else { None };
            let op = match (old, expiry) {
                (Some(_), Some(Expiry::AtMs(ms))) if ms <= now_ms => ComputeOp::Remove,
                (Some(old), Some(Expiry::Never)) if old.expiry_ms().is_none() => ComputeOp::Keep,
                (Some(_), Some(expiry)) => ComputeOp::Expire(expiry),
                _ => ComputeOp::Keep,
            };
            Ok((op, value))
        })?;
        self.count_touch(is_hit);
        self.old_value(value);
        Ok(())
    }

    pub(super) fn count_touch(&self, is_hit: bool) {
        let counters = self.context.counters;
        counters.cmd_touch.add(1);
        if is_hit {
            counters.touch_hits.add(1)
        } else {
            counters.touch_misses.add(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_compares_with_the_old_time_and_never_is_infinite() {
        let holds = |word: &str, old_ms| {
            Condition::parse(&[word.as_bytes()])
                .expect(word)
                .holds(old_ms, 100)
        };
        for (word, never, earlier, same, later) in [
            ("NX", true, false, false, false),
            ("xx", false, true, true, true),
            ("GT", false, true, false, false),
            ("lt", true, false, false, true),
        ] {
            let held = [None, Some(50), Some(100), Some(150)].map(|old_ms| holds(word, old_ms));
            assert_eq!(held, [never, earlier, same, later], "{word}");
        }
        assert!(Condition::parse(&[b"XX", b"GT"]).is_ok());
        assert!(Condition::parse(&[b"NX", b"GT"]).is_err());
        assert!(Condition::parse(&[b"LT", b"GT"]).is_err());
        let unsupported = b"ERR Unsupported option FOO".to_vec();
        assert_eq!(Condition::parse(&[b"FOO"]), Err(unsupported));
    }

    #[test]
    fn a_time_beyond_the_clock_is_none() {
        for (unit, number, expected) in [
            (TimeUnit::SECONDS, 5, Some(6_000)),
            (TimeUnit::MS, -5, Some(995)),
            (TimeUnit::SECONDS, i64::MAX / 1000, None),
            (TimeUnit::SECONDS, i64::MIN / 100, None),
            (TimeUnit::MS, i64::MAX, None),
        ] {
            assert_eq!(unit.unix_ms(number, 1_000), expected, "{unit:?} {number}");
        }
    }
}
