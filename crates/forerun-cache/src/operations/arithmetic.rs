//! Arithmetic on values that are decimal numbers.

use super::{compares_unequal, rewritten};
use crate::blocks::item_layout::Record;
use crate::blocks::item_word::FETCHED;
use crate::cache::Cache;
use crate::expiry::Deadline;
use crate::item_kind::ItemKind;
use crate::request::{Arithmetic, ArithmeticOp, ArithmeticResult};
use crate::write::{Decision, NewBody, NewItem, Operation, Outcome};
use std::cell::Cell;

/// The longest value that is taken for a number, with the white space around it. Memcached's limit
/// is the same by default. A change copies the value, outside the memory limit.
const NUMBER_BYTES_MAX: usize = 512 << 10;

impl Cache {
    /// Adds to or subtracts from a value that is a decimal number.
    ///
    /// ```
    /// use forerun_cache::{Arithmetic, Cache, CacheOptions, ArithmeticResult, Expiry};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let initial = Some((1, Expiry::Never));
    /// let visit = Arithmetic { initial, ..Arithmetic::increment("visits", 1) };
    /// for expected in [1, 2] {
    ///     let counted = cache.arithmetic(visit);
    ///     assert!(matches!(counted, ArithmeticResult::Changed { value, .. } if value == expected));
    /// }
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn arithmetic(&self, arithmetic: Arithmetic<'_>) -> ArithmeticResult {
        if self.is_forked() {
            return ArithmeticResult::Forked;
        }
        if !self.is_key(arithmetic.key) {
            return ArithmeticResult::InvalidKey;
        }
        let request = ArithmeticOperation {
            arithmetic,
            now: self.now(),
            sum: Cell::new(Sum {
                value: 0,
                deadline: Deadline::NEVER,
                is_new: false,
            }),
        };
        match self.update(arithmetic.key, &request) {
            Outcome::Answer(answer) => answer,
            Outcome::Written { cas } => {
                let sum = request.sum.get();
                ArithmeticResult::Changed {
                    value: sum.value,
                    cas,
                    expiry: sum.deadline.into(),
                    is_new: sum.is_new,
                }
            }
            Outcome::OutOfMemory => ArithmeticResult::OutOfMemory,
        }
    }
}

/// [`Cache::arithmetic`].
struct ArithmeticOperation<'a> {
    arithmetic: Arithmetic<'a>,
    /// The second of the clock.
    now: u32,
    /// The result of the last decision.
    sum: Cell<Sum>,
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    value: u64,
    deadline: Deadline,
    is_new: bool,
}

impl Operation for ArithmeticOperation<'_> {
    type Answer = ArithmeticResult;

    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, ArithmeticResult> {
        let Arithmetic {
            delta,
            op,
            compare_cas,
            new_cas,
            expiry,
            initial,
            ..
        } = self.arithmetic;
        let Some(old) = found else {
            let Some((value, expiry)) = initial else {
                return Decision::Answer(ArithmeticResult::NotFound);
            };
            let deadline = Deadline::of(expiry, self.now);
            self.sum.set(Sum {
                value,
                deadline,
                is_new: true,
            });
            return Decision::Write(NewItem {
                value: NewBody::Owned(value.to_string().into_bytes()),
                flags: 0,
                kind: ItemKind::String,
                deadline,
                marks: 0,
                cas: new_cas,
                is_unconditional: false,
            });
        };
        // memcached checks for an empty value before it compares the CAS number.
        if old.value().is_empty() {
            return Decision::Answer(ArithmeticResult::NotANumber);
        }
        if compares_unequal(compare_cas, old) {
            return Decision::Answer(ArithmeticResult::Exists);
        }
        let number = (old.value().len() <= NUMBER_BYTES_MAX).then(|| number(old.value()));
        let Some(number) = number.flatten() else {
            return Decision::Answer(ArithmeticResult::NotANumber);
        };
        let value = match op {
            ArithmeticOp::Increment => number.wrapping_add(delta),
            ArithmeticOp::Decrement => number.saturating_sub(delta),
        };
        let mut digits = value.to_string().into_bytes();
        // A `format!` width would panic above 65,535.
        digits.resize(digits.len().max(old.value().len()), b' ');
        // As in memcached, which changes a number in place only if it does not get longer. A longer
        // number is a new item that no client has fetched.
        let kept = if digits.len() > old.value().len() {
            !FETCHED
        } else {
            u8::MAX
        };
        let new = NewItem {
            value: NewBody::Owned(digits),
            kind: ItemKind::String,
            deadline: expiry.map_or(old.deadline(), |expiry| Deadline::of(expiry, self.now)),
            cas: new_cas,
            marks: old.marks() & kept,
            ..rewritten(old)
        };
        self.sum.set(Sum {
            value,
            deadline: new.deadline,
            is_new: false,
        });
        Decision::Write(new)
    }
}

/// Parses a number as memcached does, with C's `strtoull`: white space and a plus sign may precede
/// the digits. If anything follows them, it must start with white space.
fn number(value: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'\x0b';
    let start = value.iter().position(|byte| !is_space(byte))?;
    let value = &value[start..];
    let value = value.strip_prefix(b"+").unwrap_or(value);
    let len = value
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let (digits, after) = value.split_at(len);
    if !after.first().is_none_or(is_space) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
