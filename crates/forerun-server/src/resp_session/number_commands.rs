//! Strings that are numbers.

use forerun_cache::{ComputeOp, Item};

use crate::resp::command_spec::Command;
use crate::resp::error_texts as texts;
use crate::resp::integers::parse_i64;
use crate::resp::long_double::LongDouble;

use super::call::{Call, Refusal, string_of};
use super::string_commands::in_place_of;

/// The sum of a string, which is 0 if there is none, and a number.
///
/// # Errors
/// The string is not a number, or the sum has more than 64 bits.
fn sum(old: Option<&Item<'_>>, delta: i64) -> Result<i64, Refusal> {
    let number = match string_of(old)? {
        Some(text) => parse_i64(text).ok_or(texts::NOT_INTEGER)?,
        None => 0,
    };
    number.checked_add(delta).ok_or(texts::INCR_OVERFLOW)
}

/// The sum of two texts that are decimal numbers.
///
/// # Errors
/// `not_a_number`, if one of them is none, or the sum is not finite.
pub(super) fn float_sum(
    old: Option<&[u8]>,
    delta: LongDouble,
    not_a_number: Refusal,
) -> Result<String, Refusal> {
    let old = LongDouble::parse(old.unwrap_or(b"0")).ok_or(not_a_number)?;
    let sum = old.add(delta).filter(|sum| sum.is_finite());
    Ok(sum.ok_or(texts::NAN_OR_INFINITY)?.to_text())
}

impl Call<'_, '_> {
    /// `INCR`, `DECR`, `INCRBY` and `DECRBY`.
    pub(super) fn increment(&mut self) -> Result<(), Refusal> {
        let delta = match self.spec.command {
            Command::Incr => 1,
            Command::Decr => -1,
            Command::Incrby => self.integer(2)?,
            _ => self.integer(2)?.checked_neg().ok_or(texts::DECR_OVERFLOW)?,
        };
        if let Some(number) = self.add_to(self.argument(1), delta, false)? {
            self.number(number);
        }
        Ok(())
    }

    /// Adds to the number of a key and returns the sum. A missing key counts as 0, unless only one
    /// that exists is wanted: then the result is `None`.
    pub(super) fn add_to(
        &mut self,
        key: &[u8],
        delta: i64,
        only_existing: bool,
    ) -> Result<Option<i64>, Refusal> {
        let (number, is_hit) = self.update(key, |old| {
            if old.is_none() && only_existing {
                return Ok((ComputeOp::Keep, (None, false)));
            }
            let number = sum(old, delta)?;
            let text = number.to_string().into_bytes();
            Ok((in_place_of(old, text), (Some(number), old.is_some())))
        })?;
        let counters = self.context.counters;
        match (delta < 0, is_hit) {
            (false, true) => counters.incr_hits.add(1),
            (false, false) => counters.incr_misses.add(1),
            (true, true) => counters.decr_hits.add(1),
            (true, false) => counters.decr_misses.add(1),
        }
        Ok(number)
    }

    /// `INCRBYFLOAT key increment`.
    pub(super) fn increment_float(&mut self) -> Result<(), Refusal> {
        let delta = LongDouble::parse(self.argument(2)).ok_or(texts::NOT_FLOAT);
        self.context.counters.cmd_set.add(1);
        let text = self.update(self.argument(1), |old| {
            let text = float_sum(string_of(old)?, delta?, texts::NOT_FLOAT)?;
            Ok((in_place_of(old, text.clone().into_bytes()), text))
        })?;
        self.bulk(text.as_bytes());
        Ok(())
    }
}
