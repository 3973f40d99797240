//! `SCAN` and `DBSIZE`.
//!
//! ```text
//!   cursor   a position of the index of all databases     page   the keys of the client's database behind it
//! ```

use forerun_cache::{Item, ItemKind};

use crate::resp::error_texts as texts;
use crate::resp::glob::Pattern;
use crate::resp::integers::{parse_cursor, parse_i64};
use crate::resp::reply;

use super::call::{Call, Refusal};
use super::read_answers::type_name;

/// The size of a page of `SCAN` without `COUNT`.
const COUNT: usize = 10;
/// `SCAN` visits at most so many keys at once, of one part of the index.
pub(super) const SCAN_STEP_KEYS: usize = 128;
/// The most such steps of one `SCAN`.
const SCAN_STEPS: usize = 128;
/// What a visited key counts as work.
pub(super) const KEY_WORK_BYTES: usize = 64;
/// A page of `SCAN` ends once it has visited keys of so many bytes.
pub(super) const SCAN_BYTES: usize = 1 << 20;

/// Whether clients may list keys.
pub(super) fn may_list(call: &Call<'_, '_>) -> Result<(), Refusal> {
    if call.context.shared.settings.dump_enabled {
        Ok(())
    } else {
        Err(texts::DISABLED)
    }
}

/// Reads a pattern of keys or fields.
///
/// # Errors
/// It is too long.
pub(super) fn pattern(text: &[u8]) -> Result<Pattern, Refusal> {
    Pattern::new(text).ok_or(texts::PATTERN_TOO_LONG)
}

/// The options of `SCAN`.
struct ScanOptions {
    pattern: Option<Pattern>,
    count: usize,
    /// A type, or `None` for one that does not exist.
    kind: Option<Option<ItemKind>>,
}

impl ScanOptions {
    fn parse(mut rest: &[&[u8]]) -> Result<ScanOptions, Refusal> {
        let mut matched = None;
        let mut options = ScanOptions {
            pattern: None,
            count: COUNT,
            kind: None,
        };
        while let [word, value, behind @ ..] = rest {
            match word.to_ascii_lowercase().as_slice() {
                b"match" => matched = Some(*value),
                b"count" => {
                    let count = parse_i64(value).ok_or(texts::NOT_INTEGER)?;
                    let count = usize::try_from(count).ok().filter(|&count| count > 0);
                    options.count = count.ok_or(texts::SYNTAX)?;
                }
                b"type" => {
                    let kinds = [ItemKind::String, ItemKind::Hash];
                    let is_named =
                        |kind: &ItemKind| value.eq_ignore_ascii_case(type_name(*kind).as_bytes());
                    options.kind = Some(kinds.into_iter().find(is_named));
                }
                _ => return Err(texts::SYNTAX),
            }
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(texts::SYNTAX);
        }
        options.pattern = matched.map(pattern).transpose()?;
        Ok(options)
    }

    fn is_wanted(&self, item: &Item<'_>, key: &[u8]) -> bool {
        let pattern = self.pattern.as_ref();
        self.kind.is_none_or(|kind| kind == Some(item.kind()))
            && pattern.is_none_or(|pattern| pattern.matches(key))
    }
}

impl Call<'_, '_> {
    /// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]`.
    pub(super) fn scan(&mut self) -> Result<(), Refusal> {
        let cursor = parse_cursor(self.argument(1)).ok_or(texts::INVALID_CURSOR)?;
        let options = ScanOptions::parse(self.arguments.get(2..).unwrap_or_default())?;
        may_list(self)?;
        let keyspace = self.keyspace;
        let (mut keys, mut visited, mut bytes, mut found) = (0, 0, 0, Vec::new());
        let mut next = cursor;
        // A page of the cache is at most a part of the index, and many parts may be empty.
        for _ in 0..SCAN_STEPS {
            let left = options.count.saturating_sub(visited).min(SCAN_STEP_KEYS);
            next = self.context.cache.pin().scan_keys(next, left, |item| {
                visited += 1;
                bytes += item.key().len();
                if let Some(key) = keyspace.own_key(item.key())
                    && options.is_wanted(&item, key)
                {
                    keys += 1;
                    reply::push_bulk(&mut found, key);
                }
            });
            if next == 0 || visited >= options.count || bytes >= SCAN_BYTES {
                break;
            }
        }
        self.context.work_bytes += bytes + visited * KEY_WORK_BYTES;
        self.array(2);
        self.bulk(next.to_string().as_bytes());
        self.array(keys);
        self.context.push(&found);
        Ok(())
    }

    /// `DBSIZE`.
    pub(super) fn dbsize(&mut self) {
        let items = self.context.cache.keyspace_len(self.keyspace);
        self.number(items as i64);
    }
}
